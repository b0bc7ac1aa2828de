//! Stored inodes: entries in the metadata index, and the extended attributes that they name.
//!
//! In memory the inode of a node is what counts; every change goes to the store in the same step,
//! as an insert of the whole entry, so that it neither reads nor piles up as messages.

use crate::inode::node::{Node, Orphan, State};
use crate::model::acl::{self, Acl};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::{CAPABILITIES, SET_GID, clear_set_id};
use crate::model::record::{INLINE_XATTR_MAX_BYTES, INLINE_XATTRS_MAX_BYTES, Inode, XattrValue};
use crate::model::types::*;
use crate::volume::context::VolumeContext;
use crate::volume::tree_lock::TreeGuard;
use bytes::Bytes;
use espalier_engine::Batch;
use std::sync::Arc;

/// Names that one file may have, and subdirectories that one directory may have.
pub(crate) const MAX_LINKS: u32 = i32::MAX as u32;

pub(crate) struct InodeStore {
    pub(crate) volume: Arc<VolumeContext>,
}

/// The kind of object that a call makes.
#[derive(Clone, Copy)]
pub(crate) struct NewObject<'a> {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) rdev: u64,
    pub(crate) target: Option<&'a [u8]>,
}

/// The circumstances of making an object.
pub(crate) struct Creation<'a> {
    pub(crate) caller: &'a Caller,
    /// The inode number, less the sum of the deltas above.
    pub(crate) number: u64,
    pub(crate) now: i64,
}

impl InodeStore {
    /// Adds the entry of `node` with `inode` to a batch. A file without a name has no entry.
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
    pub(crate) fn commit_inode(
        &self,
        node: &Node,
        state: &mut State,
        inode: Inode,
        batch: Batch,
    ) -> Result<()> {
        let lsn = if batch.is_empty() {
            self.volume.check_caller_stays()?;
            state.lsn
        } else {
            self.volume.commit(batch)?
        };
        node.take_over(state, inode, lsn);
        Ok(())
    }

    /// As [`InodeStore::commit_inode`], for times of the last read and ownership marks.
    pub(crate) fn commit_inode_internal(
        &self,
        node: &Node,
        state: &mut State,
        inode: Inode,
        batch: Batch,
    ) -> Result<()> {
        let lsn = if batch.is_empty() { state.lsn } else { self.volume.commit_times(batch)? };
        node.take_over(state, inode, lsn);
        Ok(())
    }

