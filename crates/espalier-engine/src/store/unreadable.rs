//! Damage isolation: a piece that cannot be read fails the readers of its keys and nothing else.
//! Messages for its keys wait above it, clones show it as it is, and deleting it reads nothing of
//! it.

use crate::model::ids::{IndexId, PieceKind};
use crate::space::Locator;
use crate::{Batch, FormatOptions, KeyRange, OpenOptions, Store, Tuning};
use espalier_storage::{
    AlignedBuf, BLOCK, Device, Environment, MemoryDevice, Random, SimulatedEnvironment, SystemEnvironment,
};
use std::sync::Arc;

/// What is damaged of a tree.
enum Damage {
    /// The header of its root.
    Root,
    /// The first part that its root names.
    Part,
    /// The headers of all nodes below its root.
    Below,
}

fn options() -> OpenOptions {
    OpenOptions { memory: 32 << 20, ..OpenOptions::default() }
}

/// An empty store with two indexes.
fn store(device: &Arc<MemoryDevice>, env: &Arc<dyn Environment>) -> (Arc<Store>, u32) {
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device.clone(), env.clone(), options()).unwrap();
    let volume = store.create_volume("v", 2, 0, &[]).unwrap();
    (store, volume)
}

/// Damages the tree of an index and opens the store again.
fn damaged(
    store: Arc<Store>,
    device: &Arc<MemoryDevice>,
    env: &Arc<dyn Environment>,
    id: IndexId,
    damage: &Damage,
) -> Arc<Store> {
    store.close().unwrap();
    drop(store);
    // Without threads: nothing moves.
    let still = Arc::new(SimulatedEnvironment::new(1));
    let store = Store::open(device.clone(), still, options()).unwrap();
    let components = &store.components;
    // All that waits goes down.
    let index = components.indexes.read()[&id].clone();
    while let Some(root) = components.accounting.edit().flush_for_space(&index.version().root).unwrap() {
        index.publish_root(&components.space, root, |_| {});
    }
    drop(index);
    store.checkpoint().unwrap();
    let handle = components.indexes.read()[&id].version().root.slot.as_ref().unwrap().place().unwrap();
    let below = components.trees.references_of(handle.id()).unwrap().into_iter().map(|(piece, _)| piece);
    let below: Vec<_> = below.map(|piece| components.space.locate(piece).unwrap()).collect();
    let places: Vec<_> = match damage {
        Damage::Root => vec![components.space.locate(handle.id()).unwrap()],
        Damage::Part => {
            below.into_iter().filter(|piece| matches!(piece.kind, PieceKind::KeyValue)).take(1).collect()
        }
        Damage::Below => below.into_iter().filter(|piece| matches!(piece.kind, PieceKind::Node(_))).collect(),
    };
    assert!(!places.is_empty(), "there is nothing to damage");
    store.close().unwrap();
    drop((handle, store));
    for place in places {
        device.write_at(place.extent.start * BLOCK as u64, &[&AlignedBuf::zeroed(BLOCK)]).unwrap();
    }
    Store::open(device.clone(), env.clone(), options()).unwrap()
}

/// Bytes that cannot be compressed.
fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

fn key(dir: &str, n: u64) -> Vec<u8> {
    format!("{dir}/{n:05}").into_bytes()
}

/// Two indexes with the same in both, of which the first is damaged then.
fn two(damage: &Damage, keys: u64, len: usize) -> (Arc<Store>, [IndexId; 2]) {
    let (device, env) = (Arc::new(MemoryDevice::new(256 << 20)), Arc::new(SimulatedEnvironment::new(1)) as _);
    let (store, volume) = store(&device, &env);
    let ids = [0, 1].map(|index| IndexId { volume, index });
    for n in 0..keys {
        let mut batch = Batch::new();
        for (id, dir) in ids.iter().flat_map(|id| ["a", "b", "c"].map(|dir| (*id, dir))) {
            batch.insert(id, &key(dir, n), value(n, len));
        }
        store.commit(batch).unwrap();
    }
    (damaged(store, &device, &env, ids[0], damage), ids)
}

#[test]
fn damage_lets_checkpoints_be_made() {
    for (damage, keys) in
        [(Damage::Part, 10), (Damage::Root, 10), (Damage::Root, 6000), (Damage::Below, 6000)]
    {
        let (store, ids) = two(&damage, keys, 400);
        for round in 0..3u64 {
            let mut batch = Batch::new();
            for id in ids {
                batch.delete(id, &key("a", 3));
                batch.delete_range(id, KeyRange::new(&b"a/00005"[..], &b"a/00007"[..]));
                batch.insert(id, &key("b", 3), value(round, 400));
            }
            store.commit(batch).unwrap();
            store.checkpoint().unwrap();
            assert!(store.get(ids[0], &key("a", 4)).is_err(), "nothing was damaged");
            assert_eq!(store.get(ids[1], &key("b", 3)).unwrap().unwrap(), value(round, 400));
            assert!(store.get(ids[1], &key("a", 6)).unwrap().is_none());
        }
    }
}

