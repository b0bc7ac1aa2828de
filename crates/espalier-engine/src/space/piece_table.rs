//! The node translation table: for each counted piece its place, checksum, kind and count.

use super::page::{read_u32, read_u64};
use super::superblock::{Bounds, Geometry};
use super::table::Table;
use crate::model::ids::{Delta, Location};
use crate::{Error, Extent, PieceId, PieceKind, Result};
use espalier_storage::BLOCK;

const ENTRY_BYTES: usize = 32;
/// Entries of a page.
pub(super) const ENTRIES_PER_PAGE: u64 = (BLOCK / ENTRY_BYTES) as u64;

const KIND_NODE: u8 = 1;
const KIND_KEY_VALUE: u8 = 2;
const KIND_VALUES: u8 = 3;

/// Flag beside the kind: the place is that of an extent block.
const SCATTERED: u8 = 0x80;

/// The live bytes of a value part are fewer.
const MAX_LIVE_BYTES: u64 = 1 << 48;

/// What the table says of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PieceEntry {
    pub(super) location: Location,
    /// References from nodes, and from the volume table for roots. 0 only for nodes with references
    /// of their own that are still to be subtracted.
    pub(super) count: u32,
    /// Of a value part: bytes of the values in it that headers name, each counted as often
    /// as a header names it.
    pub(super) live: u64,
}

impl PieceEntry {
    /// Bytes of a value part that nothing refers to.
    pub(super) fn dead(&self) -> u64 {
        match self.location.kind {
            PieceKind::Values => u64::from(self.location.len).saturating_sub(self.live),
            _ => 0,
        }
    }

    /// The entry after a change.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if a figure would be negative or too
    /// large.
    pub(super) fn changed(&self, delta: Delta) -> Result<Self> {
        let sum = i64::from(self.count).saturating_add(delta.count);
        let count = u32::try_from(sum)
            .map_err(|_| Error::damaged(format!("it would be {sum}: counts and references differ")))?;
        let live = self.live.checked_add_signed(delta.bytes).filter(|live| *live < MAX_LIVE_BYTES);
        let live = live.ok_or_else(|| {
            Error::damaged("its live bytes would make no sense: counts and references differ")
        })?;
        Ok(Self { count, live, ..*self })
    }

    fn encode(&self, bytes: &mut [u8]) {
        let Location { extent, len, checksum, kind, scattered } = self.location;
        debug_assert!(scattered || extent.byte_len() == (len as usize).next_multiple_of(BLOCK));
        let (kind, height) = match kind {
            PieceKind::Node(height) => (KIND_NODE, height),
            PieceKind::KeyValue => (KIND_KEY_VALUE, 0),
            PieceKind::Values => (KIND_VALUES, 0),
        };
        bytes[..8].copy_from_slice(&extent.start.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
        bytes[24] = kind | if scattered { SCATTERED } else { 0 };
        bytes[25] = height;
        bytes[26..32].copy_from_slice(&self.live.to_le_bytes()[..6]);
    }

    /// Decodes the entry of `id`; `None` if there is none.
    fn decode(id: PieceId, bytes: &[u8], geometry: &Geometry) -> Result<Option<Self>> {
        let kind = match (bytes[24] & !SCATTERED, bytes[25]) {
            (0, _) if bytes.iter().all(|byte| *byte == 0) => return Ok(None),
            (KIND_NODE, height) => PieceKind::Node(height),
            (KIND_KEY_VALUE, _) => PieceKind::KeyValue,
            (KIND_VALUES, _) => PieceKind::Values,
            (kind, _) => return Err(Error::damaged(format!("piece {id} has the unknown kind {kind}"))),
        };
        let scattered = bytes[24] & SCATTERED != 0;
        let (len, checksum) = (read_u32(bytes, 8), read_u64(bytes, 16));
        let blocks = if scattered { 1 } else { len.div_ceil(BLOCK as u32) };
        let extent = Extent { start: read_u64(bytes, 0), blocks };
        let location = Location { extent, len, checksum, kind, scattered };
        check_location(id, &location, geometry)?;
        let count = read_u32(bytes, 12);
        let live = read_u64(bytes, 24) >> 16;
        if count == 0 && !matches!(kind, PieceKind::Node(_)) {
            return Err(Error::damaged(format!("piece {id} is a part and has no references")));
        }
        Ok(Some(Self { location, count, live }))
    }
}

/// Checks that a location can be one: in the data region, its length within its extent.
///
/// # Errors
/// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged).
pub(super) fn check_location(id: PieceId, location: &Location, geometry: &Geometry) -> Result<()> {
    let Location { extent, len, scattered, .. } = *location;
    let long = if scattered { extent.blocks != 1 } else { len as usize > extent.byte_len() };
    if !geometry.holds(extent) || len == 0 || long {
        let Extent { start, blocks } = extent;
        return Err(Error::damaged(format!(
            "piece {id} of {len} bytes cannot lie in {blocks} blocks from {start}"
        )));
    }
    Ok(())
}

fn place(id: PieceId) -> (u64, std::ops::Range<usize>) {
    let at = (id.0 % ENTRIES_PER_PAGE) as usize * ENTRY_BYTES;
    (table_page_of(id), at..at + ENTRY_BYTES)
}

/// The page of the node translation table that holds the entry of this piece.
pub(crate) fn table_page_of(id: PieceId) -> u64 {
    id.0 / ENTRIES_PER_PAGE
}

/// The pieces of one page of the table with their lengths in bytes, and the number of the page;
/// `None` behind the last page. An error comes with the number of the last page that it concerns.
pub(crate) type CountedPage = std::result::Result<Option<(u64, Vec<(PieceId, u64)>)>, (u64, Error)>;

/// The node translation table.
pub(super) struct PieceTable {
    table: Table,
    bounds: Bounds,
}

impl PieceTable {
    pub(super) fn new(table: Table, bounds: Bounds) -> Self {
        Self { table, bounds }
    }

