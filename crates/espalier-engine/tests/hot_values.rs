//! Large values that were read whole stay in memory, within the budget.

use espalier_engine::{Batch, FormatOptions, IndexId, OpenOptions, Store};
use espalier_storage::{CountingDevice, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

const VALUES: u64 = 4_000;
const VALUE_BYTES: usize = 4096;

type Counted = Arc<CountingDevice<MemoryDevice>>;

fn open(device: &Counted) -> Arc<Store> {
    let env = Arc::new(SimulatedEnvironment::new(3));
    Store::open(device.clone(), env, OpenOptions { memory: 16 << 20, ..OpenOptions::default() }).unwrap()
}

/// A store with [`VALUES`] values of [`VALUE_BYTES`], larger than its memory; nothing is cached.
fn filled() -> (Counted, Arc<Store>, IndexId) {
    let device = Arc::new(CountingDevice::new(MemoryDevice::new(128 << 20)));
    let env = Arc::new(SimulatedEnvironment::new(3));
    Store::format(device.clone(), env, &FormatOptions::default()).unwrap();
    let store = open(&device);
    let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    for n in 0..VALUES {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value(n));
        store.commit(batch).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let store = open(&device);
    (device, store, index)
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn value(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; VALUE_BYTES];
    Random::new(n).fill(&mut bytes);
    bytes
}

/// Reads these values whole; returns how many requests the device got.
fn read(device: &Counted, store: &Store, index: IndexId, numbers: impl Iterator<Item = u64>) -> u64 {
    let before = device.counts();
    for n in numbers {
        assert_eq!(store.get(index, &key(n)).unwrap().as_deref(), Some(&value(n)[..]), "value {n}");
    }
    device.counts().since(&before).reads.requests
}

#[test]
fn hot_values_are_read_once() {
    let (device, store, index) = filled();
    let hot = || (0..VALUES).step_by(20);
    assert!(read(&device, &store, index, hot()) >= VALUES / 20, "a read for each");
    assert_eq!(read(&device, &store, index, hot()), 0);
    // What replaces one is what is read from then on, wherever it is.
    let mut batch = Batch::new();
    batch.insert(index, &key(40), value(41));
    store.commit(batch).unwrap();
    store.checkpoint().unwrap();
    assert_eq!(store.get(index, &key(40)).unwrap().as_deref(), Some(&value(41)[..]));
    let again = hot().filter(|n| *n != 40);
    assert_eq!(read(&device, &store, index, again), 0);
    store.close().unwrap();
}

#[test]
fn values_that_are_read_once_each_stay_within_the_budget() {
    let (device, store, index) = filled();
    read(&device, &store, index, 0..VALUES);
    let figures = store.statistics();
    assert!(figures.cache_bytes <= figures.memory_budget, "{} bytes", figures.cache_bytes);
    store.close().unwrap();
}
