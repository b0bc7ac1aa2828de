//! Low-space reclaim: makes room before a commit is refused.
//!
//! Protocol: a batch that finds too few blocks ([`crate::commit::admission`]) is not refused before
//! [`LowSpaceReclaim::make_space`] has found nothing left to do: it makes checkpoints, moves
//! messages that hold space back down to the leaves, one leaf at a time, and rewrites leaves whose
//! value parts hold much that is dead. `docs/design/space.md`, says why that is enough to empty a
//! full store.

use super::flusher::{FlushShare, Flushed, Flusher};
use super::sparse_values::{Effort, SparseValues};
use crate::checkpoint::Checkpointer;
use crate::commit::pipeline::CommitPipeline;
use crate::index::Index;
use crate::index::accounting::{SpaceAccounting, WantedRoom, part_blocks};
use crate::index::backlog::FlushBacklog;
use crate::index::table::IndexTable;
use crate::lock_order::{RankedMutex, rank};
use crate::model::batch::Batch;
use crate::model::ids::IndexId;
use crate::model::key::{Key, KeyRange};
use crate::signal::WorkSignal;
use crate::space::Purpose;
use crate::tree::{Footprint, Relocation, Root, Trees};
use crate::{ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Leaves looked at on behalf of one commit.
const MAX_SWEEP_VISITS: usize = 512;

/// Leaves written on behalf of one commit.
const MAX_LEAVES_WRITTEN: usize = 64;

/// Slices of one index that may be refused before nothing more is tried.
const MAX_REFUSED_SLICES: usize = 64;

/// See the [module](self).
pub(crate) struct LowSpaceReclaim {
    pub(crate) trees: Arc<Trees>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) backlog: Arc<FlushBacklog>,
    pub(crate) signal: Arc<WorkSignal>,
    pub(crate) pipeline: Arc<CommitPipeline>,
    pub(crate) checkpointer: Arc<Checkpointer>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) sparse: Arc<SparseValues>,
    pub(crate) progress: ReclaimProgress,
}

/// How far reclaim has come.
#[derive(Debug)]
pub(crate) struct ReclaimProgress {
    /// The last batch when there was nothing left to move down.
    exhausted_at: AtomicU64,
    /// Where the search for leaves worth rewriting goes on.
    swept: RankedMutex<BTreeMap<IndexId, Key>, { rank::SWEPT_LEAVES }>,
}

impl Default for ReclaimProgress {
    fn default() -> Self {
        Self { exhausted_at: AtomicU64::new(u64::MAX), swept: RankedMutex::default() }
    }
}

impl LowSpaceReclaim {
    /// There is more room than there was: what did not fit may fit now.
    pub(crate) fn note_more_room(&self) {
        self.backlog.forget_refusal();
        self.progress.exhausted_at.store(u64::MAX, Ordering::Release);
        self.accounting.refresh();
        self.signal.note_progress();
        self.signal.request_work();
    }

