//! Space accounting: what the trees in memory will take on the device, and whether space is low.
//!
//! Every block that a checkpoint writes is set aside before. Nodes and parts in memory are
//! *unwritten*: they are counted here after each change of a tree. What absorbing memtables adds to
//! them is reserved by the batches ([`crate::commit::admission`]). Space is *low* when so little is
//! free that nothing is written to make reading faster, and all that absorbing takes has to be
//! reserved. `docs/design/space.md` has the arguments.
//!
//! Protocol: [`SpaceAccounting::recount`] follows each change of a tree, and
//! [`SpaceAccounting::refresh`] each change of what is free; both only look at trees in memory.
//!
//! To count all that is unwritten takes the time for all of it, and a tree changes with each
//! memtable and each clone. So [`SpaceAccounting::recount`] adds what is new: each node and part
//! has a share in the sum from then on until it is written, or no tree has it any more. The sum is
//! never too small. It is too large by what readers keep of replaced trees, and by values of parts
//! that have got their place. So all is counted anew whenever the sum may decide something (when
//! space is low or would seem to be, and before anything is refused), and when it is twice what was
//! counted.

use super::table::IndexTable;
use crate::Result;
use crate::lock_order::{RankedMutex, rank};
use crate::model::options::Tuning;
use crate::space::{BlockCounts, Purpose, Reservation, Space};
use crate::tree::{Root, TreeEditor, TreePolicy, Trees};
use espalier_storage::BLOCK;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The least share of a leaf, in 256ths, that may be on its way to it in large values.
const LEAST_VALUE_QUOTA: u64 = 32;

/// Blocks that may be added to twice what was unwritten before all is counted anew.
const LEAST_ADDED: u64 = 4096;

/// The most bytes of large values in a memtable.
const MAX_MEMTABLE_VALUE_BYTES: u64 = 1 << 30;

/// Blocks that a clone is reckoned at while there is plenty of space: the headers along the borders
/// of source and destination. When space is low, it is found out what they are.
pub(crate) const CLONE_BLOCKS: u64 = 8;

/// See the [module](self).
pub(crate) struct SpaceAccounting {
    space: Arc<Space>,
    trees: Arc<Trees>,
    indexes: Arc<IndexTable>,
    tuning: Tuning,
    /// Blocks that nodes and parts will take which are in memory only, at most.
    unwritten: AtomicU64,
    counting: RankedMutex<Counting, { rank::UNWRITTEN_COUNT }>,
    low_space: AtomicBool,
    is_closing: AtomicBool,
    /// How much of a leaf, in 256ths, may be on its way to it in large values.
    value_quota: AtomicU64,
    /// See [`Self::memtable_value_limit`].
    memtable_value_limit: AtomicU64,
    range_deletes: RangeDeleteReserve,
    /// Checkpoints since the store was opened.
    checkpoints: AtomicU64,
}

/// How the sum of what is unwritten came about.
#[derive(Debug, Default)]
struct Counting {
    /// What was there when all was counted.
    all: u64,
    /// What was added since.
    added: u64,
}

impl Counting {
    /// What is unwritten, at most, if the shares of all that counts come to `shares`.
    fn sum(&self, shares: u64) -> u64 {
        shares.min(self.all + self.added)
    }
}

/// Room that a batch waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedRoom {
    /// Blocks.
    pub(crate) blocks: u64,
    /// What they are for.
    pub(crate) purpose: Purpose,
    /// Of the kept blocks it may have so many.
    pub(crate) drawn: u64,
}

/// True if a store has so little space that nothing is written to make reading faster, and all that
/// absorbing takes has to be reserved.
pub(crate) fn is_low(space: &BlockCounts, unwritten: u64, tuning: &Tuning) -> bool {
    space.free < unwritten + space.reserved + 2 * space.pool + pending_blocks(tuning)
}

/// Blocks that messages of so many bytes may take until they are in a tree, and a share of headers.
pub(crate) fn message_blocks(tuning: &Tuning, bytes: u64) -> u64 {
    part_blocks(tuning, bytes).max((2 * bytes).div_ceil(BLOCK as u64))
}

