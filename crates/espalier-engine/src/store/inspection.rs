//! Inspection: verification, space usage of ranges, and a dump of the trees as text.

use super::Store;
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::index::catalog::no_such_index;
use crate::model::ids::{IndexId, PieceId};
use crate::model::key::KeyRange;
use crate::space::Locator;
use crate::tree::source::MessageSet;
use crate::tree::{Problem, Progress, Sought, SpaceUse, Usage, Verifier, VerifyReport};
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
    /// older than `max_age`, which is made if need be and unless the store is read-only. Reads the
    /// headers of what is theirs alone and of the borders, no parts. The ranges must not overlap.
    ///
    /// # Errors
    /// As for [`Store::space_of`].
    pub fn exclusive_space_of(&self, ranges: &[(IndexId, KeyRange)], max_age: Duration) -> Result<u64> {
        let components = &self.components;
        if !components.options.read_only {
            let last = components.write.pipeline.lock_applied()?.last_lsn;
            components.write.checkpointer.checkpoint_if_older(last, max_age)?;
        }
        Ok(self.usage(Sought::Exclusive, ranges)?.exclusive)
    }

    /// As of the last checkpoint.
    fn usage(&self, sought: Sought, ranges: &[(IndexId, KeyRange)]) -> Result<SpaceUse> {
        let components = &self.components;
        components.write.checkpointer.hold(|state| {
            let look = |id| {
                let count = u64::from(components.space.tables.references(id)?.unwrap_or(0));
                Ok((count, Locator::locate(&*components.space, id)?.extent.byte_len() as u64))
            };
            let mut usage = Usage::new(&components.trees, sought, &look);
            let mut of: BTreeMap<IndexId, Vec<KeyRange>> = BTreeMap::new();
            for (index, range) in ranges.iter().filter(|(_, range)| !range.is_empty()) {
                of.entry(*index).or_default().push(range.clone());
            }
            for (index, ranges) in of {
                let root = state.roots.get(&index).ok_or_else(|| no_such_index(index))?;
                usage.add(&root.as_root(&*components.space), ranges.into());
            }
            usage.finish()
        })
    }

    /// Checks every invariant of the store, reading all of it. The state checked is that of the
    /// last checkpoint, and the large values that newer messages name; one is made first unless the
    /// store is read-only.
    ///
    /// # Errors
    /// Of that checkpoint; what is wrong with the store is in the report.
    pub fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        if !self.components.options.read_only {
            self.components.write.checkpointer.checkpoint()?;
        }
        Ok(self.verify_checkpoint(progress))
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
            let stats = components.space.stats();
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
