//! Making files, directories, symbolic links and further names.

use crate::file_system::{Deferred, FileSystem, Held, check_name};
use crate::inode::key_lengths::KEY_SUFFIX;
use crate::inode::node::{Known, Node, Orphan, Place, Role, States};
use crate::inode::tree_lock::TreeGuard;
use crate::model::acl::{self, Acl};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout::{self, MAX_KEY};
use crate::model::privileges::{SET_GID, SET_ID};
use crate::model::record::{Inode, Link};
use crate::model::types::*;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Names that one file may have, and subdirectories that one directory may have.
const MAX_LINKS: u32 = i32::MAX as u32;

/// What is to be made.
pub(crate) struct New<'a> {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) rdev: u64,
    pub(crate) target: Option<&'a [u8]>,
}

/// How far a new name for a file came.
enum Linked {
    /// With what the file's attributes are now.
    Done(Attr),
    /// Different link areas serve its names: they have to become one first.
    NeedsJoin,
}

impl FileSystem {
    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// As for [`FileSystem::mknod`]; [`FsErrorKind::NameTooLong`] for a target beyond 4095 bytes,
    /// [`FsErrorKind::NotFound`] for an empty one.
    pub fn symlink(&self, parent: NodeId, name: &[u8], target: &[u8], caller: &Caller) -> Result<Entry> {
        if target.is_empty() {
            return fail(FsErrorKind::NotFound, "a symbolic link needs a target");
        }
        if target.len() > MAX_SYMLINK {
            return fail(FsErrorKind::NameTooLong, format!("a target of {} bytes", target.len()));
        }
        let new = New { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target: Some(target) };
        self.create(parent, name, &new, caller)
    }

