//! The lease of a writer that works: nothing slow holds its renewal up, and renewals and syncs that
//! come together make one line of roots.

mod support;

use espalier_object::{
    Access, Bucket, Failure, FailureKind, ObjectDevice, Options, Present, RemoteBucket, Reply, Request,
    Ticket,
};
use espalier_storage::{Device, Environment, SystemEnvironment};
use espalier_sync::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{options, read, write};

/// Longer than anything here takes on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A segment that a compaction fills has more.
const LARGE_BYTES: usize = 64 << 10;

/// A store in memory that holds some requests up until it is told otherwise, and loses replies.
#[derive(Debug)]
struct Slow {
    bucket: RemoteBucket,
    gate: Arc<Gate>,
    root_puts: AtomicU64,
    /// The reply of one in so many puts of the root is lost; of none if it is 0.
    lose_one_in: AtomicU64,
}

#[derive(Debug, Default)]
struct Gate {
    holds: Mutex<Option<Held>>,
    opened: Condvar,
    /// Requests that wait, or have waited.
    waited: AtomicU64,
}

/// What is held up of requests for segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Puts,
    /// Of at least [`LARGE_BYTES`].
    LargePuts,
    Gets,
}

impl Slow {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            bucket: RemoteBucket::in_memory().unwrap(),
            gate: Arc::default(),
            root_puts: AtomicU64::new(0),
            lose_one_in: AtomicU64::new(0),
        })
    }

    fn hold(&self, held: Option<Held>) {
        *self.gate.holds.lock() = held;
        self.gate.opened.notify_all();
    }

    /// Waits until the root has been put so often again; false if that does not happen.
    fn is_put_again(&self, times: u64) -> bool {
        let until = self.root_puts.load(Ordering::SeqCst) + times;
        comes_true(|| self.root_puts.load(Ordering::SeqCst) >= until)
    }
}

fn comes_true(condition: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

struct HeldUp(Box<dyn Ticket>, Arc<Gate>, Vec<Held>);

impl Ticket for HeldUp {
    fn wait(self: Box<Self>) -> Result<Reply, Failure> {
        let Self(ticket, gate, kinds) = *self;
        let mut holds = gate.holds.lock();
        while holds.is_some_and(|held| kinds.contains(&held)) {
            gate.waited.fetch_add(1, Ordering::SeqCst);
            gate.opened.wait(&mut holds);
        }
        drop(holds);
        ticket.wait()
    }
}

struct Lost(Box<dyn Ticket>);

impl Ticket for Lost {
    fn wait(self: Box<Self>) -> Result<Reply, Failure> {
        self.0.wait()?;
        Err(Failure::new(FailureKind::Unknown, "the reply was lost"))
    }
}

impl Bucket for Slow {
    fn name(&self) -> &str {
        "slow store"
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let is_root_put = request.name() == "root" && request.changes();
        let kinds = match &request {
            Request::Put { name, body, .. } if name.starts_with("data/") => {
                let is_large = body.iter().map(|part| part.len()).sum::<usize>() >= LARGE_BYTES;
                if is_large { vec![Held::Puts, Held::LargePuts] } else { vec![Held::Puts] }
            }
            Request::Get { name, .. } if name.starts_with("data/") => vec![Held::Gets],
            _ => Vec::new(),
        };
        let ticket = self.bucket.submit(request);
        if !kinds.is_empty() {
            return Box::new(HeldUp(ticket, Arc::clone(&self.gate), kinds));
        }
        if is_root_put {
            let number = 1 + self.root_puts.fetch_add(1, Ordering::SeqCst);
            let lose_one_in = self.lose_one_in.load(Ordering::SeqCst);
            if lose_one_in > 0 && number.is_multiple_of(lose_one_in) {
                return Box::new(Lost(ticket));
            }
        }
        ticket
    }
}

fn open(store: &Arc<Slow>, threads: usize, lease: Duration) -> (ObjectDevice, impl Fn() -> ObjectDevice) {
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(threads));
    let options = Options { probe: false, lease, ..options() };
    ObjectDevice::create(store.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
    let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options.clone()).unwrap();
    let store = Arc::clone(store);
    let reader =
        move || ObjectDevice::open(store.clone(), &environment, Access::ReadOnly, options.clone()).unwrap();
    (device, reader)
}

