//! What a comparison of two trees is not sure of.

use crate::Result;
use crate::model::key::{Key, KeyRange, before_end, union_of};
use crate::model::view::View;
use crate::tree::part_slot::PartSlot;
use crate::tree::trees::Trees;
use std::collections::BTreeSet;

/// So many suspects are listed one by one; beyond, whole ranges are.
pub(in crate::tree) const MAX_SUSPECT_KEYS: usize = 64 << 10;

/// Keys, behind the prefixes, at which two ranges may differ.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    pub(crate) keys: BTreeSet<Key>,
    /// Ascending and disjoint.
    pub(crate) ranges: Vec<KeyRange>,
    /// Nodes looked at.
    pub(crate) nodes: u64,
    /// Entries of parts looked at.
    pub(crate) entries: u64,
}

impl Suspects {
    /// Adds a key.
    pub(crate) fn add_key(&mut self, key: Key) {
        if self.keys.len() < MAX_SUSPECT_KEYS {
            self.keys.insert(key);
        } else {
            self.ranges.push(KeyRange { end: Some([&*key, &[0]].concat().into()), start: key });
        }
    }

    /// Adds the keys that a part shows through `view`, in `range`.
    pub(in crate::tree) fn add_entries(
        &mut self,
        trees: &Trees,
        slot: &PartSlot,
        view: &View,
        range: KeyRange,
    ) -> Result<()> {
        if self.keys.len() >= MAX_SUSPECT_KEYS {
            self.ranges.push(range);
            return Ok(());
        }
        let mut cursor = slot.load(trees)?.cursor();
        cursor.seek(&view.bounds.start);
        while cursor.valid() && before_end(cursor.key(), view.bounds.end.as_deref()) {
            self.entries += 1;
            if let Some(key) = view.outward(cursor.key()) {
                self.add_key(key);
            }
            cursor.next();
        }
        Ok(())
    }

    /// Puts the ranges in order.
    pub(crate) fn sort_ranges(&mut self) {
        self.ranges = union_of(std::mem::take(&mut self.ranges));
    }
}
