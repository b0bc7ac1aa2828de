//! Superblocks: where a store begins, and what its last checkpoint consists of.
//!
//! Protocol: there are two slots at the start of the device and a spare place at its end. The
//! superblock of generation `g` goes to slot `g % 2` and to the spare place, where it is durable
//! with the same sync; then the other slot gets a copy, as generation `g + 1`. The newest of the
//! three counts. So damage to two of them takes no checkpoint back, and the spare one names at any
//! time a state that is whole: nothing that the one before needs is given up before that sync, and
//! a store that finds the three different makes them agree before it writes anything else
//! ([`heal`]). A
//! superblock is complete in one 512-byte sector, which devices write as a whole: a place that is
//! found damaged was damaged, not torn.
//!
//! A device with neither slot is no store to a mount, whatever lies at its end: the device may
//! serve something else by now. A repair looks there ([`search_superblocks`]).
//!
//! Invariants: everything a superblock names was durable before it was written; the fields up to
//! `created` never change after `mkfs`, so each slot is a backup of the other's.
//!
//! The layout is in docs/format.md, "Geometry and superblocks".

use crate::device::GuardedDevice;
use crate::model::error::Context;
use crate::{Error, ErrorKind, Extent, Lsn, Msn, PieceId, Result};
use espalier_storage::{AlignedBuf, BLOCK};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
/// The highest tree of table pages: ten levels of 128 pointers number more than 2^64 pages.
pub(super) const MAX_HEIGHT: u8 = 10;

/// No counter gets near this: whatever is added to one cannot overflow.
pub(super) const MAX_COUNTER: u64 = 1 << 62;

/// Table pages lie on the device twice, and the last block is for a spare superblock.
const COPIES: u64 = 1;
/// Incompatible features this program knows.
const KNOWN_INCOMPATIBLE: u64 = COPIES;
/// Bytes that are read at once in the search for a spare superblock.
const SEARCHED_AT_ONCE: u64 = 1 << 20;
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
    /// Table pages lie on the device twice, and the last block holds a spare superblock. Stores
    /// made before there was that have neither.
    pub(crate) copies: bool,
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
        Ok(Self { blocks, log: Extent { start: LOG_START, blocks: log_blocks }, copies: true })
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
            incompatible: if geometry.copies { COPIES } else { 0 },
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
        block[SUM_AT..SIZE].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Decodes a block with the right magic, checksum and version.
    fn decode(block: &[u8], place: Place) -> Result<Self> {
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
        let copies = incompatible & COPIES != 0;
        if copies {
            for root in [&mut roots.ntt, &mut roots.space_map, &mut roots.volumes, &mut roots.reclaim] {
                root.copy = at.u64();
            }
        }
        let bad = |what: &str| Err(Error::damaged(format!("{place}: {what}")));
        let (Ok(label), Ok(log_blocks)) =
            (std::str::from_utf8(&label[..label_len]), u32::try_from(log_blocks))
        else {
            return bad("the label or the log's size makes no sense");
        };
        let geometry = Geometry { blocks, log: Extent { start: log_start, blocks: log_blocks }, copies };
        if log_start != LOG_START || log_blocks == 0 || geometry.data_start() >= blocks.saturating_sub(1) {
            return bad("the geometry makes no sense");
        }
        let counters = [generation, next_piece.0, next_msn.0];
        if counters.iter().any(|n| *n == 0 || *n > MAX_COUNTER)
            || checkpoint_lsn.0 > MAX_COUNTER
            || flags[0] > 1
        {
            return bad("a counter makes no sense");
        }
        let belongs = match place {
            Place::Slot(slot) => generation % 2 == slot as u64,
            Place::Spare(block) => geometry.spare() == Some(block),
        };
        if !belongs {
            return bad("it belongs to another place");
        }
        for root in [roots.ntt, roots.space_map, roots.volumes, roots.reclaim] {
            let outside = |block| block != 0 && !geometry.holds(Extent { start: block, blocks: 1 });
            if root.height > MAX_HEIGHT || outside(root.block) || outside(root.copy) {
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

    /// True if it is one of the same store. The number of blocks may differ: after a crash while
    /// the store grew.
    fn is_of(&self, other: &Self) -> bool {
        let identity = |s: &Self| (s.uuid, s.geometry.log, s.geometry.copies);
        identity(self) == identity(other)
    }

    /// Writes it to its slot. Not durable before the next sync.
    ///
    /// # Errors
    /// Whatever the device says.
    pub(super) fn write(&self, device: &GuardedDevice) -> Result<()> {
        let place = SLOTS[self.slot()];
        device.write_at(place * BLOCK as u64, &[&self.encode(place)])
    }

    /// Writes it to the spare place, if the store has one. Not durable before the next sync.
    ///
    /// # Errors
    /// Whatever the device says.
    pub(super) fn write_spare(&self, device: &GuardedDevice) -> Result<()> {
        let Some(place) = self.geometry.spare() else { return Ok(()) };
        device.write_at(place * BLOCK as u64, &[&self.encode(place)])
    }
}

/// The checksum of the superblock in `block`, as it must be in block `place`.
fn checksum(block: &[u8], place: u64) -> u64 {
    xxh3_64_with_seed(&block[..SUM_AT], place)
}

/// Where a superblock lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Slot(usize),
    /// The spare place, with its block.
    Spare(u64),
}

impl Place {
    fn block(self) -> u64 {
        match self {
            Self::Slot(slot) => SLOTS[slot],
            Self::Spare(block) => block,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "superblock {}", if *slot == 0 { 'A' } else { 'B' }),
            Self::Spare(block) => write!(f, "the spare superblock in block {block}"),
        }
    }
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

/// What the places were found to hold.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The newest valid superblock.
    pub(crate) newest: Superblock,
    /// Why others cannot be read that should be readable: worth a warning.
    pub(crate) damaged: Vec<Error>,
    /// Slots and spare that do not hold what the newest one says.
    differ: bool,
}

