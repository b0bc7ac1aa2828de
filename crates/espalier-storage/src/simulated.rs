//! A device in memory that behaves as badly as real ones may, as a seed says.
//!
//! Protocol: writes and discards change what reads see and are remembered as *pending*; a sync
//! makes them durable. [`SimulatedDevice::crash`] gives the device as it is found after a power
//! cut: what was durable, plus an arbitrary subset of what was pending, in arbitrary order, torn at
//! sectors. To try many crashes of one history, record a [`CrashPoint`] at each operation that
//! changes something and crash those later. [`Fault`]s make single requests fail or lie.
//!
//! Invariants:
//! - one seed and one sequence of calls give one outcome;
//! - blocks are shared between images and replaced, never changed, so a copy of a device costs a
//!   few pointers.

mod crash;
mod environment;
mod fault;
mod image;
#[cfg(test)]
mod tests;

pub use crash::{CrashPoint, SECTOR};
pub use environment::SimulatedEnvironment;
pub use fault::{Fault, FaultCounts};
pub use image::Image;

use crate::request::{check_discard, check_read, check_write};
use crate::{BLOCK, Device, Error, ErrorKind, Operation, Random, Result};
use crash::{Pending, tear};
use espalier_sync::Mutex;
use fault::{Faults, Verdict};
use image::Block;
use std::ops::Range;
use std::sync::Arc;

/// How many requests a device has seen, failed ones included.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct OperationCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Discards.
    pub discards: u64,
}

impl OperationCounts {
    /// The operations that change what a crash leaves: all but reads.
    pub fn changes(&self) -> u64 {
        self.writes + self.syncs + self.discards
    }
}

impl CrashPoint {
    /// The device as it is found after the power cut. Different seeds give different survivors.
    #[must_use]
    pub fn crash(&self, seed: u64) -> SimulatedDevice {
        let mut random = Random::new(seed);
        let image = self.surviving_image(&mut random);
        SimulatedDevice::from_image(image, random.next_u64())
    }

    /// The device as it is found when the process that wrote to it died and the power did not fail:
    /// all that was written is there, and what was not synced may be lost by a later power cut.
    #[must_use]
    pub fn kill(&self) -> SimulatedDevice {
        let device = SimulatedDevice::from_image(self.written_image(), self.change());
        {
            let mut state = device.state.lock();
            (state.durable, state.pending) = self.unsynced();
        }
        device
    }
}

/// A seeded, fault-injecting device in memory.
#[derive(Debug)]
pub struct SimulatedDevice {
    len: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What reads see.
    current: Image,
    /// What every crash leaves.
    durable: Image,
    /// Writes since the last sync, oldest first.
    pending: Vec<Arc<Pending>>,
    faults: Faults,
    counts: OperationCounts,
    /// Record a crash point at one in so many changes; 0 for none.
    record_one_in: u64,
    points: Vec<CrashPoint>,
    random: Random,
}

impl SimulatedDevice {
    /// A device of `len` bytes, rounded down to whole blocks, that reads as zeros.
    pub fn new(len: u64, seed: u64) -> Self {
        Self::from_image(Image::zeros(len), seed)
    }

    /// A device whose blocks hold arbitrary bytes until they are written.
    pub fn with_garbage(len: u64, seed: u64) -> Self {
        Self::from_image(Image::garbage(len, seed), seed)
    }

    /// A device with the content of `image`, all of it durable.
    pub fn from_image(image: Image, seed: u64) -> Self {
        let state = State {
            durable: image.clone(),
            current: image,
            pending: Vec::new(),
            faults: Faults::default(),
            counts: OperationCounts::default(),
            record_one_in: 0,
            points: Vec::new(),
            random: Random::new(seed),
        };
        Self { len: state.current.len(), state: Mutex::new(state) }
    }

    /// What reads see now.
    pub fn image(&self) -> Image {
        self.state.lock().current.clone()
    }

    /// What is sure to survive a crash now.
    pub fn durable_image(&self) -> Image {
        self.state.lock().durable.clone()
    }

    /// The device as it is found after a power cut now, without faults. This one goes on as before.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut state = self.state.lock();
        let seed = state.random.next_u64();
        state.point().crash(seed)
    }

    /// The state of this moment, for crashes to be tried later.
    pub fn crash_point(&self) -> CrashPoint {
        self.state.lock().point()
    }

    /// From now on records a crash point after one in `one_in` writes, syncs and discards (1: after
    /// each), or after none (0).
    pub fn record_crash_points(&self, one_in: u64) {
        self.state.lock().record_one_in = one_in;
    }

    /// The crash points recorded since the last call, oldest first.
    pub fn take_crash_points(&self) -> Vec<CrashPoint> {
        std::mem::take(&mut self.state.lock().points)
    }

    /// Adds a fault to those that are waiting or active.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.add(fault);
    }

    /// Takes all faults away, an outage of power included. What they did stays done.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// How often faults struck.
    pub fn fault_counts(&self) -> FaultCounts {
        self.state.lock().faults.counts()
    }

    /// True if a [`Fault::PowerOff`] has struck.
    pub fn power_is_off(&self) -> bool {
        self.state.lock().faults.power_is_off()
    }

    /// How many requests there were.
    pub fn counts(&self) -> OperationCounts {
        self.state.lock().counts
    }

    /// Flips the bits of `mask` in the byte at `offset`: bit rot.
    pub fn flip(&self, offset: u64, mask: u8) {
        let state = &mut *self.state.lock();
        for image in [&mut state.current, &mut state.durable] {
            image.flip(offset, mask);
        }
    }

    /// Flips `count` random bits in blocks of `range` (in bytes) that were ever written; returns
    /// where. Nothing if there are none.
    pub fn rot(&self, range: Range<u64>, count: usize) -> Vec<u64> {
        let picks: Vec<(u64, u8)> = {
            let State { current, random, .. } = &mut *self.state.lock();
            let blocks = current.written(range);
            let mut pick = || {
                let block = *random.choose(&blocks);
                (block * BLOCK as u64 + random.below(BLOCK as u64), 1 << random.below(8))
            };
            if blocks.is_empty() { Vec::new() } else { (0..count).map(|_| pick()).collect() }
        };
        picks.iter().for_each(|(offset, mask)| self.flip(*offset, *mask));
        picks.into_iter().map(|(offset, _)| offset).collect()
    }

    fn error(&self, kind: ErrorKind, operation: Operation, message: &str) -> Error {
        Error::new(kind, operation, self.name(), message)
    }
}

