//! Walk: goes through an index ahead of a reader and collects where the next values lie.
//!
//! The rest of a long run of large values is left out: an application that reads such a file asks
//! for large pieces, several at a time, which keeps the device busy without readahead. Shorter
//! files need it even so: at the start of each, the reads of the kernel are short and come one by
//! one. Nothing is left out on a device that wants announcements: there no application asks for
//! enough at a time.

use super::remembered::RememberedValue;
use crate::Result;
use crate::index::Version;
use crate::model::ids::IndexId;
use crate::model::key::{Key, KeyRange};
use crate::model::value::ValueRef;
use crate::pieces::{Pieces, PrefetchPlace, Sums, cost};
use crate::read::context::ReadContext;
use crate::read::cursor::Cursor;
use crate::read::snapshot_index::SnapshotIndex;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Keys of a window at most.
pub(super) const MAX_WINDOW_KEYS: usize = 2048;

/// Bytes from which on a value counts as one of a large file.
const LARGE_FILE_VALUE_BYTES: u64 = 64 << 10;

/// Large values in a run that are prefetched; the rest of the run is left out.
const MAX_PREFETCHED_RUN_VALUES: usize = 256;

/// A walk that a thread has taken over.
pub(super) struct WalkTask {
    pub(super) scan: u64,
    pub(super) index: IndexId,
    /// It begins behind this key.
    pub(super) from: Key,
    /// The turn of the first key that it finds.
    pub(super) turn: u64,
    /// Bytes of memory that what it finds may take.
    pub(super) window: u64,
    pub(super) large_values: LargeValueRun,
}

/// A key that was walked over.
pub(super) struct WalkedKey {
    pub(super) key: Key,
    /// What will be read for it, in bytes of memory; 0 for what is left out.
    pub(super) bytes: u64,
    pub(super) value: Option<RememberedValue>,
}

/// What a walk found.
pub(super) struct WalkResult {
    pub(super) keys: Vec<WalkedKey>,
    pub(super) version: Weak<Version>,
    pub(super) places: Vec<PrefetchPlace>,
    /// The walk came to the end of the index.
    pub(super) at_end: bool,
    /// Bytes that no window should exceed.
    pub(super) window_limit: u64,
    pub(super) large_values: LargeValueRun,
}

impl WalkResult {
    /// True if there was no memory for a single key.
    pub(super) fn is_starved(&self) -> bool {
        self.keys.is_empty() && !self.at_end
    }
}

/// Collects what comes behind the key where the last walk of a scan ended.
///
/// # Errors
/// Of the device; if the index is gone.
pub(super) fn walk(context: &Arc<ReadContext>, task: &WalkTask) -> Result<WalkResult> {
    let pieces = &context.trees.pieces;
    let (room, most) = pieces.read_ahead.prefetch_room();
    let window_limit = most / 2;
    let window = task.window.min(room).min(window_limit);
    // A version by itself holds up nothing but what it shares with no newer one.
    let version = context.version(task.index)?;
    let mut found = WalkResult {
        keys: Vec::new(),
        version: Arc::downgrade(&version),
        places: Vec::new(),
        at_end: false,
        window_limit,
        large_values: task.large_values,
    };
    let index = SnapshotIndex::newest(context.clone(), version);
    let behind = [&*task.from, &[0]].concat();
    let mut cursor = Cursor::new(index, KeyRange { start: behind.into(), end: None });
    let mut total = 0;
    while found.keys.len() < MAX_WINDOW_KEYS {
        let next = cursor.next_with(|messages| {
            let places: Vec<_> = messages.places().collect();
            (places, RememberedValue::of(&messages))
        })?;
        let Some((key, (places, value))) = next else {
            found.at_end = true;
            break;
        };
        let turn = task.turn + found.keys.len() as u64;
        let last = found.keys.last().map_or(&task.from, |walked| &walked.key);
        let mut large_values = found.large_values;
        let places = places.iter().filter_map(|place| {
            let range = large_values.range_to_prefetch(pieces, last, &key, place)?;
            Some(PrefetchPlace { range, turn, sums: Sums::of(place) })
        });
        let before = found.places.len();
        found.places.extend(places);
        let bytes: u64 = found.places[before..].iter().map(|place| cost(&place.range)).sum();
        total += bytes + value.as_ref().map_or(0, RememberedValue::memory);
        if total > window {
            found.places.truncate(before);
            break;
        }
        found.large_values = large_values;
        found.keys.push(WalkedKey { key, bytes, value });
    }
    Ok(found)
}

/// True if two keys differ only in a number at their end, by one: the parts of one thing, such as
/// the blocks of a file.
pub(super) fn is_next_key(before: &[u8], key: &[u8]) -> bool {
    let (Some((a, before)), Some((b, key))) = (before.split_last_chunk(), key.split_last_chunk()) else {
        return false;
    };
    a == b && u64::from_be_bytes(*before).checked_add(1) == Some(u64::from_be_bytes(*key))
}

/// Large values of [consecutive keys](is_next_key).
#[derive(Clone, Copy, Default)]
pub(super) struct LargeValueRun {
    length: usize,
}

impl LargeValueRun {
    /// Where `place` lies, of a key that follows `before`; `None` if it continues a run that is so
    /// long that the rest is left to its reader.
    fn range_to_prefetch(
        &mut self,
        pieces: &Pieces,
        before: &[u8],
        key: &[u8],
        place: &ValueRef,
    ) -> Option<Range<u64>> {
        // What is in memory already is not read.
        let range = pieces.range_of(place).filter(|_| !pieces.is_kept(place))?;
        let length = if is_next_key(before, key) { self.length + 1 } else { 1 };
        self.length = if range.end - range.start >= LARGE_FILE_VALUE_BYTES { length } else { 0 };
        let is_left_out = self.length > MAX_PREFETCHED_RUN_VALUES && pieces.wanted_ahead() == 0;
        (!is_left_out).then_some(range)
    }
}
