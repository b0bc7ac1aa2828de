//! Garbage collection: deleted data gives its space back once the store is idle or was synced.
//!
//! A deletion gives no space back before its message reaches a leaf, which may be long after,
//! because messages wait until there are many. And a value part takes its space as long as one
//! value in it is referred to. So a round, when there is nothing else to do:
//! 1. pushes pending messages down to the leaves where something was deleted;
//! 2. if much is dead in value parts, looks for leaves that refer to sparse ones, and writes what
//!    is live there again;
//! 3. makes two checkpoints, which set the blocks free.
//!
//! Then the store rests until more is deleted; while deletions go on, for a minimum time, because a
//! round costs several checkpoints. Shared data is left alone: unsharing would take space. Each
//! step takes one leaf, and a commit ends the round early.
//!
//! Rewriting costs reads, writes and memory that writers may need, so while they go on, sparse
//! value parts are looked for only when a large part of what is not live is dead
//! ([`DEAD_SHARE_OF_FREE`]), and what is rewritten goes to the device before it takes more than a
//! part of what may be unwritten (`most_unwritten`).

use super::flusher::{FlushShare, Flushed, Flusher};
use super::sparse_values::{Effort, SparseValues};
use crate::checkpoint::Checkpointer;
use crate::commit::pipeline::CommitPipeline;
use crate::index::accounting::SpaceAccounting;
use crate::index::deleted_ranges::{DeletedRanges, RangeSet};
use crate::index::memory::UnwrittenMemory;
use crate::index::table::IndexTable;
use crate::lock_order::{RankedMutex, rank};
use crate::model::ids::IndexId;
use crate::model::key::{Key, KeyRange};
use crate::space::Space;
use crate::tree::Relocation;
use crate::{ErrorKind, Result};
use espalier_storage::{BLOCK, Environment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A store is idle when nothing was committed for so long.
const IDLE_BEFORE_COLLECTION: Duration = Duration::from_secs(1);

/// In a store that is never idle a round begins, after a sync, at most so often.
const MIN_ROUND_INTERVAL: Duration = Duration::from_secs(2);

/// Callers are collected for until that took this long together; a part of it is forgotten as time
/// passes.
const MAX_TIME_FOR_CALLERS: Duration = Duration::from_millis(200);

/// Callers are collected for a tenth of the time in the long run.
const TIME_PER_TIME_FOR_CALLERS: u32 = 10;

/// While writers go on, value parts are looked through when so many times what is dead in them is
/// more than what is free: before that, the space is not needed.
const DEAD_SHARE_OF_FREE: u64 = 4;

/// Leaves looked at in one step.
const LEAVES_PER_STEP: usize = 64;

/// Refusals for lack of space after which a range is left as it is.
const MAX_REFUSALS: u32 = 3;

/// See the [module](self).
pub(crate) struct GarbageCollector {
    pub(crate) env: Arc<dyn Environment>,
    pub(crate) space: Arc<Space>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) deleted: Arc<DeletedRanges>,
    pub(crate) pipeline: Arc<CommitPipeline>,
    pub(crate) checkpointer: Arc<Checkpointer>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) sparse: Arc<SparseValues>,
    pub(crate) memory: Arc<UnwrittenMemory>,
    /// Bytes that may be unwritten when a leaf is rewritten: beyond, a checkpoint comes first.
    pub(crate) most_unwritten: u64,
    pub(crate) progress: CollectionProgress,
}

/// How far garbage collection has come.
#[derive(Debug, Default)]
pub(crate) struct CollectionProgress {
    round: RankedMutex<Round, { rank::GARBAGE_COLLECTOR }>,
    /// An application has synced, since the last round began, and wants to see what is free.
    is_requested: AtomicBool,
}

#[derive(Debug, Default)]
struct Round {
    /// The last batch when the store was last looked at, and since when it is the last.
    seen: (u64, Duration),
    /// What is to be pushed down.
    ranges: RangeSet,
    /// How often in a row there was no room for that.
    refused: u32,
    /// What is void above something shared is to be dropped.
    merges: bool,
    /// What was pushed down or rewritten is not all free yet.
    unfinished: bool,
    /// This round goes on although the store is not idle, because of a sync.
    requested: bool,
    /// What collecting for callers took that is not forgotten yet, and up to when it is forgotten.
    for_callers: (Duration, Duration),
    /// When the last such round came to an end.
    rested: Option<Duration>,
    /// Where the search for sparse value parts is.
    sweep: Option<(IndexId, Key)>,
    /// Bytes that were dead when the search began.
    dead_before: u64,
    /// Bytes that the last search left dead.
    left_dead: u64,
}

