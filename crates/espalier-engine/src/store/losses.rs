//! Losses: what a damaged store has lost, and where the log carries it while it is replayed.
//!
//! A clone copies what is lost as it copies what is there, and what it puts in another's place is
//! what the copy has lost, no longer what was lost there before. So what is lost now is held as a
//! set of keys for each index: a list of all that was ever lost would double with each clone of the
//! whole. Where a copy has lost more than [`MAX_COPIED_RANGES`], all of it counts as lost.

use crate::memtable::Memtable;
use crate::message::pending_clone::PendingClone;
use crate::model::ids::{IndexId, Msn};
use crate::model::key::KeyRange;
use crate::model::key_ranges::KeyRanges;
use crate::model::op::RangeOp;
use crate::tree::Loss;
use std::collections::BTreeMap;

/// Lost ranges that a clone copies one by one. Clones of clones may hold any number of them.
const MAX_COPIED_RANGES: usize = 1 << 16;

/// What a damaged store has lost, as far as the layers of its indexes have been absorbed.
#[derive(Default)]
pub(super) struct Losses {
    /// What was lost where it was found.
    found: Vec<Loss>,
    indexes: BTreeMap<IndexId, LostKeys>,
}

/// What an index has lost.
#[derive(Default)]
struct LostKeys {
    /// What was in the tree there is lost: what changes it has nothing to change.
    tree: KeyRanges,
    /// Values of the log are lost there. What changes these is not replayed.
    values: KeyRanges,
    /// Values of the log that are lost, by the message that brought them, and are not in `values`
    /// yet: the layer of that message may not be absorbed yet.
    to_come: BTreeMap<Msn, KeyRange>,
    /// Where clones brought what is lost.
    copies: KeyRanges,
}

impl Losses {
    /// What is lost before replay begins.
    pub(super) fn in_trees(found: Vec<Loss>) -> Self {
        let mut losses = Self::default();
        found.into_iter().for_each(|loss| losses.add_in_tree(loss));
        losses
    }

    /// Something in the tree of an index is lost, or what was changed there is deleted for that.
    pub(super) fn add_in_tree(&mut self, loss: Loss) {
        if let (Some(index), Some(range)) = (loss.index, &loss.range) {
            self.indexes.entry(index).or_default().tree.insert(range.clone());
        }
        self.found.push(loss);
    }

    /// A value that message `msn` of the log brought is lost.
    pub(super) fn add_value(&mut self, loss: Loss, msn: Msn) {
        if let (Some(index), Some(range)) = (loss.index, &loss.range) {
            self.indexes.entry(index).or_default().to_come.insert(msn, range.clone());
        }
        self.found.push(loss);
    }

    /// True if nothing in the tree of `index` is lost.
    pub(super) fn has_none_in_tree(&self, index: IndexId) -> bool {
        self.indexes.get(&index).is_none_or(|lost| lost.tree.is_empty())
    }

    /// Where in the tree of `index` something is lost, within `range`: ascending ranges.
    pub(super) fn in_tree(&self, index: IndexId, range: &KeyRange) -> Vec<KeyRange> {
        self.indexes.get(&index).map_or_else(Vec::new, |lost| lost.tree.within(range).collect())
    }

    /// A table becomes part of a tree: what it deletes is lost no longer.
    pub(super) fn pass_table(&mut self, index: IndexId, table: &Memtable) {
        let Some(lost) = self.indexes.get_mut(&index) else { return };
        for (range, ops) in table.ranges().iter() {
            if ops.iter().any(|(_, op)| *op == RangeOp::Delete) {
                lost.tree.remove(&range);
            }
        }
    }

    /// A clone becomes part of a tree: what it copies of something lost is lost there too, and what
    /// was there before is not there any more.
    pub(super) fn pass_clone(&mut self, index: IndexId, clone: &PendingClone) {
        let Some(lost) = self.indexes.get_mut(&index) else { return };
        let PendingClone { msn, source, destination, .. } = clone;
        let later = lost.to_come.split_off(msn);
        let earlier = std::mem::replace(&mut lost.to_come, later);
        earlier.into_values().for_each(|range| lost.values.insert(range));
        for keys in [&mut lost.tree, &mut lost.values] {
            let (from, to) = (KeyRange::prefix(source), KeyRange::prefix(destination));
            let mut copied: Vec<KeyRange> =
                keys.within(&from).map(|range| moved(&range, source, destination)).collect();
            if copied.len() > MAX_COPIED_RANGES {
                copied = vec![to.clone()];
            }
            keys.remove(&to);
            for range in copied {
                lost.copies.insert(range.clone());
                keys.insert(range);
            }
        }
    }

    /// Everything that is to be told.
    pub(super) fn into_told(self) -> Vec<Loss> {
        let Self { mut found, indexes } = self;
        for (index, lost) in indexes {
            let copy = |range| Loss {
                index: Some(index),
                range: Some(range),
                message: "what was cloned there is lost".into(),
            };
            found.extend(lost.copies.iter().map(copy));
        }
        found
    }
}

/// `range`, which lies below `source`, as it appears below `destination`.
fn moved(range: &KeyRange, source: &[u8], destination: &[u8]) -> KeyRange {
    let whole = KeyRange::prefix(destination);
    let below = |key: &[u8]| key.strip_prefix(source).map(|rest| [destination, rest].concat().into());
    KeyRange {
        start: below(&range.start).unwrap_or(whole.start),
        end: range.end.as_deref().and_then(below).or(whole.end),
    }
}
