//! Reading: blocks from memory, from the caches in memory and on disk, and by ranges of objects.

use super::error;
use super::inner::{Inner, State};
use crate::bucket::{Failure, FailureKind, Request};
use crate::format::{
    FRAME_BLOCKS, NewObject, ObjectId, PageReference, TRAILER_BYTES, decode_page, open_frame, open_section,
};
use crate::pages::PageNumber;
use crate::requests::PARALLEL_REQUESTS;
use crate::runs::{Place, Run};
use crate::segment::Segment;
use bytes::Bytes;
use espalier_storage::{BLOCK, Operation, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Most frames that one request gets: 4 MiB.
const MAX_FRAMES_PER_GET: u32 = 64;

/// How often a place is looked up again because its object is gone: the map has changed meanwhile.
const MAX_LOOKUPS: usize = 4;

/// Where the blocks of a read come from.
#[derive(Default)]
struct Sources {
    /// From segments in memory.
    memory: Vec<(Run, Place, Arc<Segment>)>,
    /// From objects.
    remote: Vec<(Run, Place)>,
    /// The objects concerned.
    objects: BTreeMap<ObjectId, NewObject>,
}

/// The blocks of frames.
type Frames = BTreeMap<(ObjectId, u32), Bytes>;

impl State {
    /// Where the blocks of a range are, in no order; blocks that are not mentioned read as zeros.
    /// The map's pages have to be loaded.
    fn resolve(&self, range: Range<u64>) -> Vec<Run> {
        let mut found = Vec::new();
        let mut gaps = vec![range];
        for layer in [&self.overlay, &self.frozen] {
            for gap in std::mem::take(&mut gaps) {
                let mut at = gap.start;
                for run in layer.overlapping(gap.clone()) {
                    if at < run.start {
                        gaps.push(at..run.start);
                    }
                    at = run.end();
                    found.push(run);
                }
                if at < gap.end {
                    gaps.push(at..gap.end);
                }
            }
        }
        for gap in gaps {
            found.extend(self.map.lookup(&gap));
        }
        found
    }
}

impl Inner {
    /// Fills `buffer` from block `start`.
    pub(super) fn read(&self, start: u64, buffer: &mut [u8]) -> Result<()> {
        let range = start..start + (buffer.len() / BLOCK) as u64;
        let failed = |failure: &Failure| error::of_failure(failure, Operation::Read, &self.name);
        let mut lookups = 0;
        loop {
            self.load_pages(std::slice::from_ref(&range)).map_err(|f| failed(&f))?;
            let sources = self.sources(&range, buffer);
            for (run, place, segment) in &sources.memory {
                for (target, index) in blocks_of(buffer, start, run).zip(place.index..) {
                    let block = segment.block(index).ok_or_else(|| failed(&no_such_block(*place)))?;
                    target.copy_from_slice(block);
                }
            }
            match self.frames(&sources) {
                Ok(frames) => {
                    return copy_frames(buffer, start, &sources, &frames).map_err(|f| failed(&f));
                }
                // It was compacted away since: the map says where the blocks are now.
                Err(failure) if failure.kind == FailureKind::NotFound && lookups < MAX_LOOKUPS => {
                    lookups += 1
                }
                Err(failure) => return Err(failed(&failure)),
            }
        }
    }

    /// Fills `buffer` with blocks of a published segment.
    ///
    /// # Errors
    /// If they cannot be got, or are damaged.
    pub(super) fn read_at_place(&self, run: Run, buffer: &mut [u8]) -> Result<()> {
        let failed = |failure: &Failure| error::of_failure(failure, Operation::Read, &self.name);
        let mut sources = Sources::default();
        if let Some(place) = run.place {
            let object = self.state.read().objects.get(place.object).map(|entry| entry.object);
            sources.objects.extend(object.map(|object| (place.object, object)));
            sources.remote.push((run, place));
        }
        let frames = self.frames(&sources).map_err(|f| failed(&f))?;
        copy_frames(buffer, run.start, &sources, &frames).map_err(|f| failed(&f))
    }

    /// Finds the blocks of a range. What the active segment has is copied at once, and zeros are
    /// put where nothing is.
    fn sources(&self, range: &Range<u64>, buffer: &mut [u8]) -> Sources {
        buffer.fill(0);
        let state = self.state.read();
        let mut sources = Sources::default();
        for run in state.resolve(range.clone()) {
            let Some(place) = run.place else { continue };
            if let Some(active) = state.active.as_ref().filter(|active| active.id() == place.object) {
                for (target, index) in blocks_of(buffer, range.start, &run).zip(place.index..) {
                    if let Some(block) = active.block(index) {
                        target.copy_from_slice(block);
                    }
                }
            } else if let Some(segment) = state.resident.get(&place.object) {
                sources.memory.push((run, place, Arc::clone(segment)));
            } else {
                let known = state.objects.get(place.object).map(|entry| entry.object);
                let object = known.or_else(|| state.unpublished.get(&place.object).copied());
                if let Some(object) = object {
                    sources.objects.insert(place.object, object);
                }
                sources.remote.push((run, place));
            }
        }
        sources
    }

    /// Gets the frames that the sources need and the caches do not have.
    fn frames(&self, sources: &Sources) -> std::result::Result<Frames, Failure> {
        let mut frames = Frames::new();
        let mut wanted: BTreeSet<(ObjectId, u32)> = BTreeSet::new();
        for (run, place) in &sources.remote {
            let last = (place.index + run.blocks - 1) / FRAME_BLOCKS;
            for frame in place.index / FRAME_BLOCKS..=last {
                match self.cache.get(place.object, frame) {
                    Some(blocks) => drop(frames.insert((place.object, frame), blocks)),
                    None => drop(wanted.insert((place.object, frame))),
                }
            }
        }
        if let Some(disk) = &self.options.disk_cache {
            wanted.retain(|(id, frame)| {
                let bytes = sources.objects.get(id).and_then(|object| disk.get(object, *frame));
                bytes.is_none_or(|bytes| {
                    self.found(sources, (*id, *frame), &bytes, &mut frames);
                    false
                })
            });
        }
        let mut gets: Vec<(ObjectId, Range<u32>)> = Vec::new();
        for (object, frame) in wanted {
            match gets.last_mut() {
                Some((last, range))
                    if *last == object && range.end == frame && range.len() < MAX_FRAMES_PER_GET as usize =>
                {
                    range.end += 1;
                }
                _ => gets.push((object, frame..frame + 1)),
            }
        }
        self.get_frames(&gets, sources, &mut frames)?;
        Ok(frames)
    }

    fn get_frames(
        &self,
        gets: &[(ObjectId, Range<u32>)],
        sources: &Sources,
        frames: &mut Frames,
    ) -> std::result::Result<(), Failure> {
        let requests = gets
            .iter()
            .map(|(id, range)| {
                let unknown = || Failure::new(FailureKind::NotFound, format!("object {id} is in no table"));
                let object = sources.objects.get(id).ok_or_else(unknown)?;
                Ok(Request::Get { name: object.name(), range: Some(object.frames_at(range.clone())) })
            })
            .collect::<std::result::Result<Vec<_>, Failure>>()?;
        let replies = self.requests.call_all(&requests, PARALLEL_REQUESTS)?;
        for (((id, range), request), reply) in gets.iter().zip(&requests).zip(replies) {
            let Some(object) = sources.objects.get(id) else { continue };
            let opened =
                self.requests.checked(request, reply, |bytes| open_frames(object, range.clone(), bytes))?;
            for (frame, bytes) in (range.start..).zip(opened) {
                if let Some(disk) = &self.options.disk_cache {
                    disk.insert(object, frame, &bytes);
                }
                self.found(sources, (*id, frame), &bytes, frames);
            }
        }
        Ok(())
    }

    /// Takes a frame that was checked, and keeps it in memory if a read does not want all of it.
    fn found(&self, sources: &Sources, key: (ObjectId, u32), bytes: &Bytes, frames: &mut Frames) {
        let blocks = without_trailer(bytes);
        if is_partly_wanted(sources, key.0, key.1, &blocks) {
            self.cache.insert(key.0, key.1, blocks.clone());
        }
        frames.insert(key, blocks);
    }

    /// Loads the pages of the map that some ranges need.
    ///
    /// # Errors
    /// If one cannot be got, or is damaged.
    pub(super) fn load_pages(&self, ranges: &[Range<u64>]) -> std::result::Result<(), Failure> {
        let missing: BTreeMap<PageNumber, (PageReference, Option<NewObject>)> = {
            let state = self.state.read();
            let pages = ranges.iter().flat_map(|range| state.map.missing(range));
            pages.map(|(n, page)| (n, (page, state.objects.get(page.object).map(|e| e.object)))).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let damaged = |what: String| Failure::new(FailureKind::Unsupported, what);
        let mut requests = Vec::with_capacity(missing.len());
        for (page, object) in missing.values() {
            let object =
                object.ok_or_else(|| damaged(format!("a page is in the unknown {}", page.object)))?;
            let start = u64::from(page.offset);
            let range = start..start + u64::from(page.length);
            requests.push(Request::Get { name: object.name(), range: Some(range) });
        }
        let replies = self.requests.call_all(&requests, PARALLEL_REQUESTS)?;
        for (((number, (page, object)), request), reply) in missing.iter().zip(&requests).zip(replies) {
            let Some(object) = object else { continue };
            let runs = self.requests.checked(request, reply, |bytes| {
                decode_page(*number, open_section(object.id, object.nonce, page.offset, bytes)?)
            })?;
            self.state.write().map.load(*number, runs);
        }
        Ok(())
    }
}

/// The frames, with their trailers, that were got together.
fn open_frames(
    object: &NewObject,
    range: Range<u32>,
    bytes: &Bytes,
) -> std::result::Result<Vec<Bytes>, crate::format::Malformed> {
    let base = object.frames_at(range.clone()).start;
    range
        .map(|frame| {
            let place = object.frames_at(frame..frame + 1);
            let end = ((place.end - base) as usize).min(bytes.len());
            let bytes = bytes.slice(((place.start - base) as usize).min(end)..end);
            open_frame(object.id, object.nonce, frame, &bytes)?;
            Ok(bytes)
        })
        .collect()
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

/// The parts of a buffer, which begins with block `start`, that a run fills.
fn blocks_of<'a>(buffer: &'a mut [u8], start: u64, run: &Run) -> std::slice::ChunksExactMut<'a, u8> {
    let from = (run.start - start) as usize * BLOCK;
    buffer[from..from + run.blocks as usize * BLOCK].chunks_exact_mut(BLOCK)
}

fn copy_frames(
    buffer: &mut [u8],
    start: u64,
    sources: &Sources,
    frames: &Frames,
) -> std::result::Result<(), Failure> {
    for (run, place) in &sources.remote {
        for (target, index) in blocks_of(buffer, start, run).zip(place.index..) {
            let at = (index % FRAME_BLOCKS) as usize * BLOCK;
            let frame = frames.get(&(place.object, index / FRAME_BLOCKS));
            let block = frame.and_then(|frame| frame.get(at..at + BLOCK));
            target.copy_from_slice(block.ok_or_else(|| no_such_block(*place))?);
        }
    }
    Ok(())
}

fn no_such_block(place: Place) -> Failure {
    let message =
        format!("the map is damaged: it names a block of object {} that it does not have", place.object);
    Failure::new(FailureKind::Unsupported, message)
}
