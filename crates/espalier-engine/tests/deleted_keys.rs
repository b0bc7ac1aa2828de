//! Keys that were deleted and still have messages: looks that give up, and messages that are made
//! to come to the leaves.

use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Store, Tuning, Within};
use espalier_storage::{Random, SimulatedDevice, SimulatedEnvironment};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How many keys are inserted, and deleted but for the last one.
const KEYS: u32 = 1000;

/// A store in which messages wait on edges.
fn new_store() -> (Arc<Store>, IndexId) {
    let (device, environment) =
        (Arc::new(SimulatedDevice::new(64 << 20, 1)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), environment.clone(), &FormatOptions::default()).unwrap();
    let options = OpenOptions { tuning: Tuning::tiny(), ..OpenOptions::default() };
    let store = Store::open(device, environment, options).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    (store, IndexId { volume, index: 0 })
}

fn key(prefix: &str, number: u32) -> Vec<u8> {
    format!("{prefix}{number:04}").into_bytes()
}

fn fill_and_delete(store: &Store, id: IndexId) {
    for number in 0..KEYS {
        let mut batch = Batch::new();
        batch.insert(id, &key("a", number), b"value".to_vec());
        store.commit(batch).unwrap();
    }
    store.checkpoint().unwrap();
    for number in 0..KEYS - 1 {
        let mut batch = Batch::new();
        batch.delete(id, &key("a", number));
        store.commit(batch).unwrap();
    }
}

fn look(store: &Store, id: IndexId, most: usize) -> Within {
    store.cursor(id, KeyRange::prefix(b"a")).unwrap().next_within(most).unwrap()
}

#[test]
fn a_look_gives_up_after_so_many_deleted_keys_and_goes_on_behind_them() {
    let (store, id) = new_store();
    fill_and_delete(&store, id);
    let is_last = |found: &Within| matches!(found, Within::Entry(entry) if *entry.key == *key("a", KEYS - 1));
    assert!(is_last(&look(&store, id, KEYS as usize)));
    let mut cursor = store.cursor(id, KeyRange::prefix(b"a")).unwrap();
    let mut gave_up = 0;
    let found = loop {
        match cursor.next_within(10).unwrap() {
            Within::GaveUp => gave_up += 1,
            found => break found,
        }
    };
    assert!(is_last(&found) && gave_up > 0, "it gave up {gave_up} times and found {found:?}");
    assert_eq!(cursor.next_within(0).unwrap(), Within::End);
}

#[test]
fn deletions_that_have_settled_are_not_met_any_more() {
    let (store, id) = new_store();
    fill_and_delete(&store, id);
    let range = [(id, KeyRange::prefix(b"a"))];
    assert_eq!(look(&store, id, 20), Within::GaveUp);
    // Nothing was deleted elsewhere.
    store.settle_deleted(&[(id, KeyRange::prefix(b"b"))], Duration::MAX).unwrap();
    assert_eq!(look(&store, id, 20), Within::GaveUp);
    store.settle_deleted(&range, Duration::from_secs(1000)).unwrap();
    assert!(matches!(look(&store, id, 20), Within::Entry(_)));
    assert!(store.verify(&mut |_| ()).unwrap().problems.is_empty());
}

#[test]
fn clones_of_a_range_full_of_deleted_keys_have_what_is_left() {
    let (store, id) = new_store();
    fill_and_delete(&store, id);
    for to in ["b", "c", "d"] {
        let mut batch = Batch::new();
        batch.clone_range(id, b"a", to.as_bytes());
        store.commit(batch).unwrap();
        store.checkpoint().unwrap();
        let mut cursor = store.cursor(id, KeyRange::prefix(to.as_bytes())).unwrap();
        let keys: Vec<_> =
            std::iter::from_fn(|| cursor.next().unwrap()).map(|entry| entry.key.to_vec()).collect();
        assert_eq!(keys, [key(to, KEYS - 1)]);
        assert!(store.verify(&mut |_| ()).unwrap().problems.is_empty());
    }
}

/// The entries of a range, read by a cursor upwards and downwards.
fn entries(store: &Store, id: IndexId, range: &KeyRange) -> [Vec<(Vec<u8>, Vec<u8>)>; 2] {
    let mut cursor = store.cursor(id, range.clone()).unwrap();
    let mut up = Vec::new();
    while let Some(entry) = cursor.next().unwrap() {
        up.push((entry.key.to_vec(), cursor.read(&entry.value).unwrap().to_vec()));
    }
    let mut down = Vec::new();
    while let Some(entry) = cursor.prev().unwrap() {
        down.push((entry.key.to_vec(), cursor.read(&entry.value).unwrap().to_vec()));
    }
    down.reverse();
    [up, down]
}

#[test]
fn walks_that_skip_deleted_ranges_give_what_a_map_does() {
    for seed in 0..12 {
        let (store, id) = new_store();
        let (mut random, mut model) = (Random::new(seed), BTreeMap::<Vec<u8>, Vec<u8>>::new());
        let prefix = |random: &mut Random| vec![*random.choose(b"abcd")];
        let with_prefix = |model: &BTreeMap<Vec<u8>, Vec<u8>>, prefix: &[u8]| -> Vec<_> {
            let all = model.iter().filter(|(key, _)| key.starts_with(prefix));
            all.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        for step in 0..400u32 {
            let mut batch = Batch::new();
            match random.below(10) {
                0..6 => {
                    let prefix = prefix(&mut random);
                    for _ in 0..random.below(20) {
                        let key = [&prefix[..], format!("{:02}", random.below(100)).as_bytes()].concat();
                        batch.insert(id, &key, step.to_le_bytes().to_vec());
                        model.insert(key, step.to_le_bytes().to_vec());
                    }
                }
                6..8 => {
                    let start = key(std::str::from_utf8(&prefix(&mut random)).unwrap(), 0)[..1].to_vec();
                    let (from, to) = (random.below(100), random.below(101));
                    let border = |n: u64| [&start[..], format!("{n:02}").as_bytes()].concat();
                    let range = KeyRange { start: border(from).into(), end: Some(border(to).into()) };
                    batch.delete_range(id, range.clone());
                    model.retain(|key, _| !range.contains(key));
                }
                _ => {
                    let (from, to) = (prefix(&mut random), prefix(&mut random));
                    if from == to {
                        continue;
                    }
                    let moved = with_prefix(&model, &from);
                    batch.move_range(id, &from, &to);
                    model.retain(|key, _| !key.starts_with(&to) && !key.starts_with(&from));
                    let renamed = |(key, value): (Vec<u8>, _)| ([&to[..], &key[1..]].concat(), value);
                    model.extend(moved.into_iter().map(renamed));
                }
            }
            store.commit(batch).unwrap();
            if random.one_in(40) {
                store.checkpoint().unwrap();
            }
            if random.one_in(4) {
                let (start, end) = (prefix(&mut random), prefix(&mut random));
                let range = match random.below(3) {
                    0 => KeyRange::all(),
                    1 => KeyRange::prefix(&start),
                    _ => KeyRange { start: [&start[..], b"3"].concat().into(), end: Some(end.into()) },
                };
                let expected: Vec<_> = model.iter().filter(|(key, _)| range.contains(key)).collect();
                for found in entries(&store, id, &range) {
                    let found: Vec<_> = found.iter().map(|(key, value)| (key, value)).collect();
                    assert_eq!(found, expected, "seed {seed}, step {step}, {range:?}");
                }
            }
        }
        assert!(store.verify(&mut |_| ()).unwrap().problems.is_empty(), "seed {seed}");
    }
}
