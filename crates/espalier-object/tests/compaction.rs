//! Compaction that cannot read what it moves, or cannot upload it.

mod support;

use espalier_object::{
    Access, Bucket, Condition, Failure, FailureKind, ObjectDevice, Options, Present, Reply, Request,
    SimulatedBucket, Ticket, check_objects,
};
use espalier_storage::{BLOCK, Device, Environment, SimulatedEnvironment};
use espalier_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use support::{Bench, Ready, environment, options, read, write};

/// One sparse segment is damaged, or missing: it stays as it is, the others are compacted, and
/// nothing is uploaded again and again.
#[test]
fn a_segment_that_cannot_be_read_holds_up_no_other() {
    for (is_missing, at_header) in [(false, false), (false, true), (true, false)] {
        let bench = Bench::new(5, Options { grace: Duration::ZERO, cache_bytes: 0, ..options() });
        let blocks: u64 = 640;
        write(&bench.device, 0, &(1..=blocks).collect::<Vec<u64>>());
        bench.device.sync().unwrap();
        let data = |(name, _): &(String, u64)| name.starts_with("data/");
        let segments: Vec<(String, u64)> = bench.bucket.objects().into_iter().filter(data).collect();
        for start in (0..blocks).step_by(32) {
            bench.device.discard(start * BLOCK as u64, 24 * BLOCK as u64).unwrap();
        }
        bench.device.sync().unwrap();
        let (name, bytes) = &segments[8];
        match (is_missing, at_header) {
            (true, _) => bench.bucket.remove(name),
            (false, true) => assert!(bench.bucket.flip(name, 20, 1)),
            (false, false) => assert!(bench.bucket.flip(name, *bytes as usize * 3 / 4, 1)),
        }
        let before = bench.bucket.objects().len();
        let mut failed = 0;
        for step in 0..20 {
            bench.pass(30);
            failed += u32::from(bench.device.step().is_err());
            let now = bench.bucket.objects().len();
            // Copies are there before what they replace is deleted, and then no more.
            assert!(now <= before + 10 && (step < 10 || now < before), "{now} objects after {before}");
        }
        assert_eq!(failed, 0, "a damaged segment fails no step");
        let usage = bench.device.usage();
        assert_eq!(usage.unmovable_segments, 1);
        assert!(usage.segment_bytes < 10 * 32 * BLOCK as u64, "{usage:?}");
        let report = check_objects(bench.bucket.clone(), &bench.environment, &bench.options, true).unwrap();
        assert!(report.orphans.is_empty(), "{report:?}");
        for start in (0..blocks).step_by(32).filter(|start| *start != 8 * 32) {
            let expected: Vec<u64> = (start + 25..=start + 32).collect();
            assert_eq!(read(&bench.device, start + 24, 8), expected);
        }
        // Once all that was in it is overwritten, it is deleted like any other.
        write(&bench.device, 8 * 32, &[7; 32]);
        bench.device.sync().unwrap();
        bench.settle();
        assert_eq!(bench.device.usage().unmovable_segments, 0);
        assert!(bench.bucket.objects().iter().all(|(other, _)| other != name));
    }
}

/// A store misses segments for days, and finds them again: they are asked for now and then, and are
/// compacted once they are there.
#[test]
fn segments_that_were_missing_for_a_while_are_moved_later() {
    let bench = Bench::new(7, Options { grace: Duration::ZERO, cache_bytes: 0, ..options() });
    write_sparse(&bench.device, 640);
    let segments = bench.bucket.objects().into_iter().map(|(name, _)| name);
    let missed: Vec<Request> = segments
        .filter(|name| name.starts_with("data/"))
        .take(10)
        .map(|name| {
            let get = Request::Get { name: name.clone(), range: None };
            let Reply::Got(bytes, _) = bench.bucket.call(get).unwrap() else { panic!("no bytes") };
            bench.bucket.remove(&name);
            Request::Put { name, body: vec![bytes], condition: Condition::None }
        })
        .collect();
    bench.settle();
    assert_eq!(bench.device.usage().unmovable_segments, 10, "{:?}", bench.device.usage());
    let days = |days: usize| {
        for _ in 0..48 * days {
            bench.pass(1800);
            while bench.device.step().unwrap() {}
        }
    };
    let before = bench.device.request_counts().gets;
    days(7);
    let gets = bench.device.request_counts().gets - before;
    assert!((10..2000).contains(&gets), "{gets} gets");
    assert_eq!(bench.device.usage().unmovable_segments, 10);
    for put in missed {
        bench.bucket.call(put).unwrap();
    }
    days(2);
    let usage = bench.device.usage();
    assert!(usage.unmovable_segments == 0 && usage.segments < 8, "{usage:?}");
    for start in (0..640).step_by(32) {
        assert_eq!(read(&bench.device, start + 24, 8), (start + 25..=start + 32).collect::<Vec<u64>>());
    }
}

