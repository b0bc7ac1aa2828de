//! A writer with a journal, for the simulations that crash devices: a simulated bucket, and a
//! simulated local device for the journal.
//!
//! A moment is one of both. What a crash leaves is chosen by its seed:
//! - the *process* dies: the journal has all that was written to it, but what was not synced is
//!   still in the page cache, so a later power cut may take it;
//! - the *power* fails: of what was not synced some is lost, some is torn;
//! - the *machine* is lost, with the journal: another machine takes the store over with a new one.
//!
//! In each case the last requests are still on their way to the store.

use crate::object::options;
use crate::{CrashDevice, Outcome};
use espalier_object::{
    Access, Bucket, BucketPoint, Failure, ObjectDevice, Options, Present, Reply, Request, SimulatedBucket,
    Ticket, Trouble,
};
use espalier_storage::{
    CrashPoint, Device, Environment, Random, Result, SimulatedDevice, SimulatedEnvironment,
};
use espalier_sync::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
mod tests;

const JOURNAL_BYTES: u64 = 4 << 20;
/// Once in so many writes and syncs the device is maintained, which publishes.
const CALLS_PER_STEP: u64 = 8;
/// Once in so many crashes the machine is lost.
const CRASHES_PER_LOSS: u64 = 6;

/// A device in a simulated object store, with a simulated journal.
#[derive(Debug)]
pub struct SimulatedJournaledDevice {
    world: Arc<World>,
    environment: Arc<SimulatedEnvironment>,
    device: ObjectDevice,
    random: Mutex<Random>,
    lost_machine: bool,
}

/// A moment of store and journal.
#[derive(Debug, Clone)]
pub struct JournaledPoint {
    bucket: BucketPoint,
    journal: CrashPoint,
}

/// What survives a process, and the moments of it that were recorded.
#[derive(Debug)]
struct World {
    bucket: Arc<SimulatedBucket>,
    journal: Arc<SimulatedDevice>,
    points: Mutex<Vec<JournaledPoint>>,
}

impl World {
    fn new(bucket: SimulatedBucket, journal: SimulatedDevice) -> Arc<Self> {
        let (bucket, journal) = (Arc::new(bucket), Arc::new(journal));
        Arc::new(Self { bucket, journal, points: Mutex::default() })
    }

    fn changes(&self) -> u64 {
        self.bucket.changes() + self.journal.counts().changes()
    }

    fn point(&self) -> JournaledPoint {
        JournaledPoint { bucket: self.bucket.point(), journal: self.journal.crash_point() }
    }

    /// Completes the moments that the store has recorded, or the journal.
    fn collect(&self) {
        let mut points = self.points.lock();
        let of_journal = self.journal.take_crash_points().into_iter();
        points.extend(of_journal.map(|journal| JournaledPoint { bucket: self.bucket.point(), journal }));
        let of_bucket = self.bucket.take_points().into_iter();
        points.extend(of_bucket.map(|bucket| JournaledPoint { bucket, journal: self.journal.crash_point() }));
    }
}

#[derive(Debug)]
struct RecordedBucket(Arc<World>);

struct RecordedTicket(Arc<World>, Box<dyn Ticket>);

impl Bucket for RecordedBucket {
    fn name(&self) -> &str {
        self.0.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let ticket = self.0.bucket.submit(request);
        self.0.collect();
        Box::new(RecordedTicket(Arc::clone(&self.0), ticket))
    }
}

impl Ticket for RecordedTicket {
    fn wait(self: Box<Self>) -> std::result::Result<Reply, Failure> {
        let reply = self.1.wait();
        self.0.collect();
        reply
    }
}

#[derive(Debug)]
struct RecordedJournal(Arc<World>);

impl RecordedJournal {
    fn collected<T>(&self, outcome: T) -> T {
        self.0.collect();
        outcome
    }
}

impl Device for RecordedJournal {
    fn name(&self) -> &str {
        "simulated journal"
    }

    fn len(&self) -> u64 {
        self.0.journal.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.0.journal.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        self.collected(self.0.journal.write_at(offset, buffers))
    }

    fn sync(&self) -> Result<()> {
        self.collected(self.0.journal.sync())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.collected(self.0.journal.discard(offset, length))
    }
}

