//! Value parts: runs of large values, one after the other, without a header.
//!
//! Order: values with a length that is a multiple of [`VALUE_PAGE`] come first, aligned to it, so
//! that a page of such a value is a page of the device and goes between device and page cache
//! uncopied [BetrFS 0.6]; the others follow, packed at 8 bytes. Within both groups values keep
//! their order, so that values written in key order are read in one or two ascending streams.
//!
//! Each reference to a value holds a sum for each of its pages, so a read verifies what it reads
//! and reads no more. The part's own checksum, in its location, is for readers that have no
//! reference: it is the hash of the hashes of its device pages.
//!
//! Invariant: a [`ValueRef`] is given out only after its bytes were written.

use crate::model::ids::Location;
use crate::model::piece::PieceHandle;
use crate::model::value::{LargeValue, VALUE_PAGE, ValueRef};
use crate::{Extent, PieceId, PieceKind};
use bytes::Bytes;
use espalier_storage::{AlignedBuf, BLOCK};
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Value parts are cut before they get longer than this, in bytes; one value always fits one part.
pub(super) const MAX_VALUE_PART_BYTES: usize = 4 << 20;

/// Values that are not page multiples begin at multiples of this many bytes.
const PACKED_ALIGNMENT_BYTES: usize = 8;

/// The hash of a page of a value, or of a page of a value part.
pub(super) fn page_hash(part: PieceId, page: &[u8]) -> u64 {
    xxh3_64_with_seed(page, part.0)
}

/// The checksum of a value part: over its device pages, the last padded with zeros.
pub(super) fn part_checksum(part: PieceId, page_hashes: impl Iterator<Item = u64>) -> u64 {
    let hashes: Vec<u8> = page_hashes.flat_map(u64::to_le_bytes).collect();
    xxh3_64_with_seed(&hashes, part.0)
}

/// A value part ready to be written.
pub(super) struct ValuePart {
    id: PieceId,
    buffers: Vec<Buffer>,
    len: u32,
    checksum: u64,
    /// The values and where they will lie: offset and sums.
    values: Vec<(Arc<LargeValue>, u32, Arc<[u32]>)>,
}

/// Whole pages on their way to the device.
enum Buffer {
    /// The value's own memory, which happens to be aligned.
    Direct(Bytes),
    /// A copy.
    Staged(AlignedBuf),
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Direct(bytes) => bytes,
            Self::Staged(buffer) => buffer,
        }
    }
}

/// A value that is to be written, with its bytes.
pub(super) type Unstored = (Arc<LargeValue>, Bytes);

/// Cuts `values` into runs of at most `max` bytes each (or of one value), as ranges.
pub(super) fn cut(values: &[Unstored], max: usize) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let (mut start, mut total) = (0, 0);
    for (i, (_, bytes)) in values.iter().enumerate() {
        let need = bytes.len().next_multiple_of(PACKED_ALIGNMENT_BYTES);
        if i > start && total + need > max {
            runs.push(start..i);
            (start, total) = (i, 0);
        }
        total += need;
    }
    if start < values.len() {
        runs.push(start..values.len());
    }
    runs
}

/// The blocks that a part of `values` takes.
pub(super) fn blocks_of(values: &[Unstored]) -> u32 {
    let total: usize =
        values.iter().map(|(_, bytes)| bytes.len().next_multiple_of(PACKED_ALIGNMENT_BYTES)).sum();
    total.div_ceil(BLOCK) as u32
}

impl ValuePart {
    /// Lays out `values` as the part `id` and computes its sums.
    pub(super) fn pack(id: PieceId, values: &[Unstored]) -> Self {
        let (whole, odd): (Vec<_>, Vec<_>) =
            values.iter().partition(|(_, bytes)| bytes.len().is_multiple_of(VALUE_PAGE));
        let mut part = Self { id, buffers: Vec::new(), len: 0, checksum: 0, values: Vec::new() };
        let mut page_hashes = Vec::new();
        part.add_whole(&whole, &mut page_hashes);
        part.add_odd(&odd, &mut page_hashes);
        part.checksum = part_checksum(id, page_hashes.into_iter());
        part
    }

    /// Adds values of whole pages.
    fn add_whole(&mut self, values: &[&Unstored], page_hashes: &mut Vec<u64>) {
        let mut rest = values;
        while let Some((_, bytes)) = rest.first() {
            let run = if is_aligned(bytes) {
                self.buffers.push(Buffer::Direct(bytes.clone()));
                1
            } else {
                let run = rest.iter().take_while(|(_, bytes)| !is_aligned(bytes)).count();
                let total = rest[..run].iter().map(|(_, bytes)| bytes.len()).sum();
                let mut staged = AlignedBuf::zeroed(total);
                let mut at = 0;
                for (_, bytes) in &rest[..run] {
                    staged[at..at + bytes.len()].copy_from_slice(bytes);
                    at += bytes.len();
                }
                self.buffers.push(Buffer::Staged(staged));
                run
            };
            for (value, bytes) in &rest[..run] {
                let first = page_hashes.len();
                page_hashes.extend(bytes.chunks(VALUE_PAGE).map(|page| page_hash(self.id, page)));
                let sums = page_hashes[first..].iter().map(|hash| *hash as u32).collect();
                self.values.push((value.clone(), self.len, sums));
                self.len += bytes.len() as u32;
            }
            rest = &rest[run..];
        }
    }

