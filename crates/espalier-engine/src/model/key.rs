//! Keys are byte strings in memcmp order; this is the arithmetic on them.

use std::fmt;
use std::ops::Bound;

/// An owned key.
pub type Key = Box<[u8]>;

/// The longest key, in bytes, with room to spare over the mebibyte that layers above promise.
pub const MAX_KEY: usize = (1 << 20) + (64 << 10);

/// A half-open range of keys; `end == None` means up to the last key there can be.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyRange {
    /// The first key inside.
    pub start: Key,
    /// The first key behind it.
    pub end: Option<Key>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> Self {
        Self { start: Key::default(), end: None }
    }

    /// `[start, end)`.
    pub fn new(start: impl Into<Key>, end: impl Into<Key>) -> Self {
        Self { start: start.into(), end: Some(end.into()) }
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self { start: prefix.into(), end: successor(prefix) }
    }

    /// The keys from `first` to `last`, that one included.
    pub fn through(first: &[u8], last: &[u8]) -> Self {
        Self { start: first.into(), end: Some([last, &[0]].concat().into()) }
    }

    /// True if no key lies in it.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// True if `key` lies in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.start <= *key && before_end(key, self.end.as_deref())
    }

    /// True if all of `other` lies in it. An empty `other` always does.
    pub fn covers(&self, other: &Self) -> bool {
        other.is_empty() || (self.start <= other.start && end_le(other.end.as_deref(), self.end.as_deref()))
    }

    /// True if some key lies in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let begins_before = |start: &Key, end: Option<&Key>| end.is_none_or(|end| start < end);
        !self.is_empty()
            && !other.is_empty()
            && begins_before(&self.start, other.end.as_ref())
            && begins_before(&other.start, self.end.as_ref())
    }

    /// The keys that lie in both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        let start = (&self.start).max(&other.start).clone();
        let end = match (&self.end, &other.end) {
            (None, end) | (end, None) => end.clone(),
            (Some(a), Some(b)) => Some(a.min(b).clone()),
        };
        Self { start, end }
    }

    /// The longest prefix that every key in it must begin with [BetrFS 0.4, section 3.2].
    pub fn common_prefix(&self) -> &[u8] {
        lift(&self.start, self.end.as_deref())
    }

    /// As bounds for `BTreeMap::range`.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(&*self.start), self.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded))
    }
}

impl fmt::Debug for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, ", self.start.escape_ascii())?;
        match &self.end {
            Some(end) => write!(f, "{})", end.escape_ascii()),
            None => f.write_str("end)"),
        }
    }
}

/// True if `key` comes before `end`, where `None` is behind every key.
pub fn before_end(key: &[u8], end: Option<&[u8]>) -> bool {
    end.is_none_or(|end| key < end)
}

/// `a <= b` for ends of ranges, where `None` is behind every key.
pub fn end_le(a: Option<&[u8]>, b: Option<&[u8]>) -> bool {
    match (a, b) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(a), Some(b)) => a <= b,
    }
}

/// The first key behind every key that begins with `prefix`; `None` if there is none.
pub fn successor(prefix: &[u8]) -> Option<Key> {
    let keep = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut next: Key = prefix[..=keep].into();
    next[keep] += 1;
    Some(next)
}

/// Length of the longest common prefix.
pub fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The longest prefix that every key in `[start, end)` must begin with, a prefix of `start`.
/// For `end == successor(s)` and `start` beginning with `s` it is at least `s`.
pub fn lift<'a>(start: &'a [u8], end: Option<&[u8]>) -> &'a [u8] {
    // A prefix `p` of `start` is shared by the whole range exactly if `end <= successor(p)`.
    let leading_ff = |from: usize| start[from..].iter().take_while(|b| **b == 0xff).count();
    let Some(end) = end else { return &start[..leading_ff(0)] };
    let same = common_prefix_len(start, end);
    if same == start.len() || same == end.len() {
        return &start[..same];
    }
    // At the first difference `start` is smaller. What is longer than `same` has a successor of at
    // most `start[..same] (start[same] + 1)`; that reaches `end` only if it is `end`.
    let adjacent = end.len() == same + 1 && end[same] == start[same].saturating_add(1);
    if adjacent { &start[..same + 1 + leading_ff(same + 1)] } else { &start[..same] }
}

/// The union of `ranges` as ascending ranges that neither overlap nor touch.
pub(crate) fn union_of(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort();
    let mut all: Vec<KeyRange> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if end_le(Some(&range.start), last.end.as_deref()) => {
                if end_le(last.end.as_deref(), range.end.as_deref()) {
                    last.end = range.end;
                }
            }
            _ => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn successors() {
        assert_eq!(successor(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(successor(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(successor(b"\xff"), None);
        assert_eq!(successor(b""), None);
    }

    #[test]
    fn lifts() {
        assert_eq!(lift(b"abc", Some(b"abd")), b"abc");
        assert_eq!(lift(b"abc", Some(b"abcd")), b"abc");
        assert_eq!(lift(b"abc", Some(b"ac")), b"ab");
        assert_eq!(lift(b"", None), b"");
        assert_eq!(lift(b"\xff\xff", None), b"\xff\xff");
        assert_eq!(lift(b"a\xff", Some(b"b")), b"a\xff");
        assert_eq!(lift(b"a", Some(b"c")), b"");
    }

    proptest! {
        #[test]
        fn lift_is_shared_and_longest(
            a in prop::collection::vec(0u8..3, 0..5),
            b in prop::option::of(prop::collection::vec(0u8..3, 0..5)),
            k in prop::collection::vec(0u8..3, 0..7),
        ) {
            let a: Vec<u8> = a.into_iter().map(|x| if x == 2 { 0xff } else { x }).collect();
            let b: Option<Vec<u8>> = b.map(|b| b.into_iter().map(|x| if x == 2 { 0xff } else { x }).collect());
            let k: Vec<u8> = k.into_iter().map(|x| if x == 2 { 0xff } else { x }).collect();
            prop_assume!(before_end(&a, b.as_deref()));
            let p = lift(&a, b.as_deref());
            if a <= k && before_end(&k, b.as_deref()) {
                prop_assert!(k.starts_with(p));
            }
            // One byte more of `start` would exclude some key of the range.
            if p.len() < a.len() {
                let next = successor(&a[..=p.len()]).expect("a longer prefix without successor would have been taken");
                prop_assert!(before_end(&next, b.as_deref()));
            }
        }
    }
}
