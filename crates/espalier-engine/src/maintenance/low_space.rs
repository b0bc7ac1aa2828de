//! Working in a store that is nearly full.
//!
//! What is in memory only will need blocks at the next checkpoint, and what a flush replaces gives
//! its blocks back only after it. So: a commit is accepted only if there is room for it beside all
//! that is *owed* already; what a flush computed is used only if there is room to write it (nothing
//! is lost by forgetting it: flushing is a pure function of the root); and before a commit is
//! refused, messages that hold space back are squeezed down to the leaves, one leaf at a time. Each
//! of these leaves the pool at a level of its own ([`Share`]).

use crate::index::Index;
use crate::index::accounting::part_blocks;
use crate::model::batch::Batch;
use crate::model::ids::{IndexId, PieceId};
use crate::model::key::{Key, KeyRange};
use crate::space::Purpose;
use crate::store::Shared;
use crate::tree::{Footprint, Root, Sweep};
use crate::{ErrorKind, Result};
use espalier_storage::BLOCK;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a flush is for, and so what it may take of the pool until the next checkpoint. What it does
/// not give back then has levels of its own, whatever it is for ([`Shared::may_keep`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// For what adds data: a half, and only of a pool that is nearly whole.
    Growth,
    /// For what was deleted or replaced: a half.
    Freed,
    /// For writing again what little is live in value parts, which are free then: leaves three
    /// eighths.
    Sweep,
    /// For what was deleted, when whoever deletes more waits: all but what checkpoints need.
    Urgent,
}

impl Share {
    /// How much of the pool it leaves.
    fn aside(self, pool: u64) -> u64 {
        match self {
            Self::Growth | Self::Freed => pool / 2,
            Self::Sweep => pool / 8 * 3,
            Self::Urgent => pool / 6,
        }
    }
}

/// Leaves looked at on behalf of one commit.
const SWEEP_AT_ONCE: usize = 512;

/// Leaves squeezed on behalf of one commit.
const SQUEEZE_AT_ONCE: usize = 64;

/// Blocks that absorbing memtables takes beside what the messages come to
/// ([`Trees::spreading`](crate::tree::Trees)).
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Spread {
    /// Those that wait.
    pub(crate) waiting: u64,
    /// And with another batch.
    pub(crate) with_batch: u64,
}

/// Slices of one index that may be refused before nothing more is tried.
const MOST_REFUSED: usize = 64;

/// Value parts that are being emptied: what is live in them is written elsewhere, leaf by leaf, and
/// when all of it is, they are free. So they are only as many as there is room for.
#[derive(Debug, Default)]
struct Emptied {
    /// The last batch when the search began.
    since: u64,
    /// Those that are still there after all leaves were looked through: somebody shares them.
    in_vain: HashSet<PieceId>,
}

/// What is known about the lack of space.
#[derive(Debug)]
pub(crate) struct Shortage {
    /// The last batch when there was nothing left to squeeze.
    squeezed_at: AtomicU64,
    /// Where the search for leaves worth rewriting goes on.
    swept: Mutex<BTreeMap<IndexId, Key>>,
    emptied: Mutex<Emptied>,
}

impl Default for Shortage {
    fn default() -> Self {
        Self { squeezed_at: AtomicU64::new(u64::MAX), swept: Mutex::default(), emptied: Mutex::default() }
    }
}

impl Shared {
    /// There is more room than there was: what did not fit may fit now.
    pub(crate) fn forget_shortage(&self) {
        self.backlog.forget_refusal();
        self.shortage.squeezed_at.store(u64::MAX, Ordering::Release);
        self.accounting.refresh();
        self.signal.note_progress();
        self.signal.request_work();
    }

    /// Publishes what a flush of `index` computed, if there is room to write it in its share; true
    /// if so. Under the index's structure lock.
    pub(crate) fn publish_flushed(
        &self,
        index: &Index,
        flushed: Result<Option<Root>>,
        share: Share,
    ) -> Result<bool> {
        match self.publish_if_room(index, flushed, share)? {
            Some(published) => Ok(published),
            None => self.refuse(),
        }
    }

