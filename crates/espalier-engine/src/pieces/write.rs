//! Writing: what belongs together gets neighbouring blocks and one call to the device.

use super::frame::Encoded;
use super::read_ahead::PieceReadahead;
use super::values::{self, MAX_VALUE_PART_BYTES, Unstored, ValuePart};
use crate::device::GuardedDevice;
use crate::extents::ExtentList;
use crate::model::ids::Location;
use crate::model::piece::PieceHandle;
use crate::model::value::LargeValue;
use crate::space::Locator;
use crate::{Error, ErrorKind, Extent, PieceId, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// By what the longest value part is divided, and whether it may be scattered: what is tried, in
/// order. Scattering costs a block for the list, so parts are not made smallest before.
const VALUE_PART_TRIES: [(usize, bool); 4] = [(1, false), (4, false), (16, false), (4, true)];

/// The least that a small store may bound value parts to.
const LEAST_VALUE_PART_BYTES: usize = 64 << 10;

/// Where one piece is going to lie.
enum PiecePlace {
    Run(Extent),
    Scattered(PieceId, Arc<ExtentList>),
}

impl PiecePlace {
    fn run(&self) -> Option<Extent> {
        match self {
            Self::Run(extent) => Some(*extent),
            Self::Scattered(..) => None,
        }
    }

    /// What the node translation table gets; `at` makes it of an extent.
    fn location(&self, at: impl FnOnce(Extent) -> Location) -> Location {
        match self {
            Self::Run(extent) => at(*extent),
            Self::Scattered(_, layout) => Location { scattered: true, ..at(layout.first()) },
        }
    }

    fn give_back(&self, locator: &dyn Locator) {
        match self {
            Self::Run(extent) => locator.give_back(*extent),
            Self::Scattered(id, _) => locator.give_back_scattered(*id),
        }
    }
}

/// A piece that wants a place, and its size in blocks.
type Request = (PieceId, u32);

/// A value part to be, and the values in it.
type ValuePartCut = (PieceId, Range<usize>);

/// Blocks that were allocated and are given back unless they are used.
struct Allocation<'a> {
    locator: &'a dyn Locator,
    places: Vec<PiecePlace>,
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        for place in self.places.drain(..) {
            place.give_back(self.locator);
        }
    }
}

impl<'a> Allocation<'a> {
    /// One place for each of `requests`: in one run, or in as few as can be. With `scatter` a piece
    /// for which there is no run gets several.
    fn allocate(
        locator: &'a dyn Locator,
        requests: &[Request],
        near: Option<u64>,
        scatter: bool,
    ) -> Result<Self> {
        let mut allocation = Self { locator, places: Vec::with_capacity(requests.len()) };
        allocation.add(requests, near, scatter)?;
        Ok(allocation)
    }

    fn add(&mut self, requests: &[Request], near: Option<u64>, scatter: bool) -> Result<()> {
        let total: u64 = requests.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
        let whole = match u32::try_from(total) {
            Ok(0) => return Ok(()),
            Ok(total) => Some(self.locator.allocate(total, near)),
            Err(_) => None,
        };
        match whole {
            Some(Ok(run)) => {
                let mut start = run.start;
                for &(_, blocks) in requests {
                    self.places.push(PiecePlace::Run(Extent { start, blocks }));
                    start += u64::from(blocks);
                }
                Ok(())
            }
            Some(Err(error)) if error.kind() != ErrorKind::NoSpace => Err(error),
            Some(Err(error)) if requests.len() == 1 => {
                let (id, blocks) = requests[0];
                if !scatter || blocks == 1 {
                    return Err(error);
                }
                self.places.push(PiecePlace::Scattered(id, self.locator.allocate_scattered(id, blocks)?));
                Ok(())
            }
            _ => {
                let (left, right) = requests.split_at(requests.len() / 2);
                self.add(left, near, scatter)?;
                let near = self.places.last().and_then(PiecePlace::run).map(Extent::end).or(near);
                self.add(right, near, scatter)
            }
        }
    }

    /// Neighbours on the device, as runs of indexes; what is scattered stands alone.
    fn runs(&self) -> Vec<std::ops::Range<usize>> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for (i, place) in self.places.iter().enumerate() {
            let before = runs.last().and_then(|run| self.places[run.end - 1].run());
            let adjacent = before.zip(place.run()).is_some_and(|(before, run)| before.end() == run.start);
            match runs.last_mut() {
                Some(run) if adjacent => run.end = i + 1,
                _ => runs.push(i..i + 1),
            }
        }
        runs
    }
}

/// Writes pieces.
pub(crate) struct PieceWriter {
    device: Arc<GuardedDevice>,
    locator: Arc<dyn Locator>,
    read_ahead: Arc<PieceReadahead>,
    /// Value parts are cut before they get longer than this, in bytes.
    max_value_part: AtomicUsize,
}

impl PieceWriter {
    pub(super) fn new(
        device: Arc<GuardedDevice>,
        locator: Arc<dyn Locator>,
        read_ahead: Arc<PieceReadahead>,
    ) -> Self {
        Self { device, locator, read_ahead, max_value_part: AtomicUsize::new(MAX_VALUE_PART_BYTES) }
    }

