//! Compaction: live blocks of sparse and of small segments move to new ones.
//!
//! Protocol: victims are chosen, their live blocks read as any reader would, and put in new
//! segments; a root then says where the copies are, block by block where nothing has changed since.
//! The victims are dead from then on.

use super::error;
use super::inner::Inner;
use super::publish::{Moved, Scope};
use crate::bucket::{Failure, Request};
use crate::format::{Header, NewObject, ObjectId, ObjectKind};
use crate::objects::ObjectEntry;
use crate::requests::PARALLEL_REQUESTS;
use crate::runs::{Place, Run, RunMap};
use crate::segment::{Segment, SegmentBuilder};
use bytes::Bytes;
use espalier_storage::{AlignedBuf, BLOCK, Operation, Result};
use std::sync::Arc;

/// Compaction begins when the bytes of segments exceed this percentage of the live bytes by more
/// than one full segment.
const BEGIN_PERCENT: u64 = 125;
/// No more victims are chosen once the bytes of segments would be at most this percentage of the
/// live bytes.
const END_PERCENT: u64 = 112;
/// A segment below 1/16 of the bytes of a full one is small.
const SMALL_SHARE: u64 = 16;
/// More small segments than this are merged.
const MAX_SMALL: usize = 64;
/// Blocks that are got at a time to be moved: 16 MiB.
const ANNOUNCED_BLOCKS: u64 = (16 << 20) / BLOCK as u64;
/// Most live bytes that one step moves, as a multiple of a full segment.
const MAX_MOVED_SEGMENTS: u64 = 4;

impl Inner {
    /// Moves what is live in the sparsest segments; false if nothing has to be moved.
    pub(super) fn compact(&self) -> Result<bool> {
        let failed = |failure: Failure| error::of_failure(&failure, Operation::Sync, &self.name);
        let victims = self.victims();
        if victims.is_empty() {
            return Ok(false);
        }
        let runs = self.live_runs(&victims).map_err(failed)?;
        let (segments, moved) = self.copy(&runs)?;
        self.publish(Scope::Move(segments, moved))?;
        Ok(true)
    }

    /// The segments to move: enough of the sparsest, or the small ones if there are many.
    fn victims(&self) -> Vec<NewObject> {
        let state = self.state.read();
        let full = u64::from(self.options.segment_blocks) * BLOCK as u64;
        let alive = |entry: &&ObjectEntry| !entry.is_dead() && entry.object.kind == ObjectKind::Data;
        let mut entries: Vec<&ObjectEntry> = state.objects.iter().filter(alive).collect();
        let stored: u64 = entries.iter().map(|entry| u64::from(entry.object.bytes)).sum();
        let live: u64 = entries.iter().map(|entry| u64::from(entry.live) * BLOCK as u64).sum();
        let mut victims = Vec::new();
        let mut budget = MAX_MOVED_SEGMENTS * full;
        let mut take = |entry: &ObjectEntry| {
            let bytes = u64::from(entry.live) * BLOCK as u64;
            let fits = bytes <= budget || victims.is_empty();
            budget = budget.saturating_sub(bytes);
            if fits {
                victims.push(entry.object);
            }
            fits
        };
        if stored > live * BEGIN_PERCENT / 100 + full {
            let share =
                |entry: &ObjectEntry| u64::from(entry.live) * 4096 / u64::from(entry.object.blocks.max(1));
            entries.sort_by_key(|entry| (share(entry), entry.object.id));
            let mut left = stored;
            for entry in &entries {
                if left <= live * END_PERCENT / 100 || !take(entry) {
                    break;
                }
                let bytes = u64::from(entry.object.bytes);
                left = left.saturating_sub(bytes.saturating_sub(u64::from(entry.live) * BLOCK as u64));
            }
        } else {
            let small = |entry: &&&ObjectEntry| u64::from(entry.object.bytes) < full / SMALL_SHARE;
            let small: Vec<&&ObjectEntry> = entries.iter().filter(small).collect();
            if small.len() > MAX_SMALL {
                let _ = small.into_iter().take_while(|entry| take(entry)).count();
            }
        }
        victims
    }