impl GarbageCollector {
    /// The next round is to begin without waiting for the store to be idle.
    pub(crate) fn request_now(&self) {
        self.progress.is_requested.store(true, Ordering::Release);
    }

    /// One step; false if there is nothing to do or it is not the time.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn step(&self) -> Result<bool> {
        let Some(mut round) = self.progress.round.try_lock() else { return Ok(false) };
        if !self.is_quiet(&mut round)? {
            return Ok(false);
        }
        self.advance(&mut round)
    }

    /// Takes steps now, so that what was deleted is free when a caller looks: until nothing is left
    /// to do, or for `limit`. Such callers together take a tenth of the time at most, beyond the
    /// first ones, so one that asks again and again (as each `rm -r` does) waits little.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn collect_for(&self, limit: Duration) -> Result<()> {
        let begun = self.env.monotonic();
        let mut round = self.progress.round.lock();
        let (taken, upto) = round.for_callers;
        let taken = taken.saturating_sub(begun.saturating_sub(upto) / TIME_PER_TIME_FOR_CALLERS);
        if taken >= MAX_TIME_FOR_CALLERS {
            return Ok(());
        }
        self.finish_within(&mut round, begun + limit)?;
        let now = self.env.monotonic();
        round.for_callers = (taken + now.saturating_sub(begun), now);
        Ok(())
    }

    /// Pushes down what waits in some ranges, and all that was deleted, for `limit`; what has to
    /// wait above something shared drops what is void in it.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn push_down_now(&self, ranges: &[(IndexId, KeyRange)], limit: Duration) -> Result<()> {
        let end = self.env.monotonic() + limit;
        let mut round = self.progress.round.lock();
        self.deleted.note_ranges(ranges);
        round.merges = true;
        let finished = self.finish_within(&mut round, end);
        round.merges = false;
        finished
    }

    /// Takes steps until nothing is left to do, or a time has come.
    fn finish_within(&self, round: &mut Round, end: Duration) -> Result<()> {
        self.pipeline.drain();
        while self.deleted.is_untidy() || round.unfinished {
            if !self.advance(round)? || self.env.monotonic() >= end {
                break;
            }
        }
        Ok(())
    }

    /// The next step of a round; false if there is none.
    fn advance(&self, round: &mut Round) -> Result<bool> {
        if round.ranges.is_empty() && !round.unfinished && !self.deleted.is_empty() {
            // All that was deleted goes into the trees first. What is deleted from now on waits for
            // the next round: where more comes all the time, none would end otherwise.
            round.ranges = self.deleted.take();
            round.unfinished = true;
            self.checkpointer.checkpoint()?;
            return Ok(true);
        }
        if let Some((index, range)) = round.ranges.pop() {
            let (refused, merges) = (&mut round.refused, round.merges);
            if let Some(rest) = self.push_down(index, &range, refused, merges)? {
                round.ranges.add(index, &rest.start, rest.end);
            }
            return Ok(true);
        }
        if self.sweep(round)? {
            return Ok(true);
        }
        if round.unfinished {
            // What only the older superblock needs is free with the second.
            self.deleted.finish();
            self.checkpoint_twice()?;
            round.unfinished = false;
            if std::mem::replace(&mut round.requested, false) {
                round.rested = Some(self.env.monotonic());
            }
            return Ok(true);
        }
        round.requested = false;
        Ok(false)
    }

    /// True if what is dead beside live values is a large part of what is not live.
    fn is_space_needed(&self, dead: u64) -> bool {
        dead.saturating_mul(DEAD_SHARE_OF_FREE) > self.space.free_blocks() * BLOCK as u64
    }

    fn checkpoint_twice(&self) -> Result<()> {
        self.checkpointer.checkpoint()?;
        self.checkpointer.checkpoint()
    }

    /// True if nothing was committed for a while, or a sync asks not to wait for that.
    fn is_quiet(&self, round: &mut Round) -> Result<bool> {
        let (last, now) = (self.pipeline.lock_applied()?.last_lsn.0, self.env.monotonic());
        let threads = self.env.threads() > 0;
        let longer = |since: Duration, wait| now.saturating_sub(since) >= wait || !threads;
        if round.seen.0 != last {
            round.seen = (last, now);
        } else if longer(round.seen.1, IDLE_BEFORE_COLLECTION) {
            return Ok(true);
        }
        let may = round.requested || round.rested.is_none_or(|since| longer(since, MIN_ROUND_INTERVAL));
        let is_requested = &self.progress.is_requested;
        round.requested = round.requested || may && is_requested.swap(false, Ordering::AcqRel);
        Ok(round.requested)
    }

    /// Pushes down some of what is pending in `range`; returns what is left of it.
    fn push_down(
        &self,
        id: IndexId,
        range: &KeyRange,
        refused: &mut u32,
        merges: bool,
    ) -> Result<Option<KeyRange>> {
        let Some(index) = self.indexes.get(id) else { return Ok(None) };
        self.accounting.refresh();
        let structure = index.structure.lock();
        let root = index.version().root.clone();
        let (pushed, share) = match *refused {
            0 => (self.accounting.edit().flush_range(&root, range, merges), FlushShare::Freed),
            // What was too much may fit slice by slice.
            _ => (self.accounting.edit().flush_range_slice(&root, range), FlushShare::Urgent),
        };
        match pushed {
            Ok(None) => {
                *refused = 0;
                Ok(None)
            }
            Ok(Some((root, next))) => {
                if self.flusher.publish(&index, Ok(Some(root)), share)? == Flushed::Published {
                    // The rest of the range in the same way.
                    *refused = (*refused).min(1);
                    return Ok(Some(KeyRange { start: next, end: range.end.clone() }));
                }
                // A checkpoint may give room; if not, it has to wait until a writer makes some.
                drop(structure);
                self.checkpointer.checkpoint()?;
                *refused += 1;
                Ok((*refused < MAX_REFUSALS).then(|| range.clone()))
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks through some leaves for sparse value parts, if much is dead; false if there is nothing
    /// to do.
    fn sweep(&self, round: &mut Round) -> Result<bool> {
        let dead = self.space.dead_value_bytes();
        let worthwhile = round.left_dead + self.space.block_counts().pool / 2 * BLOCK as u64;
        let (id, from) = match round.sweep.take() {
            Some(place) => place,
            None if dead > worthwhile
                && (!round.requested || self.is_space_needed(dead))
                && self.sparse.choose(Effort::Usual)? =>
            {
                let Some(first) = self.indexes.first() else { return Ok(false) };
                round.dead_before = dead;
                (first, Key::default())
            }
            None => return Ok(false),
        };
        round.unfinished = true;
        if self.memory.bytes() > self.most_unwritten {
            round.sweep = Some((id, from));
            // One that is under way makes room as well; the next step looks again.
            let is_busy = self.checkpointer.is_busy();
            if !is_busy {
                self.checkpointer.checkpoint()?;
            }
            return Ok(!is_busy);
        }
        let next_index = self.indexes.next_after(id);
        let mut next = match self.sweep_at(id, &from)? {
            Some(next) => Some((id, next)),
            None => next_index.map(|id| (id, Key::default())),
        };
        if next.is_none() {
            self.checkpoint_twice()?;
            let dead = self.space.dead_value_bytes();
            // There may have been room for some of it only.
            let again = dead < std::mem::replace(&mut round.dead_before, dead)
                && self.sparse.choose(Effort::Usual)?;
            next = self.indexes.first().filter(|_| again).map(|first| (first, Key::default()));
            if next.is_none() {
                round.left_dead = dead;
            }
        }
        round.sweep = next;
        Ok(true)
    }

    /// Rewrites one leaf of an index behind `from`, or looks at some; returns where to go on.
    fn sweep_at(&self, id: IndexId, from: &Key) -> Result<Option<Key>> {
        let Some(index) = self.indexes.get(id) else { return Ok(None) };
        self.accounting.refresh();
        let _structure = index.structure.lock();
        let mut visits = LEAVES_PER_STEP;
        match self.accounting.edit().relocate_sparse(&index.version().root, from, &mut visits) {
            Ok(Relocation::End) => Ok(None),
            Ok(Relocation::Paused(next)) => Ok(Some(next)),
            Ok(Relocation::Rewritten(root, next)) => {
                self.flusher.publish(&index, Ok(Some(root)), FlushShare::Sweep)?;
                Ok(next)
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
            Err(error) => Err(error),
        }
    }
}
