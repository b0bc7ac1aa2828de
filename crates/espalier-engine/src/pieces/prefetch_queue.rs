//! The prefetch queue: values that a sequential scan will want next, read before it asks for them.
//!
//! Protocol: a scan (key-order readahead) enqueues the places of the values that it will want. They
//! are put in the order of the device, neighbours become one *prefetch extent*, and background
//! threads that call [`PrefetchQueue::step`] read extents in the order in which they were enqueued,
//! and then verify the values in them. A reader finds its bytes here, waits for an extent that is
//! being read, or reads one itself that is still queued.
//!
//! Invariants:
//! - an extent is a hint: blocks can be rewritten behind its back, so the reader verifies what it
//!   gets, and on a mismatch calls [`PrefetchQueue::invalidate`] and reads from the device;
//! - a value is *sound* in an extent only if all its bytes there, which never change, have the sums
//!   that it was enqueued with: a reader of that value need not verify them again;
//! - an extent *in flight* has a thread that reads it and wakes the readers that wait;
//! - extents hold at most the limit in bytes, those that are not read yet included.

use super::buffers::Buffers;
use super::values::{Sums, Verified};
use crate::Result;
use crate::device::GuardedDevice;
use crate::lock_order::{RankedMutex, rank};
use bytes::Bytes;
use espalier_storage::BLOCK;
use espalier_sync::Condvar;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Bytes between two places that are read along rather than jumped over.
const EXTENT_GAP_BYTES: u64 = 16 << 10;
/// The longest extent, in bytes.
const MAX_EXTENT_BYTES: u64 = 512 << 10;

/// Where a value lies that will be wanted: bytes of the device, and a number that grows in the
/// order of the wants.
#[derive(Debug, Clone)]
pub(crate) struct PrefetchPlace {
    /// Whole blocks.
    pub(crate) range: Range<u64>,
    /// Its turn.
    pub(crate) turn: u64,
    /// What is written there.
    pub(crate) sums: Sums,
}

/// All that is queued for one device, or was read for it and not used yet.
pub(super) struct PrefetchQueue {
    device: Arc<GuardedDevice>,
    table: RankedMutex<QueueTable, { rank::PREFETCH_QUEUE }>,
    /// An extent is no longer in flight.
    arrived: Condvar,
    buffers: Arc<Buffers>,
}

#[derive(Default)]
struct QueueTable {
    /// By their first bytes.
    extents: BTreeMap<u64, PrefetchExtent>,
    /// Those that are queued; some of them are gone or in flight by now.
    queue: VecDeque<u64>,
    /// That all extents take in memory.
    bytes: u64,
    limit: u64,
}

/// Values, each with the byte of the device at which the first of its blocks begins.
type Values = Vec<(u64, Sums)>;

struct PrefetchExtent {
    end: u64,
    scan: u64,
    /// The last turn at which something in it is wanted.
    last: u64,
    /// What lies in it, until a thread has begun to verify that.
    values: Values,
    /// Those that were found sound, ascending.
    sound: Vec<Verified>,
    state: ExtentState,
}

enum ExtentState {
    Queued,
    InFlight,
    Ready(Bytes),
}

/// Bytes of an extent.
pub(super) struct Served {
    pub(super) bytes: Bytes,
    /// They are those of the value that was asked for.
    pub(super) sound: bool,
}

enum QueueStep {
    Serve(Served),
    Wait,
    Fetch(Range<u64>),
    Unknown,
}