/// Blocks that `bytes` of messages may take in parts: parts are at least half full, and each may
/// waste most of a block.
pub(crate) fn part_blocks(tuning: &Tuning, bytes: u64) -> u64 {
    let half_part = (tuning.part as u64 / 2).max(64);
    bytes.div_ceil(BLOCK as u64) + bytes / half_part
}

/// Twice what the edges of a root may hold before they are flushed.
pub(crate) fn pending_blocks(tuning: &Tuning) -> u64 {
    2 * part_blocks(tuning, (tuning.fanout * tuning.edge) as u64)
}

/// Blocks that the nodes and parts below `root` will take which are in memory only.
pub(crate) fn unwritten_below(trees: &Trees, root: &Root) -> u64 {
    root.slot.as_ref().map_or(0, |slot| trees.unwritten_blocks(slot))
}

impl SpaceAccounting {
    /// Accounts for the trees of `indexes`.
    pub(crate) fn new(
        space: Arc<Space>,
        trees: Arc<Trees>,
        indexes: Arc<IndexTable>,
        tuning: Tuning,
    ) -> Self {
        Self {
            space,
            trees,
            indexes,
            tuning,
            unwritten: AtomicU64::new(0),
            counting: RankedMutex::default(),
            low_space: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            value_quota: AtomicU64::new(TreePolicy::PLENTY.value_quota),
            memtable_value_limit: AtomicU64::new(MAX_MEMTABLE_VALUE_BYTES),
            range_deletes: RangeDeleteReserve::default(),
            checkpoints: AtomicU64::new(0),
        }
    }

    /// True if space is low.
    pub(crate) fn is_low(&self) -> bool {
        self.low_space.load(Ordering::Relaxed)
    }

    /// From here on space counts as low, until it is looked at again.
    pub(crate) fn assume_low(&self) {
        self.low_space.store(true, Ordering::Relaxed);
    }