    /// Makes a file that is no directory and no symbolic link. `mode`: the low 12 bits.
    ///
    /// # Errors
    /// [`FsErrorKind::Exists`], [`FsErrorKind::NotDirectory`], [`FsErrorKind::NameTooLong`] also
    /// for a path beyond 1 MiB, [`FsErrorKind::NotFound`] if the directory was removed; of the
    /// store.
    pub fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        what: NewNode,
        mode: u32,
        caller: &Caller,
    ) -> Result<Entry> {
        let (kind, rdev) = match what {
            NewNode::Regular => (FileKind::Regular, 0),
            NewNode::Fifo => (FileKind::Fifo, 0),
            NewNode::Socket => (FileKind::Socket, 0),
            NewNode::CharDevice(rdev) => (FileKind::CharDevice, rdev),
            NewNode::BlockDevice(rdev) => (FileKind::BlockDevice, rdev),
        };
        self.create(parent, name, &New { kind, mode, rdev, target: None }, caller)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As for [`FileSystem::mknod`]; [`FsErrorKind::TooManyLinks`].
    pub fn mkdir(&self, parent: NodeId, name: &[u8], mode: u32, caller: &Caller) -> Result<Entry> {
        let new = New { kind: FileKind::Directory, mode: mode & 0o1777, rdev: 0, target: None };
        self.create(parent, name, &new, caller)
    }

    fn create(&self, parent: NodeId, name: &[u8], new: &New<'_>, caller: &Caller) -> Result<Entry> {
        let dir = self.dir(parent)?;
        check_new_name(name)?;
        self.volume.check_writable()?;
        // Which may have something to wait for, as nothing may afterwards.
        self.trim_names();
        let held = self.create_in(&dir, name, new, caller)?;
        self.entry(held)
    }

    fn create_in(&self, dir: &Arc<Node>, name: &[u8], new: &New<'_>, caller: &Caller) -> Result<Held<'_>> {
        let tree = self.tree.shared();
        let mut names = dir.dir().names.lock();
        self.check_free(&tree, dir, &mut names, name)?;
        let prefix = dir.content_prefix(tree.epoch);
        let key = layout::entry_key(&prefix, name);
        self.check_key(&key)?;
        self.evacuate_file(&key)?;
        let number = self.fresh_number()?.wrapping_sub(dir.dir().sum);
        if caller.uid != dir.state().inode.uid || (new.kind != FileKind::Directory && new.mode & SET_ID != 0)
        {
            self.clear_marks(dir)?;
        }
        let mut state = dir.state();
        let now = self.volume.now();
        let mut batch = Batch::new();
        let mut above = state.inode.clone();
        let inode = self.new_inode(&tree, dir, &state, &key, new, caller, number, now, &mut batch)?;
        count_entry(&mut above, &inode, now)?;
        batch.insert_new(self.volume.metadata(), &key, inode.encode());
        self.put(&tree, dir, &state, &above, &mut batch);
        let lsn = self.volume.commit(batch)?;
        self.take_over(dir, &mut state, above, lsn);
        drop(state);
        let held = self.add_entry(dir, &mut names, name, inode, lsn);
        names.version += 1;
        self.volume.counters.creates.fetch_add(1, Ordering::Relaxed);
        Ok(held)
    }

    #[allow(clippy::too_many_arguments, reason = "one step of one operation, split off for its length")]
    pub(crate) fn new_inode(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        state: &crate::inode::node::State,
        key: &[u8],
        new: &New<'_>,
        caller: &Caller,
        number: u64,
        now: i64,
        batch: &mut Batch,
    ) -> Result<Inode> {
        let above = &state.inode;
        let mut inode = Inode::new(new.kind, new.mode, caller.uid, caller.gid, number, now);
        inode.rdev = new.rdev;
        if above.mode & SET_GID != 0 {
            inode.gid = above.gid;
            if inode.is_dir() {
                inode.mode |= SET_GID;
            }
        }
        if let Some(target) = new.target {
            inode.target = Some(target.into());
            inode.size = target.len() as u64;
            return Ok(inode);
        }
        if !above.xattrs.as_ref().is_some_and(|x| x.contains_key(acl::DEFAULT)) {
            inode.mode &= !(caller.umask & 0o777);
            return Ok(inode);
        }
        let base = self.data_base(tree, dir, state);
        let value = self.load_xattr(&base, above, acl::DEFAULT)?;
        if let Some(default) = Acl::parse(&value)? {
            let (access, mode) = default.inherit(inode.mode);
            inode.mode = mode;
            if !access.is_plain() {
                self.put_xattr(key, &mut inode, acl::ACCESS, Some(&access.encode()), batch)?;
            }
            if inode.is_dir() {
                self.put_xattr(key, &mut inode, acl::DEFAULT, Some(&value), batch)?;
            }
        }
        Ok(inode)
    }

    /// Refuses paths that are too long for keys, and notes that the key is about to be made.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        if key.len() + KEY_SUFFIX > self.max_key() {
            return fail(FsErrorKind::NameTooLong, format!("the path takes {} bytes", key.len()));
        }
        self.note_length(key.len())
    }

    /// The longest key that may be made.
    pub(crate) fn max_key(&self) -> usize {
        self.volume.options.max_key.min(MAX_KEY)
    }

    /// Refuses to make what exists, or something in a directory that was removed.
    pub(crate) fn check_free(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        names: &mut crate::inode::node::Names,
        name: &[u8],
    ) -> Result<()> {
        if names.dead || self.is_lost(dir) {
            return fail(FsErrorKind::NotFound, "the directory was removed");
        }
        if self.is_free(tree, dir, names, name)? {
            return Ok(());
        }
        fail(FsErrorKind::Exists, format!("there is an entry {} already", layout::show(name)))
    }

    /// Gives `node`, which is no directory, one name more. With its second name a file moves to the
    /// link area, at the cost of its data's keys; so does one that gets its first name moves to its
    /// place. Where another link area serves the new name, the two become one first, at a cost that
    /// grows with the files in the lower one.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] for a directory, [`FsErrorKind::NotFound`] for a file without
    /// name, [`FsErrorKind::TooManyLinks`]; as for [`FileSystem::mknod`].
    pub fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry> {
        let node = self.node(node)?;
        let dir = self.dir(parent)?;
        if node.is_dir() {
            return fail(FsErrorKind::Permission, "a directory has one name only");
        }
        check_new_name(name)?;
        self.volume.check_writable()?;
        // Has the blocks counted that the answer needs, for nothing may be waited for after the
        // change.
        self.attr(&node)?;
        let mut deferred = Deferred::new(self);
        let linked = {
            let tree = self.tree.shared();
            self.link_in(&tree, &node, &dir, name, &mut deferred)?
        };
        let attr = match linked {
            Linked::Done(attr) => attr,
            Linked::NeedsJoin => self.link_joined(&node, &dir, name, &mut deferred)?,
        };
        drop(deferred);
        Ok(Entry { node: self.hold(&node)?.keep().id, attr })
    }

    /// Gives a file a name where another link area serves.
    fn link_joined(
        &self,
        node: &Arc<Node>,
        dir: &Arc<Node>,
        name: &[u8],
        deferred: &mut Deferred<'_>,
    ) -> Result<Attr> {
        let tree = self.tree.exclusive_for_move();
        let result = (|| {
            // Much may have happened since it was found to be necessary.
            if let Linked::Done(attr) = self.link_in(&tree, node, dir, name, deferred)? {
                return Ok(attr);
            }
            if let Some(home) = node.place().parent {
                self.join_areas(&tree, &home, dir, deferred)?;
            }
            match self.link_in(&tree, node, dir, name, deferred)? {
                Linked::Done(attr) => Ok(attr),
                Linked::NeedsJoin => fail(FsErrorKind::NotFound, "the file was removed"),
            }
        })();
        result
    }

    fn link_in(
        &self,
        tree: &TreeGuard<'_>,
        node: &Arc<Node>,
        dir: &Arc<Node>,
        name: &[u8],
        deferred: &mut Deferred<'_>,
    ) -> Result<Linked> {
        let mut names = dir.dir().names.lock();
        self.check_free(tree, dir, &mut names, name)?;
        let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
        self.check_key(&key)?;
        self.evacuate_file(&key)?;
        let holder = self.area_of(dir)?;
        let Some(home_dir) = node.place().parent else {
            return fail(FsErrorKind::Permission, "a directory has one name only");
        };
        if node.state().linkable {
            let inode = node.state().inode.clone();
            self.clear_marks_unless(dir, &inode)?;
        } else if home_dir.is_removed() {
            return fail(FsErrorKind::NotFound, "the file was removed");
        } else {
            self.clear_marks(dir)?;
            self.clear_marks(&home_dir)?;
        }
        let mut area = holder.dir().names.lock();
        let mut states = States::lock(&[node, dir]);
        let now = self.volume.now();
        let state = states.of(node);
        if state.orphan != Orphan::No && state.linkable {
            self.link_first(tree, node, dir, name, &mut names, &mut states, deferred)?;
            return Ok(Linked::Done(self.known_attr(node, states.of(node)).0));
        }
        if state.orphan != Orphan::No {
            return fail(FsErrorKind::NotFound, "the file was removed");
        }
        let mut inode = state.inode.clone();
        if inode.links >= MAX_LINKS {
            return fail(FsErrorKind::TooManyLinks, format!("the file has {} names", inode.links));
        }
        inode.links += 1;
        inode.set_ctime(now);
        let mut batch = Batch::new();
        let place = node.place();
        let is_linked = place.parent.as_ref().is_some_and(|p| p.dir().role == Role::LinkArea);
        if place.parent.as_ref().is_some_and(|parent| self.are_apart(parent, dir)) {
            return Ok(Linked::NeedsJoin);
        }
        let id =
            if is_linked { layout::area_id(&place.name).unwrap_or_default() } else { self.fresh_number()? };
        let link = Link { kind: inode.kind, id, number: node.ino.wrapping_sub(holder.dir().sum) };
        let home = layout::entry_key(&holder.content_prefix(tree.epoch), &layout::area_name(id));
        if !is_linked {
            inode.number = link.number;
            let old = node.entry_key(tree.epoch);
            node.version.fetch_add(1, Ordering::AcqRel);
            if inode.has_data() {
                self.move_file(&inode, &old, &home, &mut batch)?;
            }
            batch.insert(self.volume.metadata(), &old, link.encode());
            batch.insert(self.volume.links(), &old, id.to_le_bytes().to_vec());
        }
        batch.insert(self.volume.metadata(), &home, inode.encode());
        batch.insert(self.volume.metadata(), &key, link.encode());
        batch.insert(self.volume.links(), &key, id.to_le_bytes().to_vec());
        let mut above = states.of(dir).inode.clone();
        count_entry(&mut above, &inode, now)?;
        self.put(tree, dir, states.of(dir), &above, &mut batch);
        let lsn = self.volume.commit(batch)?;
        self.any_links.store(true, Ordering::Relaxed);
        holder.count_names(id, inode.links);
        self.take_over(node, states.of(node), inode, lsn);
        self.take_over(dir, states.of(dir), above, lsn);
        if !is_linked {
            self.move_to_links(node, &holder, place, id, &mut area, deferred);
        }
        names.version += 1;
        self.set_name(dir, &mut names, name, Known::Present(node.id));
        Ok(Linked::Done(self.known_attr(node, states.of(node)).0))
    }

    /// In memory, a node moves from `old` to the link area.
    fn move_to_links(
        &self,
        node: &Arc<Node>,
        holder: &Arc<Node>,
        old: Place,
        id: u64,
        area: &mut crate::inode::node::Names,
        deferred: &mut Deferred<'_>,
    ) {
        let name = layout::area_name(id);
        self.nodes.acquire(holder.id);
        node.set_place(Place { parent: Some(holder.clone()), name: name[..].into() });
        self.set_name(holder, area, &name[..], Known::Present(node.id));
        if let Some(parent) = old.parent {
            // A lookup under way may have read the entry when it was the file itself.
            parent.dir().evictions.fetch_add(1, Ordering::AcqRel);
            deferred.release(parent.id);
        }
    }
}

/// One entry more in a directory: counts and times.
pub(crate) fn count_entry(above: &mut Inode, entry: &Inode, now: i64) -> Result<()> {
    if entry.is_dir() {
        if above.links >= MAX_LINKS {
            return fail(
                FsErrorKind::TooManyLinks,
                format!("the directory has {} subdirectories", above.links),
            );
        }
        above.links += 1;
    }
    above.size += 1;
    (above.mtime, above.ctime) = (now, now);
    Ok(())
}

/// One entry less in a directory.
pub(crate) fn uncount_entry(above: &mut Inode, kind: FileKind, now: i64) {
    if kind == FileKind::Directory {
        above.links = above.links.saturating_sub(1);
    }
    above.size = above.size.saturating_sub(1);
    (above.mtime, above.ctime) = (now, now);
}

/// As [`check_name`], where `.` and `..` count as names that are taken.
pub(crate) fn check_new_name(name: &[u8]) -> Result<()> {
    if name == b"." || name == b".." {
        return fail(FsErrorKind::Exists, "every directory has . and ..");
    }
    check_name(name)
}
