//! Clones of files and directories.
//!
//! The clone of a directory is one range clone in each index, a new entry with a delta of its own
//! (so that all numbers below are new and none is written), and, where names of files with several
//! names lie below, a clone of the link area that serves them. It excludes every other operation
//! for the moment that takes, so it shows one instant. Memory is not concerned: the clone has no
//! nodes yet.

use crate::data::blocks;
use crate::inode::access_times::AccessTimes;
use crate::inode::inode_store::count_entry;
use crate::inode::node::{Node, Orphan, States};
use crate::inode::tree_check::{TreeCheck, TreeUse};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{AreaMark, Inode};
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::create::Maker;
use crate::namespace::lookup::check_new_name;
use crate::references::HeldNode;
use crate::tree_ops::copy_numbers::delta_of_copy;
use crate::tree_ops::list::Level;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::{Batch, KeyRange};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pending times of the last read are written before a clone if there are no more than this.
const PENDING_ATIMES_MAX: usize = 512;

/// Makes entry `name` in `parent` a clone of `source`, with everything below it.
pub(crate) fn clone_tree(
    namespace: &Namespace,
    access_times: &AccessTimes,
    source: NodeId,
    (parent, name): (NodeId, &[u8]),
    maker: Maker<'_>,
) -> Result<Entry> {
    let (source, dir) = (namespace.nodes.node(source)?, namespace.nodes.dir(parent)?);
    check_new_name(name)?;
    namespace.volume.check_writable()?;
    let held = if source.is_dir() {
        // The data of unlinked files would be moved out of the source first.
        if let Some(parent) = &source.place().parent {
            namespace.orphans.drain_below(&namespace.tree, parent, &source.place().name);
        }
        if access_times.queued() <= PENDING_ATIMES_MAX {
            access_times.write_all()?;
        }
        clone_directory(namespace, &source, &dir, name, maker)?
    } else {
        clone_file(namespace, &source, &dir, name, maker)?
    };
    namespace.volume.counters.creates.fetch_add(1, Ordering::Relaxed);
    namespace.nodes.trim_names();
    namespace.lookup.entry(held)
}

fn clone_directory<'a>(
    namespace: &'a Namespace,
    source: &Arc<Node>,
    dir: &Arc<Node>,
    name: &[u8],
    Maker { caller, judge }: Maker<'_>,
) -> Result<HeldNode<'a>> {
    let mut check = TreeCheck::new(&namespace.ownership, caller, TreeUse::Read);
    let prefix = source.content_prefix(namespace.tree.shared().epoch);
    // Only a hint, in case it moves meanwhile.
    namespace.links.settle_before_clone(&prefix)?;
    let tree = check.lock_for(source, || namespace.tree.exclusive())?;
    let mut names = dir.dir().names.lock();
    namespace.lookup.check_free(&tree, dir, &mut names, name)?;
    judge.create(&dir.state().inode)?;
    let from = source.content_prefix(tree.epoch);
    if from.starts_with(layout::ORPHAN_AREA) || source.state().orphan != Orphan::No {
        return fail(FsErrorKind::NotFound, "the directory was removed");
    }
    let prefix = dir.content_prefix(tree.epoch);
    let (key, to) = (layout::entry_key(&prefix, name), layout::content_prefix(&prefix, name));
    namespace.state_record.check_key(&key)?;
    namespace.state_record.check_move(&from, &to)?;
    check.check(source, &tree)?;
    check.restore_marks(source, &tree)?;
    namespace.orphans.clear_place(&key)?;
    namespace.orphans.move_away(&layout::content_range(&from))?;

    let mut inode = source.state().inode.clone();
    let mut batch = Batch::new();
    clone_content(namespace, &tree, source, &to, &mut inode, &mut batch)?;
    if inode.has_large_xattrs() {
        let old = source.entry_key(tree.epoch);
        blocks::for_each_value(&namespace.volume, &inode, &old, |xattr, value| {
            batch.insert(namespace.volume.data(), &layout::rebase(xattr, &old, &key), value);
        })?;
    }
    let Some(level) = Level::of(source, tree.epoch) else {
        return fail(FsErrorKind::NotFound, "the directory was removed");
    };
    inode.delta = delta_of_copy(namespace, &level, Some(source.ino), dir.dir().sum)?;
    namespace.ownership.clear_before_entry(dir, &inode)?;
    batch.insert(namespace.volume.metadata(), &key, inode.encode());
    let mut state = dir.state();
    let mut above = state.inode.clone();
    count_entry(&mut above, &inode, namespace.volume.now())?;
    namespace.inodes.put(&tree, dir, &state, &above, &mut batch);
    let lsn = namespace.volume.commit(batch)?;
    namespace.volume.copied_now();
    dir.take_over(&mut state, above, lsn);
    drop(state);
    let held = namespace.lookup.add_entry(dir, &mut names, name, inode, lsn);
    names.version += 1;
    Ok(held)
}