impl SimulatedJournaledDevice {
    /// A process opens what the one before left; only for a machine that is lost is it told to take
    /// the store over.
    fn open(world: Arc<World>, seed: u64, lost_machine: bool) -> Outcome<Self> {
        let mut random = Random::new(seed);
        let environment = Arc::new(SimulatedEnvironment::new(random.next_u64()));
        let shared: Arc<dyn Environment> = environment.clone();
        let journal: Arc<dyn Device> = Arc::new(RecordedJournal(Arc::clone(&world)));
        let options = Options { journal: Some(journal), ..options(&mut random) };
        let access = if lost_machine { Access::TakeOver } else { Access::Write };
        let bucket = Arc::new(RecordedBucket(Arc::clone(&world)));
        let device = ObjectDevice::open(bucket, &shared, access, options)?;
        if random.one_in(3) {
            world.bucket.set_trouble(Trouble::all(40));
        }
        Ok(Self { world, environment, device, random: Mutex::new(random), lost_machine })
    }

    fn crash(point: &JournaledPoint, random: &mut Random, lost_machine: bool) -> Outcome<Self> {
        let bucket = point.bucket.crash(random.next_u64());
        let (power_cut, seed) = (random.one_in(2), random.next_u64());
        let journal = match (lost_machine, power_cut) {
            (true, _) => SimulatedDevice::new(JOURNAL_BYTES, seed),
            (false, true) => point.journal.crash(seed),
            (false, false) => point.journal.kill(),
        };
        Self::open(World::new(bucket, journal), random.next_u64(), lost_machine)
    }

    fn maintain(&self) -> Result<()> {
        let (now, seconds) = {
            let mut random = self.random.lock();
            (random.one_in(CALLS_PER_STEP), random.below(30))
        };
        if now {
            self.world.bucket.advance(seconds * 1000);
            self.environment.advance(Duration::from_secs(seconds));
            self.device.step()?;
        }
        Ok(())
    }
}

impl CrashDevice for SimulatedJournaledDevice {
    type Point = JournaledPoint;

    fn blank(bytes: u64, seed: u64) -> Outcome<Arc<Self>> {
        let mut random = Random::new(seed ^ 0x0b1ec8);
        let world =
            World::new(SimulatedBucket::new(seed), SimulatedDevice::new(JOURNAL_BYTES, random.next_u64()));
        let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(random.next_u64()));
        let options = options(&mut random);
        ObjectDevice::create(world.bucket.clone(), &environment, bytes, &options, Present::Refuse)?;
        Self::open(world, random.next_u64(), false).map(Arc::new)
    }

    fn changes(&self) -> u64 {
        self.world.changes()
    }

    fn record_crash_points(&self, one_in: u64) {
        self.world.bucket.record_points(one_in);
        self.world.journal.record_crash_points(one_in);
    }

    fn take_crash_points(&self) -> Vec<JournaledPoint> {
        self.world.collect();
        std::mem::take(&mut self.world.points.lock())
    }

    fn change(point: &JournaledPoint) -> u64 {
        point.bucket.change() + point.journal.change()
    }

    fn reach(point: &JournaledPoint) -> u64 {
        point.bucket.reach() + point.journal.change()
    }

    fn pending(point: &JournaledPoint) -> usize {
        point.bucket.pending() + point.journal.pending()
    }

    fn crash_at(point: &JournaledPoint, seed: u64) -> Outcome<Self> {
        let mut random = Random::new(seed);
        let lost_machine = random.one_in(CRASHES_PER_LOSS);
        Self::crash(point, &mut random, lost_machine)
    }

    fn crash_now(&self) -> Outcome<Self> {
        let mut random = self.random.lock().split();
        Self::crash(&self.world.point(), &mut random, false)
    }

    /// Store and journal go on: what only the process had is gone.
    fn after_kill(self: &Arc<Self>) -> Outcome<Arc<Self>> {
        let seed = self.random.lock().next_u64();
        Self::open(Arc::clone(&self.world), seed, false).map(Arc::new)
    }

    fn settle(&self) -> Outcome {
        while self.device.step()? {}
        Ok(())
    }

    fn loses_synced(&self) -> bool {
        self.lost_machine
    }
}

impl Device for SimulatedJournaledDevice {
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
        self.device.write_at(offset, buffers)?;
        self.maintain()
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()?;
        self.maintain()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.device.discard(offset, length)
    }
}
