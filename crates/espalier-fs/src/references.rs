//! References to nodes that calls hold, and what the last reference on a node sets off.

use crate::inode::access_times::AccessTimes;
use crate::inode::node::Node;
use crate::inode::node_table::NodeTable;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::types::NodeId;
use crate::orphan::orphan_area::Orphans;
use crate::volume::tree_lock::TreeLock;
use std::sync::Arc;

pub(crate) struct References {
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) access_times: Arc<AccessTimes>,
}

impl References {
    /// Gives back references. Work that was put off until the last one goes is done here: data of
    /// unlinked files is deleted, times of the last read are written.
    pub(crate) fn release(&self, id: NodeId, count: u64) {
        self.nodes.release(id, count, |node| {
            if self.orphans.deferred.defer(node) {
                return false;
            }
            self.finish(node)
        });
    }

    /// Does the work that was put off until the last reference on `node` goes. No caller gets the
    /// result. Work that fails is tried again later, and then the reference is kept; or recovery
    /// does it; or it is the time of a read, which may be lost. False if the reference is kept.
    fn finish(&self, node: &Arc<Node>) -> bool {
        let tree = self.tree.shared_again();
        let result = if self.orphans.is_orphan(node) {
            self.orphans.remove(&tree, node)
        } else {
            self.access_times.write(&tree, node)
        };
        if let Err(error) = result {
            tracing::warn!(%error, node = node.id.0, "work on a node that is no longer used failed");
            return !self.orphans.deferred.retry_later(node);
        }
        true
    }

    /// One reference more on a node that is in use.
    pub(crate) fn hold(&self, node: &Arc<Node>) -> Result<HeldNode<'_>> {
        match self.nodes.acquire(node.id) {
            Some(node) => Ok(self.adopt(node)),
            None => fail(FsErrorKind::Stale, format!("node {} is gone", node.id.0)),
        }
    }

    /// Takes over a reference that was counted already.
    pub(crate) fn adopt(&self, node: Arc<Node>) -> HeldNode<'_> {
        HeldNode { references: self, node: Some(node) }
    }

    /// An empty list of references to give back later.
    pub(crate) fn release_later(&self) -> DeferredReleases<'_> {
        DeferredReleases { references: self, ids: Vec::new() }
    }
}

/// A reference on a node that is given back on drop.
pub(crate) struct HeldNode<'a> {
    references: &'a References,
    node: Option<Arc<Node>>,
}

impl HeldNode<'_> {
    /// Leaves the reference to the caller.
    pub(crate) fn keep(mut self) -> Arc<Node> {
        self.node.take().expect("a held node is taken once")
    }

    /// Leaves the reference to a list that gives it back later.
    pub(crate) fn keep_until(self, releases: &mut DeferredReleases<'_>) -> Arc<Node> {
        let node = self.keep();
        releases.add([node.id]);
        node
    }
}

impl std::ops::Deref for HeldNode<'_> {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        self.node.as_ref().expect("a held node is taken once")
    }
}

impl Drop for HeldNode<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            self.references.release(node.id, 1);
        }
    }
}

/// References that are given back on drop. Declared before the locks of an operation, so that it is
/// dropped after them: giving back a reference can mean work.
pub(crate) struct DeferredReleases<'a> {
    references: &'a References,
    ids: Vec<NodeId>,
}

impl DeferredReleases<'_> {
    pub(crate) fn add(&mut self, ids: impl IntoIterator<Item = NodeId>) {
        self.ids.extend(ids);
    }
}

impl Drop for DeferredReleases<'_> {
    fn drop(&mut self) {
        self.ids.iter().for_each(|id| self.references.release(*id, 1));
    }
}
