//! Removal of a directory with everything below, in one step.
//!
//! If nothing below is in use, one range in each index is deleted. Otherwise the tree moves into
//! the orphan area, where nodes in use stay usable, but no name is found, and none made; the last
//! reference deletes the tree, or recovery does. Names of files in a link area outside are removed
//! one by one: the cost of that part grows with the number of such names.

use crate::data::{blocks, reservation};
use crate::inode::inode_store::{count_entry, uncount_entry};
use crate::inode::names::{Known, Names};
use crate::inode::node::{Node, Orphan};
use crate::inode::tree_check::{TreeCheck, TreeUse};
use crate::lock_order::RankedGuard;
use crate::model::access::Judge;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, XattrValue, Xattrs};
use crate::model::tree_limits::LimitsField;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::lookup::{check_name, no_entry};
use crate::orphan::unlink::NameRemoval;
use crate::references::{DeferredReleases, HeldNode};
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::{Batch, Lsn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file in a link area that loses names.
struct LinkedFile<'a> {
    held: HeldNode<'a>,
    removal: NameRemoval,
}

/// A tree that takes the place of another one: the inode of its top, and a batch that gives it its
/// content.
pub(crate) struct Replacement<'a> {
    pub(crate) inode: &'a Inode,
    pub(crate) content: Batch,
}

/// A tree found by its name, and the locks under which it is known whether all of it is the
/// caller's. Whatever takes it apart gives the reference back after the locks: that may be what
/// deletes the tree.
pub(crate) struct LockedEntry<'a, 'd> {
    /// Those of the directory.
    pub(crate) names: RankedGuard<'d, Names>,
    pub(crate) tree: TreeGuard<'a>,
    pub(crate) check: TreeCheck<'a>,
    pub(crate) held: HeldNode<'a>,
}

impl<'a, 'd> LockedEntry<'a, 'd> {
    /// Finds entry `name` of `dir`, and takes the locks for a move. Called without locks.
    pub(crate) fn lock(
        namespace: &'a Namespace,
        (dir, name): (&'d Arc<Node>, &[u8]),
        mut check: TreeCheck<'a>,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<Self> {
        let mut walked: Option<HeldNode<'_>> = None;
        loop {
            let tree = namespace.tree.exclusive_for_move();
            let mut names = dir.dir().names.lock();
            let found = namespace.lookup.resolve(&tree, dir, &mut names, name)?;
            let held = found.ok_or_else(|| no_entry(name))?;
            if !check.is_ready(&held, &tree) {
                drop((names, tree));
                check.walk(&held)?;
                walked = Some(held);
                continue;
            }
            // Of what is still there `held` is the only reference from now on: so a removal can
            // tell whether the tree is in use.
            if let Some(walked) = walked.filter(|walked| walked.id != held.id) {
                walked.keep_until(releases);
            }
            return Ok(Self { names, tree, check, held });
        }
    }
}

/// What is at the place of a removed tree afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remains {
    /// No entry.
    Nothing,
    /// An empty directory with the attributes of the top.
    EmptyDirectory,
}

/// Removes directory `name` of `parent` and everything below it. Returns what the top was, and what
/// remains.
pub(crate) fn remove_tree<'a>(
    namespace: &'a Namespace,
    (parent, name): (NodeId, &[u8]),
    remains: Remains,
    (caller, judge): (&'a Caller, Judge<'_>),
) -> Result<(NodeId, Option<HeldNode<'a>>)> {
    let dir = namespace.nodes.dir(parent)?;
    check_name(name)?;
    namespace.volume.check_writable()?;
    namespace.orphans.drain_below(&namespace.tree, &dir, name);
    let mut releases = namespace.references.release_later();
    let check = TreeCheck::new(&namespace.ownership, caller, TreeUse::Change);
    let found = LockedEntry::lock(namespace, (&dir, name), check, &mut releases)?;
    // In this order, so that the reference goes last.
    let LockedEntry { held, check, tree, mut names } = found;
    if !held.is_dir() {
        return fail(FsErrorKind::NotDirectory, format!("{} is no directory", layout::show(name)));
    }
    let above = dir.state().inode.clone();
    judge.delete(&above, &held.state().inode)?;
    check.check(&held, &tree)?;
    if remains == Remains::Nothing {
        take_away(namespace, &tree, &dir, &held, None, &mut releases)?;
        names.version += 1;
        namespace.nodes.set_name(&dir, &mut names, name, Known::Absent);
        return Ok((held.id, None));
    }
    let mut inode = emptied(&held.state().inode);
    inode.number = namespace.state_record.fresh_number()?.wrapping_sub(dir.dir().sum);
    let replacement = Replacement { inode: &inode, content: Batch::new() };
    let lsn = take_away(namespace, &tree, &dir, &held, Some(replacement), &mut releases)?;
    let new = namespace.lookup.add_entry(&dir, &mut names, name, inode, lsn);
    names.version += 1;
    Ok((held.id, Some(new)))
}

/// What an empty directory has of another one's attributes: all that lies in the entry, but for the
/// number. It is not the directory that it stands for, which may be in use.
fn emptied(inode: &Inode) -> Inode {
    let mut empty = inode.clone();
    (empty.size, empty.links, empty.owned_alone) = (0, 0, true);
    (empty.has_link_area, empty.link_area_delta, empty.delta) = (false, 0, 0);
    // A limit needs a link area, and this is there for a moment.
    empty.limits = LimitsField::Absent;
    let inline = |xattrs: &Arc<Xattrs>| {
        let all = xattrs.iter().filter(|(_, value)| matches!(value, XattrValue::Inline(_)));
        Arc::new(all.map(|(name, value)| (name.clone(), value.clone())).collect::<Xattrs>())
    };
    empty.xattrs = inode.xattrs.as_ref().map(inline).filter(|xattrs| !xattrs.is_empty());
    empty
}