    /// The same; `None` if there is no room.
    fn publish_if_room(
        &self,
        index: &Index,
        flushed: Result<Option<Root>>,
        share: Share,
    ) -> Result<Option<bool>> {
        let root = match flushed {
            Ok(Some(root)) => root,
            Ok(None) => return Ok(Some(false)),
            // Flushing writes large leaves at once.
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(None),
            Err(error) => return Err(error),
        };
        let old = index.version().root.clone();
        let before = self.accounting.unwritten_below(&old);
        let mut more = self.accounting.unwritten_below(&root).saturating_sub(before);
        if self.accounting.is_low() {
            // Each memtable that waits leaves a part on each edge.
            self.settle();
            let (new, old) = (
                self.trees.edit(self.trees.policy()).spreading(&root)?,
                self.trees.edit(self.trees.policy()).spreading(&old)?,
            );
            more += new.each.saturating_sub(old.each) * index.waiting_tables();
        }
        if !self.has_room(more, share) || !self.may_keep(index, &root, before, share)? {
            return Ok(None);
        }
        // Until it is owed.
        let _held = self.space.reserve(more, Purpose::Accepted, 0)?;
        index.publish_root(&self.space, root, |_| {})?;
        self.accounting.recount();
        Ok(Some(true))
    }

    /// True if `more` blocks can be owed.
    fn has_room(&self, more: u64, share: Share) -> bool {
        let space = self.space.stats();
        let owed = self.accounting.unwritten_blocks() + space.promised;
        let whole = owed + space.pool / 8 * 7 <= space.free + space.limbo;
        (whole || share != Share::Growth) && owed + more + share.aside(space.pool) <= space.free
    }

    /// Blocks that a flush may take.
    fn room(&self, share: Share) -> u64 {
        let space = self.space.stats();
        space
            .free
            .saturating_sub(self.accounting.unwritten_blocks() + space.promised + share.aside(space.pool))
    }

    /// True if enough of the pool is left when all has come back that does so with the next
    /// checkpoint, or if the flush that gave `root`, where `before` blocks were owed, changes
    /// nothing about that. What somebody else needs stays when it is replaced, and what is dead in
    /// value parts has to be swept first: if that could take what deletions and sweeping depend on,
    /// it would be gone for good.
    fn may_keep(&self, index: &Index, root: &Root, before: u64, share: Share) -> Result<bool> {
        let space = self.space.stats();
        let others = (self.accounting.unwritten_blocks() + space.promised).saturating_sub(before);
        if others + self.accounting.unwritten_below(root) + space.pool / 2 <= space.free {
            return Ok(true);
        }
        // Sweeping gives back in the end, which is what moves have to leave room for.
        let part = if share == Share::Sweep { share.aside(space.pool) } else { space.pool / 16 * 7 };
        let leaves = |blocks: u64, part: u64| others + blocks + part <= space.free + space.limbo;
        let lasting = |root: &Root| -> Result<(u64, u64)> {
            let lasting = self.lasting_blocks(index, root, 0)?;
            Ok((lasting.copied(), lasting.more()))
        };
        let (copied, more) = lasting(root)?;
        if leaves(copied, space.pool / 2) && leaves(more, part) {
            return Ok(true);
        }
        let now = lasting(&index.version().root)?;
        Ok((copied <= now.0 || leaves(copied, space.pool / 2)) && (more <= now.1 || leaves(more, part)))
    }

    /// What the tree `root` takes for good beside the one that the last checkpoint has counted.
    /// That it gives back more than it takes and `enough` beside that need not be found out.
    fn lasting_blocks(&self, index: &Index, root: &Root, enough: u64) -> Result<Footprint> {
        // A checkpoint may end meanwhile, and what it replaces must remain readable.
        let _pin = self.space.pin()?;
        let counted = self.checkpointer.counted_root(index.id);
        let lasting = counted.map(|(_, counted)| self.trees.lasting_blocks(counted, root, enough));
        // Counts that change meanwhile say nothing.
        let same = self.checkpointer.counted_root(index.id) == counted;
        Ok(lasting.filter(|_| same).unwrap_or_else(|| self.trees.all_lasting(root)))
    }

