//! An object device on a simulated bucket, for the simulations that crash devices.

use crate::{CrashDevice, Outcome};
use espalier_object::{Access, BucketPoint, ObjectDevice, Options, Present, SimulatedBucket, Trouble};
use espalier_storage::{Device, Environment, Random, Result, SimulatedEnvironment};
use espalier_sync::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Once in so many syncs the device is maintained.
const SYNCS_PER_STEP: u64 = 3;

/// A device in an object store that is simulated with its network.
#[derive(Debug)]
pub struct SimulatedObjectDevice {
    bucket: Arc<SimulatedBucket>,
    environment: Arc<SimulatedEnvironment>,
    device: ObjectDevice,
    random: Mutex<Random>,
}

impl SimulatedObjectDevice {
    fn open(bucket: Arc<SimulatedBucket>, seed: u64) -> Outcome<Self> {
        let mut random = Random::new(seed);
        let environment = Arc::new(SimulatedEnvironment::new(random.next_u64()));
        let shared: Arc<dyn Environment> = environment.clone();
        let options = options(&mut random);
        let device = ObjectDevice::open(bucket.clone(), &shared, Access::TakeOver, options)?;
        // Of devices that are crashed some have a bad network, too.
        if random.one_in(3) {
            bucket.set_trouble(Trouble::all(40));
        }
        Ok(Self { bucket, environment, device, random: Mutex::new(random) })
    }

    fn maintain(&self) -> Result<()> {
        let (now, seconds) = {
            let mut random = self.random.lock();
            (random.one_in(SYNCS_PER_STEP), random.below(30))
        };
        if now {
            self.bucket.advance(seconds * 1000);
            self.environment.advance(Duration::from_secs(seconds));
            self.device.step()?;
        }
        Ok(())
    }
}

/// Sizes and times that a seed chooses.
pub(crate) fn options(random: &mut Random) -> Options {
    Options {
        segment_blocks: *random.choose(&[16, 64, 256]),
        delta_runs: *random.choose(&[4, 32, 500]),
        cache_bytes: 1 << 20,
        probe: false,
        grace: Duration::from_secs(*random.choose(&[0, 20, 600])),
        host: "simulation".into(),
        ..Options::default()
    }
}

impl CrashDevice for SimulatedObjectDevice {
    type Point = BucketPoint;

    fn blank(bytes: u64, seed: u64) -> Outcome<Arc<Self>> {
        let bucket = Arc::new(SimulatedBucket::new(seed));
        let mut random = Random::new(seed ^ 0x0b1ec7);
        let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(random.next_u64()));
        let options = options(&mut random);
        ObjectDevice::create(bucket.clone(), &environment, bytes, &options, Present::Refuse)?;
        Self::open(bucket, random.next_u64()).map(Arc::new)
    }

    fn changes(&self) -> u64 {
        self.bucket.changes()
    }

    fn record_crash_points(&self, one_in: u64) {
        self.bucket.record_points(one_in);
    }

    fn take_crash_points(&self) -> Vec<BucketPoint> {
        self.bucket.take_points()
    }

    fn change(point: &BucketPoint) -> u64 {
        point.change()
    }

    fn reach(point: &BucketPoint) -> u64 {
        point.reach()
    }

    fn pending(point: &BucketPoint) -> usize {
        point.pending()
    }

    fn crash_at(point: &BucketPoint, seed: u64) -> Outcome<Self> {
        let mut random = Random::new(seed);
        Self::open(Arc::new(point.crash(random.next_u64())), random.next_u64())
    }

    fn crash_now(&self) -> Outcome<Self> {
        let seed = self.random.lock().next_u64();
        Self::crash_at(&self.bucket.point(), seed)
    }

    /// The store goes on: what was put is found, what only the process had is gone.
    fn after_kill(self: &Arc<Self>) -> Outcome<Arc<Self>> {
        let seed = self.random.lock().next_u64();
        Self::open(Arc::clone(&self.bucket), seed).map(Arc::new)
    }
}

impl Device for SimulatedObjectDevice {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn len(&self) -> u64 {
        self.device.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn announce(&self, ranges: &[Range<u64>]) {
        self.device.announce(ranges);
    }

    fn read_ahead_bytes(&self) -> u64 {
        self.device.read_ahead_bytes()
    }

    fn keeps_order(&self) -> bool {
        self.device.keeps_order()
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        self.device.write_at(offset, buffers)
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()?;
        self.maintain()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.device.discard(offset, length)
    }
}
