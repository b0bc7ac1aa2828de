//! Finding the newest superblock of a store, and making the places agree again.

use super::codec::{Get, checksum};
use super::{
    CHECKSUM_OFFSET, FORMAT_VERSION, KNOWN_INCOMPATIBLE_FEATURES, LOG_START_BLOCK, MAGIC, MAX_BLOCKS,
    SEARCH_READ_BYTES, SLOT_BLOCKS, Superblock, SuperblockPlace,
};
use crate::device::GuardedDevice;
use crate::model::error::Context;
use crate::{Error, ErrorKind, Extent, Result};
use espalier_storage::BLOCK;

/// What a slot was found to hold.
#[derive(Debug, Clone)]
pub(crate) enum SlotContent {
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
pub(crate) struct FoundSuperblocks {
    /// The newest valid superblock.
    pub(crate) newest: Superblock,
    /// Why others cannot be read that should be readable: worth a warning.
    pub(crate) damaged: Vec<Error>,
    /// Slots and spare that do not hold what the newest one says.
    differ: bool,
}

fn read_place(device: &GuardedDevice, place: SuperblockPlace) -> SlotContent {
    let extent = Extent { start: place.block(), blocks: 1 };
    if extent.start.checked_add(1).is_none_or(|end| device.len() / (BLOCK as u64) < end) {
        return SlotContent::Empty;
    }
    // A place that cannot be read is like one that is damaged: there are others.
    match device.read_extent(extent).context(|| format!("reading {place}")) {
        Ok(block) => classify_slot(device, &block, place),
        Err(error) => SlotContent::Damaged(error),
    }
}

/// What the block in a place is.
fn classify_slot(device: &GuardedDevice, block: &[u8], place: SuperblockPlace) -> SlotContent {
    if block[..8] != MAGIC {
        return SlotContent::Empty;
    }
    let stored = u64::from_le_bytes(Get { bytes: block, at: CHECKSUM_OFFSET }.array());
    if !crate::model::ids::sums_agree(checksum(block, place.block()), stored) {
        return SlotContent::Damaged(Error::damaged(format!("{place}: the checksum is wrong")));
    }
    let version = u32::from_le_bytes(Get { bytes: block, at: 8 }.array());
    let incompatible = u64::from_le_bytes(Get { bytes: block, at: 24 }.array());
    if version > FORMAT_VERSION || incompatible & !KNOWN_INCOMPATIBLE_FEATURES != 0 {
        let message = format!(
            "{} has format {version} with features {incompatible:#x}; this program knows format {FORMAT_VERSION} \
             with features {KNOWN_INCOMPATIBLE_FEATURES:#x}: use a newer one",
            device.name()
        );
        return SlotContent::Newer(Error::new(ErrorKind::NewerFormat, message));
    }
    if version == 0 {
        return SlotContent::Damaged(Error::damaged(format!("{place} says format 0, which never existed")));
    }
    match Superblock::decode(block, place) {
        Ok(superblock) => SlotContent::Valid(Box::new(superblock)),
        Err(error) => SlotContent::Damaged(error),
    }
}

/// Finds the newest superblock of the store on `device`.
///
/// # Errors
/// [`ErrorKind::NotAStore`] if neither slot has a trace of one, [`ErrorKind::NewerFormat`],
/// [`ErrorKind::Damaged`] if neither slot can be trusted or the device is shorter than the store,
/// or what the device says.
pub(crate) fn read_superblocks(device: &GuardedDevice) -> Result<FoundSuperblocks> {
    announce_places(device);
    let gone = |slot| Error::damaged(format!("{} is gone", SuperblockPlace::Slot(slot)));
    let mut found =
        match (read_place(device, SuperblockPlace::Slot(0)), read_place(device, SuperblockPlace::Slot(1))) {
            (SlotContent::Newer(error), _) | (_, SlotContent::Newer(error)) => return Err(error),
            (SlotContent::Valid(a), SlotContent::Valid(b)) => newer_of(device, *a, *b)?,
            (SlotContent::Valid(newest), SlotContent::Empty) => lonely(newest, gone(1)),
            (SlotContent::Empty, SlotContent::Valid(newest)) => lonely(newest, gone(0)),
            (SlotContent::Valid(newest), SlotContent::Damaged(error))
            | (SlotContent::Damaged(error), SlotContent::Valid(newest)) => lonely(newest, error),
            (SlotContent::Damaged(error), _) | (_, SlotContent::Damaged(error)) => {
                let message =
                    "has no readable superblock at its start; fsck --repair looks for the one at its end";
                return Err(error.context(format!("{} {message}", device.name())));
            }
            (SlotContent::Empty, SlotContent::Empty) => {
                let message = format!("{} does not hold an Espalier store", device.name());
                return Err(Error::new(ErrorKind::NotAStore, message));
            }
        };
    add_spare(device, &mut found);
    check_length(device, &found.newest)?;
    Ok(found)
}

/// Has the device begin with all three places, where that makes it faster.
fn announce_places(device: &GuardedDevice) {
    let block = BLOCK as u64;
    let blocks = device.len() / block;
    let places = SLOT_BLOCKS.into_iter().chain(blocks.checked_sub(1)).filter(|place| *place < blocks);
    device.announce(&places.map(|place| place * block..(place + 1) * block).collect::<Vec<_>>());
}

/// As [`read_superblocks`]; if neither slot can be used, the newest spare superblock on the device.
///
/// # Errors
/// The same, if there is none either.
pub(crate) fn search_superblocks(device: &GuardedDevice) -> Result<FoundSuperblocks> {
    let failure = match read_superblocks(device) {
        Err(error) if matches!(error.kind(), ErrorKind::NewerFormat) => return Err(error),
        Err(error) => error,
        found => return found,
    };
    let blocks = device.len() / BLOCK as u64;
    let last = blocks.checked_sub(1).map(|block| read_place(device, SuperblockPlace::Spare(block)));
    let found = match last {
        Some(SlotContent::Valid(spare)) => Some(*spare),
        _ => search_spare(device, blocks),
    };
    match found {
        Some(newest) => {
            check_length(device, &newest)?;
            Ok(FoundSuperblocks { newest, damaged: vec![failure], differ: true })
        }
        None => Err(failure),
    }
}

/// Looks through the whole device. Its place is part of what its checksum covers, so none is found
/// in the data of files.
fn search_spare(device: &GuardedDevice, blocks: u64) -> Option<Superblock> {
    let mut found: Option<Superblock> = None;
    let step = SEARCH_READ_BYTES / BLOCK as u64;
    for start in (LOG_START_BLOCK..blocks.min(MAX_BLOCKS)).step_by(step as usize) {
        let count = (blocks.min(MAX_BLOCKS) - start).min(step) as u32;
        let whole = device.read_extent(Extent { start, blocks: count });
        for block in start..start + u64::from(count) {
            let at = (block - start) as usize * BLOCK;
            let slot = match &whole {
                Ok(bytes) if bytes[at..at + 8] != MAGIC => continue,
                Ok(bytes) => classify_slot(device, &bytes[at..at + BLOCK], SuperblockPlace::Spare(block)),
                Err(_) => read_place(device, SuperblockPlace::Spare(block)),
            };
            if let SlotContent::Valid(spare) = slot
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

fn lonely(newest: Box<Superblock>, other: Error) -> FoundSuperblocks {
    FoundSuperblocks { newest: *newest, damaged: vec![other], differ: true }
}

fn newer_of(device: &GuardedDevice, a: Superblock, b: Superblock) -> Result<FoundSuperblocks> {
    if !a.is_of(&b) {
        let message = format!("the two superblocks of {} belong to different stores", device.name());
        return Err(Error::damaged(message));
    }
    let newest = if a.generation > b.generation { a } else { b };
    Ok(FoundSuperblocks { newest, damaged: Vec::new(), differ: false })
}

/// Looks at the spare superblock, which may be the newest one after a crash.
fn add_spare(device: &GuardedDevice, found: &mut FoundSuperblocks) {
    let Some(block) = found.newest.geometry.spare() else { return };
    let place = SuperblockPlace::Spare(block);
    let differs = match read_place(device, place) {
        SlotContent::Valid(spare) if spare.is_of(&found.newest) => {
            // The same checkpoint is in one slot with this generation, and in the other with the
            // next one.
            let same = (found.newest.generation - 1..=found.newest.generation).contains(&spare.generation)
                && spare.roots == found.newest.roots;
            if spare.generation > found.newest.generation {
                found.newest = *spare;
            }
            !same
        }
        SlotContent::Valid(_) => {
            found.damaged.push(Error::damaged(format!("{place} belongs to another store")));
            true
        }
        SlotContent::Empty => {
            found.damaged.push(Error::damaged(format!("{place} is gone")));
            true
        }
        SlotContent::Damaged(error) | SlotContent::Newer(error) => {
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
    let FoundSuperblocks { mut newest, damaged, differ } = read_superblocks(device)?;
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