fn read_place(device: &GuardedDevice, place: Place) -> Slot {
    let extent = Extent { start: place.block(), blocks: 1 };
    if extent.start.checked_add(1).is_none_or(|end| device.len() / (BLOCK as u64) < end) {
        return Slot::Empty;
    }
    // A place that cannot be read is like one that is damaged: there are others.
    match device.read_extent(extent).context(|| format!("reading {place}")) {
        Ok(block) => judge(device, &block, place),
        Err(error) => Slot::Damaged(error),
    }
}

/// What the block in a place is.
fn judge(device: &GuardedDevice, block: &[u8], place: Place) -> Slot {
    if block[..8] != MAGIC {
        return Slot::Empty;
    }
    let stored = u64::from_le_bytes(Get { bytes: block, at: SUM_AT }.array());
    if !crate::model::ids::sums_agree(checksum(block, place.block()), stored) {
        return Slot::Damaged(Error::damaged(format!("{place}: the checksum is wrong")));
    }
    let version = u32::from_le_bytes(Get { bytes: block, at: 8 }.array());
    let incompatible = u64::from_le_bytes(Get { bytes: block, at: 24 }.array());
    if version > FORMAT_VERSION || incompatible & !KNOWN_INCOMPATIBLE != 0 {
        let message = format!(
            "{} has format {version} with features {incompatible:#x}; this program knows format {FORMAT_VERSION} \
             with features {KNOWN_INCOMPATIBLE:#x}: use a newer one",
            device.name()
        );
        return Slot::Newer(Error::new(ErrorKind::NewerFormat, message));
    }
    if version == 0 {
        return Slot::Damaged(Error::damaged(format!("{place} says format 0, which never existed")));
    }
    match Superblock::decode(block, place) {
        Ok(superblock) => Slot::Valid(Box::new(superblock)),
        Err(error) => Slot::Damaged(error),
    }
}

