//! The open redo log: its components, sync, statistics, trimming.

use super::format::{BLOCK_PAYLOAD_BYTES, LogPosition, StoreTag};
use super::keep_apart::KeepApart;
use super::state::{LogCounters, LogGuard, LogState};
use super::{Binder, LogConfig};
use crate::device::GuardedDevice;
use crate::lock_order::{RankedMutex, rank};
use crate::model::error::Context;
use crate::{Error, Extent, Lsn, Result};
use espalier_storage::BLOCK;
use espalier_sync::Condvar;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The redo log. See the [module](super).
pub(crate) struct Log {
    pub(super) device: Arc<GuardedDevice>,
    pub(super) region: Extent,
    pub(super) tag: StoreTag,
    pub(super) session: u64,
    pub(super) binder: Arc<dyn Binder>,
    pub(super) config: LogConfig,
    /// Where values go into value parts of their own.
    pub(crate) apart: Arc<KeepApart>,
    /// Bytes that batches take in memory which the log has not written.
    pub(super) memory: Arc<AtomicU64>,
    pub(super) state: RankedMutex<LogState, { rank::LOG }>,
    /// Something in `state` changed that a thread may wait for.
    pub(super) changed: Condvar,
}

impl Log {
    /// Makes what has been written durable, with the lock released meanwhile. Groups may be written
    /// at the same time; those that end before this does are not covered.
    pub(super) fn sync_step(&self, state: &mut LogGuard<'_>) -> Result<()> {
        let (written, head, values) = (state.progress.written, state.ring.head, state.ring.unsynced_values);
        state.syncing = true;
        let result = self.unlocked(state, || self.device.sync());
        state.syncing = false;
        self.changed.notify_all();
        result.context(|| "syncing the log".into()).map_err(|error| state.fail(error))?;
        state.progress.durable = state.progress.durable.max(written);
        state.ring.synced = head;
        state.ring.unsynced_values -= values;
        state.counters.syncs += 1;
        Ok(())
    }

    /// Does `work` with the lock released. If it panics the log fails, as other threads wait for
    /// the end of the work.
    pub(super) fn unlocked<T>(&self, state: &mut LogGuard<'_>, work: impl FnOnce() -> T) -> T {
        state.unlocked(|| catch_unwind(AssertUnwindSafe(work))).unwrap_or_else(|panic| {
            state.fail(Error::damaged("writing the log panicked: this is a bug, please report it"));
            self.changed.notify_all();
            resume_unwind(panic)
        })
    }

    /// Bytes of batches (an upper bound) that no group has taken yet.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.state.lock().pending.bytes
    }

    /// The same with those of groups that are being written.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.pending.bytes + state.under_way.bytes
    }

    /// Bytes of memory that batches take which the log has not written, without large values.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// True if one more could write a group now.
    pub(crate) fn has_turn(&self) -> bool {
        self.state.lock().under_way.len() < self.config.groups
    }

    /// The last batch that was written, durably or not.
    pub(crate) fn written_lsn(&self) -> Lsn {
        self.state.lock().progress.written
    }

    /// Bytes of the region that hold groups which are not trimmed.
    pub(crate) fn used_bytes(&self) -> u64 {
        let state = self.state.lock();
        (state.ring.head - state.ring.tail) * BLOCK as u64
    }

    /// Bytes of the region.
    pub(crate) fn capacity(&self) -> u64 {
        self.region.byte_len() as u64
    }

    /// The last batch that is durable.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        self.state.lock().progress.durable
    }

    /// The last batch that was appended.
    #[cfg(test)]
    pub(crate) fn appended_lsn(&self) -> Lsn {
        self.state.lock().progress.appended
    }

    /// How many calls of `sync` wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting.values().sum()
    }

    /// What has been done so far.
    pub(crate) fn counters(&self) -> LogCounters {
        self.state.lock().counters
    }

    /// Where replay must start if batches up to `lsn` need none.
    ///
    /// The caller syncs the device before it stores the position: it says that everything written
    /// so far is durable, so that damage to it is never taken for a torn tail.
    pub(crate) fn position_after(&self, lsn: Lsn) -> LogPosition {
        let state = self.state.lock();
        let first = state.ring.groups.partition_point(|group| group.last <= lsn);
        let (block, chain) = match state.ring.groups.get(first) {
            Some(group) => (group.start, group.previous),
            None => (state.ring.head, state.ring.chain),
        };
        LogPosition { block, lsn, chain, synced: state.ring.head }
    }

    /// Tells a device that keeps the order of writes, and so stores what it is not told about, that
    /// blocks before `end` are not needed. One thread trims at a time, and nothing is written over
    /// these blocks before it has.
    fn discard_before(&self, end: u64) {
        if !self.device.keeps_order() {
            return;
        }
        let (mut at, end) = {
            let state = self.state.lock();
            (state.ring.tail, end.min(state.ring.head))
        };
        let ring = u64::from(self.region.blocks);
        while at < end {
            let place = at % ring;
            let blocks = (ring - place).min(end - at) as u32;
            self.device.discard(Extent { start: self.region.start + place, blocks });
            at += u64::from(blocks);
        }
    }

    /// Gives up everything before `position`: a superblock that is durable starts replay there.
    /// Batches that it covers and that were never written need not be any more.
    pub(crate) fn trim(&self, position: LogPosition) {
        self.discard_before(position.block);
        let mut gone = (Vec::new(), Vec::new());
        let mut state = self.state.lock();
        debug_assert!(
            position.block <= state.ring.head && position.lsn <= state.progress.appended,
            "trim behind the end"
        );
        state.ring.tail = state.ring.tail.max(position.block.min(state.ring.head));
        while state.ring.groups.front().is_some_and(|group| group.start < state.ring.tail) {
            gone.0.extend(state.ring.groups.pop_front());
        }
        while state.pending.batches.front().is_some_and(|next| next.batch.lsn <= position.lsn) {
            gone.1.extend(state.pending.batches.pop_front());
        }
        state.pending.bytes -= gone.1.iter().map(|pending| pending.bound).sum::<u64>();
        state.progress.written = state.progress.written.max(position.lsn);
        state.progress.durable = state.progress.durable.max(position.lsn);
        drop(state);
        self.changed.notify_all();
        // Dropping handles may free parts, which takes other locks than ours.
        drop(gone);
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Log")
            .field("region", &self.region)
            .field("blocks", &(state.ring.tail..state.ring.head))
            .field("synced", &state.ring.synced)
            .field("lsn", &[state.progress.appended.0, state.progress.written.0, state.progress.durable.0])
            .finish()
    }
}

/// The largest batch that a region takes: half of it, so that one can be written while another
/// waits for its checkpoint.
pub(super) fn max_batch(region: Extent) -> u64 {
    u64::from(region.blocks / 2) * BLOCK_PAYLOAD_BYTES as u64 - super::format::GROUP_HEADER_BYTES as u64
}
