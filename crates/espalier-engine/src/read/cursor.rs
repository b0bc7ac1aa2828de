//! Cursors: walks over one index as a snapshot saw it, in both directions.
//!
//! A cursor stands in a gap between keys. It walks leaf by leaf: for the interval of keys that one
//! leaf covers, it merges the memtables, the runs on the path and the leaf, and at the end of the
//! interval it descends again. Nothing that happens after it was made is visible to it. Where the
//! caller reads the values, the cursor walks [ahead](super::values_ahead) of it.

use crate::Result;
use crate::message::resolve::KeyMessages;
use crate::model::key::{Key, KeyRange, end_le};
use crate::model::value::Value;
use crate::model::value_reader::load;
use crate::read::snapshot_index::SnapshotIndex;
use crate::read::values_ahead::ValuesAhead;
use crate::tree::source::{Merged, before_end_of};
use crate::tree::{Reach, Toward};
use bytes::Bytes;
use std::cell::Cell;

/// A key with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value; [`Cursor::read`] loads one that is not in memory.
    pub value: Value,
}

/// What [`Cursor::next_within`] found.
#[derive(Debug, Clone, PartialEq)]
pub enum Within {
    /// The next entry.
    Entry(Entry),
    /// The end of the range.
    End,
    /// Only keys that were deleted, so far.
    GaveUp,
}

/// So many deleted keys are passed before it is looked for what deletes them: to pass a few takes
/// less.
const PASSED_BEFORE_SKIP: u32 = 4;

/// The place between two keys where a cursor stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Gap {
    Before(Key),
    After(Vec<u8>),
    End,
}

/// A walk over a range of one index, as it was when the cursor was made.
pub struct Cursor {
    index: SnapshotIndex,
    range: KeyRange,
    /// What lies between the caller's place and `gap`.
    ahead: ValuesAhead,
    gap: Gap,
    walk: Option<Walk>,
    /// How far it is expected to go up, by how far it went.
    reach: Reach,
    /// Memory for the key that comes next.
    next_key: Vec<u8>,
}

/// Merged sources for the interval of one leaf, standing at the cursor's gap.
struct Walk {
    interval: KeyRange,
    merged: Merged,
    ascending: bool,
}

impl Cursor {
    pub(crate) fn new(index: SnapshotIndex, range: KeyRange) -> Self {
        let gap = Gap::Before(range.start.clone());
        let (ahead, next_key) = (ValuesAhead::default(), Vec::new());
        Self { index, range, ahead, gap, walk: None, reach: Reach::Unknown, next_key }
    }

    /// Goes to the gap before `key`: `next` yields the first entry at or behind it, `prev` the last
    /// before.
    pub fn seek(&mut self, key: &[u8]) {
        self.ahead.forget();
        self.gap = Gap::Before(key.max(&self.range.start).into());
        self.walk = None;
        self.reach = Reach::Unknown;
    }

    /// Goes behind the last entry.
    pub fn seek_to_end(&mut self) {
        self.ahead.forget();
        self.end();
    }

    /// The walk has come to the end.
    fn end(&mut self) {
        self.gap = self.range.end.clone().map_or(Gap::End, Gap::Before);
        self.walk = None;
    }

    /// The next entry in ascending order; `None` at the end of the range.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`](crate::ErrorKind::Damaged); the cursor stays where
    /// it was.
    #[allow(clippy::should_implement_trait, reason = "fallible, and it has a prev")]
    pub fn next(&mut self) -> Result<Option<Entry>> {
        self.walk_ahead()?;
        if let Some((key, value)) = self.ahead.take() {
            return Ok(Some(Entry { key, value }));
        }
        let found = self.step()?.map(|value| Entry { key: self.key().into(), value });
        found.iter().for_each(|entry| self.ahead.note_yield(&entry.value));
        Ok(found)
    }

    /// As [`Cursor::next`], but gives the value only; [`Cursor::key`] has its key. A walk that goes
    /// this way allocates nothing for an entry, and has no values read ahead.
    ///
    /// # Errors
    /// As for [`Cursor::next`].
    pub fn next_value(&mut self) -> Result<Option<Value>> {
        self.walk_from_caller();
        self.step()
    }

    /// The key of the entry that [`Cursor::next_value`] gave last; of no use after another step.
    pub fn key(&self) -> &[u8] {
        match &self.gap {
            Gap::After(key) => key,
            Gap::Before(_) | Gap::End => &[],
        }
    }

