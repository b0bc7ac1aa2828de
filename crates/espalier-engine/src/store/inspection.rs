//! Inspection: verification, space usage of ranges, and a dump of the trees as text.

use super::Store;
use super::components::Components;
#[cfg(doc)]
use crate::ErrorKind;
use crate::checkpoint::state::CheckpointState;
use crate::index::catalog::no_such_index;
use crate::model::ids::{IndexId, PieceId};
use crate::model::key::KeyRange;
use crate::space::Locator;
use crate::tree::source::MessageSet;
use crate::tree::{
    AskedRanges, Counted, HeldTally, Problem, Progress, Sought, SpaceUse, Usage, Verifier, VerifyReport,
};
use crate::{Error, Result};
use espalier_storage::BLOCK;
use std::collections::BTreeMap;
use std::time::Duration;

impl Store {
    /// How much space some ranges take together, and how much of it is theirs alone. Counts whole
    /// pieces as of a checkpoint that is made first, unless the store is read-only; reads headers,
    /// no parts. The ranges must not overlap.
    ///
    /// # Errors
    /// Of that checkpoint; [`ErrorKind::NotFound`] if there is no such index.
    pub fn space_of(&self, ranges: &[(IndexId, KeyRange)]) -> Result<SpaceUse> {
        if !self.components.options.read_only {
            self.components.write.checkpointer.checkpoint()?;
        }
        self.usage(Sought::All, ranges)
    }

    /// How many bytes of the store some ranges take that are theirs alone, as of a checkpoint no
    /// older than `max_age`, or as of now if that one knows of none and something was written in
    /// the ranges since. Makes a checkpoint if need be, unless the store is read-only. Reads the
    /// headers of what is theirs alone and of the borders, and parts only to tell what was written.
    /// The ranges must not overlap.
    ///
    /// # Errors
    /// As for [`Store::space_of`].
    pub fn exclusive_space_of(&self, ranges: &[(IndexId, KeyRange)], max_age: Duration) -> Result<u64> {
        self.checkpoint_if_older(max_age)?;
        let (exclusive, is_old) = self.components.write.checkpointer.hold(|state| {
            let exclusive = self.usage_in(state, Sought::Exclusive, ranges)?.exclusive;
            // They may be newer than that checkpoint.
            Ok::<_, Error>((exclusive, exclusive == 0 && self.has_newer(state, ranges)?))
        })?;
        if !is_old {
            return Ok(exclusive);
        }
        self.checkpoint_if_older(Duration::ZERO)?;
        Ok(self.usage(Sought::Exclusive, ranges)?.exclusive)
    }

