//! Device readahead: detects reads that follow one another on the device, and reads ahead of them.
//!
//! All reads (parts, headers, values) pass here, unless they are in the prefetch queue or long
//! enough to need no help (`read`). Reads that continue one another, even of different pieces,
//! become a *stream*: from then on whole windows are read, twice as long each time, and kept until
//! they are used. All other reads read what they need and leave nothing behind: values that are
//! read at random are cached by the kernel above, parts by the cache beside.
//!
//! Protocol: [`DeviceReadahead::read`] answers from a window, or tells the reader to read from the
//! device. A window is *queued* when less than one is left; a background thread that calls
//! [`DeviceReadahead::step`] reads it, or else the first reader that needs it.
//!
//! Invariants:
//! - a window is a hint: blocks can be rewritten behind its back, so the reader verifies what it
//!   gets, and on a mismatch calls [`DeviceReadahead::invalidate`] and reads from the device;
//! - a window *in flight* has a thread that reads it and wakes the readers that wait;
//! - streams hold at most the limit in bytes, windows in flight included.

use super::buffers::Buffers;
use crate::Result;
use crate::device::GuardedDevice;
use crate::lock_order::{RankedMutex, rank};
use bytes::Bytes;
use espalier_storage::BLOCK;
use espalier_sync::Condvar;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The first window of a stream, in bytes.
const FIRST_WINDOW_BYTES: u64 = 128 << 10;
/// The longest window, in bytes.
const MAX_WINDOW_BYTES: u64 = 1 << 20;
/// With memory for no longer windows than this, in bytes, nothing is read ahead.
const LEAST_WINDOW_BYTES: u64 = 16 << 10;
/// Bytes that may be skipped between two reads of a stream.
const STREAM_GAP_BYTES: u64 = 64 << 10;
/// The same before it is known to be one, counted from a block before its end. Small, since what
/// lies this close to any of the recent reads is taken for its successor.
const FIRST_GAP_BYTES: u64 = 12 << 10;
/// How many reads in a row, after the first, make a stream.
const STREAM_HITS: u8 = 2;
/// Reads remembered.
const RECENT_READS: usize = 32;
/// The most streams at a time.
const MAX_STREAMS: usize = 16;

/// The streams of one device.
pub(super) struct DeviceReadahead {
    device: Arc<GuardedDevice>,
    table: RankedMutex<StreamTable, { rank::DEVICE_READAHEAD }>,
    /// A window is no longer in flight.
    arrived: Condvar,
    buffers: Arc<Buffers>,
    /// Called when a window is queued.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct StreamTable {
    recent: VecDeque<RecentRead>,
    streams: Vec<Stream>,
    /// Counts reads; orders streams by their last use, and names them.
    clock: u64,
    max_streams: usize,
    max_window: u64,
}

/// The end of a read that no stream knows.
struct RecentRead {
    next: u64,
    hits: u8,
}

struct Stream {
    name: u64,
    used: u64,
    /// Where the reader is: the end of the last byte that it asked for.
    next: u64,
    /// Length of the next window.
    window: u64,
    /// Nothing is queued behind this until a reader gets there: what lies there is something else.
    limit: u64,
    /// Ascending, without overlap, not always adjacent.
    windows: VecDeque<Window>,
}

struct Window {
    range: Range<u64>,
    state: WindowState,
}

#[derive(Clone)]
enum WindowState {
    Queued,
    InFlight,
    Ready(Bytes),
}

/// A window that the caller has promised to read.
struct WindowClaim {
    stream: u64,
    range: Range<u64>,
}

/// What to do next, decided under the lock.
enum StreamStep {
    Serve(Vec<Bytes>),
    Wait,
    Fetch(WindowClaim),
    Unknown,
}

