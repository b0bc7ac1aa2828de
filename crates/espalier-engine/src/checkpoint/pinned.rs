//! Pinned memory: nodes and values that are in memory only and that only snapshots still hold.
//!
//! Newer ones have replaced them, so no checkpoint will write them. Writers that wait for unwritten
//! memory to be written must not wait for these.

use super::Checkpointer;
use crate::index::Version;
use crate::model::ids::IndexId;
use crate::tree::Root;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Checkpointer {
    /// At the end of a checkpoint that wrote `roots`: while nothing newer has been published, what
    /// is in memory and not on the device is large values of batches that came since, and what
    /// newer nodes and values have replaced and some snapshot still holds. No work brings the
    /// latter to the device, so no writer may wait for that.
    pub(super) fn note_pinned(&self, roots: &[(IndexId, Root)]) {
        let indexes = self.indexes.all();
        // No thread is at work on a tree while all these are held; where one is, the next
        // checkpoint will tell.
        let structures: Vec<_> = indexes.iter().map_while(|index| index.structure.try_lock()).collect();
        if structures.len() < indexes.len() {
            return;
        }
        // In this order: what is accepted meanwhile is counted as newer only, once it lies in
        // memtables.
        let resident = self.trees.memory.value_bytes.load(Ordering::Acquire);
        self.pipeline.drain();
        let versions: Vec<_> = indexes.iter().map(|index| (index.id, index.version())).collect();
        let is_written = |(id, version): &(IndexId, Arc<Version>)| {
            let slot = |root: &Root| root.slot.as_ref().map(Arc::as_ptr);
            roots.iter().any(|(of, root)| of == id && slot(root) == slot(&version.root))
        };
        if versions.iter().all(is_written) {
            let tables = versions.iter().flat_map(|(_, version)| version.memtables());
            let newer: usize = tables.map(|table| table.value_bytes()).sum();
            let nodes = self.trees.memory.dirty_bytes.load(Ordering::Acquire);
            self.memory.set_pinned(nodes, resident.saturating_sub(newer));
        }
    }
}
