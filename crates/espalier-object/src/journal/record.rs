//! The bytes of a journal: its header, and the head of a record, a block each.

use crate::format::{MAX_BLOCKS, Malformed};
use espalier_storage::{AlignedBuf, BLOCK};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: [u8; 8] = *b"ESPALJNL";
const VERSION: u32 = 1;
/// Bytes of a header before its checksum.
const HEADER_BYTES: usize = 36;

/// What a record begins with.
const RECORD_MAGIC: [u8; 8] = *b"ESPALJRC";
/// Bytes of a head before the changes, and of a change.
const FIXED_BYTES: usize = 64;
const CHANGE_BYTES: usize = 16;
const SUM_AT: usize = BLOCK - 8;

/// Most blocks of a record: 1 MiB.
pub(crate) const MAX_RECORD_BLOCKS: u64 = 256;

/// No writer gets near this number of a record: whatever is added to one cannot overflow.
pub(super) const MAX_COUNTER: u64 = 1 << 62;

/// Most changes of a record.
pub(super) const MAX_CHANGES: usize = (SUM_AT - FIXED_BYTES) / CHANGE_BYTES;

/// What a journal is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The store's device.
    pub(super) uuid: [u8; 16],
    /// The journal, not 0.
    pub(super) id: u64,
}

impl Header {
    pub(super) fn encode(&self) -> AlignedBuf {
        let mut block = AlignedBuf::zeroed(BLOCK);
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..28].copy_from_slice(&self.uuid);
        block[28..HEADER_BYTES].copy_from_slice(&self.id.to_le_bytes());
        let sum = xxh3_64(&block[..HEADER_BYTES]);
        block[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Reads a header; `None` if the block is all zeros.
    ///
    /// # Errors
    /// If it is neither.
    pub(super) fn decode(block: &[u8]) -> Result<Option<Self>, Malformed> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let short = || Malformed::new("it is cut off");
        let (head, rest) = block.split_at_checked(HEADER_BYTES).ok_or_else(short)?;
        if head[..8] != MAGIC {
            return Err(Malformed::new("it begins with something else"));
        }
        if head[8..12] != VERSION.to_le_bytes() {
            return Err(Malformed::new("it was written by a newer Espalier"));
        }
        if rest.get(..8) != Some(&xxh3_64(head).to_le_bytes()[..]) {
            return Err(Malformed::new("the checksum of its header is wrong"));
        }
        let uuid = head[12..28].try_into().unwrap_or_default();
        Ok(Some(Self { uuid, id: number(head, 28).unwrap_or(0) }))
    }
}

/// One change of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    /// The first block.
    pub(crate) start: u64,
    /// How many.
    pub(crate) blocks: u32,
    /// They are discarded; else they are written.
    pub(crate) discard: bool,
}

/// What a record says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// The journal.
    pub(super) journal: u64,
    /// Its number.
    pub(super) number: u64,
    /// The epoch of its writer.
    pub(super) epoch: u32,
    /// The last record that the writer knew to be in the store.
    pub(super) covered: u64,
    /// The last record that the writer knew to be durable.
    pub(super) synced: u64,
    /// Blocks behind the head: those that are written, at most [`MAX_RECORD_BLOCKS`].
    pub(super) blocks: u32,
    /// Their checksum.
    pub(super) data_sum: u64,
    /// What changes, in order.
    pub(super) changes: Vec<Change>,
}

impl Head {
    pub(super) fn encode(&self) -> AlignedBuf {
        let mut block = AlignedBuf::zeroed(BLOCK);
        block[..8].copy_from_slice(&RECORD_MAGIC);
        let numbers = [self.journal, self.number, self.covered, self.synced, self.data_sum];
        for (place, number) in block[8..48].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let count = self.changes.len().min(MAX_CHANGES) as u32;
        for (place, number) in block[48..60].chunks_exact_mut(4).zip([self.epoch, self.blocks, count]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        for (place, change) in block[FIXED_BYTES..SUM_AT].chunks_exact_mut(CHANGE_BYTES).zip(&self.changes) {
            place[..8].copy_from_slice(&change.start.to_le_bytes());
            place[8..12].copy_from_slice(&change.blocks.to_le_bytes());
            place[12] = u8::from(change.discard);
        }
        let sum = xxh3_64(&block[..SUM_AT]);
        block[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Reads the head of a record; `None` if it is none, or says what no writer says.
    pub(super) fn decode(block: &[u8]) -> Option<Self> {
        let (head, sum) = block.split_at_checked(SUM_AT)?;
        if head[..8] != RECORD_MAGIC || sum != xxh3_64(head).to_le_bytes() {
            return None;
        }
        let half = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let count = half(56)? as usize;
        let changes = head[FIXED_BYTES..].chunks_exact(CHANGE_BYTES).take(count).map(|place| {
            let blocks = u32::from_le_bytes(place.get(8..12)?.try_into().ok()?);
            Some(Change { start: number(place, 0)?, blocks, discard: place[12] != 0 })
        });
        let changes: Vec<Change> = changes.collect::<Option<_>>()?;
        let blocks = half(52)?;
        let written: u64 = changes.iter().filter(|change| !change.discard).map(|c| u64::from(c.blocks)).sum();
        let inside = |change: &Change| {
            change.start.checked_add(u64::from(change.blocks)).is_some_and(|end| end <= MAX_BLOCKS)
        };
        if changes.len() != count || written != u64::from(blocks) || !changes.iter().all(inside) {
            return None;
        }
        let counters = [number(head, 16)?, number(head, 24)?, number(head, 32)?];
        if written > MAX_RECORD_BLOCKS || counters.iter().any(|counter| *counter > MAX_COUNTER) {
            return None;
        }
        let [own, covered, synced] = counters;
        Some(Self {
            journal: number(head, 8)?,
            number: own,
            covered,
            synced,
            data_sum: number(head, 40)?,
            epoch: half(48)?,
            blocks,
            changes,
        })
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The checksum of the blocks of a record of a journal.
pub(super) fn data_sum(journal: u64, number: u64, buffers: &[&[u8]]) -> u64 {
    let mut sum = Xxh3::with_seed(journal ^ number);
    buffers.iter().for_each(|buffer| sum.update(buffer));
    sum.digest()
}
