//! Two writers: leases, take-over, races, and servers that do not honour conditions.

mod support;

use espalier_object::{
    Access, Bucket, Condition, Failure, FailureKind, Location, ObjectDevice, ObjectFacts, Options, Present,
    RemoteBucket, Reply, Request, SimulatedBucket, Ticket, Trouble, Version,
};
use espalier_storage::{
    Device, Environment, ErrorKind, OperationCounts, Random, SimulatedDevice, SimulatedEnvironment,
    SystemEnvironment,
};
use espalier_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{Ready, block, options, read, write};

fn simulated(seed: u64) -> (Arc<SimulatedBucket>, Arc<SimulatedEnvironment>, Arc<dyn Environment>) {
    let environment = Arc::new(SimulatedEnvironment::new(seed));
    (Arc::new(SimulatedBucket::new(seed)), environment.clone(), environment)
}

fn named(host: &str) -> Options {
    Options { host: host.into(), ..options() }
}

#[test]
fn a_lease_keeps_others_out_until_it_runs_out_or_is_given_back() {
    let (bucket, simulated, environment) = simulated(1);
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let open = |host, access| ObjectDevice::open(bucket.clone(), &environment, access, named(host));
    let first = open("first", Access::Write).unwrap();
    let error = open("second", Access::Write).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.to_string().contains("on first") && error.to_string().contains("--take-over"), "{error}");
    // A writer that is idle renews its lease.
    for _ in 0..10 {
        bucket.advance(25_000);
        simulated.advance(Duration::from_secs(25));
        first.step().unwrap();
    }
    assert_eq!(open("second", Access::Write).unwrap_err().kind, ErrorKind::Busy);
    write(&first, 0, &[1]);
    first.sync().unwrap();
    // One that is dead does not. Clocks of machines are not looked at, only the server's.
    bucket.advance(59_000);
    simulated.advance(Duration::from_secs(7_000_000));
    assert_eq!(open("second", Access::Write).unwrap_err().kind, ErrorKind::Busy);
    bucket.advance(2_000);
    let second = open("second", Access::Write).unwrap();
    assert_eq!(read(&second, 0, 1), [1]);
    second.close().unwrap();
    open("third", Access::Write).unwrap();
}

#[test]
fn a_writer_that_was_fenced_makes_nothing_durable_and_says_why() {
    let (bucket, simulated, environment) = simulated(2);
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let open = |host, access| ObjectDevice::open(bucket.clone(), &environment, access, named(host)).unwrap();
    let first = open("first", Access::Write);
    write(&first, 0, &[1, 1]);
    first.sync().unwrap();
    write(&first, 0, &[2]);
    let second = open("second", Access::TakeOver);
    write(&second, 1, &[3]);
    second.sync().unwrap();
    let error = first.sync().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(error.to_string().contains("on second took the store over"), "{error}");
    assert!(first.is_fenced());
    for error in
        [first.sync().unwrap_err(), first.write_at(0, &[&block(4)]).unwrap_err(), first.close().unwrap_err()]
    {
        assert!(error.kind == ErrorKind::Io && error.to_string().contains("on second"), "{error}");
    }
    assert!(first.step().is_err());
    assert_eq!(read(&second, 0, 2), [1, 3]);
    // Also one that only renews finds out.
    let third = open("third", Access::TakeOver);
    simulated.advance(Duration::from_secs(30));
    assert!(second.step().is_err());
    assert!(second.is_fenced());
    drop((first, second));
    assert_eq!(read(&third, 0, 2), [1, 3]);
}

/// A store whose root is copied in place now and then: the same bytes, in another version. It may
/// also spell the version that a put gave otherwise than a get does.
#[derive(Debug)]
struct Copied {
    bucket: Arc<SimulatedBucket>,
    copies: AtomicUsize,
    puts_spell: &'static str,
}

impl Copied {
    fn told(&self, version: Option<Version>, before: &str) -> Option<Version> {
        let copies = self.copies.load(Ordering::SeqCst);
        version.map(|version| Version(format!("{before}{copies}~{}", version.0)))
    }
}

impl Bucket for Copied {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, mut request: Request) -> Box<dyn Ticket> {
        if request.name() != "root" {
            return self.bucket.submit(request);
        }
        if let Request::Put { condition: Condition::Matches(version), .. } = &mut request {
            let now = format!("{}~", self.copies.load(Ordering::SeqCst));
            let Some(known) = version.0.strip_prefix(&now) else {
                return Box::new(Ready(Err(Failure::new(FailureKind::Condition, "412"))));
            };
            *version = Version(known.to_owned());
        }
        let outcome = self.bucket.call(request).map(|reply| match reply {
            Reply::Put(version) => Reply::Put(self.told(version, self.puts_spell)),
            Reply::Got(bytes, facts) => {
                let version = self.told(facts.version.clone(), "");
                Reply::Got(bytes, ObjectFacts { version, ..facts })
            }
            other => other,
        });
        Box::new(Ready(outcome))
    }
}

