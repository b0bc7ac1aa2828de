//! What a power cut leaves of writes that no sync had made durable.

use super::image::{Block, Image};
use crate::Random;
use std::sync::Arc;

/// A write since the last sync.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) first: u64,
    pub(super) blocks: Vec<Arc<Block>>,
}

impl Pending {
    pub(super) fn apply(&self, image: &mut Image) {
        for (number, block) in (self.first..).zip(&self.blocks) {
            image.set(number, block.clone());
        }
    }

    fn apply_torn(&self, image: &mut Image, random: &mut Random) {
        let torn = tear(image, self.first, &self.blocks, random);
        Self { first: self.first, blocks: torn }.apply(image);
    }
}

/// The unit in bytes that a device writes whole or not at all.
pub const SECTOR: usize = 512;

/// A moment of a history at which the power may fail.
#[derive(Debug, Clone)]
pub struct CrashPoint {
    change: u64,
    durable: Image,
    pending: Vec<Arc<Pending>>,
}

impl CrashPoint {
    pub(super) fn new(change: u64, durable: Image, pending: Vec<Arc<Pending>>) -> Self {
        Self { change, durable, pending }
    }

    /// How many changes ([`OperationCounts::changes`](super::OperationCounts::changes)) the device
    /// had seen, the one at which the power fails included.
    pub fn change(&self) -> u64 {
        self.change
    }

    /// Number of writes and discards that a crash here may lose.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Everything that was written.
    pub(super) fn written_image(&self) -> Image {
        let mut image = self.durable.clone();
        self.pending.iter().for_each(|write| write.apply(&mut image));
        image
    }

    /// What was durable, and what was written since.
    pub(super) fn unsynced(&self) -> (Image, Vec<Arc<Pending>>) {
        (self.durable.clone(), self.pending.clone())
    }

    /// What is found after the power cut.
    pub(super) fn surviving_image(&self, random: &mut Random) -> Image {
        let mut image = self.durable.clone();
        survive(&mut image, &self.pending, random);
        image
    }
}

/// Lets some of `pending` reach `image`. The extremes (none, all, all but one, a prefix) have
/// their own cases, because random subsets of many writes would never be any of them.
fn survive(image: &mut Image, pending: &[Arc<Pending>], random: &mut Random) {
    let all: Vec<&Arc<Pending>> = pending.iter().collect();
    let prefix = random.index(pending.len() + 1);
    match random.below(8) {
        0 => {}
        1 => all.iter().for_each(|write| write.apply(image)),
        2 => {
            all[..prefix].iter().for_each(|write| write.apply(image));
            if let Some(write) = all.get(prefix) {
                write.apply_torn(image, random);
            }
        }
        3 => {
            for (i, write) in all.iter().enumerate() {
                if i != prefix {
                    write.apply(image);
                } else if random.one_in(2) {
                    write.apply_torn(image, random);
                }
            }
        }
        density => survive_subset(image, all, density - 3, random),
    }
}

/// A random subset, denser for a higher `density`, in any order, one in four torn.
fn survive_subset(image: &mut Image, mut writes: Vec<&Arc<Pending>>, density: u64, random: &mut Random) {
    if random.one_in(2) {
        random.shuffle(&mut writes);
    }
    for write in writes {
        if random.below(5) >= density {
            continue;
        }
        if random.one_in(4) {
            write.apply_torn(image, random);
        } else {
            write.apply(image);
        }
    }
}

/// What a write of `blocks` leaves that was cut off: each sector is old or new.
pub(super) fn tear(image: &Image, first: u64, blocks: &[Arc<Block>], random: &mut Random) -> Vec<Arc<Block>> {
    let per_block = crate::BLOCK / SECTOR;
    let total = blocks.len() * per_block;
    let (cut, style) = (random.index(total + 1), random.below(3));
    let mut lands = |sector: usize| match style {
        0 => sector < cut,
        1 => sector >= cut,
        _ => random.one_in(2),
    };
    let mut torn = Vec::with_capacity(blocks.len());
    for (i, new) in blocks.iter().enumerate() {
        let mut block = image.copy(first + i as u64);
        for sector in 0..per_block {
            if lands(i * per_block + sector) {
                let bytes = sector * SECTOR..(sector + 1) * SECTOR;
                block[bytes.clone()].copy_from_slice(&new[bytes]);
            }
        }
        torn.push(Arc::new(block));
    }
    torn
}
