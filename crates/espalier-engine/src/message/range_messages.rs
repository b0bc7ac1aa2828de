//! Range messages, found by interval.
//!
//! The messages are kept as *fragments*: disjoint key ranges, each with the operations that cover
//! all of it, oldest first. Whatever covers a key is one look-up away; a range delete swallows the
//! fragments it covers, so that removing a tree leaves one fragment and not one per file
//! [BetrFS 0.6, section 4: range-message coalescing].
//!
//! Copies share the fragments until one of them changes: runs are seen through one view after the
//! other while trees are cloned, and mostly whole and in place.

use crate::model::ids::Msn;
use crate::model::key::{Key, KeyRange, end_le};
use crate::model::op::{RangeOp, range_op_bytes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Range operations with their order, oldest first.
pub(crate) type RangeOps = Vec<(Msn, RangeOp)>;

/// A set of range messages as disjoint fragments.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RangeMessages {
    fragments: Arc<Fragments>,
    /// The sum of [`fragment_bytes`].
    bytes: usize,
}

/// Start of a fragment -> its end and operations. Fragments are disjoint and not empty.
type Fragments = BTreeMap<Key, (Option<Key>, RangeOps)>;

impl RangeMessages {
    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Number of fragments.
    pub(crate) fn len(&self) -> usize {
        self.fragments.len()
    }

