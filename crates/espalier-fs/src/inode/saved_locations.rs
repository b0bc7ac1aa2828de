//! Saved locations: where files lie whose handles are to outlive a remount.
//!
//! A record in the store says of an id in which directory the file lies, and under which name
//! ([`Location`]). Records are hints, like what the node table remembers of forgotten nodes: what
//! is found counts only if it has the id. So they may be written late. Every node that comes into
//! memory, moves, or loses its name is noted, and the background writes the records of those, many
//! with one batch: a directory above a file is in memory before the file is, so it is noted as
//! well. Nothing of that happens unless [`HandleLifetime::Stored`] asks for it.
//!
//! The removal of a tree does not name what is below. So a *sweep* goes through all records, some
//! at a time, and deletes those whose directory has none.
//!
//! [`HandleLifetime::Stored`]: crate::HandleLifetime::Stored

use crate::inode::forgotten::Location;
use crate::inode::node::Orphan;
use crate::inode::node_id::is_temporary;
use crate::inode::node_table::{NodeTable, Noted};
use crate::lock_order::{Rank, RankedMutex};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::types::NodeId;
use crate::volume::context::VolumeContext;
use crate::volume::tree_lock::TreeLock;
use espalier_engine::{Batch, Key};
use std::sync::Arc;

/// Records that one batch writes.
const RECORDS_PER_BATCH: usize = 256;
/// Records that one step of the sweep looks at.
const RECORDS_PER_SWEEP: usize = 1024;

pub(crate) struct SavedLocations {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    /// The record at which the sweep goes on; `None` if it has been through all of them since a
    /// tree was removed.
    sweep: RankedMutex<Option<Key>>,
}

impl SavedLocations {
    pub(crate) fn new(volume: Arc<VolumeContext>, tree: Arc<TreeLock>, nodes: Arc<NodeTable>) -> Self {
        let sweep = RankedMutex::new(Rank::Table, Some(layout::locations_range().start));
        Self { volume, tree, nodes, sweep }
    }

    /// Where the file with this id lay when its record was written.
    pub(crate) fn location(&self, id: NodeId) -> Result<Option<Location>> {
        let value = self.volume.store.get(self.volume.metadata(), &layout::location_key(id.0))?;
        value.map(|value| Location::decode(&value)).transpose()
    }

    /// Writes the records of all nodes that were noted.
    pub(crate) fn write_all(&self) -> Result<()> {
        if self.volume.options.read_only {
            return Ok(());
        }
        let noted = self.nodes.take_noted();
        for noted in noted.chunks(RECORDS_PER_BATCH) {
            let tree = self.tree.shared();
            let mut batch = Batch::new();
            for (id, noted) in noted {
                let location = match (noted, self.nodes.get(*id)) {
                    (Noted::Left(location), None) => location.clone(),
                    (_, Some(node)) if node.is_removed() || node.state().orphan != Orphan::No => None,
                    (_, Some(node)) => Location::of(&node),
                    // It has left memory since.
                    (Noted::InMemory, None) => self.nodes.location(*id),
                };
                self.put(*id, location, &mut batch)?;
            }
            drop(tree);
            if !batch.is_empty() {
                self.volume.commit_internal(batch)?;
            }
        }
        Ok(())
    }

    /// Adds to a batch what makes the record of an id say `location`.
    fn put(&self, id: NodeId, location: Option<Location>, batch: &mut Batch) -> Result<()> {
        if is_temporary(id) {
            return Ok(());
        }
        let key = layout::location_key(id.0);
        let stored = self.volume.store.get(self.volume.metadata(), &key)?;
        match (stored, location.map(|location| location.encode())) {
            (Some(stored), Some(value)) if *stored == *value => {}
            (_, Some(value)) => batch.insert(self.volume.metadata(), &key, value),
            (Some(_), None) => batch.delete(self.volume.metadata(), &key),
            (None, None) => {}
        }
        Ok(())
    }

    /// A tree was removed.
    pub(crate) fn sweep_again(&self) {
        *self.sweep.lock() = Some(layout::locations_range().start);
    }

    /// Looks at some more records, and deletes those whose directory is not known any more.
    pub(crate) fn sweep(&self) -> Result<()> {
        let Some(from) = self.sweep.lock().clone() else { return Ok(()) };
        let (metadata, mut looked_at) = (self.volume.metadata(), 0);
        let mut cursor = self.volume.store.cursor(metadata, layout::locations_range())?;
        cursor.seek(&from);
        let mut batch = Batch::new();
        let mut next = None;
        while let Some(entry) = cursor.next()? {
            if looked_at == RECORDS_PER_SWEEP {
                next = Some(entry.key);
                break;
            }
            looked_at += 1;
            let is_known = match Location::decode(&cursor.read(&entry.value)?) {
                Ok(location) => self.is_known(location.parent)?,
                Err(_) => false,
            };
            if !is_known {
                batch.delete(metadata, &entry.key);
            }
        }
        if !batch.is_empty() {
            self.volume.commit_internal(batch)?;
            // What lay below these may come before them.
            next = next.or(Some(layout::locations_range().start));
        }
        let mut sweep = self.sweep.lock();
        if sweep.as_ref() == Some(&from) {
            *sweep = next;
        }
        Ok(())
    }

    fn is_known(&self, dir: NodeId) -> Result<bool> {
        if dir == NodeId::ROOT {
            return Ok(true);
        }
        Ok(self.volume.store.contains(self.volume.metadata(), &layout::location_key(dir.0))?)
    }
}

impl Location {
    fn encode(&self) -> Vec<u8> {
        [&self.parent.0.to_le_bytes()[..], &[u8::from(self.in_link_area)], &self.name].concat()
    }

    fn decode(value: &[u8]) -> Result<Self> {
        match value.split_first_chunk::<8>() {
            Some((parent, [area @ (0 | 1), name @ ..])) => {
                let parent = NodeId(u64::from_le_bytes(*parent));
                Ok(Self { parent, in_link_area: *area == 1, name: name.into() })
            }
            _ => fail(FsErrorKind::Io, "the record of a file's location cannot be understood"),
        }
    }
}
