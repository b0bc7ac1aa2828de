//! Memtable source: a memtable as a sorted stream of messages.

use super::Memtable;
use crate::Result;
use crate::message::Messages;
use crate::message::range_messages::{RangeMessages, RangeOps};
use crate::model::ids::Msn;
use crate::model::key::KeyRange;
use crate::tree::source::{MessageSet, Source};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

/// How much a memtable source copies at a time. It begins with little, for most walks are short,
/// and doubles as long as the walk goes on.
const FIRST_CHUNK_KEYS: usize = 4;
const CHUNK_KEYS: usize = 64;
const CHUNK_BYTES: usize = 128 << 10;

/// A memtable as a snapshot sees it. Copies ahead in chunks, so that writers are not held up.
pub(crate) struct MemtableSource {
    table: Arc<Memtable>,
    upto: Msn,
    /// Groups ahead, in the direction of travel; the front is where it stands.
    ahead: VecDeque<(Bytes, Messages)>,
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

    fn deleted_around(&self, key: &[u8]) -> Option<KeyRange> {
        self.table.deleted_around(key, self.upto)
    }

    fn narrow(&mut self, range: &KeyRange) {
        self.has_ranges = self.has_ranges && self.table.has_ranges_in(range);
    }
}

impl MessageSet for Arc<Memtable> {
    fn source(&self) -> Box<dyn Source> {
        Box::new(MemtableSource::new(self.clone(), Msn(u64::MAX)))
    }

    fn ranges(&self) -> RangeMessages {
        Memtable::ranges(self)
    }
}
