//! Scan table and sequence detector: which look-ups belong to a sequential scan, and which ones
//! start one.
//!
//! Protocol: [`ScanTable::expected`] hears of every look-up before it is made, and
//! [`ScanTable::notice`] of those that no scan expected and that need the device. A readahead
//! thread takes a walk over with [`ScanTable::take_walk`] and returns it with
//! [`ScanTable::finish_walk`].

use super::scan::{ReadOutcome, SequentialScan};
use super::walk::{WalkResult, WalkTask};
use crate::index::Version;
use crate::lock_order::{RankedMutex, rank};
use crate::message::resolve::{KeyMessages, RunPosition};
use crate::model::ids::IndexId;
use crate::pieces::{LEAST_DIRECT_BYTES, Pieces, PrefetchPlace};
use crate::read::snapshot_index::Slice;
use std::collections::VecDeque;
use std::sync::Arc;

/// Sequential reads after the first that start a scan.
const SEQUENTIAL_READS_TO_SCAN: u8 = 2;

/// The same for large reads: the application reads a whole file.
const LARGE_SEQUENTIAL_READS_TO_SCAN: u8 = 1;

/// Reads that the sequence detector remembers.
const MAX_RECENT_READS: usize = 16;

/// Scans at a time.
const MAX_SCANS: usize = 8;

/// A scan that was not used for this many events has lost its reader. It ends when another begins:
/// what was prefetched for it would take the room of the other.
const ABANDONED_SCAN_EVENTS: u64 = 256;

/// The same for a scan of large reads: fewer of them happen in the same time, and each takes more.
const ABANDONED_LARGE_SCAN_EVENTS: u64 = 32;

/// Bytes of entries between two reads that follow each other, at most.
const NEAR_ENTRY_BYTES: usize = 1024;

/// See the [module](self).
#[derive(Default)]
pub(super) struct ScanTable {
    scans: RankedMutex<Scans, { rank::SCAN_TABLE }>,
}

/// What the lock of the table guards.
#[derive(Default)]
struct Scans {
    recent: VecDeque<RecentRead>,
    active: Vec<SequentialScan>,
    /// Counts events; identifies scans and orders them by their last use.
    clock: u64,
}

/// A look-up that no scan expected.
struct RecentRead {
    index: IndexId,
    /// Where its last key was found.
    last: RunPosition,
    /// Sequential reads up to it.
    hits: u8,
}

impl RecentRead {
    /// Sequential reads up to the next one, if that begins at `first`; `None` if `first` does not
    /// follow this read. From one run to another the order of runs is not known: such a step is
    /// allowed and not counted.
    fn hits_with(&self, first: &RunPosition) -> Option<u8> {
        let last = &self.last;
        let from_end_to_start = last.of - last.at <= NEAR_ENTRY_BYTES && first.at <= NEAR_ENTRY_BYTES;
        if first.run != last.run {
            let is_next = last.part + 1 == last.parts && first.part == 0 && from_end_to_start;
            return is_next.then_some(self.hits);
        }
        let is_next = match first.part == last.part {
            true => (last.at + 1..=last.at + NEAR_ENTRY_BYTES).contains(&first.at),
            false => first.part == last.part + 1 && from_end_to_start,
        };
        is_next.then_some(self.hits + 1)
    }
}

/// A look-up that no scan expected.
pub(super) struct UnexpectedRead<'a> {
    /// Its last key.
    pub(super) key: &'a [u8],
    /// Where its first and its last key were found.
    pub(super) positions: (RunPosition, RunPosition),
    /// What is read for it from the device.
    pub(super) bytes: usize,
}

/// What a scan remembers of the keys of a look-up.
pub(super) struct ExpectedRead {
    keys: Vec<Option<KeyMessages>>,
    /// The scan wants a walk.
    pub(super) wants_walk: bool,
}

impl ExpectedRead {
    /// For each key what there is of it, if that is known.
    pub(super) fn into_keys(self) -> Vec<Option<KeyMessages>> {
        self.keys
    }
}

/// What follows from a walk.
#[derive(Default)]
pub(super) struct WalkOutcome {
    /// To be prefetched.
    pub(super) places: Vec<PrefetchPlace>,
    /// Scans that ended.
    pub(super) ended: Vec<u64>,
}

