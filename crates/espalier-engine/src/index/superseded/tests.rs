//! Trees that come and go before they are part of the index: against a map, and what they cost.

use crate::model::key::KeyRange;
use crate::{Batch, FormatOptions, IndexId, OpenOptions, Store, Tuning};
use espalier_storage::{Device, Random, SimulatedDevice, SimulatedEnvironment};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

type Plain = BTreeMap<Vec<u8>, Vec<u8>>;

struct Bench {
    device: Arc<SimulatedDevice>,
    store: Arc<Store>,
    id: IndexId,
    plain: Plain,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let device = Arc::new(SimulatedDevice::with_garbage(64 << 20, seed));
        let env = Arc::new(SimulatedEnvironment::new(seed));
        Store::format(device.clone(), env, &FormatOptions::default()).unwrap();
        let store = open(device.clone(), seed);
        let volume = store.create_volume("v", 1, 0, &[]).unwrap();
        Self { device, store, id: IndexId { volume, index: 0 }, plain: Plain::new() }
    }

    fn below(&self, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all = self.plain.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
        all.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn clone(&mut self, batch: &mut Batch, source: &[u8], destination: &[u8]) {
        batch.clone_range(self.id, source, destination);
        let copies = self.below(source);
        self.plain.retain(|key, _| !key.starts_with(destination));
        let copies =
            copies.into_iter().map(|(key, value)| ([destination, &key[source.len()..]].concat(), value));
        self.plain.extend(copies);
    }

    fn delete(&mut self, batch: &mut Batch, prefix: &[u8]) {
        batch.delete_range(self.id, KeyRange::prefix(prefix));
        self.plain.retain(|key, _| !key.starts_with(prefix));
    }

    fn put(&mut self, batch: &mut Batch, key: &[u8], value: &[u8]) {
        batch.insert(self.id, key, value.to_vec());
        self.plain.insert(key.to_vec(), value.to_vec());
    }

    fn patch(&mut self, batch: &mut Batch, key: &[u8], byte: u8) {
        batch.patch(self.id, key, 1, vec![byte]);
        let value = self.plain.entry(key.to_vec()).or_default();
        value.resize(value.len().max(2), 0);
        value[1] = byte;
    }

    fn commit(&self, batch: Batch) {
        self.store.commit(batch).unwrap();
    }

    #[track_caller]
    fn check(&self, what: &str) {
        assert_same(&self.store, self.id, &self.plain, what);
    }

    fn nodes(&self) -> u64 {
        self.store.checkpoint().unwrap();
        self.store.census().unwrap().nodes
    }
}

fn open(device: Arc<dyn Device>, seed: u64) -> Arc<Store> {
    let tuning = Tuning { edge: 2 << 10, ..Tuning::tiny() };
    let env = Arc::new(SimulatedEnvironment::new(seed));
    Store::open(device, env, OpenOptions { tuning, ..OpenOptions::default() }).unwrap()
}

#[track_caller]
fn assert_same(store: &Store, id: IndexId, plain: &Plain, what: &str) {
    let mut cursor = store.cursor(id, KeyRange::all()).unwrap();
    for (key, value) in plain {
        let entry = cursor.next().unwrap().unwrap_or_else(|| panic!("{what}: {key:?} is missing"));
        assert_eq!(&entry.key[..], key, "{what}");
        assert_eq!(&cursor.read(&entry.value).unwrap()[..], value, "{what}, {key:?}");
    }
    assert!(cursor.next().unwrap().is_none(), "{what}: an entry too many");
    let report = store.verify(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
}

/// A source with so many entries.
fn with_source(seed: u64, entries: u32) -> Bench {
    let mut bench = Bench::new(seed);
    for number in 0..entries {
        let mut batch = Batch::new();
        bench.put(&mut batch, format!("s/{number:05}").as_bytes(), b"an entry of the source");
        bench.commit(batch);
    }
    bench.store.checkpoint().unwrap();
    bench
}

#[test]
fn trees_that_come_and_go_match_a_map() {
    const TREES: [&[u8]; 7] = [b"a", b"b", b"ab", b"a/x", b"b/x/y", b"c", b"s/000"];
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut bench = with_source(seed, 200);
        // What was there at the checkpoint, and what was seen by a reader that stays.
        let mut held = None;
        for round in 0..60 {
            let mut batch = Batch::new();
            let (tree, other) = (*random.choose(&TREES), *random.choose(&TREES));
            let key = [tree, format!("{:03}", random.below(200)).as_bytes()].concat();
            match random.below(10) {
                0..=2 => bench.clone(&mut batch, if random.one_in(3) { other } else { b"s/" }, tree),
                3..=4 if !tree.starts_with(other) && !other.starts_with(tree) => {
                    batch.move_range(bench.id, tree, other);
                    let mut same = Batch::new();
                    bench.clone(&mut same, tree, other);
                    bench.plain.retain(|key, _| !key.starts_with(tree));
                }
                5..=6 => bench.delete(&mut batch, tree),
                7 => bench.put(&mut batch, &key, b"new"),
                8 => bench.patch(&mut batch, &key, round),
                _ => {
                    bench.clone(&mut batch, b"s/", tree);
                    bench.put(&mut batch, &key, b"in the same batch");
                    bench.delete(&mut batch, tree);
                }
            }
            bench.commit(batch);
            match random.below(8) {
                0 => while bench.store.step().unwrap() {},
                1 => bench.store.checkpoint().unwrap(),
                2 => drop(bench.store.step().unwrap()),
                3 if held.is_none() => {
                    held = Some((bench.store.snapshot().unwrap(), bench.plain.clone()));
                }
                _ => {}
            }
            if bench.plain.len() > 3000 {
                let mut batch = Batch::new();
                TREES.iter().for_each(|tree| bench.delete(&mut batch, tree));
                bench.commit(batch);
            }
        }
        bench.check(&format!("seed {seed}"));
        if let Some((snapshot, plain)) = held {
            let mut cursor = snapshot.cursor(bench.id, KeyRange::all()).unwrap();
            for (key, value) in plain {
                let entry = cursor.next().unwrap().expect("it was there");
                assert_eq!((&entry.key[..], &cursor.read(&entry.value).unwrap()[..]), (&key[..], &value[..]));
            }
        }
    }
}

