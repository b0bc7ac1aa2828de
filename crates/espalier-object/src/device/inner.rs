//! What device and background thread share: where blocks are, the line of roots, the latch.

use super::error;
use super::options::Options;
use crate::bucket::{Failure, FailureKind, Version};
use crate::cache::FrameCache;
use crate::format::{MapReference, NewObject, ObjectId, Root};
use crate::journal::Journal;
use crate::map::BlockMap;
use crate::objects::ObjectTable;
use crate::requests::Requests;
use crate::runs::{Place, Run, RunMap};
use crate::segment::{Segment, SegmentBuilder};
use espalier_storage::{BLOCK, Environment, Error, ErrorKind, Operation, Result};
use espalier_sync::{Condvar, Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// From this number of an object on nothing new is begun. What is under way then needs fewer than
/// there are behind it.
const LAST_NUMBER: u32 = u32::MAX - (1 << 20);

/// What device and background thread share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) name: String,
    pub(super) blocks: u64,
    pub(super) options: Options,
    /// Part of the names of this session's objects.
    pub(super) session: u64,
    pub(super) epoch: u32,
    pub(super) environment: Arc<dyn Environment>,
    pub(super) requests: Arc<Requests>,
    /// The same, for what no caller waits for.
    pub(super) behind: Requests,
    pub(super) cache: Arc<FrameCache>,
    pub(super) journal: Option<Journal>,
    pub(super) chain: Mutex<Chain>,
    /// Held while a root is put; taken after the chain.
    pub(super) line: Mutex<Line>,
    pub(super) state: RwLock<State>,
    pub(super) latch: OnceLock<Latched>,
    /// Objects of the state that is read which newer states do not need, as far as that is known:
    /// the writer may delete them.
    pub(super) deleted: Mutex<BTreeSet<ObjectId>>,
    /// Segments of which compaction could not get a part: they stay where they are for a while.
    pub(super) unmovable: Mutex<BTreeMap<ObjectId, Unmovable>>,
    /// No delete is tried before this time of the environment's clock: one was refused.
    pub(super) deletes_from: Mutex<Duration>,
    /// Set and told when the device is closed or dropped.
    pub(super) ended: Mutex<bool>,
    pub(super) end: Condvar,
}

/// When compaction tries a segment again of which it could not get a part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unmovable {
    /// Not before this time of the environment's clock.
    pub(super) until: Duration,
    /// How long it waits since it was tried last.
    pub(super) pause: Duration,
}

/// Why nothing is written any more.
#[derive(Debug)]
pub(super) enum Latched {
    /// The device was opened for reading, or closed.
    Closed(&'static str),
    /// Publishing failed.
    Failed(String),
    /// Another writer took over.
    Fenced(String),
}

/// Where blocks are.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) map: BlockMap,
    pub(super) objects: ObjectTable,
    /// What changed since the last publishing began.
    pub(super) overlay: RunMap,
    /// What the publishing under way makes durable.
    pub(super) frozen: RunMap,
    /// Where writes go.
    pub(super) active: Option<SegmentBuilder>,
    /// Sealed segments that no root names yet.
    pub(super) unpublished: BTreeMap<ObjectId, NewObject>,
    /// Those of them whose bytes are in memory.
    pub(super) resident: BTreeMap<ObjectId, Arc<Segment>>,
    /// The number of the next object.
    pub(super) next: u32,
    /// The last record of the journal whose changes are here.
    pub(super) journaled: u64,
}

impl State {
    /// Moves the segment that takes writes to those that are sealed, and begins its upload.
    pub(super) fn seal(&mut self, inner: &Inner) {
        let Some(builder) = self.active.take() else { return };
        let segment = Arc::new(builder.seal());
        self.unpublished.insert(segment.object.id, segment.object);
        self.resident.insert(segment.object.id, Arc::clone(&segment));
        // Last: if it panics, a sync finds the segment and uploads it.
        segment.begin_upload(&inner.requests);
    }

