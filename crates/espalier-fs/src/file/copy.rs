//! Copies of ranges from one file to another: as a clone, by sharing of blocks, or of bytes.
//!
//! A copy is one batch. The first of these ways that is possible is taken:
//!
//! 1. *A clone.* All blocks of the source take the place of all blocks of the target as one range
//!    clone, whatever their number; what lies behind the end of the copy is deleted by the same
//!    batch. That is a copy if the target keeps nothing that it had: if it ends within the copy,
//!    and what lies before the copy is known to be the source's.
//! 2. *Shared blocks.* Between offsets at block boundaries the target gets references to values.
//! 3. *Bytes* are read and written.
//!
//! A program may copy a large file in pieces. [`CopiedBeginnings`] knows which target has nothing
//! but what the source has there; then the next piece is a clone of the whole source again, in the
//! place of the one before.
//!
//! [`CopiedBeginnings`]: crate::file::copied_beginnings::CopiedBeginnings

use crate::data::blocks::{self, DataSource};
use crate::file::copied_beginnings::DataVersion;
use crate::file::data::{DataChange, FileData, Privileges, end_of};
use crate::inode::node::{Node, State, States};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::Inode;
use crate::model::types::*;
use espalier_engine::{Batch, KeyRange};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that one call copies at most: with one batch.
const COPY_MAX_BYTES: u64 = 1 << 20;
/// Blocks that one call shares between files at most, one by one.
const SHARE_MAX_BLOCKS: u64 = 4096;
/// Copies of more blocks are clones. A clone seals what was written to the data index just before,
/// and is bound to the tree by itself; the reference to a block weighs about 230 bytes, in the log,
/// in memory and on the way down.
const SINGLE_SHARES_MAX_BLOCKS: u64 = 64;

/// A range of bytes to copy from one file to another.
pub(crate) struct CopyRequest {
    pub(crate) from: NodeId,
    pub(crate) from_offset: u64,
    pub(crate) to: NodeId,
    pub(crate) to_offset: u64,
    pub(crate) length: u64,
    pub(crate) privileges: Privileges,
}

impl FileData {
    /// The most that a copy adds to its target's tree.
    pub(crate) fn copied_at_most(&self, request: &CopyRequest) -> (u64, bool) {
        let size = u64::from(self.volume.block_size);
        let &CopyRequest { from, from_offset, to, to_offset, length, .. } = request;
        let length =
            self.file(from).map_or(0, |from| length.min(from.state().inode.size.saturating_sub(from_offset)));
        let may_share = from != to && from_offset.is_multiple_of(size) && to_offset.is_multiple_of(size);
        let is_plain = |to: &Arc<Node>| {
            let state = to.state();
            !state.inode.reserved && !state.inode.flags.protect()
        };
        match may_share && self.file(to).is_ok_and(|to| is_plain(&to)) {
            true => (length.min(SHARE_MAX_BLOCKS * size), true),
            false => (length.min(COPY_MAX_BYTES), false),
        }
    }

    /// True if a copy may be made as a clone, as far as that is known without locks.
    pub(crate) fn may_clone(&self, request: &CopyRequest) -> bool {
        let size = u64::from(self.volume.block_size);
        let &CopyRequest { from, from_offset, to, to_offset, length, .. } = request;
        let is_aligned = from_offset == to_offset && from_offset.is_multiple_of(size);
        from != to && is_aligned && length > SINGLE_SHARES_MAX_BLOCKS * size
    }

    /// As [`FileData::copy_range`], as one clone; `None` if it cannot be one. A copy that does not
    /// reach the end of its source ends at a block boundary.
    pub(crate) fn clone_range(&self, request: &CopyRequest) -> Result<Option<u64>> {
        let &CopyRequest { from_offset: offset, length, privileges, .. } = request;
        let (Ok(from), Ok(to)) = (self.file(request.from), self.file(request.to)) else { return Ok(None) };
        end_of(offset, length)?;
        self.volume.check_writable()?;
        let size = u64::from(self.volume.block_size);
        let tree = self.tree.shared();
        let mut states = States::lock(&[&from, &to]);
        let source = states.of(&from).inode.clone();
        let source_base = from.data_base(tree.epoch, states.of(&from));
        let mut end = source.size.min(offset + length);
        if end < source.size {
            end -= end % size;
        }
        let source_version = DataVersion::of(&from, states.of(&from));
        let state = states.of(&to);
        let before = &state.inode;
        let replaces_all = before.size <= end && !before.reserved && !before.flags.protect();
        let blocks = end.saturating_sub(offset).div_ceil(size);
        if !replaces_all
            || blocks <= SINGLE_SHARES_MAX_BLOCKS
            || !self.begins_as(source_version, &to, state, offset)
        {
            return Ok(None);
        }
        let base = to.data_base(tree.epoch, state);
        let mut batch = Batch::new();
        for (from, to) in layout::file_prefixes(&source_base, false).zip(layout::file_prefixes(&base, false))
        {
            batch.clone_range(self.volume.data(), &from, &to);
        }
        if end < source.size {
            batch.delete_range(self.volume.data(), layout::blocks_from(&base, end / size));
        }
        let inode = Inode { size: end, sparse: source.sparse, ..before.clone() };
        self.change(&tree, &to, state, DataChange { inode, privileges, base: None, batch })?;
        if end < source.size {
            self.beginnings.add(source_version, DataVersion::of(&to, state));
        }
        if self.access_times.touch_locked(&from, states.of(&from)) {
            tree.changed_unasked(from.id);
        }
        self.volume.counters.bytes_written.fetch_add(end - offset, Ordering::Relaxed);
        Ok(Some(end - offset))
    }

