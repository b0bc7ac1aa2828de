//! Values ahead: what a cursor has walked over before its caller asks for it.
//!
//! Keys lie together on the device, and their values where they were written. A caller that reads
//! the values which a cursor yields would wait for one after the other. So the cursor walks a
//! window ahead of its caller, and enters the places of the values into the [prefetch queue], which
//! puts them in the order of the device: neighbours are read together, the others side by side.
//!
//! Protocol: the cursor tells [`ValuesAhead::note_read`] of every value that has to be read from
//! the device. As long as enough of what it yields is read, [`ValuesAhead::window`] says how far it
//! is to walk; it hands over what it finds with [`ValuesAhead::push`], ends with
//! [`ValuesAhead::prefetch`], and yields from [`ValuesAhead::take`].
//!
//! Invariants:
//! - what is ahead is in the order of keys and comes right before the place where the cursor's walk
//!   stands, in the state that the cursor sees: so it is as true when it is yielded as before;
//! - what is ahead takes a window at most, and one entry: less than half of the prefetch queue;
//! - what is not wanted any more leaves the prefetch queue, at the latest with the cursor.
//!
//! [prefetch queue]: crate::pieces::Pieces::read_ahead

use crate::model::key::Key;
use crate::model::value::Value;
use crate::pieces::{PieceReadahead, Pieces, PrefetchPlace, Sums, cost};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first window in bytes. Each is twice as long as the one before, up to the longest.
const FIRST_WINDOW_BYTES: u64 = 64 << 10;

/// The longest window in bytes, if no half of the prefetch queue is shorter and the device wants no
/// more announced. In a window of a set that was loaded at random there are some values of each
/// group of the log, which lie together: the longer it is, the fewer reads.
const MAX_WINDOW_BYTES: u64 = 8 << 20;

/// Keys of a window at most.
const MAX_WINDOW_KEYS: usize = 4096;

/// The next window is due when one part in so many is left of this one: what is put in order at a
/// time is the rest.
const LOW_WINDOW_PART: u64 = 4;

/// Values that are read before the first window, and in each later one, at least.
const LEAST_READS: u32 = 2;

/// Values on the device that a caller may pass over for each one that it reads.
const MAX_PASSED_PER_READ: u32 = 4;

/// When so many were yielded, they and what was read of them count half from then on.
const REMEMBERED_YIELDS: u32 = 64;

/// See the [module](self).
#[derive(Default)]
pub(super) struct ValuesAhead {
    /// What was walked over and not yielded yet.
    entries: VecDeque<EntryAhead>,
    /// Sum of their bytes.
    bytes: u64,
    /// The last window in bytes; 0 before the first.
    window: u64,
    /// Values on the device that were yielded since the last window.
    yielded: u32,
    /// Those of them that the caller has read.
    read: AtomicU32,
    /// The walk has met the end, or an error: no further window before all of this is yielded.
    is_stopped: bool,
    /// Places for the prefetch queue.
    places: Vec<PrefetchPlace>,
    scan: Option<CursorScan>,
}

/// An entry, and what it and what is read for it takes in memory.
struct EntryAhead {
    key: Key,
    value: Value,
    bytes: u64,
}

/// What a cursor has in the prefetch queue.
struct CursorScan {
    read_ahead: Arc<PieceReadahead>,
    name: u64,
    /// The turn of the first entry that is not yielded yet.
    turn: u64,
}

impl ValuesAhead {
    /// The caller reads a value from the device.
    pub(super) fn note_read(&self) {
        self.read.fetch_add(1, Ordering::Relaxed);
    }

    /// The cursor yields `value`, which was not ahead.
    pub(super) fn note_yield(&mut self, value: &Value) {
        self.yielded += u32::from(is_on_device(value));
        if self.yielded == REMEMBERED_YIELDS {
            self.yielded /= 2;
            *self.read.get_mut() /= 2;
        }
    }

    /// The bytes that should be ahead, if the walk is to go on; there is room for them.
    pub(super) fn window(&mut self, pieces: &Pieces) -> Option<u64> {
        let read = self.read.load(Ordering::Relaxed);
        let is_read = read >= LEAST_READS && self.yielded <= read.saturating_mul(MAX_PASSED_PER_READ);
        let is_low = self.bytes <= self.window / LOW_WINDOW_PART && self.entries.len() < MAX_WINDOW_KEYS / 2;
        if self.is_stopped || !is_read || !is_low {
            return None;
        }
        if let Some(scan) = &self.scan {
            // The last one that was yielded may still be read.
            scan.read_ahead.passed(scan.name, scan.turn.saturating_sub(1));
        }
        let (room, most) = pieces.read_ahead.prefetch_room();
        let longest = MAX_WINDOW_BYTES.max(pieces.wanted_ahead()).min(most / 2);
        let window = (self.window * 2).max(FIRST_WINDOW_BYTES).min(longest).min(self.bytes + room);
        if window < FIRST_WINDOW_BYTES {
            return None;
        }
        self.window = window;
        (self.yielded, *self.read.get_mut()) = (0, 0);
        Some(window)
    }

    /// True if a window of `bytes` wants no more.
    pub(super) fn is_full(&self, bytes: u64) -> bool {
        self.bytes >= bytes || self.entries.len() >= MAX_WINDOW_KEYS
    }

    /// Adds what the walk has found.
    pub(super) fn push(&mut self, pieces: &Pieces, key: Key, value: Value) {
        let scan = self.scan.get_or_insert_with(|| CursorScan::new(&pieces.read_ahead));
        let turn = scan.turn + self.entries.len() as u64;
        let small = if value.segments().is_empty() { value.len() } else { 0 };
        let mut bytes = (key.len() + small + size_of::<EntryAhead>()) as u64;
        for segment in value.segments().iter().filter(|segment| segment.bytes().is_none()) {
            let Some(place) = segment.place() else { continue };
            let Some(range) = pieces.range_of(&place) else { continue };
            bytes += cost(&range);
            self.places.push(PrefetchPlace { range, turn, sums: Sums::of(&place) });
        }
        self.bytes += bytes;
        self.entries.push_back(EntryAhead { key, value, bytes });
    }

    /// The walk goes no further for now.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Has what was pushed read.
    pub(super) fn prefetch(&mut self) {
        if let Some(scan) = self.scan.as_ref().filter(|_| !self.places.is_empty()) {
            scan.read_ahead.prefetch(scan.name, std::mem::take(&mut self.places));
        }
    }

    /// The next entry to yield.
    pub(super) fn take(&mut self) -> Option<(Key, Value)> {
        let Some(EntryAhead { key, value, bytes }) = self.entries.pop_front() else {
            self.is_stopped = false;
            return None;
        };
        self.bytes -= bytes;
        if let Some(scan) = &mut self.scan {
            scan.turn += 1;
        }
        self.note_yield(&value);
        Some((key, value))
    }

    /// True if there is nothing to yield.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all that is ahead; returns the key of the first entry.
    pub(super) fn forget(&mut self) -> Option<Key> {
        std::mem::take(self).entries.pop_front().map(|first| first.key)
    }
}

/// True if it has to be read.
fn is_on_device(value: &Value) -> bool {
    value.segments().iter().any(|segment| segment.bytes().is_none())
}

impl CursorScan {
    fn new(read_ahead: &Arc<PieceReadahead>) -> Self {
        Self { read_ahead: read_ahead.clone(), name: read_ahead.name_cursor_scan(), turn: 0 }
    }
}

impl Drop for CursorScan {
    fn drop(&mut self) {
        self.read_ahead.passed(self.name, u64::MAX);
    }
}
