//! What has to hold when much of the pool is gone, which is hard to bring about from outside.

use super::*;
use crate::index::accounting::pending_blocks;
use crate::space::Reservation;
use crate::store::components::Components;
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
fn leave(components: &Components, hundredths: u64) -> Reservation {
    let space = components.space.block_counts();
    let ballast = space.free
        - space.reserved
        - components.accounting.unwritten_blocks()
        - space.pool * hundredths / 100;
    components.space.reservations.reserve(ballast, Purpose::Clear, 0).unwrap()
}

/// All messages down to the leaves, with two checkpoints.
fn settle(store: &Store, id: IndexId) {
    let components = &store.components;
    components.write.pipeline.absorb_now(&[id]).unwrap();
    let index = components.indexes.read()[&id].clone();
    while let Some(root) = components.accounting.edit().flush_for_space(&index.version().root).unwrap() {
        index.publish_root(&components.space, root, |_| {});
    }
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
}

/// A settled volume with the directories `a` and `b` in two indexes, their values large in one of
/// them, and of `len` bytes in the other, which has names as well.
fn two_trees(large: u8, len: usize) -> (Arc<Store>, u32) {
    let store = store(Arc::new(MemoryDevice::new(40 << 20)));
    let volume = store.create_volume("v", 2, 0, &[]).unwrap();
    let id = |index| IndexId { volume, index };
    for n in 0..600u64 {
        let mut batch = Batch::new();
        for dir in ["a", "b"] {
            batch.insert(id(large), format!("{dir}/{n:05}").as_bytes(), value(n, 16 << 10));
            batch.insert(id(1 - large), format!("{dir}/{n:05}").as_bytes(), value(n, len));
        }
        batch.insert(id(1 - large), format!("name {n:05}").as_bytes(), value(n, len));
        store.commit(batch).unwrap();
    }
    (0..2).for_each(|index| settle(&store, id(index)));
    (store, volume)
}

/// As removing a tree does it: ranges, and the entry.
#[test]
fn a_range_is_deleted_with_a_few_keys_where_it_is_without() {
    let (store, volume) = two_trees(0, 100);
    let id = |index| IndexId { volume, index };
    let _ballast = leave(&store.components, 31);
    for (dir, names) in [("a/", 1), ("b/", 0)] {
        let mut batch = Batch::new();
        (0..names).for_each(|n| batch.delete(id(1), format!("name {n:05}").as_bytes()));
        (0..2).for_each(|index| batch.delete_range(id(index), KeyRange::prefix(dir.as_bytes())));
        let taken = store.commit(batch).map(drop);
        assert!(taken.is_ok(), "{dir} with {names} names: {taken:?}");
    }
    store.checkpoint().unwrap();
}

/// Moves may leave seven sixteenths of the pool for good. Sweeping needs less than that, and gives
/// back.
#[test]
fn what_is_dead_is_swept_out_where_moves_have_used_their_share() {
    let store = store(Arc::new(MemoryDevice::new(64 << 20)));
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let id = IndexId { volume, index: 0 };
    let key = |part: u64, n: u64| format!("{part:03}{n}").into_bytes();
    for part in 0..60u64 {
        let mut batch = Batch::new();
        (0..8).for_each(|n| batch.insert(id, &key(part, n), value(part * 10 + n, 16 << 10)));
        store.commit(batch).unwrap();
        store.checkpoint().unwrap();
    }
    for part in 0..60 {
        let mut batch = Batch::new();
        (1..8).for_each(|n| batch.delete(id, &key(part, n)));
        store.commit(batch).unwrap();
    }
    settle(&store, id);
    let components = &store.components;
    let dead = components.space.dead_value_bytes();
    assert!(dead > 0, "everything that was deleted was swept out already");
    let _ballast = leave(components, 42);
    let wanted =
        WantedRoom { blocks: components.space.reservations.pool(), purpose: Purpose::Essential, drawn: 0 };
    components.write.reclaim.make_space(&wanted).unwrap();
    assert_eq!(components.space.dead_value_bytes(), 0, "of {dead} bytes");
}

