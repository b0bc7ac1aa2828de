//! Making files, directories and symbolic links.

use crate::inode::inode_store::{Creation, NewObject, count_entry};
use crate::inode::node::Node;
use crate::inode::ownership::Contradiction;
use crate::model::access::Judge;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::SET_GID;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::lookup::check_new_name;
use crate::references::HeldNode;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// On whose behalf an object is made, and by which rights that is judged.
#[derive(Clone, Copy)]
pub(crate) struct Maker<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) judge: Judge<'a>,
}

/// Makes a symbolic link to `target`.
pub(crate) fn symlink(
    namespace: &Namespace,
    parent: NodeId,
    name: &[u8],
    target: &[u8],
    maker: Maker<'_>,
) -> Result<Entry> {
    if target.is_empty() {
        return fail(FsErrorKind::NotFound, "a symbolic link needs a target");
    }
    if target.len() > MAX_SYMLINK {
        return fail(FsErrorKind::NameTooLong, format!("a target of {} bytes", target.len()));
    }
    let new = NewObject { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target: Some(target) };
    create(namespace, parent, name, &new, maker)
}

/// Makes a file that is no directory and no symbolic link. `mode`: the low 12 bits.
pub(crate) fn mknod(
    namespace: &Namespace,
    parent: NodeId,
    name: &[u8],
    what: NewNode,
    mode: u32,
    maker: Maker<'_>,
) -> Result<Entry> {
    let (kind, rdev) = match what {
        NewNode::Regular => (FileKind::Regular, 0),
        NewNode::Fifo => (FileKind::Fifo, 0),
        NewNode::Socket => (FileKind::Socket, 0),
        NewNode::CharDevice(rdev) => (FileKind::CharDevice, rdev),
        NewNode::BlockDevice(rdev) => (FileKind::BlockDevice, rdev),
    };
    create(namespace, parent, name, &NewObject { kind, mode, rdev, target: None }, maker)
}

/// Makes a directory.
pub(crate) fn mkdir(
    namespace: &Namespace,
    parent: NodeId,
    name: &[u8],
    mode: u32,
    maker: Maker<'_>,
) -> Result<Entry> {
    let new = NewObject { kind: FileKind::Directory, mode: mode & 0o1777, rdev: 0, target: None };
    create(namespace, parent, name, &new, maker)
}

fn create(
    namespace: &Namespace,
    parent: NodeId,
    name: &[u8],
    new: &NewObject<'_>,
    maker: Maker<'_>,
) -> Result<Entry> {
    let dir = namespace.nodes.dir(parent)?;
    check_new_name(name)?;
    namespace.volume.check_writable()?;
    // Before the change, because a call waits for nothing afterwards.
    namespace.nodes.trim_names();
    let held = create_in(namespace, &dir, name, new, maker)?;
    namespace.lookup.entry(held)
}

fn create_in<'a>(
    namespace: &'a Namespace,
    dir: &Arc<Node>,
    name: &[u8],
    new: &NewObject<'_>,
    maker: Maker<'_>,
) -> Result<HeldNode<'a>> {
    let Maker { caller, judge } = maker;
    let tree = namespace.tree.shared();
    let mut names = dir.dir().names.lock();
    namespace.lookup.check_free(&tree, dir, &mut names, name)?;
    if let Judge::Caller(_) = judge {
        judge.create(&dir.state().inode)?;
    }
    let prefix = dir.content_prefix(tree.epoch);
    let key = layout::entry_key(&prefix, name);
    namespace.state_record.check_key(&key)?;
    namespace.orphans.clear_place(&key)?;
    let number = namespace.state_record.fresh_number()?.wrapping_sub(dir.dir().sum);
    if caller.uid != dir.state().inode.uid || (new.kind != FileKind::Directory && new.mode & SET_GID != 0) {
        namespace.ownership.clear(dir, Contradiction::Rights)?;
    }
    let mut state = dir.state();
    judge.create(&state.inode)?;
    let mode = if new.kind == FileKind::Directory { new.mode } else { judge.mode_in(&state.inode, new.mode) };
    let new = &NewObject { mode, ..*new };
    let now = namespace.volume.now();
    let mut batch = Batch::new();
    let mut above = state.inode.clone();
    let creation = Creation { caller, number, now };
    let inode = namespace.inodes.new_inode(&tree, (dir, &state), &key, new, &creation, &mut batch)?;
    count_entry(&mut above, &inode, now)?;
    batch.insert_new(namespace.volume.metadata(), &key, inode.encode());
    namespace.inodes.put(&tree, dir, &state, &above, &mut batch);
    let lsn = namespace.volume.commit(batch)?;
    dir.take_over(&mut state, above, lsn);
    drop(state);
    let held = namespace.lookup.add_entry(dir, &mut names, name, inode, lsn);
    names.version += 1;
    namespace.volume.counters.creates.fetch_add(1, Ordering::Relaxed);
    Ok(held)
}
