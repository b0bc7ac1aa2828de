//! Change of owners and modes of whole trees: one range message for everything below, of any size.
//!
//! The message names a merge function (see [`crate::model::merge`]) that rewrites each entry when
//! it is next read or reaches a leaf. Nodes in memory are changed by the same function when they
//! are next used ([`crate::inode::pending_changes`]). Files with several names, whose entries lie
//! in a link area outside, are changed one by one.

use crate::inode::node::{Node, Orphan};
use crate::inode::ownership::Contradiction;
use crate::inode::tree_check::{TreeCheck, TreeUse};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::merge;
use crate::model::privileges::SET_ID;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::Batch;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A merge function with its argument.
struct TreeUpdate {
    function: u16,
    argument: Vec<u8>,
    /// Entries may contradict ownership marks above the tree afterwards.
    contradicts_marks: bool,
}

/// Changes owner and group of `node` and everything below.
pub(crate) fn chown_tree(
    namespace: &Namespace,
    node: NodeId,
    change: OwnerChange,
    caller: &Caller,
) -> Result<()> {
    if caller.uid != 0 {
        return fail(FsErrorKind::Permission, "only root gives files away");
    }
    let argument = merge::owner_argument(change.uid, change.gid, namespace.volume.now());
    let contradicts_marks = change.uid.is_some();
    let update = TreeUpdate { function: merge::CHANGE_OWNER, argument, contradicts_marks };
    change_tree(namespace, node, &update, caller)
}

/// Changes the modes of `node` and everything below but symbolic links.
pub(crate) fn chmod_tree(
    namespace: &Namespace,
    node: NodeId,
    change: ModeChange,
    caller: &Caller,
) -> Result<()> {
    let contradicts_marks = (change.add_files | change.add_executables) & SET_ID != 0;
    let argument = merge::mode_argument(&change, namespace.volume.now());
    let update = TreeUpdate { function: merge::CHANGE_MODE, argument, contradicts_marks };
    change_tree(namespace, node, &update, caller)
}

fn change_tree(namespace: &Namespace, node: NodeId, update: &TreeUpdate, caller: &Caller) -> Result<()> {
    let node = namespace.nodes.node(node)?;
    namespace.volume.check_writable()?;
    let mut check = TreeCheck::new(&namespace.ownership, caller, TreeUse::Change);
    let tree = check.lock_for(&node, || namespace.tree.exclusive())?;
    let removed = node.is_removed() || node.state().orphan != Orphan::No;
    if removed {
        return fail(FsErrorKind::NotFound, "the file or directory was removed");
    }
    check.check(&node, &tree)?;
    check.restore_marks(&node, &tree)?;
    if update.contradicts_marks {
        namespace.ownership.clear_above_tree(&node)?;
    }
    let mut batch = Batch::new();
    // Nodes that the note at the directory does not reach.
    let mut apart: Vec<Arc<Node>> = vec![node.clone()];
    if node.is_dir() {
        let content = node.content_prefix(tree.epoch);
        for range in layout::entries_below(&content) {
            batch.update_range(namespace.volume.metadata(), range, update.function, update.argument.clone());
        }
        if !node.dir().has_link_area() {
            change_linked_files(namespace, &tree, &node, update, &mut batch, &mut apart)?;
        }
    }
    let own = merge::changed_inode(&node.state().inode, update.function, &update.argument);
    batch.insert(namespace.volume.metadata(), &node.entry_key(tree.epoch), own.encode());
    let lsn = namespace.volume.commit(batch)?;
    if node.is_dir() {
        namespace.nodes.note_change(&node, update.function, &update.argument, lsn);
    }
    for node in apart {
        let mut state = node.state();
        if state.orphan == Orphan::No {
            let inode = merge::changed_inode(&state.inode, update.function, &update.argument);
            let dirty = state.atime_dirty;
            node.take_over(&mut state, inode, lsn);
            state.atime_dirty = dirty;
            node.changes.report(node.id);
        }
    }
    Ok(())
}

/// Adds to a batch the change of the files that have names below `node` and lie in the link area
/// above that serves it, and their nodes to `apart`.
fn change_linked_files(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    node: &Arc<Node>,
    update: &TreeUpdate,
    batch: &mut Batch,
    apart: &mut Vec<Arc<Node>>,
) -> Result<()> {
    let counts = namespace.links.count_below(&node.content_prefix(tree.epoch))?;
    if counts.is_empty() {
        return Ok(());
    }
    let area = namespace.areas.area_of(node)?;
    if update.contradicts_marks
        && let Some(top) = area.place().parent
    {
        // Other names of these files may lie outside the tree.
        let served = layout::area_prefix(&top.content_prefix(tree.epoch));
        let mut owners = BTreeSet::new();
        for id in counts.keys() {
            owners.insert(namespace.links.inode_in_area(&served, *id)?.uid);
        }
        namespace.ownership.doubt(&top, owners, Contradiction::Rights)?;
    }
    let prefix = area.content_prefix(tree.epoch);
    let names = area.dir().names.lock();
    for id in counts.keys() {
        let name = layout::area_name(*id);
        let key = layout::entry_key(&prefix, &name);
        batch.update(namespace.volume.metadata(), &key, update.function, update.argument.clone());
        let known = names.get(&name).and_then(|known| known.node());
        apart.extend(known.and_then(|id| namespace.nodes.get(id)));
    }
    Ok(())
}
