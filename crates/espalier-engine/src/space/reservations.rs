//! Reservations: a full disk is an answer to a commit, and never an accident of a checkpoint.
//!
//! A commit reserves what its batch may cost until it is in the tree. Reservations only count: they
//! name no blocks. Their sum never exceeds what is free above the *pool*, a share of the store that
//! `mkfs` sets aside for deleting, truncating and checkpoints.
//!
//! Beside them some blocks are *kept for writes* to come: the upper layer asks for them once
//! ([`Reservations::keep`]), and batches draw on them. No other batch gets them.

use super::free_blocks::FreeBlocks;
use crate::lock_order::{RankedMutex, rank};
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What blocks are reserved for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Adds data: the pool is not for it.
    Growth,
    /// Writes where blocks are kept for it, or in place of what is there: what it takes beside that
    /// comes back, or has come back before, so it may draw on three eighths of the pool.
    Promised,
    /// Frees space in the end (deletes), or must not fail: may draw on the pool.
    Essential,
    /// The same when there is nothing left that could be moved to make room: draws on what was kept
    /// for that.
    Last,
    /// The same, and it does nothing but delete ranges, which gives back at least what it takes:
    /// leaves only what the flushes and checkpoints need that make the deleted free.
    Clear,
    /// What was accepted already, which cannot be refused any more.
    Accepted,
}

/// The counters behind reservations.
pub(crate) struct Reservations {
    blocks: Arc<FreeBlocks>,
    counts: RankedMutex<Counts, { rank::RESERVATIONS }>,
    /// Blocks that only [`Purpose::Essential`] gets.
    pool: AtomicU64,
}

/// Blocks that are spoken for.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    /// Reserved for accepted batches.
    reserved: u64,
    /// Kept for writes to come.
    kept: u64,
}

impl Reservations {
    /// For a data region of `region` blocks, with a pool of 3% of it, between 1.5 MiB and 32 GiB,
    /// at most an eighth. Each [`Purpose`] may draw the pool down to a level of its own
    /// (`docs/design/space.md`). With so much free, parts of usual sizes also find runs that are
    /// long enough.
    pub(super) fn new(blocks: Arc<FreeBlocks>, region: u64) -> Self {
        Self { blocks, counts: RankedMutex::default(), pool: AtomicU64::new(pool_of(region)) }
    }

    /// The data region has `region` blocks now.
    pub(super) fn grow(&self, region: u64) {
        self.pool.store(pool_of(region), Ordering::Release);
    }

    /// Blocks reserved for accepted batches.
    pub(crate) fn reserved(&self) -> u64 {
        self.counts.lock().reserved
    }

    /// Blocks kept for writes to come.
    pub(crate) fn kept(&self) -> u64 {
        self.counts.lock().kept
    }

    /// Keeps the blocks of a reservation for writes to come.
    pub(crate) fn keep(&self, mut reservation: Reservation) {
        let blocks = std::mem::take(&mut reservation.blocks);
        let mut counts = self.counts.lock();
        counts.reserved -= blocks;
        counts.kept += blocks;
    }

    /// Keeps so many blocks in place of those before.
    pub(crate) fn keep_again(&self, blocks: u64) {
        self.counts.lock().kept = blocks;
    }

    /// So many blocks are no longer kept.
    pub(crate) fn stop_keeping(&self, blocks: u64) {
        let mut counts = self.counts.lock();
        counts.kept = counts.kept.saturating_sub(blocks);
    }

    /// Blocks set aside for deleting and checkpoints.
    pub(crate) fn pool(&self) -> u64 {
        self.pool.load(Ordering::Acquire)
    }

    /// Reserves `blocks` blocks, beside `unwritten` ones that the caller will need for what is in
    /// memory only.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if so many are not free, reserved blocks and (for growth) the pool
    /// aside. Blocks with a deferred free become free with the next checkpoint: then it is worth
    /// trying again.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        blocks: u64,
        purpose: Purpose,
        unwritten: u64,
    ) -> Result<Reservation> {
        self.reserve_drawing(blocks, purpose, unwritten, 0)
    }

    /// As [`Self::reserve`], for a batch that may have `drawn` of the kept blocks.
    ///
    /// # Errors
    /// As for [`Self::reserve`].
    pub(crate) fn reserve_drawing(
        self: &Arc<Self>,
        blocks: u64,
        purpose: Purpose,
        unwritten: u64,
        drawn: u64,
    ) -> Result<Reservation> {
        let mut counts = self.counts.lock();
        let limit = self.limit(*counts, purpose, unwritten, drawn);
        let Some(sum) = counts.reserved.checked_add(blocks).filter(|sum| *sum <= limit) else {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "{blocks} blocks are needed, but of {} that are free and not needed by what is in memory \
                     {} are reserved, {} kept for writes, and {} set aside",
                    self.blocks.count().saturating_sub(unwritten),
                    counts.reserved,
                    counts.kept,
                    self.pool()
                ),
            ));
        };
        counts.reserved = sum;
        drop(counts);
        Ok(Reservation { all: self.clone(), blocks })
    }

    /// True if [`Self::reserve`] would grant so many to [`Purpose::Growth`] if nothing were kept.
    pub(crate) fn is_free(&self, blocks: u64, unwritten: u64) -> bool {
        let all = self.reserved().saturating_add(unwritten).saturating_add(blocks);
        self.blocks.count() >= all.saturating_add(self.pool())
    }

    /// The most that it would grant for that, to a batch that draws on `drawn` kept blocks.
    pub(crate) fn available(&self, purpose: Purpose, unwritten: u64, drawn: u64) -> u64 {
        let counts = *self.counts.lock();
        self.limit(counts, purpose, unwritten, drawn).saturating_sub(counts.reserved)
    }

    /// How many blocks may be reserved in all when some are for that purpose.
    fn limit(&self, counts: Counts, purpose: Purpose, unwritten: u64, drawn: u64) -> u64 {
        let free = self.blocks.count().saturating_sub(unwritten);
        let free = free.saturating_sub(counts.kept.saturating_sub(drawn));
        let pool = self.pool();
        match purpose {
            Purpose::Growth => free.saturating_sub(pool),
            Purpose::Promised => free.saturating_sub(pool / 8 * 5),
            // The rest is for what makes the deleted free, and for checkpoints.
            Purpose::Essential => free.saturating_sub(pool / 8 * 3),
            Purpose::Last => free.saturating_sub(pool / 16 * 5),
            Purpose::Clear => free.saturating_sub(pool / 6),
            Purpose::Accepted => u64::MAX,
        }
    }

    fn subtract(&self, blocks: u64) {
        self.counts.lock().reserved -= blocks;
    }
}

fn pool_of(blocks: u64) -> u64 {
    (blocks * 3 / 100).clamp(384, 8 << 20).min(blocks / 8)
}

/// Blocks that are reserved; dropping it gives them back.
pub(crate) struct Reservation {
    all: Arc<Reservations>,
    blocks: u64,
}

impl Reservation {
    /// How many blocks are reserved.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Gives back what exceeds `blocks`.
    pub(crate) fn shrink(&mut self, blocks: u64) {
        let excess = self.blocks.saturating_sub(blocks);
        self.blocks -= excess;
        self.all.subtract(excess);
    }

    /// Takes over the blocks of another.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        self.blocks += std::mem::take(&mut other.blocks);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.all.subtract(self.blocks);
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation({} blocks)", self.blocks)
    }
}
