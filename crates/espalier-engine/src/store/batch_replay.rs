//! Batch replay: logged batches go back into memtables, and full memtables into the trees.

use crate::commit::order::CommitOrder;
use crate::index::absorb::absorb_within_space;
use crate::index::accounting::{CLONE_BLOCKS, is_low, message_blocks, unwritten_below};
use crate::index::deleted_ranges::DeletedRanges;
use crate::index::table::Indexes;
use crate::index::{Index, Layer};
use crate::log::{LoggedBatch, LoggedOp};
use crate::memtable::Memtable;
use crate::message::pending_clone::PendingClone;
use crate::message::range_messages::RangeOps;
use crate::message::resolve::KeyMessages;
use crate::model::batch::bytes_in;
use crate::model::error::Context;
use crate::model::ids::{Lsn, Msn};
use crate::model::key::{KeyRange, union_of};
use crate::model::options::OpenOptions;
use crate::space::{Purpose, Space};
use crate::store::losses::Losses;
use crate::tree::{Loss, TreePolicy, Trees, keys_without_base};
use crate::{Error, ErrorKind, Result};
use espalier_sync::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Layers of an index that may be there during replay before they are absorbed.
const MAX_REPLAY_LAYERS: usize = 16;

/// No store counts so far: a log that says so is damaged.
const LAST_MSN: u64 = u64::MAX / 2;

/// The last message of a batch of `count` messages, of which the first one has the number `first`;
/// `last` is that of the batches before. `None` if they cannot be numbered so: from 1, upwards, and
/// with room for more.
fn follow(last: Msn, first: u64, count: usize) -> Option<Msn> {
    let end = first.checked_add(count as u64).filter(|end| first > last.0 && *end <= LAST_MSN)?;
    Some(Msn(end - 1))
}

/// Puts logged batches back into memtables.
pub(super) struct BatchReplay<'a> {
    pub(super) trees: &'a Arc<Trees>,
    pub(super) space: &'a Arc<Space>,
    pub(super) options: &'a OpenOptions,
    pub(super) indexes: &'a Indexes,
    pub(super) deleted: &'a DeletedRanges,
    pub(super) order: CommitOrder,
    /// What a damaged store has lost: where messages have nothing to change, they must make
    /// nothing.
    pub(super) losses: Mutex<Losses>,
    /// The last message that was replayed.
    replayed: Msn,
    /// Space is low. What is replayed had its blocks reserved before: replay must take no more.
    low_space: Cell<bool>,
    /// See [`TreePolicy`].
    pub(super) unmerged_bytes: usize,
}

impl<'a> BatchReplay<'a> {
    pub(super) fn new(
        trees: &'a Arc<Trees>,
        space: &'a Arc<Space>,
        options: &'a OpenOptions,
        indexes: &'a Indexes,
        deleted: &'a DeletedRanges,
        order: CommitOrder,
        losses: Losses,
    ) -> Self {
        let low_space = Cell::new(is_low(&space.block_counts(), 0, &options.tuning));
        let losses = Mutex::new(losses);
        Self {
            trees,
            space,
            options,
            indexes,
            deleted,
            order,
            losses,
            replayed: Msn(0),
            low_space,
            unmerged_bytes: 0,
        }
    }

    pub(super) fn batch(&mut self, batch: LoggedBatch) -> Result<()> {
        let first = batch.first_msn.0;
        self.replayed = follow(self.replayed, first, batch.ops.len()).ok_or_else(|| {
            Error::damaged(format!("batch {} of the log numbers its messages from {first}", batch.lsn.0))
        })?;
        for (i, (msn, op)) in (first..).zip(&batch.ops).enumerate() {
            self.op(&batch.ops, i, (Msn(msn), batch.lsn)).context(|| format!("batch {}", batch.lsn.0))?;
            // It waits for a checkpoint again, for which the next commit has to reserve.
            self.order.pending.bytes += bytes_in(op) as u64;
            self.order.pending.clone_blocks += CLONE_BLOCKS * u64::from(matches!(op, LoggedOp::Clone { .. }));
        }
        self.order.last_lsn = batch.lsn;
        self.order.last_msn = self.replayed.max(self.order.last_msn);
        if !self.options.read_only {
            self.absorb_full(batch.lsn)?;
        }
        Ok(())
    }