impl PrefetchQueue {
    /// For `device`, holding at most `limit` bytes in `buffers`.
    pub(super) fn new(device: Arc<GuardedDevice>, buffers: Arc<Buffers>, limit: u64) -> Self {
        let table = QueueTable { limit, ..QueueTable::default() };
        Self { device, table: RankedMutex::new(table), arrived: Condvar::new(), buffers }
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

    /// Enqueues what `scan` will want; what does not fit is left out.
    pub(super) fn enqueue(&self, scan: u64, mut places: Vec<PrefetchPlace>) {
        places.sort_by_key(|place| place.range.start);
        let mut extents: Vec<(Range<u64>, Range<u64>, Values)> = Vec::new();
        for PrefetchPlace { range, turn, sums } in places {
            let value = (range.start, sums);
            match extents.last_mut() {
                Some((last, turns, values))
                    if range.start <= last.end + EXTENT_GAP_BYTES
                        && range.end.max(last.end) - last.start <= MAX_EXTENT_BYTES =>
                {
                    last.end = last.end.max(range.end);
                    *turns = turns.start.min(turn)..turns.end.max(turn);
                    values.push(value);
                }
                _ => extents.push((range, turn..turn, vec![value])),
            }
        }
        extents.sort_by_key(|(_, turns, _)| turns.start);
        let wants_announcements = self.device.wants_announcements();
        let mut announced = Vec::new();
        let mut table = self.table.lock();
        for (range, turns, values) in extents {
            let bytes = cost(&range);
            let known = table.extents.get(&range.start).is_some_and(|known| known.end >= range.end);
            if known
                || range.end - range.start > MAX_EXTENT_BYTES
                || table.bytes + bytes > table.limit
                || range.end > self.device.len()
            {
                continue;
            }
            table.remove(range.start);
            let (end, last, state) = (range.end, turns.end, ExtentState::Queued);
            let extent = PrefetchExtent { end, scan, last, values, sound: Vec::new(), state };
            table.extents.insert(range.start, extent);
            table.queue.push_back(range.start);
            table.bytes += bytes;
            if wants_announcements {
                announced.push(range);
            }
        }
        drop(table);
        self.device.announce(&announced);
    }

    /// `scan` has got to `turn`: what it wanted before is not wanted any more.
    pub(super) fn passed(&self, scan: u64, turn: u64) {
        self.table.lock().retain(|_, extent| extent.scan != scan || extent.last >= turn);
    }

    /// The bytes in `range` of the device (whole blocks), where some of `value` lie, if they are
    /// queued or read.
    pub(super) fn read(&self, range: &Range<u64>, value: &Verified) -> Option<Served> {
        let mut table = self.table.lock();
        loop {
            match table.next(range, value) {
                QueueStep::Serve(served) => return Some(served),
                QueueStep::Wait => table.wait(&self.arrived),
                // A reader that needs the bytes reads them itself, and meets the error.
                QueueStep::Fetch(extent) => {
                    if table.unlocked(|| self.fetch(&extent)).is_err() {
                        return None;
                    }
                }
                QueueStep::Unknown => return None,
            }
        }
    }

    /// True if all of `range` is queued or read.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        self.table.lock().find(range).is_some()
    }

    /// True if an extent waits to be read.
    pub(super) fn has_queued(&self) -> bool {
        !self.table.lock().queue.is_empty()
    }

    /// Reads the extent that was enqueued first, after a call of `claimed`, and verifies the values
    /// in it; false if there is none.
    pub(super) fn step(&self, claimed: impl FnOnce()) -> bool {
        let Some((extent, values)) = self.table.lock().claim_first() else { return false };
        claimed();
        // A reader of these bytes will meet the error itself; and readers that wait for the bytes
        // need not wait for the verification.
        if let Ok(bytes) = self.fetch(&extent) {
            self.verify(extent.start, &bytes, &values);
        }
        true
    }

    /// Notes which of `values` are sound in `bytes`, with which the extent at `start` landed.
    fn verify(&self, start: u64, bytes: &Bytes, values: &[(u64, Sums)]) {
        let agrees = |(at, sums): &&(u64, Sums)| {
            bytes.get((at - start) as usize..).is_some_and(|blocks| sums.agree(blocks))
        };
        let mut sound: Vec<_> = values.iter().filter(agrees).map(|(at, sums)| sums.verified(*at)).collect();
        sound.sort_unstable();
        if let Some(extent) = self.table.lock().extents.get_mut(&start)
            // These very bytes: others may have been read there since.
            && matches!(&extent.state, ExtentState::Ready(ready) if ready.as_ptr() == bytes.as_ptr())
        {
            extent.sound = sound;
        }
    }

    /// Forgets what is known of `range`: it is being written, or what was known is wrong.
    pub(super) fn invalidate(&self, range: &Range<u64>) {
        let mut table = self.table.lock();
        if table.extents.is_empty() {
            return;
        }
        table.retain(|start, extent| extent.end <= range.start || range.end <= start);
        drop(table);
        self.arrived.notify_all();
    }

