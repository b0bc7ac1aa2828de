//! Compaction: live blocks of sparse and of small segments move to new ones.
//!
//! Protocol: victims are chosen, their live blocks read as any reader would, and put in new
//! segments. When all were read, the segments are uploaded; when all are acknowledged, a root says
//! where the copies are, block by block where nothing has changed since. The victims are dead from
//! then on.
//!
//! Invariants:
//! - no caller waits for a compaction but while its root is put, and none fails for it: no caller
//!   has written what it uploads, so what fails before that root is a warning;
//! - nothing is uploaded before everything is read, so a victim that cannot be read leaves nothing
//!   behind. It is *unmovable*: the next step chooses others, and it is tried again after a pause
//!   that doubles each time, since what cannot be read may be there again;
//! - what was uploaded in vain is deleted at once. Nothing will ever be in it: names are made for
//!   one segment, only `publish` lets the map name one, and it was not called. What cannot be
//!   deleted at once is a dead object from then on: the next root that is published, or closes,
//!   names it as one, and maintenance deletes it, of this mount or a later one. A copy of a put
//!   that arrives after the delete leaves an orphan, as that of a writer that died does.

use super::error;
use super::inner::{Inner, Unmovable};
use super::publish::{Moved, Scope};
use super::recount::{HeaderGet, is_lasting};
use crate::bucket::Failure;
use crate::format::{NewObject, ObjectId, ObjectKind};
use crate::objects::ObjectEntry;
use crate::requests::{Deletes, PARALLEL_REQUESTS};
use crate::runs::{Place, Run, RunMap};
use crate::segment::{Segment, SegmentBuilder};
use espalier_storage::{AlignedBuf, BLOCK, Operation, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
/// After how long a segment that could not be read is tried again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(600);
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// Why nothing is moved this time.
struct Stopped {
    /// The segment that cannot be read, if that is why.
    victim: Option<ObjectId>,
    failure: Failure,
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self { victim: None, failure }
    }
}

/// What the map has in the victims.
struct Live {
    /// The blocks, in order.
    runs: Vec<Run>,
    /// Whether the object table said otherwise, which it does no more.
    is_corrected: bool,
}

/// Says which segment could not be read.
fn of_victim(victim: ObjectId) -> impl Fn(Failure) -> Stopped {
    move |failure| Stopped { victim: Some(victim), failure }
}

impl Inner {
    /// Moves what is live in the sparsest segments; false if nothing has to be moved.
    pub(super) fn compact(&self) -> Result<bool> {
        let failed = |failure: &Failure| error::of_failure(failure, Operation::Sync, &self.name);
        let victims = self.victims();
        if victims.is_empty() {
            return Ok(false);
        }
        let read = self.live_runs(&victims).and_then(|live| {
            let (segments, moved) = self.copy(&live.runs)?;
            Ok((segments, moved, live.is_corrected))
        });
        let (segments, moved, is_corrected) = match read {
            Ok(read) => read,
            Err(Stopped { victim: Some(victim), failure }) if is_lasting(&failure) => {
                let device = &self.name;
                tracing::warn!(device, object = %victim, %failure, "a segment cannot be compacted");
                self.set_aside(victim);
                // What is left has its turn now.
                return Ok(true);
            }
            Err(Stopped { failure, .. }) => return Err(failed(&failure)),
        };
        if moved.is_empty() {
            // After a correction others have their turn now. Else the victims died just now, or
            // they wait, so that the same step is not taken again and again.
            if !is_corrected {
                victims.iter().for_each(|victim| self.set_aside(victim.id));
            }
            return Ok(is_corrected);
        }
        if let Err(failure) = self.upload(&segments) {
            self.take_back(&segments);
            return Err(failed(&failure));
        }
        self.publish(Scope::Move(segments, moved))?;
        Ok(true)
    }

    /// Lets a segment that cannot be read wait, unless it was deleted meanwhile.
    fn set_aside(&self, victim: ObjectId) {
        let is_live = self.state.read().objects.get(victim).is_some_and(|entry| !entry.is_dead());
        if !is_live {
            return;
        }
        let mut unmovable = self.unmovable.lock();
        let longer = |before: &Unmovable| (before.pause * 2).min(LONGEST_PAUSE);
        let pause = unmovable.get(&victim).map_or(FIRST_PAUSE, longer);
        unmovable.insert(victim, Unmovable { until: self.elapsed() + pause, pause });
    }

    /// Uploads segments, side by side.
    fn upload(&self, segments: &[Arc<Segment>]) -> std::result::Result<(), Failure> {
        segments.iter().for_each(|segment| segment.begin_upload(&self.behind));
        segments.iter().try_for_each(|segment| segment.finish_upload(&self.behind))
    }

    /// Deletes what was uploaded in vain; what is left is deleted later.
    fn take_back(&self, segments: &[Arc<Segment>]) {
        let sent = segments.iter().filter(|segment| segment.give_up(&self.behind));
        let sent: Vec<NewObject> = sent.map(|segment| segment.object).collect();
        let names: Vec<String> = sent.iter().map(NewObject::name).collect();
        let Deletes { done, refused, failed } = self.behind.delete_all(&names);
        let left: Vec<NewObject> =
            sent.into_iter().zip(done).filter(|(_, done)| !done).map(|(object, _)| object).collect();
        if let Some(failure) = failed.or(refused) {
            let (device, objects) = (&self.name, left.len());
            let what = "segments of a compaction that failed are not deleted yet; they are tried again";
            tracing::warn!(device, objects, %failure, "{what}");
        }
        self.add_dead(&left);
    }