    /// Blocks that are written to delete the ranges of a batch when it is absorbed, if it does
    /// little else and the checkpoint after that gives back at least as much as it takes.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn gives_back(&self, batch: &Batch) -> Result<Option<u64>> {
        let Some(ranges) = batch.cleared() else { return Ok(None) };
        let _counted = self.checkpointer.lock_out_checkpoints();
        let (mut written, mut takes) = (0, 0);
        for id in BTreeSet::from_iter(batch.indexes()) {
            let Some(index) = self.indexes.get(id) else { continue };
            let root = index.version().root.clone();
            let mut cleared = root.clone();
            for (_, range) in ranges.iter().filter(|(of, _)| *of == id) {
                if root.height > 0 {
                    cleared = self.accounting.edit().without_range(&cleared, range)?;
                }
            }
            let net = |root: &Root| self.flusher.footprint(&index, root, u64::MAX).map(Footprint::net);
            takes += net(&cleared)? - net(&root)?;
            // Headers with messages on their edges may take a little more.
            let unwritten = |root: &Root| self.accounting.unwritten_below(root);
            written += unwritten(&cleared).saturating_sub(unwritten(&root)) + 2;
            if batch.has_points(id) {
                takes += self.accounting.edit().absorb_cost(&cleared)?.of(1) as i64;
            }
        }
        takes += part_blocks(&self.trees.tuning, batch.bytes as u64) as i64;
        Ok((takes <= 0).then_some(written))
    }

    /// Makes the room that is wanted, if that can be done. False if there was nothing left to move
    /// or rewrite.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn make_space(&self, wanted: &WantedRoom) -> Result<bool> {
        let share = match wanted.purpose {
            Purpose::Growth | Purpose::Promised => FlushShare::Freed,
            _ => FlushShare::Urgent,
        };
        self.checkpoint_twice()?;
        let last = self.pipeline.lock_applied()?.last_lsn.0;
        if self.progress.exhausted_at.load(Ordering::Acquire) == last {
            return Ok(false);
        }
        self.accounting.assume_low();
        let mut left = MAX_LEAVES_WRITTEN;
        if self.sparse.is_empty() {
            self.choose_sparse(wanted.purpose)?;
        }
        while !self.accounting.has_room(wanted) && left > 0 {
            let before = left;
            self.move_down(share, &mut left)?;
            if wanted.purpose == Purpose::Promised {
                self.join_all_runs(share, &mut left)?;
            }
            let done = self.sweep(&mut left)?;
            let again = done && {
                self.checkpoint_twice()?;
                self.choose_sparse(wanted.purpose)?
            };
            if left == before && done && !again {
                self.progress.exhausted_at.store(last, Ordering::Release);
            }
            if left == before && !again {
                break;
            }
            self.checkpoint_twice()?;
        }
        Ok(left < MAX_LEAVES_WRITTEN)
    }

    /// Chooses value parts to be emptied; where room was promised also those of which most is live.
    fn choose_sparse(&self, purpose: Purpose) -> Result<bool> {
        let found = self.sparse.choose(Effort::Usual)?;
        Ok(found || (purpose == Purpose::Promised && self.sparse.choose(Effort::Utmost)?))
    }

    /// What is free only when nothing needs the older checkpoint any more takes two.
    fn checkpoint_twice(&self) -> Result<()> {
        self.checkpointer.checkpoint()?;
        self.checkpointer.checkpoint()
    }

    /// Moves messages of all indexes down, as long as there is room.
    fn move_down(&self, share: FlushShare, left: &mut usize) -> Result<()> {
        let mut lacks_room = false;
        for index in self.indexes.all() {
            let _structure = index.structure.lock();
            lacks_room |= self.move_down_in(&index, share, left)?;
        }
        if lacks_room {
            // One edge may hold too much, and yet there is room for one leaf.
            self.checkpointer.checkpoint()?;
        }
        Ok(())
    }

    /// Moves messages down as long as there is room: edge by edge, slice by slice once an edge is
    /// too much, and once that is too much whatever else there is that nothing shares. True if
    /// there was no room for all of it.
    fn move_down_in(&self, index: &Index, share: FlushShare, left: &mut usize) -> Result<bool> {
        let mut slices = false;
        while *left > 0 {
            let root = index.version().root.clone();
            let flushed = if slices {
                self.accounting.edit().flush_slice_for_space(&root)
            } else {
                self.accounting.edit().flush_for_space(&root)
            };
            match self.flusher.publish_if_room(index, flushed, share)? {
                Flushed::Published => *left -= 1,
                Flushed::Nothing => return Ok(slices),
                // Nothing was written, for space is low: there is nothing to forget.
                Flushed::NoRoom if !slices => slices = true,
                Flushed::NoRoom => break,
            }
        }
        if *left == 0 {
            return Ok(slices);
        }
        self.join_runs(index, share, left)?;
        self.move_slices(index, share, left)?;
        Ok(true)
    }

    /// Joins what waits above the leaves in all indexes.
    fn join_all_runs(&self, share: FlushShare, left: &mut usize) -> Result<()> {
        for index in self.indexes.all() {
            let _structure = index.structure.lock();
            self.join_runs(&index, share, left)?;
        }
        Ok(())
    }

    /// What cannot come down for now takes as little as it can where it is.
    fn join_runs(&self, index: &Index, share: FlushShare, left: &mut usize) -> Result<()> {
        while *left > 0 {
            let joined =
                self.accounting.edit().merge_small_runs(&index.version().root, self.flusher.room(share));
            if self.flusher.publish_if_room(index, joined, share)? != Flushed::Published {
                break;
            }
            *left -= 1;
        }
        Ok(())
    }

    /// Moves slices down into leaves that nothing shares, from the first key to the last.
    fn move_slices(&self, index: &Index, share: FlushShare, left: &mut usize) -> Result<()> {
        let (mut range, mut refused) = (KeyRange::all(), 0);
        while *left > 0 && refused < MAX_REFUSED_SLICES {
            let pushed = self.accounting.edit().flush_range_slice(&index.version().root, &range);
            let (root, next) = match pushed {
                Ok(Some(pushed)) => pushed,
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::NoSpace => break,
                Err(error) => return Err(error),
            };
            match self.flusher.publish_if_room(index, Ok(Some(root)), share)? {
                Flushed::Published | Flushed::Nothing => *left -= 1,
                Flushed::NoRoom => refused += 1,
            }
            if next <= range.start {
                break;
            }
            range.start = next;
        }
        Ok(())
    }

    /// Rewrites leaves of all indexes as long as there is room; true if it came to the last leaf of
    /// each.
    fn sweep(&self, left: &mut usize) -> Result<bool> {
        let mut done = true;
        for index in self.indexes.all() {
            let _structure = index.structure.lock();
            done &= self.sweep_in(&index, left)?;
        }
        Ok(done)
    }

    /// Rewrites leaves as long as there is room, going on where it ended the last time; true if it
    /// came to the last leaf.
    fn sweep_in(&self, index: &Index, left: &mut usize) -> Result<bool> {
        let mut visits = MAX_SWEEP_VISITS;
        let mut from = self.progress.swept.lock().remove(&index.id).unwrap_or_default();
        while *left > 0 && !self.backlog.is_refused() {
            let swept =
                match self.accounting.edit().relocate_sparse(&index.version().root, &from, &mut visits) {
                    Err(error) if error.kind() == ErrorKind::NoSpace => {
                        self.flusher.publish(index, Err(error), FlushShare::Sweep)?;
                        break;
                    }
                    swept => swept?,
                };
            match swept {
                Relocation::End => return Ok(true),
                Relocation::Paused(next) => {
                    from = next;
                    break;
                }
                Relocation::Rewritten(root, next) => {
                    let flushed = self.flusher.publish(index, Ok(Some(root)), FlushShare::Sweep)?;
                    if flushed != Flushed::Published {
                        break;
                    }
                    *left -= 1;
                    let Some(next) = next else { return Ok(true) };
                    from = next;
                }
            }
        }
        self.progress.swept.lock().insert(index.id, from);
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
