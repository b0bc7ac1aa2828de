//! Checkpoint cut: one consistent state of all indexes, taken at one batch.
//!
//! Protocol: under the commit lock, when all accepted batches have been applied, the memtables of
//! all indexes are sealed after the same batch ([`CutTaker::cut`]). What is sealed up to there, and
//! nothing newer, is absorbed then, index by index under the structure lock, and the roots are
//! taken ([`CutTaker::take_roots`]); newer layers wait at the absorber's barrier meanwhile.

use super::state::CheckpointState;
use super::volume_changes::{Alias, Graft, VolumeChange, VolumeChanges, VolumeEffects};
use crate::commit::order::PendingSpace;
use crate::commit::pipeline::CommitPipeline;
use crate::index::Index;
use crate::index::absorb::Absorber;
use crate::index::accounting::SpaceAccounting;
use crate::index::deleted_ranges::DeletedRanges;
use crate::log::Log;
use crate::model::ids::{IndexId, Lsn, Msn};
use crate::space::{Space, VolumeTable};
use crate::tree::{Root, Trees};
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A consistent state to be made durable.
pub(super) struct Cut {
    pub(super) lsn: Lsn,
    pub(super) next_msn: Msn,
    pub(super) volumes: VolumeTable,
    pub(super) indexes: Vec<Arc<Index>>,
    pub(super) changed: VolumeEffects,
    /// What is released when it is on the device.
    pub(super) pending: PendingSpace,
    /// Bytes of it that the log had not written yet.
    covered_bytes: u64,
    /// What it deletes may take space that no checkpoint sets free by itself.
    pub(super) untidy: bool,
}

/// See the [module](self).
pub(crate) struct CutTaker {
    pub(crate) pipeline: Arc<CommitPipeline>,
    pub(crate) log: Arc<Log>,
    pub(crate) space: Arc<Space>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) absorber: Arc<Absorber>,
    pub(crate) deleted: Arc<DeletedRanges>,
    pub(crate) volumes: VolumeChanges,
}

impl CutTaker {
    /// Seals the memtables of all indexes, and changes the volumes if that is `wanted`.
    pub(super) fn cut(&self, change: &VolumeChange<'_>, wanted: &dyn Fn() -> bool) -> Result<Cut> {
        let mut order = self.pipeline.lock_applied()?;
        if !wanted() {
            return Err(Error::given_up());
        }
        let changed = self.volumes.begin(change)?;
        let volumes = self.volumes.catalog.lock().table.clone();
        let mut indexes = self.volumes.indexes.all();
        indexes.retain(|index| !changed.aliases.iter().any(|alias| alias.id == index.id));
        let lsn = order.last_lsn;
        self.absorber.set_barrier(lsn);
        let replaced = changed.aliases.iter().filter_map(|alias| alias.replaced.as_ref());
        for index in indexes.iter().chain(replaced) {
            index.seal(lsn);
        }
        // What groups have bound until now is no longer pending of what is cut off, not of what
        // follows; in this order, so that what comes to be bound meanwhile is counted twice rather
        // than not at all.
        let unwritten = self.log.unwritten_bytes();
        order.note_bound(self.trees.memory.placed_value_bytes.swap(0, Ordering::AcqRel));
        let pending = std::mem::take(&mut order.pending);
        self.accounting.range_deletes().cut();
        order.covered_bytes = unwritten;
        let next_msn = Msn(order.last_msn.0 + 1);
        let covered_bytes = order.covered_bytes;
        // What is deleted is noted when it is applied.
        let untidy = self.deleted.is_untidy();
        Ok(Cut { lsn, next_msn, volumes, indexes, changed, pending, covered_bytes, untidy })
    }

    /// The checkpoint has failed: what was cut off waits for another one, but for what the log has
    /// brought to its place since.
    pub(super) fn undo(&self, cut: &mut Cut) {
        self.volumes.undo(cut.changed.made);
        let mut order = self.pipeline.lock();
        let mut pending = std::mem::take(&mut cut.pending);
        let bound = cut.covered_bytes.saturating_sub(std::mem::take(&mut order.covered_bytes));
        pending.bytes = pending.bytes.saturating_sub(bound);
        order.pending.append(pending);
        self.accounting.range_deletes().undo_cut();
    }

    /// Absorbs what was cut off, and takes the roots.
    pub(super) fn take_roots(&self, cut: &Cut, state: &CheckpointState) -> Result<Vec<(IndexId, Root)>> {
        let mut roots: Vec<(IndexId, Root)> = Vec::new();
        for index in &cut.indexes {
            let _structure = index.structure.lock();
            while index.version().sealed.first().is_some_and(|s| s.upto <= cut.lsn) {
                self.absorber.absorb_oldest(index)?;
            }
            roots.push((index.id, index.version().root.clone()));
        }
        for alias in &cut.changed.aliases {
            let root = self.take_alias(alias, cut, self.root_of(&roots, state, &alias.from))?;
            roots.push((alias.id, root));
        }
        for graft in &cut.changed.grafts {
            let source = self.root_of(&roots, state, &graft.from);
            if let Some(root) = self.put_graft(graft, cut, &source)? {
                roots.retain(|(of, _)| *of != graft.id);
                roots.push((graft.id, root));
            }
        }
        Ok(roots)
    }

    /// Of volumes that never change the root is the one of the last checkpoint.
    fn root_of(&self, roots: &[(IndexId, Root)], state: &CheckpointState, id: &IndexId) -> Root {
        match roots.iter().find(|(of, _)| of == id) {
            Some((_, root)) => root.clone(),
            None => state.roots.get(id).map_or_else(Root::default, |root| root.as_root(&*self.space)),
        }
    }

    /// The root of an index that gets the one of another index.
    fn take_alias(&self, alias: &Alias, cut: &Cut, mut root: Root) -> Result<Root> {
        if !alias.prefix.is_empty() {
            root = self.accounting.edit().extract_prefix(&root, &alias.prefix, Msn(cut.next_msn.0 - 1))?;
        }
        if let Some(index) = &alias.replaced {
            let _structure = index.structure.lock();
            index.publish_root(&self.space, root.clone(), |version| {
                version.sealed.retain(|sealed| sealed.upto > cut.lsn);
            });
        }
        Ok(root)
    }

    /// The root of an index that gets `source` behind a prefix; `None` if there is no such index.
    fn put_graft(&self, graft: &Graft, cut: &Cut, source: &Root) -> Result<Option<Root>> {
        let Some(index) = cut.indexes.iter().find(|index| index.id == graft.id) else { return Ok(None) };
        let _structure = index.structure.lock();
        // Other threads may have flushed it since, and absorbed nothing that is newer than the cut.
        let msn = Msn(cut.next_msn.0 - 1);
        let root =
            self.accounting.edit().insert_at_prefix(&index.version().root, &graft.prefix, source, msn)?;
        index.publish_root(&self.space, root.clone(), |_| ());
        Ok(Some(root))
    }
}
