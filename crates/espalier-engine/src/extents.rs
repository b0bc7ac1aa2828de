//! Scattered pieces: what lies where no free run is long enough for it.
//!
//! A piece is written to one run of blocks as long as there is one. In a store that is nearly full
//! the free blocks may lie apart; then the piece is written to several runs, and a chain of *list
//! blocks* says which. So a store can use its last blocks, and whether a write fits is a matter of
//! counting.
//!
//! Format of an extent block (`docs/format.md`, "Scattered pieces"): XXH3 of the rest, seeded with
//! the piece's id; the next extent block or 0; the number of runs; the runs.
//!
//! Invariants: the runs are disjoint and together as long as the piece, in blocks; an extent block
//! is believed only after its checksum, which no other piece's list has.

use crate::device::GuardedDevice;
use crate::model::error::Context;
use crate::model::ids::Location;
use crate::{Error, Extent, PieceId, Result};
use espalier_storage::{AlignedBuf, BLOCK};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const HEADER_BYTES: usize = 24;
const ENTRY_BYTES: usize = 12;
/// Runs that one extent block names.
const RUNS_PER_BLOCK: usize = (BLOCK - HEADER_BYTES) / ENTRY_BYTES;

/// Where a scattered piece lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExtentList {
    /// Its blocks, in order.
    runs: Vec<Extent>,
    /// The blocks that say so; the first is what the piece's [`Location`] names.
    blocks: Vec<u64>,
}

impl ExtentList {
    /// Extent blocks that are needed for so many runs.
    pub(crate) fn blocks_for(runs: usize) -> usize {
        runs.div_ceil(RUNS_PER_BLOCK).max(1)
    }

    /// A piece in `runs`, described in `blocks`, which are as many as [`ExtentList::blocks_for`]
    /// says.
    pub(crate) fn new(runs: Vec<Extent>, blocks: Vec<u64>) -> Self {
        debug_assert_eq!(blocks.len(), Self::blocks_for(runs.len()));
        Self { runs, blocks }
    }

    /// The first extent block: the extent in the piece's [`Location`].
    pub(crate) fn first(&self) -> Extent {
        Extent { start: self.blocks.first().copied().unwrap_or(0), blocks: 1 }
    }

    /// The runs that hold the piece, in order.
    pub(crate) fn runs(&self) -> &[Extent] {
        &self.runs
    }

    /// All blocks that the piece occupies: its own and the list's.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let lists = self.blocks.iter().map(|block| Extent { start: *block, blocks: 1 });
        self.runs.iter().copied().chain(lists)
    }

    /// The extent blocks and what they hold.
    pub(crate) fn encode(&self, id: PieceId) -> Vec<(Extent, AlignedBuf)> {
        let encode = |(i, place): (usize, &u64)| {
            let mut block = AlignedBuf::zeroed(BLOCK);
            let runs = &self.runs
                [(i * RUNS_PER_BLOCK).min(self.runs.len())..((i + 1) * RUNS_PER_BLOCK).min(self.runs.len())];
            let next = self.blocks.get(i + 1).copied().unwrap_or(0);
            block[8..16].copy_from_slice(&next.to_le_bytes());
            block[16..20].copy_from_slice(&(runs.len() as u32).to_le_bytes());
            for (entry, run) in block[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES).zip(runs) {
                entry[..8].copy_from_slice(&run.start.to_le_bytes());
                entry[8..].copy_from_slice(&run.blocks.to_le_bytes());
            }
            let sum = xxh3_64_with_seed(&block[8..], id.0);
            block[..8].copy_from_slice(&sum.to_le_bytes());
            (Extent { start: *place, blocks: 1 }, block)
        };
        self.blocks.iter().enumerate().map(encode).collect()
    }

    /// Reads the extent list of the piece `id`, which is scattered.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if an extent block is not what was
    /// written, or what the device says.
    pub(crate) fn load(device: &GuardedDevice, id: PieceId, location: &Location) -> Result<Self> {
        let doing = || format!("reading where piece {id} lies");
        let mut left = u64::from(location.len).div_ceil(BLOCK as u64);
        let mut list = Self { runs: Vec::new(), blocks: Vec::new() };
        let mut next = location.extent.start;
        let end = device.len() / BLOCK as u64;
        // Each extent block names some of what is left, so the chain ends.
        while left > 0 {
            if next == 0 || next >= end {
                return Err(damaged("its list leads outside the device")).context(doing);
            }
            let block = device.read_extent(Extent { start: next, blocks: 1 }).context(doing)?;
            if u64_at(&block, 0) != xxh3_64_with_seed(&block[8..], id.0) {
                return Err(damaged(&format!("block {next} does not hold its list"))).context(doing);
            }
            let count = u32_at(&block, 16) as usize;
            if count == 0 || count > RUNS_PER_BLOCK {
                return Err(damaged("its list has an impossible length")).context(doing);
            }
            list.blocks.push(next);
            for entry in block[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).take(count) {
                let run = Extent { start: u64_at(entry, 0), blocks: u32_at(entry, 8) };
                if run.blocks == 0 || run.start == 0 || run.end() > end || u64::from(run.blocks) > left {
                    return Err(damaged("its list makes no sense")).context(doing);
                }
                left -= u64::from(run.blocks);
                list.runs.push(run);
            }
            next = u64_at(&block, 8);
        }
        Ok(list)
    }

    /// The bytes of the device where `bytes` of the piece lie, in order. What is behind its end is
    /// left out.
    pub(crate) fn ranges(&self, bytes: Range<u64>) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        let mut at = 0;
        for run in &self.runs {
            let len = run.byte_len() as u64;
            let (start, end) = (bytes.start.max(at), bytes.end.min(at + len));
            if start < end {
                let first = run.byte_offset() + (start - at);
                found.push(first..first + (end - start));
            }
            at += len;
        }
        found
    }

    /// Fills `out` with the piece's bytes from `offset` on.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if the piece is shorter, or what the
    /// device says.
    pub(crate) fn read(&self, device: &GuardedDevice, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut at = 0;
        for range in self.ranges(offset..offset + out.len() as u64) {
            let end = at + (range.end - range.start) as usize;
            device.read_at(range.start, &mut out[at..end])?;
            at = end;
        }
        if at < out.len() {
            return Err(damaged("it is shorter than what refers to it says"));
        }
        Ok(())
    }
}

