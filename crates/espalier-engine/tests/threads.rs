//! Threads in a store: what happens when the system has none to give, and that none waits for
//! another for ever.

use espalier_engine::key::KeyRange;
use espalier_engine::{Batch, ErrorKind, FormatOptions, IndexId, OpenOptions, READ_ONLY_VOLUME, Store};
use espalier_storage::{Device, Environment, JoinHandle, MemoryDevice, SystemEnvironment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// An environment in which so many threads can be started, and no more.
#[derive(Debug)]
struct Few {
    real: SystemEnvironment,
    left: AtomicUsize,
}

impl Environment for Few {
    fn now(&self) -> Duration {
        self.real.now()
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic()
    }

    fn random(&self) -> u64 {
        self.real.random()
    }

    fn threads(&self) -> usize {
        2
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle> {
        let taken = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        match taken {
            Ok(_) => self.real.spawn(name, body),
            Err(_) => Err(std::io::ErrorKind::WouldBlock.into()),
        }
    }

    fn sleep(&self, duration: Duration) {
        self.real.sleep(duration);
    }
}

/// It is an error that says so, whichever thread is missing; those that run end, and nothing
/// happened to the store.
#[test]
fn a_store_whose_threads_cannot_be_started_does_not_open() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20));
    let real = || SystemEnvironment::new(2);
    Store::format(device.clone(), Arc::new(real()), &FormatOptions::default()).unwrap();
    let mut threads = 0;
    let store = loop {
        assert!(threads < 100, "it takes no hundred threads");
        let few = Arc::new(Few { real: real(), left: threads.into() });
        match Store::open(device.clone(), few.clone(), OpenOptions::default()) {
            Ok(store) => break store,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io);
                assert!(error.to_string().contains("thread"), "{error}");
                assert_eq!(Arc::strong_count(&few), 1, "a thread goes on");
            }
        }
        threads += 1;
    };
    assert!(threads > 2, "{threads}");
    store.close().unwrap();
}

/// A commit to a volume that takes no changes fails, also while other threads make and delete
/// volumes: no thread waits for another for ever.
#[test]
fn batches_for_volumes_that_come_and_go_are_answered() {
    const ROUNDS: usize = 300;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20));
    let env = Arc::new(SystemEnvironment::new(0));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let (newest, over) = (AtomicU32::new(volume + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let mut batch = Batch::new();
                // So long that others come while it is looked at.
                for key in 0..64u8 {
                    batch.delete(IndexId { volume, index: 0 }, &[key]);
                }
                // It is not there yet, is there and read-only, or is gone again.
                batch.delete(IndexId { volume: newest.load(Ordering::Acquire), index: 0 }, b"key");
                let kind = store.commit(batch).unwrap_err().kind();
                assert!(matches!(kind, ErrorKind::ReadOnly | ErrorKind::NotFound), "{kind:?}");
            }
        });
        for _ in 0..ROUNDS {
            let snapshot = store.snapshot_volume(volume, "s", READ_ONLY_VOLUME).unwrap();
            newest.store(snapshot, Ordering::Release);
            store.delete_volume(snapshot).unwrap();
        }
        over.store(true, Ordering::Release);
    });
    store.close().unwrap();
}

/// Also while others have it carried out.
#[test]
fn what_was_committed_can_be_synced_at_once() {
    const COMMITS: u64 = 20_000;
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SystemEnvironment::new(2)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let writers = AtomicUsize::new(2);
    std::thread::scope(|scope| {
        for writer in 0..2u8 {
            let (store, writers) = (&store, &writers);
            scope.spawn(move || {
                for n in 0..COMMITS {
                    let mut batch = Batch::new();
                    for key in 0..12u8 {
                        batch.insert(index, &[writer, n as u8 % 50, key], vec![1; 8]);
                    }
                    let lsn = store.commit(batch).unwrap();
                    if n % 3 == 0 {
                        store.sync(lsn).unwrap();
                    }
                }
                writers.fetch_sub(1, Ordering::Release);
            });
            scope.spawn(move || {
                while writers.load(Ordering::Acquire) > 0 {
                    store.get(index, b"key").unwrap();
                }
            });
        }
    });
}

