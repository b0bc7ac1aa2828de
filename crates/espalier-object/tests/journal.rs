//! A writer with a journal: its process dies or the power fails at every change of store and
//! journal. The oracle: what is found is the content after some of the calls, at or after the last
//! sync that returned.
//!
//! `ESPALIER_SEED=7 cargo test -p espalier-object --test journal NAME` replays.

mod support;

use espalier_object::{
    Access, Bucket, BucketPoint, FailureKind, ObjectDevice, Options, Present, Request, SimulatedBucket,
    Ticket, Trouble, check_objects,
};
use espalier_storage::{
    AlignedBuf, BLOCK, CrashPoint, Device, Environment, ErrorKind, Fault, Operation, Random, Result,
    SimulatedDevice, SimulatedEnvironment,
};
use espalier_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use support::{Outage, block, options, read, seeds, tags, write};

const JOURNAL_BYTES: u64 = 4 << 20;
const WINDOW_BLOCKS: u64 = 120;

/// What blocks hold that are not zeros.
type Content = BTreeMap<u64, u64>;

/// A moment: the store and the journal.
type Point = (BucketPoint, CrashPoint);

/// Keeps the moments before changes of store and journal.
#[derive(Debug)]
struct Recorder {
    bucket: Arc<SimulatedBucket>,
    journal: Arc<SimulatedDevice>,
    one_in: Mutex<(u64, Random)>,
    points: Mutex<Vec<Point>>,
}

impl Recorder {
    fn record(&self) {
        let mut one_in = self.one_in.lock();
        let (often, random) = &mut *one_in;
        if random.one_in(*often) {
            self.points.lock().push((self.bucket.point(), self.journal.crash_point()));
        }
    }
}

#[derive(Debug)]
struct RecordedBucket(Arc<Recorder>);

impl Bucket for RecordedBucket {
    fn name(&self) -> &str {
        "simulated bucket"
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        if request.changes() {
            self.0.record();
        }
        self.0.bucket.submit(request)
    }
}

#[derive(Debug)]
struct RecordedJournal(Arc<Recorder>);

impl Device for RecordedJournal {
    fn name(&self) -> &str {
        "journal"
    }

    fn len(&self) -> u64 {
        self.0.journal.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.0.journal.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        self.0.record();
        self.0.journal.write_at(offset, buffers)
    }

    fn sync(&self) -> Result<()> {
        self.0.record();
        self.0.journal.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.0.journal.discard(offset, length)
    }
}

/// A store and a journal, and the clock of its writer.
struct World {
    recorder: Arc<Recorder>,
    clock: Arc<SimulatedEnvironment>,
    environment: Arc<dyn Environment>,
}

impl World {
    fn new(bucket: SimulatedBucket, journal: SimulatedDevice, seed: u64) -> Self {
        let clock = Arc::new(SimulatedEnvironment::new(seed));
        let one_in = Mutex::new((0, Random::new(seed)));
        let recorder = Recorder {
            bucket: Arc::new(bucket),
            journal: Arc::new(journal),
            one_in,
            points: Mutex::default(),
        };
        Self { recorder: Arc::new(recorder), environment: clock.clone(), clock }
    }

    fn open(&self, access: Access, options: &Options, journal: bool) -> Result<ObjectDevice> {
        let journal = journal.then(|| Arc::new(RecordedJournal(self.recorder.clone())) as Arc<dyn Device>);
        let bucket = Arc::new(RecordedBucket(self.recorder.clone()));
        ObjectDevice::open(bucket, &self.environment, access, Options { journal, ..options.clone() })
    }

    fn advance(&self, seconds: u64) {
        self.recorder.bucket.advance(seconds * 1000);
        self.clock.advance(Duration::from_secs(seconds));
    }

    fn take_points(&self) -> Vec<Point> {
        std::mem::take(&mut *self.recorder.points.lock())
    }
}

fn content(device: &ObjectDevice) -> Content {
    let found = read(device, 0, WINDOW_BLOCKS as usize);
    (0..).zip(found).filter(|(_, tag)| *tag != 0).collect()
}

struct Run {
    world: World,
    options: Options,
    device: ObjectDevice,
    random: Random,
    /// The content after each call, and the one that the last sync made durable.
    states: Vec<Content>,
    durable: usize,
    tag: u64,
}