/// Removes a tree, and puts another one in its place if there is one. The caller holds the
/// exclusive tree lock, one reference on `node`, and the names of `dir`.
pub(crate) fn take_away(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    dir: &Arc<Node>,
    node: &Arc<Node>,
    replacement: Option<Replacement<'_>>,
    releases: &mut DeferredReleases<'_>,
) -> Result<Lsn> {
    let volume = &namespace.volume;
    let content = node.content_prefix(tree.epoch);
    namespace.orphans.move_away(&layout::content_range(&content))?;
    node.state().inode.flags.check_unprotected()?;
    let (key, now) = (node.entry_key(tree.epoch), volume.now());
    let mut batch = Batch::new();
    let linked = remove_linked_names(namespace, tree, node, now, &mut batch)?;
    // Every node below has a reference on its parent.
    let in_use = namespace.nodes.references(node.id) > 1;
    let inode = delete_or_move(namespace, tree, node, now, in_use, &mut batch)?;
    let mut above = dir.state().inode.clone();
    uncount_entry(&mut above, FileKind::Directory, now)?;
    if let Some(Replacement { inode: new, content }) = replacement {
        batch.append(content);
        batch.insert(volume.metadata(), &key, new.encode());
        count_entry(&mut above, new, now)?;
    }
    namespace.inodes.put(tree, dir, &dir.state(), &above, &mut batch);
    let lsn = volume.commit(batch)?;
    dir.take_over(&mut dir.state(), above, lsn);
    for LinkedFile { held, removal } in linked {
        releases.add(namespace.orphans.name_removed(&held, &mut held.state(), removal, lsn));
        held.keep_until(releases);
    }
    node.dir().names.lock().dead = true;
    node.dir().removed.store(true, Ordering::Release);
    namespace.nodes.note(node.id);
    namespace.locations.sweep_again();
    {
        let mut state = node.state();
        node.take_over(&mut state, inode, lsn);
        state.orphan = if in_use { Orphan::Tree } else { Orphan::Empty };
    }
    if in_use {
        tree.changed_unasked(node.id);
        releases.add(namespace.orphans.adopt_tree(node));
    }
    Ok(lsn)
}

/// Adds to a batch that a tree is deleted, or moves to the orphan area if it is in use. Returns the
/// inode that its top has afterwards.
fn delete_or_move(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    node: &Arc<Node>,
    now: i64,
    in_use: bool,
    batch: &mut Batch,
) -> Result<Inode> {
    let volume = &namespace.volume;
    let (key, content) = (node.entry_key(tree.epoch), node.content_prefix(tree.epoch));
    let range = layout::content_range(&content);
    let mut inode = node.state().inode.clone();
    inode.set_ctime(now);
    batch.delete(volume.metadata(), &key);
    if inode.has_large_xattrs() {
        batch.delete_range(volume.data(), layout::file_range(&key));
    }
    (inode.xattrs, inode.size, inode.links) = (None, 0, 0);
    if namespace.links.is_in_use() {
        batch.delete_range(volume.links(), range.clone());
    }
    if in_use {
        let aside = layout::content_prefix(layout::ORPHAN_AREA, &layout::area_name(node.serial));
        batch.insert(volume.metadata(), &node.orphan_key(), inode.encode());
        batch.move_range(volume.metadata(), &content, &aside);
        batch.move_range(volume.data(), &content, &aside);
        reservation::move_below(volume, (&content, &aside), batch)?;
    } else {
        reservation::drop_below(volume, &content, batch)?;
        batch.delete_range(volume.metadata(), range.clone());
        batch.delete_range(volume.data(), range);
    }
    Ok(inode)
}

/// Adds to a batch that the files of the area that serves `node` lose their names below.
fn remove_linked_names<'a>(
    namespace: &'a Namespace,
    tree: &TreeGuard<'_>,
    node: &Arc<Node>,
    now: i64,
    batch: &mut Batch,
) -> Result<Vec<LinkedFile<'a>>> {
    let mut files = Vec::new();
    if node.dir().has_link_area() {
        return Ok(files);
    }
    let counts = namespace.links.count_below(&node.content_prefix(tree.epoch))?;
    if counts.is_empty() {
        return Ok(files);
    }
    let area = namespace.areas.area_of(node)?;
    namespace.areas.load_link_counts(&area)?;
    for (id, count) in counts {
        let held = namespace.lookup.file_in_area(tree, &area, id, None)?;
        let mut inode = held.state().inode.clone();
        inode.links = inode.links.saturating_sub(count);
        inode.set_ctime(now);
        let home = held.entry_key(tree.epoch);
        let mut orphan = Orphan::No;
        if inode.links > 0 {
            batch.insert(namespace.volume.metadata(), &home, inode.encode());
        } else {
            batch.delete(namespace.volume.metadata(), &home);
            orphan = Orphan::Empty;
            if inode.has_data() && namespace.nodes.references(held.id) > 1 {
                orphan = namespace.orphans.detached.detach(&held, home.into(), batch);
            } else if inode.has_data() {
                blocks::delete_all(&namespace.volume, &home, &inode, batch)?;
            }
        }
        tree.changed_unasked(held.id);
        files.push(LinkedFile { held, removal: NameRemoval { inode, orphan } });
    }
    Ok(files)
}