    /// False if nothing in some ranges is known to be newer than the last checkpoint.
    fn has_newer(&self, state: &CheckpointState, ranges: &[(IndexId, KeyRange)]) -> Result<bool> {
        let Components { space, write, .. } = &self.components;
        if self.components.options.read_only
            || space.superblock().checkpoint_lsn >= write.pipeline.lock_applied()?.last_lsn
        {
            return Ok(false);
        }
        let snapshot = self.snapshot()?;
        for (id, ranges) in ranges_by_index(ranges) {
            let root = state.roots.get(&id).ok_or_else(|| no_such_index(id))?.as_root(&**space);
            let index = snapshot.index(id)?;
            for range in &ranges {
                if index.may_differ_from(&root, range)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Makes a checkpoint unless the last one covers everything, or was made less than
    /// `max_age` ago, or the store is read-only.
    ///
    /// # Errors
    /// Of the device.
    pub fn checkpoint_if_older(&self, max_age: Duration) -> Result<()> {
        let write = &self.components.write;
        if self.components.options.read_only {
            return Ok(());
        }
        let last = write.pipeline.lock_applied()?.last_lsn;
        write.checkpointer.checkpoint_if_older(last, max_age)
    }

    /// How many bytes some ranges hold, as of the last checkpoint: those that nothing else holds,
    /// and those of `all` that they refer to, if that is asked for (otherwise the figure is too
    /// small). What is dead beside data that lives does not count. The ranges must not overlap.
    ///
    /// Reads the headers of what is theirs alone, or of `all`, and the parts on the borders; but
    /// for what `tally` knows since it was last used here, and no change of the store has concerned
    /// since. An empty tally knows nothing. It is emptied if there is an error.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such index; of the device.
    pub fn bytes_held(
        &self,
        tally: &mut HeldTally,
        ranges: &[(IndexId, KeyRange)],
        all: bool,
    ) -> Result<SpaceUse> {
        loop {
            // Between two steps checkpoints may be made.
            match self.count_held(tally, ranges, all) {
                Ok(Some(space)) => return Ok(space),
                Ok(None) => {}
                Err(error) => {
                    *tally = HeldTally::default();
                    return Err(error);
                }
            }
        }
    }

    /// Counts some of what is to be counted; the figures if that was all.
    fn count_held(
        &self,
        tally: &mut HeldTally,
        ranges: &[(IndexId, KeyRange)],
        all: bool,
    ) -> Result<Option<SpaceUse>> {
        let components = &self.components;
        components.write.checkpointer.hold(|state| {
            let mut asked = AskedRanges::new();
            for (index, ranges) in ranges_by_index(ranges) {
                let root = state.roots.get(&index).ok_or_else(|| no_such_index(index))?;
                asked.insert(index, (root.as_root(&*components.space), ranges.into()));
            }
            tally.begin(&asked, all, state.changed.number(), state.changed.since(tally.as_of()))?;
            tally.go_on(&components.trees, &|id| self.counted(id))
        })
    }

    /// What the tables say of a piece.
    fn counted(&self, id: PieceId) -> Result<Counted> {
        let space = &self.components.space;
        let (count, live) = space.tables.references_and_live(id)?.unwrap_or((0, 0));
        let bytes = Locator::locate(&**space, id)?.extent.byte_len() as u64;
        Ok(Counted { count: u64::from(count), bytes, live })
    }

    /// Has messages that wait in some ranges come to the leaves, so that what they replace or
    /// delete is held no longer, as far as that takes no longer than `limit`.
    ///
    /// # Errors
    /// Of the device.
    pub fn settle(&self, ranges: &[(IndexId, KeyRange)], limit: Duration) -> Result<()> {
        self.components.write.pipeline.writable()?;
        self.components.write.scheduler.collector.push_down_now(ranges, limit)
    }

    /// As [`Store::settle`], if anything was deleted there that has not come to the leaves yet.
    ///
    /// # Errors
    /// Of the device.
    pub fn settle_deleted(&self, ranges: &[(IndexId, KeyRange)], limit: Duration) -> Result<()> {
        match self.components.write.scheduler.collector.deleted.touch(ranges) {
            true => self.settle(ranges, limit),
            false => Ok(()),
        }
    }

    /// Has large values of keys that begin with `prefix` written into value parts of their own from
    /// now on, so that they count for what they belong to. `owner` had another prefix before, or
    /// gives up the one that it had.
    pub fn keep_apart(&self, owner: u64, prefix: Option<(IndexId, &[u8])>) {
        self.components.log.apart.set(owner, prefix.map(|(index, prefix)| (index, prefix.into())));
    }

    /// As of the last checkpoint.
    fn usage(&self, sought: Sought, ranges: &[(IndexId, KeyRange)]) -> Result<SpaceUse> {
        self.components.write.checkpointer.hold(|state| self.usage_in(state, sought, ranges))
    }

    fn usage_in(
        &self,
        state: &CheckpointState,
        sought: Sought,
        ranges: &[(IndexId, KeyRange)],
    ) -> Result<SpaceUse> {
        let components = &self.components;
        let look = |id| self.counted(id);
        let mut usage = Usage::new(&components.trees, sought, &look);
        for (index, ranges) in ranges_by_index(ranges) {
            let root = state.roots.get(&index).ok_or_else(|| no_such_index(index))?;
            usage.add(&root.as_root(&*components.space), ranges.into());
        }
        usage.finish()
    }

    /// Checks every invariant of the store, reading all of it. The state checked is that of the
    /// last checkpoint, and the large values that newer messages name; one is made first unless the
    /// store is read-only.
    ///
    /// # Errors
    /// Of that checkpoint; [`ErrorKind::Gone`] if part of the state was deleted meanwhile. What is
    /// wrong with the store is in the report.
    pub fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        if !self.components.options.read_only {
            self.components.write.checkpointer.checkpoint()?;
        }
        let report = self.verify_checkpoint(progress);
        self.still_there()?;
        Ok(report)
    }

    /// `Ok` if no read has found that part of the state that is read was deleted, because a newer
    /// one replaced it. Then nothing can be said about damage.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`].
    pub fn still_there(&self) -> Result<()> {
        self.components.device.still_there()
    }

    /// Writes the trees as text: all of them, or the part below one node.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`].
    pub fn dump(&self, out: &mut dyn std::fmt::Write, node: Option<PieceId>) -> Result<()> {
        if let Some(id) = node {
            let node = self.components.trees.node(id)?;
            return self.components.trees.dump_node(&node, 0, out);
        }
        self.components.write.pipeline.drain();
        for index in self.components.indexes.all() {
            let version = index.version();
            let _ = writeln!(out, "index {}: {} bytes in memtables", index.id, version.memtable_bytes());
            self.components.trees.dump(&version.root, out)?;
        }
        Ok(())
    }

    /// Checks what the last checkpoint left.
    fn verify_checkpoint(&self, progress: &mut dyn FnMut(Progress)) -> VerifyReport {
        let components = &self.components;
        components.write.checkpointer.hold(|state| {
            let stats = components.space.block_counts();
            let total = stats.total.saturating_sub(stats.free + stats.fixed) * BLOCK as u64;
            let mut tell = |done: u64| progress(Progress { done: done.min(total), total });
            let mut verifier = Verifier::new(&components.trees, &mut tell);
            for (index, root) in &state.roots {
                verifier.index(*index, &root.as_root(&*components.space));
            }
            for index in components.indexes.all() {
                verifier.pending(index.id, index.version().memtables().map(|table| table as &dyn MessageSet));
            }
            for id in &state.reclaim {
                verifier.visit_dead(*id);
            }
            let (mut report, references) = verifier.finish();
            if self.still_there().is_err() {
                return report;
            }
            let problems = components.space.check(&references, &state.reclaim, &mut |_| {});
            report.problems.extend(problems.into_iter().map(|message| Problem {
                index: None,
                range: None,
                message,
            }));
            report
        })
    }
}

/// Ranges that hold something, by their index.
fn ranges_by_index(ranges: &[(IndexId, KeyRange)]) -> BTreeMap<IndexId, Vec<KeyRange>> {
    let mut of: BTreeMap<IndexId, Vec<KeyRange>> = BTreeMap::new();
    for (index, range) in ranges.iter().filter(|(_, range)| !range.is_empty()) {
        of.entry(*index).or_default().push(range.clone());
    }
    of
}