impl Run {
    fn new(seed: u64, trouble: Trouble) -> Self {
        println!("ESPALIER_SEED={seed}");
        let mut random = Random::new(seed ^ 0x10a1);
        let bucket = SimulatedBucket::new(random.next_u64());
        let journal = SimulatedDevice::new(JOURNAL_BYTES, random.next_u64());
        let world = World::new(bucket, journal, random.next_u64());
        let options = Options {
            segment_blocks: *random.choose(&[4, 16, 32]),
            delta_runs: *random.choose(&[0, 24, 1000]),
            grace: Duration::from_secs(*random.choose(&[0, 600])),
            probe: true,
            ..options()
        };
        let bucket = world.recorder.bucket.clone();
        ObjectDevice::create(bucket.clone(), &world.environment, 1 << 28, &options, Present::Refuse).unwrap();
        let device = world.open(Access::Write, &options, true).unwrap();
        bucket.set_trouble(trouble);
        Self { world, options, device, random, states: vec![Content::new()], durable: 0, tag: 0 }
    }

    fn change(&mut self) {
        let start = self.random.below(WINDOW_BLOCKS);
        let most = if self.random.one_in(4) { WINDOW_BLOCKS } else { 6 };
        let blocks = 1 + self.random.below(most.min(WINDOW_BLOCKS - start));
        let mut state = self.states.last().unwrap().clone();
        if self.random.one_in(4) {
            self.device.discard(start * BLOCK as u64, blocks * BLOCK as u64).unwrap();
            state.retain(|number, _| !(start..start + blocks).contains(number));
        } else {
            let mut bytes = AlignedBuf::zeroed(blocks as usize * BLOCK);
            for (number, target) in (start..).zip(bytes.chunks_exact_mut(BLOCK)) {
                self.tag += 1;
                target.copy_from_slice(&block(self.tag));
                state.insert(number, self.tag);
            }
            let (head, rest) = bytes.split_at(self.random.below(blocks) as usize * BLOCK);
            let buffers: Vec<&[u8]> = [head, rest].into_iter().filter(|part| !part.is_empty()).collect();
            self.device.write_at(start * BLOCK as u64, &buffers).unwrap();
        }
        self.states.push(state);
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0..5 => self.change(),
            5..8 => {
                self.device.sync().unwrap();
                self.durable = self.states.len() - 1;
            }
            8 => {
                let (start, blocks) = (self.random.below(100), 1 + self.random.below(20));
                let mut bytes = AlignedBuf::zeroed(blocks as usize * BLOCK);
                self.device.read_at(start * BLOCK as u64, &mut bytes).unwrap();
                let state = self.states.last().unwrap();
                let expected = (start..start + blocks).map(|number| state.get(&number).copied().unwrap_or(0));
                assert_eq!(tags(&bytes), expected.collect::<Vec<u64>>());
            }
            _ => {
                let seconds = self.random.below(30);
                self.world.advance(seconds);
                // A delete that fails again and again is tried by the next step.
                if let Err(error) = self.device.step() {
                    assert_eq!(error.operation, Operation::Discard, "{error}");
                }
            }
        }
    }

    /// What a crash may leave that comes before the state of now.
    fn possible(&self, durable: usize) -> &[Content] {
        &self.states[durable..]
    }

    /// Another process finds store and journal as they were; `durable` had been synced.
    fn crash(&mut self, point: &Point, durable: usize) {
        let (seed, power_cut, lost) = (self.random.next_u64(), self.random.one_in(2), self.random.one_in(5));
        let journal = if power_cut { point.1.crash(seed) } else { point.1.kill() };
        let world = World::new(point.0.crash(seed), journal, seed);
        let possible = self.possible(durable);
        if lost {
            self.lose_journal(&world);
            return;
        }
        world.recorder.one_in.lock().0 = 3;
        // The lease of the one that died still runs.
        let device = world.open(Access::Write, &self.options, true).unwrap();
        let again = world.take_points();
        let found = content(&device);
        assert!(possible.contains(&found), "none of {} states", possible.len());
        // Work goes on, whatever is still on its way from the process that died.
        write(&device, 0, &[u64::MAX]);
        device.sync().unwrap();
        let mut after = found;
        after.insert(0, u64::MAX);
        for _ in 0..2 {
            world.advance(20);
            while device.step().unwrap() {}
        }
        assert_eq!(content(&device), after);
        device.close().unwrap();
        // A death while it was being opened.
        for (bucket, journal) in again.iter().take(2) {
            let world = World::new(bucket.crash(seed ^ 1), journal.crash(seed ^ 1), seed ^ 1);
            let found = content(&world.open(Access::Write, &self.options, true).unwrap());
            assert!(possible.contains(&found), "a death during recovery");
        }
        // What was closed in order needs no journal.
        let device = world.open(Access::Write, &self.options, false).unwrap();
        assert_eq!(content(&device), after);
        device.close().unwrap();
        let report = check_objects(world.recorder.bucket.clone(), &world.environment, &self.options, true);
        assert!(report.as_ref().unwrap().is_sound(), "{report:?}");
        world.open(Access::Write, &self.options, true).unwrap();
    }

    /// The store is taken over without the journal, which is never applied then.
    fn lose_journal(&self, world: &World) {
        let refused = world.open(Access::Write, &self.options, false).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
        let device = world.open(Access::TakeOver, &self.options, false).unwrap();
        let found = content(&device);
        assert!(self.states.contains(&found), "no state that there ever was");
        write(&device, 0, &[u64::MAX]);
        device.close().unwrap();
        let before = world.recorder.journal.image();
        for access in [Access::Write, Access::TakeOver] {
            match world.open(access, &self.options, true) {
                Err(error) => {
                    assert!(error.to_string().contains("the journal is kept"), "{error}");
                    assert!(before.blocks().eq(world.recorder.journal.image().blocks()), "it changed");
                }
                // It had nothing that the store does not have.
                Ok(device) => drop(device.close()),
            }
        }
        let device = world.open(Access::TakeOver, &self.options, false).unwrap();
        let mut after = found;
        after.insert(0, u64::MAX);
        assert_eq!(content(&device), after);
    }

    fn run(mut self, steps: usize, record_one_in: u64) {
        self.world.recorder.one_in.lock().0 = record_one_in;
        for _ in 0..steps {
            let durable = self.durable;
            self.step();
            for point in self.world.take_points() {
                self.crash(&point, durable);
            }
        }
        self.world.recorder.bucket.set_trouble(Trouble::default());
        assert_eq!(&content(&self.device), self.states.last().unwrap());
        self.device.close().unwrap();
        let device = self.world.open(Access::Write, &self.options, true).unwrap();
        assert_eq!(&content(&device), self.states.last().unwrap());
    }
}

