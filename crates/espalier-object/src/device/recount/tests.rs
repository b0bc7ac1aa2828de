use super::super::{Access, Options, Present, check_objects};
use super::*;
use crate::map::BlockMap;
use crate::simulated::SimulatedBucket;
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, SimulatedEnvironment};
use std::sync::Arc;
use std::time::Duration;

const SEGMENT_BLOCKS: u64 = 32;
/// More steps in a row than any test needs.
const MANY_STEPS: usize = 50;

/// A device whose map is written by each sync.
struct Bench {
    bucket: Arc<SimulatedBucket>,
    clock: Arc<SimulatedEnvironment>,
    environment: Arc<dyn Environment>,
    options: Options,
    device: ObjectDevice,
}

impl Bench {
    /// One with so many full segments.
    fn new(segments: u64) -> Self {
        let bucket = Arc::new(SimulatedBucket::new(1));
        let clock = Arc::new(SimulatedEnvironment::new(1));
        let environment: Arc<dyn Environment> = clock.clone();
        let options = Options {
            segment_blocks: SEGMENT_BLOCKS as u32,
            delta_runs: 0,
            cache_bytes: 0,
            probe: false,
            grace: Duration::ZERO,
            ..Options::default()
        };
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
        let device =
            ObjectDevice::open(bucket.clone(), &environment, Access::Write, options.clone()).unwrap();
        let bench = Self { bucket, clock, environment, options, device };
        bench.write(0, segments);
        bench
    }

    /// Writes full segments.
    fn write(&self, start: u64, segments: u64) {
        for block in start..start + segments * SEGMENT_BLOCKS {
            self.device.write_at(block * BLOCK as u64, &[&content(block)]).unwrap();
        }
        self.device.sync().unwrap();
    }

    fn discard(&self, start: u64, blocks: u64) {
        self.device.discard(start * BLOCK as u64, blocks * BLOCK as u64).unwrap();
        self.device.sync().unwrap();
    }

    fn is_there(&self, block: u64) -> bool {
        let mut found = AlignedBuf::zeroed(BLOCK);
        self.device.read_at(block * BLOCK as u64, &mut found).unwrap();
        found[..] == content(block)[..]
    }

    /// The segments, in the order in which they were written.
    fn segments(&self) -> Vec<ObjectEntry> {
        let state = self.device.inner.state.read();
        state.objects.iter().filter(|entry| entry.object.kind == ObjectKind::Data).copied().collect()
    }

    /// Lets the table say something else of a segment.
    fn say(&self, id: ObjectId, live: u32) {
        let mut state = self.device.inner.state.write();
        state.objects.iter_mut().find(|entry| entry.object.id == id).unwrap().live = live;
    }

    /// Lets the map forget its pages, as if the device had just been opened and had a large map.
    fn forget_pages(&self) {
        let mut state = self.device.inner.state.write();
        assert_eq!(state.map.dirty().count(), 0);
        state.map = BlockMap::new(state.map.directory().clone());
    }

    /// Takes steps for some minutes.
    fn settle(&self) {
        for _ in 0..10 {
            self.bucket.advance(30_000);
            self.clock.advance(Duration::from_secs(30));
            let steps = (0..MANY_STEPS).take_while(|_| self.device.step().unwrap()).count();
            assert!(steps < MANY_STEPS, "maintenance has no end");
        }
    }

    fn data_objects(&self) -> usize {
        self.bucket.objects().iter().filter(|(name, _)| name.starts_with("data/")).count()
    }

    fn gets(&self) -> u64 {
        self.device.request_counts().gets
    }
}

fn content(block: u64) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(BLOCK);
    bytes[..8].copy_from_slice(&(block + 1).to_le_bytes());
    bytes
}

/// The table says too much or too little of sparse segments: they are moved, once, and deleted.
#[test]
fn a_wrong_count_of_a_sparse_segment_is_corrected_by_compaction() {
    for (kept, said) in [(0, 2), (8, 11), (8, 1)] {
        let bench = Bench::new(10);
        for start in (0..10).map(|segment| segment * SEGMENT_BLOCKS) {
            bench.discard(start, SEGMENT_BLOCKS - kept);
        }
        let segments = bench.segments();
        segments.iter().for_each(|entry| bench.say(entry.object.id, said));
        bench.settle();
        let usage = bench.device.usage();
        assert_eq!(usage.live_bytes, 10 * kept * BLOCK as u64, "{usage:?}");
        assert_eq!((usage.dead_objects, usage.unmovable_segments), (0, 0));
        assert!(bench.data_objects() <= 4, "{:?}", bench.bucket.objects());
        let live = |block: &u64| block % SEGMENT_BLOCKS >= SEGMENT_BLOCKS - kept;
        assert!((0..10 * SEGMENT_BLOCKS).filter(live).all(|block| bench.is_there(block)));
        let report = check_objects(bench.bucket.clone(), &bench.environment, &bench.options, true).unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
    }
}

