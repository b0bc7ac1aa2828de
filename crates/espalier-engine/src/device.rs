//! Guarded device: the device as the engine sees it, latched read-only by the first failed write
//! or sync.
//!
//! Protocol: pieces, space and log share one [`GuardedDevice`] and reach the device in no other
//! way. The first write or sync that fails is kept as the *cause*; from then on every write and
//! sync fails with [`ErrorKind::ReadOnly`] and tells it. Reads go on.
//!
//! Invariants:
//! - a sync that returns `Ok` found no failure latched when it ended, and syncs run one at a time:
//!   an error that the operating system reports to one caller only is therefore seen by all of
//!   them;
//! - discards are hints: their failure is ignored, but none is issued to a read-only store.

use crate::lock_order::{RankedMutex, rank};
use crate::{Error, ErrorKind, Extent, Result};
use espalier_storage::{AlignedBuf, Device};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A device that remembers its first failed write or sync.
pub(crate) struct GuardedDevice {
    inner: Arc<dyn Device>,
    /// Why nothing may be written any more; set once.
    cause: OnceLock<Cause>,
    /// The first read of what was deleted, because the state that is read was replaced.
    gone: OnceLock<Error>,
    /// Held during a sync.
    syncing: RankedMutex<(), { rank::DEVICE_SYNC }>,
    counters: Counters,
}

enum Cause {
    /// The store was opened for reading only.
    Opened,
    /// This failed first.
    Failure(Error),
}

#[derive(Default)]
struct Counters {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
}

/// How much went through a device since it was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DeviceStats {
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Read calls.
    pub reads: u64,
    /// Write calls.
    pub writes: u64,
    /// Sync calls.
    pub syncs: u64,
}

impl GuardedDevice {
    /// Guards `inner`; with `read_only` nothing is ever written.
    pub(crate) fn new(inner: Arc<dyn Device>, read_only: bool) -> Arc<Self> {
        let cause = OnceLock::new();
        if read_only {
            let _ = cause.set(Cause::Opened);
        }
        let (syncing, counters) = (RankedMutex::new(()), Counters::default());
        Arc::new(Self { inner, cause, gone: OnceLock::new(), syncing, counters })
    }

    /// The device as the user knows it.
    pub(crate) fn name(&self) -> &str {
        self.inner.name()
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.inner.len()
    }

    /// Fills `buffer` from byte `offset`.
    ///
    /// # Errors
    /// Whatever the device says.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.inner.read_at(offset, buffer).map_err(|error| {
            let error = Error::from(error);
            if error.kind() == ErrorKind::Gone && self.gone.set(error.clone()).is_ok() {
                tracing::warn!(%error, "the state that is read is no longer whole");
            }
            error
        })
    }

    /// `Ok` if no read has found that part of the state that is read was deleted. Whatever looks
    /// for damage asks this: otherwise it would take for damage what is none.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`].
    pub(crate) fn still_there(&self) -> Result<()> {
        self.gone.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Announces reads of these byte ranges. A hint.
    pub(crate) fn announce(&self, ranges: &[Range<u64>]) {
        if !ranges.is_empty() && self.wants_announcements() {
            self.inner.announce(ranges);
        }
    }

    /// True if announcements make reads faster.
    pub(crate) fn wants_announcements(&self) -> bool {
        self.read_ahead_bytes() > 0
    }

    /// How many bytes should have been announced at any time; 0 if announcements change nothing.
    pub(crate) fn read_ahead_bytes(&self) -> u64 {
        self.inner.read_ahead_bytes()
    }

    /// True if a write that is found after a crash was preceded by all that returned before it
    /// began, so that no order needs a sync.
    pub(crate) fn keeps_order(&self) -> bool {
        self.inner.keeps_order()
    }

    /// Makes what was written durable before anything that follows. Nothing has to be done for that
    /// where the device keeps the order of writes.
    ///
    /// # Errors
    /// As for [`Self::sync`].
    pub(crate) fn sync_before_next(&self) -> Result<()> {
        if self.keeps_order() { self.writable() } else { self.sync() }
    }

    /// The bytes of `extent`. The caller has checked that its length is reasonable.
    ///
    /// # Errors
    /// As for [`Self::read_at`].
    pub(crate) fn read_extent(&self, extent: Extent) -> Result<AlignedBuf> {
        let mut buffer = AlignedBuf::zeroed(extent.byte_len());
        self.read_at(extent.byte_offset(), &mut buffer)?;
        Ok(buffer)
    }

    /// Writes `buffers` one after the other from byte `offset`.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] after an earlier failure; otherwise whatever the device says, which
    /// latches.
    pub(crate) fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        self.writable()?;
        let bytes: usize = buffers.iter().map(|b| b.len()).sum();
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
        self.inner.write_at(offset, buffers).map_err(|e| self.latch(Error::failed(e)))
    }

    /// Makes every write that returned before durable.
    ///
    /// # Errors
    /// As for [`Self::write_at`]; also if another call failed meanwhile.
    pub(crate) fn sync(&self) -> Result<()> {
        let _one_at_a_time = self.syncing.lock();
        self.writable()?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync().map_err(|e| self.latch(Error::failed(e)))?;
        self.writable()
    }

    /// Tells the device that `extent` is no longer needed, if it wants to know.
    pub(crate) fn discard(&self, extent: Extent) {
        if self.writable().is_ok()
            && let Err(error) = self.inner.discard(extent.byte_offset(), extent.byte_len() as u64)
        {
            tracing::debug!(%error, "discard refused");
        }
    }

    /// The error that made the store read-only, if one did.
    pub(crate) fn failure(&self) -> Option<&Error> {
        match self.cause.get() {
            Some(Cause::Failure(error)) => Some(error),
            _ => None,
        }
    }

    /// `Ok` if writes are still possible.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] with the cause.
    pub(crate) fn writable(&self) -> Result<()> {
        match self.cause.get() {
            None => Ok(()),
            Some(Cause::Opened) => {
                Err(Error::new(ErrorKind::ReadOnly, format!("{} is open for reading only", self.name())))
            }
            Some(Cause::Failure(error)) => Err(Error::new(
                ErrorKind::ReadOnly,
                format!(
                    "the store is read-only since an earlier failure ({error}); unmount, check the device, and mount again"
                ),
            )
            .after_failure()),
        }
    }

    /// Makes the store read-only because of `error`, unless it is already; returns the error.
    pub(crate) fn latch(&self, error: Error) -> Error {
        if self.cause.set(Cause::Failure(error.clone())).is_ok() {
            tracing::error!(%error, "the store is read-only from now on");
        }
        error
    }

    /// Lets nothing more be written or discarded: the store is gone, the device may be another's by
    /// now.
    pub(crate) fn retire(&self) {
        let gone = Error::new(crate::ErrorKind::ReadOnly, "the store was dropped");
        // A failure that came before says the same.
        let _ = self.cause.set(Cause::Failure(gone));
    }

    /// What went through so far.
    pub(crate) fn stats(&self) -> DeviceStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeviceStats {
            bytes_read: get(&self.counters.bytes_read),
            bytes_written: get(&self.counters.bytes_written),
            reads: get(&self.counters.reads),
            writes: get(&self.counters.writes),
            syncs: get(&self.counters.syncs),
        }
    }
}

