//! Sequential scan: one reader that goes through an index in key order, and the walk ahead of it.
//!
//! A scan holds the keys that its walks found: some that the reader has passed, and those ahead of
//! it. When less than half a window is ahead, the scan wants the next walk. Windows double while
//! there is memory for them.
//!
//! Invariant: `walked` is in key order; `from` is the last key of it, or lies behind that.

use super::walk::{LargeValueRun, MAX_WINDOW_KEYS, WalkResult, WalkTask, is_next_key};
use super::walked_keys::WalkedKeys;
use super::window::Window;
use crate::index::Version;
use crate::message::resolve::KeyMessages;
use crate::model::ids::IndexId;
use crate::model::key::Key;
use crate::pieces::PrefetchPlace;
use crate::read::snapshot_index::Slice;
use std::sync::Arc;

/// Keys with values that a reader may skip for each key that it reads; with more, it does not read
/// in key order, and the scan ends.
const MAX_SKIPPED_KEYS_PER_READ: usize = 4;

/// See the [module](self).
pub(super) struct SequentialScan {
    /// Identifies the scan, also in the prefetch queue.
    pub(super) id: u64,
    pub(super) index: IndexId,
    /// The event at which it was last used.
    pub(super) used_at: u64,
    walked: WalkedKeys,
    window: Window,
    walk: WalkState,
    /// Where the walk goes on: behind this key.
    from: Key,
    /// Where the reader is, if it has overtaken the walk: it needs nothing before this key.
    overtaken_at: Option<Key>,
    /// The run of large values in which the last walk stopped.
    large_values: LargeValueRun,
    reads: ReadsSinceWalk,
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

/// What the reader has done since the last walk.
#[derive(Default)]
struct ReadsSinceWalk {
    /// Keys with values on the device that it has passed.
    passed: usize,
    /// Keys that it has read.
    read: usize,
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
    /// A scan that begins behind `key`, of large reads or small ones, on a device that wants so
    /// many bytes announced.
    pub(super) fn new(id: u64, index: IndexId, key: &[u8], (is_large, device_bytes): (bool, u64)) -> Self {
        Self {
            id,
            index,
            used_at: id,
            walked: WalkedKeys::default(),
            window: Window::new(is_large, device_bytes),
            walk: WalkState::Wanted,
            from: key.into(),
            overtaken_at: None,
            large_values: LargeValueRun::default(),
            reads: ReadsSinceWalk::default(),
        }
    }

    /// True if the reader asks for large pieces.
    pub(super) fn is_large(&self) -> bool {
        self.window.is_large()
    }

    /// True if keys that begin with `first` begin where the walk was, or where it goes on.
    pub(super) fn covers(&self, first: &[u8]) -> bool {
        let start = self.walked.first().unwrap_or(&self.from);
        **start <= *first && (*first <= *self.from || is_next_key(&self.from, first))
    }

    /// True if the reader has passed all that was found while a walk is due: a scan that begins
    /// behind this one has most likely the same reader.
    pub(super) fn is_late_for(&self, index: IndexId, key: &[u8]) -> bool {
        let is_late = matches!(self.walk, WalkState::Wanted | WalkState::Running) && self.walked.ahead() == 0;
        is_late && self.index == index && *self.from < *key
    }

    /// The reader needs nothing before this turn.
    pub(super) fn first_turn(&self) -> u64 {
        self.walked.first_turn()
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
            turn: self.walked.next_turn(),
            window: self.window.bytes(),
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
        self.walked.remembered(version, slices)
    }

    /// The reader is at `key`, the last of `keys` keys for which it asks, and of `bytes` bytes.
    pub(super) fn advance(&mut self, key: &[u8], keys: usize, bytes: u64) -> ReadOutcome {
        self.window.note_read(bytes);
        self.reads.read += keys;
        self.reads.passed += self.walked.pass(key);
        if self.reads.passed > self.reads.read * MAX_SKIPPED_KEYS_PER_READ {
            return ReadOutcome::Ends;
        }
        self.walked.forget(self.window.kept_keys(), self.window.bytes());
        let is_low = self.walked.bytes_ahead() < self.window.least_ahead(bytes);
        if self.walk == WalkState::Idle && is_low && self.walked.ahead() < MAX_WINDOW_KEYS / 2 {
            self.walk = WalkState::Wanted;
        }
        if self.wants_walk() { ReadOutcome::WantsWalk } else { ReadOutcome::Nothing }
    }

    /// Takes over what a walk from `turn` on found; returns what to prefetch of it.
    pub(super) fn extend(&mut self, turn: u64, found: WalkResult) -> Vec<PrefetchPlace> {
        self.window.adapt(found.is_starved(), found.window_limit);
        if let Some(last) = found.keys.last() {
            self.from = last.key.clone();
        }
        self.large_values = found.large_values;
        self.reads = ReadsSinceWalk::default();
        self.walk = if found.at_end { WalkState::AtEnd } else { WalkState::Idle };
        let mut places = found.places;
        if let Some(reader) = self.overtaken_at.take() {
            let late = found.keys.partition_point(|walked| walked.key <= reader);
            places.retain(|place| place.turn >= turn + late as u64);
            // The reader has read these from the device.
            self.reads.read = late;
            if self.from <= reader && !found.at_end {
                self.from = reader;
                self.walk = WalkState::Wanted;
            }
        }
        self.walked.extend(found.keys, found.version);
        places
    }
}
