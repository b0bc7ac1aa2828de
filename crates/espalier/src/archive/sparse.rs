//! Maps of holes: where the pieces of a file lie that an archive has.

use super::pax::Records;
use super::{MAX_PIECES, numbers};
use anyhow::{Context, Result, bail, ensure};
use std::io::Read;
use std::ops::Range;

/// The entries of a map that are in GNU's old header, and in each block behind it.
const HEADER_ENTRIES: Range<usize> = 386..482;
const BLOCK_ENTRIES: Range<usize> = 0..504;
const ENTRY_BYTES: usize = 24;

/// A file with holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SparseMap {
    pub(super) size: u64,
    pub(super) pieces: Vec<Range<u64>>,
}

impl SparseMap {
    fn new(size: u64) -> Self {
        Self { size, pieces: Vec::new() }
    }

    /// Adds the next piece.
    fn push(&mut self, offset: i64, length: i64) -> Result<()> {
        let number = |number: i64| u64::try_from(number).context("a number of a map of holes is negative");
        let (offset, length) = (number(offset)?, number(length)?);
        let end = offset.checked_add(length).filter(|end| *end <= self.size);
        let last = self.pieces.last().map_or(0, |piece| piece.end);
        match end {
            Some(end) if offset >= last => {
                if length > 0 {
                    ensure!(self.pieces.len() < MAX_PIECES, "a file with more than {MAX_PIECES} pieces");
                    self.pieces.push(offset..end);
                }
                Ok(())
            }
            _ => bail!("a map of holes is damaged"),
        }
    }

    /// Bytes that the archive has of it.
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.end - piece.start).sum()
    }
}

/// The map of GNU's old form: in the header, and in blocks that `next_block` reads.
///
/// # Errors
/// If it is damaged; of reading.
pub(super) fn of_header(
    header: &[u8],
    next_block: &mut dyn FnMut() -> Result<[u8; super::BLOCK_BYTES]>,
) -> Result<SparseMap> {
    let size = u64::try_from(numbers::parse(&header[483..495])?).context("a size is negative")?;
    let mut map = SparseMap::new(size);
    push_entries(&header[HEADER_ENTRIES], &mut map)?;
    let mut goes_on = header[482] != 0;
    while goes_on {
        let block = next_block()?;
        push_entries(&block[BLOCK_ENTRIES], &mut map)?;
        goes_on = block[504] != 0;
        ensure!(!goes_on || block[0] != 0, "a map of holes is damaged");
    }
    Ok(map)
}

fn push_entries(entries: &[u8], map: &mut SparseMap) -> Result<()> {
    for entry in entries.chunks_exact(ENTRY_BYTES) {
        // The first one without an offset ends the list.
        if entry[0] == 0 {
            break;
        }
        map.push(numbers::parse(&entry[..12])?, numbers::parse(&entry[12..])?)?;
    }
    Ok(())
}

/// The map that pax records tell, if they do: forms 0.0 and 0.1.
///
/// # Errors
/// If it is damaged.
pub(super) fn of_records(records: &Records, pairs: &[(i64, i64)]) -> Result<Option<SparseMap>> {
    let Some(size) = records.get(&b"GNU.sparse.size"[..]) else { return Ok(None) };
    let mut map = SparseMap::new(decimal(size)? as u64);
    if let Some(text) = records.get(&b"GNU.sparse.map"[..]) {
        let numbers: Vec<&[u8]> = text.split(|byte| *byte == b',').filter(|text| !text.is_empty()).collect();
        ensure!(numbers.len().is_multiple_of(2), "a map of holes is damaged");
        for pair in numbers.chunks_exact(2) {
            map.push(decimal(pair[0])?, decimal(pair[1])?)?;
        }
    } else {
        pairs.iter().try_for_each(|(offset, length)| map.push(*offset, *length))?;
    }
    Ok(Some(map))
}

/// The map in front of the data of a file of `size` bytes, in form 1.0: a count and pairs of
/// numbers, each on a line, up to the end of a block. Also the bytes that it takes.
///
/// # Errors
/// If it is damaged; of reading.
pub(super) fn of_data(size: &[u8], data: &mut dyn Read) -> Result<(SparseMap, u64)> {
    let mut map = SparseMap::new(decimal(size)? as u64);
    let mut block = [0; super::BLOCK_BYTES];
    let (mut at, mut taken) = (block.len(), 0);
    let mut next = || -> Result<i64> {
        let mut line = Vec::new();
        loop {
            if at == block.len() {
                data.read_exact(&mut block)?;
                (at, taken) = (0, taken + block.len() as u64);
            }
            let byte = block[at];
            at += 1;
            if byte == b'\n' {
                return decimal(&line);
            }
            ensure!(line.len() < 20, "a map of holes is damaged");
            line.push(byte);
        }
    };
    let count = next()?;
    for _ in 0..count {
        let (offset, length) = (next()?, next()?);
        map.push(offset, length)?;
    }
    Ok((map, taken))
}

/// A number of decimal digits.
///
/// # Errors
/// If it is none, or too large.
pub(super) fn decimal(text: &[u8]) -> Result<i64> {
    let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse().ok());
    number.with_context(|| format!("'{}' is no number", String::from_utf8_lossy(text)))
}

/// The map of a file of `size` bytes in form 1.0, as it stands in front of the data. Where the file
/// ends with a hole an empty piece tells its end, as GNU tar wants it.
pub(super) fn text(size: u64, extents: &[Range<u64>]) -> Vec<u8> {
    let ends_with_hole = extents.last().is_none_or(|extent| extent.end < size);
    let end = ends_with_hole.then_some(size..size);
    let mut text = format!("{}\n", extents.len() + usize::from(ends_with_hole));
    for extent in extents.iter().chain(&end) {
        text.push_str(&format!("{}\n{}\n", extent.start, extent.end - extent.start));
    }
    let mut bytes = text.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(super::BLOCK_BYTES), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_as_they_are_written() {
        for extents in [
            vec![],
            std::iter::once(0..5).collect(),
            vec![4096..8192, 10_000..10_001],
            (1..300).map(|n| n * 10..n * 10 + 5).collect(),
        ] {
            let bytes = text(100_000, &extents);
            let (map, taken) = of_data(b"100000", &mut &bytes[..]).unwrap();
            assert_eq!((map.pieces, taken), (extents, bytes.len() as u64));
        }
        let block = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(super::super::BLOCK_BYTES, 0);
            bytes
        };
        for text in [
            "1\n5\n6\n",
            "2\n0\n5\n4\n1\n",
            "1\n-1\n1\n",
            "9\n1\n1\n",
            "x\n",
            "1\n9223372036854775807\n9223372036854775807\n",
            "99999999999999999999999\n",
        ] {
            assert!(of_data(b"10", &mut &block(text)[..]).is_err(), "{text:?}");
        }
    }
}
