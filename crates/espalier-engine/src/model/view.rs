//! Views: how one piece appears at another place of the key space.
//!
//! A view refers to a piece through *bounds* (keys outside are invisible: the filter of
//! [BetrFS 0.5, section 3.2]) and a *translation* (one prefix replaced by another). Lifting is
//! the special case that puts a prefix in front of what is stored without it.
//!
//! Invariant (the denotation): if a piece denotes the map `m`, then its view through
//! `{from, to, bounds}` denotes `{ to.s -> m(from.s) : from.s in bounds }`.
//! Bounds are in the piece's own key space, and every key inside them begins with `from`.

use crate::model::key::{Key, KeyRange};

/// Bounds and translation of a reference to a piece.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    /// The prefix, in the piece's key space, that is replaced.
    pub from: Key,
    /// What it is replaced by.
    pub to: Key,
    /// The visible keys, in the piece's key space.
    pub bounds: KeyRange,
}

impl View {
    /// Shows a piece as it is.
    pub fn identity() -> Self {
        Self { from: Key::default(), to: Key::default(), bounds: KeyRange::all() }
    }

    /// Puts `prefix` in front of every key: the view of a simple child whose edge lifts `prefix`.
    pub fn lifted(prefix: &[u8]) -> Self {
        Self { from: Key::default(), to: prefix.into(), bounds: KeyRange::all() }
    }

    /// Shows the keys that begin with `from`, beginning with `to` instead.
    pub fn translated(from: &[u8], to: &[u8]) -> Self {
        Self { from: from.into(), to: to.into(), bounds: KeyRange::prefix(from) }
    }

    /// True if the view shows the piece as it is.
    pub fn is_identity(&self) -> bool {
        self.from.is_empty() && self.to.is_empty() && self.bounds == KeyRange::all()
    }

    /// True if nothing can be seen through it.
    pub fn is_empty(&self) -> bool {
        self.bounds.is_empty()
    }

    /// The outer key under which the piece's `inner` key appears; `None` if it is invisible.
    pub fn outward(&self, inner: &[u8]) -> Option<Key> {
        if !self.bounds.contains(inner) {
            return None;
        }
        let rest = inner.strip_prefix(&*self.from)?;
        Some([&*self.to, rest].concat().into())
    }

    /// The piece's key that appears as `outer`; `None` if no visible key does.
    pub fn inward(&self, outer: &[u8]) -> Option<Key> {
        let inner: Key = [&*self.from, outer.strip_prefix(&*self.to)?].concat().into();
        self.bounds.contains(&inner).then_some(inner)
    }

    /// The smallest range of inner keys that holds every inner key appearing in `outer`.
    pub fn range_inward(&self, outer: &KeyRange) -> KeyRange {
        let shown = outer.intersect(&KeyRange::prefix(&self.to));
        if shown.is_empty() {
            return KeyRange { start: self.bounds.start.clone(), end: Some(self.bounds.start.clone()) };
        }
        let swap =
            |key: &[u8]| key.strip_prefix(&*self.to).map(|rest| Key::from([&*self.from, rest].concat()));
        let start = swap(&shown.start).unwrap_or_else(|| self.from.clone());
        let end = match &shown.end {
            Some(end) => swap(end).or_else(|| crate::model::key::successor(&self.from)),
            None => crate::model::key::successor(&self.from),
        };
        self.bounds.intersect(&KeyRange { start, end })
    }

    /// The outer range in which everything visible lies.
    pub fn range_outward(&self) -> KeyRange {
        self.range_to_outer(&self.bounds)
    }

    /// The outer range in which the visible part of `inner` appears.
    pub fn range_to_outer(&self, inner: &KeyRange) -> KeyRange {
        let seen = self.bounds.intersect(inner).intersect(&KeyRange::prefix(&self.from));
        if seen.is_empty() {
            return KeyRange { start: self.to.clone(), end: Some(self.to.clone()) };
        }
        let swap =
            |key: &[u8]| key.strip_prefix(&*self.from).map(|rest| Key::from([&*self.to, rest].concat()));
        KeyRange {
            start: swap(&seen.start).unwrap_or_else(|| self.to.clone()),
            end: match &seen.end {
                Some(end) => swap(end).or_else(|| crate::model::key::successor(&self.to)),
                None => crate::model::key::successor(&self.to),
            },
        }
    }

    /// The view equal to looking at `inner` through `self`: `self` shows a piece that itself shows
    /// another piece through `inner`.
    #[must_use]
    pub fn compose(&self, inner: &View) -> View {
        let bounds = inner.range_inward(&self.bounds);
        let (from, to) = if let Some(rest) = inner.to.strip_prefix(&*self.from) {
            (inner.from.clone(), [&*self.to, rest].concat().into())
        } else if let Some(rest) = self.from.strip_prefix(&*inner.to) {
            (Key::from([&*inner.from, rest].concat()), self.to.clone())
        } else {
            // The prefixes exclude each other: nothing is visible.
            let nothing = KeyRange { start: inner.from.clone(), end: Some(inner.from.clone()) };
            return View { from: inner.from.clone(), to: self.to.clone(), bounds: nothing };
        };
        let bounds = bounds.intersect(&KeyRange::prefix(&from));
        View { from, to, bounds }
    }

    /// The same view restricted to the outer keys in `range`.
    #[must_use]
    pub fn restrict(&self, range: &KeyRange) -> View {
        View { bounds: self.range_inward(range), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        prop::collection::vec(prop::sample::select(vec![0u8, 1, 0xff]), 0..4).prop_map(Into::into)
    }

    fn view() -> impl Strategy<Value = View> {
        (key(), key(), key(), prop::option::of(key())).prop_map(|(from, to, start, end)| View {
            bounds: KeyRange { start, end }.intersect(&KeyRange::prefix(&from)),
            from,
            to,
        })
    }

    proptest! {
        #[test]
        fn inward_inverts_outward(v in view(), k in key()) {
            if let Some(outer) = v.outward(&k) {
                prop_assert_eq!(v.inward(&outer), Some(k.clone()));
                prop_assert!(v.range_outward().contains(&outer));
            }
            if let Some(inner) = v.inward(&k) {
                prop_assert_eq!(v.outward(&inner), Some(k));
            }
        }

        #[test]
        fn composition_is_looking_twice(a in view(), b in view(), k in key()) {
            let twice = a.inward(&k).and_then(|middle| b.inward(&middle));
            prop_assert_eq!(a.compose(&b).inward(&k), twice);
        }

        #[test]
        fn ranges_follow_keys(v in view(), start in key(), end in prop::option::of(key()), k in key()) {
            let range = KeyRange { start, end };
            if let Some(inner) = v.inward(&k) {
                prop_assert_eq!(v.range_inward(&range).contains(&inner), range.contains(&k));
                prop_assert_eq!(v.restrict(&range).inward(&k).is_some(), range.contains(&k));
            }
            if let Some(outer) = v.outward(&k) {
                prop_assert_eq!(v.range_to_outer(&range).contains(&outer), range.contains(&k));
            }
        }
    }
}