    /// Goes on to the next entry behind the gap, whose key [`Self::key`] has then.
    fn step(&mut self) -> Result<Option<Value>> {
        self.advance(true, |merged, key, index| match merged.inserted(key) {
            Some(value) => Ok(Some(value.clone())),
            None => messages_at(merged, key).value(index.merge_functions(), index.reader()),
        })
    }

    /// Walks a window ahead, if the caller reads what it gets and little is left of the last one.
    /// An error is for the caller to meet when it gets there.
    fn walk_ahead(&mut self) -> Result<()> {
        let Some(window) = self.ahead.window(self.index.pieces()) else { return Ok(()) };
        while !self.ahead.is_full(window) {
            match self.step() {
                Ok(Some(value)) => {
                    let key = self.key().into();
                    self.ahead.push(self.index.pieces(), key, value);
                }
                Err(error) if self.ahead.is_empty() => return Err(error),
                Ok(None) | Err(_) => {
                    self.ahead.stop();
                    break;
                }
            }
        }
        self.ahead.prefetch();
        Ok(())
    }

    /// Has the walk stand where the caller is.
    fn walk_from_caller(&mut self) {
        if self.ahead.is_empty() {
            return;
        }
        if let Some(key) = self.ahead.forget() {
            self.gap = Gap::Before(key);
            self.walk = None;
        }
    }

    /// As [`Cursor::next`], but gives up at the first of more than `most` keys in a row that were
    /// deleted and still have messages. The next call goes on behind it.
    ///
    /// # Errors
    /// As for [`Cursor::next`].
    pub fn next_within(&mut self, most: usize) -> Result<Within> {
        if let Some((key, value)) = self.ahead.take() {
            return Ok(Within::Entry(Entry { key, value }));
        }
        let passed = Cell::new(0);
        let resolve = |merged: &Merged, key: &[u8], index: &SnapshotIndex| {
            let value = messages_at(merged, key).value(index.merge_functions(), index.reader())?;
            passed.set(passed.get() + usize::from(value.is_none()));
            Ok((value.is_some() || passed.get() > most).then_some(value))
        };
        Ok(match self.advance(false, resolve)? {
            Some(Some(value)) => Within::Entry(Entry { key: self.key().into(), value }),
            Some(None) => Within::GaveUp,
            None => Within::End,
        })
    }

    /// The next key that has messages, with what `look` makes of them. Reads no values, and may
    /// give keys that have none.
    pub(crate) fn next_with<T>(&mut self, look: impl Fn(KeyMessages) -> T) -> Result<Option<(Key, T)>> {
        self.walk_from_caller();
        let found = self.advance(false, |merged, key, _| Ok(Some(look(messages_at(merged, key)))))?;
        Ok(found.map(|found| (self.key().into(), found)))
    }

    /// Goes on to the next key of whose messages `resolve` makes something; [`Self::key`] has it
    /// then. If it `skips`, keys that a range message deletes are not all looked at.
    fn advance<T>(
        &mut self,
        skips: bool,
        resolve: impl Fn(&Merged, &[u8], &SnapshotIndex) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut passed = 0u32;
        loop {
            if self.range.is_empty() || self.gap == Gap::End {
                return Ok(None);
            }
            let mut walk = match self.walk.take().filter(|w| w.ascending) {
                Some(walk) => walk,
                None => match self.ascend()? {
                    Some(walk) => walk,
                    None => {
                        self.end();
                        return Ok(None);
                    }
                },
            };
            let is_found = walk.merged.smallest_into(&mut self.next_key);
            if !is_found || !before_end_of(&self.next_key, &walk.interval) {
                self.gap = walk.interval.end.clone().map_or(Gap::End, Gap::Before);
                self.reach = self.reach.next();
                continue;
            }
            let key = &self.next_key;
            let value = resolve(&walk.merged, key, &self.index)?;
            walk.merged.next_behind(key)?;
            passed += u32::from(value.is_none());
            if skips && value.is_none() && passed.is_multiple_of(PASSED_BEFORE_SKIP) {
                walk.merged.skip_deleted(key, &walk.interval)?;
            }
            self.walk = Some(walk);
            match &mut self.gap {
                Gap::After(at) => std::mem::swap(at, &mut self.next_key),
                gap => *gap = Gap::After(std::mem::take(&mut self.next_key)),
            }
            if value.is_some() {
                return Ok(value);
            }
        }
    }

