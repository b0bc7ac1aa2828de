//! Flush policy: which flush comes next, and whether what a flush computed may be published.
//!
//! What is in memory only will need blocks at the next checkpoint, and what a flush replaces gives
//! its blocks back only after it. So what a flush computed is used only if there is room to write
//! it; nothing is lost by forgetting it, as flushing is a pure function of the root. Each kind of
//! flush leaves the pool at a level of its own ([`FlushShare`]; `docs/design/space.md`).

use crate::checkpoint::Checkpointer;
use crate::commit::pipeline::CommitPipeline;
use crate::index::Index;
use crate::index::accounting::SpaceAccounting;
use crate::index::backlog::FlushBacklog;
use crate::index::memory::UnwrittenMemory;
use crate::index::table::IndexTable;
use crate::space::{Purpose, Space};
use crate::tree::{Footprint, Root, Trees};
use crate::{ErrorKind, Result};
use std::sync::Arc;

/// What a flush is for, and so what it may take of the pool until the next checkpoint. What it does
/// not give back then has levels of its own, whatever it is for ([`Flusher::may_keep`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushShare {
    /// For what adds data: a half, and only of a pool that is nearly whole.
    Growth,
    /// For what was deleted or replaced: a half.
    Freed,
    /// For writing again what little is live in value parts, which are free then: leaves three
    /// eighths.
    Sweep,
    /// For what was deleted, when a writer waits to delete more: all but what checkpoints need.
    Urgent,
}

impl FlushShare {
    /// How much of the pool it leaves.
    pub(super) fn floor_blocks(self, pool: u64) -> u64 {
        match self {
            Self::Growth | Self::Freed => pool / 2,
            Self::Sweep => pool / 8 * 3,
            Self::Urgent => pool / 6,
        }
    }
}

/// What became of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// It is the tree of the index now.
    Published,
    /// There was nothing to flush.
    Nothing,
    /// There is no room to write it: it is forgotten.
    NoRoom,
}

/// See the [module](self).
pub(crate) struct Flusher {
    pub(crate) space: Arc<Space>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) backlog: Arc<FlushBacklog>,
    pub(crate) memory: Arc<UnwrittenMemory>,
    pub(crate) pipeline: Arc<CommitPipeline>,
    pub(crate) checkpointer: Arc<Checkpointer>,
    /// Bytes on one edge of a root beyond which it is flushed before anything else is absorbed.
    pub(crate) dense_edge_bytes: u64,
}