impl ScanTable {
    /// These keys of `version` of an index are about to be looked up, for `bytes` bytes. `None` if
    /// no scan covers them.
    pub(super) fn expected(
        &self,
        pieces: &Pieces,
        index: IndexId,
        version: &Arc<Version>,
        slices: &[Slice<'_>],
        bytes: u64,
    ) -> Option<ExpectedRead> {
        let (first, last) = (slices.first()?, slices.last()?);
        let mut scans = self.scans.lock();
        let at = scans.active.iter().position(|scan| scan.index == index && scan.covers(first.key))?;
        let now = scans.next_event();
        let scan = &mut scans.active[at];
        scan.used_at = now;
        let keys = scan.remembered(version, slices);
        let (id, turn_before) = (scan.id, scan.first_turn());
        scan.note_position(last.key);
        let outcome = scan.advance(last.key, slices.len(), bytes);
        let ends = outcome == ReadOutcome::Ends;
        let turn = if ends { u64::MAX } else { scan.first_turn() };
        if ends {
            scans.active.swap_remove(at);
        }
        drop(scans);
        if turn != turn_before {
            pieces.read_ahead.passed(id, turn);
        }
        Some(ExpectedRead { keys, wants_walk: outcome == ReadOutcome::WantsWalk })
    }

    /// A look-up that no scan expected is about to read from the device. True if it starts a scan,
    /// which wants a walk.
    pub(super) fn notice(&self, pieces: &Pieces, index: IndexId, read: &UnexpectedRead<'_>) -> bool {
        let is_large = read.bytes >= LEAST_DIRECT_BYTES;
        let needed = if is_large { LARGE_SEQUENTIAL_READS_TO_SCAN } else { SEQUENTIAL_READS_TO_SCAN };
        let mut scans = self.scans.lock();
        let now = scans.next_event();
        let hits = scans.take_predecessor(index, &read.positions.0).unwrap_or(0);
        if hits < needed {
            scans.remember(RecentRead { index, last: read.positions.1, hits });
            return false;
        }
        let ended = scans.make_room(index, read.key);
        let kind = (is_large, pieces.wanted_ahead());
        scans.active.push(SequentialScan::new(now, index, read.key, kind));
        drop(scans);
        ended.into_iter().for_each(|scan| pieces.read_ahead.passed(scan, u64::MAX));
        true
    }

    /// True if a scan wants a walk.
    pub(super) fn wants_walk(&self) -> bool {
        self.scans.lock().active.iter().any(SequentialScan::wants_walk)
    }

    /// Takes over a walk that a scan wants.
    pub(super) fn take_walk(&self) -> Option<WalkTask> {
        let mut scans = self.scans.lock();
        let scan = scans.active.iter_mut().find(|scan| scan.wants_walk())?;
        Some(scan.begin_walk())
    }

    /// Ends a walk. If it failed, the scan ends: the reader will meet the error itself.
    pub(super) fn finish_walk(&self, task: &WalkTask, result: Option<WalkResult>) -> WalkOutcome {
        let mut scans = self.scans.lock();
        let mut outcome = WalkOutcome::default();
        let Some(at) = scans.active.iter().position(|scan| scan.id == task.scan) else {
            return outcome;
        };
        let Some(result) = result else {
            scans.active.swap_remove(at);
            outcome.ended.push(task.scan);
            return outcome;
        };
        let starved = result.is_starved();
        outcome.places = scans.active[at].extend(task.turn, result);
        if starved {
            outcome.ended = scans.end_unused(task.scan);
        }
        outcome
    }
}

impl Scans {
    /// The number of an event that happens now.
    fn next_event(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Takes the recent read that one at `first` follows; returns the sequential reads up to this
    /// one.
    fn take_predecessor(&mut self, index: IndexId, first: &RunPosition) -> Option<u8> {
        let mut recent = self.recent.iter().enumerate().filter(|(_, read)| read.index == index);
        let (at, hits) = recent.find_map(|(at, read)| Some((at, read.hits_with(first)?)))?;
        self.recent.remove(at);
        Some(hits)
    }

    fn remember(&mut self, read: RecentRead) {
        if self.recent.len() == MAX_RECENT_READS {
            self.recent.pop_front();
        }
        self.recent.push_back(read);
    }

    /// Makes room for one more scan, which begins behind `key`; returns the scans that ended.
    fn make_room(&mut self, index: IndexId, key: &[u8]) -> Vec<u64> {
        let now = self.clock;
        let ends = |scan: &mut SequentialScan| {
            let abandoned = if scan.is_large() { ABANDONED_LARGE_SCAN_EVENTS } else { ABANDONED_SCAN_EVENTS };
            scan.is_late_for(index, key) || scan.used_at + abandoned < now
        };
        let mut ended: Vec<u64> = self.active.extract_if(.., ends).map(|scan| scan.id).collect();
        self.active.sort_unstable_by_key(|scan| scan.used_at);
        let over = (self.active.len() + 1).saturating_sub(MAX_SCANS);
        ended.extend(self.active.drain(..over).map(|scan| scan.id));
        ended
    }

    /// There is no memory left for the walk of `scan`: ends the scans that were not used while each
    /// of the most that there can be might have been.
    fn end_unused(&mut self, scan: u64) -> Vec<u64> {
        let now = self.clock;
        let is_unused =
            |other: &mut SequentialScan| other.id != scan && other.used_at + MAX_SCANS as u64 <= now;
        self.active.extract_if(.., is_unused).map(|other| other.id).collect()
    }
}