#[test]
fn a_slow_upload_does_not_hold_up_the_lease() {
    let store = Slow::new();
    let (device, reader) = open(&store, 1, Duration::from_millis(300));
    write(&device, 0, &[1; 10]);
    store.hold(Some(Held::Puts));
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| device.sync());
        let is_held = comes_true(|| store.gate.waited.load(Ordering::SeqCst) > 0);
        let is_renewed = store.is_put_again(5);
        let has_ended = sync.is_finished();
        store.hold(None);
        assert!(is_held && !has_ended, "the sync has to wait for its upload");
        assert!(is_renewed, "the lease was not renewed");
        sync.join().unwrap().unwrap();
    });
    assert_eq!(read(&reader(), 0, 10), [1; 10]);
    write(&device, 0, &[2]);
    device.sync().unwrap();
    device.close().unwrap();
    assert_eq!(read(&reader(), 0, 2), [2, 1]);
}

#[test]
fn a_slow_compaction_does_not_hold_up_the_lease() {
    let store = Slow::new();
    let (device, reader) = open(&store, 1, Duration::from_millis(300));
    // Compaction gets what it moves; writers get nothing.
    store.hold(Some(Held::Gets));
    let many: Vec<u64> = (1..100).collect();
    for tag in &many {
        write(&device, *tag, &[*tag]);
        device.sync().unwrap();
    }
    let is_held = comes_true(|| store.gate.waited.load(Ordering::SeqCst) > 0);
    let is_renewed = store.is_put_again(5);
    store.hold(None);
    assert!(is_held, "nothing is compacted");
    assert!(is_renewed, "the lease was not renewed");
    assert!(comes_true(|| device.usage().segments < 50), "the compaction does not go on");
    assert_eq!(read(&device, 1, 99), many);
    device.close().unwrap();
    assert_eq!(read(&reader(), 1, 99), many);
}

/// While the uploads of a compaction are under way, callers sync and the map is read.
#[test]
fn a_slow_compaction_holds_up_no_sync() {
    let store = Slow::new();
    let (device, reader) = open(&store, 0, Duration::from_secs(600));
    let many: Vec<u64> = (1..100).collect();
    for tag in &many {
        write(&device, *tag, &[*tag]);
        device.sync().unwrap();
    }
    store.hold(Some(Held::LargePuts));
    std::thread::scope(|scope| {
        let step = scope.spawn(|| device.step());
        let is_held = comes_true(|| store.gate.waited.load(Ordering::SeqCst) > 0);
        let sync = scope.spawn(|| {
            // One of the blocks that are being moved.
            write(&device, 3, &[1000]);
            device.sync()
        });
        let has_synced = comes_true(|| sync.is_finished());
        let is_moving = !step.is_finished();
        store.hold(None);
        assert!(is_held && is_moving, "nothing is compacted");
        assert!(has_synced, "the sync has waited for the compaction");
        sync.join().unwrap().unwrap();
        assert!(step.join().unwrap().unwrap());
    });
    let expected: Vec<u64> = many.iter().map(|tag| if *tag == 3 { 1000 } else { *tag }).collect();
    assert_eq!(read(&device, 1, 99), expected);
    device.close().unwrap();
    assert_eq!(read(&reader(), 1, 99), expected);
}

/// Two threads sync and one renews without a pause, while replies are lost. The oracle: no put
/// loses against one of the same writer, and the last root has everything.
#[test]
fn renewals_and_syncs_make_one_line_of_roots() {
    const ROUNDS: u64 = 150;
    let store = Slow::new();
    let (device, reader) = open(&store, 0, Duration::ZERO);
    store.lose_one_in.store(3, Ordering::SeqCst);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let device = &device;
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        write(device, writer, &[round]);
                        device.sync().unwrap();
                    }
                })
            })
            .collect();
        let renewals = scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                device.step().unwrap();
            }
        });
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        ended.store(true, Ordering::SeqCst);
        renewals.join().unwrap();
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    assert_eq!(device.failure(), None);
    assert!(device.request_counts().repeats == 0, "a lost reply is found out by reading");
    assert_eq!(read(&reader(), 0, 2), [ROUNDS; 2]);
    device.close().unwrap();
    assert_eq!(read(&reader(), 0, 2), [ROUNDS; 2]);
}
