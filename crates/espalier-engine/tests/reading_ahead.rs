//! Who reads in the order of keys finds what he wants in memory, wherever it lies on the device.

use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Slice, Store};
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

#[test]
fn who_went_away_leaves_room_for_others() {
    let (device, index) = shuffled();
    let store = open(&device);
    for (nth, start) in (0..FILES - 400).step_by(430).enumerate() {
        let mut by_reader = 0;
        for n in start..start + 270 {
            by_reader += read(&store, &device, index, n);
            while store.read_ahead() {}
        }
        // The first ones leave what was announced for them where it is; those who come later have room all the same.
        let most = if nth < 4 { 60 } else { 12 };
        assert!(by_reader < most, "{by_reader} reads by reader {nth} himself, for 270 values");
    }
    store.close().unwrap();
}

#[test]
fn who_is_expected_looks_nothing_up() {
    let (device, index) = shuffled();
    let store = open(&device);
    for n in 0..100 {
        read(&store, &device, index, n);
        while store.read_ahead() {}
    }
    let looked = |store: &Store| store.statistics().cache_hits + store.statistics().cache_misses;
    let mut by_reader = 0;
    for n in 100..2000 {
        let before = looked(&store);
        read(&store, &device, index, n);
        by_reader += looked(&store) - before;
        while store.read_ahead() {}
    }
    assert!(by_reader < 100, "{by_reader} pieces of the tree looked at for 1900 values");
    store.close().unwrap();
}

/// Whatever happens to keys between the walk and the read: the newest state is what counts.
#[test]
fn what_changes_while_it_is_expected_is_found_as_it_is() {
    let (device, index) = shuffled();
    let store = open(&device);
    let mut model: Vec<Option<Vec<u8>>> = (0..FILES).map(|n| Some(value(n))).collect();
    let mut random = Random::new(17);
    for n in 0..FILES - 40 {
        let key_here = key(n);
        let mut out = vec![0; 32 << 10];
        let slice = Slice { key: &key_here, offset: 0, len: out.len() };
        let length = store.get_slices(index, &[slice], &mut out).unwrap()[0];
        assert_eq!(length, model[n].as_ref().map(Vec::len), "value {n}");
        let (got, rest) = out.split_at(length.unwrap_or(0));
        assert!(got == model[n].as_deref().unwrap_or_default() && rest.iter().all(|b| *b == 0), "value {n}");
        while store.read_ahead() {}
        let near = n + random.index(40);
        let mut batch = Batch::new();
        match random.index(120) {
            0 => {
                batch.delete(index, &key(near));
                model[near] = None;
            }
            1 => {
                // Small, then it is part of what describes it.
                batch.insert(index, &key(near), vec![9; 700]);
                model[near] = Some(vec![9; 700]);
            }
            2 => {
                batch.patch(index, &key(near), 4096, vec![5; 4096]);
                let value = model[near].get_or_insert_default();
                value.resize(value.len().max(8192), 0);
                value[4096..8192].fill(5);
            }
            3 => {
                batch.delete_range(index, KeyRange::new(key(near), key(near + 3)));
                model[near..near + 3].fill(None);
            }
            4 => store.checkpoint().unwrap(),
            5..=9 => while store.step().unwrap() {},
            _ => {}
        }
        store.commit(batch).unwrap();
    }
    store.close().unwrap();
}