    /// Roughly the memory held, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes
    }

    fn put(&mut self, start: Key, end: Option<Key>, ops: RangeOps) {
        self.bytes += fragment_bytes(&start, end.as_deref(), &ops);
        Arc::make_mut(&mut self.fragments).insert(start, (end, ops));
    }

    fn take(&mut self, start: &[u8]) -> Option<(Option<Key>, RangeOps)> {
        let (end, ops) = Arc::make_mut(&mut self.fragments).remove(start)?;
        self.bytes -= fragment_bytes(start, end.as_deref(), &ops);
        Some((end, ops))
    }

    /// Adds `op` over `range`. It must be newer than what is there. A delete swallows the
    /// operations older than itself, except if `keep_history` (an older snapshot may look).
    pub(crate) fn insert(&mut self, range: &KeyRange, msn: Msn, op: &RangeOp, keep_history: bool) {
        if range.is_empty() {
            return;
        }
        self.split_at(&range.start);
        if let Some(end) = &range.end {
            self.split_at(end);
        }
        let inside: Vec<Key> =
            self.fragments.range::<[u8], _>(range.bounds()).map(|(k, _)| k.clone()).collect();
        if *op == RangeOp::Delete && !keep_history {
            for start in inside {
                self.take(&start);
            }
            self.put(range.start.clone(), range.end.clone(), vec![(msn, op.clone())]);
            return;
        }
        // Cover the gaps between the fragments inside, and extend those.
        let mut at = Some(range.start.clone());
        for start in inside {
            if let Some(gap) = at.filter(|at| *at < start) {
                self.put(gap, Some(start.clone()), vec![(msn, op.clone())]);
            }
            let fragments = Arc::make_mut(&mut self.fragments);
            let Some((end, ops)) = fragments.get_mut(&start) else { unreachable!("listed above") };
            ops.push((msn, op.clone()));
            self.bytes += op_memory(op);
            at = end.clone();
        }
        if let Some(gap) = at.filter(|at| !end_le(range.end.as_deref(), Some(at))) {
            self.put(gap, range.end.clone(), vec![(msn, op.clone())]);
        }
    }

    /// Adds a fragment that touches none of those present.
    pub(crate) fn push_fragment(&mut self, range: KeyRange, ops: RangeOps) {
        if !range.is_empty() && !ops.is_empty() {
            // A damaged header may name one start twice; the memory must add up all the same.
            self.take(&range.start);
            self.put(range.start, range.end, ops);
        }
    }

    /// Lays older messages under these.
    pub(crate) fn merge_older(&mut self, older: &RangeMessages) {
        let newer = std::mem::replace(self, older.clone());
        for (range, ops) in newer.iter() {
            for (msn, op) in ops {
                self.insert(&range, *msn, op, false);
            }
        }
    }

    /// Makes `key` a boundary of fragments.
    fn split_at(&mut self, key: &[u8]) {
        let Some((start, (end, _))) = self
            .fragments
            .range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Excluded(key)))
            .next_back()
        else {
            return;
        };
        if end_le(end.as_deref(), Some(key)) {
            return;
        }
        let start = start.clone();
        if let Some((end, ops)) = self.take(&start) {
            self.put(start, Some(key.into()), ops.clone());
            self.put(key.into(), end, ops);
        }
    }

    /// The operations that cover `key`, oldest first.
    pub(crate) fn covering(&self, key: &[u8]) -> &[(Msn, RangeOp)] {
        let upto = (std::ops::Bound::Unbounded, std::ops::Bound::Included(key));
        match self.fragments.range::<[u8], _>(upto).next_back() {
            Some((_, (end, ops))) if crate::model::key::before_end(key, end.as_deref()) => ops,
            _ => &[],
        }
    }

    /// The fragment that holds `key`, if some message covers that.
    pub(crate) fn fragment_at(&self, key: &[u8]) -> Option<(KeyRange, &[(Msn, RangeOp)])> {
        let upto = (std::ops::Bound::Unbounded, std::ops::Bound::Included(key));
        let (start, (end, ops)) = self.fragments.range::<[u8], _>(upto).next_back()?;
        let range = KeyRange { start: start.clone(), end: end.clone() };
        range.contains(key).then_some((range, ops))
    }

    /// All fragments in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (KeyRange, &RangeOps)> {
        self.fragments
            .iter()
            .map(|(start, (end, ops))| (KeyRange { start: start.clone(), end: end.clone() }, ops))
    }

    /// The fragments inside `range`, cut to it.
    pub(crate) fn within(&self, range: &KeyRange) -> RangeMessages {
        if self.lies_within(range) {
            return self.clone();
        }
        let first = (std::ops::Bound::Unbounded, std::ops::Bound::Included(&*range.start));
        let before = self.fragments.range::<[u8], _>(first).next_back();
        let behind = (std::ops::Bound::Excluded(&*range.start), std::ops::Bound::Unbounded);
        let near = before.into_iter().chain(self.fragments.range::<[u8], _>(behind));
        let near = near.take_while(|(start, _)| crate::model::key::before_end(start, range.end.as_deref()));
        Self::of(near.map(|(start, (end, ops))| {
            (KeyRange { start: start.clone(), end: end.clone() }.intersect(range), ops.clone())
        }))
    }

    /// True if `range` cuts nothing off.
    pub(crate) fn lies_within(&self, range: &KeyRange) -> bool {
        let (first, last) = (self.fragments.first_key_value(), self.fragments.last_key_value());
        first.is_none_or(|(start, _)| range.start <= *start)
            && last.is_none_or(|(_, (end, _))| end_le(end.as_deref(), range.end.as_deref()))
    }

    /// These fragments, in the order of their keys, without empty ones.
    fn of(fragments: impl Iterator<Item = (KeyRange, RangeOps)>) -> Self {
        let fragments: Fragments = fragments
            .filter(|(range, ops)| !range.is_empty() && !ops.is_empty())
            .map(|(range, ops)| (range.start, (range.end, ops)))
            .collect();
        let bytes = fragments.iter().map(|(start, (end, ops))| fragment_bytes(start, end.as_deref(), ops));
        Self { bytes: bytes.sum(), fragments: Arc::new(fragments) }
    }

    /// True if some fragment overlaps `range`.
    pub(crate) fn touches(&self, range: &KeyRange) -> bool {
        !range.is_empty()
            && (!self.covering(&range.start).is_empty()
                || self.fragments.range::<[u8], _>(range.bounds()).next().is_some())
    }

    /// True if deletes cover every key of `range`.
    pub(crate) fn deletes_all_of(&self, range: &KeyRange) -> bool {
        let mut at = range.start.clone();
        loop {
            let upto = (std::ops::Bound::Unbounded, std::ops::Bound::Included(&*at));
            let Some((_, (end, ops))) = self.fragments.range::<[u8], _>(upto).next_back() else {
                return false;
            };
            if !crate::model::key::before_end(&at, end.as_deref())
                || !ops.iter().any(|(_, op)| *op == RangeOp::Delete)
            {
                return false;
            }
            match end {
                None => return true,
                Some(end) if end_le(range.end.as_deref(), Some(end)) => return true,
                Some(end) => at = end.clone(),
            }
        }
    }

    /// The same messages with every range mapped by `map`, which must keep their order.
    pub(crate) fn map_ranges(&self, map: impl Fn(&KeyRange) -> KeyRange) -> RangeMessages {
        Self::of(self.iter().map(|(range, ops)| (map(&range), ops.clone())))
    }
}