/// A store that takes no segments for a while, or takes them and says nothing.
#[derive(Debug)]
struct Unwilling {
    bucket: Arc<SimulatedBucket>,
    is_unwilling: AtomicBool,
    takes_effect: bool,
    /// What every delete fails with meanwhile.
    keeps: Option<FailureKind>,
}

impl Bucket for Unwilling {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let is_segment = request.changes() && request.name().starts_with("data/");
        let is_put = matches!(request, Request::Put { .. });
        if let (true, false, Some(kind)) = (self.is_unwilling.load(Ordering::Relaxed), is_put, self.keeps)
            && is_segment
        {
            return Box::new(Ready(Err(Failure::new(kind, "nothing is deleted now"))));
        }
        if is_segment && is_put && self.is_unwilling.load(Ordering::Relaxed) {
            if self.takes_effect {
                drop(self.bucket.call(request));
            }
            return Box::new(Ready(Err(Failure::new(FailureKind::Unknown, "the reply was lost"))));
        }
        self.bucket.submit(request)
    }
}

/// The uploads of a compaction fail: no caller has written what they have, so the device goes on.
#[test]
fn uploads_of_a_compaction_that_fail_end_nothing() {
    for takes_effect in [false, true] {
        let bucket = Arc::new(SimulatedBucket::new(6));
        let clock = Arc::new(SimulatedEnvironment::new(6));
        let environment: Arc<dyn Environment> = clock.clone();
        let options = Options { grace: Duration::ZERO, probe: false, cache_bytes: 0, ..options() };
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
        let is_unwilling = AtomicBool::new(false);
        let store = Arc::new(Unwilling { bucket: bucket.clone(), is_unwilling, takes_effect, keeps: None });
        let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options.clone()).unwrap();
        let blocks: u64 = 320;
        write(&device, 0, &(1..=blocks).collect::<Vec<u64>>());
        device.sync().unwrap();
        for start in (0..blocks).step_by(32) {
            device.discard(start * BLOCK as u64, 24 * BLOCK as u64).unwrap();
        }
        device.sync().unwrap();
        store.is_unwilling.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            assert!(device.step().is_err());
            assert_eq!(device.failure(), None);
        }
        store.is_unwilling.store(false, Ordering::Relaxed);
        let report = check_objects(bucket.clone(), &environment, &options, true).unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
        for _ in 0..10 {
            bucket.advance(30_000);
            clock.advance(Duration::from_secs(30));
            while device.step().unwrap() {}
        }
        assert!(device.usage().segments < 5, "{:?}", device.usage());
        for start in (0..blocks).step_by(32) {
            assert_eq!(read(&device, start + 24, 8), (start + 25..=start + 32).collect::<Vec<u64>>());
        }
        device.close().unwrap();
        let report = check_objects(bucket, &environment, &options, true).unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
    }
}

/// The uploads of a compaction fail, and so do the deletes of what arrived all the same. It is
/// deleted when the store allows that, by this mount or the next.
#[test]
fn what_was_uploaded_in_vain_is_deleted_once_that_is_possible() {
    for (kind, mounts_again) in
        [(FailureKind::Unknown, false), (FailureKind::Denied, false), (FailureKind::Unknown, true)]
    {
        let bucket = Arc::new(SimulatedBucket::new(8));
        let clock = Arc::new(SimulatedEnvironment::new(8));
        let environment: Arc<dyn Environment> = clock.clone();
        let options = Options { grace: Duration::ZERO, probe: false, cache_bytes: 0, ..options() };
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
        let store = Arc::new(Unwilling {
            bucket: bucket.clone(),
            is_unwilling: AtomicBool::new(false),
            takes_effect: true,
            keeps: Some(kind),
        });
        let open =
            || ObjectDevice::open(store.clone(), &environment, Access::Write, options.clone()).unwrap();
        let mut device = open();
        write_sparse(&device, 320);
        let names = || bucket.objects().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let before = names();
        store.is_unwilling.store(true, Ordering::Relaxed);
        assert!(device.step().is_err());
        let mut left = names();
        left.retain(|name| name.starts_with("data/") && !before.contains(name));
        assert!(!left.is_empty());
        store.is_unwilling.store(false, Ordering::Relaxed);
        if mounts_again {
            device.close().unwrap();
            device = open();
        }
        for _ in 0..60 {
            bucket.advance(30_000);
            clock.advance(Duration::from_secs(30));
            while device.step().unwrap() {}
        }
        let now = names();
        assert!(left.iter().all(|name| !now.contains(name)), "{left:?} is still in {now:?}");
        device.close().unwrap();
        let report = check_objects(bucket.clone(), &environment, &options, true).unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
    }
}

/// A store that notes which puts of segments give way.
#[derive(Debug)]
struct Noted {
    bucket: Arc<SimulatedBucket>,
    /// For each put of a segment, whether it gives way to those of callers.
    puts: Mutex<Vec<bool>>,
}

impl Noted {
    fn note(&self, request: &Request, gives_way: bool) {
        if request.name().starts_with("data/") && matches!(request, Request::Put { .. }) {
            self.puts.lock().push(gives_way);
        }
    }
}