    /// The next entry in descending order; `None` at the start of the range.
    ///
    /// # Errors
    /// As for [`Cursor::next`].
    pub fn prev(&mut self) -> Result<Option<Entry>> {
        self.walk_from_caller();
        loop {
            if self.range.is_empty() {
                return Ok(None);
            }
            let mut walk = match self.walk.take().filter(|w| !w.ascending) {
                Some(walk) => walk,
                None => match self.descend()? {
                    Some(walk) => walk,
                    None => return Ok(None),
                },
            };
            let found = walk.merged.largest().filter(|key| walk.interval.start <= *key);
            let Some(key) = found else {
                self.gap = Gap::Before(walk.interval.start.clone());
                continue;
            };
            let value = self.resolve(&walk.merged, &key)?;
            walk.merged.prev_before(&key)?;
            self.walk = Some(walk);
            self.gap = Gap::Before(key.clone());
            if let Some(value) = value {
                return Ok(Some(Entry { key, value }));
            }
        }
    }

    /// The bytes of a value that this cursor yielded.
    ///
    /// # Errors
    /// As for [`Cursor::next`].
    pub fn read(&self, value: &Value) -> Result<Bytes> {
        if let Some(bytes) = value.in_memory() {
            return Ok(bytes);
        }
        self.ahead.note_read();
        load(value, self.index.reader())
    }

    /// A walk upward from the gap; `None` at the end of the range.
    fn ascend(&self) -> Result<Option<Walk>> {
        let start = match &self.gap {
            Gap::Before(key) => key.clone(),
            // The smallest key behind `key`.
            Gap::After(key) => [&**key, &[0]].concat().into(),
            Gap::End => unreachable!("nothing lies behind the end"),
        };
        if !before_end_of(&start, &self.range) {
            return Ok(None);
        }
        let (interval, sources) = self.index.sources(&self.range, Toward::Key(&start), self.reach)?;
        let mut merged = Merged::new(sources);
        merged.seek(&start)?;
        Ok(Some(Walk { interval, merged, ascending: true }))
    }

    /// A walk downward from the gap; `None` at the start of the range.
    fn descend(&self) -> Result<Option<Walk>> {
        let mut end: Option<Key> = match &self.gap {
            Gap::Before(key) => Some(key.clone()),
            Gap::After(key) => Some([&**key, &[0]].concat().into()),
            Gap::End => None,
        };
        if end_le(self.range.end.as_deref(), end.as_deref()) {
            end = self.range.end.clone();
        }
        if end.as_ref().is_some_and(|end| *end <= self.range.start) {
            return Ok(None);
        }
        let (interval, sources) =
            self.index.sources(&self.range, Toward::Before(end.as_deref()), Reach::Unknown)?;
        let mut merged = Merged::new(sources);
        let stop = if end_le(interval.end.as_deref(), end.as_deref()) { interval.end.clone() } else { end };
        merged.seek_before(stop.as_deref())?;
        Ok(Some(Walk { interval, merged, ascending: false }))
    }

    fn resolve(&self, merged: &Merged, key: &[u8]) -> Result<Option<Value>> {
        messages_at(merged, key).value(self.index.merge_functions(), self.index.reader())
    }
}

impl IntoIterator for Cursor {
    type Item = Result<(Key, Bytes)>;
    type IntoIter = Entries;

    fn into_iter(self) -> Entries {
        Entries(Some(self))
    }
}

/// The rest of a cursor's range in ascending order, with the bytes of the values. It ends after an
/// error.
#[derive(Debug)]
pub struct Entries(Option<Cursor>);

impl Iterator for Entries {
    type Item = Result<(Key, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        let cursor = self.0.as_mut()?;
        let entry = match cursor.next() {
            Ok(Some(entry)) => cursor.read(&entry.value).map(|value| (entry.key, value)),
            Ok(None) => {
                self.0 = None;
                return None;
            }
            Err(error) => Err(error),
        };
        if entry.is_err() {
            self.0 = None;
        }
        Some(entry)
    }
}

/// What `merged`, which stands on `key`, has for it.
fn messages_at(merged: &Merged, key: &[u8]) -> KeyMessages {
    let mut found = KeyMessages::default();
    merged.levels(key, |points, ranges| {
        found.add_level(points.iter().cloned(), ranges);
        !found.is_done()
    });
    found
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("range", &self.range).field("gap", &self.gap).finish_non_exhaustive()
    }
}