    /// The number of a new object. The device takes no more writes when numbers run out, some time
    /// before one would come again.
    pub(super) fn new_id(&mut self, inner: &Inner) -> ObjectId {
        self.next = self.next.saturating_add(1);
        if self.next >= LAST_NUMBER {
            let what = "it has named as many objects as one mount may; unmount, and mount again";
            inner.latch(&Failure::new(FailureKind::Unsupported, what), Operation::Write);
        }
        ObjectId::new(inner.epoch, self.next)
    }

    /// Forgets blocks.
    pub(super) fn discard(&mut self, mut start: u64, mut blocks: u64) {
        while blocks > 0 {
            let part = u32::try_from(blocks).unwrap_or(u32::MAX);
            self.overlay.replace(Run { start, blocks: part, place: None });
            (start, blocks) = (start + u64::from(part), blocks - u64::from(part));
        }
    }

    /// Writes blocks that follow each other.
    pub(super) fn write_all(&mut self, inner: &Inner, mut start: u64, mut blocks: &[u8]) {
        while !blocks.is_empty() {
            let written = self.write(inner, start, blocks);
            start += u64::from(written);
            blocks = &blocks[written as usize * BLOCK..];
        }
    }

    /// Writes blocks that follow each other, into the active segment as far as it has room; returns
    /// how many that were.
    fn write(&mut self, inner: &Inner, start: u64, blocks: &[u8]) -> u32 {
        let id = match &self.active {
            Some(active) => active.id(),
            None => {
                let id = self.new_id(inner);
                self.active = Some(SegmentBuilder::new(id, inner.session));
                id
            }
        };
        let wanted = (blocks.len() / BLOCK) as u32;
        let end = start + u64::from(wanted);
        // The first blocks either all lie in the active segment already, or none of them does.
        let is_here = |run: &Run| run.place.is_some_and(|place| place.object == id);
        let first = self.overlay.overlapping(start..end).find(is_here);
        let Some(active) = &mut self.active else { return 0 };
        if let Some(Run { start: at, blocks: count, place: Some(place) }) = first
            && at == start
        {
            for (block, index) in blocks.chunks_exact(BLOCK).zip(place.index..place.index + count) {
                if let Some(old) = active.block_mut(index) {
                    old.copy_from_slice(block);
                }
            }
            return count;
        }
        let gap = first.map_or(wanted, |run| (run.start - start) as u32);
        let index = active.len();
        let count = gap.min(inner.options.segment_blocks.saturating_sub(index));
        for (number, block) in (start..start + u64::from(count)).zip(blocks.chunks_exact(BLOCK)) {
            active.push(number, block);
        }
        if count > 0 {
            self.overlay.replace(Run { start, blocks: count, place: Some(Place { object: id, index }) });
        }
        if active.len() >= inner.options.segment_blocks {
            self.seal(inner);
        }
        count
    }
}

/// The last root that is known to be there.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) root: Root,
    /// Its version.
    pub(super) version: Version,
    /// When its put began, by the environment's clock: the server's time for it is later, so the
    /// lease ends no earlier than is counted from here.
    pub(super) put_at: Duration,
    /// The nonces of renewals of this root of which it is not known what became.
    pub(super) unsettled: Vec<u64>,
}

impl Line {
    /// A root that is known to be there.
    pub(super) fn new(root: Root, version: Version, put_at: Duration) -> Self {
        Self { root, version, put_at, unsettled: Vec::new() }
    }
}

/// What the next root says of the map: ahead of the line of roots while one is being published.
#[derive(Debug)]
pub(super) struct Chain {
    /// The last map checkpoint.
    pub(super) map: Option<MapReference>,
    /// Objects that the last map checkpoint does not have.
    pub(super) objects: Vec<NewObject>,
    /// Changes of the map since the last map checkpoint.
    pub(super) delta: RunMap,
}

