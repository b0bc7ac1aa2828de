//! A gate before a device, which keeps changes back for a while.
//!
//! While a device goes from one process to another only one of them may write. Each has a gate:
//! the first closes its own before the other is told, and the other opens its own when the device
//! is its. Reads and syncs always pass: a sync does nothing that a closed gate would keep back.
//!
//! Invariant: when [`GatedDevice::close`] has returned, no change is under way, and none begins
//! before [`GatedDevice::open`].

use crate::{Device, Error, ErrorKind, Operation, Result};
use espalier_sync::{Condvar, Mutex};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device whose changes wait while its gate is closed.
#[derive(Debug)]
pub struct GatedDevice {
    inner: Arc<dyn Device>,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug)]
struct GateState {
    is_closed: bool,
    under_way: usize,
    /// How long a change waits before it fails; `None`: as long as it takes.
    patience: Option<Duration>,
}

/// A change that is under way, until this is dropped.
struct Change<'a>(&'a GatedDevice);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
        self.0.changed.notify_all();
    }
}

impl GatedDevice {
    /// `inner` behind an open gate.
    pub fn open_before(inner: Arc<dyn Device>) -> Arc<Self> {
        Self::with(inner, false, None)
    }

    /// `inner` behind a closed gate: until that is opened, a change waits for `patience` and fails
    /// then.
    pub fn closed_before(inner: Arc<dyn Device>, patience: Duration) -> Arc<Self> {
        Self::with(inner, true, Some(patience))
    }

    fn with(inner: Arc<dyn Device>, is_closed: bool, patience: Option<Duration>) -> Arc<Self> {
        let state = Mutex::new(GateState { is_closed, under_way: 0, patience });
        Arc::new(Self { inner, state, changed: Condvar::new() })
    }

    /// Closes the gate, and returns when no change is under way. Changes wait until it is opened.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.patience = None;
        self.changed.wait_while(&mut state, |state| state.under_way > 0);
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.state.lock().is_closed = false;
        self.changed.notify_all();
    }

    /// Waits for the gate to be open.
    fn begin(&self, operation: Operation) -> Result<Change<'_>> {
        let mut state = self.state.lock();
        if let Some(patience) = state.patience {
            let deadline = Instant::now() + patience;
            while state.is_closed && !self.changed.wait_until(&mut state, deadline).timed_out() {}
            if state.is_closed {
                let message = "another process still has it, and it cannot be changed yet";
                return Err(Error::new(ErrorKind::Busy, operation, self.name(), message));
            }
        }
        self.changed.wait_while(&mut state, |state| state.is_closed);
        state.under_way += 1;
        Ok(Change(self))
    }
}

impl Device for GatedDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn announce(&self, ranges: &[Range<u64>]) {
        self.inner.announce(ranges);
    }

    fn read_ahead_bytes(&self) -> u64 {
        self.inner.read_ahead_bytes()
    }

    fn keeps_order(&self) -> bool {
        self.inner.keeps_order()
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        let _change = self.begin(Operation::Write)?;
        self.inner.write_at(offset, buffers)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        let _change = self.begin(Operation::Discard)?;
        self.inner.discard(offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, BLOCK, MemoryDevice};
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn no_change_passes_a_closed_gate_and_all_that_waited_pass_an_open_one() {
        let device = GatedDevice::open_before(Arc::new(MemoryDevice::new(1 << 20)));
        let (started, done) = (AtomicU32::new(0), AtomicU32::new(0));
        let block = AlignedBuf::zeroed(BLOCK);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        started.fetch_add(1, Ordering::SeqCst);
                        device.write_at(0, &[&block]).unwrap();
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            while started.load(Ordering::SeqCst) < 4 {
                std::thread::yield_now();
            }
            device.close();
            let mut read = AlignedBuf::zeroed(BLOCK);
            device.read_at(0, &mut read).unwrap();
            device.sync().unwrap();
            assert_eq!(device.state.lock().under_way, 0);
            device.open();
        });
        assert_eq!(done.into_inner(), 400);
    }

    #[test]
    fn a_change_does_not_wait_for_ever_for_another_process() {
        let device = GatedDevice::closed_before(Arc::new(MemoryDevice::new(1 << 20)), Duration::ZERO);
        assert_eq!(device.discard(0, 0).unwrap_err().kind, ErrorKind::Busy);
        let block = AlignedBuf::zeroed(BLOCK);
        assert_eq!(device.write_at(0, &[&block]).unwrap_err().kind, ErrorKind::Busy);
        device.open();
        device.write_at(0, &[&block]).unwrap();
        assert_eq!((device.len(), device.name()), (1 << 20, "memory"));
    }
}
