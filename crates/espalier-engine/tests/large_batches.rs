//! A batch may carry more data than the log region holds: renaming a directory names all of it.

use espalier_engine::{Batch, ErrorKind, FormatOptions, IndexId, OpenOptions, Store};
use espalier_storage::{MemoryDevice, SimulatedEnvironment};
use std::sync::Arc;

#[test]
fn a_batch_with_more_data_than_the_log_is_logged_by_reference() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let env = Arc::new(SimulatedEnvironment::new(1));
    let format = FormatOptions { log_bytes: Some(1 << 20), ..FormatOptions::default() };
    Store::format(device.clone(), env.clone(), &format).unwrap();
    let store = Store::open(device.clone(), env.clone(), OpenOptions::default()).unwrap();
    let volume = store.create_volume("main", 1, 0, &[]).unwrap();
    let index = IndexId { volume, index: 0 };
    let value = |n: u8| vec![n; 64 << 10];
    let mut batch = Batch::new();
    for n in 0..64 {
        batch.insert(index, &[n], value(n));
    }
    let lsn = store.commit(batch).unwrap();
    store.sync(lsn).unwrap();
    // What is not large cannot be referred to: that is refused, and nothing is done.
    let mut batch = Batch::new();
    for n in 0..2000u32 {
        batch.insert(index, &n.to_be_bytes(), vec![0; 1000]);
    }
    assert_eq!(store.commit(batch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    // Not closed: the log alone knows the batch.
    drop(store);
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    for n in 0..64 {
        assert_eq!(store.get(index, &[n]).unwrap().as_deref(), Some(&value(n)[..]));
    }
    assert_eq!(store.get(index, &[0, 0, 0, 1]).unwrap(), None);
    assert!(store.verify(&mut |_| {}).unwrap().problems.is_empty());
}