    /// The inode of a new object in `dir`, whose state is `state`. `key`: of its entry. Adds to the
    /// batch the extended attributes that it inherits.
    pub(crate) fn new_inode(
        &self,
        tree: &TreeGuard<'_>,
        (dir, state): (&Node, &State),
        key: &[u8],
        new: &NewObject<'_>,
        creation: &Creation<'_>,
        batch: &mut Batch,
    ) -> Result<Inode> {
        let above = &state.inode;
        let &Creation { caller, number, now } = creation;
        let mut inode = Inode::new(new.kind, new.mode, caller.uid, caller.gid, number, now);
        inode.rdev = new.rdev;
        inode.flags = above.flags.inherited(inode.is_dir());
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
        if !above.xattrs.as_ref().is_some_and(|x| x.contains_key(acl::DEFAULT_ACL_XATTR)) {
            inode.mode &= !(caller.umask & 0o777);
            return Ok(inode);
        }
        let value = self.load_xattr(&dir.data_base(tree.epoch, state), above, acl::DEFAULT_ACL_XATTR)?;
        if let Some(default) = Acl::parse(&value)? {
            let (access, mode) = default.inherit(inode.mode);
            inode.mode = mode;
            if !access.is_plain() {
                self.put_xattr(key, &mut inode, acl::ACCESS_ACL_XATTR, Some(&access.encode()), batch)?;
            }
            if inode.is_dir() {
                self.put_xattr(key, &mut inode, acl::DEFAULT_ACL_XATTR, Some(&value), batch)?;
            }
        }
        Ok(inode)
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

    /// Removes capabilities, as every change of data does.
    pub(crate) fn drop_capabilities(
        &self,
        tree: &TreeGuard<'_>,
        node: &Node,
        state: &State,
        inode: &mut Inode,
        batch: &mut Batch,
    ) -> Result<()> {
        if inode.xattrs.as_ref().is_some_and(|x| x.contains_key(CAPABILITIES)) {
            let base = node.data_base(tree.epoch, state);
            self.put_xattr(&base, inode, CAPABILITIES, None, batch)?;
        }
        Ok(())
    }

    /// Gives an inode a mode, and its access control list the entries that go with it.
    pub(crate) fn chmod(
        &self,
        tree: &TreeGuard<'_>,
        (node, state): (&Node, &State),
        inode: &mut Inode,
        mode: u32,
        batch: &mut Batch,
    ) -> Result<()> {
        self.set_mode(|| node.data_base(tree.epoch, state), inode, mode, batch)
    }

    /// As [`InodeStore::chmod`], of an object whose data lies at `base`.
    pub(crate) fn set_mode<B: AsRef<[u8]>>(
        &self,
        base: impl FnOnce() -> B,
        inode: &mut Inode,
        mode: u32,
        batch: &mut Batch,
    ) -> Result<()> {
        inode.mode = mode & 0o7777;
        if inode.xattrs.as_ref().is_some_and(|x| x.contains_key(acl::ACCESS_ACL_XATTR)) {
            let base = base();
            let base = base.as_ref();
            let list = self.load_xattr(base, inode, acl::ACCESS_ACL_XATTR)?;
            if let Some(mut list) = Acl::parse(&list)? {
                list.chmod(mode);
                self.put_xattr(base, inode, acl::ACCESS_ACL_XATTR, Some(&list.encode()), batch)?;
            }
        }
        Ok(())
    }

    /// The value of an extended attribute that the inode has. `base`: where its data lies.
    pub(crate) fn load_xattr(&self, base: &[u8], inode: &Inode, name: &[u8]) -> Result<Bytes> {
        match inode.xattrs.as_ref().and_then(|x| x.get(name)) {
            Some(XattrValue::Inline(value)) => Ok(value.clone()),
            Some(XattrValue::Large(len)) => {
                let key = layout::xattr_key(base, name);
                match self.volume.store.get(self.volume.data(), &key)? {
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

    /// Gives an inode an extended attribute or removes it, and adds to the batch the change of the
    /// data index. `base`: where the inode's data lies.
    pub(crate) fn put_xattr(
        &self,
        base: &[u8],
        inode: &mut Inode,
        name: &[u8],
        value: Option<&[u8]>,
        batch: &mut Batch,
    ) -> Result<()> {
        let mut xattrs = inode.xattrs.as_deref().cloned().unwrap_or_default();
        let old = xattrs.remove(name);
        let key = layout::xattr_key(base, name);
        let was_large = matches!(old, Some(XattrValue::Large(_)));
        let mut is_large = false;
        if let Some(value) = value {
            let names: usize = xattrs.keys().map(|n| n.len() + 1).sum();
            if names + name.len() + 1 > MAX_XATTR {
                return fail(
                    FsErrorKind::NoSpace,
                    "the names of the extended attributes would take more than 64 KiB",
                );
            }
            let inline = |v: &XattrValue| if let XattrValue::Inline(v) = v { v.len() } else { 0 };
            let taken: usize = names + xattrs.values().map(inline).sum::<usize>();
            // A change of a whole tree cannot reach a value outside of the entry.
            let stays = must_stay_in_entry(name) && value.len() <= INLINE_XATTRS_MAX_BYTES;
            is_large = !stays
                && (value.len() > INLINE_XATTR_MAX_BYTES
                    || taken + name.len() + value.len() > INLINE_XATTRS_MAX_BYTES);
            let stored = if is_large {
                batch.insert(self.volume.data(), &key, value);
                XattrValue::Large(value.len() as u32)
            } else {
                XattrValue::Inline(value.to_vec().into())
            };
            xattrs.insert(name.into(), stored);
        }
        if was_large && !is_large {
            batch.delete(self.volume.data(), &key);
        }
        inode.xattrs = (!xattrs.is_empty()).then(|| Arc::new(xattrs));
        Ok(())
    }
}

/// True for extended attributes that changes of whole trees rewrite.
pub(crate) fn must_stay_in_entry(name: &[u8]) -> bool {
    name == CAPABILITIES || name == acl::ACCESS_ACL_XATTR
}

/// One entry more in a directory: counts and times.
pub(crate) fn count_entry(above: &mut Inode, entry: &Inode, now: i64) -> Result<()> {
    above.flags.check_mutable()?;
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
pub(crate) fn uncount_entry(above: &mut Inode, kind: FileKind, now: i64) -> Result<()> {
    above.flags.check_unprotected()?;
    if kind == FileKind::Directory {
        above.links = above.links.saturating_sub(1);
    }
    above.size = above.size.saturating_sub(1);
    (above.mtime, above.ctime) = (now, now);
    Ok(())
}
