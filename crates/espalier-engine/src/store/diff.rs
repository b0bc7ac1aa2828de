//! Differences between two ranges, of one index or two, at the cost of what differs.
//!
//! Protocol: messages in memory are absorbed first, as far as that can be done at once. Then
//! `tree::inspect::compare` tells at which keys the trees may differ, what is still in memtables
//! adds its own, and the walk looks at those keys only, on both sides of one snapshot.

use crate::Result;
use crate::model::ids::IndexId;
use crate::model::key::{Key, KeyRange};
use crate::model::value::Value;
use crate::read::cursor::{Cursor, Entry};
use crate::read::snapshot_index::SnapshotIndex;
use crate::store::Store;
use crate::tree::Suspects;

/// What there is at one key on two sides that are not the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The key behind the prefix of either side.
    pub key: Key,
    /// The value on the first side; `None` if there is none.
    pub old: Option<Value>,
    /// The value on the second side; `None` if there is none.
    pub new: Option<Value>,
}

/// A walk over the differences of two ranges, as they were when it was made; see [`Store::diff`].
#[derive(Debug)]
pub struct Diff {
    old: Side,
    new: Side,
    suspects: Suspects,
    /// The sides walk through a range of suspects.
    walking: bool,
    /// Keys that were looked at on both sides.
    keys: u64,
}

/// One of the two ranges.
#[derive(Debug)]
struct Side {
    index: SnapshotIndex,
    prefix: Key,
    /// A walk through a range of suspects.
    cursor: Option<Cursor>,
    /// The entry that comes next, if it is known.
    ahead: Option<Entry>,
}

impl Store {
    /// What differs between the keys that begin with `old.1` in index `old.0` and those that begin
    /// with `new.1` in index `new.0`, prefixes apart, in order. Looks at no more than what the two
    /// do not share, if one is a clone of the other or both are clones of a third.
    ///
    /// # Errors
    /// Of the device; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such
    /// index.
    pub fn diff(&self, old: (IndexId, &[u8]), new: (IndexId, &[u8])) -> Result<Diff> {
        self.components.write.pipeline.absorb_now(&[old.0, new.0])?;
        let snapshot = self.snapshot()?;
        let side = |(index, prefix): (IndexId, &[u8])| {
            let index = snapshot.index(index)?;
            Ok::<_, crate::Error>(Side { index, prefix: prefix.into(), cursor: None, ahead: None })
        };
        let (old, new) = (side(old)?, side(new)?);
        let suspects = old.index.suspects(&old.prefix, &new.index, &new.prefix)?;
        Ok(Diff { old, new, suspects, walking: false, keys: 0 })
    }
}

impl Side {
    fn key(&self, suffix: &[u8]) -> Vec<u8> {
        [&*self.prefix, suffix].concat()
    }

    fn value(&self, suffix: &[u8]) -> Result<Option<Value>> {
        self.index.value(&self.key(suffix))
    }

    /// Begins to walk through `range`.
    fn walk(&mut self, range: &KeyRange) {
        let all = KeyRange::prefix(&self.prefix);
        let end = range.end.as_ref().map(|end| self.key(end).into());
        let range = KeyRange { start: self.key(&range.start).into(), end }.intersect(&all);
        self.cursor = Some(Cursor::new(self.index.clone(), range));
        self.ahead = None;
    }

    fn look(&mut self) -> Result<()> {
        if self.ahead.is_none() {
            self.ahead = self.cursor.as_mut().map(Cursor::next).transpose()?.flatten();
        }
        Ok(())
    }

    /// The key that comes next, without the prefix.
    fn next_key(&self) -> Option<&[u8]> {
        self.ahead.as_ref().map(|entry| &entry.key[self.prefix.len()..])
    }
}

impl Diff {
    /// The next difference; `None` if there is none left.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`](crate::ErrorKind::Damaged).
    #[allow(clippy::should_implement_trait, reason = "fallible, as a cursor's")]
    pub fn next(&mut self) -> Result<Option<Difference>> {
        loop {
            let found = if self.walking { self.step()? } else { None };
            let (key, old, new) = match found {
                Some(found) => found,
                None => {
                    self.walking = false;
                    let range = self.suspects.ranges.first();
                    let key_first = match (self.suspects.keys.first(), range) {
                        (None, None) => return Ok(None),
                        (Some(_), None) => true,
                        (None, Some(_)) => false,
                        (Some(key), Some(range)) => *key < range.start,
                    };
                    if !key_first {
                        let range = self.suspects.ranges.remove(0);
                        self.forget_keys(&range);
                        self.old.walk(&range);
                        self.new.walk(&range);
                        self.walking = true;
                        continue;
                    }
                    let Some(key) = self.suspects.keys.pop_first() else { continue };
                    let (old, new) = (self.old.value(&key)?, self.new.value(&key)?);
                    (key, old, new)
                }
            };
            self.keys += 1;
            let same = match (&old, &new) {
                (Some(a), Some(b)) => self.same(a, b)?,
                (a, b) => a.is_none() && b.is_none(),
            };
            if !same {
                return Ok(Some(Difference { key, old, new }));
            }
        }
    }

    /// The next key of the range that is walked through.
    #[allow(clippy::type_complexity, reason = "a key and what there is on both sides")]
    fn step(&mut self) -> Result<Option<(Key, Option<Value>, Option<Value>)>> {
        self.old.look()?;
        self.new.look()?;
        let (take_old, take_new) = match (self.old.next_key(), self.new.next_key()) {
            (None, None) => return Ok(None),
            (Some(_), None) => (true, false),
            (None, Some(_)) => (false, true),
            (Some(a), Some(b)) => (a <= b, b <= a),
        };
        let key: Key =
            if take_old { self.old.next_key() } else { self.new.next_key() }.unwrap_or_default().into();
        let old = self.old.ahead.take_if(|_| take_old).map(|entry| entry.value);
        let new = self.new.ahead.take_if(|_| take_new).map(|entry| entry.value);
        Ok(Some((key, old, new)))
    }

    /// The range is walked through as a whole.
    fn forget_keys(&mut self, range: &KeyRange) {
        while self.suspects.keys.first().is_some_and(|key| range.contains(key)) {
            self.suspects.keys.pop_first();
        }
    }

    /// The bytes of a value of a difference.
    ///
    /// # Errors
    /// As for [`Diff::next`].
    pub fn read(&self, value: &Value) -> Result<bytes::Bytes> {
        crate::model::value_reader::load(value, self.old.index.reader())
    }

    /// Nodes that were looked at to find where the two may differ; both roots count.
    pub fn nodes(&self) -> u64 {
        self.suspects.nodes
    }

    /// Entries of parts that were passed over to find where the two may differ.
    pub fn entries(&self) -> u64 {
        self.suspects.entries
    }

    /// Keys that were looked up on both sides, or walked over, so far.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    fn same(&self, a: &Value, b: &Value) -> Result<bool> {
        if a.len() != b.len() {
            return Ok(false);
        }
        Ok(a == b || self.read(a)? == self.read(b)?)
    }
}