/// The table calls segments dead that the map names.
#[test]
fn a_segment_that_the_map_names_is_not_deleted() {
    #[derive(Debug, PartialEq)]
    enum Map {
        Loaded,
        Forgotten,
        /// And the headers of the segments are damaged.
        WithoutIndex,
    }
    for (map, most_gets) in [(Map::Loaded, 2), (Map::Forgotten, 5), (Map::WithoutIndex, 20)] {
        let bench = Bench::new(10);
        let wrong = &bench.segments()[3..5];
        wrong.iter().for_each(|entry| bench.say(entry.object.id, 0));
        if map != Map::Loaded {
            bench.forget_pages();
        }
        if map == Map::WithoutIndex {
            wrong.iter().for_each(|entry| assert!(bench.bucket.flip(&entry.name(), 20, 1)));
        }
        let before = bench.gets();
        bench.settle();
        // The root when they were found dead, and a grace time later; headers, and one page.
        let gets = bench.gets() - before;
        assert!(gets <= most_gets, "{gets} gets, {map:?}");
        assert_eq!(bench.data_objects(), 10, "{map:?}");
        assert!((0..10 * SEGMENT_BLOCKS).all(|block| bench.is_there(block)), "{map:?}");
        let corrected = bench.segments();
        assert!(corrected.iter().all(|entry| entry.live == 32 && entry.died.is_none()), "{corrected:?}");
    }
}

#[test]
fn a_delete_takes_one_get_at_most() {
    for is_loaded in [true, false] {
        let bench = Bench::new(10);
        bench.discard(0, 6 * SEGMENT_BLOCKS);
        if !is_loaded {
            bench.forget_pages();
        }
        // The root that this writer found said so of one that had been deleted before.
        bench.bucket.remove(&bench.segments()[2].name());
        let before = bench.gets();
        bench.settle();
        let gets = bench.gets() - before;
        // The root twice; six headers, and one page.
        assert!(gets <= if is_loaded { 2 } else { 9 } + 1, "{gets}");
        assert_eq!((bench.data_objects(), bench.device.usage().dead_objects), (4, 0));
        assert!((6 * SEGMENT_BLOCKS..10 * SEGMENT_BLOCKS).all(|block| bench.is_there(block)));
    }
}

/// A page of the map is damaged: what it may name stays, and holds up no other.
#[test]
fn a_segment_of_which_the_map_cannot_be_asked_stays() {
    let bench = Bench::new(3);
    bench.write(PAGE_BLOCKS, 3);
    bench.discard(0, SEGMENT_BLOCKS);
    bench.discard(PAGE_BLOCKS, SEGMENT_BLOCKS);
    bench.forget_pages();
    let page = *bench.device.inner.state.read().map.directory().values().next().unwrap();
    let name = |entry: &ObjectEntry| (entry.object.id == page.object).then(|| entry.name());
    let name = bench.device.inner.state.read().objects.iter().find_map(name).unwrap();
    let damage = || assert!(bench.bucket.flip(&name, page.offset as usize, 1));
    damage();
    let segments = bench.segments();
    let before = bench.gets();
    bench.settle();
    let left = |bench: &Bench| bench.segments().iter().map(|entry| entry.object.id).collect::<Vec<_>>();
    let others = [0, 1, 2, 4, 5].map(|at| segments[at].object.id);
    assert_eq!(left(&bench), others);
    // It is asked again some minutes later.
    assert!(bench.gets() - before < 30, "{}", bench.gets() - before);
    damage();
    (0..3).for_each(|_| bench.settle());
    assert_eq!(left(&bench), others[1..]);
}

#[test]
fn wrong_counts_in_the_store_are_corrected() {
    let bench = Bench::new(3);
    let segments = bench.segments();
    bench.say(segments[0].object.id, 40);
    bench.say(segments[1].object.id, 7);
    bench.device.inner.publish(Scope::Counts).unwrap();
    let check = || check_objects(bench.bucket.clone(), &bench.environment, &bench.options, false).unwrap();
    assert_eq!(check().miscounted.len(), 2);
    assert_eq!(bench.device.correct_counts().unwrap(), 2);
    let report = check();
    assert!(report.is_sound(), "{report:?}");
    let changes = bench.bucket.changes();
    assert_eq!(bench.device.correct_counts().unwrap(), 0);
    assert_eq!(bench.bucket.changes(), changes);
}
