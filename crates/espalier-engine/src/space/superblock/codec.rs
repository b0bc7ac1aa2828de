//! Superblocks as bytes: encoding, decoding, writing.

use super::{
    CHECKSUM_OFFSET, FEATURE_COPIES, FORMAT_VERSION, Geometry, LOG_START_BLOCK, MAGIC, MAX_BLOCKS,
    MAX_COUNTER, MAX_LABEL, MAX_TABLE_HEIGHT, Roots, SLOT_BLOCKS, SUPERBLOCK_BYTES, Superblock,
    SuperblockPlace, TableRoot,
};
use crate::device::GuardedDevice;
use crate::{Error, Extent, Lsn, Msn, PieceId, Result};
use espalier_storage::{AlignedBuf, BLOCK};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

impl Superblock {
    /// The block of the superblock as it must be in block `place`.
    fn encode(&self, place: u64) -> AlignedBuf {
        let mut block = AlignedBuf::zeroed(BLOCK);
        let mut at = Put { bytes: &mut block, at: 0 };
        at.put(&MAGIC);
        at.put(&FORMAT_VERSION.to_le_bytes());
        at.put(&[0; 4]);
        at.u64(self.compatible);
        at.u64(self.incompatible);
        at.put(&self.uuid);
        let mut label = [0; MAX_LABEL];
        let len = self.label.len().min(MAX_LABEL);
        label[..len].copy_from_slice(&self.label.as_bytes()[..len]);
        at.put(&label);
        at.u64(self.geometry.blocks);
        at.u64(self.geometry.log.start);
        at.u64(u64::from(self.geometry.log.blocks));
        at.u64(self.created.as_nanos() as u64);
        at.u64(self.generation);
        at.u64(self.checkpoint_lsn.0);
        at.u64(self.next_msn.0);
        at.u64(self.next_piece.0);
        at.put(&self.log_position);
        at.u64(self.checkpointed.as_nanos() as u64);
        at.put(&[u8::from(self.clean), self.compression, u8::from(self.untidy), 0, 0, 0, 0, 0]);
        for root in [self.roots.ntt, self.roots.space_map, self.roots.volumes, self.roots.reclaim] {
            at.u64(root.block);
            at.u64(root.checksum);
            at.put(&[root.height, 0, 0, 0, 0, 0, 0, 0]);
        }
        at.u64(self.dead_values);
        for root in [self.roots.ntt, self.roots.space_map, self.roots.volumes, self.roots.reclaim] {
            at.u64(root.copy);
        }
        let sum = checksum(&block, place);
        block[CHECKSUM_OFFSET..SUPERBLOCK_BYTES].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Decodes a block with the right magic, checksum and version.
    pub(super) fn decode(block: &[u8], place: SuperblockPlace) -> Result<Self> {
        let mut at = Get { bytes: block, at: 16 };
        let (compatible, incompatible) = (at.u64(), at.u64());
        let uuid = at.array();
        let label: [u8; MAX_LABEL] = at.array();
        let label_len = label.iter().position(|b| *b == 0).unwrap_or(MAX_LABEL);
        let blocks = at.u64();
        let (log_start, log_blocks) = (at.u64(), at.u64());
        let created = Duration::from_nanos(at.u64());
        let generation = at.u64();
        let (checkpoint_lsn, next_msn, next_piece) = (Lsn(at.u64()), Msn(at.u64()), PieceId(at.u64()));
        let log_position = at.array();
        let checkpointed = Duration::from_nanos(at.u64());
        let flags: [u8; 8] = at.array();
        let mut root = || {
            let (block, checksum) = (at.u64(), at.u64());
            let rest: [u8; 8] = at.array();
            TableRoot { block, copy: 0, checksum, height: rest[0] }
        };
        let mut roots = Roots { ntt: root(), space_map: root(), volumes: root(), reclaim: root() };
        let dead_values = at.u64();
        let copies = incompatible & FEATURE_COPIES != 0;
        if copies {
            for root in [&mut roots.ntt, &mut roots.space_map, &mut roots.volumes, &mut roots.reclaim] {
                root.copy = at.u64();
            }
        }
        let (Ok(label), Ok(log_blocks)) =
            (std::str::from_utf8(&label[..label_len]), u32::try_from(log_blocks))
        else {
            return Err(senseless(place, "the label or the log's size makes no sense"));
        };
        let log = Extent { start: log_start, blocks: log_blocks };
        if flags[0] > 1 {
            return Err(senseless(place, "a flag makes no sense"));
        }
        let superblock = Self {
            compatible,
            incompatible,
            uuid,
            label: label.into(),
            geometry: Geometry { blocks, log, copies },
            created,
            generation,
            checkpoint_lsn,
            next_msn,
            next_piece,
            log_position,
            checkpointed,
            clean: flags[0] == 1,
            compression: flags[1],
            roots,
            untidy: flags[2] != 0,
            dead_values,
        };
        superblock.validate(place)?;
        Ok(superblock)
    }

    /// Checks that the fields make sense together, and that it belongs to `place`.
    fn validate(&self, place: SuperblockPlace) -> Result<()> {
        let geometry = &self.geometry;
        let log = geometry.log;
        if log.start != LOG_START_BLOCK
            || log.blocks == 0
            || geometry.data_start() >= geometry.blocks.saturating_sub(1)
            || geometry.blocks > MAX_BLOCKS
        {
            return Err(senseless(place, "the geometry makes no sense"));
        }
        let counters = [self.generation, self.next_piece.0, self.next_msn.0];
        if counters.iter().any(|n| *n == 0 || *n > MAX_COUNTER) || self.checkpoint_lsn.0 > MAX_COUNTER {
            return Err(senseless(place, "a counter makes no sense"));
        }
        let belongs = match place {
            SuperblockPlace::Slot(slot) => self.generation % 2 == slot as u64,
            SuperblockPlace::Spare(block) => geometry.spare() == Some(block),
        };
        if !belongs {
            return Err(senseless(place, "it belongs to another place"));
        }
        let roots = &self.roots;
        for root in [roots.ntt, roots.space_map, roots.volumes, roots.reclaim] {
            let outside = |block| block != 0 && !geometry.holds(Extent { start: block, blocks: 1 });
            if root.height > MAX_TABLE_HEIGHT || outside(root.block) || outside(root.copy) {
                return Err(senseless(place, "a table root points outside the data region"));
            }
        }
        Ok(())
    }

    /// Writes it to its slot. Not durable before the next sync.
    ///
    /// # Errors
    /// Whatever the device says.
    pub(crate) fn write(&self, device: &GuardedDevice) -> Result<()> {
        let place = SLOT_BLOCKS[self.slot()];
        device.write_at(place * BLOCK as u64, &[&self.encode(place)])
    }

    /// Writes it to the spare place, if the store has one. Not durable before the next sync.
    ///
    /// # Errors
    /// Whatever the device says.
    pub(crate) fn write_spare(&self, device: &GuardedDevice) -> Result<()> {
        let Some(place) = self.geometry.spare() else { return Ok(()) };
        device.write_at(place * BLOCK as u64, &[&self.encode(place)])
    }
}

/// The error for a superblock with a right checksum and fields that make no sense.
fn senseless(place: SuperblockPlace, what: &str) -> Error {
    Error::damaged(format!("{place}: {what}"))
}

/// The checksum of the superblock in `block`, as it must be in block `place`.
pub(super) fn checksum(block: &[u8], place: u64) -> u64 {
    xxh3_64_with_seed(&block[..CHECKSUM_OFFSET], place)
}

/// Writes fields one after the other.
struct Put<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Put<'_> {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
}

/// Reads fields of a buffer that is known to be long enough.
pub(super) struct Get<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl Get<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}
