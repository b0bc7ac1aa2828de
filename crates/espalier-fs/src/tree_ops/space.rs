//! How much space a tree takes in the store, and how much of it nothing else shares.

use crate::inode::node::Node;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use espalier_engine::{IndexId, KeyRange};
use std::sync::Arc;
use std::time::Duration;

/// The age of a checkpoint that is good enough to tell what a tree has for itself: the figures of a
/// long list need one checkpoint and not one for each line.
const MAX_CHECKPOINT_AGE: Duration = Duration::from_secs(2);

/// Bytes that a tree takes, and those that nothing else shares.
///
/// # Errors
/// [`FsErrorKind::Stale`]; of the store.
pub(crate) fn space_of_tree(namespace: &Namespace, node: NodeId) -> Result<(u64, u64)> {
    let node = namespace.nodes.node(node)?;
    let space = namespace.volume.store.space_of(&ranges_of(namespace, &node)?)?;
    // What was looked at was there before this, so it is the tree's.
    node.check_has_place()?;
    Ok((space.bytes, space.exclusive))
}

/// Bytes of a tree that nothing else shares, for its owner and root. They may be some seconds old.
///
/// # Errors
/// [`FsErrorKind::Permission`]; [`FsErrorKind::Stale`]; [`FsErrorKind::NotFound`] if it was
/// removed; of the store.
pub(crate) fn exclusive_space_of_tree(namespace: &Namespace, node: NodeId, caller: &Caller) -> Result<u64> {
    let node = namespace.nodes.node(node)?;
    let owner = node.state().inode.uid;
    if caller.uid != 0 && caller.uid != owner {
        return fail(FsErrorKind::Permission, "the tree belongs to another user");
    }
    let ranges = ranges_of(namespace, &node)?;
    let bytes = namespace.volume.store.exclusive_space_of(&ranges, MAX_CHECKPOINT_AGE)?;
    node.check_has_place()?;
    Ok(bytes)
}

/// The keys of a file or directory with all that is below it.
pub(crate) fn ranges_of(namespace: &Namespace, node: &Arc<Node>) -> Result<Vec<(IndexId, KeyRange)>> {
    let tree = namespace.tree.shared();
    let key = node.data_base(tree.epoch, &node.state());
    let mut ranges = vec![(namespace.volume.data(), layout::file_range(&key))];
    if node.is_dir() {
        let content = layout::content_range(&node.content_prefix(tree.epoch));
        if content.start.is_empty() {
            ranges.clear();
        }
        for index in [namespace.volume.metadata(), namespace.volume.data(), namespace.volume.links()] {
            ranges.push((index, content.clone()));
        }
    }
    Ok(ranges)
}
