//! Comparisons of ranges that share some of their nodes and messages, against walks through both.

use bytes::Bytes;
use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Store, Tuning};
use espalier_sim::merge_functions;
use espalier_storage::{Random, SimulatedDevice, SimulatedEnvironment};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const DEVICE: u64 = 64 << 20;
const SEEDS: u64 = 24;
const STEPS: usize = 120;

/// Of the merge functions: the argument is appended.
const APPEND: u16 = 1;

/// Prefixes that are clones of one another.
const TOPS: [&str; 5] = ["a/", "b/", "c/", "cc/", "d/"];

fn open(tuning: Tuning, seed: u64) -> (Arc<Store>, IndexId) {
    let device = Arc::new(SimulatedDevice::new(DEVICE, seed));
    let env = Arc::new(SimulatedEnvironment::new(seed));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let options =
        OpenOptions { memory: 16 << 20, merge: merge_functions(), tuning, ..OpenOptions::default() };
    let store = Store::open(device, env, options).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    (store, IndexId { volume, index: 0 })
}

fn commit(store: &Store, fill: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    store.commit(batch).unwrap();
}

fn entries(store: &Store, index: IndexId, top: &str) -> BTreeMap<Bytes, Bytes> {
    let walk = store.cursor(index, KeyRange::prefix(top.as_bytes())).unwrap();
    let entries = walk.into_iter().map(|entry| entry.unwrap());
    entries.map(|(key, value)| (Bytes::copy_from_slice(&key[top.len()..]), value)).collect()
}

/// What comparisons cost together.
#[derive(Debug, Default)]
struct Cost {
    /// Entries of parts that were passed over.
    entries: u64,
    /// Keys that were looked up on both sides.
    keys: u64,
    /// Keys that differ.
    differences: u64,
}

impl Cost {
    /// Compares two ranges, and requires the keys at which walks through both differ.
    fn compare(&mut self, store: &Store, index: IndexId, [old, new]: [&str; 2], context: &str) {
        let (a, b) = (entries(store, index, old), entries(store, index, new));
        let all: BTreeSet<&Bytes> = a.keys().chain(b.keys()).collect();
        let expected: Vec<&Bytes> = all.into_iter().filter(|key| a.get(*key) != b.get(*key)).collect();
        let mut diff = store.diff((index, old.as_bytes()), (index, new.as_bytes())).unwrap();
        let mut found = Vec::new();
        while let Some(difference) = diff.next().unwrap() {
            found.push(Bytes::copy_from_slice(&difference.key));
        }
        let found: Vec<&Bytes> = found.iter().collect();
        assert_eq!(found, expected, "{context}: {old} and {new}");
        self.entries += diff.entries();
        self.keys += diff.keys();
        self.differences += expected.len() as u64;
    }
}

/// What waits above the leaves is merged with newer messages for each clone apart: then equal
/// messages lie in different parts, and one pass over both finds that they are equal.
#[test]
fn equal_messages_in_different_parts_are_not_looked_up() {
    let mut cost = Cost::default();
    for seed in 1..=6 {
        let mut random = Random::new(seed);
        let (store, index) = open(Tuning { edge: 4 << 10, part: 2 << 10, ..Tuning::tiny() }, seed);
        let key = |top: &str, n: u64| format!("{top}{}/{:03}", n % 10, n).into_bytes();
        for n in 0..600 {
            commit(&store, |batch| batch.insert(index, &key("a/", n), vec![n as u8; 40]));
        }
        store.checkpoint().unwrap();
        for round in 0..24 {
            if round % 8 == 0 {
                // These wait above the leaves, and clones take them along.
                for _ in 0..60 {
                    commit(&store, |batch| batch.update(index, &key("a/", random.below(600)), APPEND, "+"));
                }
                for top in &TOPS[1..] {
                    commit(&store, |batch| batch.clone_range(index, b"a/", top.as_bytes()));
                }
            }
            for top in TOPS[1..].iter().cycle().take(40) {
                let key = key(top, random.below(600));
                commit(&store, |batch| batch.insert(index, &key, top.as_bytes().to_vec()));
            }
            store.checkpoint().unwrap();
            while random.below(4) > 0 && store.step().unwrap() {}
            cost.compare(&store, index, [TOPS[1], TOPS[2]], &format!("seed {seed}, round {round}"));
        }
    }
    println!("{cost:?}");
    // Each key that differs has an entry on one side at least.
    assert!(cost.entries > cost.differences + 400, "nothing was merged for each clone: {cost:?}");
    assert!(cost.keys < cost.differences + 40, "{cost:?}");
}

/// Random changes of all kinds, range messages and clones among them, in tiny nodes.
#[test]
fn comparisons_agree_with_walks() {
    let mut cost = Cost::default();
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let tuning = Tuning { edge: *random.choose(&[1 << 10, 4 << 10]), ..Tuning::tiny() };
        let (store, index) = open(tuning, seed);
        for step in 0..STEPS {
            change(&store, index, &mut random);
            if step % 8 == 7 {
                let pair = [*random.choose(&TOPS), *random.choose(&TOPS)];
                cost.compare(&store, index, pair, &format!("seed {seed}, step {step}"));
            }
        }
        for (old, new) in TOPS.into_iter().flat_map(|old| TOPS.map(|new| (old, new))) {
            cost.compare(&store, index, [old, new], &format!("seed {seed}, at the end"));
        }
    }
    println!("{cost:?}");
    assert!(cost.differences > 1000, "{cost:?}");
}

fn change(store: &Store, index: IndexId, random: &mut Random) {
    let top = *random.choose(&TOPS);
    let key = |random: &mut Random| {
        let (dir, file) = (random.below(6), random.below(12));
        format!("{top}{dir}/{file:02}").into_bytes()
    };
    let text = |random: &mut Random| vec![b'a' + random.below(3) as u8; random.below(60) as usize];
    match random.below(40) {
        0..12 => commit(store, |batch| {
            for _ in 0..random.between(1..=12) {
                batch.insert(index, &key(random), text(random));
            }
        }),
        12..17 => commit(store, |batch| batch.update(index, &key(random), APPEND, text(random))),
        17..22 => commit(store, |batch| {
            batch.patch(index, &key(random), random.below(20) as u32, text(random));
        }),
        22..25 => commit(store, |batch| batch.delete(index, &key(random))),
        25..27 => commit(store, |batch| {
            let prefix = format!("{top}{}/", random.below(6));
            batch.delete_range(index, KeyRange::prefix(prefix.as_bytes()));
        }),
        27 => commit(store, |batch| {
            let range = KeyRange::prefix(top.as_bytes());
            batch.update_range(index, range, APPEND, text(random));
        }),
        28..32 => {
            let other = TOPS.into_iter().filter(|other| *other != top).collect::<Vec<_>>();
            let source = *random.choose(&other);
            commit(store, |batch| batch.clone_range(index, source.as_bytes(), top.as_bytes()));
        }
        32..36 => drop(store.step().unwrap()),
        _ => store.checkpoint().unwrap(),
    }
}