    /// Blocks that are written to delete the ranges of a batch when it is absorbed, if it does
    /// little else and the checkpoint after that gives back at least as much as it takes.
    pub(crate) fn gives_back(&self, batch: &Batch) -> Result<Option<u64>> {
        let Some(ranges) = batch.cleared() else { return Ok(None) };
        let _counted = self.checkpointer.at_rest();
        let (mut written, mut takes) = (0, 0);
        for id in BTreeSet::from_iter(batch.indexes()) {
            let Some(index) = self.indexes.get(id) else { continue };
            let root = index.version().root.clone();
            let mut cleared = root.clone();
            for (_, range) in ranges.iter().filter(|(of, _)| *of == id) {
                if root.height > 0 {
                    cleared = self.trees.edit(self.trees.policy()).without_range(&cleared, range)?;
                }
            }
            let net = |root: &Root| self.lasting_blocks(&index, root, u64::MAX).map(Footprint::net);
            takes += net(&cleared)? - net(&root)?;
            // Headers with messages on their edges may take a little more.
            written += self
                .accounting
                .unwritten_below(&cleared)
                .saturating_sub(self.accounting.unwritten_below(&root))
                + 2;
            if batch.has_points(id) {
                takes += self.trees.edit(self.trees.policy()).spreading(&cleared)?.of(1) as i64;
            }
        }
        takes += part_blocks(&self.options.tuning, batch.bytes as u64) as i64;
        Ok((takes <= 0).then_some(written))
    }