/// Whatever is done in it, and however often it moves.
#[test]
fn a_clone_that_goes_before_its_turn_makes_no_nodes() {
    let mut bench = with_source(1, 2000);
    let before = bench.nodes();
    for round in 0..10 {
        let (from, to) = (format!("tmp{round}/"), format!("home{round}/gone/"));
        let mut batch = Batch::new();
        bench.clone(&mut batch, b"s/", from.as_bytes());
        bench.commit(batch);
        let mut batch = Batch::new();
        bench.put(&mut batch, format!("{from}new").as_bytes(), b"new");
        bench.patch(&mut batch, format!("{from}00077").as_bytes(), 7);
        bench.commit(batch);
        let mut batch = Batch::new();
        batch.move_range(bench.id, from.as_bytes(), to.as_bytes());
        bench.commit(batch);
        bench.plain.retain(|key, _| !key.starts_with(from.as_bytes()));
        let mut batch = Batch::new();
        bench.delete(&mut batch, format!("home{round}/").as_bytes());
        bench.commit(batch);
    }
    let after = bench.nodes();
    assert!(after <= before + 2, "{before} nodes before, {after} afterwards");
    bench.check("all are gone");
}

/// One that takes the place of another leaves nothing of that.
#[test]
fn only_the_last_clone_to_a_place_makes_nodes() {
    let mut bench = with_source(1, 2000);
    let mut cost = |clones: u32, to: &[u8]| {
        let before = bench.nodes();
        for _ in 0..clones {
            let mut batch = Batch::new();
            bench.clone(&mut batch, b"s/", to);
            bench.commit(batch);
        }
        bench.nodes() as i64 - before as i64
    };
    let (one, many) = (cost(1, b"one/"), cost(20, b"two/"));
    assert!(many <= one + 2, "{one} nodes for a clone, {many} for twenty in one place");
    bench.check("two clones");
}

/// A checkpoint holds what was there at its cut, also if that went while it was made.
#[test]
fn a_clone_that_goes_after_a_checkpoint_is_in_it() {
    let mut bench = with_source(1, 500);
    let mut batch = Batch::new();
    bench.clone(&mut batch, b"s/", b"clone/");
    bench.commit(batch);
    bench.store.checkpoint().unwrap();
    let plain = bench.plain.clone();
    let mut batch = Batch::new();
    bench.delete(&mut batch, b"clone/");
    bench.commit(batch);
    // As after a crash: the deletion was not made durable.
    let image: Arc<dyn Device> = Arc::new(SimulatedDevice::from_image(bench.device.image(), 2));
    let store = open(image, 2);
    assert_same(&store, bench.id, &plain, "after a crash");
}

#[test]
fn clones_rest_for_a_moment_unless_many_wait() {
    let mut bench = with_source(1, 50);
    let index = bench.store.components.indexes.read()[&bench.id].clone();
    let mut clone = |to: &str| {
        let mut batch = Batch::new();
        bench.clone(&mut batch, b"s/", to.as_bytes());
        bench.commit(batch);
    };
    let (seen, millisecond) = (Duration::from_secs(7), Duration::from_millis(1));
    assert_eq!(index.version().rest(seen), None, "there is none");
    clone("a/");
    let rest = index.version().rest(seen).expect("it rests");
    assert_eq!(index.version().rest(seen + rest - millisecond), Some(millisecond));
    // One more does not make the first one rest for longer.
    clone("b/");
    assert_eq!(index.version().rest(seen + rest - millisecond), Some(millisecond));
    assert_eq!(index.version().rest(seen + rest), None);
    for number in 0..super::MAX_RESTING_LAYERS {
        clone(&format!("many{number}/"));
    }
    assert_eq!(index.version().rest(seen), None);
}