/// Finds the newest superblock of the store on `device`.
///
/// # Errors
/// [`ErrorKind::NotAStore`] if neither slot has a trace of one, [`ErrorKind::NewerFormat`],
/// [`ErrorKind::Damaged`] if neither slot can be trusted or the device is shorter than the store,
/// or what the device says.
pub(crate) fn read_superblocks(device: &GuardedDevice) -> Result<Found> {
    let gone = |slot| Error::damaged(format!("{} is gone", Place::Slot(slot)));
    let mut found = match (read_place(device, Place::Slot(0)), read_place(device, Place::Slot(1))) {
        (Slot::Newer(error), _) | (_, Slot::Newer(error)) => return Err(error),
        (Slot::Valid(a), Slot::Valid(b)) => newer_of(device, *a, *b)?,
        (Slot::Valid(newest), Slot::Empty) => lonely(newest, gone(1)),
        (Slot::Empty, Slot::Valid(newest)) => lonely(newest, gone(0)),
        (Slot::Valid(newest), Slot::Damaged(error)) | (Slot::Damaged(error), Slot::Valid(newest)) => {
            lonely(newest, error)
        }
        (Slot::Damaged(error), _) | (_, Slot::Damaged(error)) => {
            let message =
                "has no readable superblock at its start; fsck --repair looks for the one at its end";
            return Err(error.context(format!("{} {message}", device.name())));
        }
        (Slot::Empty, Slot::Empty) => {
            let message = format!("{} does not hold an Espalier store", device.name());
            return Err(Error::new(ErrorKind::NotAStore, message));
        }
    };
    add_spare(device, &mut found);
    check_length(device, &found.newest)?;
    Ok(found)
}

/// As [`read_superblocks`]; if neither slot can be used, the newest spare superblock on the device.
///
/// # Errors
/// The same, if there is none either.
pub(super) fn search_superblocks(device: &GuardedDevice) -> Result<Found> {
    let failure = match read_superblocks(device) {
        Err(error) if matches!(error.kind(), ErrorKind::NewerFormat) => return Err(error),
        Err(error) => error,
        found => return found,
    };
    let blocks = device.len() / BLOCK as u64;
    let last = blocks.checked_sub(1).map(|block| read_place(device, Place::Spare(block)));
    let found = match last {
        Some(Slot::Valid(spare)) => Some(*spare),
        _ => search_spare(device, blocks),
    };
    match found {
        Some(newest) => {
            check_length(device, &newest)?;
            Ok(Found { newest, damaged: vec![failure], differ: true })
        }
        None => Err(failure),
    }
}

/// Looks through the whole device. Its place is part of what its checksum covers, so none is found
/// in the data of files.
fn search_spare(device: &GuardedDevice, blocks: u64) -> Option<Superblock> {
    let mut found: Option<Superblock> = None;
    let step = SEARCHED_AT_ONCE / BLOCK as u64;
    for start in (LOG_START..blocks).step_by(step as usize) {
        let count = (blocks - start).min(step) as u32;
        let whole = device.read_extent(Extent { start, blocks: count });
        for block in start..start + u64::from(count) {
            let at = (block - start) as usize * BLOCK;
            let slot = match &whole {
                Ok(bytes) if bytes[at..at + 8] != MAGIC => continue,
                Ok(bytes) => judge(device, &bytes[at..at + BLOCK], Place::Spare(block)),
                Err(_) => read_place(device, Place::Spare(block)),
            };
            if let Slot::Valid(spare) = slot
                && found.as_ref().is_none_or(|found| found.generation < spare.generation)
            {
                found = Some(*spare);
            }
        }
    }
    found
}

fn check_length(device: &GuardedDevice, superblock: &Superblock) -> Result<()> {
    let needed = superblock.geometry.blocks.saturating_mul(BLOCK as u64);
    if device.len() < needed {
        return Err(Error::damaged(format!(
            "{} has {} bytes, but the store on it {needed}: the file was truncated, or the device shrunk",
            device.name(),
            device.len(),
        )));
    }
    Ok(())
}

fn lonely(newest: Box<Superblock>, other: Error) -> Found {
    Found { newest: *newest, damaged: vec![other], differ: true }
}

