//! Promised blocks: disk full is an answer to a commit, not an accident of a checkpoint.
//!
//! A commit reserves what its batch may cost until it is in the tree. Reservations only count: they
//! name no blocks. The sum of them never exceeds what is free above the *pool*, a share of the
//! store that `mkfs` sets aside for deleting, truncating and checkpoints.

use super::Space;
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who asks for blocks.
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
pub(super) struct Promises {
    promised: AtomicU64,
    /// Blocks that only [`Purpose::Essential`] gets.
    pool: AtomicU64,
}

impl Promises {
    /// For a data region of `blocks`: 3% of it, between 1.5 MiB and 32 GiB, at most an eighth. Who
    /// draws on it leaves it at a level of his own (`docs/design/space.md`). With so much
    /// free, parts of usual sizes also find runs that are long enough.
    pub(super) fn new(blocks: u64) -> Self {
        Self { promised: AtomicU64::new(0), pool: AtomicU64::new(pool_of(blocks)) }
    }

    /// The data region has `blocks` blocks now.
    pub(super) fn grow(&self, blocks: u64) {
        self.pool.store(pool_of(blocks), Ordering::Release);
    }

    pub(super) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    pub(super) fn pool(&self) -> u64 {
        self.pool.load(Ordering::Acquire)
    }

    fn try_add(&self, blocks: u64, limit: u64) -> bool {
        let add = |promised: u64| promised.checked_add(blocks).filter(|sum| *sum <= limit);
        self.promised.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
    }

    fn subtract(&self, blocks: u64) {
        self.promised.fetch_sub(blocks, Ordering::AcqRel);
    }
}

fn pool_of(blocks: u64) -> u64 {
    (blocks * 3 / 100).clamp(384, 8 << 20).min(blocks / 8)
}

/// Blocks promised to somebody; dropping it gives them back.
pub(crate) struct Reservation {
    space: Arc<Space>,
    blocks: u64,
}

impl Reservation {
    pub(super) fn take(space: Arc<Space>, blocks: u64, purpose: Purpose, owed: u64) -> Result<Self> {
        let free = space.free_blocks().saturating_sub(owed);
        let limit = match purpose {
            Purpose::Growth => free.saturating_sub(space.promises.pool()),
            // The rest is for what makes the deleted free, and for checkpoints.
            Purpose::Essential => free.saturating_sub(space.promises.pool() / 8 * 3),
            Purpose::Last => free.saturating_sub(space.promises.pool() / 16 * 5),
            Purpose::Clear => free.saturating_sub(space.promises.pool() / 6),
            Purpose::Accepted => u64::MAX,
        };
        if !space.promises.try_add(blocks, limit) {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "{blocks} blocks are needed, but of {} that are free and not owed {} are promised and {} set aside",
                    free,
                    space.promises.promised(),
                    space.promises.pool()
                ),
            ));
        }
        Ok(Self { space, blocks })
    }

    /// How many blocks are promised.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Gives back what exceeds `blocks`.
    pub(crate) fn shrink(&mut self, blocks: u64) {
        let excess = self.blocks.saturating_sub(blocks);
        self.blocks -= excess;
        self.space.promises.subtract(excess);
    }

    /// Takes over the blocks of another.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        self.blocks += std::mem::take(&mut other.blocks);
    }
}

impl Space {
    /// Blocks promised to accepted batches.
    pub(crate) fn promised(&self) -> u64 {
        self.promises.promised()
    }

    /// Blocks set aside for deleting and checkpoints.
    pub(crate) fn pool(&self) -> u64 {
        self.promises.pool()
    }

    /// True if [`Space::reserve`] would grant this to [`Purpose::Growth`].
    pub(crate) fn can_grow(&self, blocks: u64, owed: u64) -> bool {
        let all = self.promises.promised().saturating_add(owed).saturating_add(blocks);
        self.free_blocks() >= all.saturating_add(self.promises.pool())
    }

    /// The most that it would.
    pub(crate) fn growable(&self, owed: u64) -> u64 {
        let all = self.promises.promised().saturating_add(owed).saturating_add(self.promises.pool());
        self.free_blocks().saturating_sub(all)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.space.promises.subtract(self.blocks);
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation({} blocks)", self.blocks)
    }
}
