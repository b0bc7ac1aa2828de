//! Reading: where blocks are, and copying them from there: from segments in memory, and from frames
//! ([`super::frames`]).

use super::inner::{Inner, State};
use super::tables::{PagesGet, located};
use crate::bucket::{Failure, FailureKind};
use crate::fetches::{Frames, Purpose};
use crate::format::{FRAME_BLOCKS, NewObject, ObjectId};
use crate::requests::Requests;
use crate::runs::{Place, Run};
use crate::segment::Segment;
use espalier_storage::{BLOCK, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// How often a place is looked up again because its object is gone: the map has changed meanwhile.
const MAX_LOOKUPS: usize = 4;

/// Where the blocks of a read come from.
#[derive(Default)]
pub(super) struct Sources {
    /// From segments in memory.
    memory: Vec<(Run, Place, Arc<Segment>)>,
    /// From objects.
    pub(super) remote: Vec<(Run, Place)>,
    /// The objects concerned.
    pub(super) objects: BTreeMap<ObjectId, NewObject>,
}

impl Sources {
    fn add_remote(&mut self, state: &State, run: Run, place: Place) {
        let known = state.objects.get(place.object).map(|entry| entry.object);
        let object = known.or_else(|| state.unpublished.get(&place.object).copied());
        if let Some(object) = object {
            self.objects.insert(place.object, object);
        }
        self.remote.push((run, place));
    }
}

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
        let failed = |failure: &Failure| self.read_error(failure);
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
            match self.frames(&sources, Purpose::Read) {
                Ok(frames) => {
                    return copy_frames(buffer, start, &sources, &frames).map_err(|f| failed(&f));
                }
                // It was compacted away since: the map says where the blocks are now.
                Err(failure) if failure.is_of_a_missing_object() && lookups < MAX_LOOKUPS => lookups += 1,
                Err(failure) => return Err(failed(&failure)),
            }
        }
    }

    /// Fills `buffer` with blocks of a published segment.
    ///
    /// # Errors
    /// If they cannot be got, or are damaged.
    pub(super) fn read_at_place(&self, run: Run, buffer: &mut [u8]) -> std::result::Result<(), Failure> {
        let mut sources = Sources::default();
        if let Some(place) = run.place {
            let object = self.state.read().objects.get(place.object).map(|entry| entry.object);
            sources.objects.extend(object.map(|object| (place.object, object)));
            sources.remote.push((run, place));
        }
        let frames = self.frames(&sources, Purpose::Copy)?;
        copy_frames(buffer, run.start, &sources, &frames)
    }

    /// Finds the blocks of a range. What the active segment has is copied at once, and zeros are
    /// put where nothing is.
    fn sources(&self, range: &Range<u64>, buffer: &mut [u8]) -> Sources {
        let state = self.state.read();
        let runs = state.resolve(range.clone());
        let placed = runs.iter().filter(|run| run.place.is_some()).map(|run| u64::from(run.blocks));
        if placed.sum::<u64>() < range.end - range.start {
            buffer.fill(0);
        }
        let mut sources = Sources::default();
        for run in runs {
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
                sources.add_remote(&state, run, place);
            }
        }
        sources
    }

    /// Where the blocks of ranges are that only objects have.
    pub(super) fn remote_sources(&self, ranges: &[Range<u64>]) -> Sources {
        let state = self.state.read();
        let mut sources = Sources::default();
        for run in ranges.iter().flat_map(|range| state.resolve(range.clone())) {
            let in_memory = |id| {
                state.resident.contains_key(&id)
                    || state.active.as_ref().is_some_and(|active| active.id() == id)
            };
            if let Some(place) = run.place.filter(|place| !in_memory(place.object)) {
                sources.add_remote(&state, run, place);
            }
        }
        sources
    }

    /// Loads the pages of the map that some ranges need.
    ///
    /// # Errors
    /// If one cannot be got, or is damaged.
    pub(super) fn load_pages(&self, ranges: &[Range<u64>]) -> std::result::Result<(), Failure> {
        self.load_pages_with(&self.requests, ranges)
    }

    /// The same, by requests of callers or of maintenance.
    ///
    /// # Errors
    /// As for [`Inner::load_pages`].
    pub(super) fn load_pages_with(
        &self,
        requests: &Requests,
        ranges: &[Range<u64>],
    ) -> std::result::Result<(), Failure> {
        let missing = {
            let state = self.state.read();
            let pages: BTreeMap<_, _> = ranges.iter().flat_map(|range| state.map.missing(range)).collect();
            located(pages, &state.objects)?
        };
        if missing.is_empty() {
            return Ok(());
        }
        let pages = PagesGet::begin(requests, missing).finish(requests)?;
        let mut state = self.state.write();
        pages.into_iter().for_each(|(number, runs)| state.map.load(number, runs));
        Ok(())
    }
}

/// The part of a buffer, which begins with block `start`, that a run fills.
fn bytes_of<'a>(buffer: &'a mut [u8], start: u64, run: &Run) -> &'a mut [u8] {
    let from = (run.start - start) as usize * BLOCK;
    &mut buffer[from..from + run.blocks as usize * BLOCK]
}

/// The same, block by block.
fn blocks_of<'a>(buffer: &'a mut [u8], start: u64, run: &Run) -> std::slice::ChunksExactMut<'a, u8> {
    bytes_of(buffer, start, run).chunks_exact_mut(BLOCK)
}

fn copy_frames(
    buffer: &mut [u8],
    start: u64,
    sources: &Sources,
    frames: &Frames,
) -> std::result::Result<(), Failure> {
    for (run, place) in &sources.remote {
        let (mut rest, mut index) = (bytes_of(buffer, start, run), place.index);
        while !rest.is_empty() {
            let at = (index % FRAME_BLOCKS) as usize * BLOCK;
            let bytes = rest.len().min(FRAME_BLOCKS as usize * BLOCK - at);
            let frame = frames.get(&(place.object, index / FRAME_BLOCKS));
            let blocks = frame.and_then(|frame| frame.get(at..at + bytes));
            let (target, behind) = rest.split_at_mut(bytes);
            target.copy_from_slice(blocks.ok_or_else(|| no_such_block(*place))?);
            (rest, index) = (behind, index + (bytes / BLOCK) as u32);
        }
    }
    Ok(())
}

fn no_such_block(place: Place) -> Failure {
    let message =
        format!("the map is damaged: it names a block of object {} that it does not have", place.object);
    Failure::new(FailureKind::Unsupported, message)
}
