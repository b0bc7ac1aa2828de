//! Public calls on attributes and data of one file or directory.

use crate::file::attributes::AttrJudge;
use crate::file::copy::CopyRequest;
use crate::file::data::Privileges;
use crate::file::xattr::XattrChange;
use crate::file_system::FileSystem;
use crate::inode::limits::{Growth, WriteKind};
use crate::inode::node::Node;
use crate::model::error::{FsErrorKind, Result};
use crate::model::types::*;
use crate::quota::growth;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl FileSystem {
    /// Gives `watch` what the kernel is to be told of calls: with no lock held, and before the call
    /// returns.
    pub fn watch_notices(&self, watch: NoticeWatch) {
        self.names.tree.watch_notices(watch);
    }

    /// The kernel of the mount keeps times of modification and of the last change by itself, and
    /// sends them (`keeps`), or leaves them to the file system.
    pub fn set_kernel_keeps_times(&self, keeps: bool) {
        self.volume.kernel_keeps_times.store(keeps, Ordering::Release);
    }

    /// From now on the time of the last read follows `rule`, as after a remount.
    pub fn set_atime(&self, rule: Atime) {
        self.access_times.rule.set(rule);
    }

    /// Writes the times of the last read of nodes in the order of their ids, each once.
    pub(crate) fn write_access_times(&self, nodes: &[Arc<Node>]) -> Result<()> {
        self.access_times.write_some(nodes).map(drop)
    }

    /// Write-back of `node` sets the time of modification again: the kernel has written back the
    /// pages that it had when it got [`Notice::OldStores`] with this number.
    pub fn end_mtime_hold(&self, node: NodeId, number: u64) {
        if let Some(node) = self.names.nodes.get(node) {
            node.state().mtime_hold.end_flush(number);
        }
    }

    /// True if `node` has set-id bits.
    pub fn has_set_id(&self, node: NodeId) -> bool {
        self.attributes.has_set_id(node)
    }

    /// The attributes of `node`.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`]; for sparse files also of the store.
    pub fn getattr(&self, node: NodeId) -> Result<Attr> {
        self.attributes.getattr(node)
    }

    /// Changes attributes; returns the new ones.
    ///
    /// # Errors
    /// [`FsErrorKind::Invalid`] or
    /// [`FsErrorKind::IsDirectory`] for the size of something that
    /// is no regular file, [`FsErrorKind::FileTooLarge`]; of the
    /// store.
    pub fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr> {
        let call = || self.attributes.setattr(node, set, None);
        let set = match set.size {
            Some(_) => self.quotas.shrink(node, growth::attributes, call)?,
            None => self.quotas.change(node, growth::attributes, call)?,
        };
        // Without a judge nothing else is set.
        let attr = set.or_else(|_| self.attributes.getattr(node))?;
        self.settled(attr, &[node], FileFlags::SYNC)
    }

    /// As [`FileSystem::setattr`], as `judge` says of the inode. `is_size`: the size is set.
    pub(crate) fn setattr_judged(&self, node: NodeId, is_size: bool, judge: AttrJudge<'_>) -> Result<Attr> {
        let call = || self.attributes.setattr_judged(node, judge);
        let attr = match is_size {
            true => self.quotas.shrink(node, growth::attributes, call)?,
            false => self.quotas.change(node, growth::attributes, call)?,
        };
        self.settled(attr, &[node], FileFlags::SYNC)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsErrorKind::Invalid`] if it is none.
    pub fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        self.attributes.readlink(node)
    }

    /// The flags that `chattr` sets.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`].
    pub fn flags(&self, node: NodeId) -> Result<FileFlags> {
        self.attributes.flags(node)
    }

    /// Sets the flags that `chattr` sets: the owner may, but only root those that forbid changes.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] for other callers;
    /// [`FsErrorKind::Unsupported`] for other flags; of the store.
    pub fn set_flags(&self, node: NodeId, flags: FileFlags, caller: &Caller) -> Result<()> {
        let call = || self.attributes.set_flags(node, flags, caller);
        self.quotas.change(node, growth::attributes, call)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`FsErrorKind::NoData`] if there is none,
    /// [`FsErrorKind::Unsupported`] for names outside of the
    /// namespaces `user.`, `trusted.`, `security.` and the access control lists; of the store.
    pub fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.xattrs.get(node, name)
    }

    /// Sets an extended attribute. `clear_setgid`: with an access control list, clear the
    /// set-group-id bit.
    ///
    /// # Errors
    /// [`FsErrorKind::Exists`] or
    /// [`FsErrorKind::NoData`] as `mode` says,
    /// [`FsErrorKind::TooBig`] for values beyond 64 KiB,
    /// [`FsErrorKind::NoSpace`] for names beyond 64 KiB in all, and
    /// for capabilities and access control lists beyond 2 KiB,
    /// [`FsErrorKind::Invalid`] for an access control list that is
    /// none; of the store.
    pub fn setxattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_setgid: bool,
    ) -> Result<()> {
        self.change_xattr(node, &XattrChange { name, value: Some(value), mode, judge: &|_| Ok(clear_setgid) })
    }

    /// Sets or removes an extended attribute.
    pub(crate) fn change_xattr(&self, node: NodeId, change: &XattrChange<'_>) -> Result<()> {
        let call = || self.xattrs.change(node, change);
        match change.value {
            Some(value) => self.quotas.grow(node, || growth::entry(change.name, value.len()), call)?,
            None => self.quotas.shrink(node, growth::attributes, call)?,
        }
        self.settled((), &[node], FileFlags::SYNC)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsErrorKind::NoData`] if there is none; of the store.
    pub fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.change_xattr(
            node,
            &XattrChange { name, value: None, mode: XattrMode::Replace, judge: &|_| Ok(false) },
        )
    }

    /// The names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`].
    pub fn listxattr(&self, node: NodeId) -> Result<Vec<u8>> {
        self.xattrs.list(node)
    }

    /// The unit of data that is efficient to write, in bytes.
    pub fn block_size(&self) -> u32 {
        self.volume.block_size
    }

    /// Fills `out` from `offset` as far as the file reaches; returns the number of bytes.
    ///
    /// # Errors
    /// [`FsErrorKind::IsDirectory`] or
    /// [`FsErrorKind::Invalid`] if it is no regular file; of the
    /// store.
    pub fn read(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.data.read(node, offset, out)
    }

    /// Fills `out` with all of a small file, which stays in the cache of the store.
    pub(crate) fn read_and_keep(&self, node: NodeId, out: &mut [u8]) -> Result<usize> {
        self.data.read_and_keep(node, out)
    }

    /// As [`FileSystem::read_and_keep`]; the store reads ahead if files are read in the order of
    /// keys.
    pub(crate) fn read_ahead_and_keep(&self, node: NodeId, out: &mut [u8]) -> Result<usize> {
        self.data.read_ahead_and_keep(node, out)
    }

    /// As [`FileSystem::read`]; the time of the last read stays as it is.
    ///
    /// # Errors
    /// As for [`FileSystem::read`].
    pub fn read_unnoticed(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.data.read_unnoticed(node, offset, out)
    }

    /// Writes all of `data` at `offset`. `kill_privileges`: clear set-id bits, as a write by an
    /// ordinary user does; capabilities go with every write.
    ///
    /// # Errors
    /// [`FsErrorKind::FileTooLarge`],
    /// [`FsErrorKind::NoSpace`]; as for [`FileSystem::read`].
    pub fn write(&self, node: NodeId, offset: u64, data: &[u8], kill_privileges: bool) -> Result<usize> {
        let written = self.write_limited(node, offset, data, Privileges::after_change(kill_privileges))?;
        self.settled(written, &[node], FileFlags::SYNC)
    }

    /// As [`FileSystem::write`], of what was written before, into a cache or a mapping: privileges
    /// that this takes away were taken then, and the file may have got new ones since. The same
    /// holds for times; see `volume::mtime_hold`.
    ///
    /// # Errors
    /// As for [`FileSystem::write`].
    pub fn write_back(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_limited(node, offset, data, Privileges::Keep)
    }

    fn write_limited(&self, node: NodeId, offset: u64, data: &[u8], privileges: Privileges) -> Result<usize> {
        let call = || self.data.write(node, offset, data, privileges);
        let growth = || match self.data.is_reserved(node, offset, data.len()) {
            // It was charged when it was reserved.
            Ok(true) => Growth::default(),
            _ => {
                let patched = self.data.patched_bytes(node, offset, data.len());
                growth::patched_data(data.len() as u64, self.volume.block_size, patched)
            }
        };
        let is_replaced = || self.data.is_replaced(node, offset, data.len());
        let what = || if is_replaced().unwrap_or(false) { WriteKind::Replace } else { WriteKind::Add };
        self.quotas.write(node, growth, what, call)
    }

    /// Allocates, zeroes or punches a range. `kill_privileges` as for [`FileSystem::write`].
    ///
    /// Allocation reserves room: what is written into the range later finds some.
    ///
    /// # Errors
    /// [`FsErrorKind::NoSpace`],
    /// [`FsErrorKind::FileTooLarge`],
    /// [`FsErrorKind::Invalid`] for an empty range.
    pub fn fallocate(
        &self,
        node: NodeId,
        offset: u64,
        length: u64,
        what: Fallocate,
        kill_privileges: bool,
    ) -> Result<()> {
        let privileges = Privileges::after_change(kill_privileges);
        let call = || self.data.fallocate(node, offset, length, what, privileges);
        match what {
            Fallocate::PunchHole => self.quotas.shrink(node, growth::attributes, call)?,
            Fallocate::Allocate { .. } | Fallocate::ZeroRange { .. } => {
                self.quotas.grow(node, || growth::data(length, self.volume.block_size), call)?;
            }
        }
        self.settled((), &[node], FileFlags::SYNC)
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`FsErrorKind::NoSuchOffset`] at or behind the end, and if
    /// no data follows.
    pub fn lseek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        self.data.lseek(node, offset, what)
    }

    /// The first hole at or after `offset`, and the size of the file. What lies behind the end of
    /// the file is part of a hole, which then ends at `u64::MAX`.
    ///
    /// # Errors
    /// As for reads.
    pub fn next_hole(&self, node: NodeId, offset: u64) -> Result<(Range<u64>, u64)> {
        self.data.next_hole(node, offset)
    }

    /// Copies up to `length` bytes; returns how many. Short copies are normal, 0 is the end of the
    /// source. Where whole blocks go from one file to whole blocks of another, both share the data.
    /// The copy of a large file into an empty one is one clone, whatever its size, also if it comes
    /// in several calls of some MiB each, one right behind the other.
    /// `kill_privileges` as for [`FileSystem::write`], for `to`.
    ///
    /// # Errors
    /// [`FsErrorKind::Invalid`] if the ranges overlap in one file; as
    /// for read and write.
    pub fn copy_file_range(
        &self,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
        kill_privileges: bool,
    ) -> Result<u64> {
        let privileges = Privileges::after_change(kill_privileges);
        let request = CopyRequest { from, from_offset, to, to_offset, length, privileges };
        if self.data.may_clone(&request) {
            match self.quotas.copy(from, to, || self.data.clone_range(&request)) {
                // As much as fits is copied below.
                Err(error) if error.kind() == FsErrorKind::QuotaExceeded => {}
                cloned => {
                    if let Some(copied) = cloned? {
                        return self.settled(copied, &[to], FileFlags::SYNC);
                    }
                }
            }
        }
        let growth = || match self.data.copied_at_most(&request) {
            (bytes, true) => growth::shared_data(bytes, self.volume.block_size),
            (bytes, false) => growth::data(bytes, self.volume.block_size),
        };
        let copied = self.quotas.grow(to, growth, || self.data.copy_range(&request))?;
        self.settled(copied, &[to], FileFlags::SYNC)
    }
}
