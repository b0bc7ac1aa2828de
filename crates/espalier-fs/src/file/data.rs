//! Calls on the data of regular files: read, write, seek.

use crate::data::blocks::{self, DataSource};
use crate::data::data_reader::DataReader;
use crate::data::reservation;
use crate::file::copied_beginnings::CopiedBeginnings;
use crate::inode::access_times::AccessTimes;
use crate::inode::inode_store::InodeStore;
use crate::inode::node::{Node, Orphan, State};
use crate::inode::node_table::NodeTable;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::record::{Inode, later_than};
use crate::model::types::*;
use crate::orphan::detached::DetachedFiles;
use crate::volume::context::VolumeContext;
use crate::volume::mtime_hold::Arrival;
use crate::volume::tree_lock::{TreeGuard, TreeLock};
use espalier_engine::Batch;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Values are replaced in pages: what changes part of one takes all of it, in bytes.
const PAGE_BYTES: u64 = 4 << 10;
/// A write that finds no room for so many bytes at once is not cut into smaller pieces.
const SMALL_PIECE_BYTES: usize = 64 << 10;

pub(crate) struct FileData {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) inodes: Arc<InodeStore>,
    pub(crate) reader: Arc<DataReader>,
    pub(crate) detached: Arc<DetachedFiles>,
    pub(crate) access_times: Arc<AccessTimes>,
    pub(crate) beginnings: CopiedBeginnings,
}

/// What a change of a file's data does to the privileges that the file grants.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Privileges {
    /// Set-id bits and capabilities are cleared.
    Clear,
    /// Capabilities are cleared.
    ClearCapabilities,
    /// All are kept.
    Keep,
}

impl Privileges {
    /// `kill`: clear set-id bits too; they stay if root changes the data. Capabilities are cleared
    /// in any case.
    pub(crate) fn after_change(kill: bool) -> Self {
        if kill { Self::Clear } else { Self::ClearCapabilities }
    }
}

/// A change of a file's data that is ready but for times, privileges, and its entry.
pub(super) struct DataChange<'a> {
    pub(super) inode: Inode,
    pub(super) privileges: Privileges,
    /// Where its data lies, if it is known: for a file with a name that is the key of its entry.
    pub(super) base: Option<&'a [u8]>,
    pub(super) batch: Batch,
}

impl FileData {
    /// Fills `out` from `offset` as far as the file reaches; returns the number of bytes.
    pub(crate) fn read(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        Ok(self.read_and_touch(node, offset, out)?.0)
    }

    /// As [`FileData::read`]; the time of the last read stays.
    pub(crate) fn read_unnoticed(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.read_file(&self.file(node)?, offset, out)
    }

    /// Fills `out` from the beginning of a file, all of which it has room for. What was read stays
    /// in the cache of the store, and nothing is read ahead. Returns the number of bytes.
    pub(crate) fn read_and_keep(&self, node: NodeId, out: &mut [u8]) -> Result<usize> {
        self.read_all(node, |source| blocks::read_and_keep(&self.volume, source, out))
    }

    /// As [`FileData::read_and_keep`], but the store reads ahead if files are read in the order of
    /// keys.
    pub(crate) fn read_ahead_and_keep(&self, node: NodeId, out: &mut [u8]) -> Result<usize> {
        self.read_all(node, |source| blocks::read_ahead_and_keep(&self.volume, source, out))
    }

    fn read_all(&self, node: NodeId, read: impl FnMut(&DataSource) -> Result<usize>) -> Result<usize> {
        let node = self.file(node)?;
        let len = self.reader.read_stable(&node, read)?;
        self.volume.counters.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        self.access_times.touch(&node);
        Ok(len)
    }