/// What a batch of ranges, and perhaps a key of an index, gives back where little of the pool is
/// left.
fn gives_back(key_of: Option<u8>) -> u64 {
    let (store, volume) = two_trees(1, 1000);
    let id = |index| IndexId { volume, index };
    let _ballast = leave(&store.components, 31);
    let mut batch = Batch::new();
    if let Some(index) = key_of {
        batch.delete(id(index), b"name 00001");
    }
    (0..2).for_each(|index| batch.delete_range(id(index), KeyRange::new(&b"a/00100"[..], &b"a/00500"[..])));
    let before = store.components.space.free_blocks();
    store.commit(batch).unwrap();
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    store.components.space.free_blocks().saturating_sub(before)
}

/// What was accepted because it gives back is carried out, in all indexes, whatever else comes with
/// it.
#[test]
fn ranges_that_were_accepted_to_give_space_back_do() {
    let alone = gives_back(None);
    assert!(alone > 1500, "{alone} blocks came back");
    for index in 0..2 {
        let with_key = gives_back(Some(index));
        assert!(
            with_key + 10 >= alone,
            "{with_key} blocks came back with a key of index {index}, not {alone}"
        );
    }
}

/// Each clone seals a memtable, and each of those leaves a part on each edge.
#[test]
fn as_much_is_promised_as_absorbing_many_memtables_takes() {
    let store = store(Arc::new(MemoryDevice::new(64 << 20)));
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let id = IndexId { volume, index: 0 };
    let count = 32_000u64;
    for from in (0..count).step_by(100) {
        let mut batch = Batch::new();
        (from..from + 100).for_each(|n| batch.insert(id, format!("{n:06}").as_bytes(), value(n, 1000)));
        store.commit(batch).unwrap();
    }
    settle(&store, id);
    let components = &store.components;
    // So that runs cannot be joined.
    let _ballast = leave(components, 350);
    components.accounting.refresh();
    assert!(components.accounting.is_low());
    let before = components.space.reservations.reserved();
    let mut batch = Batch::new();
    for round in 0..60 {
        (0..40).for_each(|n| batch.delete(id, format!("{:06}", n * count / 40 + round).as_bytes()));
        batch.move_range(id, format!("x{round}").as_bytes(), format!("y{round}").as_bytes());
    }
    store.commit(batch).unwrap();
    let promised = components.space.reservations.reserved() - before;
    components.write.pipeline.absorb_now(&[id]).unwrap();
    components.accounting.recount();
    let owed = components.accounting.counted();
    assert!(owed > 500 && owed <= promised, "{promised} blocks were promised and {owed} are owed");
}

/// So many clones of directories, with what was written to them since the last one, take no more
/// than was promised.
#[test]
fn as_much_is_promised_as_clones_take() {
    let store = store(Arc::new(MemoryDevice::new(64 << 20)));
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let id = IndexId { volume, index: 0 };
    // Long keys and small values: leaves have large headers.
    let key = |dir: u64, n: u64| format!("d{dir:03}/{}{n:06}", "long name ".repeat(12)).into_bytes();
    for dir in 0..20 {
        for from in (0..1000).step_by(100) {
            let mut batch = Batch::new();
            (from..from + 100).for_each(|n| batch.insert(id, &key(dir, n), value(dir * 1000 + n, 300)));
            store.commit(batch).unwrap();
        }
    }
    settle(&store, id);
    let components = &store.components;
    let _ballast = leave(components, 350);
    components.accounting.refresh();
    let mut random = Random::new(7);
    let mut most = 0;
    for round in 0..30u64 {
        let mut batch = Batch::new();
        (0..30).for_each(|_| batch.delete(id, &key(random.below(20), random.below(1000))));
        store.commit(batch).unwrap();
        components.write.pipeline.absorb_now(&[id]).unwrap();
        components.accounting.recount();
        let (promised, owed) = (components.space.reservations.reserved(), components.accounting.counted());
        let mut batch = Batch::new();
        let dir = random.below(20);
        batch.clone_range(id, format!("d{dir:03}/").as_bytes(), format!("copy {round}/").as_bytes());
        store.commit(batch).unwrap();
        let promised = components.space.reservations.reserved() - promised;
        components.write.pipeline.absorb_now(&[id]).unwrap();
        components.accounting.recount();
        let owed = components.accounting.counted().saturating_sub(owed);
        assert!(owed <= promised, "round {round}: {promised} blocks were promised, {owed} are owed");
        most = most.max(owed);
    }
    assert!(most > crate::index::accounting::CLONE_BLOCKS, "no clone took more than {most} blocks");
}

