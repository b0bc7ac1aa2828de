//! The orphan area: files without a name and removed trees that are still in use.
//!
//! Each has a record in the area. The record of a file names where its data lies: in the area, or
//! still in its old place ([`crate::orphan::detached`]). A removed tree lies below its record. With
//! the last reference data and record go, those of small files together
//! ([`crate::orphan::deferred_unlink`]). Recovery removes everything that the area names.
//!
//! An operation that needs the place of detached data sooner (a new entry of that name, a move or
//! removal of the directory) moves the data into the area first ([`Orphans::move_away`]).

use crate::data::reservation;
use crate::inode::node::{Node, Orphan, State};
use crate::inode::node_table::NodeTable;
use crate::lock_order::{Rank, RankedMutex};
use crate::model::error::Result;
use crate::model::layout;
use crate::model::record::OrphanRecord;
use crate::model::types::NodeId;
use crate::orphan::deferred_unlink::DeferredUnlinks;
use crate::orphan::detached::DetachedFiles;
use crate::volume::context::VolumeContext;
use crate::volume::link_index::LinkIndex;
use crate::volume::tree_lock::{TreeGuard, TreeLock};
use espalier_engine::{Batch, KeyRange};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations in one batch of recovery.
const RECOVERY_BATCH_OPERATIONS: usize = 1024;

pub(crate) struct Orphans {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) links: Arc<LinkIndex>,
    pub(crate) detached: Arc<DetachedFiles>,
    pub(crate) deferred: DeferredUnlinks,
    /// The node of the area, parent of all nodes without a name.
    pub(crate) area: Arc<Node>,
    /// Number of removed trees that are in use.
    removed_trees: AtomicU64,
    /// The directories at their tops.
    tops: RankedMutex<BTreeSet<NodeId>>,
}

impl Orphans {
    pub(crate) fn new(
        volume: Arc<VolumeContext>,
        nodes: Arc<NodeTable>,
        links: Arc<LinkIndex>,
        area: Arc<Node>,
    ) -> Self {
        let detached = Arc::new(DetachedFiles::new(volume.clone()));
        let deferred = DeferredUnlinks::new(volume.clone(), nodes.clone(), detached.clone());
        Self {
            volume,
            nodes,
            links,
            detached,
            deferred,
            area,
            removed_trees: AtomicU64::new(0),
            tops: RankedMutex::new(Rank::Table, BTreeSet::new()),
        }
    }

    /// In memory, a file that lost its last name moves to the orphan area. Returns the reference on
    /// its old parent, which the caller gives back when it holds no locks.
    #[must_use]
    pub(crate) fn adopt_file(&self, node: &Arc<Node>, state: &mut State, orphan: Orphan) -> Option<NodeId> {
        if let Orphan::Data(base) = &orphan {
            self.volume.counters.orphans.fetch_add(1, Ordering::Relaxed);
            if **base != node.orphan_key() {
                self.detached.insert(base.clone(), node.id);
            }
        }
        state.orphan = orphan;
        self.adopt(node)
    }

    /// In memory, a removed tree that is in use moves to the orphan area. Returns as
    /// [`Orphans::adopt_file`].
    #[must_use]
    pub(crate) fn adopt_tree(&self, node: &Arc<Node>) -> Option<NodeId> {
        node.pending.store(true, Ordering::Release);
        self.volume.counters.orphans.fetch_add(1, Ordering::Relaxed);
        self.removed_trees.fetch_add(1, Ordering::AcqRel);
        self.tops.lock().insert(node.id);
        self.adopt(node)
    }

    fn adopt(&self, node: &Arc<Node>) -> Option<NodeId> {
        if node.limit_table.is_used() {
            node.charge_to(Some(node.collect_limits()));
        }
        self.nodes.move_node(node, &self.area, &layout::area_name(node.serial))
    }

    /// A node without a name, which a server before this one had, is in the node table: counts it,
    /// and knows where its data lies.
    pub(crate) fn restored(&self, node: &Node, orphan: &Orphan) {
        match orphan {
            Orphan::Data(base) if **base != node.orphan_key() => self.detached.insert(base.clone(), node.id),
            Orphan::Tree => {
                self.removed_trees.fetch_add(1, Ordering::AcqRel);
                self.tops.lock().insert(node.id);
            }
            Orphan::Data(_) => {}
            Orphan::No | Orphan::Empty => return,
        }
        node.pending.store(true, Ordering::Release);
        self.volume.counters.orphans.fetch_add(1, Ordering::Relaxed);
    }

    /// The directories at the top of removed trees that are in use.
    pub(crate) fn trees_in_use(&self) -> Vec<Arc<Node>> {
        let tops: Vec<NodeId> = self.tops.lock().iter().copied().collect();
        tops.into_iter().filter_map(|id| self.nodes.get(id)).collect()
    }

    /// True if a directory lies in a removed tree: no name is found in it, and none made. The
    /// caller holds the tree lock, whose epoch is `epoch`.
    pub(crate) fn is_in_removed_tree(&self, dir: &Arc<Node>, epoch: u64) -> bool {
        self.removed_trees.load(Ordering::Acquire) > 0
            && dir.content_prefix(epoch).starts_with(layout::ORPHAN_AREA)
    }

    /// True if data has to be deleted when the last reference on `node` goes.
    pub(crate) fn is_orphan(&self, node: &Node) -> bool {
        matches!(node.state().orphan, Orphan::Data(_) | Orphan::Tree)
    }

