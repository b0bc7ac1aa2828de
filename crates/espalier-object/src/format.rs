//! Format: the bytes of the objects. The tables are in docs/format.md, "Object store".
//!
//! Invariants: every length is checked before it is used; nothing is used whose checksum is wrong;
//! each checksum is seeded with the place that its bytes belong to.

mod entries;
mod header;
mod id;
mod root;
mod tables;
mod wire;

pub(crate) use entries::{NewObject, PageReference};
pub(crate) use header::{
    FRAME_BLOCKS, Header, TRAILER_BYTES, frame_bytes, frame_sum, frames, open_frame, trailer,
};
pub(crate) use id::{ObjectId, ObjectKind};
pub(crate) use root::{Holder, JournalPosition, MAX_BLOCKS, MapReference, Root};
pub(crate) use tables::{
    decode_directory, decode_objects, decode_page, encode_directory, encode_objects, encode_page,
    open_section, section,
};
pub(crate) use wire::Malformed;

#[cfg(test)]
mod tests;
