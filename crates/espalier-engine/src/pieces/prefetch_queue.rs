//! What is about to be read, read before it is asked for.
//!
//! Whoever knows which values will be wanted next (a *reading*, see [`crate::readahead`]) announces
//! where they lie. The places are put in the order of the device, neighbours become one *stretch*,
//! and background threads that call [`Announced::step`] read stretches in the order in which they
//! were announced, and then verify what was announced of them. A reader finds his bytes here, waits
//! for a stretch that is being read, or reads one himself that nobody has begun.
//!
//! Invariants:
//! - a stretch is a hint: blocks can be rewritten behind its back, so the caller verifies what he
//!   gets, and on a mismatch calls [`Announced::invalidate`] and reads from the device;
//! - a value is *sound* in a stretch only if all its bytes there, which never change, have the sums
//!   that it was announced with: whoever asks for that value need not verify them again;
//! - a stretch *in flight* has a thread that reads it and will wake those who wait;
//! - stretches hold at most the limit in bytes, those that are not read yet included.

use super::buffers::Buffers;
use super::values::{Sums, Verified};
use crate::Result;
use crate::device::GuardedDevice;
use bytes::Bytes;
use espalier_storage::BLOCK;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Bytes between two places that are read along rather than jumped over.
const GAP: u64 = 16 << 10;
/// The longest stretch, in bytes.
const MAX_STRETCH: u64 = 512 << 10;

/// Where a value lies that will be wanted: bytes of the device, and a number that grows in the
/// order in which it will be.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Whole blocks.
    pub(crate) range: Range<u64>,
    /// Its turn.
    pub(crate) turn: u64,
    /// What is written there.
    pub(crate) sums: Sums,
}

/// All that is announced of one device.
pub(super) struct Announced {
    device: Arc<GuardedDevice>,
    table: Mutex<Table>,
    /// A stretch is no longer in flight.
    arrived: Condvar,
    buffers: Arc<Buffers>,
}

#[derive(Default)]
struct Table {
    /// By their first bytes.
    stretches: BTreeMap<u64, Stretch>,
    /// Those that nobody has begun, some of them gone or begun by now.
    queue: VecDeque<u64>,
    /// That all stretches take in memory.
    bytes: u64,
    limit: u64,
}

/// Values, each with the byte of the device at which the first of its blocks begins.
type Values = Vec<(u64, Sums)>;

struct Stretch {
    end: u64,
    reading: u64,
    /// The last turn at which something in it is wanted.
    last: u64,
    /// What lies in it, until somebody has set out to verify that.
    values: Values,
    /// Those that were found sound, ascending.
    sound: Vec<Verified>,
    state: State,
}

enum State {
    Queued,
    InFlight,
    Ready(Bytes),
}

/// Bytes of a stretch.
pub(super) struct Served {
    pub(super) bytes: Bytes,
    /// They are those of the value that was asked for.
    pub(super) sound: bool,
}

enum Next {
    Serve(Served),
    Wait,
    Fetch(Range<u64>),
    Unknown,
}

impl Announced {
    /// For `device`, holding at most `limit` bytes in `buffers`.
    pub(super) fn new(device: Arc<GuardedDevice>, buffers: Arc<Buffers>, limit: u64) -> Self {
        let table = Table { limit, ..Table::default() };
        Self { device, table: Mutex::new(table), arrived: Condvar::new(), buffers }
    }

    /// Changes how many bytes may be held.
    pub(super) fn set_limit(&self, limit: u64) {
        let mut table = self.table.lock();
        table.limit = limit;
        if table.bytes > limit {
            table.retain(|_, _| false);
        }
    }

    /// How much more may be held, and how much in all, in bytes.
    pub(super) fn room(&self) -> (u64, u64) {
        let table = self.table.lock();
        (table.limit.saturating_sub(table.bytes), table.limit)
    }

