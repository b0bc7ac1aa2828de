//! How often an opener, a writer and a reader wait for an answer, counted in rounds: requests that
//! begin when the one before has been answered.

mod support;

use espalier_object::{Access, ObjectDevice, Options, Present, SimulatedBucket, check_objects};
use espalier_storage::{BLOCK, Device, Environment};
use std::sync::Arc;
use support::{environment, options, read, write};

/// Blocks of a page of the map.
const PAGE_BLOCKS: u64 = 16384;
const PAGES: u64 = 40;

struct Store {
    bucket: Arc<SimulatedBucket>,
    environment: Arc<dyn Environment>,
}

impl Store {
    /// One whose map has many pages, in some objects, and whose root has a delta.
    fn made() -> Self {
        let (bucket, environment) = (Arc::new(SimulatedBucket::new(1)), environment(1));
        ObjectDevice::create(bucket.clone(), &environment, 16 << 30, &options(), Present::Refuse).unwrap();
        let store = Self { bucket, environment };
        let device = store.open(options(), Access::Write);
        for page in 0..PAGES {
            write(&device, page * PAGE_BLOCKS, &[page + 1; 3]);
            if page % 4 == 0 {
                device.sync().unwrap();
            }
        }
        device.sync().unwrap();
        write(&device, 5, &[77]);
        device.sync().unwrap();
        device.close().unwrap();
        assert!(device.usage().map_objects > 0);
        store
    }

    fn open(&self, options: Options, access: Access) -> ObjectDevice {
        ObjectDevice::open(self.bucket.clone(), &self.environment, access, options).unwrap()
    }

    /// The rounds that something takes.
    fn rounds<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.bucket.rounds();
        let done = work();
        (done, self.bucket.rounds() - before)
    }

    fn check(&self, device: &ObjectDevice) {
        let found: Vec<u64> = (0..PAGES).map(|page| read(device, page * PAGE_BLOCKS, 1)[0]).collect();
        assert_eq!(found, (1..=PAGES).collect::<Vec<u64>>());
        assert_eq!(read(device, 5, 1), [77]);
    }
}

#[test]
fn an_opener_waits_for_three_answers() {
    let store = Store::made();
    let (device, rounds) = store.rounds(|| store.open(options(), Access::Write));
    assert_eq!(rounds, 3);
    // Root, directory, object table, what the probe gets, and the pages, which lie close together.
    let counts = device.request_counts();
    assert!(counts.gets <= 10, "{counts:?}");
    let (_, rounds) = store.rounds(|| store.check(&device));
    // The map is there: each block is one get.
    assert!(rounds <= PAGES + 1, "{rounds}");
    device.close().unwrap();
    let (reader, rounds) = store.rounds(|| store.open(options(), Access::ReadOnly));
    assert_eq!(rounds, 3);
    store.check(&reader);
    // Without a map and a probe there are the root and the claim.
    let (bucket, environment) = (Arc::new(SimulatedBucket::new(1)), environment(1));
    let options = Options { probe: false, ..options() };
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
    let empty = Store { bucket, environment };
    let (_, rounds) = empty.rounds(|| empty.open(options, Access::Write));
    assert_eq!(rounds, 2);
}

#[test]
fn probes_leave_nothing_behind() {
    let store = Store::made();
    for access in [Access::Write, Access::TakeOver] {
        let device = store.open(options(), access);
        // The lease is another writer's now.
        ObjectDevice::open(store.bucket.clone(), &store.environment, Access::Write, options()).unwrap_err();
        drop(device);
        store.bucket.advance(120_000);
    }
    let left: Vec<_> =
        store.bucket.objects().into_iter().filter(|(name, _)| name.starts_with("probe")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_sync_waits_for_two_answers_whatever_was_written_before() {
    let store = Store::made();
    let device = store.open(
        Options { delta_runs: 4096, resident_bytes: 1 << 30, ahead_bytes: 0, ..options() },
        Access::Write,
    );
    store.bucket.take_most_under_way();
    let ((), rounds) = store.rounds(|| {
        // Six segments of 32 blocks, and a part of one.
        write(&device, 0, &[9; 200]);
        device.sync().unwrap();
    });
    assert_eq!(rounds, 2);
    assert_eq!(store.bucket.take_most_under_way(), 7);
    assert!(device.keeps_order());
    assert_eq!(device.len(), 16 << 30);
    let mut buffer = espalier_storage::AlignedBuf::zeroed(BLOCK);
    device.read_at(199 * BLOCK as u64, &mut buffer).unwrap();
    assert_eq!(support::tags(&buffer), [9]);
}

#[test]
fn a_check_asks_for_many_objects_at_a_time() {
    let store = Store::made();
    let device = store.open(options(), Access::Write);
    write(&device, 0, &vec![9; 32 * 60]);
    device.close().unwrap();
    for (deep, side_by_side) in [(false, 16), (true, 4)] {
        store.bucket.take_most_under_way();
        let check = || check_objects(store.bucket.clone(), &store.environment, &options(), deep).unwrap();
        let (report, rounds) = store.rounds(check);
        assert!(report.is_sound(), "{report:?}");
        let objects = report.usage.segments + report.usage.map_objects;
        assert!(objects >= 60, "{report:?}");
        // Besides the root, its tables, the pages and two lists.
        assert!(rounds <= objects / side_by_side + 8, "{rounds} rounds for {objects} objects");
        assert!(store.bucket.take_most_under_way() >= side_by_side as usize);
    }
}
