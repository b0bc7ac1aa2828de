//! Attributes: reading, setting, and the time of the last read.
//!
//! In memory the inode of a node is what counts; every change goes to the store in the same step,
//! as an insert of the whole entry, so that it neither reads nor piles up. The one exception is
//! the time of the last read: it is written with the next change, by the background, or when the
//! node leaves memory, and a crash may lose it.

use crate::data::file_data::units;
use crate::file_system::FileSystem;
use crate::inode::node::{Node, Orphan, State, States};
use crate::inode::tree_lock::TreeGuard;
use crate::model::acl::{self, Acl};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::{CAPABILITIES, clear_set_id};
use crate::model::record::{Inode, XattrValue, later_than};
use crate::model::types::*;
use bytes::Bytes;
use espalier_engine::{Batch, Lsn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// After this many nanoseconds the time of the last read is renewed in any case.
const ATIME_AGE: i64 = 24 * 3600 * 1_000_000_000;
/// Delayed times of the last read that are kept before they are written.
const MAX_ATIMES: usize = 64 << 10;
/// Delayed times that one batch writes.
const ATIMES_BATCH: usize = 64;

impl FileSystem {
    /// The kernel of the mount keeps times of modification and of the last change by itself, and
    /// sends them (`keeps`), or leaves them to the file system.
    pub fn set_kernel_keeps_times(&self, keeps: bool) {
        self.volume.kernel_keeps_times.store(keeps, Ordering::Release);
    }

    /// Gives `watch` what the kernel is to be told of calls: with no lock held, and before the call
    /// returns.
    pub fn watch_notices(&self, watch: NoticeWatch) {
        self.tree.watch_notices(watch);
    }

    /// The attributes of `node`.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`]; for sparse files also of the store.
    pub fn getattr(&self, node: NodeId) -> Result<Attr> {
        self.attr(&self.node(node)?)
    }

    /// The attributes of a node whose state is `state`, with the blocks as far as they are known;
    /// whether they are.
    pub(crate) fn known_attr(&self, node: &Node, state: &State) -> (Attr, bool) {
        let inode = &state.inode;
        let known = match inode.kind {
            FileKind::Regular if inode.sparse => state.blocks,
            FileKind::Regular => Some(units(inode.size)),
            _ => Some(0),
        };
        let mut attr = inode.attr(node.ino, known.unwrap_or(0), self.volume.block_size);
        if state.orphan != Orphan::No {
            attr.nlink = 0;
        }
        (attr, known.is_some())
    }

    /// The attributes of a node. The blocks of a sparse file are counted when somebody asks.
    pub(crate) fn attr(&self, node: &Arc<Node>) -> Result<Attr> {
        let (mut attr, changes) = {
            let state = node.state();
            let (attr, is_all) = self.known_attr(node, &state);
            if is_all {
                return Ok(attr);
            }
            (attr, state.changes)
        };
        attr.blocks = self.count_units(node)?;
        let mut state = node.state();
        if state.changes == changes {
            state.blocks = Some(attr.blocks);
        }
        Ok(attr)
    }

    /// Changes attributes; returns the new ones.
    ///
    /// # Errors
    /// [`FsErrorKind::Invalid`] or [`FsErrorKind::IsDirectory`] for the size of something that is
    /// no regular file, [`FsErrorKind::FileTooLarge`]; of the store.
    pub fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr> {
        let node = self.node(node)?;
        self.volume.check_writable()?;
        // The answer has the blocks, nothing may be waited for after the change, and counting takes
        // time: so before, without locks.
        let changes = node.state().changes;
        let counted = self.count_for(&node, set)?;
        let tree = self.tree.shared();
        self.clear_marks_before(&node, set)?;
        let mut state = node.state();
        let counted = counted.filter(|_| state.changes == changes);
        let mut batch = Batch::new();
        let mut inode = state.inode.clone();
        let now = self.volume.now();
        let time = |t: SetTime| if let SetTime::At(at) = t { at } else { now };
        if let Some(size) = set.size {
            check_size(inode.kind, size)?;
            self.resize(&tree, &node, &state, &mut inode, size, &mut batch);
            inode.mtime = now;
        }
        if set.kill_privileges || set.uid.is_some() || set.gid.is_some() {
            self.kill_privileges(&tree, &node, &state, &mut inode, &mut batch)?;
        }
        if set.uid.is_some_and(|uid| uid != inode.uid) {
            // What is below stays whose it was.
            inode.owned_alone = false;
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        if let Some(mode) = set.mode {
            self.chmod(&tree, &node, &state, &mut inode, mode, &mut batch)?;
        }
        inode.atime = set.atime.map_or(inode.atime, time);
        inode.mtime = set.mtime.map_or(inode.mtime, time);
        match set.ctime.map(time) {
            // What was written back within the same tick is later.
            Some(at) if later_than(inode.ctime, at) != at => {}
            Some(at) => inode.ctime = at,
            None => inode.set_ctime(now),
        }
        self.put(&tree, &node, &state, &inode, &mut batch);
        let data_changed = set.size.is_some();
        let known = state.blocks.filter(|_| !data_changed).or(counted);
        let blocks = match known {
            None if inode.sparse => {
                Some(self.count_units_below(&self.data_base(&tree, &node, &state), inode.size)?)
            }
            known => known,
        };
        self.store_inode(&node, &mut state, inode, data_changed, batch)?;
        state.blocks = blocks;
        self.hold_mtime(&tree, &node, &mut state, set);
        Ok(self.known_attr(&node, &state).0)
    }

    /// Holds a time of modification that was set; see `inode::mtime_hold`.
    fn hold_mtime(&self, tree: &TreeGuard<'_>, node: &Node, state: &mut State, set: &SetAttr) {
        let now = self.volume.env.monotonic();
        let Some(number) = state.mtime_hold.set(set, now) else { return };
        let stores_count =
            node.kind == FileKind::Regular && !self.volume.kernel_keeps_times.load(Ordering::Acquire);
        if stores_count && self.volume.prompt_flushes.take(state.inode.size, now) {
            state.mtime_hold.begin_flush();
            tree.notice(Notice::OldStores(node.id, number));
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsErrorKind::Invalid`] if it is none.
    pub fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        let node = self.node(node)?;
        let target = {
            let state = node.state();
            match &state.inode.target {
                Some(target) => target.to_vec(),
                None => return fail(FsErrorKind::Invalid, "not a symbolic link"),
            }
        };
        self.touch(&node);
        Ok(target)
    }

    /// Adds the entry of `node` with `inode` to a batch. What has no name is not stored.
    pub(crate) fn put(
        &self,
        tree: &TreeGuard<'_>,
        node: &Node,
        state: &State,
        inode: &Inode,
        batch: &mut Batch,
    ) {
        if state.orphan == Orphan::No {
            batch.insert(self.volume.metadata(), &node.entry_key(tree.epoch), inode.encode());
        }
    }

    /// Commits a batch that gives `node` the inode `inode`, and takes it over in memory.
    pub(crate) fn store_inode(
        &self,
        node: &Node,
        state: &mut State,
        inode: Inode,
        data_changed: bool,
        batch: Batch,
    ) -> Result<()> {
        let lsn = if batch.is_empty() {
            self.volume.check_caller_stays()?;
            state.lsn
        } else {
            self.volume.commit(batch)?
        };
        self.take_over(node, state, inode, lsn);
        if data_changed {
            state.changes += 1;
            state.blocks = None;
        }
        Ok(())
    }

    /// The same for what users see nothing of.
    pub(crate) fn store_unseen(
        &self,
        node: &Node,
        state: &mut State,
        inode: Inode,
        batch: Batch,
    ) -> Result<()> {
        let lsn = if batch.is_empty() { state.lsn } else { self.volume.commit_internal(batch)? };
        self.take_over(node, state, inode, lsn);
        Ok(())
    }

    /// Takes over in memory what was committed.
    pub(crate) fn take_over(&self, node: &Node, state: &mut State, inode: Inode, lsn: Lsn) {
        if let Some(directory) = &node.directory {
            directory.owned_alone.store(inode.owned_alone, Ordering::Release);
        }
        node.changed.store(true, Ordering::Release);
        state.inode = inode;
        state.lsn = lsn;
        state.atime_dirty = false;
    }

    /// Clears set-id bits and capabilities, as writing by an ordinary user and changing the owner
    /// do.
    pub(crate) fn kill_privileges(
        &self,
        tree: &TreeGuard<'_>,
        node: &Node,
        state: &State,
        inode: &mut Inode,
        batch: &mut Batch,
    ) -> Result<()> {
        if inode.is_dir() {
            return Ok(());
        }
        clear_set_id(inode);
        self.drop_capabilities(tree, node, state, inode, batch)
    }

    /// Takes capabilities away, as everything does that changes data.
    pub(crate) fn drop_capabilities(
        &self,
        tree: &TreeGuard<'_>,
        node: &Node,
        state: &State,
        inode: &mut Inode,
        batch: &mut Batch,
    ) -> Result<()> {
        if inode.xattrs.as_ref().is_some_and(|x| x.contains_key(CAPABILITIES)) {
            let base = self.data_base(tree, node, state);
            self.put_xattr(&base, inode, CAPABILITIES, None, batch)?;
        }
        Ok(())
    }

    fn chmod(
        &self,
        tree: &TreeGuard<'_>,
        node: &Node,
        state: &State,
        inode: &mut Inode,
        mode: u32,
        batch: &mut Batch,
    ) -> Result<()> {
        inode.mode = mode & 0o7777;
        if inode.xattrs.as_ref().is_some_and(|x| x.contains_key(acl::ACCESS)) {
            let base = self.data_base(tree, node, state);
            let list = self.load_xattr(&base, inode, acl::ACCESS)?;
            if let Some(mut list) = Acl::parse(&list)? {
                list.chmod(mode);
                self.put_xattr(&base, inode, acl::ACCESS, Some(&list.encode()), batch)?;
            }
        }
        Ok(())
    }

    /// The value of an extended attribute that the inode has.
    pub(crate) fn load_xattr(&self, base: &[u8], inode: &Inode, name: &[u8]) -> Result<Bytes> {
        match inode.xattrs.as_ref().and_then(|x| x.get(name)) {
            Some(XattrValue::Inline(value)) => Ok(value.clone()),
            Some(XattrValue::Large(len)) => {
                match self.volume.store.get(self.volume.data(), &layout::xattr_key(base, name))? {
                    Some(value) if value.len() == *len as usize => Ok(value),
                    _ => fail(
                        FsErrorKind::Io,
                        format!("the value of extended attribute {} is missing", layout::show(name)),
                    ),
                }
            }
            None => {
                fail(FsErrorKind::NoData, format!("there is no extended attribute {}", layout::show(name)))
            }
        }
    }

    /// From now on the time of the last read follows `rule`, as after a remount.
    pub fn set_atime(&self, rule: Atime) {
        self.atime.set(rule);
    }

    /// Notes that `node` was read, by the rule that the mount follows ([`Atime`]); true if the time
    /// of the last read changed.
    pub(crate) fn touch(&self, node: &Arc<Node>) -> bool {
        if self.atime.get() == Atime::Never || self.volume.options.read_only {
            return false;
        }
        self.touch_locked(node, &mut node.state())
    }

    /// The same with the state at hand.
    pub(crate) fn touch_locked(&self, node: &Arc<Node>, state: &mut State) -> bool {
        if self.atime.get() == Atime::Never || self.volume.options.read_only {
            return false;
        }
        let now = self.volume.clock();
        let inode = &mut state.inode;
        let newer = inode.atime > inode.mtime && inode.atime > inode.ctime;
        let is_recent = newer && now.saturating_sub(inode.atime) < ATIME_AGE;
        if is_recent && self.atime.get() == Atime::Relative {
            return false;
        }
        if inode.atime == now || !self.volume.caller_waits() {
            return false;
        }
        inode.atime = now;
        if !std::mem::replace(&mut state.atime_dirty, true) {
            node.pending.store(true, Ordering::Release);
            let mut queue = self.atimes.lock();
            // Nodes beyond that are written when they leave memory.
            if queue.len() < MAX_ATIMES {
                queue.push(node.id);
            }
        }
        true
    }

    /// Writes a delayed time of the last read.
    pub(crate) fn write_atime(&self, tree: &TreeGuard<'_>, node: &Arc<Node>) -> Result<()> {
        let mut state = node.state();
        if !state.atime_dirty {
            return Ok(());
        }
        let inode = state.inode.clone();
        let mut batch = Batch::new();
        self.put(tree, node, &state, &inode, &mut batch);
        match self.store_unseen(node, &mut state, inode, batch) {
            // Nobody who waits for durability is to hear that there is no room for this.
            Err(error) if error.kind() == FsErrorKind::NoSpace => Ok(()),
            result => result,
        }
    }

    /// Writes all delayed times of the last read, many with one batch.
    pub(crate) fn write_atimes(&self) -> Result<()> {
        let mut queue = std::mem::take(&mut *self.atimes.lock());
        // In the order in which states are locked.
        queue.sort_unstable();
        for ids in queue.chunks(ATIMES_BATCH) {
            let nodes: Vec<Arc<Node>> = ids.iter().filter_map(|id| self.nodes.get(*id)).collect();
            let tree = self.tree.shared();
            let mut states = States::lock(&nodes.iter().collect::<Vec<_>>());
            let mut batch = Batch::new();
            for node in &nodes {
                let state = states.of(node);
                if state.atime_dirty {
                    self.put(&tree, node, state, &state.inode, &mut batch);
                }
            }
            if batch.is_empty() {
                continue;
            }
            let lsn = match self.volume.commit_internal(batch) {
                Ok(lsn) => lsn,
                // Nobody who waits for durability is to hear that there is no room for this.
                Err(error) if error.kind() == FsErrorKind::NoSpace => return Ok(()),
                Err(error) => return Err(error),
            };
            for node in &nodes {
                let state = states.of(node);
                (state.lsn, state.atime_dirty) = (lsn, false);
                node.changed.store(true, Ordering::Release);
            }
        }
        Ok(())
    }
}

/// Refuses to give a size to what has none, or a size that is too large.
fn check_size(kind: FileKind, size: u64) -> Result<()> {
    match kind {
        FileKind::Regular if size <= MAX_FILE_SIZE => Ok(()),
        FileKind::Regular => fail(FsErrorKind::FileTooLarge, format!("a file cannot have {size} bytes")),
        FileKind::Directory => fail(FsErrorKind::IsDirectory, "a directory's size cannot be set"),
        _ => fail(FsErrorKind::Invalid, "only a regular file's size can be set"),
    }
}
