//! What is stored beside what is live; what is deleted, and when.

mod support;

use espalier_object::{
    Access, Bucket, Condition, ObjectDevice, Options, Present, RemoteBucket, Request, check_objects,
};
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, Random, SystemEnvironment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{Bench, options, read, write};

/// Random overwrites and discards, as a file system makes them, in large and in small pieces.
#[test]
fn stored_bytes_stay_below_a_bound_of_the_live_ones() {
    for seed in 1..=3 {
        let bench = Bench::new(seed, options());
        let segment = u64::from(bench.options.segment_blocks) * BLOCK as u64;
        let mut random = Random::new(seed);
        for round in 0..1500u64 {
            let start = random.below(2000);
            let blocks = if random.one_in(8) { 1 + random.below(64) } else { 1 + random.below(4) };
            if random.one_in(4) {
                bench.device.discard(start * BLOCK as u64, blocks * BLOCK as u64).unwrap();
            } else {
                write(&bench.device, start, &vec![round + 1; blocks as usize]);
            }
            if random.one_in(3) {
                bench.device.sync().unwrap();
            }
            if random.one_in(10) {
                bench.pass(20);
                bench.device.step().unwrap();
            }
            if round % 100 == 99 {
                while bench.device.step().unwrap() {}
                let usage = bench.device.usage();
                let bound = usage.live_bytes * 13 / 10 + segment;
                assert!(usage.segment_bytes <= bound, "seed {seed}, round {round}: {usage:?}");
            }
        }
        bench.device.sync().unwrap();
        bench.settle();
        let usage = bench.device.usage();
        assert_eq!((usage.dead_objects, usage.dead_bytes), (0, 0), "{usage:?}");
        // On the server there is nothing else: neither segments nor maps pile up.
        let bound = usage.live_bytes * 13 / 10 + segment + 2 * usage.map_bytes + (64 << 10);
        assert!(bench.stored() <= bound, "{} stored, {usage:?}", bench.stored());
        // At most 64 are smaller than a sixteenth of a full one.
        let few = usage.segment_bytes * 16 / segment + 64;
        assert!(usage.segments <= few, "{usage:?}");
        let report = check_objects(bench.bucket.clone(), &bench.environment, &bench.options, true).unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
    }
}

/// A reader that opened before everything was replaced reads what it opened, for the grace time,
/// and gets an error and no other bytes after it.
#[test]
fn a_slow_reader_reads_what_it_opened_for_the_grace_time() {
    let bench = Bench::new(1, options());
    let before: Vec<u64> = (1..200).collect();
    write(&bench.device, 0, &before);
    bench.device.sync().unwrap();
    let reader = || {
        let options = Options { cache_bytes: 0, ..bench.options.clone() };
        ObjectDevice::open(bench.bucket.clone(), &bench.environment, Access::ReadOnly, options).unwrap()
    };
    let reader = reader();
    write(&bench.device, 0, &vec![7; before.len()]);
    bench.device.sync().unwrap();
    while bench.device.step().unwrap() {}
    // Not a moment before the grace time is over.
    for _ in 0..19 {
        bench.pass(30);
        bench.device.step().unwrap();
        assert_eq!(read(&reader, 0, before.len()), before);
    }
    bench.settle();
    let mut buffer = AlignedBuf::zeroed(before.len() * BLOCK);
    let error = reader.read_at(0, &mut buffer).unwrap_err();
    assert!(error.to_string().contains("deleted"), "{error}");
    assert_eq!(read(&bench.device, 0, before.len()), vec![7; before.len()]);
}

/// Reads go on while what they read is compacted away and deleted.
#[test]
fn reads_of_the_writer_survive_compaction() {
    let bench = Bench::new(2, Options { grace: Duration::ZERO, cache_bytes: 0, ..options() });
    let blocks = 640;
    write(&bench.device, 0, &(0..blocks).map(|number| number + 1).collect::<Vec<u64>>());
    bench.device.sync().unwrap();
    // Of each segment most goes.
    for start in (0..blocks).step_by(32) {
        bench.device.discard(start * BLOCK as u64, 24 * BLOCK as u64).unwrap();
    }
    bench.device.sync().unwrap();
    let before = bench.device.usage();
    bench.settle();
    let after = bench.device.usage();
    assert!(after.segment_bytes * 2 < before.segment_bytes, "{before:?}, {after:?}");
    for start in (0..blocks).step_by(32) {
        assert_eq!(read(&bench.device, start, 24), [0; 24]);
        let expected: Vec<u64> = (start + 25..=start + 32).collect();
        assert_eq!(read(&bench.device, start + 24, 8), expected);
    }
}