/// Roughly the memory of a fragment.
fn fragment_bytes(start: &[u8], end: Option<&[u8]>, ops: &RangeOps) -> usize {
    96 + start.len() + end.map_or(0, <[u8]>::len) + ops.iter().map(|(_, op)| op_memory(op)).sum::<usize>()
}

fn op_memory(op: &RangeOp) -> usize {
    48 + range_op_bytes(op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::op::Update;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        prop::collection::vec(0u8..3, 0..3).prop_map(Into::into)
    }

    fn range() -> impl Strategy<Value = KeyRange> {
        (key(), prop::option::of(key())).prop_map(|(start, end)| KeyRange { start, end })
    }

    fn update(n: u8) -> RangeOp {
        RangeOp::Update(Update { function: 1, argument: vec![n].into() })
    }

    /// What the messages would do to a key, from a plain list.
    fn expected(list: &[(KeyRange, Msn, RangeOp)], key: &[u8]) -> RangeOps {
        let mut ops = RangeOps::new();
        for (range, msn, op) in list.iter().filter(|(range, ..)| range.contains(key)) {
            if *op == RangeOp::Delete {
                ops.clear();
            }
            ops.push((*msn, op.clone()));
            let _ = range;
        }
        ops
    }

    proptest! {
        #[test]
        fn fragments_equal_the_list(ranges in prop::collection::vec((range(), any::<bool>()), 0..12), keys in prop::collection::vec(key(), 8), cut in range()) {
            let mut list = Vec::new();
            let mut messages = RangeMessages::default();
            for (n, (range, delete)) in ranges.into_iter().enumerate() {
                let op = if delete { RangeOp::Delete } else { update(n as u8) };
                messages.insert(&range, Msn(n as u64), &op, false);
                list.push((range, Msn(n as u64), op));
            }
            let within = messages.within(&cut);
            for key in &keys {
                prop_assert_eq!(messages.covering(key), &expected(&list, key)[..]);
                let bytes = |m: &RangeMessages| m.iter().map(|(r, ops)| fragment_bytes(&r.start, r.end.as_deref(), ops)).sum::<usize>();
                prop_assert_eq!((messages.memory(), within.memory()), (bytes(&messages), bytes(&within)));
                let inside: &[_] = if cut.contains(key) { messages.covering(key) } else { &[] };
                prop_assert_eq!(within.covering(key), inside);
                if !cut.is_empty() && messages.deletes_all_of(&cut) && cut.contains(key) {
                    prop_assert!(messages.covering(key).iter().any(|(_, op)| *op == RangeOp::Delete));
                }
                let around = messages.fragment_at(key);
                prop_assert_eq!(around.as_ref().map_or(&[][..], |(_, ops)| ops), messages.covering(key));
                prop_assert!(around.is_none_or(|(range, _)| range.contains(key)));
                if cut.contains(key) && !messages.covering(key).is_empty() {
                    prop_assert!(messages.touches(&cut));
                }
            }
            // Laying the first half under the second gives the whole.
            let half = list.len() / 2;
            let [mut older, mut newer] = [RangeMessages::default(), RangeMessages::default()];
            for (n, (range, msn, op)) in list.iter().enumerate() {
                if n < half { &mut older } else { &mut newer }.insert(range, *msn, op, false);
            }
            newer.merge_older(&older);
            for key in &keys {
                prop_assert_eq!(newer.covering(key), messages.covering(key));
            }
        }
    }
}
