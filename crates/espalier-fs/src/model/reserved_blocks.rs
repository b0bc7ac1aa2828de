//! Reserved blocks of one file: which blocks `fallocate` keeps room for, as stored.
//!
//! Ranges of blocks, ascending and apart, and the number of reserved blocks in them. As long as
//! that is the number of all blocks in them, the ranges are exact; if it is less, those of their
//! blocks that have data are not reserved: so a file that is written here and there needs no long
//! list. A few reserved blocks may be *begun*: they have data, and can get longer. Of one block,
//! the *tail*, only the first bytes are reserved.

use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::types::MAX_FILE_SIZE;
use std::ops::Range;

const KIND_RESERVED: u8 = 11;
const FLAG_DENSE: u8 = 1;
const FLAG_TAIL: u8 = 2;
/// No file has more blocks of the smallest size.
const MAX_BLOCK: u64 = MAX_FILE_SIZE / 4096 + 1;
/// Bits of a number that one byte carries.
const VARINT_BITS: u32 = 7;

/// See the [module](self).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReservedBlocks {
    ranges: Vec<Range<u64>>,
    blocks: u64,
    /// Blocks that are begun, with their lengths, the one that was begun first first.
    begun: Vec<(u64, u32)>,
    /// The tail, with the number of its bytes that are reserved.
    tail: Option<(u64, u32)>,
    /// Every block below the size of the file has data or is reserved.
    pub(crate) dense: bool,
}

impl ReservedBlocks {
    /// Number of reserved blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The ranges in which they lie.
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Reserved blocks that have data, with their lengths.
    pub(crate) fn begun(&self) -> &[(u64, u32)] {
        &self.begun
    }

    /// The block of which only so many bytes are reserved.
    pub(crate) fn tail(&self) -> Option<(u64, u32)> {
        self.tail
    }

    /// Only so many bytes of a reserved block are reserved.
    pub(crate) fn set_tail(&mut self, block: u64, bytes: u32) {
        self.tail = Some((block, bytes));
    }

    /// Bytes of data that the reserved blocks may have beside what they have.
    pub(crate) fn bytes(&self, block_size: u64) -> u64 {
        let cut = self.tail.map_or(0, |(_, bytes)| block_size.saturating_sub(bytes.into()));
        let begun: u64 = self.begun.iter().map(|(_, length)| u64::from(*length)).sum();
        self.blocks.saturating_mul(block_size).saturating_sub(cut + begun)
    }

    /// The length of a block if it is begun, else 0.
    pub(crate) fn length_of(&self, block: u64) -> u32 {
        self.begun.iter().find(|(begun, _)| *begun == block).map_or(0, |(_, length)| *length)
    }

    /// A reserved block has so many bytes now.
    pub(crate) fn begin(&mut self, block: u64, length: u32) {
        match self.begun.iter_mut().find(|(begun, _)| *begun == block) {
            Some((_, known)) => *known = length.max(*known),
            None => self.begun.push((block, length)),
        }
    }

    /// True if all blocks of the ranges are reserved.
    pub(crate) fn is_exact(&self) -> bool {
        self.ranges.iter().map(|range| range.end - range.start).sum::<u64>() == self.blocks
    }

    /// The parts of `range` that lie in the ranges.
    pub(crate) fn overlap(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let first = self.ranges.partition_point(|own| own.end <= range.start);
        let own = self.ranges[first..].iter().take_while(|own| own.start < range.end);
        own.map(|own| own.start.max(range.start)..own.end.min(range.end)).collect()
    }

    /// Takes the blocks of `range` out, `reserved` of which were reserved.
    pub(crate) fn remove(&mut self, range: Range<u64>, reserved: u64) {
        if range.start >= range.end {
            return;
        }
        let first = self.ranges.partition_point(|own| own.end <= range.start);
        let end = self.ranges.partition_point(|own| own.start < range.end);
        let mut rest = Vec::new();
        if first < end {
            let (head, tail) = (self.ranges[first].start, self.ranges[end - 1].end);
            rest.extend([head..range.start, range.end..tail].into_iter().filter(|r| r.start < r.end));
            self.ranges.splice(first..end, rest);
        }
        self.blocks = self.blocks.saturating_sub(reserved);
        self.begun.retain(|(block, _)| !range.contains(block));
        self.tail = self.tail.filter(|(block, _)| !range.contains(block));
        if self.blocks == 0 {
            self.ranges.clear();
            (self.begun, self.tail) = (Vec::new(), None);
        }
    }

