//! Key ranges: a set of keys as disjoint ranges.

use crate::model::key::{Key, KeyRange, before_end, end_le};
use std::collections::BTreeMap;
use std::ops::Bound;

/// A set of keys, held as disjoint ranges that do not touch each other.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct KeyRanges {
    /// Start of a range -> its end.
    ranges: BTreeMap<Key, Option<Key>>,
}

impl KeyRanges {
    /// True if there is no key in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds all keys in `range`.
    pub(crate) fn insert(&mut self, mut range: KeyRange) {
        if range.is_empty() {
            return;
        }
        if let Some((start, end)) = self.last_up_to(&range.start)
            && end_le(Some(&range.start), end)
        {
            range.start = start.clone();
        }
        // What begins inside, or where it ends, becomes part of it.
        while let Some(start) = self.first_from(&range.start)
            && end_le(Some(&start), range.end.as_deref())
        {
            let end = self.ranges.remove(&start).flatten();
            if end_le(range.end.as_deref(), end.as_deref()) {
                range.end = end;
            }
        }
        self.ranges.insert(range.start, range.end);
    }

    /// Takes all keys in `range` out.
    pub(crate) fn remove(&mut self, range: &KeyRange) {
        if range.is_empty() {
            return;
        }
        let overlapping: Vec<KeyRange> = self.overlapping(range).collect();
        for whole in overlapping {
            self.ranges.remove(&whole.start);
            if whole.start < range.start {
                self.ranges.insert(whole.start, Some(range.start.clone()));
            }
            if let Some(end) = &range.end
                && !end_le(whole.end.as_deref(), Some(end))
            {
                self.ranges.insert(end.clone(), whole.end);
            }
        }
    }

    /// The keys of the set that lie in `range`, as ascending ranges.
    pub(crate) fn within(&self, range: &KeyRange) -> impl Iterator<Item = KeyRange> {
        self.overlapping(range).map(|found| found.intersect(range))
    }

    /// All ranges, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = KeyRange> {
        self.ranges.iter().map(|(start, end)| KeyRange { start: start.clone(), end: end.clone() })
    }

    /// The ranges that share keys with `range`.
    fn overlapping(&self, range: &KeyRange) -> impl Iterator<Item = KeyRange> {
        let first = self.last_up_to(&range.start).map_or(&range.start, |(start, _)| start);
        self.ranges
            .range::<[u8], _>((Bound::Included(&**first), Bound::Unbounded))
            .take_while(|(start, _)| before_end(start, range.end.as_deref()))
            .map(|(start, end)| KeyRange { start: start.clone(), end: end.clone() })
            .filter(|found| found.overlaps(range))
    }

    /// The last range that begins at `key` or before.
    fn last_up_to(&self, key: &[u8]) -> Option<(&Key, Option<&[u8]>)> {
        let (start, end) =
            self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        Some((start, end.as_deref()))
    }

    /// Where the first range begins that begins at `key` or behind.
    fn first_from(&self, key: &[u8]) -> Option<Key> {
        let (start, _) = self.ranges.range::<[u8], _>((Bound::Included(key), Bound::Unbounded)).next()?;
        Some(start.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// All keys of one byte, and the end behind them.
    fn range() -> impl Strategy<Value = KeyRange> {
        (0_u8..20, prop::option::weighted(0.9, 0_u8..20))
            .prop_map(|(start, end)| KeyRange { start: [start].into(), end: end.map(|end| [end].into()) })
    }

    fn keys_in(ranges: impl Iterator<Item = KeyRange>) -> BTreeSet<u8> {
        let ranges: Vec<KeyRange> = ranges.collect();
        (0..30).filter(|key| ranges.iter().any(|range| range.contains(&[*key]))).collect()
    }

    proptest! {
        /// The set holds what a set of single keys holds, in ranges that neither overlap nor touch.
        #[test]
        fn holds_what_was_put_in_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), range()), 0..30),
            asked in range(),
        ) {
            let (mut set, mut model) = (KeyRanges::default(), BTreeSet::new());
            for (adds, range) in steps {
                let keys = keys_in(std::iter::once(range.clone()));
                if adds {
                    set.insert(range);
                    model.extend(keys);
                } else {
                    set.remove(&range);
                    model.retain(|key| !keys.contains(key));
                }
                prop_assert_eq!(&keys_in(set.iter()), &model);
                let ranges: Vec<KeyRange> = set.iter().collect();
                prop_assert!(ranges.iter().all(|range| !range.is_empty()));
                let apart = |pair: &[KeyRange]| pair[0].end.as_ref().is_some_and(|end| *end < pair[1].start);
                prop_assert!(ranges.windows(2).all(apart), "{:?}", ranges);
            }
            let inside = keys_in(std::iter::once(asked.clone()));
            let expected: BTreeSet<u8> = model.intersection(&inside).copied().collect();
            prop_assert_eq!(keys_in(set.within(&asked)), expected);
        }
    }
}