    /// Finds out what [`Shared::spread_blocks`] has to know, which may mean reading. Without the
    /// commit lock.
    ///
    /// # Errors
    /// Of reading the root of an index that a batch begins `tables` in.
    pub(crate) fn look_at_roots(&self, tables: &BTreeMap<IndexId, u64>) -> Result<()> {
        for index in self.indexes.all() {
            let changed = tables.contains_key(&index.id);
            if changed || index.waiting_tables() > 0 {
                let root = index.version().root.clone();
                match self.trees.edit(self.trees.policy()).spreading(&root) {
                    Err(error) if changed => return Err(error),
                    Err(_) => self.trees.edit(self.trees.policy()).assume_spreading(&root),
                    Ok(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Blocks that absorbing takes beside the messages, also of a batch that begins `tables`;
    /// `None` if that is not known of a root. Under the commit lock.
    pub(crate) fn spread_blocks(&self, tables: &BTreeMap<IndexId, u64>) -> Option<Spread> {
        let mut spread = Spread::default();
        for index in self.indexes.read().values() {
            let (waiting, more) = (index.waiting_tables(), tables.get(&index.id).copied().unwrap_or(0));
            if waiting + more > 0 {
                let version = index.version();
                let mut spreading = version.root.known_spreading()?;
                // What is cloned gets edges of its own; more than one table is begun by clones.
                let most = self.options.tuning.fanout as u64;
                if version.has_goto() {
                    spreading.each = spreading.each.max(most + most.div_ceil(16));
                }
                spread.waiting += spreading.of(waiting);
                if more > 1 {
                    spreading.each = spreading.each.max(most + most.div_ceil(16));
                }
                spread.with_batch += spreading.of(waiting + more);
            }
        }
        Some(spread)
    }

    /// Forgets what a flush wrote.
    fn refuse(&self) -> Result<bool> {
        self.backlog.refuse();
        // Nobody can have seen it, but older pins keep all that dies: these are as good.
        for index in self.indexes.all() {
            index.publish_pinned(&self.space, |_| ())?;
        }
        Ok(false)
    }

    /// Makes room for `want` blocks of growth, if that can be done: checkpoints, moves messages
    /// down to the leaves, and rewrites leaves whose value parts hold much that is dead. False if
    /// there was nothing left to move or rewrite.
    pub(crate) fn make_space(&self, want: u64, purpose: Purpose) -> Result<bool> {
        let share = if purpose == Purpose::Growth { Share::Freed } else { Share::Urgent };
        // What is free only when nothing needs the older checkpoint any more takes two.
        self.checkpoint()?;
        self.checkpoint()?;
        let last = self.settled()?.last_lsn.0;
        if self.shortage.squeezed_at.load(Ordering::Acquire) == last {
            return Ok(false);
        }
        self.accounting.assume_low();
        let mut left = SQUEEZE_AT_ONCE;
        if self.trees.sparse.lock().is_empty() {
            self.choose_sparse()?;
        }
        while !self.accounting.can_grow(want) && left > 0 {
            let before = left;
            let mut done = true;
            let mut cramped = false;
            for index in self.indexes.all() {
                let _structure = index.structure.lock();
                cramped |= self.squeeze_index(&index, share, &mut left)?;
            }
            if cramped {
                // One edge may hold too much, and yet there is room for one leaf.
                self.checkpoint()?;
            }
            for index in self.indexes.all() {
                let _structure = index.structure.lock();
                done &= self.sweep_index(&index, &mut left)?;
            }
            let again = done && {
                self.checkpoint()?;
                self.checkpoint()?;
                self.choose_sparse()?
            };
            if left == before && done && !again {
                self.shortage.squeezed_at.store(last, Ordering::Release);
            }
            if left == before && !again {
                break;
            }
            self.checkpoint()?;
            self.checkpoint()?;
        }
        Ok(left < SQUEEZE_AT_ONCE)
    }

    /// Moves messages down as long as there is room: edge by edge, slice by slice once an edge is
    /// too much, and once that is too much whatever else there is that nobody shares. True if there
    /// was no room for all of it.
    fn squeeze_index(&self, index: &Index, share: Share, left: &mut usize) -> Result<bool> {
        let mut slices = false;
        while *left > 0 {
            let root = index.version().root.clone();
            let squeezed = if slices {
                self.trees.edit(self.trees.policy()).squeeze_slice(&root)
            } else {
                self.trees.edit(self.trees.policy()).squeeze(&root)
            };
            match self.publish_if_room(index, squeezed, share)? {
                Some(true) => *left -= 1,
                Some(false) => return Ok(slices),
                // Nothing was written, for space is short: there is nothing to forget.
                None if !slices => slices = true,
                None => break,
            }
        }
        if *left == 0 {
            return Ok(slices);
        }
        // What cannot come down for now takes as little as it can where it is.
        while *left > 0
            && self.publish_if_room(
                index,
                self.trees.edit(self.trees.policy()).joined_runs(&index.version().root, self.room(share)),
                share,
            )? == Some(true)
        {
            *left -= 1;
        }
        let (mut range, mut refused) = (KeyRange::all(), 0);
        while *left > 0 && refused < MOST_REFUSED {
            let pushed = self.trees.edit(self.trees.policy()).push_slice(&index.version().root, &range);
            let (root, next) = match pushed {
                Ok(Some(pushed)) => pushed,
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::NoSpace => break,
                Err(error) => return Err(error),
            };
            match self.publish_if_room(index, Ok(Some(root)), share)? {
                Some(_) => *left -= 1,
                None => refused += 1,
            }
            if next <= range.start {
                break;
            }
            range.start = next;
        }
        Ok(true)
    }

    /// Chooses the value parts that are emptied next, those of which least is live; false if there
    /// are none. All leaves have been looked through for the ones before.
    pub(crate) fn choose_sparse(&self) -> Result<bool> {
        let lean = self.accounting.is_low();
        let space = self.space.stats();
        let taken = self.accounting.unwritten_blocks() + space.promised + Share::Sweep.aside(space.pool);
        // Half of it, for the leaves are written anew as well.
        let mut room = space.free.saturating_sub(taken) / 2;
        let mut found = self.space.sparse_values(if lean { (3, 4) } else { (1, 2) })?;
        let mut emptied = self.shortage.emptied.lock();
        let last = self.settled()?.last_lsn.0;
        if std::mem::replace(&mut emptied.since, last) != last {
            emptied.in_vain.clear();
        }
        let mut chosen = self.trees.sparse.lock();
        emptied.in_vain.extend(chosen.drain());
        found.retain(|(_, id)| !emptied.in_vain.contains(id));
        found.sort_unstable();
        for (live, id) in found {
            let blocks = live.div_ceil(BLOCK as u64) + 1;
            if blocks > room {
                break;
            }
            room -= blocks;
            chosen.insert(id);
        }
        Ok(!chosen.is_empty())
    }

    /// Rewrites leaves as long as there is room, going on where it ended the last time; true if it
    /// came to the last leaf.
    fn sweep_index(&self, index: &Index, left: &mut usize) -> Result<bool> {
        let mut visits = SWEEP_AT_ONCE;
        let mut from = self.shortage.swept.lock().remove(&index.id).unwrap_or_default();
        while *left > 0 && !self.backlog.is_refused() {
            let swept =
                match self.trees.edit(self.trees.policy()).sweep(&index.version().root, &from, &mut visits) {
                    Err(error) if error.kind() == ErrorKind::NoSpace => {
                        self.publish_flushed(index, Err(error), Share::Sweep)?;
                        break;
                    }
                    swept => swept?,
                };
            match swept {
                Sweep::End => return Ok(true),
                Sweep::Tired(next) => {
                    from = next;
                    break;
                }
                Sweep::Rewritten(root, next) => {
                    if !self.publish_flushed(index, Ok(Some(root)), Share::Sweep)? {
                        break;
                    }
                    *left -= 1;
                    let Some(next) = next else { return Ok(true) };
                    from = next;
                }
            }
        }
        self.shortage.swept.lock().insert(index.id, from);
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