/// Work that must not be left half done: dropped before [`Attempt::ended`], as by a panic, it takes
/// all later writes and syncs from the device. What such work took out of the overlay is in no
/// root, so a sync after it would claim what is not so.
pub(super) struct Attempt<'a>(Option<&'a Inner>);

impl<'a> Attempt<'a> {
    pub(super) fn begin(inner: &'a Inner) -> Self {
        Self(Some(inner))
    }

    /// The work came to an end, good or bad.
    pub(super) fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(inner) = self.0 {
            let what = "publishing panicked half-way: this is a bug, please report it";
            inner.latch(&Failure::new(FailureKind::Unknown, what), Operation::Sync);
        }
    }
}

impl Inner {
    /// Fails if nothing may be written any more.
    pub(super) fn writable(&self, operation: Operation) -> Result<()> {
        let (kind, why) = match self.latch.get() {
            None => return Ok(()),
            Some(Latched::Closed(why)) => (ErrorKind::ReadOnly, (*why).to_owned()),
            Some(Latched::Failed(why)) => {
                (ErrorKind::Io, format!("nothing is written since an earlier failure: {why}"))
            }
            Some(Latched::Fenced(why)) => (ErrorKind::Io, why.clone()),
        };
        Err(Error::new(kind, operation, &self.name, why))
    }

    /// Fails if something that was written may be lost.
    pub(super) fn still_whole(&self) -> Result<()> {
        match self.latch.get() {
            None | Some(Latched::Closed(_)) => Ok(()),
            Some(_) => self.writable(Operation::Sync),
        }
    }

    /// Takes no more writes, because of a failure; returns the error. If another writer has the
    /// store by now, that is why.
    pub(super) fn latch(&self, failure: &Failure, operation: Operation) -> Error {
        let error = error::of_failure(failure, operation, &self.name);
        if self.latch.set(Latched::Failed(failure.message.clone())).is_ok() {
            tracing::error!(device = self.name, %failure, "the device takes no more writes");
        }
        match self.latch.get() {
            Some(Latched::Fenced(why)) => Error::new(ErrorKind::Io, operation, &self.name, why.clone()),
            _ => error,
        }
    }

    /// Takes no more writes, because another writer has the store.
    pub(super) fn fenced(&self, why: String) -> Error {
        tracing::error!(device = self.name, why, "fenced");
        let error = Error::new(ErrorKind::Io, Operation::Sync, &self.name, why.clone());
        let _ = self.latch.set(Latched::Fenced(why));
        // Callers that wait for uploads learn it now.
        self.requests.give_up_uploads();
        error
    }

    /// Waits until the segments in memory are no more than they may be.
    pub(super) fn make_room(&self) -> Result<()> {
        loop {
            let segment = {
                let state = self.state.read();
                let bytes: u64 = state.resident.values().map(|s| u64::from(s.object.bytes)).sum();
                if bytes <= self.options.resident_bytes {
                    return Ok(());
                }
                state.resident.values().next().cloned()
            };
            let Some(segment) = segment else { return Ok(()) };
            segment.finish_upload(&self.requests).map_err(|f| self.latch(&f, Operation::Write))?;
            self.keep_on_disk(&segment);
            self.state.write().resident.remove(&segment.object.id);
        }
    }

    /// Puts the frames of an acknowledged segment, which leave the memory, into the disk cache.
    pub(super) fn keep_on_disk(&self, segment: &Segment) {
        if let Some(disk) = &self.options.disk_cache {
            segment.frames().for_each(|(frame, bytes)| disk.insert(&segment.object, frame, bytes));
        }
    }

    /// A random number that is not 0.
    pub(super) fn nonce(&self) -> u64 {
        self.environment.random() | 1 << 63
    }

    /// The time of the environment's clock that never goes back.
    pub(super) fn elapsed(&self) -> Duration {
        self.environment.monotonic()
    }

    /// True if the device was fenced or failed.
    pub(super) fn is_latched(&self) -> bool {
        matches!(self.latch.get(), Some(Latched::Failed(_) | Latched::Fenced(_)))
    }
}
