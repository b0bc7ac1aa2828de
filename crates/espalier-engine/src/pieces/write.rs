//! Writing: what belongs together gets neighbouring blocks and one call to the device.

use super::frame::Encoded;
use super::values::{self, MAX_VALUE_PART, Unstored, ValuePart};
use super::{Locator, Pieces};
use crate::piece::PieceHandle;
use crate::types::Location;
use crate::value::LargeValue;
use crate::{ErrorKind, Extent, PieceId, Result};
use std::sync::Arc;

/// Blocks that were allocated and are given back unless they are used.
struct Row<'a> {
    locator: &'a dyn Locator,
    extents: Vec<Extent>,
}

impl Drop for Row<'_> {
    fn drop(&mut self) {
        for extent in self.extents.drain(..) {
            self.locator.give_back(extent);
        }
    }
}

impl<'a> Row<'a> {
    /// One extent for each of `sizes` (in blocks): in one run, or in as few as can be.
    fn allocate(locator: &'a dyn Locator, sizes: &[u32], near: Option<u64>) -> Result<Self> {
        let mut row = Self { locator, extents: Vec::with_capacity(sizes.len()) };
        row.add(sizes, near)?;
        Ok(row)
    }

    fn add(&mut self, sizes: &[u32], near: Option<u64>) -> Result<()> {
        let total: u64 = sizes.iter().map(|s| u64::from(*s)).sum();
        let whole = match u32::try_from(total) {
            Ok(0) => return Ok(()),
            Ok(total) => Some(self.locator.allocate(total, near)),
            Err(_) => None,
        };
        match whole {
            Some(Ok(run)) => {
                let mut start = run.start;
                for &blocks in sizes {
                    self.extents.push(Extent { start, blocks });
                    start += u64::from(blocks);
                }
                Ok(())
            }
            Some(Err(error)) if error.kind() != ErrorKind::NoSpace || sizes.len() == 1 => Err(error),
            _ => {
                let (left, right) = sizes.split_at(sizes.len() / 2);
                self.add(left, near)?;
                let near = self.extents.last().map(|e| e.end()).or(near);
                self.add(right, near)
            }
        }
    }

    /// Neighbours among the extents, as runs of indexes.
    fn runs(&self) -> Vec<std::ops::Range<usize>> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for (i, extent) in self.extents.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if self.extents[run.end - 1].end() == extent.start => run.end = i + 1,
                _ => runs.push(i..i + 1),
            }
        }
        runs
    }
}

impl Pieces {
    /// Writes `group` to neighbouring blocks (as far as there are such), preferably at block `near`
    /// or behind it, in the given order. The handles are in that order too.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`], and what the device says. No piece of the group is registered then.
    pub(crate) fn write_group(
        &self,
        group: Vec<Encoded>,
        near: Option<u64>,
    ) -> Result<Vec<Arc<PieceHandle>>> {
        let sizes: Vec<u32> = group.iter().map(Encoded::blocks).collect();
        let mut row = Row::allocate(&*self.locator, &sizes, near)?;
        for run in row.runs() {
            let buffers: Vec<&[u8]> = group[run.clone()].iter().map(Encoded::bytes).collect();
            self.write_run(row.extents[run.start], row.extents[run.end - 1], &buffers)?;
        }
        let placed = group.into_iter().zip(row.extents.drain(..));
        let pieces = placed.map(|(piece, extent)| {
            let (id, location) = (piece.id(), piece.location(extent));
            (id, location, piece.into_holds())
        });
        self.register(pieces.collect())
    }

    /// Writes those of `values` that are not stored yet into new value parts, in order, preferably at
    /// block `near` or behind it; afterwards all of them have a place. Returns handles on the parts.
    /// Bytes in page-aligned memory are not copied.
    ///
    /// # Errors
    /// As for [`Self::write_group`]; no value has got a place then.
    pub(crate) fn write_values(
        &self,
        values: &[Arc<LargeValue>],
        near: Option<u64>,
    ) -> Result<Vec<Arc<PieceHandle>>> {
        let unstored: Vec<Unstored> = values
            .iter()
            .filter(|value| value.place().is_none())
            .filter_map(|value| Some((value.clone(), value.bytes()?)))
            .collect();
        if unstored.is_empty() {
            return Ok(Vec::new());
        }
        let (mut row, runs) = self.place_values(&unstored, near)?;
        let parts: Vec<ValuePart> =
            runs.into_iter().map(|run| ValuePart::pack(self.new_id(), &unstored[run])).collect();
        for run in row.runs() {
            let buffers: Vec<&[u8]> = parts[run.clone()].iter().flat_map(ValuePart::buffers).collect();
            self.write_run(row.extents[run.start], row.extents[run.end - 1], &buffers)?;
        }
        let placed = parts.iter().zip(row.extents.drain(..));
        let pieces = placed.map(|(part, extent)| (part.id(), part.location(extent), Vec::new()));
        let handles = self.register(pieces.collect())?;
        for (part, handle) in parts.into_iter().zip(&handles) {
            part.publish(handle);
        }
        Ok(handles)
    }

    /// Cuts values into parts for which there is room: the fuller the device, the smaller the parts.
    fn place_values(
        &self,
        values: &[Unstored],
        near: Option<u64>,
    ) -> Result<(Row<'_>, Vec<std::ops::Range<usize>>)> {
        let mut max = MAX_VALUE_PART;
        loop {
            let runs = values::cut(values, max);
            let sizes: Vec<u32> = runs.iter().map(|run| values::blocks_of(&values[run.clone()])).collect();
            match Row::allocate(&*self.locator, &sizes, near) {
                Err(error) if error.kind() == ErrorKind::NoSpace && runs.len() < values.len() => max /= 4,
                placed => return Ok((placed?, runs)),
            }
        }
    }

    /// Writes the blocks from the start of `first` to the end of `last`.
    fn write_run(&self, first: Extent, last: Extent, buffers: &[&[u8]]) -> Result<()> {
        let range = first.byte_offset()..last.byte_offset() + last.byte_len() as u64;
        debug_assert_eq!(buffers.iter().map(|b| b.len() as u64).sum::<u64>(), range.end - range.start);
        let result = self.device.write_at(range.start, buffers);
        self.streams.invalidate(&range);
        result
    }

    /// Registers pieces that are written; of those that fail and follow, the blocks are given back.
    fn register(
        &self,
        pieces: Vec<(PieceId, Location, Vec<Arc<PieceHandle>>)>,
    ) -> Result<Vec<Arc<PieceHandle>>> {
        let mut handles = Vec::with_capacity(pieces.len());
        let mut failure = None;
        for (id, location, holds) in pieces {
            if failure.is_none() {
                match self.locator.register(id, location, holds) {
                    Ok(handle) => {
                        handles.push(handle);
                        continue;
                    }
                    Err(error) => failure = Some(error),
                }
            }
            self.locator.give_back(location.extent);
        }
        failure.map_or(Ok(handles), Err)
    }
}
