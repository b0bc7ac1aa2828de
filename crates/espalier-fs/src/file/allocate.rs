//! Allocation in files: room is reserved, ranges are zeroed, holes are punched.

use crate::data::blocks;
use crate::data::reservation::{self, KeptRoom};
use crate::file::data::{DataChange, FileData, Privileges, end_of};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::record::Inode;
use crate::model::types::*;
use espalier_engine::Batch;
use std::ops::Range;

/// A range of bytes in which blocks are to be there or reserved, whatever they hold.
struct Allocation {
    bytes: Range<u64>,
    /// The file does not get longer.
    keep_size: bool,
    /// Blocks of which it is known that they have no data.
    absent: Range<u64>,
}

impl FileData {
    /// Allocates, zeroes or punches a range.
    pub(crate) fn fallocate(
        &self,
        node: NodeId,
        offset: u64,
        length: u64,
        what: Fallocate,
        privileges: Privileges,
    ) -> Result<()> {
        let node = self.file(node)?;
        self.volume.check_writable()?;
        let end = end_of(offset, length)?;
        if length == 0 {
            return fail(FsErrorKind::Invalid, "an empty range cannot be allocated");
        }
        let tree = self.tree.shared();
        let mut state = node.state();
        state.inode.flags.check_mutable()?;
        if !matches!(what, Fallocate::Allocate { .. }) {
            state.inode.flags.check_unprotected()?;
        }
        let base = node.data_base(tree.epoch, &state);
        let mut change = reservation::ReservationChange::new(&self.volume, &base, &state.inode)?;
        let mut inode = state.inode.clone();
        let mut batch = Batch::new();
        let covered = self.covered_blocks(&inode, offset..end);
        if !matches!(what, Fallocate::Allocate { .. }) {
            blocks::punch(&self.volume, &base, &mut inode, offset, end, &mut batch);
            change.give_up(&state.inode, covered.clone())?;
        }
        match what {
            Fallocate::Allocate { keep_size } => {
                let allocation = Allocation { bytes: offset..end, keep_size, absent: 0..0 };
                self.allocate(&mut change, (&base, &state.inode), &allocation, &mut inode, &mut batch)?;
            }
            Fallocate::ZeroRange { keep_size } => {
                let allocation = Allocation { bytes: offset..end, keep_size, absent: covered };
                self.allocate(&mut change, (&base, &state.inode), &allocation, &mut inode, &mut batch)?;
            }
            Fallocate::PunchHole => {
                let punches = covered.start < covered.end && covered.start * self.block_size() < inode.size;
                change.set_dense(change.is_dense(&state.inode) && !punches);
            }
        }
        let room = KeptRoom::ask(&self.volume, change.more())?;
        change.put(&state.inode, &mut inode, &mut batch)?;
        self.change(&tree, &node, &mut state, DataChange { inode, privileges, base: None, batch })?;
        room.used();
        Ok(())
    }

    fn block_size(&self) -> u64 {
        u64::from(self.volume.block_size)
    }

    /// The blocks of which a range leaves nothing.
    fn covered_blocks(&self, inode: &Inode, bytes: Range<u64>) -> Range<u64> {
        let size = self.block_size();
        let end = bytes.end / size;
        // The last block of the file ends with it.
        let end = if bytes.end >= inode.size { end.max(inode.size.div_ceil(size)) } else { end };
        bytes.start.div_ceil(size)..end
    }

    /// Adds to a change of the file at `base`, which has `before`, that the blocks of a range are
    /// there or reserved.
    fn allocate(
        &self,
        change: &mut reservation::ReservationChange<'_>,
        (base, before): (&[u8], &Inode),
        allocation: &Allocation,
        inode: &mut Inode,
        batch: &mut Batch,
    ) -> Result<()> {
        let Allocation { bytes, keep_size, absent } = allocation;
        let block_size = self.block_size();
        let size = if *keep_size { before.size } else { before.size.max(bytes.end) };
        let range = bytes.start / block_size..bytes.end.div_ceil(block_size);
        let is_dense = change.is_dense(before);
        let parts = match absent.start < absent.end {
            true => [range.start..absent.start, absent.end..range.end],
            false => [range.clone(), 0..0],
        };
        for part in parts.into_iter().filter(|part| part.start < part.end) {
            change.reserve(before, part)?;
        }
        change.reserve_absent(absent.clone());
        change.reserve_part(bytes.end);
        let end = before.size.div_ceil(block_size);
        let covers_all = range.start == 0 && range.end * block_size >= size;
        change.set_dense(covers_all || (is_dense && (size == before.size || range.start <= end)));
        if size > inode.size {
            blocks::resize(&self.volume, || base.into(), inode, size, batch);
        }
        Ok(())
    }
}
