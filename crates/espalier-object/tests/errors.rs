//! Stores that are away, refuse, have too much to do, or are gone, while a device is in use.

mod support;

use espalier_object::{
    Access, Bucket, Failure, FailureKind, Location, ObjectDevice, Options, Present, RemoteBucket, Reply,
    Request, SimulatedBucket, Ticket, Trouble, check_objects,
};
use espalier_storage::{
    AlignedBuf, BLOCK, Device, Environment, ErrorKind, SimulatedDevice, SimulatedEnvironment,
    SystemEnvironment,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use support::{block, options, read, seeds, write};

fn simulated(seed: u64) -> (Arc<SimulatedBucket>, Arc<SimulatedEnvironment>, Arc<dyn Environment>) {
    let environment = Arc::new(SimulatedEnvironment::new(seed));
    (Arc::new(SimulatedBucket::new(seed)), environment.clone(), environment)
}

#[test]
fn a_store_that_is_away_fails_the_sync_and_latches() {
    let (bucket, _, environment) = simulated(9);
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, options()).unwrap();
    write(&device, 0, &[1]);
    device.sync().unwrap();
    write(&device, 0, &[2]);
    bucket.set_away(true);
    let error = device.sync().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io, "{error}");
    bucket.set_away(false);
    // What was written may or may not be there: nothing after it pretends.
    assert!(device.sync().is_err());
    assert!(device.write_at(0, &[&block(3)]).is_err());
    assert!(device.failure().is_some() && !device.is_fenced());
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::TakeOver, options()).unwrap();
    assert!([1, 2].contains(&read(&device, 0, 1)[0]));
    // The root is gone: the store was deleted while it was in use.
    write(&device, 0, &[5]);
    bucket.remove("root");
    let error = device.sync().unwrap_err();
    assert!(error.to_string().contains("was deleted"), "{error}");
    assert_eq!(device.len(), (1 << 30) / BLOCK as u64 * BLOCK as u64);
}

/// A store that is away for some requests, and then refuses some, as with credentials that have run
/// out, before it is there again.
#[derive(Debug)]
struct Absent {
    bucket: Arc<SimulatedBucket>,
    away: AtomicUsize,
    refused: AtomicUsize,
}

struct Refused(FailureKind);

impl Ticket for Refused {
    fn wait(self: Box<Self>) -> Result<Reply, Failure> {
        Err(Failure::new(self.0, "not now"))
    }
}

impl Bucket for Absent {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        for (left, kind) in [(&self.away, FailureKind::Unknown), (&self.refused, FailureKind::Denied)] {
            let take = |left: usize| left.checked_sub(1);
            if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                return Box::new(Refused(kind));
            }
        }
        self.bucket.submit(request)
    }
}

#[test]
fn callers_wait_for_a_store_that_is_away_if_they_shall() {
    let (bucket, simulated, environment) = simulated(11);
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let absent = Arc::new(Absent { bucket, away: AtomicUsize::new(0), refused: AtomicUsize::new(0) });
    let wait = Options { budget: None, cache_bytes: 0, ..options() };
    let open = |options| ObjectDevice::open(absent.clone(), &environment, Access::TakeOver, options);
    let device = open(wait.clone()).unwrap();
    write(&device, 0, &[1, 2]);
    let begin = simulated.monotonic();
    absent.away.store(2000, Ordering::SeqCst);
    absent.refused.store(2000, Ordering::SeqCst);
    device.sync().unwrap();
    assert!(simulated.monotonic() - begin > Duration::from_secs(3600));
    absent.away.store(2000, Ordering::SeqCst);
    assert_eq!(read(&device, 0, 2), [1, 2]);
    drop(device);
    // One that is being opened does not wait without end, and learns of a refusal at once.
    absent.away.store(2000, Ordering::SeqCst);
    let begin = simulated.monotonic();
    assert_eq!(open(wait.clone()).unwrap_err().kind, ErrorKind::Io);
    assert!(simulated.monotonic() - begin < Duration::from_secs(300));
    absent.away.store(0, Ordering::SeqCst);
    absent.refused.store(2000, Ordering::SeqCst);
    assert_eq!(open(wait).unwrap_err().kind, ErrorKind::PermissionDenied);
}

