//! For tests of changes of trees: a store with one index, and an ordered map that it must equal.

use crate::model::key::KeyRange;
use crate::{FormatOptions, IndexId, OpenOptions, Store, Tuning};
use espalier_storage::{SimulatedDevice, SimulatedEnvironment};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type Plain = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store on a device of so many bytes, and its index.
pub(super) fn new_store(bytes: u64, seed: u64, tuning: Tuning) -> (Arc<Store>, IndexId) {
    let device = Arc::new(SimulatedDevice::with_garbage(bytes, seed));
    let env = Arc::new(SimulatedEnvironment::new(seed));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions { tuning, ..OpenOptions::default() }).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    (store, IndexId { volume, index: 0 })
}

/// Asserts that the index has the entries of the map, and that the store is sound.
#[track_caller]
pub(super) fn assert_same(store: &Store, id: IndexId, plain: &Plain, what: &str) {
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
