//! File data: blocks, holes, sizes.
//!
//! A file is cut into blocks of the volume's block size, one key each. An absent block and what
//! lies behind the end of a short one read as zeros. No block reaches beyond the size of the file.
//! A write never reads: what it covers of the existing data is inserted, the rest is patched.
//!
//! While a file is not marked sparse, every block below its size is present (blocks may be short
//! only where the file ends, or ended).

use crate::file_system::FileSystem;
use crate::inode::mtime_hold::Arrival;
use crate::inode::node::{Node, Orphan, State, States};
use crate::inode::tree_lock::TreeGuard;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::merge;
use crate::model::record::{Inode, later_than};
use crate::model::types::*;
use bytes::Bytes;
use espalier_engine::{Batch, Slice};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Reads without lock before one with it.
const ATTEMPTS: u32 = 4;
/// The most that one call copies, in bytes: with one batch.
const COPY_LIMIT: u64 = 1 << 20;
/// So many blocks are deleted one by one: a range costs the tree more than a few keys, and those of
/// small files vanish in the range of their directory when that is removed.
pub(crate) const FEW_BLOCKS: u64 = 8;
/// Files with more blocks move and are cloned as ranges, not block by block: what names a block of
/// a large value weighs about 230 bytes, in the log, in memory and on the way down, and cutting a
/// range out of the tree some headers.
const MANY_BLOCKS: u64 = 64;
/// Blocks that one call shares between files at most.
const SHARED_BLOCKS: u64 = 4096;

/// What becomes of what a file grants who runs it when its data changes.
#[derive(Debug, Clone, Copy)]
enum Privileges {
    /// Set-id bits and capabilities go.
    Go,
    /// Capabilities go.
    CapabilitiesGo,
    /// Nothing does.
    Stay,
}

impl Privileges {
    /// `kill` set-id bits, too: they stay if root changes the data. Capabilities go in any case.
    fn going(kill: bool) -> Self {
        if kill { Self::Go } else { Self::CapabilitiesGo }
    }
}

/// Units of 512 bytes for so many bytes.
pub(crate) fn units(bytes: u64) -> u64 {
    bytes.div_ceil(512)
}

/// Where the data of a file lies, for a read without lock.
pub(crate) struct Source {
    base: Arc<[u8]>,
    size: u64,
    sparse: bool,
}

/// One block's share of a byte range.
struct Piece {
    block: u64,
    /// Offset in the block, and length.
    start: usize,
    len: usize,
}

/// Cuts `[offset, offset + len)` at block boundaries.
fn pieces(offset: u64, len: usize, block_size: u32) -> impl Iterator<Item = Piece> {
    let size = u64::from(block_size);
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = at % size;
        let len = (size - start).min(end - at);
        let piece = Piece { block: at / size, start: start as usize, len: len as usize };
        at += len;
        (len > 0).then_some(piece)
    })
}

impl FileSystem {
    /// True if there is one reference to the node: if it is the caller's, nobody else knows the
    /// node.
    pub fn is_held_once(&self, node: NodeId) -> bool {
        self.nodes.references(node) == 1
    }

    /// Fills `out` from `offset` as far as the file reaches; returns the number of bytes.
    ///
    /// # Errors
    /// [`FsErrorKind::IsDirectory`] or [`FsErrorKind::Invalid`] if it is no regular file; of the
    /// store.
    pub fn read(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        Ok(self.read_and_touch(node, offset, out)?.0)
    }