impl DeviceReadahead {
    /// For `device`, holding at most `limit` bytes in `buffers`.
    pub(super) fn new(device: Arc<GuardedDevice>, buffers: Arc<Buffers>, limit: u64) -> Self {
        let table = StreamTable {
            recent: VecDeque::with_capacity(RECENT_READS),
            streams: Vec::new(),
            clock: 0,
            max_streams: 0,
            max_window: 0,
        };
        let (table, arrived, wake) = (RankedMutex::new(table), Condvar::new(), OnceLock::new());
        let readahead = Self { device, table, arrived, buffers, wake };
        readahead.set_limit(limit);
        readahead
    }

    /// Changes how many bytes the streams may hold. A stream holds at most three windows.
    pub(super) fn set_limit(&self, limit: u64) {
        let mut table = self.table.lock();
        // A power of two, which is what a buffer takes.
        table.max_window = match limit / 12 {
            window if window < LEAST_WINDOW_BYTES => 0,
            window => (1 << window.ilog2()).min(MAX_WINDOW_BYTES),
        };
        table.max_streams = match table.max_window {
            0 => 0,
            window => ((limit / (3 * window)) as usize).min(MAX_STREAMS),
        };
        let keep = table.max_streams;
        while table.streams.len() > keep {
            table.drop_oldest();
        }
    }

    /// Calls `wake` whenever there is something for [`Self::step`] to do.
    pub(super) fn set_wake(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let _ = self.wake.set(wake);
    }

    /// There is something to read ahead, here or in the prefetch queue.
    pub(super) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// The bytes in `range` of the device (whole blocks), in pieces, if a stream has or gets them;
    /// otherwise the caller reads them.
    pub(super) fn read(&self, range: &Range<u64>) -> Option<Vec<Bytes>> {
        let mut table = self.table.lock();
        loop {
            match table.next(range, self.device.len()) {
                StreamStep::Serve(bytes) => {
                    let queued = table.advance(range, self.device.len());
                    drop(table);
                    if queued {
                        self.wake();
                    }
                    return Some(bytes);
                }
                StreamStep::Wait => table.wait(&self.arrived),
                StreamStep::Fetch(claim) => {
                    // A reader that needs the bytes reads them itself, and meets the error.
                    if table.unlocked(|| self.fetch(claim)).is_err() {
                        return None;
                    }
                }
                StreamStep::Unknown => return None,
            }
        }
    }

    /// True if a window is queued.
    pub(super) fn has_queued(&self) -> bool {
        self.table.lock().streams.iter().any(|s| s.queued().is_some())
    }

    /// Reads one queued window, after a call of `claimed`; false if there is none.
    pub(super) fn step(&self, claimed: impl FnOnce()) -> bool {
        let claim = self.table.lock().claim_queued();
        match claim {
            Some(claim) => {
                claimed();
                // A reader of these bytes will meet the error itself.
                let _ = self.fetch(claim);
                true
            }
            None => false,
        }
    }

    /// Expects reads in ascending order of all that is in `range` of the device.
    pub(super) fn expect(&self, range: Range<u64>) {
        let mut table = self.table.lock();
        if let Some(stream) =
            table.streams.iter_mut().find(|s| s.covers(range.start) || s.continues(range.start))
        {
            stream.limit = stream.limit.max(range.end);
            return;
        }
        if table.max_streams == 0 {
            return;
        }
        let (device, end) = (self.device.len(), range.end);
        let first = range.start..end.min(range.start + (2 * FIRST_WINDOW_BYTES).min(table.max_window));
        table.open(range.start, first, device, end);
        drop(table);
        self.wake();
    }

    /// Forgets what is known of `range`: it is being written, or what was known is wrong.
    pub(super) fn invalidate(&self, range: &Range<u64>) {
        let mut table = self.table.lock();
        for stream in &mut table.streams {
            stream.windows.retain(|w| w.range.end <= range.start || w.range.start >= range.end);
        }
        drop(table);
        self.arrived.notify_all();
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let table = self.table.lock();
        let windows = table.streams.iter().flat_map(|s| &s.windows);
        windows.map(|w| Buffers::cost((w.range.end - w.range.start) as usize)).sum()
    }

