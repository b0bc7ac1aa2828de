//! Changing the size of a store or its label, and erasing superblocks.

use super::find::read_superblocks;
use super::{LOG_START_BLOCK, MAX_BLOCKS, MAX_LABEL, SLOT_BLOCKS, Superblock, too_large};
use crate::device::GuardedDevice;
use crate::{Error, ErrorKind, Result};
use espalier_storage::{AlignedBuf, BLOCK};

/// Makes the store on `device`, which is not open, have `blocks` blocks.
///
/// # Errors
/// As for [`read_superblocks`] and [`write_resized`].
pub(crate) fn resize_offline(device: &GuardedDevice, blocks: u64) -> Result<()> {
    let mut newest = read_superblocks(device)?.newest;
    write_resized(device, &mut newest, blocks)
}

/// Makes the store with the newest superblock `superblock` have `blocks` blocks, durably. Nothing
/// else changes: blocks that no space map mentions are free. The slots are written one after the
/// other, so a crash leaves the old size or the new; a superblock of the old one at its end is gone
/// when this returns.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the store has more blocks, the device fewer, or if these are
/// more than a store can have; what the device says.
pub(crate) fn write_resized(device: &GuardedDevice, superblock: &mut Superblock, blocks: u64) -> Result<()> {
    let before = superblock.geometry.blocks;
    if blocks < before {
        let message = format!("the store has {before} blocks and cannot shrink to {blocks}");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    if device.len() / (BLOCK as u64) < blocks {
        let message = format!("{} has {} bytes, too few for {blocks} blocks", device.name(), device.len());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    if blocks > MAX_BLOCKS {
        return Err(too_large(blocks));
    }
    if blocks == before {
        return Ok(());
    }
    let old_spare = superblock.geometry.spare();
    superblock.geometry.blocks = blocks;
    write_twice(device, superblock)?;
    // What lies in the middle of the store must not be taken for its superblock.
    match old_spare {
        Some(block) => erase(device, &[block]),
        None => Ok(()),
    }
}

/// Gives the store with the newest superblock `superblock` another label, durably. A crash leaves
/// the old one or the new.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if it is too long, or has a NUL; what the device says.
pub(crate) fn write_label(device: &GuardedDevice, superblock: &mut Superblock, label: &str) -> Result<()> {
    if label.len() > MAX_LABEL || label.contains('\0') {
        let message = format!("a label has up to {MAX_LABEL} bytes, and no NUL");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    label.clone_into(&mut superblock.label);
    write_twice(device, superblock)
}

/// Writes a superblock that leads to what the newest one does into both slots, durably.
fn write_twice(device: &GuardedDevice, superblock: &mut Superblock) -> Result<()> {
    for _ in 0..2 {
        superblock.generation += 1;
        superblock.write(device)?;
        superblock.write_spare(device)?;
        device.sync()?;
    }
    Ok(())
}

/// Makes all superblocks unrecognisable, durably: the first step of `mkfs`.
///
/// # Errors
/// Whatever the device says.
pub(crate) fn erase_superblocks(device: &GuardedDevice) -> Result<()> {
    let last = (device.len() / BLOCK as u64).checked_sub(1).filter(|last| *last >= LOG_START_BLOCK);
    let known = read_superblocks(device).ok().and_then(|found| found.newest.geometry.spare());
    let spares: Vec<u64> = last.into_iter().chain(known).collect();
    // The spare ones first: without the others they are all that leads to what is there.
    erase(device, &spares)?;
    erase(device, &SLOT_BLOCKS)
}

fn erase(device: &GuardedDevice, blocks: &[u64]) -> Result<()> {
    let zeros = AlignedBuf::zeroed(BLOCK);
    for block in blocks {
        device.write_at(block * BLOCK as u64, &[&zeros])?;
    }
    device.sync()
}
