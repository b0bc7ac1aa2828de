//! What has to hold when much of the pool is gone, which is hard to bring about from outside.

use super::*;
use crate::{FormatOptions, OpenOptions, Store};
use espalier_storage::{Device, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

fn store(device: Arc<dyn Device>) -> Arc<Store> {
    let env = Arc::new(SimulatedEnvironment::new(1));
    let format = FormatOptions { log_bytes: Some(2 << 20), ..FormatOptions::default() };
    Store::format(device.clone(), env.clone(), &format).unwrap();
    Store::open(device, env, OpenOptions { memory: 64 << 20, ..OpenOptions::default() }).unwrap()
}

/// Bytes that cannot be compressed.
fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// Takes all that is free but so many hundredths of the pool, and what is promised and owed.
fn leave(shared: &Shared, hundredths: u64) -> Reservation {
    let space = shared.space.stats();
    let ballast = space.free - space.promised - shared.owed_blocks() - space.pool * hundredths / 100;
    shared.space.reserve(ballast, Purpose::Clear, 0).unwrap()
}

/// All messages down to the leaves, with two checkpoints.
fn settle(store: &Store, id: IndexId) {
    let shared = &store.shared;
    shared.absorb_at_once(&[id]).unwrap();
    let index = shared.indexes.read()[&id].clone();
    while let Some(root) = shared.trees.squeeze(&index.version().root).unwrap() {
        index.publish_root(&shared.space, root, |_| {}).unwrap();
    }
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
}

/// As removing a tree does it: ranges, and the entry.
#[test]
fn a_range_is_deleted_with_a_few_keys_where_it_is_without() {
    let store = store(Arc::new(MemoryDevice::new(40 << 20)));
    let volume = store.create_volume("v", 2, 0, &[]).unwrap();
    let id = |index| IndexId { volume, index };
    for n in 0..600u64 {
        let mut batch = Batch::new();
        for dir in ["a", "b"] {
            batch.insert(id(0), format!("{dir}/{n:05}").as_bytes(), value(n, 16 << 10));
            batch.insert(id(1), format!("{dir}/{n:05}").as_bytes(), value(n, 100));
        }
        batch.insert(id(1), format!("name {n:05}").as_bytes(), value(n, 100));
        store.commit(batch).unwrap();
    }
    (0..2).for_each(|index| settle(&store, id(index)));
    let _ballast = leave(&store.shared, 31);
    for (dir, names) in [("a/", 1), ("b/", 0)] {
        let mut batch = Batch::new();
        (0..names).for_each(|n| batch.delete(id(1), format!("name {n:05}").as_bytes()));
        (0..2).for_each(|index| batch.delete_range(id(index), KeyRange::prefix(dir.as_bytes())));
        let taken = store.commit(batch).map(drop);
        assert!(taken.is_ok(), "{dir} with {names} names: {taken:?}");
    }
    store.checkpoint().unwrap();
}
