//! Blocks and groups: how the log lies on the device (docs/format.md, "Log").
//!
//! The region is a ring of blocks. A block's *number* counts from the format on and never repeats;
//! block `n` lies at place `n % blocks` of the region. A *group* is a row of consecutive blocks
//! that counts as a whole or not at all. Each block is checked by itself; the first also vouches
//! for the others of its group and names its predecessor by checksum, so that what a crashed
//! session wrote ahead of a torn group can never be taken for the continuation of what replaced it.

use crate::model::ids::sums_agree;
use crate::{Error, Lsn, Result};
use espalier_storage::{AlignedBuf, BLOCK};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// First word of a log block.
const MAGIC: u32 = u32::from_le_bytes(*b"EspL");
/// Bytes of a block header.
pub(super) const BLOCK_HEADER_BYTES: usize = 56;
/// Bytes of a group header, at the start of the first block's payload.
pub(super) const GROUP_HEADER_BYTES: usize = 48;
/// Payload bytes of a block.
pub(super) const BLOCK_PAYLOAD_BYTES: usize = BLOCK - BLOCK_HEADER_BYTES;
/// Blocks allocated at once while a group is built.
const SEGMENT_BLOCKS: usize = 64;
/// Length of an encoded [`LogPosition`].
pub(crate) const POSITION_BYTES: usize = 32;

/// Where replay starts: kept by the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogPosition {
    /// Number of the block with which the first group begins.
    pub(crate) block: u64,
    /// Batches up to this one need no replay, whatever the groups from `block` on hold.
    pub(crate) lsn: Lsn,
    /// What the first group must name as its predecessor.
    pub(crate) chain: u64,
    /// Blocks with smaller numbers were durable when this position was kept.
    pub(crate) synced: u64,
}

impl LogPosition {
    /// The bytes that [`LogPosition::decode`] reads.
    pub(crate) fn encode(&self) -> [u8; POSITION_BYTES] {
        let mut out = [0; POSITION_BYTES];
        for (chunk, word) in out.chunks_mut(8).zip([self.block, self.lsn.0, self.chain, self.synced]) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads what [`LogPosition::encode`] made; every bit pattern is a position.
    pub(crate) fn decode(bytes: &[u8; POSITION_BYTES]) -> Self {
        Self {
            block: u64_at(bytes, 0),
            lsn: Lsn(u64_at(bytes, 8)),
            chain: u64_at(bytes, 16),
            synced: u64_at(bytes, 24),
        }
    }
}

/// What tells the blocks of one store's log from all others: a hash of the store's uuid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreTag(u64);

impl StoreTag {
    pub(super) fn new(uuid: &[u8; 16]) -> Self {
        Self(xxh3_64_with_seed(uuid, u64::from(MAGIC)))
    }

    /// The predecessor of the first group of a log.
    pub(super) fn first_chain(self) -> u64 {
        xxh3_64_with_seed(b"no group before", self.0)
    }
}

/// The part of a block header that is not implied by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockHeader {
    /// Payload bytes used.
    pub(super) used: u16,
    /// The block's number.
    pub(super) number: u64,
    /// Blocks with smaller numbers were known durable when this one was written.
    pub(super) synced: u64,
    /// Random number of the session (from open to close) that wrote it.
    pub(super) session: u64,
    /// Place in the group, from 0.
    pub(super) index: u32,
    /// Blocks of the group.
    pub(super) count: u32,
    /// Checksum of the whole block.
    pub(super) checksum: u64,
}

impl BlockHeader {
    fn encode(&self, tag: StoreTag, block: &mut [u8]) -> u64 {
        block[8..12].copy_from_slice(&MAGIC.to_le_bytes());
        block[12..14].copy_from_slice(&self.used.to_le_bytes());
        block[14..16].fill(0);
        block[16..24].copy_from_slice(&tag.0.to_le_bytes());
        block[24..32].copy_from_slice(&self.number.to_le_bytes());
        block[32..40].copy_from_slice(&self.synced.to_le_bytes());
        block[40..48].copy_from_slice(&self.session.to_le_bytes());
        block[48..52].copy_from_slice(&self.index.to_le_bytes());
        block[52..56].copy_from_slice(&self.count.to_le_bytes());
        let checksum = xxh3_64_with_seed(&block[8..], tag.0 ^ self.number);
        block[..8].copy_from_slice(&checksum.to_le_bytes());
        checksum
    }