    /// The blocks that the map has in some segments, in order.
    fn live_runs(&self, victims: &[NewObject]) -> std::result::Result<Vec<Run>, Failure> {
        let gets: Vec<Request> = victims
            .iter()
            .map(|object| Request::Get {
                name: object.name(),
                range: Some(0..u64::from(object.header_bytes)),
            })
            .collect();
        let replies = self.requests.call_all(&gets, PARALLEL_REQUESTS)?;
        let mut candidates: Vec<(ObjectId, Run)> = Vec::new();
        for ((object, request), reply) in victims.iter().zip(&gets).zip(replies) {
            let open = |bytes: &Bytes| Header::decode(object.id, object.nonce, bytes);
            let header = self.requests.checked(request, reply, open)?;
            let mut index = 0;
            for (start, blocks) in header.index {
                let place = Some(Place { object: object.id, index });
                candidates.push((object.id, Run { start, blocks, place }));
                index += blocks;
            }
        }
        let ranges: Vec<_> = candidates.iter().map(|(_, run)| run.start..run.end()).collect();
        self.load_pages(&ranges)?;
        let state = self.state.read();
        let mut live = RunMap::default();
        for (object, candidate) in candidates {
            for run in state.map.lookup(&(candidate.start..candidate.end())) {
                if run.place.is_some_and(|place| place.object == object) {
                    live.replace(run);
                }
            }
        }
        Ok(live.iter().collect())
    }

    /// Reads blocks and puts them in new segments; what was written since is not looked at.
    fn copy(&self, runs: &[Run]) -> Result<(Vec<Arc<Segment>>, Vec<Moved>)> {
        let mut segments = Vec::new();
        let mut moved = Vec::new();
        let mut builder: Option<SegmentBuilder> = None;
        let mut announced = 0;
        for (at, run) in runs.iter().enumerate() {
            let Some(from) = run.place else { continue };
            if at == announced {
                announced = self.announce_copies(runs, at)?;
            }
            let mut done = 0;
            while done < run.blocks {
                let target = builder.get_or_insert_with(|| {
                    SegmentBuilder::new(self.state.write().new_id(self), self.session)
                });
                let count = (run.blocks - done).min(self.options.segment_blocks.saturating_sub(target.len()));
                let start = run.start + u64::from(done);
                let place = Some(Place { object: target.id(), index: target.len() });
                let mut buffer = AlignedBuf::zeroed(count as usize * BLOCK);
                let from = Place { index: from.index + done, ..from };
                self.read_at_place(Run { start, blocks: count, place: Some(from) }, &mut buffer)?;
                for (number, block) in (start..).zip(buffer.chunks_exact(BLOCK)) {
                    target.push(number, block);
                }
                moved.push(Moved { run: Run { start, blocks: count, place }, from });
                done += count;
                if target.len() >= self.options.segment_blocks
                    && let Some(full) = builder.take()
                {
                    segments.push(self.begin_segment(full));
                }
            }
        }
        segments.extend(builder.map(|rest| self.begin_segment(rest)));
        Ok((segments, moved))
    }

    /// Begins to get the next runs, side by side; returns the place of the first one that is left.
    fn announce_copies(&self, runs: &[Run], first: usize) -> Result<usize> {
        let mut blocks = 0;
        let next = runs[first..].iter().take_while(|run| {
            let fits = blocks < ANNOUNCED_BLOCKS;
            blocks += u64::from(run.blocks);
            fits
        });
        let ranges: Vec<_> = next.map(|run| run.start..run.end()).collect();
        self.announce(&ranges).map_err(|failure| error::of_failure(&failure, Operation::Read, &self.name))?;
        Ok(first + ranges.len())
    }

    fn begin_segment(&self, builder: SegmentBuilder) -> Arc<Segment> {
        let segment = Arc::new(builder.seal());
        segment.begin_upload(&self.requests);
        segment
    }
}