fn damaged(what: &str) -> Error {
    Error::damaged(what)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PieceKind;
    use espalier_storage::MemoryDevice;
    use std::sync::Arc;

    fn device() -> Arc<GuardedDevice> {
        GuardedDevice::new(Arc::new(MemoryDevice::new(8 << 20)), false)
    }

    fn store(device: &GuardedDevice, id: PieceId, list: &ExtentList) -> Location {
        for (place, block) in list.encode(id) {
            device.write_at(place.byte_offset(), &[&block]).unwrap();
        }
        let blocks: u32 = list.runs.iter().map(|run| run.blocks).sum();
        let len = blocks * BLOCK as u32 - 17;
        Location { extent: list.first(), len, checksum: 0, kind: PieceKind::Values, scattered: true }
    }

    #[test]
    fn what_is_written_is_read() {
        let device = device();
        for runs in [1, 2, RUNS_PER_BLOCK, RUNS_PER_BLOCK + 1, 2 * RUNS_PER_BLOCK + 5] {
            let runs: Vec<Extent> =
                (0..runs as u64).map(|i| Extent { start: 10 + 2 * i, blocks: 1 }).collect();
            let lists = (0..ExtentList::blocks_for(runs.len()) as u64).map(|i| 1990 - 3 * i).collect();
            let list = ExtentList::new(runs, lists);
            let location = store(&device, PieceId(7), &list);
            assert_eq!(ExtentList::load(&device, PieceId(7), &location).unwrap(), list);
            // Another piece's list is none of ours.
            assert_eq!(
                ExtentList::load(&device, PieceId(8), &location).unwrap_err().kind(),
                crate::ErrorKind::Damaged
            );
        }
    }

    #[test]
    fn any_damage_is_an_error() {
        let device = device();
        let list =
            ExtentList::new(vec![Extent { start: 9, blocks: 3 }, Extent { start: 20, blocks: 2 }], vec![5]);
        let location = store(&device, PieceId(3), &list);
        let sound = device.read_extent(list.first()).unwrap();
        for at in 0..HEADER_BYTES + 2 * ENTRY_BYTES {
            let mut block = AlignedBuf::zeroed(BLOCK);
            block.copy_from_slice(&sound);
            block[at] ^= 0x10;
            device.write_at(list.first().byte_offset(), &[&block]).unwrap();
            assert!(ExtentList::load(&device, PieceId(3), &location).is_err(), "byte {at}");
        }
        // With a sum that fits, too, what makes no sense is refused.
        for (runs, next) in
            [(vec![(9, 0)], 0), (vec![(9, 9)], 0), (vec![(9, 3)], 1 << 60), (vec![(1 << 40, 5)], 0)]
        {
            let mut block = AlignedBuf::zeroed(BLOCK);
            block[8..16].copy_from_slice(&u64::to_le_bytes(next));
            block[16..20].copy_from_slice(&(runs.len() as u32).to_le_bytes());
            for (entry, (start, blocks)) in block[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES).zip(runs) {
                entry[..8].copy_from_slice(&u64::to_le_bytes(start));
                entry[8..].copy_from_slice(&u32::to_le_bytes(blocks));
            }
            let sum = xxh3_64_with_seed(&block[8..], 3);
            block[..8].copy_from_slice(&sum.to_le_bytes());
            device.write_at(list.first().byte_offset(), &[&block]).unwrap();
            assert!(ExtentList::load(&device, PieceId(3), &location).is_err());
        }
    }

    #[test]
    fn ranges_follow_the_runs() {
        let block = BLOCK as u64;
        let list =
            ExtentList::new(vec![Extent { start: 9, blocks: 3 }, Extent { start: 20, blocks: 2 }], vec![5]);
        assert_eq!(list.ranges(0..5 * block), [9 * block..12 * block, 20 * block..22 * block]);
        assert_eq!(list.ranges(block + 5..block + 9), vec![10 * block + 5..10 * block + 9]);
        assert_eq!(list.ranges(2 * block..4 * block), [11 * block..12 * block, 20 * block..21 * block]);
        assert_eq!(list.ranges(5 * block..9 * block), []);
    }
}
