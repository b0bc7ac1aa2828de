//! Frames for reads: from the caches in memory and on disk, or by ranges of objects.
//!
//! Protocol: a read takes what the caches have, finds or begins fetches for the rest, and waits for
//! them when all are under way. An announcement begins the same fetches, and waits for none.

use super::inner::Inner;
use super::read::Sources;
use crate::bucket::Failure;
use crate::fetches::{Fetch, FrameKey, Frames, Purpose};
use crate::format::{FRAME_BLOCKS, NewObject, ObjectId, ObjectKind, TRAILER_BYTES, frames};
use crate::objects::ObjectEntry;
use crate::requests::Requests;
use bytes::Bytes;
use espalier_storage::BLOCK;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Objects at most of which the end is got when a device is opened.
const NEWEST_OBJECTS: usize = 4;

type Result<T> = std::result::Result<T, Failure>;

impl Inner {
    /// Gets the frames that the sources need.
    ///
    /// # Errors
    /// If one cannot be got, or is damaged.
    pub(super) fn frames(&self, sources: &Sources, purpose: Purpose) -> Result<Frames> {
        let mut frames = Frames::new();
        let mut wanted = BTreeSet::new();
        for (id, frame) in frames_of(sources) {
            match self.cache.get(id, frame) {
                Some(blocks) => drop(frames.insert((id, frame), blocks)),
                None => drop(wanted.insert((id, frame))),
            }
        }
        if let Some(disk) = &self.options.disk_cache {
            wanted.retain(|&(id, frame)| {
                // What is on its way is not looked for on the disk.
                let object = sources.objects.get(&id).filter(|_| !self.cache.fetches.has((id, frame)));
                let Some(bytes) = object.and_then(|object| disk.get(object, frame)) else { return true };
                self.found(sources, (id, frame), without_trailer(&bytes), &mut frames);
                false
            });
        }
        for fetch in self.cover(sources, &wanted, purpose)? {
            self.take(self.requests_of(purpose), &fetch, sources, &wanted, &mut frames)?;
        }
        Ok(frames)
    }

    /// Begins to get what the caches do not have of some blocks, for readers that will come.
    ///
    /// # Errors
    /// If pages of the map cannot be got, or are damaged.
    pub(super) fn announce(&self, ranges: &[Range<u64>]) -> Result<()> {
        self.load_pages(ranges)?;
        let sources = self.remote_sources(ranges);
        let known = |&(id, frame): &FrameKey| {
            self.cache.has(id, frame)
                || sources.objects.get(&id).is_none_or(|object| self.on_disk(object, frame))
        };
        let frame_bytes = u64::from(FRAME_BLOCKS) * BLOCK as u64;
        let most = (self.options.ahead_bytes / 2 / frame_bytes) as usize;
        // In the order of the announcement, as far as there is room.
        let wanted: BTreeSet<FrameKey> = frames_of(&sources).filter(|key| !known(key)).take(most).collect();
        self.cover(&sources, &wanted, Purpose::Announced).map(drop)
    }

    /// Begins to get what was written last, at most so many bytes: superblocks and tables, which
    /// are read first, are among it. A hint.
    pub(super) fn announce_newest(&self, bytes: u64) {
        let bytes = bytes.min(self.options.ahead_bytes / 2);
        let mut left = (bytes / (u64::from(FRAME_BLOCKS) * BLOCK as u64)) as u32;
        let (mut sources, mut wanted) = (Sources::default(), BTreeSet::new());
        {
            let state = self.state.read();
            let live = |entry: &&ObjectEntry| entry.object.kind == ObjectKind::Data && !entry.is_dead();
            for ObjectEntry { object, .. } in state.objects.newest().filter(live).take(NEWEST_OBJECTS) {
                let end = frames(object.blocks);
                let start = end.saturating_sub(left);
                left -= end - start;
                sources.objects.insert(object.id, *object);
                wanted.extend((start..end).map(|frame| (object.id, frame)));
            }
        }
        wanted.retain(|&(id, frame)| {
            let object = sources.objects.get(&id);
            !self.cache.has(id, frame) && object.is_some_and(|object| !self.on_disk(object, frame))
        });
        // The reader will meet the failure.
        if let Err(failure) = self.cover(&sources, &wanted, Purpose::Announced) {
            tracing::debug!(device = self.name, %failure, "what was written last is not got");
        }
    }

