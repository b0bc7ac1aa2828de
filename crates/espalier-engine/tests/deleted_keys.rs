//! Keys that were deleted and still have messages: looks that give up, and messages that are made
//! to come to the leaves.

use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Store, Tuning, Within};
use espalier_storage::{SimulatedDevice, SimulatedEnvironment};
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