    fn op(&mut self, ops: &[LoggedOp], number: usize, (msn, lsn): (Msn, Lsn)) -> Result<()> {
        let op = &ops[number];
        let (id, update) = match op {
            LoggedOp::Point { index, op: crate::Op::Update(update), .. } => (index, Some(update)),
            LoggedOp::Range { index, op: crate::RangeOp::Update(update), .. } => (index, Some(update)),
            LoggedOp::Point { index, .. } | LoggedOp::Range { index, .. } | LoggedOp::Clone { index, .. } => {
                (index, None)
            }
            LoggedOp::Superseded => return Ok(()),
        };
        if let Some(update) = update.filter(|u| !self.options.merge.knows(u.function)) {
            let message =
                format!("the log names merge function {}, which this program does not have", update.function);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let index = self.indexes.get(id).ok_or_else(|| Error::damaged(format!("there is no index {id}")))?;
        self.deleted.note(std::slice::from_ref(op));
        match op {
            LoggedOp::Point { key, op, .. } => {
                index.active().apply(key, msn, op, Msn(0), &self.options.merge)
            }
            LoggedOp::Range { range, op, .. } => index.active().apply_range(range, msn, op, Msn(0)),
            LoggedOp::Clone { .. } => {
                if let Some(clone) = PendingClone::of(ops, number, msn) {
                    index.push_clone(clone, lsn);
                }
            }
            LoggedOp::Superseded => {}
        }
        Ok(())
    }

    /// Absorbs memtables that have become full.
    fn absorb_full(&self, lsn: Lsn) -> Result<()> {
        let due = |index: &&Arc<Index>| {
            index.active().bytes() >= self.options.tuning.memtable
                || index.version().sealed.len() >= MAX_REPLAY_LAYERS
        };
        for index in self.indexes.values().filter(due) {
            self.absorb(index, lsn)?;
        }
        Ok(())
    }

    /// Makes all layers of an index part of its tree.
    pub(super) fn absorb(&self, index: &Index, lsn: Lsn) -> Result<()> {
        index.seal(lsn);
        while let Some(sealed) = index.version().sealed.first() {
            match &sealed.layer {
                Layer::Table(table) => {
                    self.delete_baseless(index, table)?;
                    self.losses.lock().pass_table(index.id, table);
                }
                Layer::Clone(clone) => self.losses.lock().pass_clone(index.id, clone),
            }
            sealed.layer.freeze_values(&self.trees.memory.value_bytes);
            self.trees.absorbed.fetch_add(sealed.layer.messages(), Ordering::Relaxed);
            let root = &index.version().root;
            let (low_space, unmerged_bytes) = (self.low_space.get(), self.unmerged_bytes);
            let policy = TreePolicy { low_space, unmerged_bytes, ..TreePolicy::PLENTY };
            let mut reserve = |more, purpose| {
                self.space.reservations.reserve(more, purpose, self.unwritten_blocks()).is_ok()
            };
            let root =
                absorb_within_space(self.trees, policy, root, &sealed.layer, Purpose::Clear, &mut reserve)?;
            index.publish_root(self.space, root, |version| {
                version.sealed.remove(0);
            });
            if is_low(&self.space.block_counts(), self.unwritten_blocks(), &self.options.tuning) {
                self.low_space.set(true);
            }
        }
        Ok(())
    }

    /// Blocks that will be taken by what is in memory, at most: what was absorbed counts among the
    /// messages, too.
    fn unwritten_blocks(&self) -> u64 {
        let roots = self.indexes.values().map(|index| unwritten_below(self.trees, &index.version().root));
        roots.sum::<u64>() + message_blocks(&self.options.tuning, self.order.pending.bytes)
    }
}

impl BatchReplay<'_> {
    /// Deletes what messages make of nothing where something is lost. There are no readers yet.
    ///
    /// Before this table there is nothing of the kind in the tree: the repair deleted it before
    /// replay began, this function did so for each table since, and clones copy no more than that.
    /// So it looks at the keys that this table changes, not at all that is left where something is
    /// lost: a log may make as many tables as it has batches.
    fn delete_baseless(&self, index: &Index, table: &Arc<Memtable>) -> Result<()> {
        let mut losses = self.losses.lock();
        if losses.has_none_in_tree(index.id) {
            return Ok(());
        }
        for changed in changed_by(table) {
            for range in losses.in_tree(index.id, &changed) {
                for key in keys_without_base(self.trees, Some(table), &index.version().root, &range)? {
                    if is_decided_by(table, &key) {
                        continue;
                    }
                    table.apply(&key, self.order.last_msn, &crate::Op::Delete, Msn(0), &self.options.merge);
                    losses.add_in_tree(Loss::key(index.id, &key, "what was changed there is lost"));
                }
            }
        }
        Ok(())
    }
}

/// The keys to which a table may give a value: those with messages of their own, and what range
/// updates cover.
fn changed_by(table: &Memtable) -> Vec<KeyRange> {
    let ranges = table.ranges();
    let updates = |ops: &RangeOps| ops.iter().any(|(_, op)| matches!(op, crate::RangeOp::Update(_)));
    let updated = ranges.iter().filter(|(_, ops)| updates(ops)).map(|(range, _)| range);
    let keys = table.keys();
    union_of(updated.chain(keys.iter().map(|key| KeyRange::through(key, key))).collect())
}

/// True if the table deletes what was at `key` before: nothing that is lost counts any more.
fn is_decided_by(table: &Memtable, key: &[u8]) -> bool {
    let mut found = KeyMessages::default();
    table.find(key, Msn(u64::MAX), &mut found);
    found.is_done()
}

#[cfg(test)]
mod tests {
    use super::{LAST_MSN, follow};
    use crate::Msn;

    #[test]
    fn messages_of_a_log_are_numbered_upwards() {
        assert_eq!(follow(Msn(0), 1, 3), Some(Msn(3)));
        assert_eq!(follow(Msn(3), 4, 0), Some(Msn(3)));
        assert_eq!(follow(Msn(3), 9, 1), Some(Msn(9)));
        for (last, first, count) in [(0, 0, 1), (3, 3, 1), (3, 1, 9), (3, LAST_MSN, 1), (3, u64::MAX, 1)] {
            assert_eq!(follow(Msn(last), first, count), None, "{count} from {first} behind {last}");
        }
    }
}
