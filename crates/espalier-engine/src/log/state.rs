//! The state of the log that its lock protects: pending batches, groups under way, the ring.

use super::LoggedBatch;
use super::format::blocks_for;
use super::held_memory::HeldMemory;
use crate::lock_order::{RankedMutexGuard, rank};
use crate::model::piece::PieceHandle;
use crate::{Error, Lsn, Result};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// What the log has done since it was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LogCounters {
    /// Groups written.
    pub groups: u64,
    /// Batches in them.
    pub batches: u64,
    /// Bytes written to the region.
    pub bytes: u64,
    /// Bytes of large values that were written into value parts for a group.
    pub bound_bytes: u64,
    /// Operations not written because a later one of their group wiped them out.
    pub superseded: u64,
    /// Device syncs.
    pub syncs: u64,
}

/// The lock of the log, held.
pub(super) type LogGuard<'a> = RankedMutexGuard<'a, LogState, { rank::LOG }>;

/// What the log holds and how far it has come.
pub(super) struct LogState {
    pub(super) pending: PendingBatches,
    pub(super) progress: LogProgress,
    pub(super) ring: Ring,
    /// The groups that have been begun and have not ended.
    pub(super) under_way: GroupsUnderWay,
    /// A thread syncs the device, with the lock released.
    pub(super) syncing: bool,
    /// The LSNs that callers of `sync` wait for, with how many do.
    pub(super) waiting: BTreeMap<Lsn, usize>,
    /// The first failure.
    pub(super) failed: Option<Error>,
    pub(super) counters: LogCounters,
}

/// Last batch appended, written and synced. What a trim covers counts as all three.
pub(super) struct LogProgress {
    pub(super) appended: Lsn,
    pub(super) written: Lsn,
    pub(super) durable: Lsn,
}

/// The blocks of the region that are in use. Blocks have ascending numbers, taken modulo the
/// length of the region.
pub(super) struct Ring {
    /// Number of the next block to write.
    pub(super) head: u64,
    /// Number of the first block that must stay.
    pub(super) tail: u64,
    /// Blocks with smaller numbers are durable.
    pub(super) synced: u64,
    /// Checksum of the first block of the last group.
    pub(super) chain: u64,
    /// Bytes of value parts named since the last sync.
    pub(super) unsynced_values: u64,
    /// The groups in the region that are not trimmed, in order.
    pub(super) groups: VecDeque<WrittenGroup>,
}

/// Batches that no group has taken yet.
#[derive(Default)]
pub(super) struct PendingBatches {
    pub(super) batches: VecDeque<PendingBatch>,
    /// Sum of their bounds.
    pub(super) bytes: u64,
}

pub(super) struct PendingBatch {
    pub(super) batch: LoggedBatch,
    /// Upper bound of its bytes in the log.
    pub(super) bound: u64,
    pub(super) held: HeldMemory,
}

/// A group in the region.
pub(super) struct WrittenGroup {
    /// Number of its first block.
    pub(super) start: u64,
    /// Its last batch.
    pub(super) last: Lsn,
    /// The predecessor it names.
    pub(super) previous: u64,
    /// Holds the value parts it names.
    pub(super) parts: Vec<Arc<PieceHandle>>,
}

impl LogState {
    /// A log whose last batch is `last`, durable in `ring`.
    pub(super) fn new(last: Lsn, ring: Ring) -> Self {
        Self {
            pending: PendingBatches::default(),
            progress: LogProgress { appended: last, written: last, durable: last },
            ring,
            under_way: GroupsUnderWay::default(),
            syncing: false,
            waiting: BTreeMap::new(),
            failed: None,
            counters: LogCounters::default(),
        }
    }

    pub(super) fn alive(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// The log is over; returns why.
    pub(super) fn fail(&mut self, error: Error) -> Error {
        self.failed.get_or_insert(error).clone()
    }

    /// True if a group of batches up to `target` can be begun beside those under way.
    pub(super) fn may_begin(&self, target: Lsn, groups: usize) -> bool {
        self.under_way.len() < groups
            && self.pending.batches.front().is_some_and(|next| next.batch.lsn <= target)
    }

    /// True if a caller waits for a sync and for nothing else, and no sync is under way. Such a
    /// caller must not wait for groups of others: the next thread that would write a group syncs
    /// first.
    pub(super) fn must_sync(&self) -> bool {
        let mut unsynced = self.waiting.range((Bound::Excluded(self.progress.durable), Bound::Unbounded));
        !self.syncing && unsynced.next().is_some_and(|(lsn, _)| *lsn <= self.progress.written)
    }
}

/// Groups that have been begun and have not ended. They end in the order in which they began, until
/// the log fails.
#[derive(Default)]
pub(super) struct GroupsUnderWay {
    begun: u64,
    ended: u64,
    /// Sum of the bounds of their batches.
    pub(super) bytes: u64,
    /// Blocks that they take in the region at most.
    pub(super) blocks: u64,
}

impl GroupsUnderWay {
    pub(super) fn len(&self) -> usize {
        (self.begun - self.ended) as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.begun == self.ended
    }

    /// Counts one more; returns its turn.
    pub(super) fn begin(&mut self, bound: u64) -> u64 {
        self.bytes += bound;
        self.blocks += blocks_for(bound);
        self.begun += 1;
        self.begun - 1
    }

    pub(super) fn has_turn(&self, turn: u64) -> bool {
        self.ended == turn
    }

    /// A group has ended: the one that has its turn, or any if the log has failed.
    pub(super) fn end(&mut self, bound: u64) {
        self.bytes -= bound;
        self.blocks -= blocks_for(bound);
        self.ended += 1;
    }
}