    fn cover(
        &self,
        sources: &Sources,
        wanted: &BTreeSet<FrameKey>,
        purpose: Purpose,
    ) -> Result<Vec<Arc<Fetch>>> {
        let is_known =
            |object: &NewObject, frame| self.cache.has(object.id, frame) || self.on_disk(object, frame);
        self.cache.fetches.cover(self.requests_of(purpose), &sources.objects, wanted, purpose, is_known)
    }

    /// No caller waits for a copy.
    fn requests_of(&self, purpose: Purpose) -> &Requests {
        match purpose {
            Purpose::Copy => &self.behind,
            Purpose::Read | Purpose::Announced => &self.requests,
        }
    }

    fn on_disk(&self, object: &NewObject, frame: u32) -> bool {
        self.options.disk_cache.as_ref().is_some_and(|disk| disk.has(object, frame))
    }

    /// Waits for a fetch and takes the frames that are wanted.
    fn take(
        &self,
        requests: &Requests,
        fetch: &Arc<Fetch>,
        sources: &Sources,
        wanted: &BTreeSet<FrameKey>,
        frames: &mut Frames,
    ) -> Result<()> {
        let keep = |got: &[Bytes]| {
            if let Some(disk) = &self.options.disk_cache {
                let numbered = fetch.frames.clone().zip(got);
                numbered.for_each(|(frame, bytes)| disk.insert(&fetch.object, frame, bytes));
            }
        };
        let got = fetch.wait(requests, keep).inspect_err(|_| self.cache.fetches.failed(fetch))?;
        let mut taken = Vec::with_capacity(got.len());
        for (frame, bytes) in fetch.frames.clone().zip(&got) {
            let key = (fetch.object.id, frame);
            if wanted.contains(&key) {
                self.found(sources, key, without_trailer(bytes), frames);
                taken.push(frame);
            }
        }
        self.cache.fetches.taken(fetch, &taken);
        Ok(())
    }

    /// Takes a frame that was checked, and keeps it in memory if a read does not want all of it.
    fn found(&self, sources: &Sources, key: FrameKey, blocks: Bytes, frames: &mut Frames) {
        if is_partly_wanted(sources, key.0, key.1, &blocks) {
            // A copy: the bytes of all frames that were got together are one piece of memory.
            self.cache.insert(key.0, key.1, Bytes::copy_from_slice(&blocks));
        }
        frames.insert(key, blocks);
    }
}

/// The frames in which the blocks of sources lie, in their order; some more than once.
fn frames_of(sources: &Sources) -> impl Iterator<Item = FrameKey> + '_ {
    sources.remote.iter().flat_map(|(run, place)| {
        let last = (place.index + run.blocks.max(1) - 1) / FRAME_BLOCKS;
        (place.index / FRAME_BLOCKS..=last).map(|frame| (place.object, frame))
    })
}

/// The blocks of a frame that was checked.
fn without_trailer(frame: &Bytes) -> Bytes {
    frame.slice(..frame.len().saturating_sub(TRAILER_BYTES))
}

/// True if a read does not want all of a frame: the rest may be wanted next.
fn is_partly_wanted(sources: &Sources, object: ObjectId, frame: u32, blocks: &Bytes) -> bool {
    let first = frame * FRAME_BLOCKS;
    let end = first + (blocks.len() / BLOCK) as u32;
    let inside = sources.remote.iter().filter(|(_, place)| place.object == object);
    let wanted: u32 = inside
        .map(|(run, place)| end.min(place.index + run.blocks).saturating_sub(first.max(place.index)))
        .sum();
    wanted < end - first
}
