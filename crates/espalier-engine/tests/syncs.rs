//! What a sync makes the device do, and how often data goes there: counted in bytes.

use espalier_engine::{Batch, FormatOptions, IndexId, Lsn, OpenOptions, Store};
use espalier_storage::{CountingDevice, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const VALUE: usize = 64 << 10;

struct Bench {
    device: Arc<CountingDevice<MemoryDevice>>,
    store: Arc<Store>,
    index: IndexId,
    random: Random,
}

impl Bench {
    fn new(bytes: u64) -> Self {
        let device = Arc::new(CountingDevice::new(MemoryDevice::new(bytes)));
        let env = Arc::new(SimulatedEnvironment::new(7));
        Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
        let options = OpenOptions { memory: 64 << 20, ..OpenOptions::default() };
        let store = Store::open(device.clone(), env, options).unwrap();
        let volume = store.create_volume("v", 1, 0, &[]).unwrap();
        Self { device, store, index: IndexId { volume, index: 0 }, random: Random::new(1) }
    }

    fn put(&mut self, key: &str, length: usize) -> Lsn {
        let mut value = vec![0; length];
        self.random.fill(&mut value);
        let mut batch = Batch::new();
        batch.insert(self.index, key.as_bytes(), value);
        self.store.commit(batch).unwrap()
    }

    /// So many MiB in large values, in the order of their keys.
    fn put_much(&mut self, name: &str, mib: u64) {
        for n in 0..mib * MIB / VALUE as u64 {
            self.put(&format!("{name}/{n:06}"), VALUE);
        }
    }

    fn written(&self) -> u64 {
        self.device.counts().writes.bytes
    }

    /// The bytes written by a sync.
    fn sync(&self, upto: Lsn) -> u64 {
        let before = self.written();
        self.store.sync(upto).unwrap();
        self.written() - before
    }
}

#[test]
fn a_sync_does_not_wait_for_what_comes_after() {
    let mut bench = Bench::new(128 * MIB);
    let small = bench.put("small", 10);
    // So little that no thread has to write it yet.
    bench.put_much("another writer's", 8);
    assert_eq!(bench.sync(small), 4096);
}

/// What came before has to go to the device as well; but of a gigabyte nearly all is there by then.
#[test]
fn a_sync_does_not_wait_for_all_that_came_before() {
    let mut bench = Bench::new(768 * MIB);
    bench.put_much("another writer's", 512);
    let small = bench.put("small", 10);
    let bytes = bench.sync(small);
    assert!(bytes <= 17 * MIB, "{bytes}");
    assert_eq!(bench.sync(small), 0);
}

/// Bytes in order: the log's copy is the one that stays.
#[test]
fn data_in_order_reaches_the_device_once() {
    let mut bench = Bench::new(768 * MIB);
    let before = bench.written();
    bench.put_much("file", 256);
    bench.store.sync_all().unwrap();
    let ratio = |bytes: u64| bytes as f64 / (256 * MIB) as f64;
    let synced = ratio(bench.written() - before);
    assert!((1.0..1.03).contains(&synced), "{synced}");
    while bench.store.step().unwrap() {}
    bench.store.close().unwrap();
    let closed = ratio(bench.written() - before);
    assert!(closed < 1.03, "{closed}");
}

#[test]
fn data_deleted_before_it_was_written_is_not_written() {
    let mut bench = Bench::new(128 * MIB);
    let before = bench.written();
    bench.put_much("file", 2);
    let mut batch = Batch::new();
    batch.delete_range(bench.index, espalier_engine::KeyRange::prefix(b"file/"));
    bench.store.commit(batch).unwrap();
    bench.store.sync_all().unwrap();
    let written = bench.written() - before;
    assert!(written <= 64 << 10, "{written}");
}
