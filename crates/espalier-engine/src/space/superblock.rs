//! Superblocks: where a store begins, and what its last checkpoint consists of.
//!
//! Protocol: there are two slots. The superblock of generation `g` goes to slot `g % 2`, so a write
//! never touches the newest valid one. Each checkpoint is written twice: once its superblock is
//! durable, the other slot gets a copy, so that damage to one slot takes no checkpoint back. A superblock is complete in one 512-byte sector, which devices
//! write as a whole: a slot that is found damaged was damaged, not torn.
//!
//! Invariants: everything a superblock names was durable before it was written; the fields up to
//! `created` never change after `mkfs`, so each slot is a backup of the other's.
//!
//! The layout is in docs/format.md, "Geometry and superblocks".

use crate::device::GuardedDevice;
use crate::error::Context;
use crate::{Error, ErrorKind, Extent, Lsn, Msn, PieceId, Result};
use espalier_storage::{AlignedBuf, BLOCK};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The first eight bytes of a superblock.
pub(crate) const MAGIC: [u8; 8] = *b"ESPALIER";
/// The newest format this program reads, and the one it writes.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// The blocks of the two slots.
pub(crate) const SLOTS: [u64; 2] = [0, 16];
/// The first block of the log region.
pub(crate) const LOG_START: u64 = 32;
/// The smallest device a store fits on, in blocks.
pub(crate) const MIN_BLOCKS: u64 = 256;
/// The longest label, in bytes.
pub const MAX_LABEL: usize = 64;
/// The highest tree of table pages: eight levels of 256 pointers number 2^64 pages.
pub(super) const MAX_HEIGHT: u8 = 8;

/// No counter gets near this: whatever is added to one cannot overflow.
pub(super) const MAX_COUNTER: u64 = 1 << 62;

/// Incompatible features this program knows.
const KNOWN_INCOMPATIBLE: u64 = 0;
/// Bytes of a superblock: one sector.
const SIZE: usize = 512;
const SUM_AT: usize = SIZE - 8;

/// How the device is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Blocks of the device that belong to the store.
    pub(crate) blocks: u64,
    /// The log region.
    pub(crate) log: Extent,
}

impl Geometry {
    /// Divides a device of `device_bytes`; `log_bytes` is a wish, rounded and bounded.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the device is too small.
    pub(crate) fn new(device_bytes: u64, log_bytes: Option<u64>) -> Result<Self> {
        const MIB: u64 = 1 << 20;
        let blocks = device_bytes / BLOCK as u64;
        if blocks < MIN_BLOCKS {
            let least = MIN_BLOCKS * BLOCK as u64 / 1024;
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{device_bytes} bytes are too few for a store: at least {least} KiB are needed"),
            ));
        }
        let wish = log_bytes.unwrap_or((device_bytes / 16).clamp(MIB, 1024 * MIB));
        let log_blocks = (wish / BLOCK as u64).clamp(16, blocks / 4).min(u64::from(u32::MAX)) as u32;
        Ok(Self { blocks, log: Extent { start: LOG_START, blocks: log_blocks } })
    }

    /// The first block of the data region, which holds pieces and table pages.
    pub(crate) fn data_start(&self) -> u64 {
        self.log.end()
    }

    /// True if `extent` is not empty and lies in the data region.
    pub(crate) fn holds(&self, extent: Extent) -> bool {
        extent.blocks > 0
            && extent.start >= self.data_start()
            && extent.start.checked_add(u64::from(extent.blocks)).is_some_and(|end| end <= self.blocks)
    }
}

/// The root of a paged table; a block of 0 is the empty table.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableRoot {
    /// The block of the root page.
    pub(crate) block: u64,
    /// The root page's checksum.
    pub(crate) checksum: u64,
    /// Levels of interior pages.
    pub(crate) height: u8,
}

/// The tables of one checkpoint.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Roots {
    /// The node translation table.
    pub(crate) ntt: TableRoot,
    /// The space map: which blocks the checkpoint accounts for.
    pub(crate) space_map: TableRoot,
    /// The volume table.
    pub(crate) volumes: TableRoot,
    /// Nodes that nothing refers to but whose own references are not subtracted yet.
    pub(crate) reclaim: TableRoot,
}

/// What the store looked like at one checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Features an older program may ignore.
    pub(crate) compatible: u64,
    /// Features that forbid opening by a program that does not know them.
    pub(crate) incompatible: u64,
    /// Names the store; part of what tells its log from an older store's.
    pub(crate) uuid: [u8; 16],
    /// The user's name for it, at most [`MAX_LABEL`] bytes.
    pub(crate) label: String,
    /// How the device is divided.
    pub(crate) geometry: Geometry,
    /// When `mkfs` made it, since the Unix epoch.
    pub(crate) created: Duration,
    /// Counts superblocks; decides which is newer, and the slot.
    pub(crate) generation: u64,
    /// Every batch up to this one is in the tree.
    pub(crate) checkpoint_lsn: Lsn,
    /// No message in the tree has this MSN or a higher one.
    pub(crate) next_msn: Msn,
    /// No piece that the checkpoint counts has this id or a higher one.
    pub(crate) next_piece: PieceId,
    /// Where reading the log begins: meaningful to the log alone.
    pub(crate) log_position: [u8; 32],
    /// When the checkpoint was made, since the Unix epoch.
    pub(crate) checkpointed: Duration,
    /// The store was closed in order: the log holds nothing after the checkpoint.
    pub(crate) clean: bool,
    /// How new pieces are compressed: a code of the `pieces` room.
    pub(crate) compression: u8,
    /// The tables.
    pub(crate) roots: Roots,
    /// Deleted data takes space until it is looked for.
    pub(crate) untidy: bool,
    /// Bytes of value parts that no counted piece refers to.
    pub(crate) dead_values: u64,
}

