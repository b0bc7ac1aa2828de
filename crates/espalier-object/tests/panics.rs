//! Requests that panic: a sync that did not end claims nothing, and neither does one after it.

mod support;

use espalier_object::{
    Access, Bucket, Failure, ObjectDevice, Options, Present, Reply, Request, SimulatedBucket, Ticket,
};
use espalier_storage::{Device, Environment, SystemEnvironment};
use espalier_sync::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{block, environment, options, read, write};

/// A bucket of which one call panics: the beginning of a request, or the wait for it.
#[derive(Debug)]
struct Faulty {
    bucket: Arc<SimulatedBucket>,
    /// Calls up to the one that panics; none does at 0.
    left: Arc<AtomicUsize>,
}

/// One call less.
fn count_down(left: &AtomicUsize) {
    let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    assert_ne!(before, Ok(1), "a call of the bucket that shall panic");
}

struct FaultyTicket(Box<dyn Ticket>, Arc<AtomicUsize>);

impl Ticket for FaultyTicket {
    fn wait(self: Box<Self>) -> Result<Reply, Failure> {
        count_down(&self.1);
        self.0.wait()
    }
}

impl Bucket for Faulty {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        count_down(&self.left);
        Box::new(FaultyTicket(self.bucket.submit(request), Arc::clone(&self.left)))
    }
}

/// A device on a store with a block and more, and the faulty bucket below it.
fn open(seed: u64) -> (Arc<Faulty>, ObjectDevice, impl Fn() -> ObjectDevice) {
    let bucket = Arc::new(SimulatedBucket::new(seed));
    let environment = environment(seed);
    // Each sync makes a map checkpoint too.
    let options = Options { probe: false, delta_runs: 1, cache_bytes: 0, ..options() };
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
    let faulty = Arc::new(Faulty { bucket: bucket.clone(), left: Arc::default() });
    let device = ObjectDevice::open(faulty.clone(), &environment, Access::Write, options.clone()).unwrap();
    write(&device, 0, &[1, 1]);
    write(&device, 5, &[1]);
    device.sync().unwrap();
    let next =
        move || ObjectDevice::open(bucket.clone(), &environment, Access::TakeOver, options.clone()).unwrap();
    (faulty, device, next)
}

/// The bucket panics at each call of a sync.
#[test]
fn no_sync_claims_what_one_that_panicked_took() {
    let mut panics = 0;
    for call in 1.. {
        let (faulty, device, next) = open(call as u64);
        write(&device, 0, &[2]);
        write(&device, 7, &[2, 2]);
        faulty.left.store(call, Ordering::SeqCst);
        if catch_unwind(AssertUnwindSafe(|| device.sync())).is_ok() {
            break;
        }
        panics += 1;
        assert!(device.sync().is_err(), "call {call}: a sync after it");
        assert!(device.write_at(0, &[&block(3)]).is_err(), "call {call}: a write after it");
        assert!(device.step().is_err(), "call {call}: maintenance after it");
        let why = device.failure().unwrap();
        assert!(why.contains("panicked half-way"), "call {call}: {why}");
        assert!(!device.is_fenced());
        assert!(device.close().is_err(), "call {call}: closing after it");
        // The next writer finds all of it or nothing.
        let next = next();
        let found = [read(&next, 0, 2), read(&next, 5, 4)].concat();
        assert!(
            [[1, 1, 1, 0, 0, 0], [2, 1, 1, 0, 2, 2]].contains(&found[..].try_into().unwrap()),
            "{found:?}"
        );
    }
    // Segment, map and root: each is begun and waited for.
    assert!(panics >= 6, "{panics}");
}

/// The bucket panics at each call of writes that seal segments and wait for them. The oracle: what
/// returned before a sync that succeeded is there.
#[test]
fn a_write_that_panics_takes_no_other_write_along() {
    let mut panics = 0;
    for call in 1.. {
        let (faulty, device, next) = open(call as u64);
        faulty.left.store(call, Ordering::SeqCst);
        let mut returned = 0;
        let all = catch_unwind(AssertUnwindSafe(|| {
            for number in 0..200 {
                write(&device, 100 + number, &[number + 1]);
                returned = number + 1;
            }
        }));
        faulty.left.store(0, Ordering::SeqCst);
        if device.sync().is_ok() {
            let found = read(&next(), 100, returned as usize);
            assert_eq!(found, (1..=returned).collect::<Vec<u64>>(), "call {call}");
        } else {
            assert!(device.failure().is_some());
        }
        if all.is_ok() {
            break;
        }
        panics += 1;
    }
    assert!(panics >= 6, "{panics}");
}

/// A bucket whose deletes panic.
#[derive(Debug)]
struct PanicsAtDeletes {
    bucket: Arc<SimulatedBucket>,
    panicked: Mutex<bool>,
    told: Condvar,
}

impl Bucket for PanicsAtDeletes {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        if let Request::Delete { .. } = request {
            *self.panicked.lock() = true;
            self.told.notify_all();
            panic!("a delete that shall panic");
        }
        self.bucket.submit(request)
    }
}

/// The maintenance thread ends by a panic that concerns no root: the device is closed in order.
#[test]
fn a_device_whose_maintenance_panicked_gives_the_lease_back() {
    let store = Arc::new(PanicsAtDeletes {
        bucket: Arc::new(SimulatedBucket::new(9)),
        panicked: Mutex::default(),
        told: Condvar::new(),
    });
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(2));
    let lease = Duration::from_secs(1);
    let options = Options { probe: false, grace: Duration::ZERO, lease, ..options() };
    ObjectDevice::create(store.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
    let open = |access| ObjectDevice::open(store.clone(), &environment, access, options.clone());
    let device = open(Access::Write).unwrap();
    for tag in 1..=3 {
        write(&device, 0, &[tag; 4]);
        device.sync().unwrap();
    }
    let mut panicked = store.panicked.lock();
    while !*panicked {
        // Each look at the root is later, by the server's clock; a renewal makes another root.
        store.told.wait_for(&mut panicked, Duration::from_millis(50));
    }
    drop(panicked);
    write(&device, 0, &[9]);
    device.close().unwrap();
    // The server's clock stands still, so only a lease that was given back does not run.
    assert_eq!(read(&open(Access::Write).unwrap(), 0, 1), [9]);
}
