use super::*;
use crate::commit::back_pressure::MAX_WAITING_LAYERS;
use crate::{Batch, FormatOptions, IndexId, OpenOptions, Store};
use espalier_storage::{MemoryDevice, SimulatedEnvironment, SystemEnvironment};
use std::sync::atomic::Ordering;

#[test]
fn nobody_waits_for_what_only_snapshots_hold() {
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let options = OpenOptions { memory: 64 << 10, ..OpenOptions::default() };
    let store = Store::open(device, env, options).unwrap();
    let id = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let mut snapshots = Vec::new();
    for n in 0..100u8 {
        let mut batch = Batch::new();
        batch.insert(id, b"key", vec![n; 8 << 10]);
        store.commit(batch).unwrap();
        snapshots.push(store.snapshot().unwrap());
    }
    for (n, snapshot) in snapshots.iter().enumerate() {
        assert_eq!(snapshot.get(id, b"key").unwrap().unwrap(), vec![n as u8; 8 << 10]);
    }
    let components = &store.components;
    assert!(components.memory.bytes() <= components.options.memory);
    drop(snapshots);
    assert!(components.memory.bytes() <= components.options.memory);
    assert!(components.memory.pinned_bytes() <= 8 << 10);
}

#[test]
fn nobody_waits_for_nodes_that_only_snapshots_hold() {
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let options = OpenOptions { memory: 1 << 20, ..OpenOptions::default() };
    let store = Store::open(device, env, options).unwrap();
    let id = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let components = &store.components;
    let mut snapshots = Vec::new();
    for n in 0..200u8 {
        let mut batch = Batch::new();
        (0..100u8).for_each(|key| batch.insert(id, &[key], vec![n; 100]));
        store.commit(batch).unwrap();
        // What is in the tree now has not been written, and will be replaced before it is.
        components.write.pipeline.absorb_now(&[id]).unwrap();
        snapshots.push(store.snapshot().unwrap());
    }
    assert!(
        components.trees.memory.dirty_bytes.load(Ordering::Relaxed) as u64
            > components.write.scheduler.unwritten_limit
    );
    store.checkpoint().unwrap();
    assert_eq!(components.memory.bytes(), 0);
    for (n, snapshot) in snapshots.iter().enumerate() {
        assert_eq!(snapshot.get(id, &[7]).unwrap().unwrap(), vec![n as u8; 100]);
    }
    drop(snapshots);
    assert_eq!((components.memory.bytes(), components.memory.pinned_bytes()), (0, 0));
}

#[test]
fn who_clones_waits_until_older_clones_are_absorbed() {
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SystemEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    let id = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let mut batch = Batch::new();
    (0..4000u32).for_each(|n| batch.insert(id, format!("a/{n:05}").as_bytes(), vec![n as u8; 100]));
    store.commit(batch).unwrap();
    let index = store.components.indexes.read()[&id].clone();
    let names = [&b"a/"[..], &b"b/"[..]];
    for round in 0..1500 {
        let mut batch = Batch::new();
        batch.move_range(id, names[round % 2], names[(round + 1) % 2]);
        store.commit(batch).unwrap();
        // The clone and what was above the one before; and a checkpoint may seal once more.
        assert!(index.version().sealed.len() <= MAX_WAITING_LAYERS + 2, "round {round}");
    }
    let mut cursor = store.cursor(id, crate::KeyRange::prefix(names[0])).unwrap();
    let mut keys = 0;
    while cursor.next().unwrap().is_some() {
        keys += 1;
    }
    assert_eq!(keys, 4000);
}
