//! Blocks that say what they are.
#![allow(dead_code, reason = "not every test uses everything")]

use espalier_object::{
    Access, Bucket, Failure, FailureKind, ObjectDevice, Options, Present, Reply, Request, SimulatedBucket,
    Ticket,
};
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, SimulatedDevice, SimulatedEnvironment};
use espalier_sync::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Small segments, a short delta, no cache to speak of.
pub(crate) fn options() -> Options {
    Options {
        segment_blocks: 32,
        resident_bytes: 256 << 10,
        delta_runs: 24,
        cache_bytes: 256 << 10,
        host: "test".into(),
        ..Options::default()
    }
}

/// A block that is all of one number.
pub(crate) fn block(tag: u64) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(BLOCK);
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&tag.to_le_bytes()));
    block
}

/// The numbers of blocks.
pub(crate) fn tags(bytes: &[u8]) -> Vec<u64> {
    let tag = |block: &[u8]| {
        let word: [u8; 8] = block[..8].try_into().unwrap();
        assert!(block.chunks_exact(8).all(|other| other == word), "a block of several numbers");
        u64::from_le_bytes(word)
    };
    bytes.chunks_exact(BLOCK).map(tag).collect()
}

/// Writes blocks.
pub(crate) fn write(device: &ObjectDevice, start: u64, tags: &[u64]) {
    let mut bytes = AlignedBuf::zeroed(tags.len() * BLOCK);
    for (target, tag) in bytes.chunks_exact_mut(BLOCK).zip(tags) {
        target.copy_from_slice(&block(*tag));
    }
    device.write_at(start * BLOCK as u64, &[&bytes]).unwrap();
}

/// Reads blocks.
pub(crate) fn read(device: &ObjectDevice, start: u64, blocks: usize) -> Vec<u64> {
    let mut bytes = AlignedBuf::zeroed(blocks * BLOCK);
    device.read_at(start * BLOCK as u64, &mut bytes).unwrap();
    tags(&bytes)
}

/// The seeds to try: those of `ESPALIER_SEED`, or those that failed once and the first `count`.
pub(crate) fn seeds(regressions: &[u64], count: u64) -> Vec<u64> {
    match std::env::var("ESPALIER_SEED") {
        Ok(list) => list.split(',').map(|seed| seed.trim().parse().expect("a number")).collect(),
        Err(_) => regressions.iter().copied().chain(1..=count).collect(),
    }
}

/// Map checkpoints, compaction and deletion at every opportunity.
pub(crate) fn eager(journal: Option<&Arc<SimulatedDevice>>) -> Options {
    Options {
        segment_blocks: 4,
        delta_runs: 1,
        cache_bytes: 0,
        probe: false,
        grace: Duration::ZERO,
        journal: journal.map(|journal| Arc::clone(journal) as Arc<dyn Device>),
        ..options()
    }
}

/// A clock that stands still, and numbers from a seed.
pub(crate) fn environment(seed: u64) -> Arc<dyn Environment> {
    Arc::new(SimulatedEnvironment::new(seed))
}

/// The outcome of a request that has ended.
pub(crate) struct Ready(pub(crate) std::result::Result<Reply, Failure>);

impl Ticket for Ready {
    fn wait(self: Box<Self>) -> std::result::Result<Reply, Failure> {
        self.0
    }
}

/// A store that cannot be reached, or refuses everything, until some time of a clock.
#[derive(Debug)]
pub(crate) struct Outage {
    pub(crate) bucket: Arc<SimulatedBucket>,
    clock: Arc<SimulatedEnvironment>,
    until: Mutex<(Duration, FailureKind)>,
}

impl Outage {
    pub(crate) fn new(bucket: Arc<SimulatedBucket>, clock: Arc<SimulatedEnvironment>) -> Arc<Self> {
        Arc::new(Self { bucket, clock, until: Mutex::new((Duration::ZERO, FailureKind::Unknown)) })
    }

    /// From now on, and for so many seconds, every request fails.
    pub(crate) fn begin(&self, seconds: u64, kind: FailureKind) {
        *self.until.lock() = (self.clock.monotonic() + Duration::from_secs(seconds), kind);
    }

    pub(crate) fn lasts(&self) -> bool {
        self.clock.monotonic() < self.until.lock().0
    }
}

impl Bucket for Outage {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let (until, kind) = *self.until.lock();
        if self.clock.monotonic() < until {
            return Box::new(Ready(Err(Failure::new(kind, "the store is away"))));
        }
        self.bucket.submit(request)
    }
}

/// A device on a simulated bucket, with the clocks of both.
pub(crate) struct Bench {
    pub(crate) bucket: Arc<SimulatedBucket>,
    pub(crate) simulated: Arc<SimulatedEnvironment>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) options: Options,
    pub(crate) device: ObjectDevice,
}

impl Bench {
    /// An empty device, open for writing.
    pub(crate) fn new(seed: u64, options: Options) -> Self {
        let bucket = Arc::new(SimulatedBucket::new(seed));
        let simulated = Arc::new(SimulatedEnvironment::new(seed));
        let environment: Arc<dyn Environment> = simulated.clone();
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
        let device =
            ObjectDevice::open(bucket.clone(), &environment, Access::Write, options.clone()).unwrap();
        Self { bucket, simulated, environment, options, device }
    }

    /// Moves both clocks.
    pub(crate) fn pass(&self, seconds: u64) {
        self.bucket.advance(seconds * 1000);
        self.simulated.advance(Duration::from_secs(seconds));
    }

    /// Lets maintenance do all that there is to do, some time after each step.
    pub(crate) fn settle(&self) {
        for _ in 0..60 {
            self.pass(30);
            while self.device.step().unwrap() {}
        }
    }

    /// Bytes of all objects.
    pub(crate) fn stored(&self) -> u64 {
        self.bucket.objects().iter().map(|(_, bytes)| bytes).sum()
    }
}