    /// True if all that a target has before `offset` is what the source has there, and it has
    /// nothing else.
    fn begins_as(&self, source: DataVersion, to: &Node, state: &State, offset: u64) -> bool {
        offset == 0
            || (state.inode.size == offset && self.beginnings.take(source, DataVersion::of(to, state)))
    }

    /// Copies up to `length` bytes by sharing blocks, or bytes; returns how many.
    pub(crate) fn copy_range(&self, request: &CopyRequest) -> Result<u64> {
        let &CopyRequest { from, from_offset, to, to_offset, length, privileges } = request;
        let (from_end, to_end) = (end_of(from_offset, length)?, end_of(to_offset, length)?);
        if from == to && from_offset < to_end && to_offset < from_end {
            return fail(FsErrorKind::Invalid, "the ranges overlap");
        }
        let shared = self.share_range(request)?;
        if shared > 0 || length == 0 {
            return Ok(shared);
        }
        let mut buffer = vec![0; length.min(COPY_MAX_BYTES) as usize];
        let (got, is_touched) = self.read_and_touch(from, from_offset, &mut buffer)?;
        if is_touched {
            self.tree.shared().changed_unasked(from);
        }
        match got {
            0 => Ok(0),
            got => Ok(self.write(to, to_offset, &buffer[..got], privileges)? as u64),
        }
    }

    /// As [`FileData::copy_range`], without copying whole blocks: the target's blocks get the
    /// values that the source's have. Returns how much there was: whole blocks, and the rest of one
    /// behind them.
    fn share_range(&self, request: &CopyRequest) -> Result<u64> {
        let &CopyRequest { from_offset, to_offset, length, privileges, .. } = request;
        // Reading and writing the ordinary way reports errors of either file in the right order.
        let (Ok(from), Ok(to)) = (self.file(request.from), self.file(request.to)) else { return Ok(0) };
        let size = u64::from(self.volume.block_size);
        if from.id == to.id || !from_offset.is_multiple_of(size) || !to_offset.is_multiple_of(size) {
            return Ok(0);
        }
        self.volume.check_writable()?;
        let tree = self.tree.shared();
        let mut states = States::lock(&[&from, &to]);
        let inode = states.of(&from).inode.clone();
        let end = inode.size.min(from_offset + length.min(SHARE_MAX_BLOCKS * size));
        let base = from.data_base(tree.epoch, states.of(&from));
        let source = DataSource::new(base, &inode);
        let state = states.of(&to);
        let mut inode = state.inode.clone();
        if inode.reserved || inode.flags.protect() {
            // Writing the ordinary way asks whether it may. What is shared would have to be kept
            // room for when it is overwritten.
            return Ok(0);
        }
        let mut length = end.saturating_sub(from_offset);
        // A short block may only be the target's last.
        if end < source.size || to_offset + length < inode.size {
            length -= length % size;
        }
        if length == 0 {
            return Ok(0);
        }
        let base = to.data_base(tree.epoch, state);
        let mut batch = Batch::new();
        let blocks = (from_offset / size, to_offset / size, length.div_ceil(size));
        self.share_blocks(&source, (&base, &inode), blocks, &mut batch)?;
        inode.sparse |= source.sparse || to_offset / size > blocks::block_count(&self.volume, inode.size);
        inode.size = inode.size.max(to_offset + length);
        // The rest of a block is copied with the same batch; but not of a large copy that goes on
        // behind it, whose next piece would not begin at a block boundary.
        let is_piece = end < source.size && length > SINGLE_SHARES_MAX_BLOCKS * size;
        let rest = if is_piece { 0 } else { end - from_offset - length };
        let mut rest = vec![0; rest as usize];
        blocks::read(&self.volume, &source, from_offset + length, &mut rest)?;
        blocks::write(&self.volume, &base, &mut inode, to_offset + length, &rest, &mut batch);
        length += rest.len() as u64;
        let change = DataChange { inode, privileges, base: None, batch };
        self.change(&tree, &to, states.of(&to), change)?;
        if self.access_times.touch_locked(&from, states.of(&from)) {
            tree.changed_unasked(from.id);
        }
        self.volume.counters.bytes_written.fetch_add(length, Ordering::Relaxed);
        Ok(length)
    }

    /// Adds to a batch that `count` blocks from block `target` on of the file at `base` are those
    /// of `source` from block `first` on.
    fn share_blocks(
        &self,
        source: &DataSource,
        (base, inode): (&[u8], &Inode),
        (first, target, count): (u64, u64, u64),
        batch: &mut Batch,
    ) -> Result<()> {
        let range = |base: &[u8], first: u64| {
            KeyRange::new(layout::block_key(base, first), layout::block_key(base, first + count))
        };
        if source.sparse && inode.size > target * u64::from(self.volume.block_size) {
            batch.delete_range(self.volume.data(), range(base, target));
        }
        let mut cursor = self.volume.store.cursor(self.volume.data(), range(&source.base, first))?;
        while let Some(entry) = cursor.next()? {
            let Some(block) = layout::block_number(&entry.key[source.base.len()..]) else { continue };
            batch.insert(self.volume.data(), &layout::block_key(base, block - first + target), entry.value);
        }
        Ok(())
    }
}
