//! Superseded clones: pending clones that newer layers leave nothing of.
//!
//! A tree that was cloned and removed again, or moved twice, needs no place in the tree of the
//! index: when its turn comes to be absorbed the layer is dropped. What it would have brought is
//! followed through the newer layers, from the oldest to the newest, as a list of prefixes: where a
//! clone reads one it appears in another place too; where all of one is deleted, or another clone
//! takes its place, it goes. If none is left, no reader can see what the clone would have brought.
//!
//! So that trees that come and go have the time for it, a clone *rests* for a moment before it is
//! bound, unless many layers wait. A look-up passes it meanwhile.
//!
//! Why dropping is right: readers that look at older versions hold the layers themselves. Messages
//! to what the clone brought, from before the deletion, apply to whatever was there, and the
//! deletion above them hides the result.

use super::{Layer, Version};
use crate::memtable::Memtable;
use crate::message::pending_clone::PendingClone;
use crate::model::ids::Lsn;
use crate::model::key::{Key, KeyRange};
use std::time::Duration;

/// So long a clone rests.
const REST: Duration = Duration::from_millis(50);
/// With more layers none does,
const MAX_RESTING_LAYERS: usize = 48;
/// or with more bytes in memtables.
const MAX_RESTING_BYTES: usize = 8 << 20;
/// So many places are followed at most.
const MAX_PLACES: usize = 8;

/// Where what a clone brought can still be seen.
struct Places(Vec<Key>);

impl Places {
    /// A memtable with newer messages.
    fn pass_table(&mut self, table: &Memtable) {
        if table.has_ranges() {
            let ranges = table.ranges();
            self.0.retain(|place| !ranges.deletes_all_of(&KeyRange::prefix(place)));
        }
    }

    /// A newer clone.
    fn pass_clone(&mut self, clone: &PendingClone) {
        let PendingClone { source, destination, .. } = clone;
        let copy = |place: &Key| match place.strip_prefix(&**source) {
            Some(rest) => Some([destination, rest].concat().into()),
            None => source.starts_with(place).then(|| destination.clone()),
        };
        let copies: Vec<Key> = self.0.iter().filter_map(copy).collect();
        self.0.retain(|place| !place.starts_with(destination));
        self.0.extend(copies);
    }
}

impl Version {
    /// How long the oldest layer still rests if it is a clone; `now` on the monotonic clock.
    pub(crate) fn rest(&self, now: Duration) -> Option<Duration> {
        for sealed in &self.sealed {
            if let Layer::Clone(clone) = &sealed.layer {
                clone.seen.get_or_init(|| now);
            }
        }
        let Layer::Clone(clone) = &self.sealed.first()?.layer else { return None };
        let left = (*clone.seen.get()? + REST).checked_sub(now).filter(|left| !left.is_zero())?;
        let are_few = self.sealed.len() <= MAX_RESTING_LAYERS && self.memtable_bytes() <= MAX_RESTING_BYTES;
        are_few.then_some(left)
    }

    /// True if the oldest layer is a clone of which layers up to batch `upto`, or the active
    /// memtable if that is `u64::MAX`, leave nothing.
    pub(super) fn is_oldest_superseded(&self, upto: Lsn) -> bool {
        let Some((oldest, newer)) = self.sealed.split_first() else { return false };
        let Layer::Clone(clone) = &oldest.layer else { return false };
        let mut places = Places(vec![clone.destination.clone()]);
        for sealed in newer.iter().take_while(|sealed| sealed.upto <= upto) {
            match &sealed.layer {
                Layer::Table(table) => places.pass_table(table),
                Layer::Clone(clone) => places.pass_clone(clone),
            }
            if places.0.is_empty() || places.0.len() > MAX_PLACES {
                return places.0.is_empty();
            }
        }
        if upto == Lsn(u64::MAX) {
            places.pass_table(&self.active);
        }
        places.0.is_empty()
    }
}

#[cfg(test)]
mod tests;
