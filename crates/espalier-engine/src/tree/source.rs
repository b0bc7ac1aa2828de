//! Sources: sorted streams of messages that a cursor or a flush merges.
//!
//! A source stands on a *group*, one key with all its messages there, newest first, or beyond its
//! end. Keys are those of the reader, whatever views lie between.

use crate::Result;
use crate::message::Messages;
use crate::message::range_messages::{RangeMessages, RangeOps};
use crate::model::ids::Msn;
use crate::model::key::{Key, KeyRange};
use crate::model::op::{Op, RangeOp};
use crate::model::value::Value;
use crate::model::view::View;
use std::sync::Arc;

/// A sorted stream of messages.
pub(crate) trait Source: Send {
    /// Stands on the first group at or behind `key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;

    /// Stands on the last group before `key`; `None` is behind every key.
    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()>;

    /// The key it stands on; `None` beyond the end.
    fn key(&self) -> Option<&[u8]>;

    /// The messages of the group it stands on, newest first.
    fn messages(&self) -> &Messages;

    /// Goes on to the next group in ascending order.
    fn next(&mut self) -> Result<()>;

    /// Goes on to the next group in descending order.
    fn prev(&mut self) -> Result<()>;

    /// The range messages that cover `key`, oldest first.
    fn ranges(&self, key: &[u8]) -> RangeOps;

    /// True if it may hold range messages that cover a key which is asked for.
    fn has_ranges(&self) -> bool;

    /// A range around `key` that range messages delete as a whole; `None` if they do not delete
    /// `key`.
    fn deleted_around(&self, key: &[u8]) -> Option<KeyRange>;

    /// From now on range messages are asked for keys in `range` only: those elsewhere are not
    /// looked at for each key.
    fn narrow(&mut self, range: &KeyRange);
}

/// Messages of which a source can be made as often as one is needed: a sealed memtable.
pub(crate) trait MessageSet {
    /// A source of all point and range messages.
    fn source(&self) -> Box<dyn Source>;

    /// All range messages.
    fn ranges(&self) -> RangeMessages;
}

/// Values that are inserted, one per key, all with one number.
pub(crate) struct Inserts {
    /// In key order.
    entries: Arc<[(Key, Messages)]>,
}