    /// Reads the window of `claim` and hands it to its stream, if that still wants it.
    fn fetch(&self, claim: WindowClaim) -> Result<()> {
        let read = WindowRead { readahead: self, claim: &claim };
        let mut buffer = self.buffers.lend((claim.range.end - claim.range.start) as usize);
        let result = self.device.read_at(claim.range.start, buffer.as_mut());
        read.finish(result.is_ok().then(|| Bytes::from_owner(buffer)));
        result
    }
}

/// Ends the flight of a window even if the device panics.
struct WindowRead<'a> {
    readahead: &'a DeviceReadahead,
    claim: &'a WindowClaim,
}

impl WindowRead<'_> {
    fn finish(self, bytes: Option<Bytes>) {
        self.end(bytes);
        std::mem::forget(self);
    }

    fn end(&self, bytes: Option<Bytes>) {
        let mut table = self.readahead.table.lock();
        let stream = table.streams.iter_mut().find(|s| s.name == self.claim.stream);
        if let Some(stream) = stream
            && let Some(at) = stream.windows.iter().position(|w| w.range == self.claim.range)
        {
            match bytes {
                Some(bytes) => stream.windows[at].state = WindowState::Ready(bytes),
                None => drop(stream.windows.remove(at)),
            }
        }
        drop(table);
        self.readahead.arrived.notify_all();
    }
}

impl Drop for WindowRead<'_> {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl StreamTable {
    /// What a read of `range` has to do.
    fn next(&mut self, range: &Range<u64>, device: u64) -> StreamStep {
        if let Some(at) = self.streams.iter().position(|s| s.covers(range.start)) {
            return self.streams[at].next(range, device, self.max_window);
        }
        if let Some(at) = self.streams.iter().position(|s| s.continues(range.start)) {
            return self.streams[at].extend(range.clone(), device, self.max_window);
        }
        // Values are packed: the next may begin in the block where the last one ended.
        let follows = |r: &RecentRead| {
            range.end > r.next && (r.next..=r.next + FIRST_GAP_BYTES).contains(&(range.start + BLOCK as u64))
        };
        let hits = match self.recent.iter().position(follows) {
            Some(at) => self.recent.remove(at).map_or(0, |r| r.hits.saturating_add(1)),
            None => 0,
        };
        if hits < STREAM_HITS || self.max_streams == 0 {
            if self.recent.len() == RECENT_READS {
                self.recent.pop_front();
            }
            self.recent.push_back(RecentRead { next: range.end, hits });
            return StreamStep::Unknown;
        }
        let first = range.start..range.end.max(range.start + FIRST_WINDOW_BYTES.min(self.max_window));
        self.open(range.start, first, device, u64::MAX);
        self.claim_queued_of(self.clock).map_or(StreamStep::Unknown, StreamStep::Fetch)
    }

    /// Makes a stream with `first` as its first window, queued.
    fn open(&mut self, next: u64, first: Range<u64>, device: u64, limit: u64) {
        while self.streams.len() >= self.max_streams.max(1) {
            self.drop_oldest();
        }
        self.clock += 1;
        let end = first.end.next_multiple_of(BLOCK as u64).min(device);
        let mut windows = VecDeque::new();
        if end > first.start {
            windows.push_back(Window { range: first.start..end, state: WindowState::Queued });
        }
        let window = ((end - first.start) * 2).clamp(BLOCK as u64, self.max_window);
        self.streams.push(Stream { name: self.clock, used: self.clock, next, window, limit, windows });
    }

    fn drop_oldest(&mut self) {
        let oldest = self.streams.iter().enumerate().min_by_key(|(_, s)| s.used);
        if let Some((at, _)) = oldest {
            self.streams.swap_remove(at);
        }
    }

    fn claim_queued(&mut self) -> Option<WindowClaim> {
        let name = self.streams.iter().find(|s| s.queued().is_some())?.name;
        self.claim_queued_of(name)
    }

    fn claim_queued_of(&mut self, name: u64) -> Option<WindowClaim> {
        let stream = self.streams.iter_mut().find(|s| s.name == name)?;
        let at = stream.queued()?;
        Some(stream.claim(at))
    }

    /// Notes that the reader of `range` was served; queues another window if it is getting near the
    /// end of what there is, and returns true then.
    fn advance(&mut self, range: &Range<u64>, device: u64) -> bool {
        self.clock += 1;
        let (clock, max_window) = (self.clock, self.max_window);
        let Some(stream) = self.streams.iter_mut().find(|s| s.covers(range.start)) else { return false };
        stream.used = clock;
        stream.next = stream.next.max(range.end);
        stream.drop_used();
        let end = stream.end();
        // One window in use, one on its way: the device is not to wait for the reader.
        if end.saturating_sub(stream.next) >= stream.window || stream.queued().is_some() {
            return false;
        }
        stream.queue(end..(end + stream.window).min(stream.limit), device, max_window)
    }
}

