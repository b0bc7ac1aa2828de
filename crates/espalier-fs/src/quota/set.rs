//! Setting and showing limits.
//!
//! A limit may be set, changed and taken away by root, by the user of the mount, and by the owner
//! of both the directory and the one that it lies in: this owner can make a directory without limit
//! beside it and move everything there, so the limit could not hold such a caller anyway. To hold a
//! user, the directory above belongs to another one.

use super::Quotas;
use crate::inode::node::{Node, Orphan, Role};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::tree_limits::LimitsField;
use crate::model::types::*;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Quotas {
    /// The limits of a directory and what it holds; `None` if it has no limits of its own.
    pub(crate) fn show(&self, node: NodeId, caller: &Caller) -> Result<Option<TreeQuota>> {
        let node = self.namespace.nodes.dir(node)?;
        if caller.uid != 0 && caller.uid != node.state().inode.uid {
            return fail(FsErrorKind::Permission, "the directory belongs to another user");
        }
        node.limited_tree().map(|tree| self.look(&tree)).transpose()
    }

    /// Gives a directory these limits, or takes them away.
    pub(crate) fn set(
        &self,
        node: NodeId,
        limits: Option<TreeLimits>,
        (caller, is_administrator): (&Caller, bool),
    ) -> Result<()> {
        let (namespace, volume) = (&self.namespace, &self.namespace.volume);
        let node = namespace.nodes.dir(node)?;
        volume.check_writable()?;
        let field = LimitsField::of(limits);
        let mut releases = namespace.references.release_later();
        let tree = self.lock_to_set(&node, field.get().is_some())?;
        if node.is_removed() || node.state().orphan != Orphan::No || node.dir().role != Role::Tree {
            return fail(FsErrorKind::NotFound, "the directory was removed");
        }
        if caller.uid != 0 && !is_administrator {
            check_owner(&node, caller)?;
        }
        node.state().inode.flags.check_unprotected()?;
        if field.get().is_some() && !node.dir().has_link_area() {
            // So files with several names lie in the tree that they count for.
            namespace.area_splitter().split(&tree, &node, &mut releases)?;
        }
        let mut state = node.state();
        let mut inode = state.inode.clone();
        inode.limits = field;
        inode.set_ctime(volume.now());
        let mut batch = Batch::new();
        namespace.inodes.put(&tree, &node, &state, &inode, &mut batch);
        let lsn = volume.commit(batch)?;
        if let Some(tree) = node.limited_tree().filter(|_| field.get().is_none()) {
            *tree.apart.lock() = None;
            tree.told.store(u64::MAX, Ordering::Release);
        }
        node.set_limits(field.get());
        node.take_over_limited(&mut state, inode, lsn);
        tree.changed_unasked(node.id);
        drop(state);
        drop(tree);
        Ok(())
    }

    /// Excludes all other operations; for a move, if a directory gets a limit and files with
    /// several names below have to move to a link area of its own.
    fn lock_to_set(&self, node: &Arc<Node>, is_limit: bool) -> Result<TreeGuard<'_>> {
        let namespace = &self.namespace;
        let tree = namespace.tree.exclusive();
        let needs_area = is_limit && !node.dir().has_link_area();
        if !needs_area || !namespace.links.has_names_below(&node.content_prefix(tree.epoch))? {
            return Ok(tree);
        }
        drop(tree);
        Ok(namespace.tree.exclusive_for_move())
    }
}

/// Refuses callers that a limit may have to hold.
fn check_owner(node: &Arc<Node>, caller: &Caller) -> Result<()> {
    let owns = |node: &Arc<Node>| node.state().inode.uid == caller.uid;
    match node.place().parent {
        Some(parent) if owns(node) && owns(&parent) => Ok(()),
        _ => fail(
            FsErrorKind::Permission,
            "only root, or the owner of the directory and of the one above, sets its limits",
        ),
    }
}