    /// Changes trees as far as the space allows that there is now.
    pub(crate) fn edit(&self) -> TreeEditor<'_> {
        self.trees.edit(self.policy())
    }

    /// How trees may be changed with the space that there is now.
    pub(crate) fn policy(&self) -> TreePolicy {
        TreePolicy {
            low_space: self.is_low(),
            closing: self.is_closing.load(Ordering::Relaxed),
            value_quota: self.value_quota.load(Ordering::Relaxed),
            ..TreePolicy::PLENTY
        }
    }

    /// The store is being closed: from here on changes of trees leave out what need not be done.
    pub(crate) fn note_closing(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// Blocks that nodes and parts will take which are in memory only, when they were last counted,
    /// and those for table pages that the lowest level of the pool does not cover.
    pub(crate) fn unwritten_blocks(&self) -> u64 {
        let unwritten = self.unwritten.load(Ordering::Relaxed);
        let pool = self.space.reservations.pool();
        let new = unwritten + self.space.reservations.reserved();
        unwritten + self.space.tables.checkpoint_blocks(new).saturating_sub(pool / 8).min(pool / 2)
    }

    /// The same, counted now.
    pub(crate) fn unwritten_blocks_now(&self) -> u64 {
        self.count_again();
        self.unwritten_blocks()
    }

    /// The same of the tree below `root` alone, counted now, without table pages.
    pub(crate) fn unwritten_below(&self, root: &Root) -> u64 {
        unwritten_below(&self.trees, root)
    }

    /// Blocks that a tree takes beyond what has been counted, at most; takes the time for those.
    pub(crate) fn uncounted_below(&self, root: &Root) -> u64 {
        self.trees.uncounted_blocks(root)
    }

    /// A tree has changed: counts what is new in it, or all.
    pub(crate) fn recount(&self) {
        let mut counting = self.counting.lock();
        self.count(&mut counting, self.is_low());
    }

    /// Counts all that is unwritten, if the sum may be too large; true if it was.
    pub(crate) fn count_again(&self) -> bool {
        let mut counting = self.counting.lock();
        let before = self.unwritten.load(Ordering::Relaxed);
        if counting.added > 0 {
            self.count(&mut counting, true);
        }
        self.unwritten.load(Ordering::Relaxed) < before
    }

    /// Adds what is new to the sum; counts all anew if it has become much, or if it `must`.
    fn count(&self, counting: &mut Counting, must: bool) {
        let roots: Vec<_> = self.indexes.all().iter().map(|index| index.version().root.clone()).collect();
        counting.added += roots.iter().map(|root| self.trees.new_unwritten_blocks(root)).sum::<u64>();
        let mut sum = counting.sum(self.trees.counted_blocks());
        if must || sum > 2 * counting.all + LEAST_ADDED {
            debug_assert!(
                self.trees.unwritten_together(&roots) <= sum,
                "a change added more than was counted"
            );
            let all = roots.iter().map(|root| self.unwritten_below(root)).sum();
            *counting = Counting { all, added: 0 };
            sum = counting.sum(self.trees.counted_blocks());
        }
        self.unwritten.store(sum, Ordering::Relaxed);
    }

    /// The sum as it is, without table pages.
    #[cfg(test)]
    pub(crate) fn unwritten_now(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// What was counted last, without table pages.
    #[cfg(test)]
    pub(crate) fn counted(&self) -> u64 {
        self.count_again();
        self.unwritten.load(Ordering::Relaxed)
    }

    /// True if space would be low with so many blocks more reserved.
    pub(crate) fn would_be_low_with(&self, more: u64) -> bool {
        let more = more + self.space.reservations.pool() + pending_blocks(&self.tuning);
        let is_free = || self.space.reservations.is_free(more, self.unwritten_blocks());
        !(is_free() || self.count_again() && is_free())
    }

    /// More is unwritten than before: from here on space may be low.
    pub(crate) fn note_growth(&self) {
        let seems_low = || is_low(&self.space.block_counts(), self.unwritten_blocks(), &self.tuning);
        if !self.is_low() && seems_low() && (!self.count_again() || seems_low()) {
            self.assume_low();
        }
    }

    /// Takes note of how much space is left.
    pub(crate) fn refresh(&self) {
        self.recount();
        let space = self.space.block_counts();
        let seems_low = || is_low(&space, self.unwritten_blocks(), &self.tuning);
        let low = seems_low() && (!self.count_again() || seems_low());
        self.low_space.store(low, Ordering::Relaxed);
        // A value part takes its space until the last of its values has come down, so reckon with
        // the double of what is on its way, which is nearly twice this share of what there is.
        let used = space.total.saturating_sub(space.free).max(1);
        // Without room even the leaves that they come down to cannot be written: then they wait.
        let quota = match low {
            true => 256,
            false => (space.free * 256 / (4 * used)).clamp(LEAST_VALUE_QUOTA, 256),
        };
        self.value_quota.store(quota, Ordering::Relaxed);
        let least = (self.tuning.fanout * self.tuning.edge / 2) as u64;
        let values = (space.free * BLOCK as u64 / 16).max(least).min(MAX_MEMTABLE_VALUE_BYTES);
        self.memtable_value_limit.store(values, Ordering::Relaxed);
    }

    /// A memtable with more bytes of large values than this is sealed: what they replace takes
    /// space until they have come down in the tree.
    pub(crate) fn memtable_value_limit(&self) -> u64 {
        self.memtable_value_limit.load(Ordering::Relaxed)
    }

    /// Reserves blocks beside what is unwritten.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if there is less for that purpose.
    pub(crate) fn reserve(&self, blocks: u64, purpose: Purpose) -> Result<Reservation> {
        let reserve = || self.space.reservations.reserve(blocks, purpose, self.unwritten_blocks());
        self.or_counted_again(reserve)
    }

    /// What `attempt` gives; if it fails, what it gives when all was counted anew.
    fn or_counted_again<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        match attempt() {
            Err(_) if self.count_again() => attempt(),
            result => result,
        }
    }

    /// The same for a batch that may have `drawn` of the kept blocks.
    ///
    /// # Errors
    /// As for [`Self::reserve`].
    pub(crate) fn reserve_drawing(&self, blocks: u64, purpose: Purpose, drawn: u64) -> Result<Reservation> {
        let reservations = &self.space.reservations;
        self.or_counted_again(|| {
            reservations.reserve_drawing(blocks, purpose, self.unwritten_blocks(), drawn)
        })
    }

    /// Keeps the blocks of a reservation for writes to come.
    pub(crate) fn keep(&self, reservation: Reservation) {
        self.space.reservations.keep(reservation);
    }

    /// So many blocks are no longer kept.
    pub(crate) fn stop_keeping(&self, blocks: u64) {
        if blocks > 0 {
            self.space.reservations.stop_keeping(blocks);
        }
    }

    /// Blocks that hold neither superblocks nor the log.
    pub(crate) fn data_blocks(&self) -> u64 {
        let space = self.space.block_counts();
        space.total - space.fixed
    }

    /// True if there is so much more room than a batch has to leave that waits for it.
    pub(crate) fn has_room(&self, wanted: &WantedRoom) -> bool {
        let purpose = if wanted.purpose == Purpose::Promised { Purpose::Promised } else { Purpose::Growth };
        let has_room = || {
            let unwritten = self.unwritten_blocks();
            self.space.reservations.available(purpose, unwritten, wanted.drawn) >= wanted.blocks
        };
        has_room() || self.count_again() && has_room()
    }

    /// The most that [`Self::reserve`] would grant to [`Purpose::Growth`].
    pub(crate) fn growable(&self) -> u64 {
        self.count_again();
        self.space.reservations.available(Purpose::Growth, self.unwritten_blocks(), 0)
    }

    /// Blocks that are reserved for deleting ranges when they are absorbed.
    pub(crate) fn range_deletes(&self) -> &RangeDeleteReserve {
        &self.range_deletes
    }

    /// Checkpoints since the store was opened.
    pub(crate) fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Ordering::Acquire)
    }

    /// A checkpoint has written what its roots refer to: counts what is left.
    pub(crate) fn note_written(&self) {
        self.count(&mut self.counting.lock(), true);
        self.refresh();
    }

    /// A checkpoint has been made.
    pub(crate) fn note_checkpoint(&self) {
        self.checkpoints.fetch_add(1, Ordering::AcqRel);
    }
}