/// Messages to many small trees may rewrite each of them, which none of these batches promises.
#[test]
fn checkpoints_succeed_where_every_tree_is_a_leaf() {
    let store = store(Arc::new(MemoryDevice::new(40 << 20)));
    let volume = store.create_volume("v", 60, 0, &[]).unwrap();
    for index in 0..60u8 {
        let id = IndexId { volume, index };
        let mut batch = Batch::new();
        (0..280u64).for_each(|n| {
            batch.insert(id, format!("{n:04}").as_bytes(), value(u64::from(index) * 1000 + n, 1000));
        });
        store.commit(batch).unwrap();
    }
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    let components = &store.components;
    let space = components.space.block_counts();
    let short = 2 * space.pool
        + 2 * part_blocks(&components.options.tuning, (16 * components.options.tuning.edge) as u64);
    // Just not short of space, and less than all leaves take once more.
    let ballast = space.free - short - 100;
    let _ballast = components.space.reservations.reserve(ballast, Purpose::Clear, 0).unwrap();
    components.accounting.refresh();
    let lean = components.accounting.is_low();
    for index in 0..60u8 {
        let (id, mut batch) = (IndexId { volume, index }, Batch::new());
        (0..280).step_by(20).for_each(|n| batch.insert(id, format!("{n:04}").as_bytes(), b"new".to_vec()));
        store.commit(batch).unwrap();
    }
    (0..60u8).for_each(|index| components.write.pipeline.absorb_now(&[IndexId { volume, index }]).unwrap());
    components.accounting.recount();
    let (space, owed) = (components.space.block_counts(), components.accounting.counted());
    assert!(
        owed + space.pool <= space.free - ballast,
        "{owed} blocks are owed of {} ({lean}), with a pool of {}",
        space.free - ballast,
        space.pool
    );
    store.checkpoint().unwrap();
}

/// What is in the log was promised, and is again when it has been replayed.
#[test]
fn what_waits_is_promised_after_a_crash() {
    let device = Arc::new(MemoryDevice::new(40 << 20));
    let store = store(device.clone());
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let id = IndexId { volume, index: 0 };
    let mut batch = Batch::new();
    (0..500u64).for_each(|n| batch.insert(id, format!("{n:04}").as_bytes(), value(n, 1000)));
    store.commit(batch).unwrap();
    store.sync_all().unwrap();
    let promised = store.components.space.reservations.reserved();
    drop(store);
    let options = OpenOptions { memory: 64 << 20, ..OpenOptions::default() };
    let store = Store::open(device, Arc::new(SimulatedEnvironment::new(2)), options).unwrap();
    let again = store.components.space.reservations.reserved();
    assert!(again * 10 >= promised * 9 && again > 120, "{again} of {promised} blocks");
    store.checkpoint().unwrap();
    assert!(store.components.space.reservations.reserved() < 120);
}

/// Each of many small trees is written again for one message, which is more than the messages
/// promise.
#[test]
fn many_small_trees_are_reckoned_with() {
    let store = store(Arc::new(MemoryDevice::new(48 << 20)));
    let volumes: Vec<u32> =
        (0..3).map(|n| store.create_volume(&n.to_string(), 200, 0, &[]).unwrap()).collect();
    let ids = || volumes.iter().flat_map(|volume| (0..200).map(|index| IndexId { volume: *volume, index }));
    for (n, id) in ids().enumerate() {
        let mut batch = Batch::new();
        // All in the leaf, which no value may be large for.
        (0..8u8).for_each(|key| batch.insert(id, &[key], value((n * 8) as u64 + u64::from(key), 3000)));
        store.commit(batch).unwrap();
    }
    ids().for_each(|id| settle(&store, id));
    // Not yet short of space, but nearly so.
    let components = &store.components;
    let _ballast = {
        let (space, owed) = (components.space.block_counts(), components.accounting.unwritten_blocks());
        let tuning = &components.options.tuning;
        let pending = pending_blocks(tuning);
        let ballast = space.free - owed - space.reserved - 2 * space.pool - pending - 100;
        components.space.reservations.reserve(ballast, Purpose::Clear, 0).unwrap()
    };
    for id in ids() {
        let mut batch = Batch::new();
        batch.insert(id, b"b", b"small".to_vec());
        if store.commit(batch).is_err() {
            break;
        }
    }
    store.checkpoint().unwrap();
}
