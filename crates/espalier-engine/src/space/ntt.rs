//! The node translation table: for each counted piece its place, checksum, kind and count.

use super::page::{read_u32, read_u64};
use super::superblock::Geometry;
use super::table::Table;
use crate::types::Location;
use crate::{Error, Extent, PieceId, PieceKind, Result};
use espalier_storage::BLOCK;

const ENTRY: usize = 32;
/// Entries of a page.
pub(super) const PER_PAGE: u64 = (BLOCK / ENTRY) as u64;

const KIND_NODE: u8 = 1;
const KIND_KEY_VALUE: u8 = 2;
const KIND_VALUES: u8 = 3;

/// What the table says of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) location: Location,
    /// References from nodes, and from the volume table for roots. 0 only for nodes whose own
    /// references are still to be subtracted.
    pub(super) count: u32,
}

impl Entry {
    fn encode(&self, bytes: &mut [u8]) {
        let Location { extent, len, checksum, kind } = self.location;
        let (kind, height) = match kind {
            PieceKind::Node(height) => (KIND_NODE, height),
            PieceKind::KeyValue => (KIND_KEY_VALUE, 0),
            PieceKind::Values => (KIND_VALUES, 0),
        };
        bytes[..8].copy_from_slice(&extent.start.to_le_bytes());
        bytes[8..12].copy_from_slice(&extent.blocks.to_le_bytes());
        bytes[12..16].copy_from_slice(&len.to_le_bytes());
        bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.count.to_le_bytes());
        bytes[28..32].copy_from_slice(&[kind, height, 0, 0]);
    }

    /// Decodes the entry of `id`; `None` if there is none.
    fn decode(id: PieceId, bytes: &[u8], geometry: &Geometry) -> Result<Option<Self>> {
        let kind = match (bytes[28], bytes[29]) {
            (0, _) if bytes.iter().all(|byte| *byte == 0) => return Ok(None),
            (KIND_NODE, height) => PieceKind::Node(height),
            (KIND_KEY_VALUE, _) => PieceKind::KeyValue,
            (KIND_VALUES, _) => PieceKind::Values,
            (kind, _) => return Err(Error::damaged(format!("piece {id} has the unknown kind {kind}"))),
        };
        let extent = Extent { start: read_u64(bytes, 0), blocks: read_u32(bytes, 8) };
        let location = Location { extent, len: read_u32(bytes, 12), checksum: read_u64(bytes, 16), kind };
        check_location(id, &location, geometry)?;
        let count = read_u32(bytes, 24);
        if count == 0 && !matches!(kind, PieceKind::Node(_)) {
            return Err(Error::damaged(format!("piece {id} is a part and has no references")));
        }
        Ok(Some(Self { location, count }))
    }
}

/// Checks that a location can be one: in the data region, its length within its extent.
///
/// # Errors
/// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged).
pub(super) fn check_location(id: PieceId, location: &Location, geometry: &Geometry) -> Result<()> {
    let Location { extent, len, .. } = *location;
    if !geometry.holds(extent) || len == 0 || len as usize > extent.byte_len() {
        let Extent { start, blocks } = extent;
        return Err(Error::damaged(format!(
            "piece {id} of {len} bytes cannot lie in {blocks} blocks from {start}"
        )));
    }
    Ok(())
}

fn place(id: PieceId) -> (u64, std::ops::Range<usize>) {
    let at = (id.0 % PER_PAGE) as usize * ENTRY;
    (id.0 / PER_PAGE, at..at + ENTRY)
}

/// The entry of `id`.
///
/// # Errors
/// As for [`Table::read`]; [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if it makes no sense.
pub(super) fn get(table: &Table, geometry: &Geometry, id: PieceId) -> Result<Option<Entry>> {
    let (page, bytes) = place(id);
    match table.read(page)? {
        None => Ok(None),
        Some(page) => Entry::decode(id, &page.bytes()[bytes], geometry),
    }
}

/// Replaces the entry of `id`.
///
/// # Errors
/// As for [`Table::update`].
pub(super) fn set(table: &Table, id: PieceId, entry: Option<&Entry>) -> Result<()> {
    let (page, range) = place(id);
    table.update(page, |bytes| match entry {
        Some(entry) => entry.encode(&mut bytes[range]),
        None => bytes[range].fill(0),
    })
}

/// Calls `visit` with every entry of a page of level 0.
pub(super) fn for_each(
    number: u64,
    page: &[u8],
    geometry: &Geometry,
    visit: &mut dyn FnMut(PieceId, Result<Entry>),
) {
    for (slot, bytes) in page.chunks_exact(ENTRY).enumerate() {
        let id = PieceId(number.wrapping_mul(PER_PAGE) + slot as u64);
        match Entry::decode(id, bytes, geometry) {
            Ok(None) => {}
            Ok(Some(entry)) => visit(id, Ok(entry)),
            Err(error) => visit(id, Err(error)),
        }
    }
}
