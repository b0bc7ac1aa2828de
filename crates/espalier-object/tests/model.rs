//! Random histories on a simulated store, with a process death at every change of it. The oracle:
//! what is found is the content at the beginning of some sync, at or after the last that returned.
//!
//! `ESPALIER_SEED=7 cargo test -p espalier-object --test model NAME` replays.

mod support;

use espalier_object::{
    Access, BucketPoint, ObjectDevice, Options, Present, SimulatedBucket, Trouble, check_objects,
};
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, Random, SimulatedEnvironment};
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{block, options, seeds, tags};

/// Blocks of the device: three pages of the map. What is used of it lies around their borders.
const BLOCKS: u64 = 3 * 16384;
const WINDOWS: [u64; 3] = [0, 16384 - 40, 2 * 16384 - 40];
const WINDOW_BLOCKS: u64 = 80;

/// What blocks hold that are not zeros.
type Content = BTreeMap<u64, u64>;

/// When each sync began and what it was to make durable, and when which had returned; in changes of
/// the store.
struct History {
    begun: Vec<(u64, Content)>,
    returned: Vec<(u64, usize)>,
}

impl History {
    fn possible(&self, point: &BucketPoint) -> &[(u64, Content)] {
        let first =
            self.returned.iter().rev().find(|(at, _)| *at <= point.change()).map_or(0, |(_, sync)| *sync);
        let last = self.begun.iter().rposition(|(at, _)| *at < point.reach()).unwrap_or(0).max(first);
        &self.begun[first..=last]
    }
}

struct Run {
    bucket: Arc<SimulatedBucket>,
    simulated: Arc<SimulatedEnvironment>,
    environment: Arc<dyn Environment>,
    options: Options,
    device: ObjectDevice,
    model: Content,
    history: History,
    random: Random,
    tag: u64,
}

fn content(device: &ObjectDevice) -> Content {
    let mut content = Content::new();
    for start in WINDOWS {
        let mut bytes = AlignedBuf::zeroed(WINDOW_BLOCKS as usize * BLOCK);
        device.read_at(start * BLOCK as u64, &mut bytes).unwrap();
        content.extend((start..).zip(tags(&bytes)).filter(|(_, tag)| *tag != 0));
    }
    content
}

fn choose_options(random: &mut Random) -> Options {
    Options {
        segment_blocks: *random.choose(&[4, 16, 32]),
        delta_runs: *random.choose(&[0, 4, 24, 1000]),
        cache_bytes: *random.choose(&[0, 64 << 10, 1 << 20]),
        probe: random.one_in(3),
        grace: std::time::Duration::from_secs(*random.choose(&[0, 10, 600])),
        ..options()
    }
}

impl Run {
    fn new(seed: u64, trouble: Trouble) -> Self {
        let mut random = Random::new(seed ^ 0x0b1ec7);
        let bucket = Arc::new(SimulatedBucket::new(random.next_u64()));
        let simulated = Arc::new(SimulatedEnvironment::new(random.next_u64()));
        let environment: Arc<dyn Environment> = simulated.clone();
        let options = choose_options(&mut random);
        let bytes = BLOCKS * BLOCK as u64;
        ObjectDevice::create(bucket.clone(), &environment, bytes, &options, Present::Refuse).unwrap();
        let device =
            ObjectDevice::open(bucket.clone(), &environment, Access::TakeOver, options.clone()).unwrap();
        bucket.set_trouble(trouble);
        let history = History {
            begun: vec![(bucket.changes(), Content::new())],
            returned: vec![(bucket.changes(), 0)],
        };
        let model = Content::new();
        Self { bucket, simulated, environment, options, device, model, history, random, tag: 0 }
    }

