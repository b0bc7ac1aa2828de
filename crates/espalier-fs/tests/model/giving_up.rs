//! Calls that are given up, and what a call needs of the device after its change.

use espalier_fs::Waiter;
use espalier_storage::{Device, MemoryDevice, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether calls are still waited for.
#[derive(Debug, Default)]
pub(crate) struct Caring {
    pub(crate) given_up: AtomicBool,
    /// How often the file system asked whether they stay so.
    pub(crate) asked: AtomicUsize,
    /// They do.
    pub(crate) decided: AtomicBool,
    /// How often the device was needed since.
    pub(crate) late: AtomicUsize,
}

impl Waiter for Caring {
    fn waits(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed)
    }

    fn stays(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.decided.store(self.waits(), Ordering::Relaxed);
        self.waits()
    }
}

/// A device that takes note of what a call needs after its change.
#[derive(Debug)]
pub(crate) struct Watched(pub(crate) MemoryDevice, pub(crate) Arc<Caring>);

impl Watched {
    fn device(&self) -> &MemoryDevice {
        self.1.late.fetch_add(usize::from(self.1.decided.load(Ordering::Relaxed)), Ordering::Relaxed);
        &self.0
    }
}

impl Device for Watched {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.device().read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        self.device().write_at(offset, buffers)
    }

    fn sync(&self) -> Result<()> {
        self.device().sync()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.device().discard(offset, length)
    }
}