    /// Announces what `reading` will want; what does not fit is left out.
    pub(super) fn announce(&self, reading: u64, mut places: Vec<Place>) {
        places.sort_by_key(|place| place.range.start);
        let mut stretches: Vec<(Range<u64>, Range<u64>, Values)> = Vec::new();
        for Place { range, turn, sums } in places {
            let value = (range.start, sums);
            match stretches.last_mut() {
                Some((last, turns, values))
                    if range.start <= last.end + GAP
                        && range.end.max(last.end) - last.start <= MAX_STRETCH =>
                {
                    last.end = last.end.max(range.end);
                    *turns = turns.start.min(turn)..turns.end.max(turn);
                    values.push(value);
                }
                _ => stretches.push((range, turn..turn, vec![value])),
            }
        }
        stretches.sort_by_key(|(_, turns, _)| turns.start);
        let mut table = self.table.lock();
        for (range, turns, values) in stretches {
            let bytes = cost(&range);
            let known = table.stretches.get(&range.start).is_some_and(|known| known.end >= range.end);
            if known
                || range.end - range.start > MAX_STRETCH
                || table.bytes + bytes > table.limit
                || range.end > self.device.len()
            {
                continue;
            }
            table.remove(range.start);
            let (end, last, state) = (range.end, turns.end, State::Queued);
            let stretch = Stretch { end, reading, last, values, sound: Vec::new(), state };
            table.stretches.insert(range.start, stretch);
            table.queue.push_back(range.start);
            table.bytes += bytes;
        }
    }

    /// `reading` has got to `turn`: what it wanted before is not wanted any more.
    pub(super) fn passed(&self, reading: u64, turn: u64) {
        self.table.lock().retain(|_, stretch| stretch.reading != reading || stretch.last >= turn);
    }

    /// The bytes in `range` of the device (whole blocks), where some of `value` lie, if they are
    /// announced.
    pub(super) fn read(&self, range: &Range<u64>, value: &Verified) -> Option<Served> {
        let mut table = self.table.lock();
        loop {
            match table.next(range, value) {
                Next::Serve(served) => return Some(served),
                Next::Wait => self.arrived.wait(&mut table),
                // An error is for him who really needs the bytes: he reads them himself.
                Next::Fetch(stretch) => {
                    if MutexGuard::unlocked(&mut table, || self.fetch(&stretch)).is_err() {
                        return None;
                    }
                }
                Next::Unknown => return None,
            }
        }
    }

    /// True if all of `range` is announced.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        self.table.lock().find(range).is_some()
    }

    /// True if a stretch waits to be read.
    pub(super) fn has_queued(&self) -> bool {
        !self.table.lock().queue.is_empty()
    }

    /// Reads the stretch that was announced first, and verifies what was announced of it; false if
    /// there is none.
    pub(super) fn step(&self) -> bool {
        let Some((stretch, values)) = self.table.lock().claim_first() else { return false };
        // Whoever needs these bytes will meet the error himself; and who waits for them need not
        // wait for this, too.
        if let Ok(bytes) = self.fetch(&stretch) {
            self.verify(stretch.start, &bytes, &values);
        }
        true
    }

    /// Notes which of `values` are sound in `bytes`, with which the stretch at `start` landed.
    fn verify(&self, start: u64, bytes: &Bytes, values: &[(u64, Sums)]) {
        let agrees = |(at, sums): &&(u64, Sums)| {
            bytes.get((at - start) as usize..).is_some_and(|blocks| sums.agree(blocks))
        };
        let mut sound: Vec<_> = values.iter().filter(agrees).map(|(at, sums)| sums.verified(*at)).collect();
        sound.sort_unstable();
        if let Some(stretch) = self.table.lock().stretches.get_mut(&start)
            // These very bytes: others may have been read there since.
            && matches!(&stretch.state, State::Ready(ready) if ready.as_ptr() == bytes.as_ptr())
        {
            stretch.sound = sound;
        }
    }

    /// Forgets what is known of `range`: it is being written, or what was known is wrong.
    pub(super) fn invalidate(&self, range: &Range<u64>) {
        let mut table = self.table.lock();
        if table.stretches.is_empty() {
            return;
        }
        table.retain(|start, stretch| stretch.end <= range.start || range.end <= start);
        drop(table);
        self.arrived.notify_all();
    }

    /// Bytes held, or about to be.
    pub(super) fn bytes(&self) -> u64 {
        self.table.lock().bytes
    }

    /// Reads a stretch that is claimed.
    fn fetch(&self, stretch: &Range<u64>) -> Result<Bytes> {
        let landing = Landing { announced: self, stretch };
        let mut buffer = self.buffers.lend((stretch.end - stretch.start) as usize);
        let result = self.device.read_at(stretch.start, buffer.as_mut()).map(|()| Bytes::from_owner(buffer));
        landing.land(result.as_ref().ok().cloned());
        result
    }
}