    /// As [`FileData::read`]; also whether the time of the last read changed.
    pub(super) fn read_and_touch(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<(usize, bool)> {
        let node = self.file(node)?;
        let len = self.read_file(&node, offset, out)?;
        Ok((len, self.access_times.touch(&node)))
    }

    fn read_file(&self, node: &Arc<Node>, offset: u64, out: &mut [u8]) -> Result<usize> {
        let read = |source: &_| blocks::read(&self.volume, source, offset, out);
        let len = self.reader.read_stable(node, read)?;
        self.volume.counters.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }

    /// Writes all of `data` at `offset`; what room was promised for in pieces, if there is no room
    /// to write it at once.
    pub(crate) fn write(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        privileges: Privileges,
    ) -> Result<usize> {
        let written = self.write_at_once(node, offset, data, privileges);
        let is_full = matches!(&written, Err(error) if error.kind() == FsErrorKind::NoSpace);
        if !is_full || data.len() <= SMALL_PIECE_BYTES || !self.is_promised(node, offset, data.len())? {
            return written;
        }
        let mut done = 0;
        for piece in data.chunks(SMALL_PIECE_BYTES) {
            match self.write_at_once(node, offset + done as u64, piece, privileges) {
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// True if a write goes only where data is already, or room is kept.
    pub(crate) fn is_replaced(&self, node: NodeId, offset: u64, length: usize) -> Result<bool> {
        let end = end_of(offset, length as u64)?;
        Ok(self.is_promised(node, offset, length)? || self.lseek(node, offset, Seek::Hole)? >= end)
    }

    /// Bytes of the pages that a write changes in part, where the file has data already.
    pub(crate) fn patched_bytes(&self, node: NodeId, offset: u64, length: usize) -> u64 {
        let size = self.file(node).map_or(0, |file| file.state().inode.size);
        let (first, end) = (offset / PAGE_BYTES, offset.saturating_add(length as u64));
        let begins = !offset.is_multiple_of(PAGE_BYTES) && offset < size;
        let ends = !end.is_multiple_of(PAGE_BYTES) && end < size;
        let is_one = begins && ends && end / PAGE_BYTES == first;
        (u64::from(begins) + u64::from(ends) - u64::from(is_one)) * PAGE_BYTES
    }

    /// True if blocks of a file are reserved, and a write goes only to these or where data is
    /// already.
    pub(crate) fn is_reserved(&self, node: NodeId, offset: u64, length: usize) -> Result<bool> {
        let reserved = self.file(node)?.state().inode.reserved;
        Ok(reserved && self.is_promised(node, offset, length)?)
    }

    /// True if a write goes only where room is kept or data is already.
    fn is_promised(&self, node: NodeId, offset: u64, length: usize) -> Result<bool> {
        let node = self.file(node)?;
        let tree = self.tree.shared();
        let state = node.state();
        let base = node.data_base(tree.epoch, &state);
        let mut reserved = reservation::ReservationChange::new(&self.volume, &base, &state.inode)?;
        Ok(reserved.write(&state.inode, offset, length as u64)?.is_covered)
    }

    /// Writes all of `data` at `offset` with one batch.
    fn write_at_once(&self, node: NodeId, offset: u64, data: &[u8], privileges: Privileges) -> Result<usize> {
        let node = self.file(node)?;
        self.volume.check_writable()?;
        let end = end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(0);
        }
        let tree = self.tree.shared();
        let mut state = node.state();
        let base = node.data_base(tree.epoch, &state);
        let mut batch = Batch::new();
        let before = &state.inode;
        before.flags.check_mutable()?;
        if before.flags.has(FileFlags::APPEND) && offset < before.size {
            match privileges {
                // The kernel writes whole pages when a program has appended to a file.
                Privileges::Keep => self.check_unchanged(&base, before, offset, data)?,
                Privileges::Clear | Privileges::ClearCapabilities => before.flags.check_unprotected()?,
            }
        }
        let mut inode = before.clone();
        let mut reserved = reservation::ReservationChange::new(&self.volume, &base, before)?;
        let length = data.len() as u64;
        let written = reserved.write(before, offset, length)?;
        if written.is_covered {
            batch.promise();
        }
        if written.gap > 0 {
            let start = offset - written.gap as u64;
            let padded = [&vec![0; written.gap], data].concat();
            blocks::write(&self.volume, &base, &mut inode, start, &padded, &mut batch);
        } else {
            blocks::write(&self.volume, &base, &mut inode, offset, data, &mut batch);
        }
        debug_assert!(inode.size >= end);
        reserved.complete(inode.size, &mut batch);
        debug_assert_eq!(reserved.more(), 0, "a write asks for no room");
        reserved.put(before, &mut inode, &mut batch)?;
        let change = DataChange { inode, privileges, base: Some(&base), batch };
        self.change(&tree, &node, &mut state, change)?;
        self.volume.counters.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data.len())
    }

    /// Refuses to write anything below the end of a file but what is there already.
    fn check_unchanged(&self, base: &Arc<[u8]>, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let length = (inode.size - offset).min(data.len() as u64) as usize;
        let mut present = vec![0; length];
        blocks::read(&self.volume, &DataSource::new(base.clone(), inode), offset, &mut present)?;
        match present == data[..length] {
            true => Ok(()),
            false => fail(FsErrorKind::Permission, "the file is append-only"),
        }
    }

    /// Completes and commits a change of a file's data.
    pub(super) fn change(
        &self,
        tree: &TreeGuard<'_>,
        node: &Node,
        state: &mut State,
        change: DataChange<'_>,
    ) -> Result<()> {
        let DataChange { mut inode, privileges, base, mut batch } = change;
        let arrival = match privileges {
            Privileges::Keep if self.volume.kernel_keeps_times.load(Ordering::Acquire) => {
                Arrival::TimesAreTheKernels
            }
            Privileges::Keep => state.mtime_hold.arrival(self.volume.env.monotonic()),
            Privileges::Clear | Privileges::ClearCapabilities => Arrival::Counts,
        };
        let now = self.volume.now();
        match arrival {
            Arrival::Counts => (inode.mtime, inode.ctime) = (now, later_than(inode.ctime, now)),
            Arrival::Held(_) => inode.set_ctime(now),
            Arrival::TimesAreTheKernels => inode.set_ctime(inode.ctime),
        }
        match privileges {
            Privileges::Clear => {
                self.inodes.kill_privileges(tree, node, state, &mut inode, &mut batch)?;
            }
            Privileges::ClearCapabilities => {
                self.inodes.drop_capabilities(tree, node, state, &mut inode, &mut batch)?;
            }
            Privileges::Keep => {}
        }
        let orphan = self.detached.record(node, state, &mut batch);
        match base {
            Some(base) if state.orphan == Orphan::No => {
                batch.insert(self.volume.metadata(), base, inode.encode());
            }
            _ => self.inodes.put(tree, node, state, &inode, &mut batch),
        }
        let mode = state.inode.mode;
        self.inodes.commit_inode(node, state, inode, batch)?;
        state.data_changed();
        self.detached.recorded(state, orphan);
        if state.inode.mode != mode {
            tree.changed_unasked(node.id);
        }
        match arrival {
            Arrival::Counts => state.mtime_hold.end(),
            Arrival::Held(Some(number)) => {
                state.mtime_hold.begin_flush();
                tree.notice(Notice::OldStores(node.id, number));
            }
            Arrival::Held(None) | Arrival::TimesAreTheKernels => {}
        }
        Ok(())
    }

    /// The next data or hole at or after `offset`.
    pub(crate) fn lseek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        let node = self.file(node)?;
        self.reader.read_stable(&node, |source| {
            if offset >= source.size {
                return fail(FsErrorKind::NoSuchOffset, "the offset is not inside the file");
            }
            if !source.sparse {
                return Ok(if what == Seek::Data { offset } else { source.size });
            }
            blocks::seek(&self.volume, source, offset, what)
        })
    }

    /// The first hole at or after `offset`, and the size of the file.
    pub(crate) fn next_hole(&self, node: NodeId, offset: u64) -> Result<(Range<u64>, u64)> {
        let node = self.file(node)?;
        self.reader.read_stable(&node, |source| {
            let size = source.size;
            if offset >= size || !source.sparse {
                return Ok((offset.max(size)..u64::MAX, size));
            }
            Ok((blocks::next_hole(&self.volume, source, offset)?, size))
        })
    }

    /// The regular file behind an id.
    pub(super) fn file(&self, id: NodeId) -> Result<Arc<Node>> {
        let node = self.nodes.node(id)?;
        match node.kind {
            FileKind::Regular => Ok(node),
            FileKind::Directory => fail(FsErrorKind::IsDirectory, "a directory has no data"),
            _ => fail(FsErrorKind::Invalid, "only regular files have data"),
        }
    }
}

/// The end of a range, if files can reach that far.
pub(super) fn end_of(offset: u64, length: u64) -> Result<u64> {
    match offset.checked_add(length) {
        Some(end) if end <= MAX_FILE_SIZE => Ok(end),
        _ => fail(
            FsErrorKind::FileTooLarge,
            format!("{length} bytes at {offset} reach beyond the largest file"),
        ),
    }
}
