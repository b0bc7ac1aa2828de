//! Devices that end, or lose their store, while requests are under way that get no answer.

mod support;

use espalier_object::{
    Access, Bucket, Failure, FailureKind, ObjectDevice, Options, Present, RemoteBucket, Reply, Request,
    Ticket, check_objects,
};
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, ErrorKind, SystemEnvironment};
use espalier_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{options, read, write};

/// Longer than anything here takes on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// What gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gets,
    Uploads,
    Roots,
}

/// A store in memory of which some requests get no answer.
#[derive(Debug)]
struct Silent {
    bucket: Arc<RemoteBucket>,
    silence: Arc<Silence>,
}

#[derive(Debug, Default)]
struct Silence {
    /// What gets none now, and whether it is of those that give way to callers.
    of: Mutex<Option<(Kind, bool)>>,
    /// Waits for an answer that did not come at once.
    waits: AtomicU64,
    /// Set when such a wait was longer than it may be.
    was_waited_for: AtomicBool,
}

struct Unanswered {
    ticket: Box<dyn Ticket>,
    silence: Arc<Silence>,
    of: (Kind, bool),
}

impl Silent {
    fn new() -> Arc<Self> {
        Arc::new(Self { bucket: Arc::new(RemoteBucket::in_memory().unwrap()), silence: Arc::default() })
    }

    fn set(&self, of: Option<(Kind, bool)>) {
        *self.silence.of.lock() = of;
    }

    /// True once a request waits for its answer.
    fn is_waited_for(&self) -> bool {
        let began = Instant::now();
        while self.silence.waits.load(Ordering::SeqCst) == 0 && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.silence.waits.load(Ordering::SeqCst) > 0
    }

    fn was_waited_for(&self) -> bool {
        self.silence.was_waited_for.load(Ordering::SeqCst)
    }

    fn begin(&self, request: Request, gives_way: bool) -> Box<dyn Ticket> {
        let kind = match &request {
            Request::Get { name, .. } if name.starts_with("data/") => Some(Kind::Gets),
            Request::Put { name, .. } if name.starts_with("data/") => Some(Kind::Uploads),
            Request::Put { name, .. } if name == "root" => Some(Kind::Roots),
            _ => None,
        };
        let ticket = self.bucket.submit(request);
        match kind {
            Some(kind) => {
                let (silence, of) = (Arc::clone(&self.silence), (kind, gives_way));
                Box::new(Unanswered { ticket, silence, of })
            }
            None => ticket,
        }
    }
}

impl Bucket for Silent {
    fn name(&self) -> &str {
        "silent store"
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        self.begin(request, false)
    }

    fn submit_behind(&self, request: Request) -> Box<dyn Ticket> {
        self.begin(request, true)
    }
}

impl Ticket for Unanswered {
    fn wait(self: Box<Self>) -> Result<Reply, Failure> {
        let given_up = || Err(Failure::new(FailureKind::Unknown, "no answer"));
        self.wait_while(&|| true).unwrap_or_else(given_up)
    }

    fn wait_while(self: Box<Self>, is_wanted: &dyn Fn() -> bool) -> Option<Result<Reply, Failure>> {
        let began = Instant::now();
        while *self.silence.of.lock() == Some(self.of) {
            self.silence.waits.fetch_add(1, Ordering::SeqCst);
            if !is_wanted() {
                return None;
            }
            if began.elapsed() > PATIENCE {
                self.silence.was_waited_for.store(true, Ordering::SeqCst);
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(self.ticket.wait())
    }
}

fn made(store: &Arc<Silent>, options: &Options) -> (Arc<dyn Environment>, ObjectDevice) {
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(2));
    ObjectDevice::create(store.clone(), &environment, 1 << 30, options, Present::Refuse).unwrap();
    let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options.clone()).unwrap();
    (environment, device)
}

/// A device is closed while a compaction, or a renewal, waits for an answer that does not come.
#[test]
fn a_device_that_is_closed_waits_for_no_answer_to_maintenance() {
    for kind in [Kind::Gets, Kind::Uploads, Kind::Roots] {
        let store = Silent::new();
        let lease = Duration::from_millis(300);
        let options = Options { probe: false, cache_bytes: 0, lease, ..options() };
        let (environment, device) = made(&store, &options);
        if kind != Kind::Roots {
            store.set(Some((kind, true)));
        }
        let many: Vec<u64> = (1..100).collect();
        for tag in &many {
            write(&device, *tag, &[*tag]);
            device.sync().unwrap();
        }
        store.set(Some((kind, true)));
        assert!(store.is_waited_for(), "{kind:?} of maintenance");
        device.close().unwrap();
        assert!(!store.was_waited_for(), "{kind:?} were waited for");
        store.set(None);
        drop(device);
        let report = check_objects(store.clone(), &environment, &options, true).unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
        let reader = ObjectDevice::open(store, &environment, Access::ReadOnly, options).unwrap();
        assert_eq!(read(&reader, 1, 99), many);
    }
}

/// A mount for reading ends while a get has no answer, in a store that is waited for without end.
#[test]
fn a_reader_that_ends_waits_for_no_get() {
    let store = Silent::new();
    let options = Options { probe: false, cache_bytes: 0, ahead_bytes: 0, budget: None, ..options() };
    let (environment, device) = made(&store, &options);
    write(&device, 0, &[1; 40]);
    device.close().unwrap();
    let reader = ObjectDevice::open(store.clone(), &environment, Access::ReadOnly, options).unwrap();
    store.set(Some((Kind::Gets, false)));
    std::thread::scope(|scope| {
        let read = scope.spawn(|| reader.read_at(0, &mut AlignedBuf::zeroed(BLOCK)));
        assert!(store.is_waited_for());
        reader.begin_close();
        let error = read.join().unwrap().unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.to_string().contains("given up"), "{error}");
    });
    assert!(!store.was_waited_for());
    // What is read to close is tried once.
    store.set(None);
    assert_eq!(read(&reader, 0, 40), [1; 40]);
}

/// Two writers that are both alive: the sync of the first one waits for an upload without an answer
/// when the second one takes over. It fails as soon as the first one learns of that, which is in a
/// third of its lease, and what it had acknowledged before is there.
#[test]
fn a_sync_of_a_writer_that_was_fenced_waits_for_no_upload() {
    let store = Silent::new();
    let lease = Duration::from_millis(300);
    let options = Options { probe: false, lease, budget: None, ..options() };
    let (environment, first) = made(&store, &options);
    write(&first, 0, &[1, 1]);
    first.sync().unwrap();
    write(&first, 0, &[2]);
    store.set(Some((Kind::Uploads, false)));
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| first.sync());
        assert!(store.is_waited_for());
        let host = "second".to_owned();
        let options = Options { host, ..options };
        let bucket = store.bucket.clone();
        let second = ObjectDevice::open(bucket, &environment, Access::TakeOver, options).unwrap();
        assert_eq!(read(&second, 0, 2), [1, 1]);
        let error = sync.join().unwrap().unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.to_string().contains("on second"), "{error}");
        write(&second, 1, &[3]);
        second.sync().unwrap();
        assert_eq!(read(&second, 0, 2), [1, 3]);
    });
    assert!(first.is_fenced() && !store.was_waited_for());
}
