//! How often what was put into a store is written to the device.

use espalier_engine::{Batch, FormatOptions, IndexId, OpenOptions, Store};
use espalier_storage::{CountingDevice, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

const VALUES: u64 = 300_000;
const VALUE_BYTES: usize = 100;
const BATCH: u64 = 100;
const PAYLOAD_BYTES: u64 = VALUES * (VALUE_BYTES as u64 + 16);

/// Bytes that the device got for one of payload, up to a sync, by a writer that takes steps of
/// background work when it has to.
fn written_for_one(key: impl Fn(u64) -> u128) -> f64 {
    let device = Arc::new(CountingDevice::new(MemoryDevice::new(1 << 30)));
    let env = Arc::new(SimulatedEnvironment::new(5));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let options = OpenOptions { memory: 32 << 20, ..OpenOptions::default() };
    let store = Store::open(device.clone(), env, options).unwrap();
    let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let before = device.counts();
    let mut random = Random::new(9);
    for first in (0..VALUES).step_by(BATCH as usize) {
        let mut batch = Batch::new();
        for n in first..first + BATCH {
            let mut value = vec![0; VALUE_BYTES];
            random.fill(&mut value);
            batch.insert(index, &key(n).to_be_bytes(), value);
        }
        store.commit(batch).unwrap();
    }
    store.sync_all().unwrap();
    let written = device.counts().since(&before).writes.bytes;
    store.close().unwrap();
    written as f64 / PAYLOAD_BYTES as f64
}

/// The log is one of them.
#[test]
fn keys_in_order_are_written_once_beside_the_log() {
    let written = written_for_one(u128::from);
    assert!(written < 2.3, "{written} bytes for one");
}

#[test]
fn keys_without_order_are_written_a_few_times() {
    let written =
        written_for_one(|n| u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(n));
    assert!(written < 4.0, "{written} bytes for one");
}
