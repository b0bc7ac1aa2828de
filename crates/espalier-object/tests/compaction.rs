//! Compaction that cannot read what it moves, or cannot upload it.

mod support;

use espalier_object::{
    Access, Bucket, Failure, FailureKind, ObjectDevice, Options, Present, Request, SimulatedBucket, Ticket,
    check_objects,
};
use espalier_storage::{BLOCK, Device, Environment, SimulatedEnvironment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{Ready, options, read, write};

struct Bench {
    bucket: Arc<SimulatedBucket>,
    simulated: Arc<SimulatedEnvironment>,
    environment: Arc<dyn Environment>,
    options: Options,
    device: ObjectDevice,
}

impl Bench {
    fn new(seed: u64, options: Options) -> Self {
        let bucket = Arc::new(SimulatedBucket::new(seed));
        let simulated = Arc::new(SimulatedEnvironment::new(seed));
        let environment: Arc<dyn Environment> = simulated.clone();
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
        let device =
            ObjectDevice::open(bucket.clone(), &environment, Access::Write, options.clone()).unwrap();
        Self { bucket, simulated, environment, options, device }
    }

    fn pass(&self, seconds: u64) {
        self.bucket.advance(seconds * 1000);
        self.simulated.advance(Duration::from_secs(seconds));
    }

    /// Lets maintenance do all that there is to do, some time after each step.
    fn settle(&self) {
        for _ in 0..60 {
            self.pass(30);
            while self.device.step().unwrap() {}
        }
    }
}

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

/// A store that takes no segments for a while, or takes them and says nothing.
#[derive(Debug)]
struct Unwilling {
    bucket: Arc<SimulatedBucket>,
    is_unwilling: AtomicBool,
    takes_effect: bool,
}

impl Bucket for Unwilling {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let is_segment = request.changes() && request.name().starts_with("data/");
        let is_put = matches!(request, Request::Put { .. });
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
        let store = Arc::new(Unwilling { bucket: bucket.clone(), is_unwilling, takes_effect });
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
