//! The space map: `committed` as a table of bitmap pages.

use super::superblock::Geometry;
use super::table::Table;
use crate::{Error, Extent, Result};
use espalier_storage::BLOCK;

/// Blocks per page.
pub(super) const BLOCKS_PER_PAGE: u64 = (BLOCK * 8) as u64;

/// Enters `extent` into the map, or removes it.
///
/// # Errors
/// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if a block of it was in that state already:
/// then the map or what led here is wrong, and nothing computed from it may be committed. Otherwise
/// as for [`Table::update`].
pub(super) fn mark(table: &Table, extent: Extent, committed: bool) -> Result<()> {
    let (mut at, end) = (extent.start, extent.end());
    while at < end {
        let page = at / BLOCKS_PER_PAGE;
        let stop = end.min((page + 1) * BLOCKS_PER_PAGE);
        let wrong =
            table.update(page, |bytes| set_bits(bytes, at % BLOCKS_PER_PAGE, stop - at, committed))?;
        if let Some(offset) = wrong {
            let state = if committed { "accounted for twice" } else { "not accounted for" };
            return Err(Error::damaged(format!("block {} is {state}", at + offset)));
        }
        at = stop;
    }
    Ok(())
}

/// Sets or clears bits; returns the offset of the first that was in that state already.
fn set_bits(bytes: &mut [u8], from: u64, count: u64, value: bool) -> Option<u64> {
    let mut wrong = None;
    for offset in 0..count {
        let bit = from + offset;
        let (byte, mask) = ((bit / 8) as usize, 1u8 << (bit % 8));
        if (bytes[byte] & mask != 0) == value && wrong.is_none() {
            wrong = Some(offset);
        }
        if value {
            bytes[byte] |= mask;
        } else {
            bytes[byte] &= !mask;
        }
    }
    wrong
}

/// The whole map, one bit per block.
///
/// # Errors
/// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if it accounts for blocks outside the data
/// region; otherwise as for [`Table::read`].
pub(super) fn load(table: &Table, geometry: &Geometry) -> Result<Vec<u64>> {
    let pages = geometry.blocks.div_ceil(BLOCKS_PER_PAGE);
    table.prefetch_announced(pages as usize);
    let mut words = vec![0; geometry.blocks.div_ceil(64) as usize];
    let outside = || Error::damaged("the space map accounts for blocks outside the data region");
    for number in 0..pages {
        let Some(page) = table.read(number)? else { continue };
        let first = (number * BLOCKS_PER_PAGE / 64) as usize;
        for (i, chunk) in page.bytes().chunks_exact(8).enumerate() {
            let word = super::page::read_u64(chunk, 0);
            match words.get_mut(first + i) {
                Some(place) => *place = word,
                None if word == 0 => {}
                None => return Err(outside()),
            }
        }
    }
    let set = |block: u64| words.get((block / 64) as usize).is_some_and(|w| w >> (block % 64) & 1 == 1);
    let beyond = geometry.data_end()..geometry.blocks.next_multiple_of(64);
    if (0..geometry.data_start()).chain(beyond).any(set) {
        return Err(outside());
    }
    Ok(words)
}
