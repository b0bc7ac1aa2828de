//! Recount: what the object table says of segments, compared with the map.
//!
//! Protocol: compaction counts what the map has in its victims; before a segment is deleted,
//! maintenance looks whether the map names it; `objects --check --delete-orphans` counts all.
//!
//! Invariants:
//! - the map says what is in use, the table only counts that. Where they differ, the table gets the
//!   map's count, and a warning says so;
//! - no segment is deleted that the last root names, whatever the table says. The index of a
//!   segment has all blocks that the map may have in it;
//! - a segment that the map does not name at one time it never names again: only publishing lets it
//!   name one, and a new one. So its pages may be looked at one after the other. They may be ahead
//!   of the root: that is put, or the device is latched, when the chain can be taken.

use super::error;
use super::inner::{Inner, State};
use super::maintain::PAUSE_OF_DELETES;
use super::object_device::ObjectDevice;
use super::publish::Scope;
use crate::bucket::{Failure, FailureKind, Request, Ticket};
use crate::format::{Header, NewObject, ObjectId, ObjectKind};
use crate::objects::ObjectEntry;
use crate::pages::PAGE_BLOCKS;
use crate::requests::{PARALLEL_REQUESTS, Requests};
use bytes::Bytes;
use espalier_storage::{Operation, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

#[cfg(test)]
mod tests;

/// Blocks whose pages are got, or looked at, at a time.
const STEP_BLOCKS: u64 = PAGE_BLOCKS * PARALLEL_REQUESTS as u64;

/// The header of a segment, on its way.
pub(super) struct HeaderGet {
    object: NewObject,
    request: Request,
    ticket: Box<dyn Ticket>,
}

impl HeaderGet {
    /// Begins to get it.
    pub(super) fn begin(requests: &Requests, object: &NewObject) -> Self {
        let range = Some(0..u64::from(object.header_bytes));
        let request = Request::Get { name: object.name(), range };
        let ticket = requests.begin(&request);
        Self { object: *object, request, ticket }
    }

    /// Waits for it; returns the blocks of the device that its index names, as first block and
    /// number of blocks.
    ///
    /// # Errors
    /// If it cannot be got, or is damaged.
    pub(super) fn finish(self, requests: &Requests) -> std::result::Result<Vec<(u64, u32)>, Failure> {
        let Self { object, request, ticket } = self;
        let reply = requests.finish(ticket, &request)?;
        let open = |bytes: &Bytes| Header::decode(object.id, object.nonce, bytes);
        Ok(requests.checked(&request, reply, open)?.index)
    }
}

/// True for a failure that lies with what is got: the same request has the same end for a while.
pub(super) fn is_lasting(failure: &Failure) -> bool {
    !failure.may_pass() || failure.kind == FailureKind::Condition
}

impl State {
    /// How many blocks of a range the map has in each segment, as far as its pages are loaded.
    fn add_counts(&self, range: &Range<u64>, counts: &mut BTreeMap<ObjectId, u32>) {
        for run in self.map.lookup(range) {
            if let Some(place) = run.place {
                let count = counts.entry(place.object).or_default();
                *count = count.saturating_add(run.blocks);
            }
        }
    }

    /// How many blocks of some ranges, which may overlap, the map has in each segment.
    pub(super) fn counts(&self, ranges: &[Range<u64>]) -> BTreeMap<ObjectId, u32> {
        let mut sorted = ranges.to_vec();
        sorted.sort_by_key(|range| range.start);
        let (mut counts, mut at) = (BTreeMap::new(), 0);
        for Range { start, end } in sorted {
            self.add_counts(&(start.max(at)..end.max(at)), &mut counts);
            at = at.max(end);
        }
        counts
    }
}

impl Inner {
    /// Lets the table have the counts of the map for some segments, all of whose blocks are in some
    /// ranges, of which the pages are loaded. Returns how many differed.
    pub(super) fn correct(&self, objects: &[ObjectId], ranges: &[Range<u64>]) -> usize {
        let device = &self.name;
        let mut state = self.state.write();
        let counts = state.counts(ranges);
        let mut corrected = 0;
        for id in objects {
            let found = counts.get(id).copied().unwrap_or(0);
            if let Some(counted) = state.objects.correct(*id, found) {
                corrected += 1;
                tracing::warn!(device, object = %id, counted, found, "a segment had a wrong count of live blocks");
            }
        }
        corrected
    }

    /// Of objects that the table calls dead, those that the map does not name, and that may be
    /// deleted therefore. The others are alive from then on. If all of the map is loaded, that
    /// takes no request; else it takes the header of each segment, and the pages that this needs.
    ///
    /// # Errors
    /// If a request fails for a reason that passes.
    pub(super) fn unnamed(&self, mut due: Vec<NewObject>) -> std::result::Result<Vec<NewObject>, Failure> {
        let segments = due.iter().filter(|object| object.kind == ObjectKind::Data);
        let segments: Vec<NewObject> = segments.copied().collect();
        if segments.is_empty() {
            return Ok(due);
        }
        let unknown = self.load_pages_of(&segments)?;
        if !unknown.is_empty() {
            *self.deletes_from.lock() = self.elapsed() + PAUSE_OF_DELETES;
        }
        let mut counts = BTreeMap::new();
        for start in (0..self.blocks).step_by(STEP_BLOCKS as usize) {
            let range = start..self.blocks.min(start + STEP_BLOCKS);
            self.state.read().add_counts(&range, &mut counts);
        }
        // No root is being put from here on.
        let _chain = self.chain.lock();
        if self.is_latched() {
            return Ok(Vec::new());
        }
        let ids = segments.iter().map(|object| object.id);
        let named: Vec<ObjectId> = ids.filter(|id| counts.contains_key(id)).collect();
        if !named.is_empty() {
            self.correct(&named, std::slice::from_ref(&(0..self.blocks)));
        }
        due.retain(|object| !counts.contains_key(&object.id) && !unknown.contains(&object.id));
        Ok(due)
    }

    /// Loads the pages of the map that may name some segments; returns the segments for which a
    /// page cannot be had.
    ///
    /// # Errors
    /// If a request fails for a reason that passes.
    fn load_pages_of(&self, segments: &[NewObject]) -> std::result::Result<BTreeSet<ObjectId>, Failure> {
        let mut unknown = BTreeSet::new();
        for part in segments.chunks(PARALLEL_REQUESTS) {
            if self.state.read().map.missing(&(0..self.blocks)).is_empty() {
                break;
            }
            let begun: Vec<_> = part.iter().map(|object| HeaderGet::begin(&self.behind, object)).collect();
            let headers: Vec<_> = begun.into_iter().map(|get| get.finish(&self.behind)).collect();
            for (object, index) in part.iter().zip(headers) {
                match self.load_pages_of_index(index) {
                    Err(failure) if is_lasting(&failure) => {
                        let device = &self.name;
                        let what = "a dead segment stays: it cannot be known whether the map names it";
                        tracing::warn!(device, object = %object.id, %failure, "{what}");
                        unknown.insert(object.id);
                    }
                    loaded => loaded?,
                }
            }
        }
        Ok(unknown)
    }

    /// Loads the pages of the map that an index needs; all of them if it is damaged.
    fn load_pages_of_index(
        &self,
        index: std::result::Result<Vec<(u64, u32)>, Failure>,
    ) -> std::result::Result<(), Failure> {
        match index {
            Ok(index) => {
                let range = |(start, blocks): &(u64, u32)| *start..start.saturating_add(u64::from(*blocks));
                self.load_pages_with(&self.behind, &index.iter().map(range).collect::<Vec<_>>())
            }
            // It was deleted, and the root does not know that yet: there is nothing to lose.
            Err(failure) if failure.is_of_a_missing_object() => Ok(()),
            Err(failure) if is_lasting(&failure) => self.load_all_pages(&self.behind),
            Err(failure) => Err(failure),
        }
    }

    /// Loads the whole map, a part at a time, so that not all pages are under way together.
    ///
    /// # Errors
    /// As for [`Inner::load_pages`].
    pub(super) fn load_all_pages(&self, requests: &Requests) -> std::result::Result<(), Failure> {
        for start in (0..self.blocks).step_by(STEP_BLOCKS as usize) {
            let range = start..self.blocks.min(start + STEP_BLOCKS);
            self.load_pages_with(requests, std::slice::from_ref(&range))?;
        }
        Ok(())
    }
}

impl ObjectDevice {
    /// Lets the object table have the counts of the map, and writes it if one differed. Returns how
    /// many did.
    ///
    /// # Errors
    /// If a page of the map cannot be got; as for a sync.
    pub fn correct_counts(&self) -> Result<usize> {
        let inner = &self.inner;
        inner.writable(Operation::Sync)?;
        let failed = |failure: Failure| error::of_failure(&failure, Operation::Sync, &inner.name);
        inner.load_all_pages(&inner.requests).map_err(failed)?;
        let is_segment = |entry: &&ObjectEntry| entry.object.kind == ObjectKind::Data;
        let segments: Vec<ObjectId> =
            inner.state.read().objects.iter().filter(is_segment).map(|entry| entry.object.id).collect();
        let corrected = inner.correct(&segments, std::slice::from_ref(&(0..inner.blocks)));
        if corrected > 0 {
            inner.publish(Scope::Counts)?;
        }
        Ok(corrected)
    }
}
