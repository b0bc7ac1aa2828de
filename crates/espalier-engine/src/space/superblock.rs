//! Superblocks: where a store begins, and what its last checkpoint consists of.
//!
//! Protocol: there are two slots at the start of the device and a spare place at its end. The
//! superblock of generation `g` goes to slot `g % 2` and to the spare place, where it is durable
//! with the same sync; then the other slot gets a copy, as generation `g + 1`. The newest of the
//! three counts. So damage to two of them takes no checkpoint back. The spare one names a whole
//! state at any time: blocks of the state before are not reused before that sync. A store that
//! finds the three different makes them agree before it writes anything else ([`heal`]).
//!
//! A superblock is complete in one 512-byte sector, which devices write as a whole: a place that is
//! found damaged was damaged, not torn.
//!
//! A device with neither slot is no store to a mount, whatever lies at its end: the device may
//! serve something else by now. A repair looks there ([`search_superblocks`]).
//!
//! Invariants: everything a superblock names was durable before it was written; the fields up to
//! `created` never change after `mkfs`, so each slot is a backup of the other's.
//!
//! The layout is in docs/format.md, "Geometry and superblocks".

mod codec;
mod find;
mod resize;

pub(super) use find::search_superblocks;
pub(crate) use find::{heal, read_superblocks};
pub(crate) use resize::{erase_superblocks, resize_offline};
pub(super) use resize::{write_label, write_resized};

use crate::{Error, ErrorKind, Extent, Lsn, Msn, PieceId, Result};
use espalier_storage::BLOCK;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The first eight bytes of a superblock.
pub(crate) const MAGIC: [u8; 8] = *b"ESPALIER";
/// The newest format this program reads, and the one it writes.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// The blocks of the two slots.
pub(crate) const SLOT_BLOCKS: [u64; 2] = [0, 16];
/// The first block of the log region.
pub(crate) const LOG_START_BLOCK: u64 = 32;
/// The smallest device a store fits on, in blocks.
pub(crate) const MIN_BLOCKS: u64 = 256;
/// The largest store, in blocks: 256 TiB. The maps of a store take memory in proportion to it, so
/// there is a limit to what an image, which may be sparse, can ask for.
pub(crate) const MAX_BLOCKS: u64 = 1 << 36;
/// The longest label, in bytes.
pub const MAX_LABEL: usize = 64;
/// The highest tree of table pages: ten levels of 128 pointers number more than 2^64 pages.
pub(super) const MAX_TABLE_HEIGHT: u8 = 10;

/// No counter gets near this: whatever is added to one cannot overflow.
pub(super) const MAX_COUNTER: u64 = 1 << 62;

/// Table pages lie on the device twice, and the last block is for a spare superblock.
const FEATURE_COPIES: u64 = 1;
/// Incompatible features this program knows.
const KNOWN_INCOMPATIBLE_FEATURES: u64 = FEATURE_COPIES;
/// Bytes that are read at once in the search for a spare superblock.
const SEARCH_READ_BYTES: u64 = 1 << 20;
/// Bytes of a superblock: one sector.
const SUPERBLOCK_BYTES: usize = 512;
const CHECKSUM_OFFSET: usize = SUPERBLOCK_BYTES - 8;

/// How the device is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Blocks of the device that belong to the store.
    pub(crate) blocks: u64,
    /// The log region.
    pub(crate) log: Extent,
    /// Table pages lie on the device twice, and the last block holds a spare superblock. Stores
    /// made before there was that have neither.
    pub(crate) copies: bool,
}

impl Geometry {
    /// Divides a device of `device_bytes`; `log_bytes` is a wish, rounded and bounded.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the device is too small, or too large.
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
        if blocks > MAX_BLOCKS {
            return Err(too_large(blocks));
        }
        let wish = log_bytes.unwrap_or((device_bytes / 16).clamp(MIB, 1024 * MIB));
        let log_blocks = (wish / BLOCK as u64).clamp(16, blocks / 4).min(u64::from(u32::MAX)) as u32;
        Ok(Self { blocks, log: Extent { start: LOG_START_BLOCK, blocks: log_blocks }, copies: true })
    }

    /// The first block of the data region, which holds pieces and table pages.
    pub(crate) fn data_start(&self) -> u64 {
        self.log.end()
    }

    /// The block behind the data region.
    pub(crate) fn data_end(&self) -> u64 {
        self.blocks - u64::from(self.copies)
    }

    /// The block of the spare superblock.
    fn spare(&self) -> Option<u64> {
        self.copies.then_some(self.blocks - 1)
    }

    /// True if `extent` is not empty and lies in the data region.
    pub(crate) fn holds(&self, extent: Extent) -> bool {
        extent.blocks > 0
            && extent.start >= self.data_start()
            && extent.start.checked_add(u64::from(extent.blocks)).is_some_and(|end| end <= self.data_end())
    }
}

/// The error for a store that would have so many blocks.
fn too_large(blocks: u64) -> Error {
    let most = (MAX_BLOCKS * BLOCK as u64) >> 40;
    let message =
        format!("{blocks} blocks of {BLOCK} bytes are too many for a store: it has at most {most} TiB");
    Error::new(ErrorKind::InvalidArgument, message)
}

/// How the device is divided, for modules that keep it while the store may grow.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    geometry: Geometry,
    blocks: Arc<AtomicU64>,
}

impl Bounds {
    /// As it is now.
    pub(super) fn get(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Acquire), ..self.geometry }
    }

    /// The store has so many blocks from now on, for all holders.
    pub(super) fn grow(&self, blocks: u64) {
        self.blocks.fetch_max(blocks, Ordering::AcqRel);
    }
}

impl From<Geometry> for Bounds {
    fn from(geometry: Geometry) -> Self {
        Self { geometry, blocks: Arc::new(AtomicU64::new(geometry.blocks)) }
    }
}

/// The root of a paged table; a block of 0 is the empty table.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableRoot {
    /// The block of the root page.
    pub(crate) block: u64,
    /// The block of its copy; 0 if there is none.
    pub(crate) copy: u64,
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
    /// Nodes that nothing refers to, with references of their own that are not subtracted yet.
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
            incompatible: if geometry.copies { FEATURE_COPIES } else { 0 },
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

    /// True if it is one of the same store. The number of blocks may differ: after a crash while
    /// the store grew.
    fn is_of(&self, other: &Self) -> bool {
        let identity = |s: &Self| (s.uuid, s.geometry.log, s.geometry.copies);
        identity(self) == identity(other)
    }
}

/// Where a superblock lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SuperblockPlace {
    Slot(usize),
    /// The spare place, with its block.
    Spare(u64),
}

impl SuperblockPlace {
    fn block(self) -> u64 {
        match self {
            Self::Slot(slot) => SLOT_BLOCKS[slot],
            Self::Spare(block) => block,
        }
    }
}

impl std::fmt::Display for SuperblockPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "superblock {}", if *slot == 0 { 'A' } else { 'B' }),
            Self::Spare(block) => write!(f, "the spare superblock in block {block}"),
        }
    }
}
