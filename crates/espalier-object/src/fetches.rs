//! Fetches: frames that are being got, or were got and no reader has taken yet.
//!
//! Protocol: a reader asks [`Fetches::cover`] for the frames that the caches lack. What is in no
//! fetch is got by new ones, which other readers of the same frames find. [`Fetch::wait`] gives the
//! frames; the reader that comes first checks them for all. When readers have taken all frames of a
//! fetch ([`Fetches::taken`]), it is forgotten. Announced frames are got in the same way, before a
//! reader waits for them.
//!
//! A reader that needs one frame gets its neighbours along: they were written at the same time, and
//! a request costs more than their bytes. For a reader that goes on where the last get from an
//! object ended, more is got ahead each time.
//!
//! Invariants:
//! - what a reader gets was checked;
//! - a frame is in one fetch at most;
//! - fetches hold at most their limit in bytes, or else only the newest: the oldest are forgotten
//!   first, and a reader that has one already keeps it;
//! - the table is not locked while a reply is waited for.

use crate::bucket::{Failure, FailureKind, Request, Ticket};
use crate::format::{FRAME_BLOCKS, Malformed, NewObject, ObjectId, open_frame};
use crate::requests::Requests;
use bytes::Bytes;
use espalier_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Most frames that one request gets: 2 MiB. Longer gets go side by side.
const MAX_FRAMES_PER_GET: u32 = 32;
/// Frames between two announced ones that are got along: cheaper than a request of their own.
const JOINED_GAP_FRAMES: u32 = 4;
/// Without a recent get of the object that ended there, a reader gets the aligned group of 4 frames
/// around the wanted one.
const FIRST_FRAMES: u32 = 4;
/// What is got ahead of a reader that goes on grows by this factor, up to so many frames: 8 MiB.
const AHEAD_GROWTH: u32 = 4;
const MAX_AHEAD_FRAMES: u32 = 128;
/// Places are remembered where so many gets ended.
const RECENT_GETS: usize = 64;

/// A frame of an object.
pub(crate) type FrameKey = (ObjectId, u32);

/// The blocks of frames.
pub(crate) type Frames = BTreeMap<FrameKey, Bytes>;

/// Why frames are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A reader waits: neighbours are got along.
    Read,
    /// A reader will come: what lies close together is got together.
    Announced,
    /// These and no others.
    Copy,
}

/// A get of frames that follow each other in an object.
pub(crate) struct Fetch {
    pub(crate) object: NewObject,
    pub(crate) frames: Range<u32>,
    state: Mutex<FetchState>,
}

enum FetchState {
    UnderWay(Box<dyn Ticket>),
    /// Frames with their trailers.
    Ready(Vec<Bytes>),
    Failed(Failure),
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fetch({} frames {:?})", self.object.id, self.frames)
    }
}

impl Fetch {
    fn begin(requests: &Requests, object: NewObject, frames: Range<u32>) -> Self {
        let ticket = requests.begin(&get(&object, &frames));
        Self { object, frames, state: Mutex::new(FetchState::UnderWay(ticket)) }
    }

    fn bytes(&self) -> u64 {
        let range = self.object.frames_at(self.frames.clone());
        range.end - range.start
    }

    /// The frames with their trailers, in order. `landed` is told of them once.
    ///
    /// # Errors
    /// What the request failed with, however often it was repeated; the same for every reader.
    pub(crate) fn wait(
        &self,
        requests: &Requests,
        landed: impl FnOnce(&[Bytes]),
    ) -> Result<Vec<Bytes>, Failure> {
        let mut state = self.state.lock();
        let interrupted = Failure::new(FailureKind::Unknown, "the reader that waited for it has died");
        match std::mem::replace(&mut *state, FetchState::Failed(interrupted)) {
            FetchState::UnderWay(ticket) => {
                let request = get(&self.object, &self.frames);
                let open = |bytes: &Bytes| self.open(bytes);
                let reply = requests.finish(ticket, &request);
                let frames = reply.and_then(|reply| requests.checked(&request, reply, open));
                *state = match &frames {
                    Ok(frames) => FetchState::Ready(frames.clone()),
                    // A compaction gave it up; a reader may want it all the same.
                    Err(_) if requests.has_stopped() => {
                        FetchState::UnderWay(requests.for_callers().begin(&request))
                    }
                    Err(failure) => FetchState::Failed(failure.clone()),
                };
                drop(state);
                frames.inspect(|frames| landed(frames))
            }
            FetchState::Ready(frames) => {
                *state = FetchState::Ready(frames.clone());
                Ok(frames)
            }
            FetchState::Failed(failure) => {
                *state = FetchState::Failed(failure.clone());
                Err(failure)
            }
        }
    }

