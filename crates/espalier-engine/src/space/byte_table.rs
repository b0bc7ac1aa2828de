//! Byte strings of any length in a paged table: the volume table and the reclaim list.
//!
//! The string, preceded by its length and its XXH3, fills the pages in order; a page that did not
//! change is not written again, and no contiguous space is needed.

use super::page::read_u64;
use super::table::Table;
use crate::{Error, Result};
use espalier_storage::BLOCK;
use xxhash_rust::xxh3::xxh3_64;

const HEADER_BYTES: usize = 16;
/// Pages for which memory is set aside before any was seen.
const MAX_PREALLOCATED_PAGES: usize = 256;
/// The longest string: what damage can make us allocate at most.
pub(super) const MAX_STRING_BYTES: usize = 64 << 20;

/// Makes `content` the table's string. Writing happens with the table.
///
/// # Errors
/// As for [`Table::update`]; [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if
/// it is longer than [`MAX_STRING_BYTES`].
pub(super) fn store(table: &Table, content: &[u8]) -> Result<()> {
    if content.len() > MAX_STRING_BYTES {
        let message = format!("{} bytes exceed what a table of bytes can hold", content.len());
        return Err(Error::new(crate::ErrorKind::InvalidArgument, message));
    }
    let old_pages = match table.read(0)? {
        Some(page) => pages(read_u64(page.bytes(), 0).min(MAX_STRING_BYTES as u64) as usize),
        None => 0,
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + content.len());
    bytes.extend((content.len() as u64).to_le_bytes());
    bytes.extend(xxh3_64(content).to_le_bytes());
    bytes.extend(content);
    for number in 0..pages(content.len()).max(old_pages) {
        let start = (number * BLOCK).min(bytes.len());
        let chunk = &bytes[start..(start + BLOCK).min(bytes.len())];
        let same = match table.read(number as u64)? {
            None => chunk.iter().all(|byte| *byte == 0),
            Some(page) => {
                let (head, tail) = page.bytes().split_at(chunk.len());
                head == chunk && tail.iter().all(|byte| *byte == 0)
            }
        };
        if !same {
            table.update(number as u64, |page| {
                page[..chunk.len()].copy_from_slice(chunk);
                page[chunk.len()..].fill(0);
            })?;
        }
    }
    Ok(())
}

/// The table's string; empty if none was ever stored.
///
/// # Errors
/// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if it is not what was stored; otherwise as for
/// [`Table::read`].
pub(super) fn load(table: &Table) -> Result<Vec<u8>> {
    let Some(first) = table.read(0)? else { return Ok(Vec::new()) };
    let (len, sum) = (read_u64(first.bytes(), 0), read_u64(first.bytes(), 8));
    if len > MAX_STRING_BYTES as u64 {
        return Err(Error::damaged(format!("a table of bytes claims a length of {len}")));
    }
    let pages = pages(len as usize);
    table.prefetch(0..pages as u64);
    // Damage must not make us take much at once.
    let mut content = Vec::with_capacity(pages.min(MAX_PREALLOCATED_PAGES) * BLOCK);
    for number in 0..pages {
        match table.read(number as u64)? {
            Some(page) => content.extend_from_slice(page.bytes()),
            None => content.resize(content.len() + BLOCK, 0),
        }
    }
    content.truncate(HEADER_BYTES + len as usize);
    content.drain(..HEADER_BYTES);
    if !crate::model::ids::sums_agree(xxh3_64(&content), sum) {
        return Err(Error::damaged("the checksum of a table of bytes is wrong"));
    }
    Ok(content)
}

fn pages(len: usize) -> usize {
    (HEADER_BYTES + len).div_ceil(BLOCK)
}