    /// Adds the blocks of `range`, which have no data, as far as they are not there already.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        let known: u64 = self.overlap(range.clone()).iter().map(|own| own.end - own.start).sum();
        self.blocks += range.end - range.start - known;
        self.tail = self.tail.filter(|(block, _)| !range.contains(block));
        self.join(range);
    }

    /// Makes the blocks of `range` belong to the ranges: those that were not reserved have data.
    pub(crate) fn join(&mut self, range: Range<u64>) {
        let first = self.ranges.partition_point(|own| own.end < range.start);
        let end = self.ranges.partition_point(|own| own.start <= range.end);
        let joined = match self.ranges.get(first..end) {
            Some([head, .., tail]) => head.start.min(range.start)..tail.end.max(range.end),
            Some([own]) => own.start.min(range.start)..own.end.max(range.end),
            _ => range,
        };
        self.ranges.splice(first..end, [joined]);
    }

    /// What lies between neighbouring ranges, the shortest first.
    pub(crate) fn gaps(&self) -> Vec<Range<u64>> {
        let mut gaps: Vec<_> = self.ranges.windows(2).map(|pair| pair[0].end..pair[1].start).collect();
        gaps.sort_by_key(|gap| gap.end - gap.start);
        gaps
    }

    /// As stored.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(self.dense, FLAG_DENSE) | flag(self.tail.is_some(), FLAG_TAIL);
        let mut out = vec![KIND_RESERVED, flags];
        push_varint(&mut out, self.blocks);
        if let Some((block, bytes)) = self.tail {
            push_varint(&mut out, block);
            push_varint(&mut out, u64::from(bytes));
        }
        push_varint(&mut out, self.begun.len() as u64);
        for (block, length) in &self.begun {
            push_varint(&mut out, *block);
            push_varint(&mut out, u64::from(*length));
        }
        let mut at = 0;
        for range in &self.ranges {
            push_varint(&mut out, range.start - at);
            push_varint(&mut out, range.end - range.start);
            at = range.end;
        }
        out
    }

    /// From what is stored.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let Some((&[KIND_RESERVED, flags], mut rest)) = bytes.split_first_chunk::<2>() else {
            return damaged("what should name reserved blocks does not");
        };
        if flags & !(FLAG_DENSE | FLAG_TAIL) != 0 {
            return damaged("reserved blocks with unknown flags");
        }
        let blocks = take_varint(&mut rest)?;
        let tail = (flags & FLAG_TAIL != 0).then(|| take_part(&mut rest)).transpose()?;
        let mut begun = Vec::new();
        for _ in 0..take_varint(&mut rest)? {
            begun.push(take_part(&mut rest)?);
        }
        let (mut ranges, mut at, mut sum): (Vec<Range<u64>>, u64, u64) = (Vec::new(), 0, 0);
        while !rest.is_empty() {
            let (gap, length) = (take_varint(&mut rest)?, take_varint(&mut rest)?);
            let start = at.saturating_add(gap);
            let end = start.saturating_add(length);
            if length == 0 || end > MAX_BLOCK || (gap == 0 && !ranges.is_empty()) {
                return damaged("reserved blocks out of order, or behind the largest file");
            }
            ranges.push(start..end);
            sum += length;
            at = end;
        }
        if blocks == 0 || blocks > sum {
            return damaged(format!("{blocks} reserved blocks in ranges of {sum}"));
        }
        let found = Self { ranges, blocks, begun, tail, dense: flags & FLAG_DENSE != 0 };
        let is_alien = |(block, _): &(u64, u32)| found.overlap(*block..block.saturating_add(1)).is_empty();
        if found.begun.iter().chain(&found.tail).any(is_alien) {
            return damaged("something is said of a block that is not reserved");
        }
        Ok(found)
    }
}

/// A block and a number of its bytes.
fn take_part(bytes: &mut &[u8]) -> Result<(u64, u32)> {
    let (block, length) = (take_varint(bytes)?, take_varint(bytes)?);
    match u32::try_from(length) {
        Ok(length) => Ok((block, length)),
        Err(_) => damaged("a block that is too long"),
    }
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >> VARINT_BITS != 0 {
        out.push(number as u8 | 1 << VARINT_BITS);
        number >>= VARINT_BITS;
    }
    out.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(VARINT_BITS as usize) {
        let Some((&byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        number |= u64::from(byte & !(1 << VARINT_BITS)) << shift;
        if byte >> VARINT_BITS == 0 {
            return Ok(number);
        }
    }
    damaged("a number among reserved blocks is cut off")
}

fn damaged<T>(message: impl Into<String>) -> Result<T> {
    fail(FsErrorKind::Io, message)
}

#[cfg(test)]
mod tests;
