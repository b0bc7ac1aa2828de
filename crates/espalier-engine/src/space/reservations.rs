//! Reservations: a full disk is an answer to a commit, and never an accident of a checkpoint.
//!
//! A commit reserves what its batch may cost until it is in the tree. Reservations only count: they
//! name no blocks. Their sum never exceeds what is free above the *pool*, a share of the store that
//! `mkfs` sets aside for deleting, truncating and checkpoints.

use super::free_blocks::FreeBlocks;
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What blocks are reserved for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Adds data: the pool is not for it.
    Growth,
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
    reserved: AtomicU64,
    /// Blocks that only [`Purpose::Essential`] gets.
    pool: AtomicU64,
}

impl Reservations {
    /// For a data region of `region` blocks, with a pool of 3% of it, between 1.5 MiB and 32 GiB,
    /// at most an eighth. Each [`Purpose`] may draw the pool down to a level of its own
    /// (`docs/design/space.md`). With so much free, parts of usual sizes also find runs that are
    /// long enough.
    pub(super) fn new(blocks: Arc<FreeBlocks>, region: u64) -> Self {
        Self { blocks, reserved: AtomicU64::new(0), pool: AtomicU64::new(pool_of(region)) }
    }

    /// The data region has `region` blocks now.
    pub(super) fn grow(&self, region: u64) {
        self.pool.store(pool_of(region), Ordering::Release);
    }

    /// Blocks reserved for accepted batches.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
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
        let (free, pool) = (self.blocks.count().saturating_sub(unwritten), self.pool());
        let limit = match purpose {
            Purpose::Growth => free.saturating_sub(pool),
            // The rest is for what makes the deleted free, and for checkpoints.
            Purpose::Essential => free.saturating_sub(pool / 8 * 3),
            Purpose::Last => free.saturating_sub(pool / 16 * 5),
            Purpose::Clear => free.saturating_sub(pool / 6),
            Purpose::Accepted => u64::MAX,
        };
        if !self.try_add(blocks, limit) {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "{blocks} blocks are needed, but of {free} that are free and not needed by what is in \
                     memory {} are reserved and {pool} set aside",
                    self.reserved(),
                ),
            ));
        }
        Ok(Reservation { all: self.clone(), blocks })
    }

    /// True if [`Self::reserve`] would grant so many to [`Purpose::Growth`].
    pub(crate) fn can_grow(&self, blocks: u64, unwritten: u64) -> bool {
        let all = self.reserved().saturating_add(unwritten).saturating_add(blocks);
        self.blocks.count() >= all.saturating_add(self.pool())
    }

    /// The most blocks that it would grant.
    pub(crate) fn growable_blocks(&self, unwritten: u64) -> u64 {
        let all = self.reserved().saturating_add(unwritten).saturating_add(self.pool());
        self.blocks.count().saturating_sub(all)
    }

    fn try_add(&self, blocks: u64, limit: u64) -> bool {
        let add = |reserved: u64| reserved.checked_add(blocks).filter(|sum| *sum <= limit);
        self.reserved.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
    }

    fn subtract(&self, blocks: u64) {
        self.reserved.fetch_sub(blocks, Ordering::AcqRel);
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