impl State {
    fn point(&self) -> CrashPoint {
        CrashPoint::new(self.counts.changes(), self.durable.clone(), self.pending.clone())
    }

    /// To be called after each change.
    fn changed(&mut self) {
        if self.random.one_in(self.record_one_in) {
            let point = self.point();
            self.points.push(point);
        }
    }

    /// Lands a write, in whole: reads see it, a crash may lose it.
    fn land(&mut self, first: u64, blocks: Vec<Arc<Block>>) {
        let pending = Arc::new(Pending { first, blocks });
        pending.apply(&mut self.current);
        self.pending.push(pending);
    }

    fn write(&mut self, first: u64, blocks: Vec<Arc<Block>>, verdict: &Verdict) {
        match verdict {
            Verdict::Proceed => self.land(first, blocks),
            Verdict::Lose => {}
            Verdict::Misdirect(to) => {
                let room = self.current.len() / BLOCK as u64;
                let last = room.saturating_sub(blocks.len() as u64);
                let first = to.map_or_else(|| self.random.below(last + 1), |to| to / BLOCK as u64);
                self.land(first.min(last), blocks);
            }
            // After an error the content of the range is undefined.
            Verdict::Fail(..) => {
                let torn = tear(&self.current, first, &blocks, &mut self.random);
                self.land(first, torn);
            }
        }
    }

    fn sync(&mut self, verdict: &Verdict) {
        if let Verdict::Fail(..) = verdict {
            // Linux gives a page one chance: what was not written stays readable and is forgotten,
            // and a later sync succeeds without it.
            let random = &mut self.random;
            self.pending.retain(|_| random.one_in(2));
        } else {
            for pending in std::mem::take(&mut self.pending) {
                pending.apply(&mut self.durable);
            }
        }
    }
}

impl Device for SimulatedDevice {
    fn name(&self) -> &str {
        "simulated device"
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        check_read(self, offset, buffer)?;
        let state = &mut *self.state.lock();
        state.counts.reads += 1;
        let range = offset..offset + buffer.len() as u64;
        if let Verdict::Fail(kind, message) = state.faults.judge(Operation::Read, &range, &mut state.random) {
            // Half a transfer may have happened.
            state.random.fill(buffer);
            return Err(self.error(kind, Operation::Read, message).at(offset, buffer.len() as u64));
        }
        for (number, chunk) in (offset / BLOCK as u64..).zip(buffer.chunks_mut(BLOCK)) {
            state.current.read(number, chunk);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        let length = check_write(self, offset, buffers)?;
        let state = &mut *self.state.lock();
        state.counts.writes += 1;
        let verdict = state.faults.judge(Operation::Write, &(offset..offset + length), &mut state.random);
        if !state.faults.power_was_off() {
            let blocks = buffers.iter().flat_map(|b| b.chunks(BLOCK)).map(image::block).collect();
            state.write(offset / BLOCK as u64, blocks, &verdict);
            state.changed();
        }
        match verdict {
            Verdict::Fail(kind, message) => {
                Err(self.error(kind, Operation::Write, message).at(offset, length))
            }
            _ => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        state.counts.syncs += 1;
        let verdict = state.faults.judge(Operation::Sync, &(0..0), &mut state.random);
        if !state.faults.power_is_off() {
            state.sync(&verdict);
            state.changed();
        }
        match verdict {
            Verdict::Fail(kind, message) => Err(self.error(kind, Operation::Sync, message)),
            _ => Ok(()),
        }
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        check_discard(self, offset, length)?;
        let state = &mut *self.state.lock();
        state.counts.discards += 1;
        let verdict = state.faults.judge(Operation::Discard, &(offset..offset + length), &mut state.random);
        if !state.faults.power_was_off() && length != 0 {
            // Reading a discarded block yields anything: what was there, zeros, or garbage.
            let first = offset / BLOCK as u64;
            let blocks = (first..first + length / BLOCK as u64)
                .map(|number| state.current.after_discard(number, &mut state.random))
                .collect();
            state.land(first, blocks);
            state.changed();
        }
        match verdict {
            Verdict::Fail(kind, message) => {
                Err(self.error(kind, Operation::Discard, message).at(offset, length))
            }
            _ => Ok(()),
        }
    }
}