impl Superblock {
    /// The first superblock of a new store.
    pub(crate) fn initial(geometry: Geometry, uuid: [u8; 16], label: &str, created: Duration) -> Self {
        Self {
            compatible: 0,
            incompatible: 0,
            uuid,
            label: label.into(),
            geometry,
            created,
            generation: 0,
            checkpoint_lsn: Lsn(0),
            next_msn: Msn(1),
            next_piece: PieceId(1),
            log_position: [0; 32],
            checkpointed: created,
            clean: true,
            compression: 0,
            roots: Roots::default(),
            untidy: false,
            dead_values: 0,
        }
    }

    /// The slot it belongs to.
    pub(crate) fn slot(&self) -> usize {
        (self.generation % 2) as usize
    }

    fn encode(&self) -> AlignedBuf {
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
        let sum = checksum(&block, self.slot());
        block[SUM_AT..SIZE].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Decodes a block whose magic, checksum and version are right.
    fn decode(block: &[u8], slot: usize) -> Result<Self> {
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
            TableRoot { block, checksum, height: rest[0] }
        };
        let roots = Roots { ntt: root(), space_map: root(), volumes: root(), reclaim: root() };
        let dead_values = at.u64();
        let bad = |what: &str| Err(Error::damaged(format!("superblock {}: {what}", slot_name(slot))));
        let (Ok(label), Ok(log_blocks)) =
            (std::str::from_utf8(&label[..label_len]), u32::try_from(log_blocks))
        else {
            return bad("the label or the log's size makes no sense");
        };
        let geometry = Geometry { blocks, log: Extent { start: log_start, blocks: log_blocks } };
        if log_start != LOG_START || log_blocks == 0 || geometry.data_start() >= blocks {
            return bad("the geometry makes no sense");
        }
        let counters = [generation, next_piece.0, next_msn.0];
        if counters.iter().any(|n| *n == 0 || *n > MAX_COUNTER)
            || checkpoint_lsn.0 > MAX_COUNTER
            || generation % 2 != slot as u64
            || flags[0] > 1
        {
            return bad("a counter makes no sense");
        }
        for root in [roots.ntt, roots.space_map, roots.volumes, roots.reclaim] {
            let place = Extent { start: root.block, blocks: 1 };
            if root.height > MAX_HEIGHT || (root.block != 0 && !geometry.holds(place)) {
                return bad("a table root points outside the data region");
            }
        }
        Ok(Self {
            compatible,
            incompatible,
            uuid,
            label: label.into(),
            geometry,
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
        })
    }

    /// Writes it to its slot. Not durable before the next sync.
    ///
    /// # Errors
    /// Whatever the device says.
    pub(super) fn write(&self, device: &GuardedDevice) -> Result<()> {
        device.write_at(SLOTS[self.slot()] * BLOCK as u64, &[&self.encode()])
    }
}

/// The checksum of the superblock in `block`, as it must be in `slot`.
fn checksum(block: &[u8], slot: usize) -> u64 {
    xxh3_64_with_seed(&block[..SUM_AT], SLOTS[slot])
}

fn slot_name(slot: usize) -> char {
    if slot == 0 { 'A' } else { 'B' }
}

/// What a slot was found to hold.
#[derive(Debug, Clone)]
pub(crate) enum Slot {
    /// No magic: never written, or not ours.
    Empty,
    /// A magic, but the rest cannot be trusted.
    Damaged(Error),
    /// Written by a newer program.
    Newer(Error),
    /// A superblock.
    Valid(Box<Superblock>),
}

/// What the two slots were found to hold.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The newest valid superblock.
    pub(crate) newest: Superblock,
    /// Why the other slot cannot be read, if it should be readable: worth a warning, because it might
    /// have held a newer one. Table checksums tell if what the older one names is still there.
    pub(crate) other_damaged: Option<Error>,
}

