//! Sequential scan: one reader that goes through an index in key order, and the walk ahead of it.
//!
//! A scan holds the keys that its walks found: some that the reader has passed, and those ahead of
//! it. When less than half a window is ahead, the scan wants the next walk. Windows double while
//! there is memory for them.
//!
//! Invariant: `walked` is in key order; `from` is the last key of it, or lies behind that.

use super::walk::{LargeValueRun, MAX_WINDOW_KEYS, WalkResult, WalkTask, WalkedKey, is_next_key};
use crate::index::Version;
use crate::message::resolve::KeyMessages;
use crate::model::ids::IndexId;
use crate::model::key::Key;
use crate::pieces::{LEAST_DIRECT_BYTES, PrefetchPlace};
use crate::read::snapshot_index::Slice;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Keys with values that a reader may skip for each key that it reads; with more, it does not read
/// in key order, and the scan ends.
const MAX_SKIPPED_KEYS_PER_READ: usize = 4;

/// Keys that are kept behind the reader, as far as they take half a window: several reads at a time
/// arrive in any order, and the mount prefetches files for a reader that comes later.
const KEPT_KEYS_BEHIND_READER: usize = 64;

/// The same for a scan of large reads, each of which has many keys.
const KEPT_KEYS_BEHIND_LARGE_READER: usize = 256;

/// A scan of large reads becomes one of small reads after this many small ones in a row: what is
/// read far ahead of small files has left the caches of the processor when it is used.
const SMALL_READS_AFTER_LARGE: u8 = 16;

/// Keys from an expected position on that are compared before the binary search.
const LINEAR_SEARCH_KEYS: usize = 4;

/// The first window of a scan and its longest, in bytes of memory. The longest keeps a device busy.
/// For large reads it is longer: where the mount prefetches large files for an application, the two
/// read in turn and use up a short window faster than the next one is found.
fn window_bytes(is_large: bool) -> Range<u64> {
    if is_large { 2 << 20..16 << 20 } else { 256 << 10..4 << 20 }
}

/// See the [module](self).
pub(super) struct SequentialScan {
    /// Identifies the scan, also in the prefetch queue.
    pub(super) id: u64,
    pub(super) index: IndexId,
    /// The event at which it was last used.
    pub(super) used_at: u64,
    /// Keys that were walked over, some of which the reader has passed.
    walked: VecDeque<WalkedKey>,
    /// The version of the index in which their values were found.
    version: Weak<Version>,
    /// The turn of the first of them.
    first_turn: u64,
    /// How many of them the reader has passed.
    keys_behind: usize,
    /// The bytes of the others.
    bytes_ahead: u64,
    /// Where the walk goes on: behind this key.
    from: Key,
    /// Small reads that are left until it no longer counts as a scan of large reads.
    small_reads_left: u8,
    /// Bytes of the next window.
    window: u64,
    /// Bytes of the longest window that there is room for.
    window_limit: u64,
    /// The run of large values in which the last walk stopped.
    large_values: LargeValueRun,
    walk: WalkState,
    /// Where the reader is, if it has overtaken the walk: it needs nothing before this key.
    overtaken_at: Option<Key>,
    /// Keys with values on the device that the reader has passed since the last walk.
    keys_passed: usize,
    /// Keys that the reader has read since the last walk.
    keys_read: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkState {
    /// Enough is ahead of the reader.
    Idle,
    Wanted,
    /// A thread walks.
    Running,
    /// The index has no more keys.
    AtEnd,
}

/// What follows from a read.
#[derive(PartialEq, Eq)]
pub(super) enum ReadOutcome {
    Nothing,
    WantsWalk,
    /// The reader skips keys: the scan is over.
    Ends,
}

impl SequentialScan {
    /// A scan that begins behind `key`.
    pub(super) fn new(id: u64, index: IndexId, key: &[u8], is_large: bool) -> Self {
        Self {
            id,
            index,
            used_at: id,
            walked: VecDeque::new(),
            version: Weak::new(),
            first_turn: 0,
            keys_behind: 0,
            bytes_ahead: 0,
            from: key.into(),
            small_reads_left: if is_large { SMALL_READS_AFTER_LARGE } else { 0 },
            window: window_bytes(is_large).start,
            window_limit: u64::MAX,
            large_values: LargeValueRun::default(),
            walk: WalkState::Wanted,
            overtaken_at: None,
            keys_passed: 0,
            keys_read: 0,
        }
    }

