//! Space of a store, as its owner sees it: the store is resized, tells the device what is free, and
//! gives back by itself what was deleted.

use espalier_engine::{Batch, ErrorKind, FormatOptions, IndexId, KeyRange, OpenOptions, Store};
use espalier_storage::{AlignedBuf, BLOCK, Device, MemoryDevice, SimulatedDevice, SimulatedEnvironment};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn environment() -> Arc<SimulatedEnvironment> {
    Arc::new(SimulatedEnvironment::new(7))
}

fn open(device: Arc<dyn Device>) -> Arc<Store> {
    Store::open(device, environment(), OpenOptions { memory: 8 << 20, ..OpenOptions::default() }).unwrap()
}

fn new_store(device: &Arc<SimulatedDevice>) -> (Arc<Store>, IndexId) {
    Store::format(device.clone(), environment(), &FormatOptions::default()).unwrap();
    let store = open(device.clone());
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    (store, IndexId { volume, index: 0 })
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:06}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; 3000 + (n % 7) as usize * 3000];
    espalier_storage::Random::new(n).fill(&mut bytes);
    bytes
}

/// All background work. A store is idle when it is as it was when it was last looked at.
fn idle(store: &Store) {
    while store.step().unwrap() || store.step().unwrap() {}
}

/// Inserts until there is no room; returns how many were accepted.
fn fill(store: &Store, index: IndexId, from: u64) -> u64 {
    for n in from.. {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value(n));
        if let Err(error) = store.commit(batch) {
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            return n - from;
        }
    }
    unreachable!("a store without end")
}