impl Inserts {
    /// Of `entries` in key order.
    pub(crate) fn new(entries: impl Iterator<Item = (Key, Value)>, msn: Msn) -> Self {
        Self { entries: entries.map(|(key, value)| (key, vec![(msn, Op::Insert(value))])).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl MessageSet for Inserts {
    fn source(&self) -> Box<dyn Source> {
        Box::new(InsertsSource { entries: self.entries.clone(), at: self.entries.len() })
    }

    fn ranges(&self) -> RangeMessages {
        RangeMessages::default()
    }
}

struct InsertsSource {
    entries: Arc<[(Key, Messages)]>,
    /// The entry it stands on; beyond the last, as well as before the first, it stands on none.
    at: usize,
}

impl Source for InsertsSource {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.at = self.entries.partition_point(|(at, _)| **at < *key);
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        let behind =
            key.map_or(self.entries.len(), |key| self.entries.partition_point(|(at, _)| **at < *key));
        self.at = behind.checked_sub(1).unwrap_or(self.entries.len());
        Ok(())
    }

    fn key(&self) -> Option<&[u8]> {
        self.entries.get(self.at).map(|(key, _)| &**key)
    }

    fn messages(&self) -> &Messages {
        const NONE: &Messages = &Messages::new();
        self.entries.get(self.at).map_or(NONE, |(_, messages)| messages)
    }

    fn next(&mut self) -> Result<()> {
        self.at = (self.at + 1).min(self.entries.len());
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.at = self.at.checked_sub(1).unwrap_or(self.entries.len());
        Ok(())
    }

    fn ranges(&self, _: &[u8]) -> RangeOps {
        RangeOps::new()
    }

    fn has_ranges(&self) -> bool {
        false
    }

    fn deleted_around(&self, _: &[u8]) -> Option<KeyRange> {
        None
    }

    fn narrow(&mut self, _: &KeyRange) {}
}

/// A source as it appears through a view.
pub(crate) struct ViewedSource {
    inner: Box<dyn Source>,
    view: View,
    key: Option<Key>,
}

impl ViewedSource {
    pub(crate) fn new(inner: Box<dyn Source>, view: View) -> Self {
        Self { inner, view, key: None }
    }

    fn take(&mut self) -> Result<()> {
        self.key = self.inner.key().and_then(|key| self.view.outward(key));
        Ok(())
    }
}

impl Source for ViewedSource {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let inner = self.view.range_inward(&KeyRange { start: key.into(), end: None });
        self.key = None;
        if inner.is_empty() {
            return Ok(());
        }
        self.inner.seek(&inner.start)?;
        self.take()
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        let inner = self.view.range_inward(&KeyRange { start: Key::default(), end: key.map(Into::into) });
        self.key = None;
        if inner.is_empty() {
            return Ok(());
        }
        self.inner.seek_before(inner.end.as_deref())?;
        self.take()
    }

    fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    fn messages(&self) -> &Messages {
        self.inner.messages()
    }

    fn next(&mut self) -> Result<()> {
        if self.key.is_some() {
            self.inner.next()?;
            self.take()?;
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if self.key.is_some() {
            self.inner.prev()?;
            self.take()?;
        }
        Ok(())
    }

    fn ranges(&self, key: &[u8]) -> RangeOps {
        self.view.inward(key).map_or_else(RangeOps::new, |inner| self.inner.ranges(&inner))
    }

    fn has_ranges(&self) -> bool {
        self.inner.has_ranges()
    }

    fn deleted_around(&self, key: &[u8]) -> Option<KeyRange> {
        let deleted = self.inner.deleted_around(&self.view.inward(key)?)?;
        Some(self.view.range_to_outer(&deleted))
    }

    fn narrow(&mut self, range: &KeyRange) {
        self.inner.narrow(&self.view.range_inward(range));
    }
}

/// Several sources, newest first, as one: the union of their messages in key order.
pub(crate) struct Merged {
    sources: Vec<Box<dyn Source>>,
}

/// Where a merged walk is to stop.
pub(crate) type Limit<'a> = Option<&'a [u8]>;

impl Merged {
    pub(crate) fn new(sources: Vec<Box<dyn Source>>) -> Self {
        Self { sources }
    }

    /// Adds a source older than all others, which stands where it is to.
    pub(crate) fn push_oldest(&mut self, source: Box<dyn Source>) {
        self.sources.push(source);
    }

    /// Takes the oldest source away.
    pub(crate) fn pop_oldest(&mut self) {
        self.sources.pop();
    }

    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.sources.iter_mut().try_for_each(|s| s.seek(key))
    }

    pub(crate) fn seek_before(&mut self, key: Limit<'_>) -> Result<()> {
        self.sources.iter_mut().try_for_each(|s| s.seek_before(key))
    }

    /// The smallest key that some source stands on.
    pub(crate) fn smallest(&self) -> Option<Key> {
        self.sources.iter().filter_map(|s| s.key()).min().map(Into::into)
    }

    /// Makes `key` the smallest key that some source stands on; false if none stands on any.
    pub(crate) fn smallest_into(&self, key: &mut Vec<u8>) -> bool {
        let Some(smallest) = self.sources.iter().filter_map(|s| s.key()).min() else { return false };
        key.clear();
        key.extend_from_slice(smallest);
        true
    }

    /// The largest key that some source stands on.
    pub(crate) fn largest(&self) -> Option<Key> {
        self.sources.iter().filter_map(|s| s.key()).max().map(Into::into)
    }

    /// Calls `level` for each source from newest to oldest with its messages for `key` (point
    /// messages newest first, range messages oldest first), until it returns false.
    pub(crate) fn levels(&self, key: &[u8], mut level: impl FnMut(&[(Msn, Op)], &[(Msn, RangeOp)]) -> bool) {
        for source in &self.sources {
            let ranges = if source.has_ranges() { source.ranges(key) } else { RangeOps::new() };
            let messages: &[_] = if source.key() == Some(key) { source.messages() } else { &[] };
            if (!messages.is_empty() || !ranges.is_empty()) && !level(messages, &ranges) {
                return;
            }
        }
    }

    /// The value of `key`, if the newest message for it inserts one, and no range message can be
    /// newer: as for nearly all keys of a walk.
    pub(crate) fn inserted(&self, key: &[u8]) -> Option<&Value> {
        for source in &self.sources {
            if source.has_ranges() {
                return None;
            }
            if source.key() == Some(key) {
                return match source.messages().first() {
                    Some((_, Op::Insert(value))) => Some(value),
                    _ => None,
                };
            }
        }
        None
    }

    /// The point messages for `key` of each source, from newest to oldest.
    pub(crate) fn points<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = &'a Messages> {
        self.sources.iter().filter(move |s| s.key() == Some(key)).map(|s| s.messages())
    }

    /// Takes what range messages of newer sources delete around `key` from the way up of a walk
    /// through `interval`: otherwise a walk through what was moved away passes every key of it.
    pub(crate) fn skip_deleted(&mut self, key: &[u8], interval: &KeyRange) -> Result<()> {
        let mut newer = 0;
        while let Some(source) = self.sources.get(newer) {
            newer += 1;
            let deleted = if source.has_ranges() { source.deleted_around(key) } else { None };
            match deleted.map(|range| range.end) {
                None => {}
                Some(Some(end)) if before_end_of(&end, interval) => {
                    let passed = |s: &&mut Box<dyn Source>| s.key().is_some_and(|at| *at < *end);
                    self.sources[newer..].iter_mut().filter(passed).try_for_each(|s| s.seek(&end))?;
                }
                // What cannot be read behind the interval does not concern the walk.
                Some(_) => self.sources.truncate(newer),
            }
        }
        Ok(())
    }

    /// Takes every source that stands on `key` one group further up.
    pub(crate) fn next_behind(&mut self, key: &[u8]) -> Result<()> {
        self.sources.iter_mut().filter(|s| s.key() == Some(key)).try_for_each(|s| s.next())
    }

    /// Takes every source that stands on `key` one group further down.
    pub(crate) fn prev_before(&mut self, key: &[u8]) -> Result<()> {
        self.sources.iter_mut().filter(|s| s.key() == Some(key)).try_for_each(|s| s.prev())
    }
}

/// True if `key` lies before the end of `range`.
pub(crate) fn before_end_of(key: &[u8], range: &KeyRange) -> bool {
    crate::model::key::before_end(key, range.end.as_deref())
}