#[test]
fn a_writer_dies_at_every_change() {
    for seed in seeds(&[], 8) {
        Run::new(seed, Trouble::default()).run(60, 1);
    }
}

#[test]
fn a_writer_dies_while_the_network_is_bad() {
    for seed in seeds(&[], 8) {
        Run::new(seed, Trouble::all(12)).run(60, 3);
    }
}

#[test]
fn long_histories_go_round_the_journal() {
    for seed in seeds(&[], 4) {
        Run::new(seed, Trouble::all(40)).run(500, 60);
    }
}

/// A sync that the journal cannot make durable waits for the store.
#[test]
fn a_journal_that_fails_is_not_used_and_loses_nothing() {
    for seed in seeds(&[], 40) {
        let mut run = Run::new(seed, Trouble::default());
        let operation = *run.random.choose(&[Operation::Write, Operation::Sync]);
        let nth = run.random.below(12);
        run.world.recorder.journal.inject(Fault::FailFrom { operation, nth });
        run.world.recorder.one_in.lock().0 = 10;
        for _ in 0..60 {
            let durable = run.durable;
            run.step();
            for point in run.world.take_points() {
                run.crash(&point, durable);
            }
        }
        assert!(!run.device.journal_usage().unwrap().works, "seed {seed}");
        run.device.sync().unwrap();
        run.durable = run.states.len() - 1;
        // Without the journal: the store has all of it.
        let found = content(&run.world.open(Access::TakeOver, &run.options, false).unwrap());
        assert_eq!(&found, run.states.last().unwrap(), "seed {seed}");
    }
}

