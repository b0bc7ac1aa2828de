//! Reading and setting attributes.

use crate::data::blocks::{self, DataSource};
use crate::data::reservation;
use crate::file::attr_reader::AttrReader;
use crate::inode::access_times::AccessTimes;
use crate::inode::inode_store::InodeStore;
use crate::inode::node::{Node, State};
use crate::inode::node_table::NodeTable;
use crate::inode::ownership::{Contradiction, OwnershipMarks};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::privileges::{SET_GID, SET_ID};
use crate::model::record::{Inode, later_than};
use crate::model::types::*;
use crate::volume::context::VolumeContext;
use crate::volume::state_record::VolumeStateRecord;
use crate::volume::tree_lock::{TreeGuard, TreeLock};
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) struct Attributes {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) inodes: Arc<InodeStore>,
    pub(crate) reader: Arc<AttrReader>,
    pub(crate) ownership: Arc<OwnershipMarks>,
    pub(crate) access_times: Arc<AccessTimes>,
    pub(crate) state_record: Arc<VolumeStateRecord>,
}

/// What a caller may change of an inode, and does; refuses what it may not.
pub(crate) type AttrJudge<'a> = &'a dyn Fn(&Inode) -> Result<SetAttr>;

impl Attributes {
    pub(crate) fn has_set_id(&self, node: NodeId) -> bool {
        self.nodes.node(node).is_ok_and(|node| node.state().inode.mode & SET_ID != 0)
    }

    pub(crate) fn getattr(&self, node: NodeId) -> Result<Attr> {
        self.reader.attr(&self.nodes.node(node)?)
    }

    /// Changes attributes as `judge` says of the inode; returns the new ones.
    pub(crate) fn setattr_judged(&self, node: NodeId, judge: AttrJudge<'_>) -> Result<Attr> {
        let inode = self.nodes.node(node)?.state().inode.clone();
        let mut set = judge(&inode)?;
        loop {
            match self.setattr(node, &set, Some(judge))? {
                Ok(attr) => return Ok(attr),
                // Owner or group have changed since.
                Err(now) => set = now,
            }
        }
    }

    /// Changes attributes; returns the new ones. A judge is asked under the lock of the state: if
    /// it says something else than `set`, nothing is changed, and that is returned.
    pub(crate) fn setattr(
        &self,
        node: NodeId,
        set: &SetAttr,
        judge: Option<AttrJudge<'_>>,
    ) -> Result<std::result::Result<Attr, SetAttr>> {
        let node = self.nodes.node(node)?;
        self.volume.check_writable()?;
        // The answer has the blocks, a call waits for nothing after its change, and counting takes
        // time: so count before, without locks.
        let changes = node.state().changes;
        let counted = self.reader.count_units_after(&node, set)?;
        let tree = self.tree.shared();
        let lends_rights = |inode: &Inode| !inode.is_dir() && set.mode.is_some_and(|m| m & SET_GID != 0);
        let gives_away = |inode: &Inode| set.uid.is_some_and(|uid| uid != inode.uid);
        let contradicts = |inode: &Inode| lends_rights(inode) || gives_away(inode);
        let mut state = self.ownership.lock_for_change(&node, Contradiction::Rights, contradicts)?;
        if let Some(judged) =
            judge.map(|judge| judge(&state.inode)).transpose()?.filter(|judged| judged != set)
        {
            return Ok(Err(judged));
        }
        let counted = counted.filter(|_| state.changes == changes);
        self.check_flags(state.inode.flags, set)?;
        let mut batch = Batch::new();
        if self.tells_of_writes(set) {
            // It goes with data for which there was room, and an entry replaces an entry.
            batch.promise();
        }
        let mut inode = state.inode.clone();
        let now = self.volume.now();
        let mut reserved_units = None;
        if let Some(size) = set.size {
            check_size(inode.kind, size)?;
            let base = || node.data_base(tree.epoch, &state);
            reserved_units = Some(self.resize(base, &mut inode, size, &mut batch)?);
            inode.mtime = now;
        }
        if set.kill_privileges || set.uid.is_some() || set.gid.is_some() {
            self.inodes.kill_privileges(&tree, &node, &state, &mut inode, &mut batch)?;
        }
        if set.uid.is_some_and(|uid| uid != inode.uid) {
            // The entries below keep their owner.
            inode.owned_alone = false;
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        if let Some(mode) = set.mode {
            self.inodes.chmod(&tree, (&node, &state), &mut inode, mode, &mut batch)?;
        }
        set_times(&mut inode, set, now);
        self.inodes.put(&tree, &node, &state, &inode, &mut batch);
        let known = state.blocks.filter(|_| set.size.is_none()).or(counted);
        let blocks = match known {
            None if inode.sparse || inode.reserved => {
                let source = DataSource::new(node.data_base(tree.epoch, &state), &inode);
                Some(self.count_units(&source, reserved_units)?)
            }
            known => known,
        };
        self.inodes.commit_inode(&node, &mut state, inode, batch)?;
        self.note_rights(&tree, &node, set);
        if set.size.is_some() {
            state.data_changed();
        }
        state.blocks = blocks;
        self.hold_mtime(&tree, &node, &mut state, set);
        Ok(Ok(self.reader.known_attr(&node, &state).0))
    }

    /// Units of 512 bytes that a file takes; `reserved`: those of its reserved blocks, if the store
    /// has the record from before a change.
    fn count_units(&self, source: &DataSource, reserved: Option<u64>) -> Result<u64> {
        match reserved {
            Some(reserved) => Ok(blocks::count_data_units(&self.volume, source)? + reserved),
            None => blocks::count_all_units(&self.volume, source),
        }
    }

    /// Notes for those that ask what changed that what lies below a directory may be out of reach.
    fn note_rights(&self, tree: &TreeGuard<'_>, node: &Arc<Node>, set: &SetAttr) {
        if node.is_dir() && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) {
            let content = node.content_prefix(tree.epoch);
            self.volume.changes.note_tree(&content, self.volume.env.monotonic());
        }
    }

