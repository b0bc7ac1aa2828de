//! Background threads of a store: what happens when the system has none to give.

use espalier_engine::{ErrorKind, FormatOptions, OpenOptions, Store};
use espalier_storage::{Device, Environment, JoinHandle, MemoryDevice, SystemEnvironment};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// It is an error that says so, whichever thread is missing; those that run end, and nothing happened to the store.
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