    /// The last reference on a file without a name or on a removed tree is gone: deletes its data.
    pub(crate) fn remove(&self, tree: &TreeGuard<'_>, node: &Arc<Node>) -> Result<()> {
        if node.state().orphan == Orphan::Tree {
            return self.remove_tree(tree, node);
        }
        self.detached.remove_file(node, &mut node.state())
    }

    /// A removed tree is no longer in use.
    fn remove_tree(&self, tree: &TreeGuard<'_>, node: &Arc<Node>) -> Result<()> {
        let content = layout::content_range(&node.content_prefix(tree.epoch));
        self.move_away(&content)?;
        let mut batch = Batch::new();
        self.delete_tree_record(&node.orphan_key(), &mut batch)?;
        let result = self.volume.commit_internal(batch);
        // If that failed, recovery removes it: no other node gets this place, because none has the
        // same serial number.
        node.state().orphan = Orphan::Empty;
        self.volume.counters.orphans.fetch_sub(1, Ordering::Relaxed);
        self.removed_trees.fetch_sub(1, Ordering::AcqRel);
        self.tops.lock().remove(&node.id);
        result.map(drop)
    }

    /// Adds to a batch that a tree in the orphan area is deleted, whose record lies at `key`.
    pub(crate) fn delete_tree_record(&self, key: &[u8], batch: &mut Batch) -> Result<()> {
        batch.delete(self.volume.metadata(), key);
        batch.delete_range(self.volume.data(), layout::file_range(key));
        if let Some(parsed) = layout::parse(key) {
            let prefix = layout::content_prefix(parsed.prefix, &parsed.name);
            reservation::drop_below(&self.volume, &prefix, batch)?;
            let content = layout::content_range(&prefix);
            batch.delete_range(self.volume.metadata(), content.clone());
            batch.delete_range(self.volume.data(), content.clone());
            if self.links.is_in_use() {
                batch.delete_range(self.volume.links(), content);
            }
        }
        Ok(())
    }

    /// True if detached data lies in `range`.
    fn is_detached_in(&self, range: &KeyRange) -> bool {
        self.detached.first_in(range).is_some()
    }

    /// Moves detached data out of `range`, into the orphan area. The caller holds the lock that
    /// keeps more from coming: the names of the directory concerned, or the exclusive tree lock;
    /// and no states.
    pub(crate) fn move_away(&self, range: &KeyRange) -> Result<()> {
        if !self.is_detached_in(range) {
            return Ok(());
        }
        self.deferred.remove_in(range);
        while let Some((base, id)) = self.detached.first_in(range) {
            let Some(node) = self.nodes.get(id) else { continue };
            let mut state = node.state();
            if state.orphan != Orphan::Data(base.clone()) {
                continue;
            }
            let mut batch = Batch::new();
            let orphan = self.detached.detach_to_orphan_area(&node, &state.inode, &base, &mut batch)?;
            state.lsn = self.volume.commit_internal(batch)?;
            state.orphan = orphan;
            self.detached.forget(&base);
        }
        Ok(())
    }

    /// Moves detached data away from the place of one file.
    pub(crate) fn clear_place(&self, base: &[u8]) -> Result<()> {
        if self.detached.is_at(base) {
            return self.move_away(&KeyRange::new(base, [base, &[0]].concat()));
        }
        Ok(())
    }

    /// Has the mount give back references that keep detached data below entry `name` of `dir`,
    /// which is to be moved or removed. Called without locks.
    pub(crate) fn drain_below(&self, tree: &TreeLock, dir: &Arc<Node>, name: &[u8]) {
        let Some(drain) = &self.volume.options.forget_drain else { return };
        if self.detached.is_empty() {
            return;
        }
        let range = {
            let tree = tree.shared();
            layout::content_range(&layout::content_prefix(&dir.content_prefix(tree.epoch), name))
        };
        if self.is_detached_in(&range) {
            drain();
        }
    }

    /// Has the mount give back its references to unlinked files, if there are such files; true if
    /// there were. Called without locks.
    pub(crate) fn release_unlinked(&self) -> bool {
        let Some(drain) = &self.volume.options.forget_drain else { return false };
        // Files that were made without a name are not detached from anywhere.
        if self.detached.is_empty() && self.deferred.is_empty() {
            return false;
        }
        drain();
        self.deferred.remove_all();
        true
    }

    /// Removes everything that was in use when the store was last closed or crashed.
    pub(crate) fn empty_area(&self) -> Result<()> {
        let entries = layout::entries_range(layout::ORPHAN_AREA);
        let mut cursor = self.volume.store.cursor(self.volume.metadata(), entries)?;
        let mut batch = Batch::new();
        while let Some(entry) = cursor.next()? {
            let record = cursor.read(&entry.value)?;
            match OrphanRecord::decode(&record)? {
                OrphanRecord::Tree => self.delete_tree_record(&entry.key, &mut batch)?,
                OrphanRecord::File(base) => {
                    batch.delete_range(self.volume.data(), layout::file_range(base));
                    batch.delete(self.volume.metadata(), &entry.key);
                }
            }
            if batch.len() >= RECOVERY_BATCH_OPERATIONS {
                self.volume.commit_internal(std::mem::take(&mut batch))?;
            }
        }
        if !batch.is_empty() {
            self.volume.commit_internal(batch)?;
        }
        Ok(())
    }
}