fn assert_sound(store: &Store, index: IndexId, keys: std::ops::Range<u64>) {
    for n in keys {
        assert_eq!(store.get(index, &key(n)).unwrap().as_deref(), Some(&value(n)[..]), "key {n}");
    }
    let report = store.verify(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

fn blocks(device: &dyn Device, range: std::ops::Range<u64>) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed((range.end - range.start) as usize);
    device.read_at(range.start, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_store_grows_and_keeps_what_it_holds() {
    let small = Arc::new(SimulatedDevice::with_garbage(12 * MIB, 3));
    let (store, index) = new_store(&small);
    let held = fill(&store, index, 0);
    store.close().unwrap();
    drop(store);
    let large: Arc<MemoryDevice> = Arc::new(MemoryDevice::new(40 * MIB));
    large.write_at(0, &[&blocks(&*small, 0..12 * MIB)]).unwrap();
    let old_slots = [0u64, 16].map(|block| blocks(&*large, block * BLOCK as u64..(block + 1) * BLOCK as u64));

    assert_eq!(Store::resize_offline(large.clone(), 8 * MIB).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        Store::resize_offline(large.clone(), 41 * MIB).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(Store::resize_offline(large.clone(), 40 * MIB).unwrap(), 40 * MIB);
    // A crash between the two superblocks: either slot as it was before.
    for (slot, block) in old_slots.iter().zip([0u64, 16]) {
        let copy: Arc<MemoryDevice> = Arc::new(MemoryDevice::new(40 * MIB));
        copy.write_at(0, &[&blocks(&*large, 0..40 * MIB)]).unwrap();
        copy.write_at(block * BLOCK as u64, &[slot]).unwrap();
        let store = open(copy);
        assert_sound(&store, index, 0..held);
        assert_eq!(store.statistics().space.total, 40 * MIB);
    }
    let store = open(large.clone());
    let more = fill(&store, index, held);
    assert!(more > held, "{more} fit into 28 MiB, {held} into 12");
    assert_sound(&store, index, 0..held + more);
    store.close().unwrap();
    drop(store);
    assert_sound(&open(large), index, 0..held + more);
}

/// The bytes of a small store at the start of a device that is larger.
fn on_a_larger_device(small: &SimulatedDevice, large: &dyn Device) {
    large.write_at(0, &[&blocks(small, 0..small.len())]).unwrap();
    large.sync().unwrap();
}

#[test]
fn an_open_store_grows_whenever_it_is_full() {
    let small = Arc::new(SimulatedDevice::with_garbage(12 * MIB, 3));
    let (store, index) = new_store(&small);
    store.close().unwrap();
    let device = Arc::new(SimulatedDevice::with_garbage(40 * MIB, 4));
    on_a_larger_device(&small, &*device);
    let store = open(device.clone());
    assert_eq!(store.resize_online(41 * MIB).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(store.resize_online(11 * MIB).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut held = 0;
    for mib in [12, 13, 25, 26, 40] {
        let before = store.statistics().space;
        assert_eq!(store.resize_online(mib * MIB).unwrap(), mib * MIB);
        let after = store.statistics().space;
        assert_eq!(after.total, mib * MIB);
        assert_eq!(after.free - before.free, after.total - before.total);
        let more = fill(&store, index, held);
        assert!(more > 0, "nothing fits into {mib} MiB");
        held += more;
        store.sync_all().unwrap();
        idle(&store);
        assert_sound(&store, index, 0..held);
        let crashed = open(Arc::new(device.crash()));
        assert_sound(&crashed, index, 0..held);
        assert_eq!(crashed.statistics().space.total, after.total);
    }
    store.close().unwrap();
    drop(store);
    assert_sound(&open(device), index, 0..held);
}

#[test]
fn a_power_cut_while_an_open_store_grows_leaves_it_small_or_large() {
    let small = Arc::new(SimulatedDevice::with_garbage(8 * MIB, 3));
    let (store, index) = new_store(&small);
    store.close().unwrap();
    let device = Arc::new(SimulatedDevice::with_garbage(16 * MIB, 4));
    on_a_larger_device(&small, &*device);
    let store = open(device.clone());
    let held = fill(&store, index, 0);
    store.sync_all().unwrap();
    device.record_crash_points(1);
    assert_eq!(store.resize_online(16 * MIB).unwrap(), 16 * MIB);
    let growing = device.take_crash_points();
    // What is written into the new part, and over the old end, is part of it.
    let more = fill(&store, index, held);
    store.checkpoint().unwrap();
    let filling = device.take_crash_points();
    assert!(growing.len() > 5 && more > 0, "{} points, {more} more", growing.len());
    let mut sizes = Vec::new();
    let grown = (filling.iter().step_by(1 + filling.len() / 20)).map(|point| (point, true));
    for (point, grown) in growing.iter().map(|point| (point, false)).chain(grown) {
        for seed in 0..4 {
            let crashed = open(Arc::new(point.crash(seed)));
            assert_sound(&crashed, index, 0..held);
            let total = crashed.statistics().space.total;
            assert!(total == 16 * MIB || total == 8 * MIB && !grown, "{total} bytes");
            sizes.push(total);
        }
    }
    assert!(sizes.contains(&(8 * MIB)) && sizes.contains(&(16 * MIB)), "{sizes:?}");
}

#[test]
fn a_power_cut_while_the_label_changes_leaves_the_old_one_or_the_new() {
    let device = Arc::new(SimulatedDevice::with_garbage(8 * MIB, 3));
    let (store, index) = new_store(&device);
    let held = fill(&store, index, 0);
    store.sync_all().unwrap();
    let before = store.statistics().label;
    for wrong in ["x".repeat(65), "\0".into()] {
        assert_eq!(store.set_label(&wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    device.record_crash_points(1);
    let label = "é".repeat(32);
    store.set_label(&label).unwrap();
    let mut found = Vec::new();
    for point in device.take_crash_points() {
        for seed in 0..4 {
            let crashed = open(Arc::new(point.crash(seed)));
            assert_sound(&crashed, index, 0..held);
            found.push(crashed.statistics().label);
        }
    }
    assert!(found.iter().all(|l| *l == before || *l == label) && found.contains(&before), "{found:?}");
    assert_eq!(open(Arc::new(device.crash())).statistics().label, label);
    // The next checkpoint keeps it.
    store.checkpoint().unwrap();
    assert_eq!(open(Arc::new(device.crash())).statistics().label, label);
}

#[test]
fn a_store_that_was_shut_down_keeps_what_was_synced() {
    let device = Arc::new(SimulatedDevice::with_garbage(8 * MIB, 3));
    let (store, index) = new_store(&device);
    let held = fill(&store, index, 0);
    store.sync_all().unwrap();
    store.shut_down("this test wants it");
    let mut batch = Batch::new();
    batch.insert(index, &key(held), &b"late"[..]);
    let late = store.commit(batch).and_then(|lsn| store.sync(lsn)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::ReadOnly);
    assert!(late.to_string().contains("this test wants it"), "{late}");
    assert_sound(&open(Arc::new(device.crash())), index, 0..held);
}

#[test]
fn trimming_takes_only_what_is_free() {
    let device = Arc::new(SimulatedDevice::with_garbage(16 * MIB, 5));
    let (store, index) = new_store(&device);
    let held = fill(&store, index, 0);
    for n in (0..held).filter(|n| n % 5 > 1) {
        let mut batch = Batch::new();
        batch.delete(index, &key(n));
        store.commit(batch).unwrap();
    }
    idle(&store);
    let free = store.statistics().space.free;
    // What the simulated device is told about reads as garbage from then on.
    let told = store.trim(0).unwrap();
    assert_eq!(told, free);
    assert_eq!(store.statistics().space.free, free);
    let check = |store: &Store| {
        for n in (0..held).filter(|n| n % 5 <= 1) {
            assert_eq!(store.get(index, &key(n)).unwrap().as_deref(), Some(&value(n)[..]), "key {n}");
        }
        let report = store.verify(&mut |_| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    };
    // Also after a power cut that undoes whatever was not synced.
    check(&open(Arc::new(device.crash())));
    assert!(store.trim(MIB).unwrap() <= told);
    check(&store);
}

#[test]
fn an_idle_store_gives_back_what_was_deleted() {
    for by_range in [false, true] {
        let device = Arc::new(SimulatedDevice::with_garbage(32 * MIB, 9));
        let (store, index) = new_store(&device);
        idle(&store);
        let before = store.statistics().space.free;
        let held = fill(&store, index, 0);
        let mut batch = Batch::new();
        if by_range {
            batch.delete_range(index, KeyRange::new(key(0), key(held / 2)));
        } else {
            (0..held / 2).for_each(|n| batch.delete(index, &key(n)));
        }
        store.commit(batch).unwrap();
        idle(&store);
        let half = store.statistics().space.free;
        assert!(half * 5 > before * 2, "{half} bytes of {before} are free with half of it deleted");
        assert_sound(&store, index, held / 2..held);
        // There is nothing to do any more.
        let checkpoints = store.statistics().checkpoints;
        assert!(!store.step().unwrap());
        assert!(!store.step().unwrap());
        assert_eq!(store.statistics().checkpoints, checkpoints);
    }
}

#[test]
fn a_store_that_goes_on_deleting_is_not_tidied_without_end() {
    let device = Arc::new(SimulatedDevice::with_garbage(24 * MIB, 3));
    let (store, index) = new_store(&device);
    let put = |n| {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value(n));
        store.commit(batch).unwrap();
    };
    let delete = |n| {
        let mut batch = Batch::new();
        batch.delete(index, &key(n));
        store.commit(batch).unwrap();
    };
    (0..400).for_each(put);
    idle(&store);
    delete(0);
    store.sync_all().unwrap();
    let before = store.statistics().generation;
    for n in 1..300 {
        store.step().unwrap();
        delete(n);
    }
    let checkpoints = store.statistics().generation - before;
    assert!((1..10).contains(&checkpoints), "{checkpoints} checkpoints in 300 steps");
    idle(&store);
    assert_sound(&store, index, 300..400);
}

/// What was promised for values is theirs once they lie where they stay. In a store with little
/// room the next batch must not count on it: a checkpoint would find that more was accepted than
/// fits.
#[test]
fn what_values_have_taken_is_promised_to_nobody_else() {
    let device = Arc::new(SimulatedDevice::with_garbage(24 * MIB, 5));
    let (store, index) = new_store(&device);
    let put = |n: u64, value: Vec<u8>| {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value);
        store.commit(batch).unwrap();
    };
    (0..32).for_each(|n| put(n, vec![n as u8; 64 << 10]));
    let promised = store.statistics().space.reserved;
    assert!(promised >= 2 * MIB, "{promised} bytes are promised for 2 MiB");
    store.sync_all().unwrap();
    put(64, vec![1; 100]);
    let promised = store.statistics().space.reserved;
    assert!(promised < MIB, "{promised} bytes are promised for 100 bytes and some keys");
    store.checkpoint().unwrap();
    assert_eq!(store.statistics().space.reserved, 0);
    let report = store.verify(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Scrubbing reads what is there twice in both places.
#[test]
fn scrubbing_finds_a_damaged_copy() {
    let device = Arc::new(SimulatedDevice::with_garbage(16 * MIB, 5));
    let (store, index) = new_store(&device);
    (0..100).for_each(|n| {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value(n));
        store.commit(batch).unwrap();
    });
    store.checkpoint().unwrap();
    let scrub = || {
        let (mut from, mut found) = (Some(0), Vec::new());
        while let Some(at) = from {
            let step = store.scrub(at, MIB).unwrap();
            (from, found) = (step.next, [found, step.damaged].concat());
        }
        found
    };
    assert!(scrub().is_empty());
    device.write_at(16 * MIB - BLOCK as u64, &[&AlignedBuf::zeroed(BLOCK)]).unwrap();
    let found = scrub();
    assert!(found.len() == 1 && found[0].is_copy && found[0].message.contains("spare"), "{found:?}");
    // The next checkpoint writes it again.
    store.checkpoint().unwrap();
    assert!(scrub().is_empty());
}