/// Ends the flight of a stretch even if the device panics.
struct Landing<'a> {
    announced: &'a Announced,
    stretch: &'a Range<u64>,
}

impl Landing<'_> {
    fn land(self, bytes: Option<Bytes>) {
        self.end(bytes);
        std::mem::forget(self);
    }

    fn end(&self, bytes: Option<Bytes>) {
        let mut table = self.announced.table.lock();
        let start = self.stretch.start;
        // What was forgotten meanwhile, or stands for something else, keeps its state.
        let flies = |s: &&mut Stretch| s.end == self.stretch.end && matches!(s.state, State::InFlight);
        if let Some(stretch) = table.stretches.get_mut(&start).filter(flies) {
            match bytes {
                Some(bytes) => stretch.state = State::Ready(bytes),
                None => table.remove(start),
            }
        }
        drop(table);
        self.announced.arrived.notify_all();
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl Table {
    fn remove(&mut self, start: u64) {
        if let Some(stretch) = self.stretches.remove(&start) {
            self.bytes -= cost(&(start..stretch.end));
        }
    }

    fn retain(&mut self, mut keep: impl FnMut(u64, &Stretch) -> bool) {
        let bytes = &mut self.bytes;
        self.stretches.retain(|start, stretch| {
            let kept = keep(*start, stretch);
            if !kept {
                *bytes -= cost(&(*start..stretch.end));
            }
            kept
        });
    }

    /// The stretch that has all of `range`. Stretches may overlap by a little where their contents
    /// share a block.
    fn find(&mut self, range: &Range<u64>) -> Option<(u64, &mut Stretch)> {
        let mut near = self.stretches.range_mut(..=range.start).rev().take(2);
        near.find(|(_, stretch)| stretch.end >= range.end).map(|(start, stretch)| (*start, stretch))
    }

    /// What a read of `range` has to do.
    fn next(&mut self, range: &Range<u64>, value: &Verified) -> Next {
        let Some((start, stretch)) = self.find(range) else { return Next::Unknown };
        match &stretch.state {
            State::Ready(bytes) => {
                let bytes = bytes.slice((range.start - start) as usize..(range.end - start) as usize);
                let sound = stretch.sound.binary_search(value).is_ok();
                Next::Serve(Served { bytes, sound })
            }
            State::InFlight => Next::Wait,
            State::Queued => {
                stretch.state = State::InFlight;
                Next::Fetch(start..stretch.end)
            }
        }
    }

    /// The stretch that was announced first and that nobody has begun, and what lies in it.
    fn claim_first(&mut self) -> Option<(Range<u64>, Values)> {
        loop {
            let start = self.queue.pop_front()?;
            if let Some(stretch) = self.stretches.get_mut(&start)
                && matches!(stretch.state, State::Queued)
            {
                stretch.state = State::InFlight;
                return Some((start..stretch.end, std::mem::take(&mut stretch.values)));
            }
        }
    }
}

/// The memory that a stretch takes, in bytes.
pub(crate) fn cost(stretch: &Range<u64>) -> u64 {
    Buffers::cost((stretch.end - stretch.start) as usize)
}

const _: () = assert!(GAP.is_multiple_of(BLOCK as u64) && MAX_STRETCH.is_multiple_of(BLOCK as u64));
