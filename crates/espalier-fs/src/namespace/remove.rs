//! Removing entries.

use crate::inode::inode_store::uncount_entry;
use crate::inode::names::Known;
use crate::inode::node::{Node, States};
use crate::model::access::Judge;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::lookup::{check_name, no_entry};
use crate::orphan::unlink::{DataPlace, NamedNode, check_empty};
use crate::references::HeldNode;
use espalier_engine::Batch;
use std::sync::Arc;

/// Removes the entry of an object that is no directory. Returns the node of that object.
pub(crate) fn unlink(namespace: &Namespace, parent: NodeId, name: &[u8], judge: Judge<'_>) -> Result<NodeId> {
    let dir = namespace.nodes.dir(parent)?;
    check_name(name)?;
    namespace.volume.check_writable()?;
    let mut releases = namespace.references.release_later();
    let held: HeldNode<'_>;
    let tree = namespace.tree.shared();
    let mut names = dir.dir().names.lock();
    held = namespace.lookup.resolve(&tree, &dir, &mut names, name)?.ok_or_else(|| no_entry(name))?;
    if held.is_dir() {
        return fail(FsErrorKind::IsDirectory, format!("{} is a directory", layout::show(name)));
    }
    let mut states = States::lock(&[&dir, &held]);
    check_rights(judge, &dir, &held, &mut states)?;
    let now = namespace.volume.now();
    let mut batch = Batch::new();
    let gone = NamedNode { dir: &dir, name, node: &held };
    let state = states.of(&held);
    let removal = namespace.orphans.remove_name(&tree, &gone, state, now, DataPlace::Stays, &mut batch)?;
    let mut above = states.of(&dir).inode.clone();
    uncount_entry(&mut above, held.kind, now)?;
    namespace.inodes.put(&tree, &dir, states.of(&dir), &above, &mut batch);
    let lsn = namespace.volume.commit(batch)?;
    dir.take_over(states.of(&dir), above, lsn);
    releases.add(namespace.orphans.name_removed(&held, states.of(&held), removal, lsn));
    names.version += 1;
    namespace.nodes.set_name(&dir, &mut names, name, Known::Absent);
    Ok(held.id)
}

/// Removes an empty directory. Returns its node.
pub(crate) fn rmdir(namespace: &Namespace, parent: NodeId, name: &[u8], judge: Judge<'_>) -> Result<NodeId> {
    let dir = namespace.nodes.dir(parent)?;
    match name {
        b"." => return fail(FsErrorKind::Invalid, "a directory cannot be removed by the name ."),
        b".." => return fail(FsErrorKind::NotEmpty, "the parent has at least this directory"),
        _ => check_name(name)?,
    }
    namespace.volume.check_writable()?;
    namespace.orphans.drain_below(&namespace.tree, &dir, name);
    let held: HeldNode<'_>;
    let tree = namespace.tree.shared();
    let mut names = dir.dir().names.lock();
    held = namespace.lookup.resolve(&tree, &dir, &mut names, name)?.ok_or_else(|| no_entry(name))?;
    if !held.is_dir() {
        return fail(FsErrorKind::NotDirectory, format!("{} is no directory", layout::show(name)));
    }
    let mut below = held.dir().names.lock();
    check_empty(&held)?;
    let content = layout::content_range(&held.content_prefix(tree.epoch));
    let unlinked = namespace.orphans.deferred.take_with_directory(&content);
    namespace.orphans.move_away(&content)?;
    let mut states = States::lock(&[&dir, &held]);
    check_rights(judge, &dir, &held, &mut states)?;
    let mut batch = Batch::new();
    let now = namespace.volume.now();
    namespace.orphans.remove_directory(&tree, &held, states.of(&held), &mut batch)?;
    let mut above = states.of(&dir).inode.clone();
    uncount_entry(&mut above, FileKind::Directory, now)?;
    namespace.inodes.put(&tree, &dir, states.of(&dir), &above, &mut batch);
    unlinked.add_to(&mut batch);
    let lsn = namespace.volume.commit(batch)?;
    dir.take_over(states.of(&dir), above, lsn);
    namespace.orphans.directory_removed(&held, states.of(&held), now, lsn);
    drop(states);
    below.dead = true;
    names.version += 1;
    namespace.nodes.set_name(&dir, &mut names, name, Known::Absent);
    unlinked.removed();
    Ok(held.id)
}

/// Refuses what the rights of the caller do not allow.
fn check_rights(
    judge: Judge<'_>,
    dir: &Arc<Node>,
    victim: &Arc<Node>,
    states: &mut States<'_>,
) -> Result<()> {
    if matches!(judge, Judge::Kernel) {
        return Ok(());
    }
    let victim = states.of(victim).inode.clone();
    judge.delete(&states.of(dir).inode, &victim)
}
