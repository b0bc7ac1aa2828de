//! Sections of a map object: pages of the map, directory, object table.
//!
//! A section is its bytes and a checksum, seeded with object and offset.

use super::entries::{NewObject, PageReference, put_place, take_place};
use super::id::ObjectId;
use super::wire::{Malformed, Reader, put_varint};
use crate::objects::{ObjectEntry, ObjectTable};
use crate::pages::{PAGE_BLOCKS, PageNumber};
use crate::runs::{Run, RunMap};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const SUM_BYTES: usize = 8;

/// Appends a section to a map object that has `out` already; says where it lies.
pub(crate) fn section(id: ObjectId, nonce: u64, out: &mut Vec<u8>, bytes: &[u8]) -> (u32, u32) {
    let offset = out.len() as u32;
    out.extend_from_slice(bytes);
    out.extend_from_slice(&sum(id, nonce, offset, bytes).to_le_bytes());
    (offset, (bytes.len() + SUM_BYTES) as u32)
}

/// The bytes of a section that lay at `offset`.
///
/// # Errors
/// If they are not what was written there.
pub(crate) fn open_section(id: ObjectId, nonce: u64, offset: u32, bytes: &[u8]) -> Result<&[u8], Malformed> {
    let length = bytes.len().checked_sub(SUM_BYTES).ok_or_else(|| Malformed::new("a section is cut off"))?;
    let (bytes, behind) = bytes.split_at(length);
    if behind != sum(id, nonce, offset, bytes).to_le_bytes() {
        return Err(Malformed::new(format!("the checksum of the section at byte {offset} is wrong")));
    }
    Ok(bytes)
}

fn sum(id: ObjectId, nonce: u64, offset: u32, bytes: &[u8]) -> u64 {
    let seed = nonce ^ id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(offset) << 1);
    xxh3_64_with_seed(bytes, seed)
}

/// The bytes of a page of the map.
pub(crate) fn encode_page(page: PageNumber, runs: &RunMap) -> Vec<u8> {
    let base = page.first_block();
    let mut out = Vec::with_capacity(16 * runs.len());
    put_varint(&mut out, runs.len() as u64);
    let mut at = base;
    for run in runs.iter() {
        put_varint(&mut out, run.start - at);
        put_varint(&mut out, u64::from(run.blocks));
        if let Some(place) = run.place {
            put_place(&mut out, place);
        }
        at = run.start + u64::from(run.blocks);
    }
    out
}

/// Reads a page of the map.
///
/// # Errors
/// If it is none.
pub(crate) fn decode_page(page: PageNumber, bytes: &[u8]) -> Result<RunMap, Malformed> {
    let mut reader = Reader(bytes);
    let mut at = page.first_block();
    let end = at + PAGE_BLOCKS;
    let mut runs = RunMap::default();
    for _ in 0..reader.count()? {
        let start = at.saturating_add(reader.varint()?);
        let blocks = reader.varint32()?;
        let run = Run { start, blocks, place: Some(take_place(&mut reader)?) };
        at = start.saturating_add(u64::from(blocks));
        if blocks == 0 || at > end || !run.place_fits() {
            return Err(Malformed::new("a run of the map lies outside its page"));
        }
        runs.append(run);
    }
    reader.end()?;
    Ok(runs)
}

/// The bytes of the directory.
pub(crate) fn encode_directory(pages: &BTreeMap<PageNumber, PageReference>) -> Vec<u8> {
    let mut out = Vec::with_capacity(24 * pages.len());
    put_varint(&mut out, pages.len() as u64);
    for (number, page) in pages {
        put_varint(&mut out, number.0);
        page.encode(&mut out);
    }
    out
}

/// Reads the directory.
///
/// # Errors
/// If it is none.
pub(crate) fn decode_directory(
    bytes: &[u8],
    blocks: u64,
) -> Result<BTreeMap<PageNumber, PageReference>, Malformed> {
    let mut reader = Reader(bytes);
    let mut pages = BTreeMap::new();
    for _ in 0..reader.count()? {
        let number = PageNumber(reader.varint()?);
        if number.0 > blocks / PAGE_BLOCKS {
            return Err(Malformed::new("a page of the map lies outside the device"));
        }
        pages.insert(number, PageReference::decode(&mut reader)?);
    }
    reader.end()?;
    Ok(pages)
}

/// The bytes of the object table.
pub(crate) fn encode_objects(objects: &ObjectTable) -> Vec<u8> {
    let mut out = Vec::with_capacity(40 * objects.len());
    put_varint(&mut out, objects.len() as u64);
    for entry in objects.iter() {
        entry.object.encode(&mut out);
        put_varint(&mut out, u64::from(entry.live));
        put_varint(&mut out, entry.died.map_or(0, |time| time.max(1)));
    }
    out
}

/// Reads the object table.
///
/// # Errors
/// If it is none.
pub(crate) fn decode_objects(bytes: &[u8]) -> Result<ObjectTable, Malformed> {
    let mut reader = Reader(bytes);
    let mut objects = ObjectTable::default();
    for _ in 0..reader.count()? {
        let object = NewObject::decode(&mut reader)?;
        let live = reader.varint32()?;
        let died = Some(reader.varint()?).filter(|time| *time != 0);
        objects.insert(ObjectEntry { object, live, died });
    }
    reader.end()?;
    Ok(objects)
}