impl std::fmt::Debug for GuardedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GuardedDevice({:?}, failure: {:?})", self.inner, self.failure().map(ToString::to_string))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_storage::{BLOCK, Operation};
    use std::sync::atomic::AtomicBool;

    #[derive(Debug, Default)]
    struct Flaky {
        fail_write: AtomicBool,
        fail_sync: AtomicBool,
    }

    fn check(fail: &AtomicBool, operation: Operation) -> espalier_storage::Result<()> {
        if !fail.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(espalier_storage::Error {
            kind: espalier_storage::ErrorKind::Io,
            operation,
            device: "flaky".into(),
            offset: 0,
            length: 0,
            message: "it broke".into(),
            source: None,
        })
    }

    impl Device for Flaky {
        fn name(&self) -> &str {
            "flaky"
        }
        fn len(&self) -> u64 {
            1 << 20
        }
        fn read_at(&self, _: u64, buffer: &mut [u8]) -> espalier_storage::Result<()> {
            buffer.fill(7);
            Ok(())
        }
        fn write_at(&self, _: u64, _: &[&[u8]]) -> espalier_storage::Result<()> {
            check(&self.fail_write, Operation::Write)
        }
        fn sync(&self) -> espalier_storage::Result<()> {
            check(&self.fail_sync, Operation::Sync)
        }
        fn discard(&self, _: u64, _: u64) -> espalier_storage::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_first_failure_latches() {
        for sync_fails in [false, true] {
            let flaky = Arc::new(Flaky::default());
            let device = GuardedDevice::new(flaky.clone(), false);
            let block = AlignedBuf::zeroed(BLOCK);
            device.write_at(0, &[&block]).unwrap();
            device.sync().unwrap();
            flaky.fail_write.store(!sync_fails, Ordering::Relaxed);
            flaky.fail_sync.store(sync_fails, Ordering::Relaxed);
            let first = if sync_fails { device.sync() } else { device.write_at(0, &[&block]) };
            assert_eq!(first.unwrap_err().kind(), ErrorKind::Io);
            flaky.fail_write.store(false, Ordering::Relaxed);
            flaky.fail_sync.store(false, Ordering::Relaxed);
            for later in [device.sync(), device.write_at(0, &[&block])] {
                let error = later.unwrap_err();
                assert_eq!((error.kind(), error.is_after_failure()), (ErrorKind::ReadOnly, true));
                assert!(error.to_string().contains("it broke"), "{error}");
            }
            assert!(device.failure().is_some());
            device.read_at(0, &mut AlignedBuf::zeroed(BLOCK)).unwrap();
        }
    }

    #[test]
    fn opened_for_reading_writes_nothing() {
        let device = GuardedDevice::new(Arc::new(Flaky::default()), true);
        let error = device.sync().unwrap_err();
        assert_eq!((error.kind(), error.is_after_failure()), (ErrorKind::ReadOnly, false));
        assert!(device.failure().is_none());
    }
}