    /// The header of a block that was written for this store under some block number;
    /// `None` for everything else.
    pub(super) fn decode(tag: StoreTag, block: &[u8]) -> Option<Self> {
        if block.len() != BLOCK || u32_at(block, 8) != MAGIC || u64_at(block, 16) != tag.0 {
            return None;
        }
        let header = Self {
            used: u16::from_le_bytes([block[12], block[13]]),
            number: u64_at(block, 24),
            synced: u64_at(block, 32),
            session: u64_at(block, 40),
            index: u32_at(block, 48),
            count: u32_at(block, 52),
            checksum: u64_at(block, 0),
        };
        let intact = sums_agree(xxh3_64_with_seed(&block[8..], tag.0 ^ header.number), header.checksum);
        let sane = usize::from(header.used) <= BLOCK_PAYLOAD_BYTES
            && header.index < header.count
            && u64::from(header.index) <= header.number
            && header.synced <= header.number;
        (intact && sane).then_some(header)
    }

    /// Number of the first block of its group.
    pub(super) fn group_start(&self) -> u64 {
        self.number - u64::from(self.index)
    }

    /// Number of the block behind its group.
    pub(super) fn group_end(&self) -> u64 {
        self.group_start().saturating_add(u64::from(self.count))
    }
}

/// What the first block of a group says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupHeader {
    /// The first batch it holds.
    pub(super) first_lsn: Lsn,
    /// The last batch it holds.
    pub(super) last_lsn: Lsn,
    /// Checksum of the first block of the group before.
    pub(super) previous: u64,
    /// Hash of the checksums of the group's other blocks.
    pub(super) rest: u64,
    /// Number of batches.
    pub(super) batches: u32,
    /// Number of value parts it names.
    pub(super) parts: u32,
    /// Payload bytes behind this header.
    pub(super) length: u64,
}

impl GroupHeader {
    fn encode(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.first_lsn.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.last_lsn.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.previous.to_le_bytes());
        out[24..32].copy_from_slice(&self.rest.to_le_bytes());
        out[32..36].copy_from_slice(&self.batches.to_le_bytes());
        out[36..40].copy_from_slice(&self.parts.to_le_bytes());
        out[40..48].copy_from_slice(&self.length.to_le_bytes());
    }

    /// Reads the header from a group's first block, which has passed its own check.
    pub(super) fn decode(block: &[u8]) -> Self {
        let bytes = &block[BLOCK_HEADER_BYTES..];
        Self {
            first_lsn: Lsn(u64_at(bytes, 0)),
            last_lsn: Lsn(u64_at(bytes, 8)),
            previous: u64_at(bytes, 16),
            rest: u64_at(bytes, 24),
            batches: u32_at(bytes, 32),
            parts: u32_at(bytes, 36),
            length: u64_at(bytes, 40),
        }
    }
}

/// Hashes the checksums of the blocks behind a group's first.
pub(super) struct RestHash(Xxh3);

impl RestHash {
    pub(super) fn new(tag: StoreTag) -> Self {
        Self(Xxh3::with_seed(tag.0))
    }

    pub(super) fn add(&mut self, checksum: u64) {
        self.0.update(&checksum.to_le_bytes());
    }

    pub(super) fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// How many blocks a group with `length` payload bytes takes.
pub(super) fn blocks_for(length: u64) -> u64 {
    length.saturating_add(GROUP_HEADER_BYTES as u64).div_ceil(BLOCK_PAYLOAD_BYTES as u64)
}

/// Takes the payload of a group and lays it out in blocks as it comes.
pub(super) struct GroupBuilder {
    segments: Vec<AlignedBuf>,
    /// Blocks begun.
    blocks: usize,
    /// Payload bytes used in the last of them.
    used: usize,
    length: u64,
}

/// A finished group, ready to be written.
pub(super) struct BuiltGroup {
    segments: Vec<AlignedBuf>,
    /// Its number of blocks.
    pub(super) blocks: usize,
    /// Checksum of its first block, by which the next group names it.
    pub(super) chain: u64,
}

/// What a group needs to know about its place when it is finished.
pub(super) struct GroupPlace {
    pub(super) tag: StoreTag,
    /// Number of its first block.
    pub(super) number: u64,
    pub(super) synced: u64,
    pub(super) session: u64,
}

impl GroupBuilder {
    /// An empty group; `expected` payload bytes are allocated at once.
    pub(super) fn new(expected: u64) -> Self {
        let blocks = usize::try_from(blocks_for(expected)).unwrap_or(SEGMENT_BLOCKS).min(SEGMENT_BLOCKS);
        Self {
            segments: vec![AlignedBuf::zeroed(blocks * BLOCK)],
            blocks: 1,
            used: GROUP_HEADER_BYTES,
            length: 0,
        }
    }