impl Stream {
    /// The end of the last window.
    fn end(&self) -> u64 {
        self.windows.back().map_or(self.next, |w| w.range.end)
    }

    fn covers(&self, at: u64) -> bool {
        self.windows.iter().any(|w| w.range.contains(&at))
    }

    /// True if a read at `at` follows what there is.
    fn continues(&self, at: u64) -> bool {
        (self.end()..=self.end() + STREAM_GAP_BYTES).contains(&at)
    }

    fn queued(&self) -> Option<usize> {
        self.windows.iter().position(|w| matches!(w.state, WindowState::Queued))
    }

    fn claim(&mut self, at: usize) -> WindowClaim {
        self.windows[at].state = WindowState::InFlight;
        WindowClaim { stream: self.name, range: self.windows[at].range.clone() }
    }

    /// What a read has to do that begins in one of the windows.
    fn next(&mut self, range: &Range<u64>, device: u64, max_window: u64) -> StreamStep {
        let mut found = Vec::new();
        let mut at = range.start;
        for i in 0..self.windows.len() {
            let window = &self.windows[i];
            if !window.range.contains(&at) {
                continue;
            }
            match &window.state {
                WindowState::Queued => return StreamStep::Fetch(self.claim(i)),
                WindowState::InFlight => return StreamStep::Wait,
                WindowState::Ready(bytes) => {
                    let end = window.range.end.min(range.end);
                    let start = window.range.start;
                    found.push(bytes.slice((at - start) as usize..(end - start) as usize));
                    at = end;
                }
            }
            if at == range.end {
                return StreamStep::Serve(found);
            }
        }
        if at == self.end() { self.extend(at..range.end, device, max_window) } else { StreamStep::Unknown }
    }

    /// Claims a window that begins with `range`.
    fn extend(&mut self, range: Range<u64>, device: u64, max_window: u64) -> StreamStep {
        if range.end > self.limit {
            self.limit = u64::MAX;
        }
        let end = range.end.max((range.start + self.window).min(self.limit));
        self.drop_used();
        if self.queue(range.start..end, device, max_window) {
            StreamStep::Fetch(self.claim(self.windows.len() - 1))
        } else {
            StreamStep::Unknown
        }
    }

    /// Adds a window and doubles the length of the one after it; false if the device ends there.
    fn queue(&mut self, range: Range<u64>, device: u64, max_window: u64) -> bool {
        let end = range.end.next_multiple_of(BLOCK as u64).min(device);
        if end <= range.start {
            return false;
        }
        self.windows.push_back(Window { range: range.start..end, state: WindowState::Queued });
        self.window = (self.window * 2).min(max_window).max(BLOCK as u64);
        true
    }

    /// Drops windows that are used up, all but one: readers in parallel come in any order.
    fn drop_used(&mut self) {
        while self.windows.len() > 1 && self.windows[1].range.start < self.next {
            self.windows.pop_front();
        }
    }
}
