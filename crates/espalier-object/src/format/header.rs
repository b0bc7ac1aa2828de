//! Header, index and frames of a segment; the header of a map object.

use super::id::{ObjectId, ObjectKind};
use super::wire::{Malformed, Reader, put_varint};
use espalier_storage::BLOCK;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Blocks of a frame.
pub(crate) const FRAME_BLOCKS: u32 = 16;

/// Bytes behind the blocks of a frame: a checksum, and room for an authentication tag.
pub(crate) const TRAILER_BYTES: usize = 32;

/// Bytes of a header without the index.
const HEADER_BYTES: usize = 64;
const SUM_AT: usize = HEADER_BYTES - 8;
const MAGIC: [u8; 8] = *b"ESPALOBJ";
const VERSION: u16 = 1;

/// Bytes of a frame of so many blocks.
pub(crate) const fn frame_bytes(blocks: u32) -> usize {
    blocks as usize * BLOCK + TRAILER_BYTES
}

/// How many frames so many blocks take.
pub(crate) fn frames(blocks: u32) -> u32 {
    blocks.div_ceil(FRAME_BLOCKS)
}

/// The checksum of a frame's blocks.
pub(crate) fn frame_sum(id: ObjectId, nonce: u64, frame: u32, blocks: &[u8]) -> u64 {
    xxh3_64_with_seed(blocks, seed(id, nonce) ^ (u64::from(frame) << 1 | 1))
}

fn seed(id: ObjectId, nonce: u64) -> u64 {
    nonce ^ id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What stands behind the blocks of a frame.
pub(crate) fn trailer(sum: u64) -> [u8; TRAILER_BYTES] {
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..8].copy_from_slice(&sum.to_le_bytes());
    trailer
}

/// The blocks of a frame.
///
/// # Errors
/// If they are not what was written there.
pub(crate) fn open_frame(id: ObjectId, nonce: u64, frame: u32, bytes: &[u8]) -> Result<&[u8], Malformed> {
    let blocks = bytes.len().checked_sub(TRAILER_BYTES).filter(|length| length.is_multiple_of(BLOCK));
    let (blocks, behind) = bytes.split_at(blocks.ok_or_else(|| Malformed::new("a frame is cut off"))?);
    if behind != trailer(frame_sum(id, nonce, frame, blocks)) {
        return Err(Malformed::new(format!("the checksum of frame {frame} is wrong")));
    }
    Ok(blocks)
}

/// What stands at the front of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// The object.
    pub(crate) id: ObjectId,
    /// The nonce of the session that put it.
    pub(crate) nonce: u64,
    /// What it holds.
    pub(crate) kind: ObjectKind,
    /// Blocks in it; 0 in a map object.
    pub(crate) blocks: u32,
    /// Which blocks of the device they were, as runs: first block and number of blocks.
    pub(crate) index: Vec<(u64, u32)>,
}

impl Header {
    /// The bytes of header and index.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut index = Vec::new();
        put_varint(&mut index, self.index.len() as u64);
        for (first, blocks) in &self.index {
            put_varint(&mut index, *first);
            put_varint(&mut index, u64::from(*blocks));
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + index.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        // Kind, and cipher: none.
        bytes.extend_from_slice(&[self.kind.code(), 0]);
        bytes.extend_from_slice(&(index.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.id.0.to_le_bytes());
        bytes.extend_from_slice(&self.nonce.to_le_bytes());
        bytes.extend_from_slice(&self.blocks.to_le_bytes());
        bytes.resize(SUM_AT, 0);
        let sum = Self::sum(self.id, self.nonce, &bytes, &index);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(&index);
        bytes
    }

    /// Reads header and index of the object `id`.
    ///
    /// # Errors
    /// If they are not what was written there.
    pub(crate) fn decode(id: ObjectId, nonce: u64, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let head = reader.take(HEADER_BYTES)?;
        let mut fields = Reader(head);
        if fields.take(8)? != MAGIC {
            return Err(Malformed::new("it is no object of a store"));
        }
        let version = fields.u16()?;
        if version != VERSION {
            return Err(Malformed::new(format!("its format {version} is newer than this program")));
        }
        let kind = ObjectKind::of_code(fields.u8()?)?;
        if fields.u8()? != 0 {
            return Err(Malformed::new("it is encrypted in a way that this program does not know"));
        }
        let index_bytes = fields.u32()?;
        let found = (ObjectId(fields.u64()?), fields.u64()?);
        let blocks = fields.u32()?;
        let index = reader.take(index_bytes as usize)?;
        let sum = Self::sum(id, nonce, &head[..SUM_AT], index);
        if found != (id, nonce) || head[SUM_AT..] != sum.to_le_bytes() {
            return Err(Malformed::new("the checksum of its header is wrong"));
        }
        let mut reader = Reader(index);
        let count = reader.count()?;
        let mut index = Vec::with_capacity(count);
        let mut total = 0u64;
        for _ in 0..count {
            let run = (reader.varint()?, reader.varint32()?);
            total += u64::from(run.1);
            index.push(run);
        }
        reader.end()?;
        if total != u64::from(blocks) {
            return Err(Malformed::new("its index has another number of blocks than its header"));
        }
        Ok(Self { id, nonce, kind, blocks, index })
    }

    fn sum(id: ObjectId, nonce: u64, head: &[u8], index: &[u8]) -> u64 {
        xxh3_64_with_seed(index, xxh3_64_with_seed(head, seed(id, nonce)))
    }
}