    fn range(&mut self) -> (u64, u64) {
        let start = self.random.below(WINDOW_BLOCKS);
        let most = if self.random.one_in(4) { WINDOW_BLOCKS } else { 6 };
        let blocks = 1 + self.random.below(most.min(WINDOW_BLOCKS - start));
        (*self.random.choose(&WINDOWS) + start, blocks)
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..8 => {
                let (start, blocks) = self.range();
                let mut bytes = AlignedBuf::zeroed(blocks as usize * BLOCK);
                for (number, target) in (start..).zip(bytes.chunks_exact_mut(BLOCK)) {
                    self.tag += 1;
                    target.copy_from_slice(&block(self.tag));
                    self.model.insert(number, self.tag);
                }
                self.device.write_at(start * BLOCK as u64, &[&bytes]).unwrap();
            }
            8..11 => {
                let (start, blocks) = self.range();
                self.device.discard(start * BLOCK as u64, blocks * BLOCK as u64).unwrap();
                self.model.retain(|number, _| !(start..start + blocks).contains(number));
            }
            11..16 => {
                self.history.begun.push((self.bucket.changes(), self.model.clone()));
                self.device.sync().unwrap();
                self.history.returned.push((self.bucket.changes(), self.history.begun.len() - 1));
            }
            16 => {
                let (start, blocks) = self.range();
                if self.random.one_in(2) {
                    // What is announced is read, or is not, now or much later.
                    let (other, count) = self.range();
                    let bytes =
                        |start: u64, blocks: u64| start * BLOCK as u64..(start + blocks) * BLOCK as u64;
                    self.device.announce(&[bytes(other, count), bytes(start, blocks)]);
                }
                let mut bytes = AlignedBuf::zeroed(blocks as usize * BLOCK);
                self.device.read_at(start * BLOCK as u64, &mut bytes).unwrap();
                let expected =
                    (start..start + blocks).map(|number| self.model.get(&number).copied().unwrap_or(0));
                assert_eq!(tags(&bytes), expected.collect::<Vec<u64>>());
            }
            17 => {
                let seconds = self.random.below(30);
                self.bucket.advance(seconds * 1000);
                self.simulated.advance(std::time::Duration::from_secs(seconds));
            }
            _ => drop(self.device.step().unwrap()),
        }
    }

    /// Another process finds the store as it was at `point`.
    fn crash(&mut self, point: &BucketPoint) {
        let seed = self.random.next_u64();
        let possible = self.history.possible(point);
        let bucket = Arc::new(point.crash(seed));
        let options = Options { probe: self.random.one_in(4), ..self.options.clone() };
        bucket.record_points(4);
        let open = |bucket: &Arc<SimulatedBucket>, access| {
            ObjectDevice::open(bucket.clone(), &self.environment, access, options.clone()).unwrap()
        };
        let device = open(&bucket, Access::TakeOver);
        let found = content(&device);
        let is_possible = |found: &Content| possible.iter().any(|(_, content)| content == found);
        assert!(is_possible(&found), "at change {}: none of {} states", point.change(), possible.len());
        // Work goes on, whatever is still on its way from the process that died.
        let block = block(u64::MAX);
        device.write_at(0, &[&block]).unwrap();
        device.sync().unwrap();
        for _ in 0..3 {
            bucket.advance(20_000);
            self.simulated.advance(std::time::Duration::from_secs(20));
            while device.step().unwrap() {}
        }
        let mut after = found;
        after.insert(0, u64::MAX);
        assert_eq!(content(&device), after);
        drop(device);
        let report = check_objects(bucket.clone(), &self.environment, &options, true).unwrap();
        assert!(report.is_sound(), "{report:?}");
        // Deaths while it was being opened, and later.
        for again in bucket.take_points().iter().take(3) {
            let bucket = Arc::new(again.crash(seed ^ 1));
            let found = content(&open(&bucket, Access::TakeOver));
            assert!(is_possible(&found) || found == after, "a death during recovery");
        }
    }
}

fn run(seed: u64, trouble: Trouble, steps: usize, record_one_in: u64) {
    println!("ESPALIER_SEED={seed}");
    let mut run = Run::new(seed, trouble);
    run.bucket.record_points(record_one_in);
    for _ in 0..steps {
        run.step();
        for point in run.bucket.take_points() {
            run.crash(&point);
        }
    }
    run.bucket.set_trouble(Trouble::default());
    assert_eq!(content(&run.device), run.model);
    run.device.close().unwrap();
    let report = check_objects(run.bucket.clone(), &run.environment, &run.options, true).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[test]
fn a_process_dies_at_every_change_of_the_store() {
    for seed in seeds(&[], 12) {
        run(seed, Trouble::default(), 60, 1);
    }
}

#[test]
fn a_process_dies_while_the_network_is_bad() {
    for seed in seeds(&[], 12) {
        run(seed, Trouble::all(12), 60, 3);
    }
}

#[test]
fn long_histories_on_a_bad_network() {
    for seed in seeds(&[], 6) {
        run(seed, Trouble::all(30), 600, 60);
    }
}
