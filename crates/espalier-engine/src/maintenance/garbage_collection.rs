//! Giving space back when nobody asks for it: in the background, once the store is idle or was
//! synced.
//!
//! What is deleted takes space until the message that says so reaches a leaf, which may be long
//! after: messages wait until there are many. And a value part takes its space as long as anybody
//! refers to one value in it. So, when there is nothing else to do: 1. what is pending where
//! something was deleted is pushed down to the leaves; 2. if much is dead in value parts, the
//! leaves are looked through for those that refer to sparse ones, and what is live there is written
//! again; 3. two checkpoints set the blocks free. Then the store rests: nothing is looked at again
//! until more is deleted, and where that is all the time, for a while: a round is several
//! checkpoints.
//!
//! Nothing is unshared for that: what a clone or a snapshot shares would take more space, not less.
//! Each step takes one leaf and is given up at the first commit that comes.

use crate::index::deleted_ranges::RangeSet;
use crate::maintenance::low_space::Share;
use crate::model::ids::IndexId;
use crate::model::key::{Key, KeyRange};
use crate::store::Shared;
use crate::tree::Sweep;
use crate::{ErrorKind, Result};
use espalier_storage::BLOCK;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A store is idle when nothing was committed for so long.
const IDLE_FOR: Duration = Duration::from_secs(1);

/// A store that is never idle is tidied, when somebody has synced, at most so often.
const ROUNDS_APART: Duration = Duration::from_secs(2);

/// Leaves looked at in one step.
const LEAVES_AT_ONCE: usize = 64;

/// Refusals for lack of space after which a range is left as it is.
const MOST_REFUSALS: u32 = 3;

/// How far tidying has come.
#[derive(Debug, Default)]
pub(crate) struct Tidy {
    state: Mutex<State>,
    /// Somebody has synced, since the last round began, and wants to see what is free.
    hurry: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The last batch when the store was last looked at, and since when it is the last.
    seen: (u64, Duration),
    /// What is to be pushed down.
    ranges: RangeSet,
    /// How often in a row there was no room for that.
    refused: u32,
    /// What was pushed down or rewritten is not all free yet.
    unfinished: bool,
    /// This round goes on although the store is not idle, because somebody has synced.
    hurried: bool,
    /// When the last such round came to an end.
    rested: Option<Duration>,
    /// Where the search for sparse value parts is.
    sweep: Option<(IndexId, Key)>,
    /// Bytes that were dead when the search began.
    dead_before: u64,
    /// Bytes that the last search left dead.
    left_dead: u64,
}

impl Tidy {
    /// The next opportunity is to be taken without waiting.
    pub(crate) fn hurry(&self) {
        self.hurry.store(true, Ordering::Release);
    }
}

impl Shared {
    /// One step of tidying; false if there is nothing to do or it is not the time.
    pub(crate) fn tidy_some(&self) -> Result<bool> {
        let Some(mut state) = self.tidy.state.try_lock() else { return Ok(false) };
        if !self.is_quiet(&mut state)? {
            return Ok(false);
        }
        if state.ranges.is_empty() && !state.unfinished && !self.deleted.is_empty() {
            // All that was deleted goes into the trees first. What is deleted from now on waits for
            // the next round: where more comes all the time, none would end otherwise.
            state.ranges = self.deleted.take();
            state.unfinished = true;
            self.checkpoint()?;
            return Ok(true);
        }
        if let Some((index, range)) = state.ranges.pop() {
            let refused = &mut state.refused;
            if let Some(rest) = self.push_down_some(index, &range, refused)? {
                state.ranges.add(index, &rest.start, rest.end);
            }
            return Ok(true);
        }
        if self.sweep_some(&mut state)? {
            return Ok(true);
        }
        if state.unfinished {
            // What only the older superblock needs is free with the second.
            self.deleted.finish();
            self.checkpoint()?;
            self.checkpoint()?;
            state.unfinished = false;
            if std::mem::replace(&mut state.hurried, false) {
                state.rested = Some(self.env.monotonic());
            }
            return Ok(true);
        }
        state.hurried = false;
        Ok(false)
    }