impl Bucket for Noted {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        self.note(&request, false);
        self.bucket.submit(request)
    }

    fn submit_behind(&self, request: Request) -> Box<dyn Ticket> {
        self.note(&request, true);
        self.bucket.submit(request)
    }
}

#[test]
fn uploads_of_a_compaction_give_way_to_those_of_syncs() {
    let environment = environment(9);
    let bucket = Arc::new(SimulatedBucket::new(9));
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let store = Arc::new(Noted { bucket, puts: Mutex::default() });
    let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options()).unwrap();
    write_sparse(&device, 640);
    let of_syncs = std::mem::take(&mut *store.puts.lock());
    assert!(of_syncs.len() >= 20 && !of_syncs.contains(&true), "{of_syncs:?}");
    assert!(device.step().unwrap());
    let of_compaction = std::mem::take(&mut *store.puts.lock());
    assert!(of_compaction.len() >= 3 && !of_compaction.contains(&false), "{of_compaction:?}");
}

/// A store in which something happens before one of the requests of a compaction.
struct Between {
    bucket: Arc<SimulatedBucket>,
    /// Before which request, counted in those for which no lock of the device is held.
    at: AtomicUsize,
    happens: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Between")
    }
}

impl Bucket for Between {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let is_free = match &request {
            Request::Get { name, range: Some(range) } => name.starts_with("data/") && range.start == 0,
            Request::Put { name, .. } | Request::Delete { name } => name.starts_with("data/"),
            _ => false,
        };
        if is_free && self.happens.lock().is_some() {
            match self.at.load(Ordering::Relaxed) {
                0 => {
                    let happens = self.happens.lock().take();
                    happens.into_iter().for_each(|happens| happens());
                }
                left => self.at.store(left - 1, Ordering::Relaxed),
            }
        }
        self.bucket.submit(request)
    }
}

/// Before each request of a compaction, another caller changes what is being moved, and syncs; each
/// sync writes the map. Then another compaction takes its course, and what is dead is deleted.
/// The oracle: the device, and another one, find all that was written, and only what is there.
#[test]
fn checkpoints_of_the_map_beside_a_compaction_lose_no_move() {
    const BLOCKS: u64 = 320;
    for number in 0.. {
        let bucket = Arc::new(SimulatedBucket::new(number));
        let clock = Arc::new(SimulatedEnvironment::new(number));
        let environment: Arc<dyn Environment> = clock.clone();
        let options =
            Options { grace: Duration::ZERO, probe: false, cache_bytes: 0, delta_runs: 1, ..options() };
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
        let (at, happens) = (AtomicUsize::new(number as usize), Mutex::new(None));
        let store = Arc::new(Between { bucket: bucket.clone(), at, happens });
        let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options.clone()).unwrap();
        let device = Arc::new(device);
        write_sparse(&device, BLOCKS);
        let mut model: Vec<u64> =
            (0..BLOCKS).map(|block| if block % 32 < 24 { 0 } else { block + 1 }).collect();
        let maps = |bucket: &SimulatedBucket| {
            bucket.objects().iter().filter(|(name, _)| name.starts_with("map/")).count()
        };
        let other = Arc::clone(&device);
        let server = bucket.clone();
        let pass = move || {
            server.advance(30_000);
            clock.advance(Duration::from_secs(30));
        };
        let passes = pass.clone();
        *store.happens.lock() = Some(Box::new(move || {
            for (block, tag) in [(25, 1000), (60, 1001), (200, 1002)] {
                write(&other, block, &[tag]);
                other.sync().unwrap();
            }
            other.discard(90 * BLOCK as u64, 2 * BLOCK as u64).unwrap();
            other.sync().unwrap();
            for _ in 0..6 {
                passes();
                while other.step().unwrap() {}
            }
        }));
        assert!(maps(&bucket) > 0, "each sync writes the map");
        device.step().unwrap();
        let has_happened = store.happens.lock().take().is_none();
        if has_happened {
            for (block, tag) in [(25, 1000), (60, 1001), (200, 1002), (90, 0), (91, 0)] {
                model[block] = tag;
            }
        }
        for _ in 0..10 {
            pass();
            while device.step().unwrap() {}
        }
        assert_eq!(device.usage().unmovable_segments, 0);
        assert_eq!(read(&device, 0, BLOCKS as usize), model);
        let report = check_objects(bucket.clone(), &environment, &options, true).unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
        let reader = ObjectDevice::open(bucket, &environment, Access::ReadOnly, options).unwrap();
        assert_eq!(read(&reader, 0, BLOCKS as usize), model);
        if !has_happened {
            // There were ten headers, and uploads.
            assert!(number > 10, "{number}");
            break;
        }
    }
}

/// Segments of 32 blocks, of which the last eight stay.
fn write_sparse(device: &ObjectDevice, blocks: u64) {
    write(device, 0, &(1..=blocks).collect::<Vec<u64>>());
    device.sync().unwrap();
    for start in (0..blocks).step_by(32) {
        device.discard(start * BLOCK as u64, 24 * BLOCK as u64).unwrap();
    }
    device.sync().unwrap();
}