    /// Adds objects of which nothing is in use, and never will be. The next root names them too.
    fn add_dead(&self, objects: &[NewObject]) {
        if objects.is_empty() {
            return;
        }
        let mut chain = self.chain.lock();
        let mut state = self.state.write();
        objects.iter().for_each(|object| state.objects.insert(ObjectEntry::new(*object)));
        chain.objects.extend_from_slice(objects);
    }

    /// The segments to move: enough of the sparsest, or the small ones if there are many.
    fn victims(&self) -> Vec<NewObject> {
        let state = self.state.read();
        let full = u64::from(self.options.segment_blocks) * BLOCK as u64;
        // Those that stay where they are count for nothing: else the others were moved for them.
        let unmovable = self.unmovable.lock();
        let now = self.elapsed();
        let waits = |id: &ObjectId| unmovable.get(id).is_some_and(|unmovable| now < unmovable.until);
        let alive = |entry: &&ObjectEntry| {
            let ObjectEntry { object, .. } = entry;
            !entry.is_dead() && object.kind == ObjectKind::Data && !waits(&object.id)
        };
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

    /// The blocks that the map has in some segments. Their indexes name all of them, so the object
    /// table gets the count that is right, if it has another.
    fn live_runs(&self, victims: &[NewObject]) -> std::result::Result<Live, Stopped> {
        let mut candidates: Vec<(ObjectId, Run)> = Vec::new();
        for part in victims.chunks(PARALLEL_REQUESTS) {
            let begun: Vec<_> = part.iter().map(|object| HeaderGet::begin(&self.behind, object)).collect();
            for (object, get) in part.iter().zip(begun) {
                let mut index = 0;
                for (start, blocks) in get.finish(&self.behind).map_err(of_victim(object.id))? {
                    let place = Some(Place { object: object.id, index });
                    candidates.push((object.id, Run { start, blocks, place }));
                    index += blocks;
                }
            }
        }
        let range = |(_, run): &(ObjectId, Run)| run.start..run.end();
        let ranges: Vec<_> = candidates.iter().map(range).collect();
        if self.load_pages_with(&self.behind, &ranges).is_err() {
            // Those that need a page which cannot be had are left out.
            for of_one in candidates.chunk_by(|(one, _), (other, _)| one == other) {
                let ranges: Vec<_> = of_one.iter().map(range).collect();
                self.load_pages_with(&self.behind, &ranges).map_err(of_victim(of_one[0].0))?;
            }
        }
        let state = self.state.read();
        let mut live = RunMap::default();
        for (object, candidate) in candidates {
            for run in state.map.lookup(&(candidate.start..candidate.end())) {
                if run.place.is_some_and(|place| place.object == object) {
                    live.replace(run);
                }
            }
        }
        // An index may name a block twice, and so may several: this has each once.
        let mut counts: BTreeMap<ObjectId, u32> = victims.iter().map(|object| (object.id, 0)).collect();
        for (place, blocks) in live.iter().filter_map(|run| Some((run.place?, run.blocks))) {
            *counts.entry(place.object).or_default() += blocks;
        }
        let differs =
            |(id, count): (&ObjectId, &u32)| state.objects.get(*id).is_some_and(|entry| entry.live != *count);
        let is_wrong = counts.iter().any(differs);
        drop(state);
        let ids: Vec<ObjectId> = counts.into_keys().collect();
        let is_corrected = is_wrong && self.correct(&ids, &ranges) > 0;
        Ok(Live { runs: live.iter().collect(), is_corrected })
    }

    /// Reads blocks and puts them in new segments, of which none is uploaded yet; what was written
    /// since is not looked at.
    fn copy(&self, runs: &[Run]) -> std::result::Result<(Vec<Arc<Segment>>, Vec<Moved>), Stopped> {
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
                let read = Run { start, blocks: count, place: Some(from) };
                self.read_at_place(read, &mut buffer).map_err(of_victim(from.object))?;
                for (number, block) in (start..).zip(buffer.chunks_exact(BLOCK)) {
                    target.push(number, block);
                }
                moved.push(Moved { run: Run { start, blocks: count, place }, from });
                done += count;
                if target.len() >= self.options.segment_blocks
                    && let Some(full) = builder.take()
                {
                    segments.push(Arc::new(full.seal()));
                }
            }
        }
        segments.extend(builder.map(|rest| Arc::new(rest.seal())));
        Ok((segments, moved))
    }

    /// Begins to get the next runs, side by side; returns the place of the first one that is left.
    fn announce_copies(&self, runs: &[Run], first: usize) -> std::result::Result<usize, Failure> {
        let mut blocks = 0;
        let next = runs[first..].iter().take_while(|run| {
            let fits = blocks < ANNOUNCED_BLOCKS;
            blocks += u64::from(run.blocks);
            fits
        });
        let ranges: Vec<_> = next.map(|run| run.start..run.end()).collect();
        self.announce(&ranges)?;
        Ok(first + ranges.len())
    }
}