impl Flusher {
    /// Flushes the heaviest edge of a root if most of a memtable lies there, as with keys in order;
    /// false if none is so heavy. Such messages are for few leaves: flushed at once, they are
    /// written where they stay. Left until more has been absorbed, they would be merged with that,
    /// and a checkpoint would write them above the leaves first.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn flush_dense(&self) -> Result<bool> {
        let is_dense = self.backlog.edge_bytes() > self.dense_edge_bytes;
        if !is_dense || self.backlog.is_refused() || self.accounting.is_low() {
            return Ok(false);
        }
        self.flush_heaviest()
    }

    /// Flushes the heaviest edge of the root that needs it most; false if there is none.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn flush_heaviest(&self) -> Result<bool> {
        if self.backlog.is_refused() {
            // Without anything to write, a checkpoint gives no room.
            let helps = self.memory.node_bytes() > 0;
            if helps {
                self.checkpointer.checkpoint()?;
            }
            return Ok(helps);
        }
        self.accounting.refresh();
        let mut candidates = Vec::new();
        let mut values = 0;
        for index in self.indexes.all() {
            let root = &index.version().root;
            if let Some(bytes) = self.accounting.edit().heaviest_edge_bytes(root)? {
                values += self.accounting.edit().pending_value_bytes(root);
                candidates.push((bytes, index));
            }
        }
        self.backlog.note_values(values);
        candidates.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        self.backlog.note_edge(candidates.first().map_or(0, |(bytes, _)| *bytes));
        for (_, index) in candidates {
            let Some(_structure) = index.structure.try_lock() else { continue };
            let flushed = self.accounting.edit().flush(&index.version().root);
            if self.publish(&index, flushed, FlushShare::Growth)? == Flushed::Published {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Publishes what a flush of `index` computed, if there is room to write it in its share; what
    /// has none is noted as refused. Under the index's structure lock.
    ///
    /// # Errors
    /// Of the flush, but for a lack of space; of the device.
    pub(crate) fn publish(
        &self,
        index: &Index,
        flushed: Result<Option<Root>>,
        share: FlushShare,
    ) -> Result<Flushed> {
        let flushed = self.publish_if_room(index, flushed, share)?;
        if flushed == Flushed::NoRoom {
            self.refuse()?;
        }
        Ok(flushed)
    }

    /// The same; what has no room leaves no trace.
    ///
    /// # Errors
    /// As for [`Self::publish`].
    pub(crate) fn publish_if_room(
        &self,
        index: &Index,
        flushed: Result<Option<Root>>,
        share: FlushShare,
    ) -> Result<Flushed> {
        let root = match flushed {
            Ok(Some(root)) => root,
            Ok(None) => return Ok(Flushed::Nothing),
            // Flushing writes large leaves at once.
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(Flushed::NoRoom),
            Err(error) => return Err(error),
        };
        // To find out what the new tree takes beside what it replaces takes the time for all that
        // is unwritten. With plenty of space there is room for it anyway.
        let most = self.accounting.uncounted_below(&root);
        if !self.accounting.is_low() && self.has_room(most, share) && self.is_plenty_left(most) {
            return self.publish_root(index, root, most);
        }
        self.accounting.count_again();
        let old = index.version().root.clone();
        let before = self.accounting.unwritten_below(&old);
        let mut more = self.accounting.unwritten_below(&root).saturating_sub(before);
        if self.accounting.is_low() {
            // Each memtable that waits leaves a part on each edge.
            self.pipeline.drain();
            let (new, old) =
                (self.accounting.edit().absorb_cost(&root)?, self.accounting.edit().absorb_cost(&old)?);
            more += new.each.saturating_sub(old.each) * index.waiting_tables();
        }
        if !self.has_room(more, share) || !self.may_keep(index, &root, before, share)? {
            return Ok(Flushed::NoRoom);
        }
        self.publish_root(index, root, more)
    }

    /// Publishes a tree that takes so many blocks `more`.
    fn publish_root(&self, index: &Index, root: Root, more: u64) -> Result<Flushed> {
        // Until it is counted as unwritten.
        let _reserved = self.space.reservations.reserve(more, Purpose::Accepted, 0)?;
        index.publish_root(&self.space, root, |_| {});
        self.accounting.recount();
        Ok(Flushed::Published)
    }

    /// True if with `more` blocks unwritten half of the pool stays free until the next checkpoint
    /// gives back what they replace.
    fn is_plenty_left(&self, more: u64) -> bool {
        let space = self.space.block_counts();
        self.accounting.unwritten_blocks() + space.reserved + more + space.pool / 2 <= space.free
    }

    /// True if `more` blocks can be unwritten.
    fn has_room(&self, more: u64, share: FlushShare) -> bool {
        let space = self.space.block_counts();
        let unwritten = self.accounting.unwritten_blocks() + space.reserved;
        let whole = unwritten + space.pool / 8 * 7 <= space.free + space.deferred;
        (whole || share != FlushShare::Growth)
            && unwritten + more + share.floor_blocks(space.pool) <= space.free
    }

    /// Blocks that a flush may take.
    pub(crate) fn room(&self, share: FlushShare) -> u64 {
        let space = self.space.block_counts();
        let taken = self.accounting.unwritten_blocks() + space.reserved;
        space.free.saturating_sub(taken + share.floor_blocks(space.pool))
    }

    /// True if enough of the pool is left when all has come back that does so with the next
    /// checkpoint, or if the flush that gave `root`, where `before` blocks were unwritten, changes
    /// nothing about that. What a clone or a snapshot needs stays when it is replaced, and what is
    /// dead in value parts has to be swept first: if that could take what deletions and sweeping
    /// depend on, it would be gone for good.
    fn may_keep(&self, index: &Index, root: &Root, before: u64, share: FlushShare) -> Result<bool> {
        let space = self.space.block_counts();
        let others = (self.accounting.unwritten_blocks() + space.reserved).saturating_sub(before);
        if others + self.accounting.unwritten_below(root) + space.pool / 2 <= space.free {
            return Ok(true);
        }
        // Sweeping gives back in the end, which is what moves have to leave room for.
        let part =
            if share == FlushShare::Sweep { share.floor_blocks(space.pool) } else { space.pool / 16 * 7 };
        let leaves = |blocks: u64, part: u64| others + blocks + part <= space.free + space.deferred;
        let footprint = |root: &Root| -> Result<(u64, u64)> {
            let lasting = self.footprint(index, root, 0)?;
            Ok((lasting.copied(), lasting.more()))
        };
        let (copied, more) = footprint(root)?;
        if leaves(copied, space.pool / 2) && leaves(more, part) {
            return Ok(true);
        }
        let now = footprint(&index.version().root)?;
        Ok((copied <= now.0 || leaves(copied, space.pool / 2)) && (more <= now.1 || leaves(more, part)))
    }

    /// What the tree `root` takes for good beside the one that the last checkpoint has counted.
    /// That it gives back more than it takes and `enough` beside that need not be found out.
    ///
    /// # Errors
    /// Of pinning what is read.
    pub(crate) fn footprint(&self, index: &Index, root: &Root, enough: u64) -> Result<Footprint> {
        // A checkpoint may end meanwhile, and what it replaces must remain readable.
        let _pin = self.space.deferred.pin();
        let counted_roots = self.checkpointer.counted_roots();
        let counted = counted_roots.of(index.id);
        let lasting = counted.map(|(_, counted)| self.trees.footprint(counted, root, enough));
        // Counts that change meanwhile say nothing.
        let same = counted_roots.of(index.id) == counted;
        Ok(lasting.filter(|_| same).unwrap_or_else(|| self.trees.whole_footprint(root)))
    }

    /// Forgets what a flush wrote.
    fn refuse(&self) -> Result<()> {
        self.backlog.refuse();
        // No reader can have seen it, but older pins keep all that dies: these are as good.
        for index in self.indexes.all() {
            index.publish_pinned(&self.space, |_| ());
        }
        Ok(())
    }
}
