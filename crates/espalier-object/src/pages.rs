//! How the blocks of a device are divided into pages of the map.

use std::ops::Range;

/// Blocks of a page: 64 MiB of the device.
pub(crate) const PAGE_BLOCKS: u64 = 16384;

/// A page of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageNumber(pub(crate) u64);

impl PageNumber {
    pub(crate) fn of(block: u64) -> Self {
        Self(block / PAGE_BLOCKS)
    }

    /// The first block that it is about.
    pub(crate) fn first_block(self) -> u64 {
        self.0 * PAGE_BLOCKS
    }
}

/// The parts of a range that lie in one page each.
pub(crate) fn parts(range: &Range<u64>) -> impl Iterator<Item = (PageNumber, Range<u64>)> {
    let range = range.clone();
    let pages =
        if range.is_empty() { 0..0 } else { range.start / PAGE_BLOCKS..(range.end - 1) / PAGE_BLOCKS + 1 };
    pages.map(move |page| {
        let first = page * PAGE_BLOCKS;
        (PageNumber(page), range.start.max(first)..range.end.min(first + PAGE_BLOCKS))
    })
}
