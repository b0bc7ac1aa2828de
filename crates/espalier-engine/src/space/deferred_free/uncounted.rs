//! Pieces outside the node translation table that occupy blocks, and until when they do.
//!
//! A piece is *fresh* (written, not counted), *counted* (in the node translation table; not here)
//! or *dead* (its count fell to 0, or a fresh one's last handle went while an older pin was there).
//! The free of the dead is *deferred*: they can still be located, and their blocks are still in
//! `used`. They leave when
//! 1. a superblock that does not need them is durable (only for pieces that were counted),
//! 2. no pin is left that is older than their death, and not too old to know them, and
//! 3. no handle on them is left.
//!
//! Time is counted in deaths: a pin notes the number of deaths so far, a death its own number.
//!
//! A version of an index leads to slots, which are fixed when it is made. The first checkpoint
//! whose cut comes after that stores each slot, or it has been replaced by then and no checkpoint
//! ever counts it. What a stored piece refers to was written before it; what an uncounted piece
//! refers to, its handle owns. So a version leads to no piece that was numbered after that
//! checkpoint had ended, except through handles.
//!
//! A pin of a version is taken over by newer versions of the index until the index is in a
//! checkpoint's cut: that of the second checkpoint at the latest, as an index made during the first
//! is not in its cut. The third stores what these versions lead to. So a pin need not hold pieces
//! numbered after three checkpoints; [`PIN_KNOWN_CHECKPOINTS`] is one more, as a margin.

use super::handle_counts::HandleCounts;
use crate::PieceId;
use crate::model::ids::Location;
use crate::model::piece::PieceHandle;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Weak;

/// A piece that is written but not counted.
pub(in crate::space) struct FreshPiece {
    pub(in crate::space) location: Location,
    /// The handle that owns what the piece refers to.
    pub(in crate::space) handle: Weak<PieceHandle>,
    /// A checkpoint is entering it into the table: no longer the handles' to free.
    pub(in crate::space) counting: bool,
}

/// Pins of versions know no piece that was numbered after so many checkpoints more had ended.
const PIN_KNOWN_CHECKPOINTS: u64 = 4;

struct DeadPiece {
    location: Location,
    /// The number of its death.
    died: u64,
    /// The superblock on the device may still need it.
    needed: bool,
    /// The pin that it waits for.
    held_by: Option<PinKey>,
}

/// When a pin was taken: the number of deaths, and for pins of versions that of checkpoints.
pub(super) type PinKey = (u64, Option<u64>);

/// Pins that were taken at the same time.
#[derive(Default)]
struct PinGroup {
    count: usize,
    /// They know no piece with this number or a higher one.
    until: Option<PieceId>,
    /// The dead that wait for them, by death. Those of them that others hold too wait for those
    /// next.
    held: BTreeSet<(u64, PieceId)>,
}

impl PinGroup {
    fn knows(&self, id: PieceId) -> bool {
        self.until.is_none_or(|until| id < until)
    }
}

/// Blocks that the superblock on the device needs and a later one will not.
#[derive(Default)]
struct ObsoleteBlocks {
    /// Pieces, each with the number of its death (it may have come back and died again since).
    pieces: Vec<(PieceId, u64)>,
    /// Blocks of table pages.
    pages: Vec<u64>,
}

/// Fresh pieces, dead pieces and pins.
#[derive(Default)]
pub(in crate::space) struct UncountedPieces {
    pub(super) fresh: HashMap<PieceId, FreshPiece>,
    dead: HashMap<PieceId, DeadPiece>,
    /// What the tables in memory no longer account for.
    pending: ObsoleteBlocks,
    /// What the tables as last written no longer account for: free with the next superblock.
    sealed: ObsoleteBlocks,
    /// The dead that no superblock needs, by death, until it is known whether a pin holds them.
    loose: BTreeSet<(u64, PieceId)>,
    pins: BTreeMap<PinKey, PinGroup>,
    deaths: u64,
    checkpoints: u64,
    pub(super) fresh_blocks: u64,
    dead_blocks: u64,
}

impl UncountedPieces {
    /// Where a fresh or dead piece lies.
    pub(super) fn locate(&self, id: PieceId) -> Option<Location> {
        let fresh = self.fresh.get(&id).map(|fresh| fresh.location);
        fresh.or_else(|| self.dead.get(&id).map(|dead| dead.location))
    }

    /// True if the piece is dead.
    pub(super) fn is_dead(&self, id: PieceId) -> bool {
        self.dead.contains_key(&id)
    }

    /// Enters a fresh piece.
    pub(in crate::space) fn add_fresh(&mut self, id: PieceId, fresh: FreshPiece) {
        self.fresh_blocks += fresh.location.blocks();
        self.fresh.insert(id, fresh);
    }

    /// Changes the checksum of a fresh piece; false if there is none.
    pub(super) fn amend(&mut self, id: PieceId, checksum: u64) -> bool {
        let fresh = self.fresh.get_mut(&id);
        fresh.map(|fresh| fresh.location.checksum = checksum).is_some()
    }

    /// Removes a fresh piece: it is counted now, or about to die.
    pub(in crate::space) fn remove_fresh(&mut self, id: PieceId) -> Option<Location> {
        let fresh = self.fresh.remove(&id)?;
        self.fresh_blocks -= fresh.location.blocks();
        Some(fresh.location)
    }

    /// Takes a fresh piece away from its handles, or a dead one back to life, to be counted.
    pub(in crate::space) fn begin_counting(&mut self, id: PieceId) -> Option<Location> {
        if let Some(dead) = self.remove_dead(id) {
            let fresh = FreshPiece { location: dead, handle: Weak::new(), counting: true };
            self.add_fresh(id, fresh);
            return Some(dead);
        }
        let fresh = self.fresh.get_mut(&id)?;
        fresh.counting = true;
        Some(fresh.location)
    }