/// A clone, a move and a deletion along borders that cannot be read; what is dead is taken apart,
/// or left.
#[test]
fn damage_lets_trees_be_cloned_moved_and_deleted() {
    for damage in [Damage::Root, Damage::Below] {
        let (store, ids) = two(&damage, 6000, 400);
        for round in 0..3u64 {
            let to = format!("clone {round}/");
            for id in ids {
                let mut batch = Batch::new();
                batch.clone_range(id, b"a/", to.as_bytes());
                batch.move_range(id, b"b/", b"away/");
                batch.move_range(id, b"away/", b"b/");
                batch.insert(id, &[to.as_bytes(), b"new"].concat(), value(round, 400));
                store.commit(batch).unwrap();
            }
            store.checkpoint().unwrap();
            assert!(store.get(ids[0], &[to.as_bytes(), b"00001"].concat()).is_err(), "nothing was damaged");
            assert_eq!(
                store.get(ids[1], &[to.as_bytes(), b"00001"].concat()).unwrap().unwrap(),
                value(1, 400)
            );
            assert_eq!(
                store.get(ids[1], &[to.as_bytes(), b"new"].concat()).unwrap().unwrap(),
                value(round, 400)
            );
            assert_eq!(store.get(ids[1], &key("b", 2)).unwrap().unwrap(), value(2, 400));
        }
        for range in [KeyRange::prefix(b"a/"), KeyRange::prefix(b"clone 1/"), KeyRange::all()] {
            let mut batch = Batch::new();
            batch.delete_range(ids[0], range);
            store.commit(batch).unwrap();
            store.checkpoint().unwrap();
        }
        store.checkpoint().unwrap();
        assert!(store.get(ids[0], &key("c", 1)).unwrap().is_none());
        // What is dead and cannot be taken apart is tried once, and not for ever.
        assert!(!store.components.write.checkpointer.has_reclaim());
    }
}

/// No writer waits for messages that cannot move, and these do not keep others from moving.
#[test]
fn writers_do_not_wait_for_what_cannot_be_read() {
    let (device, env) = (Arc::new(MemoryDevice::new(512 << 20)), Arc::new(SystemEnvironment::new(2)) as _);
    let (store, volume) = store(&device, &env);
    let ids = [0, 1].map(|index| IndexId { volume, index });
    let write = |store: &Store, round: u64, n: u64| {
        let mut batch = Batch::new();
        ids.iter().for_each(|id| batch.insert(*id, &key("a", n), value(n + round, 16 << 10)));
        store.commit(batch).unwrap();
    };
    (0..2000).for_each(|n| write(&store, 0, n));
    let store = damaged(store, &device, &env, ids[0], &Damage::Below);
    for round in 1..4 {
        (0..2000).map(|n| n * 7 % 2000).filter(|n| *n < 1900).for_each(|n| write(&store, round, n));
        store.checkpoint().unwrap();
    }
    assert!(store.get(ids[0], &key("a", 1950)).is_err(), "nothing was damaged");
    // What was written again waits above the damage, and can be read.
    for (id, n) in ids.iter().flat_map(|id| (0..1900).map(|n| (*id, n))) {
        assert_eq!(store.get(id, &key("a", n)).unwrap().unwrap(), value(n + 3, 16 << 10));
    }
    // Deleting all of it reads nothing of it.
    let mut batch = Batch::new();
    batch.delete_range(ids[0], KeyRange::all());
    store.commit(batch).unwrap();
    store.checkpoint().unwrap();
    assert!(store.get(ids[0], &key("a", 1)).unwrap().is_none());
}

/// What cannot be read is passed over where room is made, and not lost.
#[test]
fn what_waits_for_damage_is_there_when_it_can_be_read_again() {
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let tuning = Tuning { memtable: 2048, part: 256, leaf: 2048, fanout: 4, edge: 1024, ..Tuning::default() };
    let options = OpenOptions { tuning, ..options() };
    let store = Store::open(device.clone(), env.clone(), options.clone()).unwrap();
    let id = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let write = |round: u64, n: u64| {
        let mut batch = Batch::new();
        batch.insert(id, &key("a", n), value(n + round, 50));
        store.commit(batch).unwrap();
    };
    for round in 0..4 {
        (0..4000).for_each(|n| write(round, n * 7 % 4000));
        while store.step().unwrap() {}
    }
    // Some that stays further up, at the root in several runs.
    for (round, each) in [(7, 40), (8, 200), (9, 200)] {
        (0..4000).step_by(each).for_each(|n| write(round, n));
        while round == 7 && store.step().unwrap() {}
        store.checkpoint().unwrap();
    }
    store.close().unwrap();
    drop(store);
    let store = Store::open(device.clone(), env.clone(), options.clone()).unwrap();
    let components = &store.components;
    let handle = components.indexes.read()[&id].version().root.slot.as_ref().unwrap().place().unwrap();
    let parts = components.trees.references_of(handle.id()).unwrap().into_iter();
    let parts = parts.map(|(piece, _)| components.space.locate(piece).unwrap());
    let parts: Vec<u64> = parts
        .filter(|piece| matches!(piece.kind, PieceKind::KeyValue))
        .map(|piece| piece.extent.start * BLOCK as u64)
        .collect();
    assert!(!parts.is_empty(), "nothing waits at the root");
    drop(handle);
    let mut before = AlignedBuf::zeroed(BLOCK);
    device.read_at(parts[0], &mut before).unwrap();
    device.write_at(parts[0], &[&AlignedBuf::zeroed(BLOCK)]).unwrap();
    let index = components.indexes.read()[&id].clone();
    assert!(index.version().root.height > 1, "the tree is too small");
    let mut moved = 0;
    while let Some(root) = components.accounting.edit().flush_for_space(&index.version().root).unwrap() {
        index.publish_root(&components.space, root, |_| {});
        moved += 1;
    }
    assert!(moved > 0, "nothing waits below the root");
    store.checkpoint().unwrap();
    device.write_at(parts[0], &[&before]).unwrap();
    for n in 0..4000 {
        let round = if n % 200 == 0 {
            9
        } else if n % 40 == 0 {
            7
        } else {
            3
        };
        assert_eq!(store.get(id, &key("a", n)).unwrap().unwrap(), value(n + round, 50), "{n}");
    }
}