/// The root gets another version, and is the same: what has its nonce is what the writer builds on.
#[test]
fn a_root_that_was_copied_in_place_locks_no_writer_out() {
    for (budget, puts_spell) in
        [(Some(Duration::from_secs(60)), ""), (Some(Duration::from_secs(60)), "W/"), (None, ""), (None, "W/")]
    {
        let (bucket, clock, environment) = simulated(3);
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        let store = Arc::new(Copied { bucket, copies: AtomicUsize::new(0), puts_spell });
        let open = |host, access| {
            let options = Options { probe: false, budget, ..named(host) };
            ObjectDevice::open(store.clone(), &environment, access, options).unwrap()
        };
        let copy = || store.copies.fetch_add(1, Ordering::SeqCst);
        let first = open("first", Access::Write);
        for tag in 1..5 {
            copy();
            write(&first, 0, &[tag]);
            first.sync().unwrap();
            copy();
            clock.advance(Duration::from_secs(30));
            first.step().unwrap();
        }
        assert!(clock.monotonic() < Duration::from_secs(200), "{:?}", clock.monotonic());
        copy();
        let second = open("second", Access::TakeOver);
        assert_eq!(read(&second, 0, 1), [4]);
        copy();
        write(&first, 0, &[9]);
        assert!(first.sync().is_err() && first.is_fenced());
        write(&second, 0, &[5]);
        second.close().unwrap();
        assert_eq!(read(&open("third", Access::ReadOnly), 0, 1), [5]);
    }
}

/// One writer after the other takes over while the others go on writing, on a bad network. The
/// oracle: a sync that returned is in what each later writer finds.
#[test]
fn syncs_of_writers_that_race_are_kept() {
    for seed in 1..=40 {
        let (bucket, _, environment) = simulated(seed);
        let mut random = Random::new(seed);
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        let open = || {
            ObjectDevice::open(
                bucket.clone(),
                &environment,
                Access::TakeOver,
                Options { probe: false, ..options() },
            )
        };
        bucket.set_trouble(Trouble::all(10));
        // Each writer counts in block 0; what one has synced is never less for another.
        let mut writers = vec![open().unwrap()];
        let mut acknowledged = 0;
        for _ in 0..60 {
            if random.one_in(6) {
                let writer = open().unwrap();
                let found = read(&writer, 0, 1)[0];
                assert!(found >= acknowledged, "seed {seed}: {found} after {acknowledged}");
                writers.push(writer);
            }
            let writer = random.choose(&writers);
            let next = read(writer, 0, 1)[0] + 1;
            if writer.write_at(0, &[&block(next)]).is_ok() && writer.sync().is_ok() {
                assert!(next > acknowledged, "seed {seed}: {next} was synced after {acknowledged}");
                acknowledged = next;
            }
        }
        bucket.set_trouble(Trouble::default());
        assert!(read(&open().unwrap(), 0, 1)[0] >= acknowledged, "seed {seed}");
    }
}

/// An opener's view of a store whose writer syncs before each of the opener's claims.
#[derive(Debug)]
struct Contested {
    bucket: Arc<SimulatedBucket>,
    writer: ObjectDevice,
    /// Syncs to come.
    left: AtomicUsize,
    acknowledged: AtomicUsize,
    /// The opener's journal, and what had been done on it at each request for the root.
    journal: Arc<SimulatedDevice>,
    at_roots: Mutex<Vec<OperationCounts>>,
}

impl Contested {
    fn write_and_sync(&self) -> espalier_storage::Result<()> {
        let next = self.acknowledged.load(Ordering::SeqCst) + 1;
        self.writer.write_at(0, &[&block(next as u64)])?;
        self.writer.sync()?;
        self.acknowledged.store(next, Ordering::SeqCst);
        Ok(())
    }
}

impl Bucket for Contested {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let take = |left: usize| left.checked_sub(1);
        if request.name() == "root" {
            self.at_roots.lock().push(self.journal.counts());
        }
        if request.name() == "root"
            && request.changes()
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
        {
            self.write_and_sync().unwrap();
        }
        self.bucket.submit(request)
    }
}

