//! Which pieces outside the node translation table occupy blocks, and until when.
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
//! What a version of an index leads to is fixed when it is made: slots. Each is stored by the first
//! checkpoint with a cut after that, or has been replaced by then, and no checkpoint ever counts
//! it. What the device leads to from a stored piece was written before it, and what a piece leads
//! to that is never counted, its handle owns. So a version leads to nothing, but by handles, that
//! was given its number after that checkpoint had ended. A pin of a version stays in use for newer
//! ones until the checkpoint after the next has ended, as an index that is made during one is not
//! in its cut; after [`PIN_KNOWN_CHECKPOINTS`] checkpoints it holds only what had a number before.

use crate::PieceId;
use crate::lock_order::{RankedMutex, rank};
use crate::model::ids::Location;
use crate::model::piece::PieceHandle;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Weak;

/// A piece that is written but not counted.
pub(super) struct FreshPiece {
    pub(super) location: Location,
    /// The handle that owns what the piece refers to.
    pub(super) handle: Weak<PieceHandle>,
    /// A checkpoint is entering it into the table: no longer the handles' to free.
    pub(super) counting: bool,
}

/// PinGroup of versions know no piece that was numbered after so many checkpoints more had ended.
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

/// PinGroup that were taken at the same time.
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

/// FreshPiece pieces, dead pieces and pins.
#[derive(Default)]
pub(super) struct PieceLives {
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

impl PieceLives {
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
    pub(super) fn add_fresh(&mut self, id: PieceId, fresh: FreshPiece) {
        self.fresh_blocks += fresh.location.blocks();
        self.fresh.insert(id, fresh);
    }

    /// Changes the checksum of a fresh piece; false if there is none.
    pub(super) fn amend(&mut self, id: PieceId, checksum: u64) -> bool {
        let fresh = self.fresh.get_mut(&id);
        fresh.map(|fresh| fresh.location.checksum = checksum).is_some()
    }

    /// Removes a fresh piece: it is counted now, or about to die.
    pub(super) fn remove_fresh(&mut self, id: PieceId) -> Option<Location> {
        let fresh = self.fresh.remove(&id)?;
        self.fresh_blocks -= fresh.location.blocks();
        Some(fresh.location)
    }

    /// Takes a fresh piece away from its handles, or a dead one back to life, to be counted.
    pub(super) fn begin_counting(&mut self, id: PieceId) -> Option<Location> {
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
    pub(super) fn die(&mut self, id: PieceId, location: Location, needed: bool) {
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
    pub(super) fn add_page(&mut self, block: u64) {
        self.pending.pages.push(block);
    }

    /// The tables are written: what died so far is not needed by a superblock with their roots.
    /// What dies from now on waits for the one after it.
    pub(super) fn tables_written(&mut self) {
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
                    self.let_go(pins.held);
                }
            }
        }
        !self.loose.is_empty()
    }

    /// A checkpoint has ended, and the next piece gets the number `next`; true if the dead may have
    /// become free by that.
    pub(super) fn checkpointed(&mut self, next: PieceId) -> bool {
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
        self.let_go(held);
        !self.loose.is_empty()
    }

    /// These no longer wait for the pins that they waited for.
    fn let_go(&mut self, held: impl IntoIterator<Item = (u64, PieceId)>) {
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

type HandleShard = RankedMutex<HashMap<PieceId, u32>, { rank::PIECE_HANDLES }>;

/// How many handles there are on which pieces.
#[derive(Default)]
pub(super) struct HandleCounts {
    shards: [HandleShard; 16],
}

impl HandleCounts {
    fn shard(&self, id: PieceId) -> &HandleShard {
        &self.shards[(id.0 % 16) as usize]
    }

    pub(super) fn add(&self, id: PieceId) {
        *self.shard(id).lock().entry(id).or_default() += 1;
    }

    /// One handle less; true if it was the last.
    pub(super) fn remove(&self, id: PieceId) -> bool {
        let mut shard = self.shard(id).lock();
        match shard.get_mut(&id) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => {
                shard.remove(&id);
                true
            }
        }
    }

    pub(super) fn any(&self, id: PieceId) -> bool {
        self.shard(id).lock().contains_key(&id)
    }
}