    /// Payload bytes so far.
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// Appends to the payload.
    pub(super) fn put(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.used == BLOCK_PAYLOAD_BYTES {
                self.begin_block();
            }
            let n = bytes.len().min(BLOCK_PAYLOAD_BYTES - self.used);
            let at = BLOCK_HEADER_BYTES + self.used;
            block_mut(&mut self.segments, self.blocks - 1)[at..at + n].copy_from_slice(&bytes[..n]);
            self.used += n;
            bytes = &bytes[n..];
        }
    }

    fn begin_block(&mut self) {
        let room: usize = self.segments.iter().map(|s| s.len() / BLOCK).sum();
        if self.blocks == room {
            self.segments.push(AlignedBuf::zeroed(SEGMENT_BLOCKS * BLOCK));
        }
        self.blocks += 1;
        self.used = 0;
    }

    /// Fills in all headers. `header.rest` and `header.length` are set here.
    pub(super) fn finish(mut self, place: &GroupPlace, mut header: GroupHeader) -> BuiltGroup {
        let mut rest = RestHash::new(place.tag);
        let mut chain = 0;
        // The first block comes last: it vouches for the others.
        for index in (1..self.blocks).chain([0]) {
            let block = block_mut(&mut self.segments, index);
            if index == 0 {
                header.rest = rest.finish();
                header.length = self.length;
                header.encode(&mut block[BLOCK_HEADER_BYTES..]);
            }
            let used = if index + 1 == self.blocks { self.used } else { BLOCK_PAYLOAD_BYTES };
            let header = BlockHeader {
                used: used as u16,
                number: place.number + index as u64,
                synced: place.synced,
                session: place.session,
                index: index as u32,
                count: self.blocks as u32,
                checksum: 0,
            };
            chain = header.encode(place.tag, block);
            rest.add(chain);
        }
        BuiltGroup { segments: self.segments, blocks: self.blocks, chain }
    }
}

impl BuiltGroup {
    /// Blocks `from..to` of the group as buffers for one vectored write.
    pub(super) fn buffers(&self, from: usize, to: usize) -> Vec<&[u8]> {
        let mut buffers = Vec::with_capacity(self.segments.len());
        let mut first = 0;
        for segment in &self.segments {
            let behind = first + segment.len() / BLOCK;
            let (a, b) = (from.max(first), to.min(behind));
            if a < b {
                buffers.push(&segment[(a - first) * BLOCK..(b - first) * BLOCK]);
            }
            first = behind;
        }
        buffers
    }
}

fn block_mut(segments: &mut [AlignedBuf], index: usize) -> &mut [u8] {
    // All segments but the first have the same size.
    let first = segments[0].len() / BLOCK;
    let (segment, at) = if index < first {
        (0, index)
    } else {
        (1 + (index - first) / SEGMENT_BLOCKS, (index - first) % SEGMENT_BLOCKS)
    };
    &mut segments[segment][at * BLOCK..(at + 1) * BLOCK]
}

/// Little-endian word at `at`; the caller has checked the length.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// An error for a group with the right checksums and content that makes no sense.
pub(super) fn malformed(what: &str) -> Error {
    Error::damaged(format!("the log holds {what}; its checksums are right, so it was written wrongly"))
}

/// Converts a decoded length, which must not exceed `limit`.
pub(super) fn bounded(len: u64, limit: usize, what: &str) -> Result<usize> {
    match usize::try_from(len) {
        Ok(len) if len <= limit => Ok(len),
        _ => Err(malformed(&format!("{what} of {len} bytes where at most {limit} are possible"))),
    }
}