    /// The flags that `chattr` sets.
    pub(crate) fn flags(&self, node: NodeId) -> Result<FileFlags> {
        Ok(self.nodes.node(node)?.state().inode.flags)
    }

    /// Sets them.
    pub(crate) fn set_flags(&self, node: NodeId, flags: FileFlags, caller: &Caller) -> Result<()> {
        let node = self.nodes.node(node)?;
        self.volume.check_writable()?;
        if flags.0 & !FileFlags::ALL.0 != 0 {
            return fail(FsErrorKind::Unsupported, format!("flags {:#x} are not known here", flags.0));
        }
        if flags.has(FileFlags::DIRSYNC) && !node.is_dir() {
            return fail(FsErrorKind::Unsupported, "only a directory can have flag D");
        }
        let tree = self.tree.shared();
        let mut state = self.ownership.lock_for_change(&node, Contradiction::Any, |_| flags.protect())?;
        let changes = FileFlags(state.inode.flags.0 ^ flags.0);
        if caller.uid != 0 && (caller.uid != state.inode.uid || changes.protect()) {
            return fail(FsErrorKind::Permission, "these flags are not this user's to change");
        }
        self.state_record.note_flags(flags)?;
        let mut inode = state.inode.clone();
        inode.flags = flags;
        inode.set_ctime(self.volume.now());
        let mut batch = Batch::new();
        self.inodes.put(&tree, &node, &state, &inode, &mut batch);
        self.inodes.commit_inode(&node, &mut state, inode, batch)
    }

    /// True if the kernel, which keeps the times, may be saying with this when the data was written
    /// that it has sent.
    fn tells_of_writes(&self, set: &SetAttr) -> bool {
        let is_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let only_written = set.mtime.is_some() && set.atime.is_none() && !is_owner && set.size.is_none();
        only_written && self.volume.kernel_keeps_times.load(Ordering::Acquire)
    }

    /// Refuses a change of attributes that the flags of an object forbid. What the kernel says of
    /// the times of data that it wrote before, if it keeps the times, is no change by a user.
    fn check_flags(&self, flags: FileFlags, set: &SetAttr) -> Result<()> {
        let is_set = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        if self.tells_of_writes(set) {
            return Ok(());
        }
        let is_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if is_owner || set.size.is_some() || is_set(set.atime) || is_set(set.mtime) {
            flags.check_unprotected()?;
        }
        flags.check_mutable()
    }

    /// Adds to a batch that a file gets `size` bytes; returns the units that its reserved blocks
    /// take then. `base` is asked for only if it is needed.
    fn resize(
        &self,
        base: impl Fn() -> Arc<[u8]>,
        inode: &mut Inode,
        size: u64,
        batch: &mut Batch,
    ) -> Result<u64> {
        if !inode.reserved {
            blocks::resize(&self.volume, base, inode, size, batch);
            return Ok(0);
        }
        let (base, before) = (base(), inode.clone());
        let mut reserved = reservation::ReservationChange::new(&self.volume, &base, &before)?;
        if size > before.size {
            reserved.grow(&before, u64::MAX, size);
        } else {
            reserved.cut(&before, size)?;
        }
        blocks::resize(&self.volume, || base.clone(), inode, size, batch);
        let units = reserved.units();
        debug_assert_eq!(reserved.more(), 0, "a size asks for no room");
        reserved.put(&before, inode, batch)?;
        Ok(units)
    }

    /// Holds a time of modification that was set; see `volume::mtime_hold`.
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
    pub(crate) fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        let node = self.nodes.node(node)?;
        let target = {
            let state = node.state();
            match &state.inode.target {
                Some(target) => target.to_vec(),
                None => return fail(FsErrorKind::Invalid, "not a symbolic link"),
            }
        };
        self.access_times.touch(&node);
        Ok(target)
    }
}

/// Sets the times of an inode.
fn set_times(inode: &mut Inode, set: &SetAttr, now: i64) {
    let time = |t: SetTime| if let SetTime::At(at) = t { at } else { now };
    inode.atime = set.atime.map_or(inode.atime, time);
    inode.mtime = set.mtime.map_or(inode.mtime, time);
    match set.ctime.map(time) {
        // Data that was written back within the same tick is later.
        Some(at) if later_than(inode.ctime, at) != at => {}
        Some(at) => inode.ctime = at,
        None => inode.set_ctime(now),
    }
}

/// Refuses to set the size of an object that is no regular file, or a size that is too large.
fn check_size(kind: FileKind, size: u64) -> Result<()> {
    match kind {
        FileKind::Regular if size <= MAX_FILE_SIZE => Ok(()),
        FileKind::Regular => fail(FsErrorKind::FileTooLarge, format!("a file cannot have {size} bytes")),
        FileKind::Directory => fail(FsErrorKind::IsDirectory, "a directory's size cannot be set"),
        _ => fail(FsErrorKind::Invalid, "only a regular file's size can be set"),
    }
}