    /// Adds values of any length behind the others.
    fn add_odd(&mut self, values: &[&Unstored], page_hashes: &mut Vec<u64>) {
        let total: usize =
            values.iter().map(|(_, bytes)| bytes.len().next_multiple_of(PACKED_ALIGNMENT_BYTES)).sum();
        if total == 0 {
            return;
        }
        let mut staged = AlignedBuf::zeroed(total.next_multiple_of(BLOCK));
        let (start, mut at, mut end) = (self.len as usize, 0, 0);
        for (value, bytes) in values {
            end = at + bytes.len();
            staged[at..end].copy_from_slice(bytes);
            let sums = bytes.chunks(VALUE_PAGE).map(|page| page_hash(self.id, page) as u32).collect();
            self.values.push((value.clone(), (start + at) as u32, sums));
            at = end.next_multiple_of(PACKED_ALIGNMENT_BYTES);
        }
        page_hashes.extend(staged.chunks(BLOCK).map(|page| page_hash(self.id, page)));
        self.len = (start + end) as u32;
        self.buffers.push(Buffer::Staged(staged));
    }

    /// Its id.
    pub(super) fn id(&self) -> PieceId {
        self.id
    }

    /// What the device gets, whole pages each.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &[u8]> {
        self.buffers.iter().map(|buffer| &**buffer)
    }

    /// What the node translation table gets once the part lies in `extent`.
    pub(super) fn location(&self, extent: Extent) -> Location {
        Location { extent, len: self.len, checksum: self.checksum, kind: PieceKind::Values, scattered: false }
    }

    /// Tells the values where they lie now.
    pub(super) fn publish(self, part: &Arc<PieceHandle>) {
        for (value, offset, sums) in self.values {
            let len = value.len() as u32;
            value.set_place(ValueRef { part: part.clone(), offset, len, sums });
        }
    }
}

fn is_aligned(bytes: &Bytes) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(BLOCK)
}

/// What it takes to verify all of a value, without a hold on the part in which it lies.
#[derive(Debug, Clone)]
pub(crate) struct Sums {
    part: PieceId,
    /// Where it begins in the part.
    offset: u32,
    len: u32,
    pages: Arc<[u32]>,
}

impl Sums {
    pub(crate) fn of(place: &ValueRef) -> Self {
        let ValueRef { part, offset, len, sums } = place;
        Self { part: part.id(), offset: *offset, len: *len, pages: sums.clone() }
    }

    /// Says which value it is, if its first block lies at byte `at` of the device.
    pub(super) fn verified(&self, at: u64) -> Verified {
        Verified { at, part: self.part, offset: self.offset, len: self.len }
    }

    /// True if `blocks`, the blocks of the device in which it lies, hold what was written.
    pub(super) fn agree(&self, blocks: &[u8]) -> bool {
        let start = self.offset as usize % BLOCK;
        let Some(content) = blocks.get(start..start + self.len as usize) else { return false };
        let pages = content.chunks(VALUE_PAGE);
        pages.len() == self.pages.len()
            && pages.zip(&*self.pages).all(|(page, sum)| page_hash(self.part, page) as u32 == *sum)
    }
}

/// A value of which all bytes were verified, and where they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Verified {
    /// The byte of the device at which its first block begins.
    at: u64,
    part: PieceId,
    offset: u32,
    len: u32,
}

impl Verified {
    /// The value at `place`, in a part that lies in `part`.
    pub(super) fn of(place: &ValueRef, part: Extent) -> Self {
        let at = part.byte_offset() + (place.offset as usize / BLOCK * BLOCK) as u64;
        Self { at, part: place.part.id(), offset: place.offset, len: place.len }
    }
}

/// The pages of a value that hold some of its bytes, and where they lie in the part.
pub(super) struct PageSpan {
    /// Numbers of the pages in the value.
    pub(super) pages: Range<usize>,
    /// Their bytes in the value.
    pub(super) bytes: Range<usize>,
    /// The device pages in which they lie, as bytes of the part.
    pub(super) device: Range<usize>,
}

impl PageSpan {
    /// Of `len` bytes (at least one) of the value at `place`, from byte `offset`.
    pub(super) fn of(place: &ValueRef, offset: usize, len: usize) -> Self {
        let pages = offset / VALUE_PAGE..(offset + len).div_ceil(VALUE_PAGE);
        let bytes = pages.start * VALUE_PAGE..(pages.end * VALUE_PAGE).min(place.len as usize);
        let start = place.offset as usize;
        let device = (start + bytes.start) / BLOCK * BLOCK..(start + bytes.end).next_multiple_of(BLOCK);
        Self { pages, bytes, device }
    }

    /// The first page with other bytes than `place` says; `content` are the bytes of the pages.
    pub(super) fn first_damaged(&self, place: &ValueRef, content: &[u8]) -> Option<usize> {
        let sums = place.sums.get(self.pages.clone()).unwrap_or_default();
        let pages = content.chunks(VALUE_PAGE);
        if sums.len() != pages.len() {
            return Some(self.pages.start);
        }
        let part = place.part.id();
        let wrong = pages.zip(sums).position(|(page, sum)| page_hash(part, page) as u32 != *sum);
        wrong.map(|i| self.pages.start + i)
    }
}
