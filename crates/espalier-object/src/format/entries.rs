//! What tables and roots have in them: objects, pages, places.

use super::id::{ObjectId, ObjectKind};
use super::wire::{Malformed, Reader, put_varint};
use crate::runs::Place;

/// An object that is not in the object table yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewObject {
    /// The object.
    pub(crate) id: ObjectId,
    /// Its nonce.
    pub(crate) nonce: u64,
    /// What it holds.
    pub(crate) kind: ObjectKind,
    /// Blocks in it.
    pub(crate) blocks: u32,
    /// Bytes of header and index.
    pub(crate) header_bytes: u32,
    /// Its length in bytes.
    pub(crate) bytes: u32,
}

/// Where a page of the map lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageReference {
    /// The object.
    pub(crate) object: ObjectId,
    /// Its first byte there.
    pub(crate) offset: u32,
    /// Its bytes, the checksum included.
    pub(crate) length: u32,
}

impl NewObject {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.0.to_le_bytes());
        out.extend_from_slice(&self.nonce.to_le_bytes());
        out.push(self.kind.code());
        for number in [self.blocks, self.header_bytes, self.bytes] {
            put_varint(out, u64::from(number));
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            id: ObjectId(reader.u64()?),
            nonce: reader.u64()?,
            kind: ObjectKind::of_code(reader.u8()?)?,
            blocks: reader.varint32()?,
            header_bytes: reader.varint32()?,
            bytes: reader.varint32()?,
        })
    }
}

impl PageReference {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.object.0.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { object: ObjectId(reader.u64()?), offset: reader.u32()?, length: reader.u32()? })
    }
}

pub(super) fn put_place(out: &mut Vec<u8>, place: Place) {
    put_varint(out, u64::from(place.object.epoch()));
    put_varint(out, place.object.0 & u64::from(u32::MAX));
    put_varint(out, u64::from(place.index));
}

pub(super) fn take_place(reader: &mut Reader<'_>) -> Result<Place, Malformed> {
    let object = ObjectId::new(reader.varint32()?, reader.varint32()?);
    Ok(Place { object, index: reader.varint32()? })
}