    /// As [`FileSystem::read`]; also whether the time of the last read changed.
    fn read_and_touch(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<(usize, bool)> {
        let node = self.file(node)?;
        let len = self.stable(&node, |source| self.read_from(source, offset, out))?;
        let is_touched = self.touch(&node);
        self.volume.counters.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        Ok((len, is_touched))
    }

    fn read_from(&self, source: &Source, offset: u64, out: &mut [u8]) -> Result<usize> {
        let len = source.size.saturating_sub(offset).min(out.len() as u64) as usize;
        let pieces: Vec<_> = pieces(offset, len, self.volume.block_size).collect();
        let keys: Vec<_> = pieces.iter().map(|piece| layout::block_key(&source.base, piece.block)).collect();
        let slice = |(piece, key): (&Piece, _)| Slice { key, offset: piece.start, len: piece.len };
        let slices: Vec<_> = pieces.iter().zip(keys.iter().map(|key| &**key)).map(slice).collect();
        let stored = self.volume.store.get_slices(self.volume.data(), &slices, &mut out[..len])?;
        let mut done = 0;
        for (piece, stored) in pieces.iter().zip(stored) {
            let part = &mut out[done..done + piece.len];
            part[stored.unwrap_or(0).saturating_sub(piece.start).min(piece.len)..].fill(0);
            done += piece.len;
        }
        Ok(len)
    }

    /// Writes all of `data` at `offset`. `kill_privileges`: clear set-id bits, as a write by an
    /// ordinary user does; capabilities go with every write.
    ///
    /// # Errors
    /// [`FsErrorKind::FileTooLarge`], [`FsErrorKind::NoSpace`]; as for [`FileSystem::read`].
    pub fn write(&self, node: NodeId, offset: u64, data: &[u8], kill_privileges: bool) -> Result<usize> {
        self.write_and(node, offset, data, Privileges::going(kill_privileges))
    }

    /// As [`FileSystem::write`], of what was written before, into a cache or a mapping: privileges
    /// that this takes away were taken then, and the file may have got new ones since. The same
    /// holds for times; see `inode::mtime_hold`.
    ///
    /// # Errors
    /// As for [`FileSystem::write`].
    pub fn write_back(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_and(node, offset, data, Privileges::Stay)
    }

    fn write_and(&self, node: NodeId, offset: u64, data: &[u8], privileges: Privileges) -> Result<usize> {
        let node = self.file(node)?;
        self.volume.check_writable()?;
        let end = end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(0);
        }
        let tree = self.tree.shared();
        let mut state = node.state();
        let base = self.data_base(&tree, &node, &state);
        let mut batch = Batch::new();
        let mut inode = state.inode.clone();
        self.put_data(&base, &mut inode, offset, data, &mut batch);
        debug_assert!(inode.size >= end);
        self.change_data(&tree, &node, &mut state, inode, privileges, Some(&base), batch)?;
        self.volume.counters.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data.len())
    }

    /// Adds to a batch that the file at `base` has `data` at `offset`.
    fn put_data(&self, base: &[u8], inode: &mut Inode, offset: u64, data: &[u8], batch: &mut Batch) {
        let mut done = 0;
        for piece in pieces(offset, data.len(), self.volume.block_size) {
            let bytes = Bytes::copy_from_slice(&data[done..done + piece.len]);
            done += piece.len;
            let key = layout::block_key(base, piece.block);
            let first = piece.block * u64::from(self.volume.block_size);
            let existing = inode.size.saturating_sub(first).min(u64::from(self.volume.block_size));
            if piece.start == 0 && piece.len as u64 >= existing {
                batch.insert(self.volume.data(), &key, bytes);
            } else {
                batch.patch(self.volume.data(), &key, piece.start as u32, bytes);
            }
        }
        inode.sparse |= offset / u64::from(self.volume.block_size) > self.block_count(inode.size);
        inode.size = inode.size.max(offset + data.len() as u64);
    }

    /// Completes a change of a file's data: times, privileges, entry, commit. `base`: where its
    /// data lies, if the caller knows, which for a file with a name is the key of its entry.
    #[allow(clippy::too_many_arguments, reason = "the last step of three operations")]
    fn change_data(
        &self,
        tree: &TreeGuard<'_>,
        node: &Node,
        state: &mut State,
        mut inode: Inode,
        privileges: Privileges,
        base: Option<&[u8]>,
        mut batch: Batch,
    ) -> Result<()> {
        let arrival = match privileges {
            Privileges::Stay if self.volume.kernel_keeps_times.load(Ordering::Acquire) => {
                Arrival::TimesAreTheKernels
            }
            Privileges::Stay => state.mtime_hold.arrival(self.volume.env.monotonic()),
            Privileges::Go | Privileges::CapabilitiesGo => Arrival::Counts,
        };
        let now = self.volume.now();
        match arrival {
            Arrival::Counts => (inode.mtime, inode.ctime) = (now, later_than(inode.ctime, now)),
            Arrival::Held(_) => inode.set_ctime(now),
            Arrival::TimesAreTheKernels => inode.set_ctime(inode.ctime),
        }
        match privileges {
            Privileges::Go => self.kill_privileges(tree, node, state, &mut inode, &mut batch)?,
            Privileges::CapabilitiesGo => {
                self.drop_capabilities(tree, node, state, &mut inode, &mut batch)?;
            }
            Privileges::Stay => {}
        }
        let orphan = self.record_orphan(node, state, &mut batch);
        match base {
            Some(base) if state.orphan == Orphan::No => {
                batch.insert(self.volume.metadata(), base, inode.encode())
            }
            _ => self.put(tree, node, state, &inode, &mut batch),
        }
        let mode = state.inode.mode;
        self.store_inode(node, state, inode, true, batch)?;
        if let Some(orphan) = orphan {
            state.orphan = orphan;
            self.volume.counters.orphans.fetch_add(1, Ordering::Relaxed);
        }
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

    /// Write-back of `node` sets the time of modification again: the kernel has written back the
    /// pages that it had when it got [`Notice::OldStores`] with this number.
    pub fn end_mtime_hold(&self, node: NodeId, number: u64) {
        if let Some(node) = self.nodes.get(node) {
            node.state().mtime_hold.end_flush(number);
        }
    }

    /// Number of blocks of a file of `size` bytes.
    pub(crate) fn block_count(&self, size: u64) -> u64 {
        size.div_ceil(u64::from(self.volume.block_size))
    }

    /// True if a file has so many blocks that it moves and is cloned as a range.
    pub(crate) fn is_large(&self, inode: &Inode) -> bool {
        inode.kind == FileKind::Regular && self.block_count(inode.size) > MANY_BLOCKS
    }

    /// Adds to a batch that the blocks from `first` on of a file of `size` bytes go.
    fn delete_blocks(&self, base: &[u8], first: u64, size: u64, batch: &mut Batch) {
        let end = self.block_count(size);
        if end.saturating_sub(first) > FEW_BLOCKS {
            batch.delete_range(self.volume.data(), layout::blocks_from(base, first));
        } else {
            (first..end).for_each(|block| batch.delete(self.volume.data(), &layout::block_key(base, block)));
        }
    }

    /// Adds to a batch that everything goes that a file has in the data index at `base`.
    pub(crate) fn delete_data(&self, base: &[u8], inode: &Inode, batch: &mut Batch) {
        if inode.kind == FileKind::Regular && !inode.has_large_xattrs() {
            self.delete_blocks(base, 0, inode.size, batch);
        } else {
            batch.delete_range(self.volume.data(), layout::file_range(base));
        }
    }

    /// Adds to a batch that the file gets `size` bytes.
    pub(crate) fn resize(
        &self,
        tree: &TreeGuard<'_>,
        node: &Node,
        state: &State,
        inode: &mut Inode,
        size: u64,
        batch: &mut Batch,
    ) {
        if size < inode.size {
            let base = self.data_base(tree, node, state);
            self.delete_blocks(&base, self.block_count(size), inode.size, batch);
            let rest = (size % u64::from(self.volume.block_size)) as u32;
            if rest != 0 {
                let key = layout::block_key(&base, size / u64::from(self.volume.block_size));
                batch.update(self.volume.data(), &key, merge::TRUNCATE, rest.to_le_bytes().to_vec());
            }
        }
        inode.sparse = self.is_sparse_with(size, inode.size, inode.sparse);
        inode.size = size;
    }

    fn is_sparse_with(&self, size: u64, old: u64, was_sparse: bool) -> bool {
        size > 0 && (was_sparse || self.block_count(size) > self.block_count(old))
    }

    /// Allocates, zeroes or punches a range. `kill_privileges` as for [`FileSystem::write`].
    ///
    /// Allocation is a check that there is room now; a store that never overwrites cannot set
    /// blocks aside.
    ///
    /// # Errors
    /// [`FsErrorKind::NoSpace`], [`FsErrorKind::FileTooLarge`], [`FsErrorKind::Invalid`] for an
    /// empty range.
    pub fn fallocate(
        &self,
        node: NodeId,
        offset: u64,
        length: u64,
        what: Fallocate,
        kill_privileges: bool,
    ) -> Result<()> {
        let node = self.file(node)?;
        self.volume.check_writable()?;
        let end = end_of(offset, length)?;
        if length == 0 {
            return fail(FsErrorKind::Invalid, "an empty range cannot be allocated");
        }
        let tree = self.tree.shared();
        let mut state = node.state();
        let mut inode = state.inode.clone();
        let mut batch = Batch::new();
        let keep_size = match what {
            Fallocate::Allocate { keep_size } => {
                let grown = end.saturating_sub(inode.size.max(offset));
                if grown > self.volume.space().free {
                    return fail(FsErrorKind::NoSpace, format!("there is no room for {grown} bytes"));
                }
                keep_size
            }
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => {
                let base = self.data_base(&tree, &node, &state);
                self.punch(&base, &mut inode, offset, end, &mut batch);
                !matches!(what, Fallocate::ZeroRange { keep_size: false })
            }
        };
        if !keep_size && end > inode.size {
            self.resize(&tree, &node, &state, &mut inode, end, &mut batch);
        }
        self.change_data(&tree, &node, &mut state, inode, Privileges::going(kill_privileges), None, batch)
    }

    /// Adds to a batch that `[offset, end)` reads as zeros, with holes where whole blocks are
    /// covered.
    fn punch(&self, base: &[u8], inode: &mut Inode, offset: u64, end: u64, batch: &mut Batch) {
        let end = end.min(inode.size);
        if offset >= end {
            return;
        }
        let size = u64::from(self.volume.block_size);
        let zero = |batch: &mut Batch, from: u64, to: u64| {
            let argument = merge::zero_argument((from % size) as u32, (to - from) as u32);
            batch.update(self.volume.data(), &layout::block_key(base, from / size), merge::ZERO, argument);
        };
        let first = offset.div_ceil(size);
        // The last block of the file is covered if the range reaches its end.
        let last = if end == inode.size { self.block_count(end) } else { end / size };
        if first < last {
            let (from, to) = (layout::block_key(base, first), layout::block_key(base, last));
            batch.delete_range(self.volume.data(), espalier_engine::KeyRange::new(from, to));
            inode.sparse = true;
        }
        if !offset.is_multiple_of(size) {
            zero(batch, offset, end.min(first * size));
        }
        if end > last * size && last >= first {
            zero(batch, last * size, end);
        }
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`FsErrorKind::NoSuchOffset`] at or behind the end, and if no data follows.
    pub fn lseek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        let node = self.file(node)?;
        self.stable(&node, |source| {
            if offset >= source.size {
                return fail(FsErrorKind::NoSuchOffset, "the offset is not inside the file");
            }
            if !source.sparse {
                return Ok(if what == Seek::Data { offset } else { source.size });
            }
            self.seek_blocks(source, offset, what)
        })
    }

    fn seek_blocks(&self, source: &Source, offset: u64, what: Seek) -> Result<u64> {
        let size = u64::from(self.volume.block_size);
        let mut block = offset / size;
        let mut cursor =
            self.volume.store.cursor(self.volume.data(), layout::blocks_from(&source.base, block))?;
        while let Some(entry) = cursor.next()? {
            let found = layout::block_number(&entry.key[source.base.len()..]).unwrap_or(u64::MAX);
            match what {
                Seek::Data if found.saturating_mul(size) >= source.size => break,
                Seek::Data => return Ok(offset.max(found * size)),
                Seek::Hole if found > block => break,
                Seek::Hole => block += 1,
            }
        }
        match what {
            Seek::Data => fail(FsErrorKind::NoSuchOffset, "no data follows"),
            Seek::Hole => Ok(offset.max(block.saturating_mul(size)).min(source.size)),
        }
    }

    /// Copies up to `length` bytes; returns how many. Short copies are normal, 0 is the end of the
    /// source. Where whole blocks go from one file to whole blocks of another, both share the data.
    /// `kill_privileges` as for [`FileSystem::write`], for `to`.
    ///
    /// # Errors
    /// [`FsErrorKind::Invalid`] if the ranges overlap in one file; as for read and write.
    pub fn copy_file_range(
        &self,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
        kill_privileges: bool,
    ) -> Result<u64> {
        let (from_end, to_end) = (end_of(from_offset, length)?, end_of(to_offset, length)?);
        if from == to && from_offset < to_end && to_offset < from_end {
            return fail(FsErrorKind::Invalid, "the ranges overlap");
        }
        let shared = self.share_range(from, from_offset, to, to_offset, length, kill_privileges)?;
        if shared > 0 || length == 0 {
            return Ok(shared);
        }
        let mut buffer = vec![0; length.min(COPY_LIMIT) as usize];
        let (got, is_touched) = self.read_and_touch(from, from_offset, &mut buffer)?;
        if is_touched {
            self.tree.shared().changed_unasked(from);
        }
        match got {
            0 => Ok(0),
            got => Ok(self.write(to, to_offset, &buffer[..got], kill_privileges)? as u64),
        }
    }

    /// As [`FileSystem::copy_file_range`], without touching the data: the target's blocks get the
    /// values that the source's have. Returns how much there was: whole blocks, and what was left
    /// of one behind them.
    fn share_range(
        &self,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
        kill_privileges: bool,
    ) -> Result<u64> {
        // What is wrong with one of them the ordinary way finds, and in what order.
        let (Ok(from), Ok(to)) = (self.file(from), self.file(to)) else { return Ok(0) };
        let size = u64::from(self.volume.block_size);
        if from.id == to.id || !from_offset.is_multiple_of(size) || !to_offset.is_multiple_of(size) {
            return Ok(0);
        }
        self.volume.check_writable()?;
        let tree = self.tree.shared();
        let mut states = States::lock(&[&from, &to]);
        let source = states.of(&from).inode.clone();
        let end = source.size.min(from_offset + length.min(SHARED_BLOCKS * size));
        let from_base = self.data_base(&tree, &from, states.of(&from));
        let state = states.of(&to);
        let mut inode = state.inode.clone();
        let mut length = end.saturating_sub(from_offset);
        // A short block may only be the target's last.
        if end < source.size || to_offset + length < inode.size {
            length -= length % size;
        }
        if length == 0 {
            return Ok(0);
        }
        let to_base = self.data_base(&tree, &to, state);
        let (first, blocks, target) = (from_offset / size, length.div_ceil(size), to_offset / size);
        let mut batch = Batch::new();
        if source.sparse && inode.size > to_offset {
            let range = (layout::block_key(&to_base, target), layout::block_key(&to_base, target + blocks));
            batch.delete_range(self.volume.data(), espalier_engine::KeyRange::new(range.0, range.1));
        }
        let range = (layout::block_key(&from_base, first), layout::block_key(&from_base, first + blocks));
        let range = espalier_engine::KeyRange::new(range.0, range.1);
        let mut cursor = self.volume.store.cursor(self.volume.data(), range)?;
        while let Some(entry) = cursor.next()? {
            let Some(block) = layout::block_number(&entry.key[from_base.len()..]) else { continue };
            batch.insert(
                self.volume.data(),
                &layout::block_key(&to_base, block - first + target),
                entry.value,
            );
        }
        inode.sparse |= source.sparse || target > self.block_count(inode.size);
        inode.size = inode.size.max(to_offset + length);
        // What is left of a block is copied with the same batch.
        let mut rest = vec![0; (end - from_offset - length) as usize];
        let from_source = Source { base: from_base, size: source.size, sparse: source.sparse };
        self.read_from(&from_source, from_offset + length, &mut rest)?;
        self.put_data(&to_base, &mut inode, to_offset + length, &rest, &mut batch);
        length += rest.len() as u64;
        self.change_data(&tree, &to, states.of(&to), inode, Privileges::going(kill_privileges), None, batch)?;
        if self.touch_locked(&from, states.of(&from)) {
            tree.changed_unasked(from.id);
        }
        self.volume.counters.bytes_written.fetch_add(length, Ordering::Relaxed);
        Ok(length)
    }

    /// Units of 512 bytes that the blocks of a sparse file take.
    pub(crate) fn count_units(&self, node: &Arc<Node>) -> Result<u64> {
        self.stable(node, |source| self.count_units_below(&source.base, source.size))
    }

    /// The units that the blocks of a sparse file take after its attributes were changed, if they
    /// have to be counted.
    pub(crate) fn count_for(&self, node: &Arc<Node>, set: &SetAttr) -> Result<Option<u64>> {
        let is_known = self.known_attr(node, &node.state()).1;
        match set.size {
            None if is_known => Ok(None),
            None => self.count_units(node).map(Some),
            Some(_) if node.kind != FileKind::Regular => Ok(None),
            Some(size) => {
                self.stable(node, |source| match self.is_sparse_with(size, source.size, source.sparse) {
                    true => self.count_units_below(&source.base, size).map(Some),
                    false => Ok(None),
                })
            }
        }
    }

    /// The same of what the file at `base` has within its first `size` bytes.
    pub(crate) fn count_units_below(&self, base: &[u8], size: u64) -> Result<u64> {
        let mut cursor = self.volume.store.cursor(self.volume.data(), layout::blocks_from(base, 0))?;
        let mut sum = 0;
        while let Some(entry) = cursor.next()? {
            let block = layout::block_number(&entry.key[base.len()..]).unwrap_or(u64::MAX);
            let rest = size.saturating_sub(block.saturating_mul(u64::from(self.volume.block_size)));
            if rest == 0 {
                break;
            }
            sum += units(rest.min(entry.value.len() as u64));
        }
        Ok(sum)
    }

    /// Runs a read of a file's data without lock, again if its keys changed meanwhile.
    pub(crate) fn stable<T>(
        &self,
        node: &Arc<Node>,
        mut read: impl FnMut(&Source) -> Result<T>,
    ) -> Result<T> {
        let source = |tree: &TreeGuard<'_>, state: &State| Source {
            base: self.data_base(tree, node, state),
            size: state.inode.size,
            sparse: state.inode.sparse,
        };
        for _ in 0..ATTEMPTS {
            let (found, version, epoch) = {
                let tree = self.tree.shared();
                let state = node.state();
                (source(&tree, &state), node.version.load(Ordering::Acquire), tree.epoch)
            };
            let result = read(&found);
            if node.version.load(Ordering::Acquire) == version && self.tree.epoch() == epoch {
                return result;
            }
        }
        let tree = self.tree.shared();
        let state = node.state();
        read(&source(&tree, &state))
    }

    /// The regular file behind an id.
    fn file(&self, id: NodeId) -> Result<Arc<Node>> {
        let node = self.node(id)?;
        match node.kind {
            FileKind::Regular => Ok(node),
            FileKind::Directory => fail(FsErrorKind::IsDirectory, "a directory has no data"),
            _ => fail(FsErrorKind::Invalid, "only regular files have data"),
        }
    }
}

/// The end of a range, if files can reach that far.
fn end_of(offset: u64, length: u64) -> Result<u64> {
    match offset.checked_add(length) {
        Some(end) if end <= MAX_FILE_SIZE => Ok(end),
        _ => fail(
            FsErrorKind::FileTooLarge,
            format!("{length} bytes at {offset} reach beyond the largest file"),
        ),
    }
}