/// Credentials run out while the device is in use, and new ones come within the budget, or later.
#[test]
fn credentials_that_run_out_are_waited_for_as_long_as_the_budget_lasts() {
    let (bucket, simulated, environment) = simulated(12);
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let absent = Arc::new(Absent { bucket, away: AtomicUsize::new(0), refused: AtomicUsize::new(0) });
    let open = || {
        let options = Options { cache_bytes: 0, ..options() };
        ObjectDevice::open(absent.clone(), &environment, Access::TakeOver, options).unwrap()
    };
    let device = open();
    write(&device, 0, &[1]);
    absent.refused.store(5, Ordering::SeqCst);
    device.sync().unwrap();
    absent.refused.store(5, Ordering::SeqCst);
    assert_eq!(read(&device, 0, 1), [1]);
    // They do not come in time: nothing pretends to be durable, and the error says what to do.
    write(&device, 0, &[2]);
    absent.refused.store(usize::MAX, Ordering::SeqCst);
    let begin = simulated.monotonic();
    let error = device.sync().unwrap_err();
    assert_eq!(error.kind, ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("check the credentials"), "{error}");
    let waited = simulated.monotonic() - begin;
    assert!(waited > Duration::from_secs(30) && waited < Duration::from_secs(300), "{waited:?}");
    absent.refused.store(0, Ordering::SeqCst);
    assert!(device.sync().is_err() && device.failure().is_some() && !device.is_fenced());
    drop(device);
    // The put of the root never arrived.
    assert_eq!(read(&open(), 0, 1), [1]);
}

/// The bucket is deleted under a device that would wait for ever for one that is away.
#[test]
fn a_bucket_that_is_deleted_gives_errors_and_no_endless_wait() {
    let (bucket, _, environment) = simulated(13);
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let open = |access| {
        let options = Options { cache_bytes: 0, ahead_bytes: 0, budget: None, ..options() };
        ObjectDevice::open(bucket.clone(), &environment, access, options)
    };
    let device = open(Access::Write).unwrap();
    write(&device, 0, &[1; 40]);
    device.sync().unwrap();
    let reader = open(Access::ReadOnly).unwrap();
    for (name, _) in bucket.objects() {
        bucket.remove(&name);
    }
    for each in [&device, &reader] {
        let error = each.read_at(0, &mut AlignedBuf::zeroed(BLOCK)).unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.to_string().contains("deleted"), "{error}");
    }
    assert_eq!(reader.newer().unwrap_err().kind, ErrorKind::NotFound);
    write(&device, 0, &[2]);
    let error = device.sync().unwrap_err();
    assert!(error.kind == ErrorKind::Io && error.to_string().contains("deleted"), "{error}");
    assert!(device.step().is_err() && device.close().is_err());
    assert_eq!(open(Access::TakeOver).unwrap_err().kind, ErrorKind::NotFound);
}

/// A server that has too much to do for most requests is asked less often, and nothing fails.
#[test]
fn throttling_makes_everything_slower_and_nothing_fail() {
    for seed in seeds(&[], 8) {
        let mut waited = [Duration::ZERO; 2];
        for (wait, trouble) in waited
            .iter_mut()
            .zip([Trouble { fail: 2, ..Trouble::default() }, Trouble { throttle: 2, ..Trouble::default() }])
        {
            let (bucket, simulated, environment) = simulated(seed);
            ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
            let options = Options { budget: None, ..options() };
            let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, options).unwrap();
            bucket.set_trouble(trouble);
            let begin = simulated.monotonic();
            for tag in 1..60 {
                write(&device, tag, &[tag; 30]);
                device.sync().unwrap();
                device.step().unwrap();
                assert_eq!(read(&device, tag, 30), vec![tag; 30], "seed {seed}");
            }
            *wait = simulated.monotonic() - begin;
            assert!(device.request_counts().repeats > 50, "{:?}", device.request_counts());
            device.close().unwrap();
        }
        assert!(waited[1] > 2 * waited[0], "seed {seed}: {waited:?}");
    }
}

/// A segment was cut behind the writer's back: that is damage, and no reason to ask again.
#[test]
fn an_object_that_was_cut_is_damage_and_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::parse(&format!("file://{}", folder.path().display())).unwrap();
    let bucket = Arc::new(RemoteBucket::open(&location, true).unwrap());
    let clock = Arc::new(SimulatedEnvironment::new(14));
    let environment: Arc<dyn Environment> = clock.clone();
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let wide = Options { segment_blocks: 128, ..options() };
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, wide).unwrap();
    write(&device, 0, &[1; 128]);
    device.close().unwrap();
    for entry in std::fs::read_dir(folder.path().join("data")).unwrap() {
        let file = std::fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
        // Of eight frames the last five are gone.
        file.set_len(file.metadata().unwrap().len() / 3).unwrap();
    }
    for budget in [Some(Duration::from_secs(60)), None] {
        let options = Options { budget, cache_bytes: 0, ahead_bytes: 0, ..options() };
        let reader =
            ObjectDevice::open(bucket.clone(), &environment, Access::ReadOnly, options.clone()).unwrap();
        let begin = clock.monotonic();
        let error = reader.read_at(100 * BLOCK as u64, &mut AlignedBuf::zeroed(BLOCK)).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
        assert!(!error.to_string().contains("check the network"), "{error}");
        assert!(clock.monotonic() - begin < Duration::from_secs(10), "it was waited for");
    }
}

