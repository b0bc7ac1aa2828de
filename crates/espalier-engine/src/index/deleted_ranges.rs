//! Deleted ranges: where something was deleted that may still take space.
//!
//! Protocol: the thread that applies a batch notes what it deletes, and so does replay. Garbage
//! collection takes all of it at once and pushes it down to the leaves; meanwhile, and as long as
//! there is more, a superblock says that the store holds such ranges.

use crate::lock_order::{RankedMutex, rank};
use crate::log::LoggedOp;
use crate::model::ids::IndexId;
use crate::model::key::{Key, KeyRange, before_end, end_le};
use crate::model::op::{Op, RangeOp};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ranges remembered for each index; what is more becomes one that spans them all.
const MAX_RANGES_PER_INDEX: usize = 256;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct DeletedRanges {
    ranges: RankedMutex<RangeSet, { rank::DELETED_RANGES }>,
    /// Ranges that were taken are being pushed down.
    is_pushing_down: AtomicBool,
}

impl DeletedRanges {
    /// Notes what these operations delete.
    pub(crate) fn note(&self, ops: &[LoggedOp]) {
        if ops.iter().any(LoggedOp::deletes) {
            let mut ranges = self.ranges.lock();
            ops.iter().for_each(|op| ranges.note(op));
        }
    }

    /// Notes that anything in these ranges may have been deleted or replaced.
    pub(crate) fn note_ranges(&self, of: &[(IndexId, KeyRange)]) {
        let mut ranges = self.ranges.lock();
        of.iter().for_each(|(index, range)| ranges.add(*index, &range.start, range.end.clone()));
    }

    /// Notes that anything in an index may have been deleted.
    pub(crate) fn note_all(&self, index: IndexId) {
        self.ranges.lock().note_all(index);
    }

    /// True if something in one of these ranges may have been deleted since ranges were last taken.
    pub(crate) fn touch(&self, of: &[(IndexId, KeyRange)]) -> bool {
        let ranges = self.ranges.lock();
        of.iter().any(|(index, range)| ranges.touches(*index, range))
    }

    /// True if nothing was deleted since ranges were last taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.lock().is_empty()
    }

    /// Takes all ranges, to push them down.
    pub(crate) fn take(&self) -> RangeSet {
        self.is_pushing_down.store(true, Ordering::Release);
        std::mem::take(&mut *self.ranges.lock())
    }

    /// What was taken has been pushed down.
    pub(crate) fn finish(&self) {
        self.is_pushing_down.store(false, Ordering::Release);
    }

    /// True if deleted data may take space that no checkpoint sets free by itself.
    pub(crate) fn is_untidy(&self) -> bool {
        self.is_pushing_down.load(Ordering::Acquire) || !self.is_empty()
    }
}

/// Ranges of keys, by index.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    /// Start and end of ranges, disjoint or nearly so.
    ranges: BTreeMap<IndexId, BTreeMap<Key, Option<Key>>>,
}

impl RangeSet {
    /// Adds what an operation deletes.
    fn note(&mut self, op: &LoggedOp) {
        match op {
            LoggedOp::Point { index, key, op: Op::Delete } if !self.has(*index, key) => {
                self.add(*index, key, Some([key, &[0][..]].concat().into()));
            }
            LoggedOp::Range { index, range, op: RangeOp::Delete } => {
                self.add(*index, &range.start, range.end.clone());
            }
            _ => {}
        }
    }

    /// Adds all keys of an index.
    fn note_all(&mut self, index: IndexId) {
        self.ranges.insert(index, BTreeMap::from([(Key::default(), None)]));
    }

    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// True if one of the ranges and `other` have a key in common.
    fn touches(&self, index: IndexId, other: &KeyRange) -> bool {
        let Some(ranges) = self.ranges.get(&index) else { return false };
        ranges.iter().any(|(start, end)| {
            let range = KeyRange { start: start.clone(), end: end.clone() };
            range.overlaps(other)
        })
    }

    /// True if `key` lies in one of the ranges.
    fn has(&self, index: IndexId, key: &Key) -> bool {
        let before = self.ranges.get(&index).and_then(|ranges| ranges.range::<Key, _>(..=key).next_back());
        before.is_some_and(|(_, end)| before_end(key, end.as_deref()))
    }

    /// Adds a range.
    pub(crate) fn add(&mut self, index: IndexId, start: &Key, end: Option<Key>) {
        let ranges = self.ranges.entry(index).or_default();
        if let Some((_, before)) = ranges.range::<Key, _>(..=start).next_back()
            && end_le(end.as_deref(), before.as_deref())
        {
            return;
        }
        ranges.insert(start.clone(), end);
        if ranges.len() > MAX_RANGES_PER_INDEX {
            let first = ranges.keys().next().cloned().unwrap_or_default();
            let last = ranges.values().reduce(|a, b| if end_le(a.as_deref(), b.as_deref()) { b } else { a });
            let last = last.cloned().flatten();
            *ranges = BTreeMap::from([(first, last)]);
        }
    }

    /// Takes one of the ranges.
    pub(crate) fn pop(&mut self) -> Option<(IndexId, KeyRange)> {
        let (index, ranges) = self.ranges.iter_mut().next()?;
        let (index, range) = (*index, ranges.pop_first());
        if ranges.is_empty() {
            self.ranges.remove(&index);
        }
        range.map(|(start, end)| (index, KeyRange { start, end }))
    }
}