    /// Checks what was got.
    fn open(&self, bytes: &Bytes) -> Result<Vec<Bytes>, Malformed> {
        let base = self.object.frames_at(self.frames.clone()).start;
        self.frames
            .clone()
            .map(|frame| {
                let place = self.object.frames_at(frame..frame + 1);
                let end = ((place.end - base) as usize).min(bytes.len());
                let bytes = bytes.slice(((place.start - base) as usize).min(end)..end);
                open_frame(self.object.id, self.object.nonce, frame, &bytes)?;
                Ok(bytes)
            })
            .collect()
    }
}

fn get(object: &NewObject, frames: &Range<u32>) -> Request {
    Request::Get { name: object.name(), range: Some(object.frames_at(frames.clone())) }
}

/// All fetches of a device, and of those that share its caches.
#[derive(Debug)]
pub(crate) struct Fetches {
    limit: u64,
    table: Mutex<FetchTable>,
}

#[derive(Debug, Default)]
struct FetchTable {
    /// By their first frame.
    fetches: BTreeMap<FrameKey, Entry>,
    /// The same, oldest first; some of them are gone.
    order: VecDeque<(FrameKey, u64)>,
    bytes: u64,
    /// Counts fetches.
    clock: u64,
    recent: VecDeque<RecentGet>,
}

#[derive(Debug)]
struct Entry {
    fetch: Arc<Fetch>,
    number: u64,
    /// Frames that no reader has taken.
    left: BTreeSet<u32>,
}

/// Where a get ended, and how much was got ahead there.
#[derive(Debug)]
struct RecentGet {
    next: FrameKey,
    frames: u32,
}

impl Fetches {
    /// None, of at most `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, table: Mutex::default() }
    }

    /// The fetches that have all of `wanted`, those that are new among them; no other thread begins
    /// one for the same frames. `is_known` says what need not be got along.
    ///
    /// # Errors
    /// If an object is not among `objects`; nothing was begun then.
    pub(crate) fn cover(
        &self,
        requests: &Requests,
        objects: &BTreeMap<ObjectId, NewObject>,
        wanted: &BTreeSet<FrameKey>,
        purpose: Purpose,
        is_known: impl Fn(&NewObject, u32) -> bool,
    ) -> Result<Vec<Arc<Fetch>>, Failure> {
        let unknown = |id| Failure::new(FailureKind::NotFound, format!("object {id} is in no table"));
        if let Some((id, _)) = wanted.iter().find(|(id, _)| !objects.contains_key(id)) {
            return Err(unknown(id));
        }
        let mut table = self.table.lock();
        let mut found: Vec<Arc<Fetch>> = Vec::new();
        let mut gaps: Vec<(NewObject, Range<u32>)> = Vec::new();
        for &(id, frame) in wanted {
            if let Some(fetch) = table.find((id, frame)) {
                if found.last().is_none_or(|last| !Arc::ptr_eq(last, fetch)) {
                    found.push(Arc::clone(fetch));
                }
                continue;
            }
            let Some(object) = objects.get(&id) else { continue };
            let joined = if purpose == Purpose::Announced { JOINED_GAP_FRAMES } else { 0 };
            match gaps.last_mut() {
                Some((last, range)) if last.id == id && frame <= range.end + joined => {
                    // Not over what another fetch has.
                    let free = (range.end..frame).all(|between| table.find((id, between)).is_none());
                    if free { range.end = frame + 1 } else { gaps.push((*object, frame..frame + 1)) }
                }
                _ => gaps.push((*object, frame..frame + 1)),
            }
        }
        for (object, range) in gaps {
            let free = |table: &FetchTable, frame: u32| {
                // Other gaps that are wanted have fetches of their own.
                let key = (object.id, frame);
                !wanted.contains(&key) && table.find(key).is_none() && !is_known(&object, frame)
            };
            let (range, ahead) = match purpose {
                Purpose::Read => table.neighbours(&object, &range, free),
                Purpose::Announced | Purpose::Copy => (range.clone(), range.end..range.end),
            };
            found.extend(table.begin(requests, object, range));
            table.begin(requests, object, ahead);
        }
        table.forget_oldest(self.limit, &found);
        Ok(found)
    }

    /// A reader has taken some frames of a fetch.
    pub(crate) fn taken(&self, fetch: &Arc<Fetch>, frames: &[u32]) {
        let mut table = self.table.lock();
        let key = (fetch.object.id, fetch.frames.start);
        if let Some(entry) = table.fetches.get_mut(&key).filter(|entry| Arc::ptr_eq(&entry.fetch, fetch)) {
            entry.left.retain(|frame| !frames.contains(frame));
            if entry.left.is_empty() {
                table.remove(key);
            }
        }
    }

    /// A fetch failed: the next reader begins another.
    pub(crate) fn failed(&self, fetch: &Arc<Fetch>) {
        let mut table = self.table.lock();
        let key = (fetch.object.id, fetch.frames.start);
        if table.fetches.get(&key).is_some_and(|entry| Arc::ptr_eq(&entry.fetch, fetch)) {
            table.remove(key);
        }
    }

    /// True if a frame is in a fetch.
    pub(crate) fn has(&self, key: FrameKey) -> bool {
        self.table.lock().find(key).is_some()
    }
}

