//! Differences between two ranges, of one index or two.
//!
//! Both are walked in step, each in its own snapshot.

use crate::Result;
use crate::cursor::{Cursor, Entry};
use crate::key::{Key, KeyRange};
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::types::IndexId;
use crate::value::Value;

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
}

/// One of the two ranges.
#[derive(Debug)]
struct Side {
    cursor: Cursor,
    prefix: Key,
    /// The entry that comes next, if it is known.
    ahead: Option<Entry>,
}

impl Store {
    /// What differs between the keys that begin with `old.1` in index `old.0` and those that begin with
    /// `new.1` in index `new.0`, prefixes apart, in order.
    ///
    /// # Errors
    /// Of the device; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such index.
    pub fn diff(&self, old: (IndexId, &[u8]), new: (IndexId, &[u8])) -> Result<Diff> {
        let snapshot = self.snapshot()?;
        Ok(Diff { old: Side::new(&snapshot, old)?, new: Side::new(&snapshot, new)? })
    }
}

impl Side {
    fn new(snapshot: &Snapshot, (index, prefix): (IndexId, &[u8])) -> Result<Self> {
        let cursor = snapshot.cursor(index, KeyRange::prefix(prefix))?;
        Ok(Self { cursor, prefix: prefix.into(), ahead: None })
    }

    fn look(&mut self) -> Result<()> {
        if self.ahead.is_none() {
            self.ahead = self.cursor.next()?;
        }
        Ok(())
    }

    /// The key that comes next, without the prefix.
    fn key(&self) -> Option<&[u8]> {
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
            self.old.look()?;
            self.new.look()?;
            let (take_old, take_new) = match (self.old.key(), self.new.key()) {
                (None, None) => return Ok(None),
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some(a), Some(b)) => (a <= b, b <= a),
            };
            let key: Key = if take_old { self.old.key() } else { self.new.key() }.unwrap_or_default().into();
            let old = self.old.ahead.take_if(|_| take_old).map(|entry| entry.value);
            let new = self.new.ahead.take_if(|_| take_new).map(|entry| entry.value);
            if let (Some(a), Some(b)) = (&old, &new)
                && self.same(a, b)?
            {
                continue;
            }
            return Ok(Some(Difference { key, old, new }));
        }
    }

    /// The bytes of a value of a difference.
    ///
    /// # Errors
    /// As for [`Diff::next`].
    pub fn read(&self, value: &Value) -> Result<bytes::Bytes> {
        self.old.cursor.read(value)
    }

    fn same(&self, a: &Value, b: &Value) -> Result<bool> {
        if a.len() != b.len() {
            return Ok(false);
        }
        let place = |value: &Value| value.large().and_then(|large| large.place());
        if let (Some(x), Some(y)) = (place(a), place(b))
            && (x.part.id(), x.offset) == (y.part.id(), y.offset)
        {
            return Ok(true);
        }
        Ok(self.read(a)? == self.read(b)?)
    }
}
