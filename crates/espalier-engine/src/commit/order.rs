//! Commit order: what the commit lock guards. The numbers of the last batch, the batch that small
//! ones join, and the space that batches take until a checkpoint covers them.

use super::coalescing::CoalescedBatch;
use crate::lock_order::{RankedMutexGuard, rank};
use crate::model::ids::{Lsn, Msn};
use crate::space::Reservation;

/// What batches take on the device that wait for a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct PendingSpace {
    pub(crate) reserved: Option<Reservation>,
    /// Bytes of the batches, without what has found its place on the device.
    pub(crate) bytes: u64,
    /// Blocks for the clones in them.
    pub(crate) clone_blocks: u64,
    /// Blocks that were reserved so that their ranges can be deleted when they are absorbed.
    pub(crate) range_delete_blocks: u64,
}

impl PendingSpace {
    /// Adds what other batches take.
    pub(crate) fn append(&mut self, other: PendingSpace) {
        let PendingSpace { reserved, bytes, clone_blocks, range_delete_blocks } = other;
        self.bytes += bytes;
        self.clone_blocks += clone_blocks;
        self.range_delete_blocks += range_delete_blocks;
        if let Some(reserved) = reserved {
            self.reserve(reserved);
        }
    }

    /// Adds blocks that are reserved.
    pub(crate) fn reserve(&mut self, more: Reservation) {
        match &mut self.reserved {
            Some(reserved) => reserved.absorb(more),
            none => *none = Some(more),
        }
    }

    /// Blocks for clones and for deleting ranges.
    pub(crate) fn other_blocks(&self) -> u64 {
        self.clone_blocks + self.range_delete_blocks
    }
}

/// The commit lock, held.
pub(crate) type OrderGuard<'a> = RankedMutexGuard<'a, CommitOrder, { rank::COMMIT }>;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct CommitOrder {
    pub(crate) last_lsn: Lsn,
    pub(crate) last_msn: Msn,
    /// What the batches take that no checkpoint covers.
    pub(crate) pending: PendingSpace,
    /// Bytes at most that the log still has to write for batches which the checkpoint under way
    /// covers.
    pub(crate) covered_bytes: u64,
    /// What has been accepted and has no numbers yet. Its batch will be the next one.
    pub(crate) coalesced: CoalescedBatch,
}

impl CommitOrder {
    /// The order after batch `lsn`, whose last message was `msn`.
    pub(crate) fn after(lsn: Lsn, msn: Msn) -> Self {
        Self { last_lsn: lsn, last_msn: msn, ..Self::default() }
    }

    /// Large values of `bytes` bytes now lie in their place: nothing need be reserved for them any
    /// more.
    pub(crate) fn note_bound(&mut self, bytes: u64) {
        let covered = self.covered_bytes.min(bytes);
        self.covered_bytes -= covered;
        self.pending.bytes = self.pending.bytes.saturating_sub(bytes - covered);
    }

    /// So many bytes that were to come into the store will not.
    pub(crate) fn note_superseded(&mut self, bytes: u64) {
        self.pending.bytes -= bytes.min(self.pending.bytes);
    }
}

/// The commit lock with what a batch takes reserved.
pub(crate) struct Admitted<'a> {
    pub(super) order: OrderGuard<'a>,
    /// Blocks of that which are for deleting its ranges when it is absorbed.
    pub(super) range_delete_blocks: u64,
    /// And for its clones.
    pub(super) clone_blocks: u64,
}