    /// Bounds the length of new value parts, in bytes: what is live in one must fit into what a
    /// small store keeps free.
    pub(crate) fn bound_value_parts(&self, bytes: usize) {
        self.max_value_part
            .store(bytes.clamp(LEAST_VALUE_PART_BYTES, MAX_VALUE_PART_BYTES), Ordering::Relaxed);
    }

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
        let requests: Vec<Request> = group.iter().map(|piece| (piece.id(), piece.blocks())).collect();
        let mut allocation = Allocation::allocate(&*self.locator, &requests, near, true)?;
        for run in allocation.runs() {
            let buffers: Vec<&[u8]> = group[run.clone()].iter().map(Encoded::bytes).collect();
            self.write_places(&allocation.places[run], &buffers)?;
        }
        let placed = group.into_iter().zip(allocation.places.drain(..));
        let pieces = placed.map(|(piece, place)| {
            let (id, location) = (piece.id(), place.location(|extent| piece.location(extent)));
            (id, location, place, piece.into_holds())
        });
        self.register(pieces.collect())
    }

    /// Writes those of `values` that are not stored yet into new value parts, in order, preferably
    /// at block `near` or behind it; afterwards all of them have a place. Returns handles on the
    /// parts. Bytes in page-aligned memory are not copied.
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
        let (mut allocation, runs) = self.place_values(&unstored, near)?;
        let parts: Vec<ValuePart> =
            runs.into_iter().map(|(id, run)| ValuePart::pack(id, &unstored[run])).collect();
        for run in allocation.runs() {
            let buffers: Vec<&[u8]> = parts[run.clone()].iter().flat_map(ValuePart::buffers).collect();
            self.write_places(&allocation.places[run], &buffers)?;
        }
        let placed = parts.iter().zip(allocation.places.drain(..));
        let pieces = placed.map(|(part, place)| {
            (part.id(), place.location(|extent| part.location(extent)), place, Vec::new())
        });
        let handles = self.register(pieces.collect())?;
        for (part, handle) in parts.into_iter().zip(&handles) {
            part.publish(handle);
        }
        Ok(handles)
    }

    /// Cuts values into parts for which there is room: the fuller the device, the smaller the
    /// parts, until they are scattered.
    fn place_values(
        &self,
        values: &[Unstored],
        near: Option<u64>,
    ) -> Result<(Allocation<'_>, Vec<ValuePartCut>)> {
        let longest = self.max_value_part.load(Ordering::Relaxed);
        for (share, scatter) in VALUE_PART_TRIES {
            let mut requests: Vec<Request> = Vec::new();
            let mut runs = Vec::new();
            for run in values::cut(values, longest / share) {
                let id = self.locator.new_id();
                requests.push((id, values::blocks_of(&values[run.clone()])));
                runs.push((id, run));
            }
            match Allocation::allocate(&*self.locator, &requests, near, scatter) {
                Err(error) if error.kind() == ErrorKind::NoSpace && !scatter => {}
                placed => return Ok((placed?, runs)),
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "there is no room for large values"))
    }

    /// Writes `buffers` to neighbouring places, or to one that is scattered.
    fn write_places(&self, places: &[PiecePlace], buffers: &[&[u8]]) -> Result<()> {
        match places {
            [PiecePlace::Scattered(id, layout)] => self.write_scattered(*id, layout, buffers),
            [first, ..] => match (first.run(), places.last().and_then(PiecePlace::run)) {
                (Some(first), Some(last)) => self.write_run(first, last, buffers),
                _ => Err(Error::damaged("a scattered piece among neighbours")),
            },
            [] => Ok(()),
        }
    }

    fn write_scattered(&self, id: PieceId, layout: &ExtentList, buffers: &[&[u8]]) -> Result<()> {
        let mut rest = buffers.iter().copied();
        let mut current: &[u8] = &[];
        for run in layout.runs() {
            let mut left = run.byte_len();
            let mut slices = Vec::new();
            while left > 0 {
                if current.is_empty() {
                    current = rest.next().ok_or_else(|| Error::damaged("a piece shorter than its place"))?;
                }
                let (slice, behind) = current.split_at(left.min(current.len()));
                slices.push(slice);
                (current, left) = (behind, left - slice.len());
            }
            self.write_run(*run, *run, &slices)?;
        }
        for (place, list) in layout.encode(id) {
            self.write_run(place, place, &[&list])?;
        }
        Ok(())
    }

    /// Writes the blocks from the start of `first` to the end of `last`.
    fn write_run(&self, first: Extent, last: Extent, buffers: &[&[u8]]) -> Result<()> {
        let range = first.byte_offset()..last.byte_offset() + last.byte_len() as u64;
        debug_assert_eq!(buffers.iter().map(|b| b.len() as u64).sum::<u64>(), range.end - range.start);
        let result = self.device.write_at(range.start, buffers);
        self.read_ahead.invalidate(&range);
        result
    }

    /// Registers pieces that are written; of those that fail and follow, the blocks are given back.
    fn register(
        &self,
        pieces: Vec<(PieceId, Location, PiecePlace, Vec<Arc<PieceHandle>>)>,
    ) -> Result<Vec<Arc<PieceHandle>>> {
        let mut handles = Vec::with_capacity(pieces.len());
        let mut failure = None;
        for (id, location, place, holds) in pieces {
            if failure.is_none() {
                match self.locator.register(id, location, holds) {
                    Ok(handle) => {
                        handles.push(handle);
                        continue;
                    }
                    Err(error) => failure = Some(error),
                }
            }
            place.give_back(&*self.locator);
        }
        failure.map_or(Ok(handles), Err)
    }
}
