//! Key-value parts: immutable sorted runs of entries. A basement of a leaf is one (all inserts),
//! and so is a batch of point messages.
//!
//! An entry is a key, an MSN and an [`Op`]; entries ascend by key, and descend by MSN within a key.
//! Keys are front-coded with restarts; entries are decoded where a [`PartCursor`] stands, and what
//! they hold (small values, patches, arguments) are slices of the part's one buffer. Large values
//! are indexes into a side table.
//!
//! Invariants:
//! - the bytes of a `Part` satisfy the grammar of [`entry`], its order and its restarts: either
//!   [`PartBuilder`] made them or [`Part::decode`] has checked every entry;
//! - a part has at least one entry.

mod builder;
mod codec;
mod cursor;
mod entry;

pub(crate) use builder::PartBuilder;
pub(crate) use cursor::PartCursor;

use super::filter::Filter;
use crate::PieceId;
use crate::model::ids::Reference;
use crate::model::op::Op;
use crate::model::value::LargeValue;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A sorted run of entries in memory.
pub(crate) struct Part {
    /// The entries, then the offsets of the restarts among them (4 bytes each).
    body: Bytes,
    /// Bytes of `body` that are entries.
    entries_len: usize,
    /// Number of entries.
    entries: u32,
    /// The MSNs of the entries are relative to this.
    base_msn: u64,
    last_key: Box<[u8]>,
    values: Box<[Arc<LargeValue>]>,
    /// Sum of the lengths of the large values.
    value_bytes: u64,
    /// Pages that the large values take, each on its own.
    value_pages: usize,
    /// Made when first asked for: most parts are only read.
    filter: OnceLock<Filter>,
    /// All its large values have a place on the device, and so they always will.
    placed: AtomicBool,
}

impl Part {
    /// Number of entries; never 0.
    pub(crate) fn len(&self) -> usize {
        self.entries as usize
    }

    /// The key of the first entry.
    pub(crate) fn first_key(&self) -> &[u8] {
        entry::restart_key(self.entries(), 0)
    }

    /// The key of the last entry.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Bytes it holds in memory, without those of large values.
    pub(crate) fn memory(&self) -> usize {
        // Asked for at every change of a tree: without a look at each value.
        let tables = self.values.len() * (size_of::<LargeValue>() + 48) + self.value_pages * 4;
        size_of::<Self>() + self.body.len() + self.last_key.len() + tables
    }

    /// Sum of the lengths of the large values it refers to.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.value_bytes
    }

    /// The large values it refers to, in the order of their entries.
    pub(crate) fn values(&self) -> &[Arc<LargeValue>] {
        &self.values
    }

    /// The large values that have no place on the device yet.
    pub(crate) fn unplaced_values(&self) -> impl Iterator<Item = &Arc<LargeValue>> {
        // Asked for at every change of a tree: parts that have none are not to be looked through
        // again.
        let values: &[_] = if self.placed.load(Ordering::Relaxed) { &[] } else { &self.values };
        let mut unplaced = values.iter().filter(|value| !value.is_stored()).peekable();
        if unplaced.peek().is_none() {
            self.placed.store(true, Ordering::Relaxed);
        }
        unplaced
    }

    /// The filter of its keys.
    pub(crate) fn filter(&self) -> &Filter {
        self.filter.get_or_init(|| {
            let mut hashes = Vec::with_capacity(self.len());
            let mut walk = entry::Walk::new(self.entries());
            while let Some((key, new_key)) = walk.next() {
                if new_key {
                    hashes.push(Filter::hash(key));
                }
            }
            Filter::build(&hashes)
        })
    }

    /// The distinct value parts it refers to, ascending, with the bytes of its values there. Values
    /// not stored yet refer to none.
    pub(crate) fn value_parts(&self) -> Vec<Reference> {
        let mut parts: BTreeMap<PieceId, u64> = BTreeMap::new();
        for place in self.values.iter().filter_map(|v| v.place()) {
            *parts.entry(place.part.id()).or_default() += u64::from(place.len);
        }
        parts.into_iter().collect()
    }

    fn entries(&self) -> &[u8] {
        &self.body[..self.entries_len]
    }

    /// The offsets of the restarts.
    fn restarts(&self) -> &[[u8; 4]] {
        self.body[self.entries_len..].as_chunks().0
    }

    fn op(&self, at: &entry::Entry) -> Op {
        at.op(&self.body, &self.values)
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (first, last) = (self.first_key().escape_ascii(), self.last_key().escape_ascii());
        write!(f, "Part({} entries, {first}..={last})", self.entries)
    }
}

#[cfg(test)]
mod tests;
