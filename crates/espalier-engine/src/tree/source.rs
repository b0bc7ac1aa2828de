//! Sources: sorted streams of messages that a cursor or a flush merges.
//!
//! A source stands on a *group*, one key with all its messages there, newest first, or beyond its
//! end. Keys are those of the reader, whatever views lie between.

use crate::Result;
use crate::memtable::{Memtable, Messages};
use crate::message::range_messages::RangeOps;
use crate::model::ids::Msn;
use crate::model::key::{Key, KeyRange};
use crate::model::op::RangeOp;
use crate::model::view::View;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

/// How much a memtable source copies at a time. It begins with little, for most walks are short,
/// and doubles as long as the walk goes on.
const FIRST_CHUNK_KEYS: usize = 4;
const CHUNK_KEYS: usize = 64;
const CHUNK_BYTES: usize = 128 << 10;

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
}

/// A memtable as a snapshot sees it. Copies ahead in chunks, so that writers are not held up.
pub(crate) struct MemtableSource {
    table: Arc<Memtable>,
    upto: Msn,
    /// Groups ahead, in the direction of travel; the front is where it stands.
    ahead: VecDeque<(Key, Messages)>,
    /// Keys to copy next time.
    chunk: usize,
    direction: Direction,
    has_ranges: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Ascending,
    Descending,
}

impl MemtableSource {
    pub(crate) fn new(table: Arc<Memtable>, upto: Msn) -> Self {
        let has_ranges = table.has_ranges();
        let direction = Direction::Ascending;
        Self { table, upto, ahead: VecDeque::new(), chunk: FIRST_CHUNK_KEYS, direction, has_ranges }
    }

    fn fill(&mut self, direction: Direction, from: Bound<&[u8]>) {
        self.direction = direction;
        let keys = self.chunk;
        self.chunk = (2 * keys).min(CHUNK_KEYS);
        self.ahead = match direction {
            Direction::Ascending => self.table.copy_ascending(from, self.upto, keys, CHUNK_BYTES),
            Direction::Descending => self.table.copy_descending(from, self.upto, keys, CHUNK_BYTES),
        }
        .into();
    }

    fn advance(&mut self, direction: Direction) {
        let Some((key, _)) = self.ahead.pop_front() else { return };
        if self.ahead.is_empty() || self.direction != direction {
            self.fill(direction, Bound::Excluded(&key));
        }
    }
}

impl Source for MemtableSource {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.chunk = FIRST_CHUNK_KEYS;
        self.fill(Direction::Ascending, Bound::Included(key));
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        self.chunk = FIRST_CHUNK_KEYS;
        self.fill(Direction::Descending, key.map_or(Bound::Unbounded, Bound::Excluded));
        Ok(())
    }

    fn key(&self) -> Option<&[u8]> {
        self.ahead.front().map(|(key, _)| &**key)
    }

    fn messages(&self) -> &Messages {
        const NONE: &Messages = &Messages::new();
        self.ahead.front().map_or(NONE, |(_, messages)| messages)
    }

    fn next(&mut self) -> Result<()> {
        self.advance(Direction::Ascending);
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.advance(Direction::Descending);
        Ok(())
    }

    fn ranges(&self, key: &[u8]) -> RangeOps {
        if self.has_ranges { self.table.ranges_covering(key, self.upto) } else { RangeOps::new() }
    }

    fn has_ranges(&self) -> bool {
        self.has_ranges
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
    pub(crate) fn levels(
        &self,
        key: &[u8],
        mut level: impl FnMut(&[(Msn, crate::model::op::Op)], &[(Msn, RangeOp)]) -> bool,
    ) {
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
}

/// True if `key` lies before the end of `range`.
pub(crate) fn before_end_of(key: &[u8], range: &KeyRange) -> bool {
    crate::model::key::before_end(key, range.end.as_deref())
}