impl FetchTable {
    fn find(&self, key: FrameKey) -> Option<&Arc<Fetch>> {
        let (_, entry) = self.fetches.range(..=key).next_back()?;
        let fetch = &entry.fetch;
        (fetch.object.id == key.0 && fetch.frames.contains(&key.1)).then_some(fetch)
    }

    /// What is got for a reader of `range`, and what is got ahead of it.
    fn neighbours(
        &mut self,
        object: &NewObject,
        range: &Range<u32>,
        is_free: impl Fn(&Self, u32) -> bool,
    ) -> (Range<u32>, Range<u32>) {
        let all = object.blocks.div_ceil(FRAME_BLOCKS);
        let goes_on = |recent: &RecentGet| {
            let (id, next) = recent.next;
            id == object.id && (next..=next + recent.frames).contains(&range.start)
        };
        let (range, ahead) = match self.recent.iter().position(goes_on) {
            Some(at) => {
                let before = self.recent.remove(at).map_or(0, |recent| recent.frames);
                let frames = (before * AHEAD_GROWTH).clamp(FIRST_FRAMES, MAX_AHEAD_FRAMES);
                let end = range.end.saturating_add(frames).min(all);
                let free = (range.end..end).take_while(|frame| is_free(self, *frame)).count() as u32;
                (range.clone(), range.end..range.end + free)
            }
            None => {
                let first = range.start / FIRST_FRAMES * FIRST_FRAMES;
                let end = range.end.next_multiple_of(FIRST_FRAMES).min(all).max(range.end);
                let before = (first..range.start).rev().take_while(|frame| is_free(self, *frame)).count();
                let behind = (range.end..end).take_while(|frame| is_free(self, *frame)).count();
                let range = range.start - before as u32..range.end + behind as u32;
                (range.clone(), range.end..range.end)
            }
        };
        let frames = (ahead.end - ahead.start).max(FIRST_FRAMES);
        if self.recent.len() >= RECENT_GETS {
            self.recent.pop_front();
        }
        self.recent.push_back(RecentGet { next: (object.id, ahead.end), frames });
        (range, ahead)
    }

    fn begin(&mut self, requests: &Requests, object: NewObject, range: Range<u32>) -> Vec<Arc<Fetch>> {
        let mut begun = Vec::new();
        for start in range.clone().step_by(MAX_FRAMES_PER_GET as usize) {
            let frames = start..range.end.min(start + MAX_FRAMES_PER_GET);
            let fetch = Arc::new(Fetch::begin(requests, object, frames.clone()));
            self.clock += 1;
            self.bytes += fetch.bytes();
            let key = (object.id, start);
            self.order.push_back((key, self.clock));
            let entry = Entry { fetch: Arc::clone(&fetch), number: self.clock, left: frames.collect() };
            self.fetches.insert(key, entry);
            begun.push(fetch);
        }
        begun
    }

    fn remove(&mut self, key: FrameKey) {
        if let Some(entry) = self.fetches.remove(&key) {
            self.bytes -= entry.fetch.bytes();
        }
    }

    /// Forgets the oldest fetches while there are too many bytes, other than those `kept`.
    fn forget_oldest(&mut self, limit: u64, kept: &[Arc<Fetch>]) {
        let mut passed = Vec::new();
        while (self.bytes > limit || self.order.len() > 2 * self.fetches.len() + RECENT_GETS)
            && let Some((key, number)) = self.order.pop_front()
        {
            let Some(entry) = self.fetches.get(&key).filter(|entry| entry.number == number) else { continue };
            if self.bytes <= limit || kept.iter().any(|fetch| Arc::ptr_eq(fetch, &entry.fetch)) {
                passed.push((key, number));
                continue;
            }
            self.remove(key);
        }
        passed.into_iter().rev().for_each(|old| self.order.push_front(old));
    }
}

#[cfg(test)]
mod tests;