    /// True if the reader asks for large pieces.
    pub(super) fn is_large(&self) -> bool {
        self.small_reads_left > 0
    }

    /// True if keys that begin with `first` begin where the walk was, or where it goes on.
    pub(super) fn covers(&self, first: &[u8]) -> bool {
        let start = self.walked.front().map_or(&self.from, |walked| &walked.key);
        **start <= *first && (*first <= *self.from || is_next_key(&self.from, first))
    }

    /// True if the reader has passed all that was found while a walk is due: a scan that begins
    /// behind this one has most likely the same reader.
    pub(super) fn is_late_for(&self, index: IndexId, key: &[u8]) -> bool {
        let is_late = matches!(self.walk, WalkState::Wanted | WalkState::Running)
            && self.keys_behind == self.walked.len();
        is_late && self.index == index && *self.from < *key
    }

    /// What the reader needs nothing before.
    pub(super) fn first_turn(&self) -> u64 {
        self.first_turn
    }

    /// True if the scan wants a thread to walk.
    pub(super) fn wants_walk(&self) -> bool {
        self.walk == WalkState::Wanted
    }

    /// The walk that is wanted, for the thread that does it.
    pub(super) fn begin_walk(&mut self) -> WalkTask {
        self.walk = WalkState::Running;
        WalkTask {
            scan: self.id,
            index: self.index,
            from: self.from.clone(),
            turn: self.first_turn + self.walked.len() as u64,
            window: self.window,
            large_values: self.large_values,
        }
    }

    /// The reader has read up to `key`: if that lies beyond all that was walked over, the walk goes
    /// on there.
    pub(super) fn note_position(&mut self, key: &[u8]) {
        if *key <= *self.from {
            return;
        }
        match self.walk {
            WalkState::Running if self.overtaken_at.as_ref().is_some_and(|at| **at >= *key) => {}
            WalkState::Running => self.overtaken_at = Some(key.into()),
            WalkState::Idle | WalkState::Wanted => {
                self.from = key.into();
                self.walk = WalkState::Wanted;
            }
            WalkState::AtEnd => {}
        }
    }

    /// For each slice what `version` has of its key, if that is known.
    pub(super) fn remembered(
        &self,
        version: &Arc<Version>,
        slices: &[Slice<'_>],
    ) -> Vec<Option<KeyMessages>> {
        if self.version.as_ptr() != Arc::as_ptr(version) || !version.active.is_empty() {
            return slices.iter().map(|_| None).collect();
        }
        let mut near = self.keys_behind;
        let look = |slice: &Slice<'_>| {
            let at = self.position(slice.key, near)?;
            near = at + 1;
            self.walked[at].value.as_ref()?.found()
        };
        slices.iter().map(look).collect()
    }

    /// The position of `key` among the keys that were walked over, most likely at `near` or a
    /// little behind.
    fn position(&self, key: &[u8], near: usize) -> Option<usize> {
        for (at, walked) in self.walked.iter().enumerate().skip(near).take(LINEAR_SEARCH_KEYS) {
            match (*walked.key).cmp(key) {
                Ordering::Less => {}
                Ordering::Equal => return Some(at),
                Ordering::Greater => break,
            }
        }
        self.walked.binary_search_by(|walked| (*walked.key).cmp(key)).ok()
    }