    /// Bytes held, or about to be.
    pub(super) fn bytes(&self) -> u64 {
        self.table.lock().bytes
    }

    /// Reads an extent that is claimed.
    fn fetch(&self, extent: &Range<u64>) -> Result<Bytes> {
        let read = ExtentRead { queue: self, extent };
        let mut buffer = self.buffers.lend((extent.end - extent.start) as usize);
        let result = self.device.read_at(extent.start, buffer.as_mut()).map(|()| Bytes::from_owner(buffer));
        read.finish(result.as_ref().ok().cloned());
        result
    }
}

/// Ends the flight of an extent even if the device panics.
struct ExtentRead<'a> {
    queue: &'a PrefetchQueue,
    extent: &'a Range<u64>,
}

impl ExtentRead<'_> {
    fn finish(self, bytes: Option<Bytes>) {
        self.end(bytes);
        std::mem::forget(self);
    }

    fn end(&self, bytes: Option<Bytes>) {
        let mut table = self.queue.table.lock();
        let start = self.extent.start;
        // What was forgotten meanwhile, or stands for something else, keeps its state.
        let flies =
            |s: &&mut PrefetchExtent| s.end == self.extent.end && matches!(s.state, ExtentState::InFlight);
        if let Some(extent) = table.extents.get_mut(&start).filter(flies) {
            match bytes {
                Some(bytes) => extent.state = ExtentState::Ready(bytes),
                None => table.remove(start),
            }
        }
        drop(table);
        self.queue.arrived.notify_all();
    }
}

impl Drop for ExtentRead<'_> {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl QueueTable {
    fn remove(&mut self, start: u64) {
        if let Some(extent) = self.extents.remove(&start) {
            self.bytes -= cost(&(start..extent.end));
        }
    }

    fn retain(&mut self, mut keep: impl FnMut(u64, &PrefetchExtent) -> bool) {
        let bytes = &mut self.bytes;
        self.extents.retain(|start, extent| {
            let kept = keep(*start, extent);
            if !kept {
                *bytes -= cost(&(*start..extent.end));
            }
            kept
        });
    }

    /// The extent that has all of `range`. Extents may overlap by a little where their contents
    /// share a block.
    fn find(&mut self, range: &Range<u64>) -> Option<(u64, &mut PrefetchExtent)> {
        let mut near = self.extents.range_mut(..=range.start).rev().take(2);
        near.find(|(_, extent)| extent.end >= range.end).map(|(start, extent)| (*start, extent))
    }

    /// What a read of `range` has to do.
    fn next(&mut self, range: &Range<u64>, value: &Verified) -> QueueStep {
        let Some((start, extent)) = self.find(range) else { return QueueStep::Unknown };
        match &extent.state {
            ExtentState::Ready(bytes) => {
                let bytes = bytes.slice((range.start - start) as usize..(range.end - start) as usize);
                let sound = extent.sound.binary_search(value).is_ok();
                QueueStep::Serve(Served { bytes, sound })
            }
            ExtentState::InFlight => QueueStep::Wait,
            ExtentState::Queued => {
                extent.state = ExtentState::InFlight;
                QueueStep::Fetch(start..extent.end)
            }
        }
    }

    /// The first extent that is still queued, and what lies in it.
    fn claim_first(&mut self) -> Option<(Range<u64>, Values)> {
        loop {
            let start = self.queue.pop_front()?;
            if let Some(extent) = self.extents.get_mut(&start)
                && matches!(extent.state, ExtentState::Queued)
            {
                extent.state = ExtentState::InFlight;
                return Some((start..extent.end, std::mem::take(&mut extent.values)));
            }
        }
    }
}

/// The memory that an extent takes, in bytes.
pub(crate) fn cost(extent: &Range<u64>) -> u64 {
    Buffers::cost((extent.end - extent.start) as usize)
}

const _: () =
    assert!(EXTENT_GAP_BYTES.is_multiple_of(BLOCK as u64) && MAX_EXTENT_BYTES.is_multiple_of(BLOCK as u64));
