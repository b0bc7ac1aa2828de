//! Scan: what the two halves of a journal have, after the death of its writer.
//!
//! Protocol: the records of a half are read from its front on, up to the first that is not whole or
//! does not follow the one before. Behind it each block is looked at: it may be the head of a
//! record that a power cut or damage cut off from those before, or be left of an earlier use of the
//! half.
//!
//! Invariant: a read of a record that the store does not have is an error if it fails, and does not
//! end the records. Only behind them are blocks that cannot be read passed over: no record is known
//! to be there.

use super::record::{Change, Head, MAX_RECORD_BLOCKS, data_sum};
use espalier_storage::{AlignedBuf, BLOCK, Device, Result};
use std::ops::Range;

/// A record of a half.
#[derive(Debug)]
pub(crate) struct Record {
    pub(super) head: Head,
    /// The block of the device where it begins.
    block: u64,
}

impl Record {
    /// What it changes, in order.
    pub(crate) fn changes(&self) -> &[Change] {
        &self.head.changes
    }

    /// Its number.
    pub(crate) fn number(&self) -> u64 {
        self.head.number
    }

    /// The blocks that it writes; `None` if they are not what was appended.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn blocks(&self, device: &dyn Device) -> Result<Option<AlignedBuf>> {
        let mut data = AlignedBuf::zeroed(self.head.blocks as usize * BLOCK);
        if !data.is_empty() {
            device.read_at((self.block + 1) * BLOCK as u64, &mut data)?;
        }
        let sum = data_sum(self.head.journal, self.head.number, &[&data]);
        Ok((sum == self.head.data_sum).then_some(data))
    }
}

/// What the head of a record says, wherever it was found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trace {
    pub(super) number: u64,
    pub(super) epoch: u32,
    pub(super) covered: u64,
    pub(super) synced: u64,
    /// It changes nothing.
    pub(super) is_empty: bool,
}

impl Trace {
    /// What a head says.
    pub(super) fn of(head: &Head) -> Self {
        let Head { number, epoch, covered, synced, ref changes, .. } = *head;
        Self { number, epoch, covered, synced, is_empty: changes.is_empty() }
    }
}

/// What the halves have.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The records of each half from its front up to the first that is not whole.
    pub(super) records: Vec<Record>,
    /// The heads behind those.
    pub(super) traces: Vec<Trace>,
}

/// All that the two halves of journal `id` have; of the heads behind the records only those that
/// `wanted` accepts. The store has all up to record number `stored`.
///
/// # Errors
/// What the device says.
pub(super) fn scan(
    device: &dyn Device,
    id: u64,
    half_blocks: u64,
    stored: u64,
    wanted: &dyn Fn(&Trace) -> bool,
) -> Result<Found> {
    let mut found = Found::default();
    for half in 0..2 {
        let front = 1 + half * half_blocks;
        let end = front + half_blocks;
        let first_wrong = records(device, id, front..end, stored, &mut found.records)?;
        traces(device, id, first_wrong..end, wanted, &mut found.traces);
    }
    Ok(found)
}

/// Takes the records from the front of a half on; returns the block behind them.
///
/// # Errors
/// What the device says.
fn records(
    device: &dyn Device,
    id: u64,
    half: Range<u64>,
    stored: u64,
    found: &mut Vec<Record>,
) -> Result<u64> {
    let (mut block, mut before) = (half.start, None);
    while block < half.end {
        let mut bytes = AlignedBuf::zeroed(BLOCK);
        device.read_at(block * BLOCK as u64, &mut bytes)?;
        let Some(head) = Head::decode(&bytes).filter(|head| head.journal == id) else { break };
        let follows = before.is_none_or(|(number, epoch)| head.number == number + 1 && head.epoch >= epoch);
        let next = block + 1 + u64::from(head.blocks);
        if !follows || next > half.end {
            break;
        }
        before = Some((head.number, head.epoch));
        let record = Record { head, block };
        let is_whole = match record.blocks(device) {
            // It is not needed.
            Err(_) if record.number() <= stored => false,
            read => read?.is_some(),
        };
        if !is_whole {
            break;
        }
        found.push(record);
        block = next;
    }
    Ok(block)
}

/// Takes each block that is the head of a record, wherever it lies.
fn traces(
    device: &dyn Device,
    id: u64,
    blocks: Range<u64>,
    wanted: &dyn Fn(&Trace) -> bool,
    found: &mut Vec<Trace>,
) {
    let mut buffer = AlignedBuf::zeroed(MAX_RECORD_BLOCKS as usize * BLOCK);
    let mut passed_over = 0;
    let mut block = blocks.start;
    while block < blocks.end {
        let count = (blocks.end - block).min(MAX_RECORD_BLOCKS);
        let part = &mut buffer[..count as usize * BLOCK];
        if device.read_at(block * BLOCK as u64, part).is_err() {
            passed_over += read_each(device, block, part);
        }
        let heads = part.chunks_exact(BLOCK).filter_map(Head::decode);
        let heads = heads.filter(|head| head.journal == id).map(|head| Trace::of(&head));
        found.extend(heads.filter(wanted));
        block += count;
    }
    if passed_over > 0 {
        let journal = device.name();
        tracing::warn!(journal, blocks = passed_over, "behind the last record, blocks cannot be read");
    }
}

/// Reads block by block; returns how many cannot be read, which are zeros then.
fn read_each(device: &dyn Device, first: u64, buffer: &mut [u8]) -> usize {
    let mut failures = 0;
    for (block, bytes) in (first..).zip(buffer.chunks_exact_mut(BLOCK)) {
        if device.read_at(block * BLOCK as u64, bytes).is_err() {
            bytes.fill(0);
            failures += 1;
        }
    }
    failures
}