fn newer_of(device: &GuardedDevice, a: Superblock, b: Superblock) -> Result<Found> {
    if !a.is_of(&b) {
        let message = format!("the two superblocks of {} belong to different stores", device.name());
        return Err(Error::damaged(message));
    }
    let newest = if a.generation > b.generation { a } else { b };
    Ok(Found { newest, damaged: Vec::new(), differ: false })
}

/// Looks at the spare superblock, which may be the newest one after a crash.
fn add_spare(device: &GuardedDevice, found: &mut Found) {
    let Some(block) = found.newest.geometry.spare() else { return };
    let place = Place::Spare(block);
    let differs = match read_place(device, place) {
        Slot::Valid(spare) if spare.is_of(&found.newest) => {
            // The same checkpoint is in one slot with this generation, and in the other with the
            // next one.
            let same = (found.newest.generation - 1..=found.newest.generation).contains(&spare.generation)
                && spare.roots == found.newest.roots;
            if spare.generation > found.newest.generation {
                found.newest = *spare;
            }
            !same
        }
        Slot::Valid(_) => {
            found.damaged.push(Error::damaged(format!("{place} belongs to another store")));
            true
        }
        Slot::Empty => {
            found.damaged.push(Error::damaged(format!("{place} is gone")));
            true
        }
        Slot::Damaged(error) | Slot::Newer(error) => {
            found.damaged.push(error);
            true
        }
    };
    found.differ |= differs;
}

/// Makes the places agree again after a crash or damage, durably, before anything else is written:
/// from then on blocks are written over that only an older superblock needs. Returns why some could
/// not be read.
///
/// # Errors
/// What the device says.
pub(crate) fn heal(device: &GuardedDevice) -> Result<Vec<Error>> {
    let Found { mut newest, damaged, differ } = read_superblocks(device)?;
    if !differ || !newest.geometry.copies {
        return Ok(damaged);
    }
    let doing = || "making the superblocks agree".into();
    for _ in 0..2 {
        newest.write(device).and_then(|()| newest.write_spare(device)).context(doing)?;
        device.sync().context(doing)?;
        newest.generation += 1;
    }
    Ok(damaged)
}

/// Makes the store on `device`, which is not open, have `blocks` blocks.
///
/// # Errors
/// As for [`read_superblocks`] and [`enlarge`].
pub(crate) fn grow(device: &GuardedDevice, blocks: u64) -> Result<()> {
    let mut newest = read_superblocks(device)?.newest;
    enlarge(device, &mut newest, blocks)
}

/// Makes the store with the newest superblock `superblock` have `blocks` blocks, durably. Nothing
/// else changes: blocks that no space map mentions are free. The slots are written one after the
/// other, so a crash leaves the old size or the new; a superblock of the old one at its end is gone
/// when this returns.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the store has more blocks or the device fewer; what the device
/// says.
pub(super) fn enlarge(device: &GuardedDevice, superblock: &mut Superblock, blocks: u64) -> Result<()> {
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
    let old_spare = superblock.geometry.spare();
    superblock.geometry.blocks = blocks;
    for _ in 0..2 {
        superblock.generation += 1;
        superblock.write(device)?;
        superblock.write_spare(device)?;
        device.sync()?;
    }
    // What lies in the middle of the store must not be taken for its superblock.
    match old_spare {
        Some(block) => erase(device, &[block]),
        None => Ok(()),
    }
}

/// Makes all superblocks unrecognisable, durably: the first step of `mkfs`.
///
/// # Errors
/// Whatever the device says.
pub(crate) fn erase_superblocks(device: &GuardedDevice) -> Result<()> {
    let last = (device.len() / BLOCK as u64).checked_sub(1).filter(|last| *last >= LOG_START);
    let known = read_superblocks(device).ok().and_then(|found| found.newest.geometry.spare());
    let spares: Vec<u64> = last.into_iter().chain(known).collect();
    // The spare ones first: without the others they are all that leads to what is there.
    erase(device, &spares)?;
    erase(device, &SLOTS)
}

fn erase(device: &GuardedDevice, blocks: &[u64]) -> Result<()> {
    let zeros = AlignedBuf::zeroed(BLOCK);
    for block in blocks {
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