/// What lies where the root should be is of another program, and larger than memory.
#[test]
fn a_root_that_is_larger_than_any_root_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::parse(&format!("file://{}", folder.path().display())).unwrap();
    let bucket = Arc::new(RemoteBucket::open(&location, true).unwrap());
    std::fs::File::create(folder.path().join("root")).unwrap().set_len(1 << 40).unwrap();
    let (_, _, environment) = simulated(18);
    let refused = |outcome: espalier_storage::Result<()>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("root") && error.to_string().contains("1099511627776"), "{error}");
    };
    for access in [Access::ReadOnly, Access::TakeOver] {
        refused(ObjectDevice::open(bucket.clone(), &environment, access, options()).map(drop));
    }
    refused(ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Replace));
}

/// The same in memory: the first get says so.
#[test]
fn a_simulated_object_that_was_cut_is_asked_for_once() {
    let (bucket, _, environment) = simulated(17);
    let options = Options { segment_blocks: 128, cache_bytes: 0, ahead_bytes: 0, ..options() };
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, options).unwrap();
    write(&device, 0, &[1; 128]);
    device.sync().unwrap();
    let segment = bucket.objects().into_iter().find(|(name, _)| name.starts_with("data")).unwrap();
    bucket.cut(&segment.0, 40 * BLOCK);
    let before = device.request_counts();
    let error = device.read_at(100 * BLOCK as u64, &mut AlignedBuf::zeroed(BLOCK)).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    let after = device.request_counts();
    assert_eq!((after.gets - before.gets, after.repeats), (1, before.repeats));
    // Nothing is left of it.
    bucket.cut(&segment.0, 0);
    for deep in [false, true] {
        let report = check_objects(bucket.clone(), &environment, &support::options(), deep).unwrap();
        assert_eq!(report.damaged.len(), 1, "{report:?}");
    }
}

/// A store that allows no deletes, as a policy without `s3:DeleteObject` does.
#[derive(Debug)]
struct Undeletable {
    bucket: Arc<SimulatedBucket>,
    refuses: AtomicBool,
}

impl Undeletable {
    fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { bucket: Arc::new(SimulatedBucket::new(seed)), refuses: AtomicBool::new(true) })
    }
}

impl Bucket for Undeletable {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        if matches!(request, Request::Delete { .. }) && self.refuses.load(Ordering::SeqCst) {
            return Box::new(Refused(FailureKind::Denied));
        }
        self.bucket.submit(request)
    }
}

/// Maintenance compacts and publishes though nothing may be deleted, and deletes once it may.
#[test]
fn refused_deletes_hold_up_nothing_else() {
    for budget in [Some(Duration::from_secs(60)), None] {
        let store = Undeletable::new(15);
        let clock = Arc::new(SimulatedEnvironment::new(15));
        let environment: Arc<dyn Environment> = clock.clone();
        let journal = Arc::new(SimulatedDevice::new(8 << 20, 15)) as Arc<dyn Device>;
        let options = Options {
            budget,
            journal: Some(journal),
            grace: Duration::ZERO,
            probe: false,
            cache_bytes: 0,
            ..options()
        };
        ObjectDevice::create(store.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
        let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options).unwrap();
        let begin = clock.monotonic();
        for tag in 1..=40 {
            write(&device, 0, &[tag; 60]);
            // Of each segment a part stays.
            write(&device, 100 * tag, &[tag; 4]);
            device.sync().unwrap();
            store.bucket.advance(30_000);
            clock.advance(Duration::from_secs(30));
            device.step().unwrap();
            assert_eq!(device.journal_usage().unwrap().waiting, 0);
        }
        assert!(clock.monotonic() - begin < Duration::from_secs(1300), "deletes were waited for");
        let usage = device.usage();
        let full = 32 * BLOCK as u64;
        assert!(usage.dead_objects > 20, "{usage:?}");
        assert!(usage.segment_bytes <= usage.live_bytes * 13 / 10 + full, "{usage:?}");
        store.refuses.store(false, Ordering::SeqCst);
        for _ in 0..60 {
            store.bucket.advance(30_000);
            clock.advance(Duration::from_secs(30));
            while device.step().unwrap() {}
        }
        assert_eq!(device.usage().dead_objects, 0);
        device.close().unwrap();
    }
}

/// A device that waits without end is closed although its maintenance is refused deletes.
#[test]
fn refused_deletes_do_not_keep_a_device_from_being_closed() {
    let store = Undeletable::new(16);
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(2));
    // Maintenance takes a step every 10 ms.
    let lease = Duration::from_millis(60);
    let options = Options { budget: None, lease, grace: Duration::ZERO, probe: false, ..options() };
    ObjectDevice::create(store.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
    let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options).unwrap();
    let mut tag = 0;
    while device.request_counts().deletes == 0 {
        tag += 1;
        write(&device, 0, &[tag; 40]);
        device.sync().unwrap();
        store.bucket.advance(1000);
    }
    device.close().unwrap();
    assert_eq!(read(&device, 0, 1), [tag]);
}
