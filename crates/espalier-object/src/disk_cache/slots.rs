//! Slots: which frame each slot of a disk cache has, and which slot is used next.
//!
//! Invariants: a frame is in one slot at most; a slot that is being written is in no table, so no
//! second frame is put there and none is found there.

use crate::format::NewObject;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of an entry of the index.
pub(super) const ENTRY_BYTES: usize = 32;
const SUM_AT: usize = ENTRY_BYTES - 8;

/// Part of the checksums of entries: another layout of the files has another number.
const LAYOUT: u64 = 0x6573_7061_6c5f_6331;

/// A frame of an object. Names of objects are never used twice, so this names its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    object: u64,
    nonce: u64,
    frame: u32,
}

impl Key {
    pub(super) fn new(object: &NewObject, frame: u32) -> Self {
        Self { object: object.id.0, nonce: object.nonce, frame }
    }

    /// The entry of the index that says that `slot` has this frame.
    pub(super) fn encode(&self, slot: u32) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&self.object.to_le_bytes());
        entry[8..16].copy_from_slice(&self.nonce.to_le_bytes());
        entry[16..20].copy_from_slice(&self.frame.to_le_bytes());
        let sum = xxh3_64_with_seed(&entry[..SUM_AT], LAYOUT ^ u64::from(slot));
        entry[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        entry
    }

    /// The frame in `slot`; `None` if the entry is not one that was written for it.
    fn decode(entry: &[u8], slot: u32) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(entry.get(at..at + 8)?.try_into().ok()?));
        let frame = u32::try_from(number(16)?).ok()?;
        let key = Self { object: number(0)?, nonce: number(8)?, frame };
        (key.encode(slot) == *entry).then_some(key)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    /// It is being written.
    Busy,
    Used {
        key: Key,
        /// Read since the hand last passed.
        read: bool,
    },
}

/// The slots that were ever used, and the frames in them.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    places: HashMap<Key, u32>,
    free: Vec<u32>,
    hand: usize,
    limit: u32,
}

impl Slots {
    /// The slots that an index is about, at most `limit`; what is wrong in it is free.
    pub(super) fn decode(index: &[u8], limit: u32) -> Self {
        let mut slots = Self { slots: Vec::new(), places: HashMap::new(), free: Vec::new(), hand: 0, limit };
        for (entry, slot) in index.chunks_exact(ENTRY_BYTES).zip(0..limit) {
            let key = Key::decode(entry, slot).filter(|key| !slots.places.contains_key(key));
            match key {
                Some(key) => {
                    slots.places.insert(key, slot);
                    slots.slots.push(Slot::Used { key, read: false });
                }
                None => {
                    slots.free.push(slot);
                    slots.slots.push(Slot::Free);
                }
            }
        }
        slots
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many have a frame.
    pub(super) fn used(&self) -> usize {
        self.places.len()
    }

    /// How many there may be.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// The slot that has a frame; notes that it is read.
    pub(super) fn find(&mut self, key: &Key) -> Option<u32> {
        let slot = *self.places.get(key)?;
        if let Some(Slot::Used { read, .. }) = self.slots.get_mut(slot as usize) {
            *read = true;
        }
        Some(slot)
    }

    /// True if a slot has this frame.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.places.contains_key(key)
    }

    /// Frees a slot if it still has this frame; returns whether it had.
    pub(super) fn forget(&mut self, key: &Key, slot: u32) -> bool {
        let has = self.places.get(key) == Some(&slot);
        if has {
            self.places.remove(key);
            self.set(slot, Slot::Free);
            self.free.push(slot);
        }
        has
    }

    /// A slot to write a frame to, unless one has it or all are being written.
    pub(super) fn begin(&mut self, key: &Key) -> Option<u32> {
        if self.places.contains_key(key) {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < self.limit as usize => {
                self.slots.push(Slot::Free);
                self.slots.len() as u32 - 1
            }
            None => self.evict()?,
        };
        self.set(slot, Slot::Busy);
        Some(slot)
    }

    /// A slot that [`Slots::begin`] gave has its frame.
    pub(super) fn end(&mut self, key: &Key, slot: u32) {
        if self.places.contains_key(key) {
            // Another thread had the same frame at the same time.
            self.set(slot, Slot::Free);
            self.free.push(slot);
        } else {
            self.places.insert(*key, slot);
            self.set(slot, Slot::Used { key: *key, read: false });
        }
    }

    /// A slot that [`Slots::begin`] gave could not be written. If it was the last one, there will
    /// be no more than those before it. Returns how many there may be.
    pub(super) fn give_up(&mut self, slot: u32) -> u32 {
        if slot as usize + 1 == self.slots.len() {
            self.slots.pop();
            self.limit = slot;
        } else {
            self.set(slot, Slot::Free);
            self.free.push(slot);
        }
        self.limit
    }

    /// Takes a slot from its frame: the first, from the hand on, that was not read since it passed.
    fn evict(&mut self) -> Option<u32> {
        for _ in 0..2 * self.slots.len() {
            let at = self.hand % self.slots.len();
            self.hand = at + 1;
            match &mut self.slots[at] {
                Slot::Used { read, .. } if *read => *read = false,
                Slot::Used { key, .. } => {
                    let key = *key;
                    self.places.remove(&key);
                    return Some(at as u32);
                }
                Slot::Free | Slot::Busy => {}
            }
        }
        None
    }

    fn set(&mut self, slot: u32, state: Slot) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = state;
        }
    }
}