/// Each thread has keys of its own, and looks at them in all ways right after it has changed them,
/// while others commit to other keys and workers carry that out.
#[test]
fn who_committed_sees_it_whoever_carries_it_out() {
    const ROUNDS: u32 = 4_000;
    for joined in [0, 4, 64] {
        let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SystemEnvironment::new(2)));
        Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
        let tuning = espalier_engine::Tuning { joined, accepted: 4, ..Default::default() };
        let store = Store::open(device, env, OpenOptions { tuning, ..Default::default() }).unwrap();
        let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let store = &store;
                scope.spawn(move || {
                    let prefix = [b'a' + thread];
                    let key = |n: u32| [&prefix[..], &(n % 5).to_be_bytes()].concat();
                    for n in 0..ROUNDS {
                        let mut batch = Batch::new();
                        if n % 16 == 15 {
                            batch.delete_range(index, KeyRange::prefix(&prefix));
                        }
                        batch.insert(index, &key(n), n.to_be_bytes().to_vec());
                        store.commit(batch).unwrap();
                        match n % 3 {
                            0 => assert_eq!(store.get(index, &key(n)).unwrap().unwrap()[..], n.to_be_bytes()),
                            1 => {
                                let mut cursor = store.cursor(index, KeyRange::prefix(&prefix)).unwrap();
                                let mut newest = None;
                                while let Some(entry) = cursor.next().unwrap() {
                                    let value = cursor.read(&entry.value).unwrap();
                                    newest =
                                        newest.max(Some(u32::from_be_bytes(value[..].try_into().unwrap())));
                                }
                                assert_eq!(newest, Some(n));
                            }
                            _ => {
                                let snapshot = store.snapshot().unwrap();
                                let value = snapshot.get(index, &key(n)).unwrap().unwrap();
                                assert_eq!(value[..], n.to_be_bytes());
                            }
                        }
                    }
                });
            }
        });
        store.close().unwrap();
    }
}

/// A walk sees what was there when it began, though it began without waiting for what does not
/// concern it, and that is carried out while it goes on.
#[test]
fn a_walk_sees_one_moment_while_others_are_carried_out() {
    const ROUNDS: u64 = 3_000;
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SystemEnvironment::new(2)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let tuning = espalier_engine::Tuning { joined: 8, accepted: 4, ..Default::default() };
    let store = Store::open(device, env, OpenOptions { tuning, ..Default::default() }).unwrap();
    let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let over = AtomicBool::new(false);
    // All keys of a row have the same value, changed in one batch.
    let put = |row: u8, n: u64| {
        let mut batch = Batch::new();
        (0..6u8).for_each(|key| batch.insert(index, &[row, key], n.to_be_bytes().to_vec()));
        store.commit(batch).unwrap();
    };
    (0..3).for_each(|row| put(row, 0));
    std::thread::scope(|scope| {
        for row in 0..2 {
            let (put, over) = (&put, &over);
            scope.spawn(move || {
                let mut n = 1;
                while !over.load(Ordering::Acquire) {
                    put(row, n);
                    n += 1;
                }
            });
        }
        for n in 0..ROUNDS {
            let row = (n % 3) as u8;
            let mut cursor = store.cursor(index, KeyRange::prefix(&[row])).unwrap();
            let mut values = Vec::new();
            while let Some(entry) = cursor.next().unwrap() {
                values.push(cursor.read(&entry.value).unwrap());
                std::thread::yield_now();
            }
            assert!(values.len() == 6 && values.iter().all(|value| *value == values[0]), "{values:?}");
        }
        over.store(true, Ordering::Release);
    });
    store.close().unwrap();
}