    /// Its pages.
    pub(super) fn pages(&self) -> &Table {
        &self.table
    }

    /// The entry of `id`.
    ///
    /// # Errors
    /// As for [`Table::read`]; [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if it makes no
    /// sense.
    pub(super) fn get(&self, id: PieceId) -> Result<Option<PieceEntry>> {
        let (page, bytes) = place(id);
        match self.table.read(page)? {
            None => Ok(None),
            Some(page) => PieceEntry::decode(id, &page.bytes()[bytes], &self.bounds.get()),
        }
    }

    /// Replaces the entry of `id`.
    ///
    /// # Errors
    /// As for [`Table::update`].
    pub(super) fn set(&self, id: PieceId, entry: Option<&PieceEntry>) -> Result<()> {
        let (page, range) = place(id);
        self.table.update(page, |bytes| match entry {
            Some(entry) => entry.encode(&mut bytes[range]),
            None => bytes[range].fill(0),
        })
    }

    /// Calls `visit` with every entry, and with an error for each page or entry that is damaged.
    pub(super) fn for_each(&self, visit: &mut dyn FnMut(Result<(PieceId, PieceEntry)>)) {
        self.table.walk(&mut |key, _, page| match page {
            Ok(page) if key.level == 0 => self.for_each_of(key.number, page.bytes(), visit),
            Ok(_) => {}
            Err(error) => visit(Err(error)),
        });
    }

    /// Calls `visit` with every entry of page `number` of level 0.
    pub(super) fn for_each_of(
        &self,
        number: u64,
        page: &[u8],
        visit: &mut dyn FnMut(Result<(PieceId, PieceEntry)>),
    ) {
        let geometry = self.bounds.get();
        for (slot, bytes) in page.chunks_exact(ENTRY_BYTES).enumerate() {
            let id = PieceId(number.wrapping_mul(ENTRIES_PER_PAGE) + slot as u64);
            if let Some(entry) = PieceEntry::decode(id, bytes, &geometry).transpose() {
                visit(entry.map(|entry| (id, entry)));
            }
        }
    }

    /// The pieces of the first page at or behind `from` that is there.
    pub(super) fn counted_from(&self, from: u64) -> CountedPage {
        let Some((number, page)) = self.table.first_from(from)? else { return Ok(None) };
        let mut pieces = Vec::new();
        let mut failure = None;
        self.for_each_of(number, page.bytes(), &mut |entry| match entry {
            Ok((id, entry)) => pieces.push((id, u64::from(entry.location.len))),
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(Some((number, pieces))), |error| Err((number, error)))
    }
}
