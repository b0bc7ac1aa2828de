//! Who reads in the order of keys finds what he wants in memory, wherever it lies on the device.

use espalier_engine::{Batch, FormatOptions, IndexId, OpenOptions, Slice, Store};
use espalier_storage::{CountingDevice, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

const FILES: usize = 3000;

type Counted = Arc<CountingDevice<MemoryDevice>>;

fn environment() -> Arc<SimulatedEnvironment> {
    Arc::new(SimulatedEnvironment::new(7))
}

fn open(device: &Counted) -> Arc<Store> {
    let options = OpenOptions { memory: 64 << 20, ..OpenOptions::default() };
    Store::open(device.clone(), environment(), options).unwrap()
}

fn key(n: usize) -> Vec<u8> {
    format!("directory/{n:06}").into_bytes()
}

fn value(n: usize) -> Vec<u8> {
    let mut bytes = vec![0; 5000 + n * 7919 % 15_000];
    Random::new(n as u64).fill(&mut bytes);
    bytes
}

/// A store of values that were written in any order but that of their keys.
fn shuffled() -> (Counted, IndexId) {
    let device = Arc::new(CountingDevice::new(MemoryDevice::new(256 << 20)));
    Store::format(device.clone(), environment(), &FormatOptions::default()).unwrap();
    let store = open(&device);
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let index = IndexId { volume, index: 0 };
    let mut order: Vec<usize> = (0..FILES).collect();
    let mut random = Random::new(11);
    for n in (1..FILES).rev() {
        order.swap(n, random.index(n + 1));
    }
    for n in order {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value(n));
        store.commit(batch).unwrap();
        store.step().unwrap();
    }
    store.close().unwrap();
    (device, index)
}

/// Reads value `n`; returns how many reads of the device it took.
fn read(store: &Store, device: &Counted, index: IndexId, n: usize) -> u64 {
    let before = device.counts();
    let (key, expected) = (key(n), value(n));
    let mut out = vec![0; expected.len()];
    let slice = Slice { key: &key, offset: 0, len: out.len() };
    assert_eq!(store.get_slices(index, &[slice], &mut out).unwrap(), [Some(expected.len())]);
    assert!(out == expected, "value {n}");
    device.counts().since(&before).reads.requests
}

#[test]
fn reads_in_the_order_of_keys_are_expected() {
    let (device, index) = shuffled();
    let store = open(&device);
    let before = device.counts();
    let mut by_reader = 0;
    for n in 0..FILES {
        by_reader += read(&store, &device, index, n);
        // Threads that read ahead have all the time that they want.
        while store.read_ahead() {}
    }
    assert!(by_reader < 40, "{by_reader} reads by the reader himself, for {FILES} values");
    let counts = device.counts().since(&before).reads;
    assert!(counts.requests < FILES as u64 / 2, "{} reads", counts.requests);
    let bytes: usize = (0..FILES).map(|n| value(n).len()).sum();
    assert!(counts.bytes < bytes as u64 * 5 / 2, "{} bytes read for {bytes}", counts.bytes);
    store.close().unwrap();
}

#[test]
fn reads_in_no_order_read_what_they_need() {
    let (device, index) = shuffled();
    let store = open(&device);
    // The nodes and parts that say where things lie.
    assert!((0..FILES).all(|n| store.contains(index, &key(n)).unwrap()));
    while store.read_ahead() {}
    let before = device.counts();
    let mut random = Random::new(3);
    let mut pages = 0;
    for _ in 0..1000 {
        let n = random.index(FILES);
        read(&store, &device, index, n);
        while store.read_ahead() {}
        pages += value(n).len().div_ceil(4096) + 1;
    }
    let bytes = device.counts().since(&before).reads.bytes;
    assert!(bytes <= pages as u64 * 4096 * 6 / 5, "{bytes} bytes read for {pages} pages");
    store.close().unwrap();
}

#[test]
fn who_changes_his_mind_costs_a_window() {
    let (device, index) = shuffled();
    let store = open(&device);
    assert!((0..FILES).all(|n| store.contains(index, &key(n)).unwrap()));
    while store.read_ahead() {}
    for n in 1000..1010 {
        read(&store, &device, index, n);
    }
    let before = device.counts();
    while store.read_ahead() {}
    let bytes = device.counts().since(&before).reads.bytes;
    assert!((100 << 10..1 << 20).contains(&bytes), "{bytes} bytes read ahead");
    // What is overwritten meanwhile is found as it is now.
    for n in 1010..1040 {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value(n + 1));
        store.commit(batch).unwrap();
    }
    store.checkpoint().unwrap();
    for n in 1010..1040 {
        assert_eq!(store.get(index, &key(n)).unwrap().as_deref(), Some(&value(n + 1)[..]));
    }
    for n in 1040..1100 {
        read(&store, &device, index, n);
    }
    store.close().unwrap();
}