/// Blocks reserved for deleting ranges when they are absorbed, and not used for that yet.
#[derive(Debug, Default)]
pub(crate) struct RangeDeleteReserve {
    blocks: RankedMutex<RangeDeleteBlocks, { rank::RANGE_DELETE_RESERVE }>,
}

#[derive(Debug, Default)]
struct RangeDeleteBlocks {
    /// Of what was committed before the cut of the last checkpoint.
    before_cut: u64,
    /// And after it.
    after_cut: u64,
}

impl RangeDeleteReserve {
    /// So many blocks more are reserved. Under the commit lock.
    pub(crate) fn add(&self, blocks: u64) {
        if blocks > 0 {
            self.blocks.lock().after_cut += blocks;
        }
    }

    /// Batches from here on are not in the checkpoint that begins. Under the commit lock.
    pub(crate) fn cut(&self) {
        let mut blocks = self.blocks.lock();
        *blocks = RangeDeleteBlocks { before_cut: blocks.after_cut, after_cut: 0 };
    }

    /// The checkpoint after the last cut has failed.
    pub(crate) fn undo_cut(&self) {
        let mut blocks = self.blocks.lock();
        *blocks = RangeDeleteBlocks { before_cut: 0, after_cut: blocks.before_cut + blocks.after_cut };
    }

    /// All that was committed before the last cut is absorbed and counted.
    pub(crate) fn finish_cut(&self) {
        self.blocks.lock().before_cut = 0;
    }

    /// Takes so many of the blocks, first of those before the cut; false if there are fewer.
    pub(super) fn take(&self, count: u64) -> bool {
        let mut blocks = self.blocks.lock();
        let enough = count <= blocks.before_cut + blocks.after_cut;
        if enough {
            let of_before = count.min(blocks.before_cut);
            blocks.before_cut -= of_before;
            blocks.after_cut -= count - of_before;
        }
        enough
    }
}

#[cfg(test)]
mod tests;