    /// True if nothing was committed for a while, or nobody wants to wait for that.
    fn is_quiet(&self, state: &mut State) -> Result<bool> {
        let (last, now) = (self.settled()?.last_lsn.0, self.env.monotonic());
        let threads = self.env.threads() > 0;
        let longer = |since: Duration, wait| now.saturating_sub(since) >= wait || !threads;
        if state.seen.0 != last {
            state.seen = (last, now);
        } else if longer(state.seen.1, IDLE_FOR) {
            return Ok(true);
        }
        let may = state.hurried || state.rested.is_none_or(|since| longer(since, ROUNDS_APART));
        state.hurried = state.hurried || may && self.tidy.hurry.swap(false, Ordering::AcqRel);
        Ok(state.hurried)
    }

    /// Pushes down some of what is pending in `range`; returns what is left of it.
    fn push_down_some(&self, id: IndexId, range: &KeyRange, refused: &mut u32) -> Result<Option<KeyRange>> {
        let Some(index) = self.indexes.get(id) else { return Ok(None) };
        self.accounting.refresh();
        let structure = index.structure.lock();
        let root = index.version().root.clone();
        let (pushed, share) = match *refused {
            0 => (self.trees.edit(self.trees.policy()).push_down(&root, range), Share::Freed),
            // What was too much may fit slice by slice.
            _ => (self.trees.edit(self.trees.policy()).push_slice(&root, range), Share::Urgent),
        };
        match pushed {
            Ok(None) => {
                *refused = 0;
                Ok(None)
            }
            Ok(Some((root, next))) => {
                if self.publish_flushed(&index, Ok(Some(root)), share)? {
                    // The rest of the range in the same way.
                    *refused = (*refused).min(1);
                    return Ok(Some(KeyRange { start: next, end: range.end.clone() }));
                }
                // A checkpoint may give room; if not, it has to wait until somebody makes some.
                drop(structure);
                self.checkpoint()?;
                *refused += 1;
                Ok((*refused < MOST_REFUSALS).then(|| range.clone()))
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks through some leaves for sparse value parts, if much is dead; false if there is nothing
    /// to do.
    fn sweep_some(&self, state: &mut State) -> Result<bool> {
        let stats = self.space.stats();
        let worthwhile = state.left_dead + stats.pool / 2 * BLOCK as u64;
        let (id, from) = match state.sweep.take() {
            Some(place) => place,
            None if stats.dead_values > worthwhile && self.choose_sparse()? => {
                let Some(first) = self.first_index() else { return Ok(false) };
                state.dead_before = stats.dead_values;
                (first, Key::default())
            }
            None => return Ok(false),
        };
        state.unfinished = true;
        let next_index = self.indexes.next_after(id);
        let mut next = match self.sweep_at(id, &from)? {
            Some(next) => Some((id, next)),
            None => next_index.map(|id| (id, Key::default())),
        };
        if next.is_none() {
            self.checkpoint()?;
            self.checkpoint()?;
            let dead = self.space.stats().dead_values;
            // There may have been room for some of it only.
            let again = dead < std::mem::replace(&mut state.dead_before, dead) && self.choose_sparse()?;
            next = self.first_index().filter(|_| again).map(|first| (first, Key::default()));
            if next.is_none() {
                state.left_dead = dead;
            }
        }
        state.sweep = next;
        Ok(true)
    }

    fn first_index(&self) -> Option<IndexId> {
        self.indexes.first()
    }

    /// Rewrites one leaf of an index behind `from`, or looks at some; returns where to go on.
    fn sweep_at(&self, id: IndexId, from: &Key) -> Result<Option<Key>> {
        let Some(index) = self.indexes.get(id) else { return Ok(None) };
        self.accounting.refresh();
        let _structure = index.structure.lock();
        let mut visits = LEAVES_AT_ONCE;
        match self.trees.edit(self.trees.policy()).sweep(&index.version().root, from, &mut visits) {
            Ok(Sweep::End) => Ok(None),
            Ok(Sweep::Tired(next)) => Ok(Some(next)),
            Ok(Sweep::Rewritten(root, next)) => {
                self.publish_flushed(&index, Ok(Some(root)), Share::Sweep)?;
                Ok(next)
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
            Err(error) => Err(error),
        }
    }
}