    /// A piece dies; `needed` if the superblock on the device may need it.
    pub(in crate::space) fn die(&mut self, id: PieceId, location: Location, needed: bool) {
        self.deaths += 1;
        let died = self.deaths;
        if needed {
            self.pending.pieces.push((id, died));
        } else {
            self.loose.insert((died, id));
        }
        self.dead_blocks += location.blocks();
        self.dead.insert(id, DeadPiece { location, died, needed, held_by: None });
    }

    /// The block of a table page is no longer accounted for.
    pub(in crate::space) fn add_page(&mut self, block: u64) {
        self.pending.pages.push(block);
    }

    /// The tables are written: what died so far is not needed by a superblock with their roots.
    /// What dies from now on waits for the one after it.
    pub(in crate::space) fn tables_written(&mut self) {
        self.sealed.pieces.append(&mut self.pending.pieces);
        self.sealed.pages.append(&mut self.pending.pages);
    }

    /// A superblock with the roots of the tables last written is durable: what waited for it waits
    /// for pins only. Returns the blocks of table pages that it set free.
    pub(super) fn superblock_written(&mut self) -> Vec<u64> {
        let ObsoleteBlocks { pieces, pages } = std::mem::take(&mut self.sealed);
        for (id, died) in pieces {
            if let Some(dead) = self.dead.get_mut(&id)
                && dead.died == died
            {
                dead.needed = false;
                self.loose.insert((died, id));
            }
        }
        pages
    }

    /// Removes and returns the dead that nothing needs any more, of those that wait for
    /// no pin any more.
    pub(super) fn take_released(&mut self, handles: &HandleCounts) -> Vec<(PieceId, Location)> {
        let mut released = Vec::new();
        while let Some((died, id)) = self.loose.pop_first() {
            let holder = self.holder(id, died);
            if let Some((key, pins)) = holder {
                pins.held.insert((died, id));
                if let Some(dead) = self.dead.get_mut(&id) {
                    dead.held_by = Some(key);
                }
            } else if !handles.any(id) {
                // With a handle left it stays dead; the handle's end asks again.
                released.extend(self.remove_dead(id).map(|location| (id, location)));
            }
        }
        released
    }

    /// As [`Self::take_released`], for one piece after its last handle went.
    pub(super) fn take_if_released(&mut self, id: PieceId) -> Option<Location> {
        let dead = self.dead.get(&id)?;
        let (needed, died) = (dead.needed, dead.died);
        if needed || self.holder(id, died).is_some() { None } else { self.remove_dead(id) }
    }

    /// The newest pins that hold what died then: mostly they are the last to go.
    fn holder(&mut self, id: PieceId, died: u64) -> Option<(PinKey, &mut PinGroup)> {
        let older = self.pins.range_mut(..(died, None));
        older.rev().map(|(key, pins)| (*key, pins)).find(|(_, pins)| pins.knows(id))
    }

    fn remove_dead(&mut self, id: PieceId) -> Option<Location> {
        let dead = self.dead.remove(&id)?;
        let waiting = match dead.held_by {
            Some(key) => self.pins.get_mut(&key).map(|pins| &mut pins.held),
            None => Some(&mut self.loose),
        };
        if let Some(waiting) = waiting {
            waiting.remove(&(dead.died, id));
        }
        self.dead_blocks -= dead.location.blocks();
        Some(dead.location)
    }

    /// Takes a pin, of a version or of whatever else; returns what [`Self::unpin`] wants.
    pub(super) fn pin(&mut self, of_version: bool) -> PinKey {
        let key = (self.deaths, of_version.then_some(self.checkpoints));
        self.pins.entry(key).or_default().count += 1;
        key
    }

    /// Drops a pin; true if the dead may have become free by that.
    pub(super) fn unpin(&mut self, key: PinKey) -> bool {
        match self.pins.get_mut(&key) {
            Some(pins) if pins.count > 1 => pins.count -= 1,
            _ => {
                if let Some(pins) = self.pins.remove(&key) {
                    self.release_from_pins(pins.held);
                }
            }
        }
        !self.loose.is_empty()
    }

    /// A checkpoint has ended, and the next piece gets the number `next`; true if the dead may have
    /// become free by that.
    pub(super) fn note_checkpoint(&mut self, next: PieceId) -> bool {
        self.checkpoints += 1;
        let mut held = Vec::new();
        for ((_, taken), pins) in &mut self.pins {
            if pins.until.is_none()
                && taken.is_some_and(|taken| taken + PIN_KNOWN_CHECKPOINTS <= self.checkpoints)
            {
                pins.until = Some(next);
                held.extend(pins.held.extract_if(.., |(_, id)| *id >= next));
            }
        }
        self.release_from_pins(held);
        !self.loose.is_empty()
    }

    /// These no longer wait for the pins that they waited for.
    fn release_from_pins(&mut self, held: impl IntoIterator<Item = (u64, PieceId)>) {
        for (died, id) in held {
            if let Some(dead) = self.dead.get_mut(&id) {
                dead.held_by = None;
            }
            self.loose.insert((died, id));
        }
    }

    /// True if there is any pin.
    pub(super) fn any_pin(&self) -> bool {
        !self.pins.is_empty()
    }

    /// Blocks of dead pieces and of table pages that wait for a superblock.
    pub(super) fn deferred_blocks(&self) -> u64 {
        self.dead_blocks + (self.pending.pages.len() + self.sealed.pages.len()) as u64
    }
}
