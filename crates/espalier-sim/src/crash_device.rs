//! Crash device: a device that a simulation can crash, of whatever kind.

use crate::Outcome;
use espalier_storage::{CrashPoint, Device, SimulatedDevice};
use std::sync::Arc;

/// A device that remembers moments at which it may crash. Time is counted in changes of what
/// survives.
pub trait CrashDevice: Device + Sized + 'static {
    /// A moment of the device's history.
    type Point;

    /// A device of `bytes` without a store.
    ///
    /// # Errors
    /// If it cannot be made.
    fn blank(bytes: u64, seed: u64) -> Outcome<Arc<Self>>;

    /// How many changes there were.
    fn changes(&self) -> u64;

    /// From now on records a point after one in so many changes; none if it is 0.
    fn record_crash_points(&self, one_in: u64);

    /// The points recorded since the last call.
    fn take_crash_points(&self) -> Vec<Self::Point>;

    /// The changes at a point, the last one included.
    fn change(point: &Self::Point) -> u64;

    /// The changes that may have taken place when a device is found that crashed at a point.
    fn reach(point: &Self::Point) -> u64 {
        Self::change(point)
    }

    /// How many changes a crash at a point may lose.
    fn pending(point: &Self::Point) -> usize;

    /// The device as it is found after a crash; different seeds give different survivors.
    ///
    /// # Errors
    /// If it cannot be opened.
    fn crash_at(point: &Self::Point, seed: u64) -> Outcome<Self>;

    /// The device as it is found after a crash now. This one goes on as before.
    ///
    /// # Errors
    /// As for [`CrashDevice::crash_at`].
    fn crash_now(&self) -> Outcome<Self>;

    /// The device as another process finds it after the one that used it was killed.
    ///
    /// # Errors
    /// If it cannot be opened.
    fn after_kill(self: &Arc<Self>) -> Outcome<Arc<Self>>;

    /// Makes what was synced survive even what [`CrashDevice::loses_synced`] tells of.
    ///
    /// # Errors
    /// Those of the device.
    fn settle(&self) -> Outcome {
        Ok(())
    }

    /// True if the crash before took what was synced, because the machine was lost that alone had
    /// it. What is found then is still the state after a prefix of the batches.
    fn loses_synced(&self) -> bool {
        false
    }
}

impl CrashDevice for SimulatedDevice {
    type Point = CrashPoint;

    /// A device that holds garbage.
    fn blank(bytes: u64, seed: u64) -> Outcome<Arc<Self>> {
        Ok(Arc::new(Self::with_garbage(bytes, seed)))
    }

    fn changes(&self) -> u64 {
        self.counts().changes()
    }

    fn record_crash_points(&self, one_in: u64) {
        Self::record_crash_points(self, one_in);
    }

    fn take_crash_points(&self) -> Vec<CrashPoint> {
        Self::take_crash_points(self)
    }

    fn change(point: &CrashPoint) -> u64 {
        point.change()
    }

    fn pending(point: &CrashPoint) -> usize {
        point.pending()
    }

    fn crash_at(point: &CrashPoint, seed: u64) -> Outcome<Self> {
        Ok(point.crash(seed))
    }

    fn crash_now(&self) -> Outcome<Self> {
        Ok(self.crash())
    }

    /// The system goes on: what was written is read.
    fn after_kill(self: &Arc<Self>) -> Outcome<Arc<Self>> {
        Ok(Arc::clone(self))
    }
}
