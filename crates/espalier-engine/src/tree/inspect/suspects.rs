//! What a comparison of two trees is not sure of.

use crate::model::key::{Key, KeyRange, union_of};
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

    /// Puts the ranges in order.
    pub(crate) fn sort_ranges(&mut self) {
        self.ranges = union_of(std::mem::take(&mut self.ranges));
    }
}