/// Adds to a batch that everything below directory `source` appears below content prefix `to`,
/// whose directory has the inode `inode`.
pub(crate) fn clone_content(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    source: &Arc<Node>,
    to: &[u8],
    inode: &mut Inode,
    batch: &mut Batch,
) -> Result<()> {
    let from = source.content_prefix(tree.epoch);
    batch.clone_range(namespace.volume.metadata(), &from, to);
    batch.clone_range(namespace.volume.data(), &from, to);
    if namespace.links.is_in_use() {
        clone_links(namespace, tree, source, to, inode, batch)?;
    } else if from.is_empty() {
        inode.has_link_area = false;
    }
    if from.is_empty() {
        // Keys of the root that belong to the volume are not cloned: the root's attributes, the
        // volume's state, the orphan area.
        let own = [to, layout::ROOT_KEY].concat();
        batch.delete(namespace.volume.metadata(), &own);
        batch.delete_range(namespace.volume.data(), layout::file_range(&own));
        let orphans = KeyRange::prefix(&[to, layout::ORPHAN_AREA].concat());
        batch.delete_range(namespace.volume.metadata(), orphans.clone());
        batch.delete_range(namespace.volume.data(), orphans);
    }
    Ok(())
}

/// Adds to a batch that the links below a clone are its own.
fn clone_links(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    source: &Arc<Node>,
    to: &[u8],
    inode: &mut Inode,
    batch: &mut Batch,
) -> Result<()> {
    let volume = &namespace.volume;
    let from = source.content_prefix(tree.epoch);
    batch.clone_range(volume.links(), &from, to);
    if source.dir().has_link_area() && !from.is_empty() {
        return Ok(());
    }
    inode.has_link_area = namespace.links.may_have_names_below(&from)?;
    if !inode.has_link_area {
        // The root may have a mark all the same.
        batch.delete(volume.links(), to);
        return Ok(());
    }
    if from.is_empty() {
        let mark = namespace.links.area_mark(&from)?;
        inode.owned_alone &= !mark.doubts(inode.uid);
        batch.insert(volume.links(), to, mark.encode());
        return Ok(());
    }
    let Some(top) = source.link_area_directory() else { return Ok(()) };
    // Numbers there keep their distance to those of entries.
    inode.link_area_delta = top.dir().link_area.sum.wrapping_sub(source.dir().sum);
    let served = top.content_prefix(tree.epoch);
    let area = layout::area_files(&served);
    // Unlinked files in use there are not to be copied.
    namespace.orphans.move_away(&KeyRange::prefix(&area))?;
    let copy = layout::area_files(to);
    batch.clone_range(volume.metadata(), &area, &copy);
    batch.clone_range(volume.data(), &area, &copy);
    let mark = AreaMark { stale_counts: true, ..namespace.links.area_mark(&served)? };
    inode.owned_alone &= !mark.doubts(inode.uid);
    batch.insert(volume.links(), to, mark.encode());
    Ok(())
}

fn clone_file<'a>(
    namespace: &'a Namespace,
    source: &Arc<Node>,
    dir: &Arc<Node>,
    name: &[u8],
    Maker { caller, judge }: Maker<'_>,
) -> Result<HeldNode<'a>> {
    let tree = namespace.tree.shared();
    let mut names = dir.dir().names.lock();
    namespace.lookup.check_free(&tree, dir, &mut names, name)?;
    // Before marks are cleared for it.
    judge.create(&dir.state().inode)?;
    let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
    namespace.state_record.check_key(&key)?;
    if source.is_removed() {
        return fail(FsErrorKind::NotFound, "the file was removed");
    }
    // Of a file no walk is needed.
    TreeCheck::new(&namespace.ownership, caller, TreeUse::Read).check(source, &tree)?;
    namespace.orphans.clear_place(&key)?;
    let number = namespace.state_record.fresh_number()?.wrapping_sub(dir.dir().sum);
    let owned = source.state().inode.clone();
    namespace.ownership.clear_before_entry(dir, &owned)?;
    let mut states = States::lock(&[source, dir]);
    judge.create(&states.of(dir).inode)?;
    let state = states.of(source);
    if state.orphan != Orphan::No {
        return fail(FsErrorKind::NotFound, "the file was removed");
    }
    let mut inode = state.inode.clone();
    (inode.links, inode.number) = (1, number);
    // What is kept for the source is not kept twice.
    inode.reserved = false;
    let mut batch = Batch::new();
    clone_data(namespace, &inode, &source.entry_key(tree.epoch), &key, &mut batch)?;
    batch.insert(namespace.volume.metadata(), &key, inode.encode());
    let mut above = states.of(dir).inode.clone();
    count_entry(&mut above, &inode, namespace.volume.now())?;
    namespace.inodes.put(&tree, dir, states.of(dir), &above, &mut batch);
    let lsn = namespace.volume.commit(batch)?;
    namespace.volume.copied_now();
    dir.take_over(states.of(dir), above, lsn);
    drop(states);
    let held = namespace.lookup.add_entry(dir, &mut names, name, inode, lsn);
    names.version += 1;
    Ok(held)
}

/// Adds to a batch that the data and large attributes of the file at `from` appear at `to`.
fn clone_data(namespace: &Namespace, inode: &Inode, from: &[u8], to: &[u8], batch: &mut Batch) -> Result<()> {
    let volume = &namespace.volume;
    if blocks::moves_as_range(volume, inode) {
        let xattrs = inode.has_large_xattrs();
        for (from, to) in layout::file_prefixes(from, xattrs).zip(layout::file_prefixes(to, xattrs)) {
            batch.clone_range(volume.data(), &from, &to);
        }
    } else if inode.has_data() {
        blocks::for_each_value(volume, inode, from, |old, value| {
            batch.insert(volume.data(), &layout::rebase(old, from, to), value);
        })?;
    }
    Ok(())
}
