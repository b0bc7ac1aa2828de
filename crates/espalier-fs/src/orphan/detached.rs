//! Detached files: unlinked files in use, whose data still lies where it was.
//!
//! The kernel holds a file while it is unlinked, and does not say whether an application has it
//! open. So unlinking moves nothing: the entry goes, the data stays in its place (*detached*), and
//! a record in the orphan area names the place. As long as the record names it, no other file may
//! get the place.

use crate::data::blocks;
use crate::inode::node::{Node, Orphan, State};
use crate::lock_order::{Rank, RankedMutex};
use crate::model::error::Result;
use crate::model::record::{self, Inode};
use crate::model::types::NodeId;
use crate::volume::context::VolumeContext;
use espalier_engine::{Batch, KeyRange};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) struct DetachedFiles {
    volume: Arc<VolumeContext>,
    /// By the key at which the data begins. Files whose data lies in the orphan area are not
    /// listed.
    by_base: RankedMutex<BTreeMap<Arc<[u8]>, NodeId>>,
}

impl DetachedFiles {
    pub(crate) fn new(volume: Arc<VolumeContext>) -> Self {
        Self { volume, by_base: RankedMutex::new(Rank::Table, BTreeMap::new()) }
    }

    /// Adds to a batch the record that data of a file without a name needs before it can be stored.
    /// The caller gives the state the result after the commit ([`DetachedFiles::recorded`]).
    #[must_use]
    pub(crate) fn record(&self, node: &Node, state: &State, batch: &mut Batch) -> Option<Orphan> {
        if state.orphan != Orphan::Empty {
            return None;
        }
        let key = node.orphan_key();
        batch.insert_new(self.volume.metadata(), &key, record::encode_orphan(&key));
        node.pending.store(true, Ordering::Release);
        Some(Orphan::Data(key.into()))
    }

    /// The record of [`DetachedFiles::record`] was committed.
    pub(crate) fn recorded(&self, state: &mut State, orphan: Option<Orphan>) {
        if let Some(orphan) = orphan {
            state.orphan = orphan;
            self.volume.counters.orphans.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds to a batch that the data at `base` now belongs to a file without a name.
    pub(crate) fn detach(&self, node: &Node, base: Arc<[u8]>, batch: &mut Batch) -> Orphan {
        batch.insert_new(self.volume.metadata(), &node.orphan_key(), record::encode_orphan(&base));
        node.pending.store(true, Ordering::Release);
        Orphan::Data(base)
    }

    /// Adds to a batch that the data at `base` moves to the orphan area.
    pub(crate) fn detach_to_orphan_area(
        &self,
        node: &Node,
        inode: &Inode,
        base: &[u8],
        batch: &mut Batch,
    ) -> Result<Orphan> {
        let key = node.orphan_key();
        node.version.fetch_add(1, Ordering::AcqRel);
        blocks::move_all(&self.volume, inode, base, &key, batch)?;
        batch.insert(self.volume.metadata(), &key, record::encode_orphan(&key));
        node.pending.store(true, Ordering::Release);
        Ok(Orphan::Data(key.into()))
    }

    /// Removes data and record of a file without a name that is no longer in use.
    pub(crate) fn remove_file(&self, node: &Node, state: &mut State) -> Result<()> {
        let Orphan::Data(base) = state.orphan.clone() else { return Ok(()) };
        let mut batch = Batch::new();
        blocks::delete_all(&self.volume, &base, &state.inode, &mut batch)?;
        batch.delete(self.volume.metadata(), &node.orphan_key());
        // If that fails all stays as it is: as long as the record names the place, no other file
        // may get it.
        self.volume.commit_internal(batch)?;
        self.data_removed(state);
        Ok(())
    }

    /// In memory, a file without a name has no data any more.
    pub(crate) fn data_removed(&self, state: &mut State) {
        if let Orphan::Data(base) = std::mem::replace(&mut state.orphan, Orphan::Empty) {
            self.forget(&base);
            self.volume.counters.orphans.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The data at `base` belongs to unlinked file `id`.
    pub(crate) fn insert(&self, base: Arc<[u8]>, id: NodeId) {
        self.by_base.lock().insert(base, id);
    }

    /// No detached data lies at `base` any more.
    pub(crate) fn forget(&self, base: &[u8]) {
        self.by_base.lock().remove(base);
    }

    /// Takes `id` out if its data lies at `base`; false if it does not.
    pub(crate) fn take(&self, base: &[u8], id: NodeId) -> bool {
        let mut by_base = self.by_base.lock();
        let is_here = by_base.get(base) == Some(&id);
        if is_here {
            by_base.remove(base);
        }
        is_here
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_base.lock().is_empty()
    }

    /// True if detached data lies at `base`.
    pub(crate) fn is_at(&self, base: &[u8]) -> bool {
        self.by_base.lock().contains_key(base)
    }

    /// The first file whose detached data lies in `range`, and where.
    pub(crate) fn first_in(&self, range: &KeyRange) -> Option<(Arc<[u8]>, NodeId)> {
        let by_base = self.by_base.lock();
        by_base.range::<[u8], _>(range.bounds()).next().map(|(base, id)| (base.clone(), *id))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_base.lock().len()
    }
}