/// Two writers that are both alive: the first one syncs before each claim of the second one, and
/// goes on after the claim that came in time. If the second one has a journal, no claim waits for
/// that: it begins before the root is read that the first claim names.
#[test]
fn a_busy_writer_is_ended_by_a_take_over_and_loses_no_sync() {
    for (syncs, has_journal) in [0, 1, 19, 100].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let (bucket, clock, environment) = simulated(4);
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        let open = |bucket, host, journal: Option<&Arc<SimulatedDevice>>| {
            let journal = journal.map(|journal| Arc::clone(journal) as Arc<dyn Device>);
            let options = Options { probe: false, journal, ..named(host) };
            ObjectDevice::open(bucket, &environment, Access::TakeOver, options).unwrap()
        };
        let writer = open(bucket.clone() as Arc<dyn Bucket>, "first", None);
        let store = Arc::new(Contested {
            bucket,
            writer,
            left: AtomicUsize::new(syncs),
            acknowledged: AtomicUsize::new(0),
            journal: Arc::new(SimulatedDevice::new(4 << 20, 4)),
            at_roots: Mutex::default(),
        });
        store.write_and_sync().unwrap();
        let began = clock.monotonic();
        let journal = has_journal.then_some(&store.journal);
        let second = open(store.clone() as Arc<dyn Bucket>, "second", journal);
        let at_roots = std::mem::take(&mut *store.at_roots.lock());
        let of_claims = &at_roots[usize::from(has_journal)..];
        assert!(of_claims.len() > 2 * syncs, "a look and a put for each claim");
        assert_eq!(of_claims[0].syncs, u64::from(has_journal));
        assert!(of_claims.iter().all(|counts| *counts == of_claims[0]), "{of_claims:?}");
        assert!(clock.monotonic() - began < options().lease, "the first writer is ended in its lease");
        let acknowledged = store.acknowledged.load(Ordering::SeqCst);
        assert_eq!(acknowledged, syncs + 1);
        assert_eq!(read(&second, 0, 1), [acknowledged as u64]);
        // The first one is not told. Its next sync fails, and so does all that follows.
        for _ in 0..2 {
            let error = store.write_and_sync().unwrap_err();
            assert!(error.kind == ErrorKind::Io && error.to_string().contains("on second"), "{error}");
        }
        assert!(store.writer.is_fenced());
        second.sync().unwrap();
        assert_eq!(read(&second, 0, 1), [acknowledged as u64]);
    }
}

/// Threads with a device each, on stores that several may use at once. Of those that begin from one
/// root, exactly one goes on.
#[test]
fn of_writers_that_open_together_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let location = Location::Directory(directory.path().join("store"));
    let stores: [Arc<dyn Bucket>; 2] = [
        Arc::new(RemoteBucket::in_memory().unwrap()),
        Arc::new(RemoteBucket::open(&location, true).unwrap()),
    ];
    for bucket in stores {
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(2));
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        for round in 1..=5 {
            let (won, synced) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let all_tried = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for writer in 0..4 {
                    let (bucket, environment, won, synced, all_tried) =
                        (&bucket, &environment, &won, &synced, &all_tried);
                    scope.spawn(move || {
                        let options = named(&format!("writer {writer}"));
                        match ObjectDevice::open(bucket.clone(), environment, Access::Write, options) {
                            Ok(device) => {
                                won.fetch_add(1, Ordering::SeqCst);
                                write(&device, round * 4 + writer, &[round]);
                                all_tried.wait();
                                device.close().unwrap();
                                synced.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(error) => {
                                all_tried.wait();
                                assert_eq!(error.kind, ErrorKind::Busy, "{error}");
                            }
                        }
                    });
                }
            });
            assert_eq!((won.into_inner(), synced.into_inner()), (1, 1), "round {round}");
        }
    }
}

/// Writers take the store from each other as fast as they can, in threads: what was synced last is
/// there in the end.
#[test]
fn take_overs_at_the_same_time_lose_no_sync() {
    let bucket: Arc<dyn Bucket> = Arc::new(RemoteBucket::in_memory().unwrap());
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(2));
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let threads = 4;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (bucket, environment) = (&bucket, &environment);
            scope.spawn(move || {
                let mut acknowledged = 0;
                for _ in 0..15 {
                    let options = Options { probe: false, ..named("racer") };
                    let Ok(device) =
                        ObjectDevice::open(bucket.clone(), environment, Access::TakeOver, options)
                    else {
                        continue;
                    };
                    // Every writer has a block of its own, which no other changes.
                    assert_eq!(read(&device, thread, 1)[0], acknowledged, "thread {thread}");
                    let next = acknowledged + 1;
                    write(&device, thread, &[next]);
                    match device.sync() {
                        Ok(()) => acknowledged = next,
                        Err(error) => assert!(device.is_fenced(), "{error}"),
                    }
                }
            });
        }
    });
}

#[test]
fn a_server_that_does_not_honour_conditions_is_refused() {
    for seed in 1..=20 {
        let (bucket, _, environment) = simulated(seed);
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        // Always, and now and then.
        for ignore_condition in [1, 3] {
            bucket.set_trouble(Trouble { ignore_condition, ..Trouble::default() });
            for access in [Access::Write, Access::TakeOver] {
                let error = ObjectDevice::open(bucket.clone(), &environment, access, options()).unwrap_err();
                assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("does not honour"), "{error}");
            }
            // Reading is harmless.
            ObjectDevice::open(bucket.clone(), &environment, Access::ReadOnly, options()).unwrap();
        }
    }
}