    /// The reader is at `key`, the last of `keys` keys for which it asks, and of `bytes` bytes.
    pub(super) fn advance(&mut self, key: &[u8], keys: usize, bytes: u64) -> ReadOutcome {
        self.keys_read += keys;
        self.small_reads_left = match bytes >= LEAST_DIRECT_BYTES as u64 {
            true => SMALL_READS_AFTER_LARGE,
            false => self.small_reads_left.saturating_sub(1),
        };
        self.window = self.window.min(window_bytes(self.is_large()).end);
        while let Some(walked) = self.walked.get(self.keys_behind).filter(|walked| *walked.key < *key) {
            self.bytes_ahead -= walked.bytes;
            self.keys_passed += usize::from(walked.bytes > 0);
            self.keys_behind += 1;
        }
        if self.keys_passed > self.keys_read * MAX_SKIPPED_KEYS_PER_READ {
            return ReadOutcome::Ends;
        }
        self.forget_keys_behind();
        let keys = self.walked.len() - self.keys_behind;
        let least = (self.window / 2).max(bytes.saturating_mul(2)).min(self.window_limit);
        if self.walk == WalkState::Idle && self.bytes_ahead < least && keys < MAX_WINDOW_KEYS / 2 {
            self.walk = WalkState::Wanted;
        }
        if self.wants_walk() { ReadOutcome::WantsWalk } else { ReadOutcome::Nothing }
    }

    /// Forgets keys far behind the reader. Many at a time, as the whole prefetch queue is gone
    /// through then, but before they take the room of other scans.
    fn forget_keys_behind(&mut self) {
        let over = self.keys_behind - self.kept_keys();
        let bytes = || self.walked.range(..over).map(|walked| walked.bytes).sum::<u64>();
        if over > KEPT_KEYS_BEHIND_READER || (over > 0 && bytes() > self.window / 8) {
            self.walked.drain(..over);
            self.keys_behind -= over;
            self.first_turn += over as u64;
        }
    }

    /// How many of the keys that the reader has passed are kept.
    fn kept_keys(&self) -> usize {
        let most = if self.is_large() { KEPT_KEYS_BEHIND_LARGE_READER } else { KEPT_KEYS_BEHIND_READER };
        let room = self.window / 2;
        let mut bytes = 0;
        let behind = self.walked.range(..self.keys_behind).rev().take(most);
        let fits = |walked: &&WalkedKey| {
            bytes += walked.bytes;
            bytes <= room
        };
        behind.take_while(fits).count()
    }

    /// Takes over what a walk from `turn` on found; returns what to prefetch of it.
    pub(super) fn extend(&mut self, turn: u64, found: WalkResult) -> Vec<PrefetchPlace> {
        let starved = found.is_starved();
        if let Some(last) = found.keys.last() {
            self.from = last.key.clone();
        }
        if !Weak::ptr_eq(&self.version, &found.version) {
            self.walked.iter_mut().for_each(|walked| walked.value = None);
            self.version = found.version;
        }
        self.bytes_ahead += found.keys.iter().map(|walked| walked.bytes).sum::<u64>();
        self.window_limit = found.window_limit;
        let sizes = window_bytes(self.is_large());
        // With a smaller window the keys kept behind the reader take less room, too.
        self.window = if starved { (self.window / 2).max(sizes.start) } else { self.window * 2 };
        self.window = self.window.min(sizes.end).min(found.window_limit);
        self.large_values = found.large_values;
        (self.keys_passed, self.keys_read) = (0, 0);
        self.walk = if found.at_end { WalkState::AtEnd } else { WalkState::Idle };
        let mut places = found.places;
        if let Some(reader) = self.overtaken_at.take() {
            let late = found.keys.partition_point(|walked| walked.key <= reader);
            places.retain(|place| place.turn >= turn + late as u64);
            // The reader has read these from the device.
            self.keys_read = late;
            if self.from <= reader && !found.at_end {
                self.from = reader;
                self.walk = WalkState::Wanted;
            }
        }
        self.walked.extend(found.keys);
        places
    }
}