/// Tells a thread to end, when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One thread compacts all the time, another replaces blocks and syncs meanwhile: a copy that was
/// made of the old ones never takes the place of the new ones.
#[test]
fn compaction_beside_a_writer_brings_nothing_old_back() {
    let bucket = Arc::new(RemoteBucket::in_memory().unwrap());
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
    let options = Options { probe: false, cache_bytes: 0, ..options() };
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, options.clone()).unwrap();
    let mut model = vec![0; 512];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                device.step().unwrap();
            }
        });
        // Also when something is wrong: else the other thread has no end.
        let _end = Ends(&done);
        let mut random = Random::new(4);
        for round in 1..=3000u64 {
            let start = random.index(model.len());
            let blocks = 1 + random.index(4.min(model.len() - start));
            model[start..start + blocks].fill(round);
            write(&device, start as u64, &model[start..start + blocks]);
            if random.one_in(2) {
                device.sync().unwrap();
            }
            if round % 50 == 0 {
                assert_eq!(read(&device, 0, model.len()), model, "round {round}");
            }
        }
    });
    device.close().unwrap();
    let reader = ObjectDevice::open(bucket, &environment, Access::ReadOnly, options).unwrap();
    assert_eq!(read(&reader, 0, model.len()), model);
}

#[test]
fn orphans_of_a_writer_that_died_are_found_and_deleted() {
    let bench = Bench::new(3, options());
    write(&bench.device, 0, &[1; 100]);
    bench.device.sync().unwrap();
    // Sealed and uploaded, and named by no root.
    write(&bench.device, 0, &[2; 100]);
    let Bench { bucket, environment, options, device, .. } = bench;
    drop(device);
    let bucket = Arc::new(bucket.point().crash(1));
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::TakeOver, options.clone()).unwrap();
    let report = check_objects(bucket.clone(), &environment, &options, true).unwrap();
    assert!(report.is_sound());
    assert!(!report.old_orphans.is_empty(), "{:?}", bucket.objects());
    device.delete_orphans(&report.old_orphans).unwrap();
    // A name of something in use, and one of this epoch, are left alone.
    let names: Vec<String> = bucket.objects().into_iter().map(|(name, _)| name).collect();
    device.delete_orphans(&names).unwrap();
    let report = check_objects(bucket, &environment, &options, true).unwrap();
    assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
    assert_eq!(read(&device, 0, 100), [1; 100]);
}

/// A process died while it tried the server: what it left is found, and deleted a day later.
#[test]
fn objects_of_a_probe_that_died_are_found_and_deleted() {
    let bench = Bench::new(4, options());
    let name = "probe/0123456789abcdef-contested";
    // What lies there beside it is none of the store's.
    let foreign = ["probe/0123456789abcdef-contested.csv", "probe/run1.csv"];
    for name in foreign.iter().chain([&name]) {
        let put = Request::Put { name: (*name).into(), body: Vec::new(), condition: Condition::None };
        bench.bucket.call(put).unwrap();
    }
    let check = || check_objects(bench.bucket.clone(), &bench.environment, &bench.options, false).unwrap();
    let report = check();
    assert!(report.is_sound() && report.strangers == foreign, "{report:?}");
    assert_eq!((report.orphans, report.old_orphans), (vec![(name.to_owned(), 0)], Vec::new()));
    bench.pass(25 * 3600);
    bench.device.step().unwrap();
    let report = check();
    assert_eq!(report.old_orphans, [name]);
    let all: Vec<String> = report.old_orphans.iter().cloned().chain(foreign.map(String::from)).collect();
    bench.device.delete_orphans(&all).unwrap();
    let report = check();
    assert!(report.orphans.is_empty() && report.strangers == foreign, "{report:?}");
}