/// The store is away: syncs go on until the journal is full, and nothing of them is lost.
#[test]
fn syncs_return_while_the_store_is_away() {
    let mut run = Run::new(3, Trouble::default());
    run.world.recorder.bucket.set_away(true);
    for _ in 0..50 {
        write(&run.device, 7, &[run.tag + 1]);
        run.device.sync().unwrap();
        run.tag += 1;
    }
    assert_eq!(run.device.journal_usage().unwrap().waiting, 50);
    let journal = run.world.recorder.journal.crash();
    run.world.recorder.bucket.set_away(false);
    let world = World::new(run.world.recorder.bucket.point().crash(1), journal, 1);
    let device = world.open(Access::Write, &run.options, true).unwrap();
    assert_eq!(read(&device, 7, 1), [50]);
}

/// The store is away for longer than any budget: the writer waits for it and syncs meanwhile, and
/// ends in time if it is to end.
#[test]
fn a_store_that_is_away_for_long_ends_no_writer_with_a_journal() {
    for kind in [FailureKind::Unknown, FailureKind::Denied] {
        let clock = Arc::new(SimulatedEnvironment::new(5));
        let environment: Arc<dyn Environment> = clock.clone();
        let store = Outage::new(Arc::new(SimulatedBucket::new(5)), clock.clone());
        let journal = Arc::new(SimulatedDevice::new(JOURNAL_BYTES, 5));
        let options = Options { journal: Some(journal.clone()), delta_runs: 0, ..options() };
        ObjectDevice::create(store.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
        let open = || ObjectDevice::open(store.clone(), &environment, Access::Write, options.clone());
        let device = open().unwrap();
        for round in 1..=5 {
            write(&device, round * 20_000, &[round]);
            device.sync().unwrap();
            store.begin(600, kind);
            let began = clock.monotonic();
            // A thread does so while callers sync; here the step waits until the store is back.
            device.step().unwrap();
            assert!(clock.monotonic() - began > Duration::from_secs(590), "it was not away");
            assert_eq!(device.journal_usage().unwrap().waiting, 0);
            device.discard(round * 20_000 * BLOCK as u64, BLOCK as u64).unwrap();
            device.sync().unwrap();
            store.begin(600, kind);
            device.step().unwrap();
        }
        assert_eq!(device.failure(), None);
        write(&device, 0, &[9]);
        device.sync().unwrap();
        store.begin(100_000, kind);
        let began = clock.monotonic();
        assert!(device.close().is_err());
        assert!(clock.monotonic() - began < Duration::from_secs(600), "an unmount has to end");
        drop(device);
        store.begin(0, kind);
        assert_eq!(read(&open().unwrap(), 0, 1), [9]);
    }
}

/// A journal that failed makes syncs wait for the store no longer than the budget.
#[test]
fn without_a_journal_that_works_a_sync_does_not_wait_for_ever() {
    let clock = Arc::new(SimulatedEnvironment::new(6));
    let environment: Arc<dyn Environment> = clock.clone();
    let store = Outage::new(Arc::new(SimulatedBucket::new(6)), clock.clone());
    let journal = Arc::new(SimulatedDevice::new(JOURNAL_BYTES, 6));
    let options = Options { journal: Some(journal.clone()), ..options() };
    ObjectDevice::create(store.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
    let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options).unwrap();
    journal.inject(Fault::FailFrom { operation: Operation::Sync, nth: 0 });
    write(&device, 0, &[1]);
    store.begin(100_000, FailureKind::Unknown);
    assert!(device.sync().is_err());
    assert!(clock.monotonic() < Duration::from_secs(1000));
}

/// What a file system discards when it is closed comes after its last sync.
#[test]
fn a_journal_that_was_closed_in_order_has_nothing_that_others_lack() {
    let run = Run::new(4, Trouble::default());
    write(&run.device, 0, &[1; 9]);
    run.device.sync().unwrap();
    run.device.discard(3 * BLOCK as u64, 2 * BLOCK as u64).unwrap();
    run.device.close().unwrap();
    // Another line of roots begins, so what the journal has would be refused.
    let other = run.world.open(Access::Write, &run.options, false).unwrap();
    assert_eq!(read(&other, 0, 9), [1, 1, 1, 0, 0, 1, 1, 1, 1]);
    other.close().unwrap();
    let device = run.world.open(Access::Write, &run.options, true).unwrap();
    assert_eq!(read(&device, 0, 9), [1, 1, 1, 0, 0, 1, 1, 1, 1]);
}

/// Several threads discard, and others write, on one device: the journal has all of it.
#[test]
fn discards_of_many_threads_lose_no_record() {
    const THREADS: u64 = 6;
    let run = Run::new(6, Trouble::default());
    let (device, window) = (&run.device, 2000);
    let model: Vec<Content> = std::thread::scope(|scope| {
        let work = |thread: u64| {
            let mut random = Random::new(thread);
            let mut model = Content::new();
            for round in 1..=8000 {
                let number = thread * window + random.below(window);
                // So seldom that discards often fill a record.
                if random.one_in(400) {
                    write(device, number, &[round]);
                    model.insert(number, round);
                } else {
                    device.discard(number * BLOCK as u64, BLOCK as u64).unwrap();
                    model.remove(&number);
                }
            }
            model
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    device.sync().unwrap();
    let journal = run.world.recorder.journal.crash();
    let world = World::new(run.world.recorder.bucket.point().crash(1), journal, 1);
    let again = world.open(Access::Write, &run.options, true).unwrap();
    let found = read(&again, 0, (THREADS * window) as usize);
    let found: Content = (0..).zip(found).filter(|(_, tag)| *tag != 0).collect();
    assert_eq!(found, model.into_iter().flatten().collect());
}

/// A discard that a root made durable is in a record only later: the store has that record, too.
#[test]
fn records_that_change_nothing_more_are_covered() {
    let run = Run::new(7, Trouble::default());
    let waiting = || run.device.journal_usage().unwrap().waiting;
    write(&run.device, 3, &[1, 2]);
    run.device.discard(3 * BLOCK as u64, BLOCK as u64).unwrap();
    run.device.step().unwrap();
    assert_eq!(waiting(), 0);
    run.device.sync().unwrap();
    assert_eq!(waiting(), 1);
    run.device.step().unwrap();
    assert_eq!(waiting(), 0);
    let puts = run.device.request_counts().puts;
    run.device.step().unwrap();
    assert_eq!(run.device.request_counts().puts, puts);
}

/// The record that says that the store has everything is behind the position of the root.
#[test]
fn a_journal_goes_on_behind_the_record_that_closed_it() {
    let run = Run::new(8, Trouble::default());
    write(&run.device, 0, &[1; 9]);
    run.device.close().unwrap();
    let device = run.world.open(Access::Write, &run.options, true).unwrap();
    write(&device, 0, &[2]);
    device.sync().unwrap();
    write(&device, 1, &[3]);
    device.sync().unwrap();
    // It dies before it publishes.
    let journal = run.world.recorder.journal.crash();
    let world = World::new(run.world.recorder.bucket.point().crash(1), journal, 1);
    let device = world.open(Access::Write, &run.options, true).unwrap();
    assert_eq!(read(&device, 0, 9), [2, 3, 1, 1, 1, 1, 1, 1, 1]);
}

/// One block of a journal rots, or cannot be read, while the store is behind it.
#[test]
fn damage_of_a_journal_keeps_the_store_from_being_opened() {
    for unreadable in [false, true] {
        let run = Run::new(9, Trouble::default());
        for tag in 1..=40 {
            write(&run.device, tag, &[tag]);
            run.device.sync().unwrap();
        }
        let journal = run.world.recorder.journal.crash();
        // Head and block of the 20th record.
        let damaged = (1 + 2 * 19 + 1) * BLOCK as u64;
        if unreadable {
            journal.inject(Fault::Unreadable(damaged..damaged + 1));
        } else {
            journal.flip(damaged + 5, 4);
        }
        let before = journal.image();
        let world = World::new(run.world.recorder.bucket.point().crash(1), journal, 1);
        let error = world.open(Access::Write, &run.options, true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Io, "{error}");
        assert!(before.blocks().eq(world.recorder.journal.image().blocks()), "it changed");
        if !unreadable {
            assert!(error.to_string().contains("record 20 was synced"), "{error}");
        }
    }
}