fn read_slot(device: &GuardedDevice, slot: usize) -> Result<Slot> {
    let place = Extent { start: SLOTS[slot], blocks: 1 };
    if device.len() < place.end() * BLOCK as u64 {
        return Ok(Slot::Empty);
    }
    let block = device.read_extent(place).context(|| format!("reading superblock {}", slot_name(slot)))?;
    if block[..8] != MAGIC {
        return Ok(Slot::Empty);
    }
    let stored = u64::from_le_bytes(Get { bytes: &block, at: SUM_AT }.array());
    if !crate::types::sums_agree(checksum(&block, slot), stored) {
        let message = format!("superblock {}: the checksum is wrong", slot_name(slot));
        return Ok(Slot::Damaged(Error::damaged(message)));
    }
    let version = u32::from_le_bytes(Get { bytes: &block, at: 8 }.array());
    let incompatible = u64::from_le_bytes(Get { bytes: &block, at: 24 }.array());
    if version > FORMAT_VERSION || incompatible & !KNOWN_INCOMPATIBLE != 0 {
        let message = format!(
            "{} has format {version} with features {incompatible:#x}; this program knows format {FORMAT_VERSION} \
             with features {KNOWN_INCOMPATIBLE:#x}: use a newer one",
            device.name()
        );
        return Ok(Slot::Newer(Error::new(ErrorKind::NewerFormat, message)));
    }
    if version == 0 {
        return Ok(Slot::Damaged(Error::damaged("a superblock says format 0, which never existed")));
    }
    Ok(match Superblock::decode(&block, slot) {
        Ok(superblock) => Slot::Valid(Box::new(superblock)),
        Err(error) => Slot::Damaged(error),
    })
}

/// Finds the newest superblock of the store on `device`.
///
/// # Errors
/// [`ErrorKind::NotAStore`] without a trace of one, [`ErrorKind::NewerFormat`], [`ErrorKind::Damaged`] if
/// neither slot can be trusted or the device is shorter than the store, or what the device says.
pub(crate) fn read_superblocks(device: &GuardedDevice) -> Result<Found> {
    let found = match (read_slot(device, 0)?, read_slot(device, 1)?) {
        (Slot::Newer(error), _) | (_, Slot::Newer(error)) => return Err(error),
        (Slot::Valid(a), Slot::Valid(b)) => newer_of(device, *a, *b)?,
        (Slot::Valid(newest), Slot::Empty) | (Slot::Empty, Slot::Valid(newest)) => {
            let gone = Error::damaged(format!("superblock {} is gone", slot_name(1 - newest.slot())));
            Found { newest: *newest, other_damaged: Some(gone) }
        }
        (Slot::Valid(newest), Slot::Damaged(error)) | (Slot::Damaged(error), Slot::Valid(newest)) => {
            Found { newest: *newest, other_damaged: Some(error) }
        }
        (Slot::Damaged(error), _) | (_, Slot::Damaged(error)) => {
            return Err(error.context(format!("{} has no readable superblock", device.name())));
        }
        (Slot::Empty, Slot::Empty) => {
            let message = format!("{} does not hold an Espalier store", device.name());
            return Err(Error::new(ErrorKind::NotAStore, message));
        }
    };
    let needed = found.newest.geometry.blocks.saturating_mul(BLOCK as u64);
    if device.len() < needed {
        return Err(Error::damaged(format!(
            "{} has {} bytes, but the store on it {needed}: the file was truncated, or the device shrunk",
            device.name(),
            device.len(),
        )));
    }
    Ok(found)
}

fn newer_of(device: &GuardedDevice, a: Superblock, b: Superblock) -> Result<Found> {
    // The number of blocks may differ: a crash while the store grew.
    if (a.uuid, a.geometry.log) != (b.uuid, b.geometry.log) {
        let message = format!("the two superblocks of {} belong to different stores", device.name());
        return Err(Error::damaged(message));
    }
    let newest = if a.generation > b.generation { a } else { b };
    Ok(Found { newest, other_damaged: None })
}

/// Makes the store on `device` have `blocks` blocks. Nothing else changes: blocks that no space map
/// mentions are free. The slots are written one after the other, so a crash leaves the old size or the new.
///
/// # Errors
/// As for [`read_superblocks`]; [`ErrorKind::InvalidArgument`] if the store has more blocks or the device
/// fewer.
pub(crate) fn grow(device: &GuardedDevice, blocks: u64) -> Result<()> {
    let mut superblock = read_superblocks(device)?.newest;
    let before = superblock.geometry.blocks;
    if blocks < before {
        let message = format!("the store has {before} blocks and cannot shrink to {blocks}");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    if device.len() / (BLOCK as u64) < blocks {
        let message = format!("{} has {} bytes, too few for {blocks} blocks", device.name(), device.len());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    if blocks == before {
        return Ok(());
    }
    superblock.geometry.blocks = blocks;
    for _ in 0..2 {
        superblock.generation += 1;
        superblock.write(device)?;
        device.sync()?;
    }
    Ok(())
}

/// Makes both slots unrecognisable, durably: the first step of `mkfs`.
///
/// # Errors
/// Whatever the device says.
pub(crate) fn erase_superblocks(device: &GuardedDevice) -> Result<()> {
    let zeros = AlignedBuf::zeroed(BLOCK);
    for block in SLOTS {
        device.write_at(block * BLOCK as u64, &[&zeros])?;
    }
    device.sync()
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
struct Get<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Get<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}
