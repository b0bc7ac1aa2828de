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

    /// True if it may hold range messages at all.
    fn has_ranges(&self) -> bool;

    /// A key behind `key` up to which it deletes all that older sources have; `None` if it does
    /// not, or if that is not known.
    fn deleted_upto(&self, key: &[u8]) -> Option<Key>;
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

    fn deleted_upto(&self, _: &[u8]) -> Option<Key> {
        None
    }
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

    fn deleted_upto(&self, key: &[u8]) -> Option<Key> {
        let start = self.view.inward(key)?;
        let end = Some(self.inner.deleted_upto(&start)?);
        self.view.range_to_outer(&KeyRange { start, end }).end
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

    /// Takes every source that stands on `key` one group further up.
    pub(crate) fn next_behind(&mut self, key: &[u8]) -> Result<()> {
        self.sources.iter_mut().filter(|s| s.key() == Some(key)).try_for_each(|s| s.next())
    }

    /// Takes every source that stands on `key` one group further down.
    pub(crate) fn prev_before(&mut self, key: &[u8]) -> Result<()> {
        self.sources.iter_mut().filter(|s| s.key() == Some(key)).try_for_each(|s| s.prev())
    }

    /// Passes what older sources have behind `key` and a newer one deletes together with `key`.
    pub(crate) fn skip_deleted(&mut self, key: &[u8]) -> Result<()> {
        for newer in 0..self.sources.len() {
            let Some(end) = self.sources[newer].deleted_upto(key) else { continue };
            for older in &mut self.sources[newer + 1..] {
                if older.key().is_some_and(|at| *at < *end) {
                    older.seek(&end)?;
                }
            }
        }
        Ok(())
    }
}

/// True if `key` lies before the end of `range`.
pub(crate) fn before_end_of(key: &[u8], range: &KeyRange) -> bool {
    crate::model::key::before_end(key, range.end.as_deref())
}
