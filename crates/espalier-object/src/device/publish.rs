//! Publishing: makes what was written durable, by one new root.
//!
//! Protocol: under the chain lock, what changed is frozen and its segments are acknowledged; the
//! map takes the changes, in memory; if the delta has become long, the map is written; then the
//! next root is put on the line of roots ([`super::line`]), which until then renewals may go on.
//!
//! Invariants:
//! - a root names only objects that were acknowledged before it was put;
//! - the position of the journal that a root has is that of the changes which it has;
//! - between two publishings, map and object table are those of the root that is there; if
//!   publishing fails or panics they may be ahead of it, and the device is latched.

use super::inner::{Attempt, Chain, Inner};
use super::line::Purpose;
use crate::bucket::{Condition, Failure, FailureKind, Request};
use crate::format::{
    Header, Holder, JournalPosition, MapReference, NewObject, ObjectId, ObjectKind, PageReference, Root,
    encode_directory, encode_objects, encode_page, section,
};
use crate::journal::Journal;
use crate::objects::ObjectEntry;
use crate::pages::PageNumber;
use crate::runs::{Place, Run, RunMap};
use crate::segment::Segment;
use bytes::Bytes;
use espalier_storage::{Operation, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Sparse pages of the map are written again when map objects exceed twice their live bytes by this
/// much.
const MAP_SLACK_BYTES: u64 = 256 << 10;

/// What a root is for.
pub(super) enum Scope {
    /// Everything that was written.
    Sync,
    /// The same, and the lease is given back.
    Close,
    /// Copies of blocks, where nothing else has changed them. Their segments are acknowledged, so
    /// that no sync waits for them behind the chain.
    Move(Vec<Arc<Segment>>, Vec<Moved>),
    /// The object table, whose counts were corrected: the map is written.
    Counts,
}

/// Blocks that were copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    /// The blocks and where the copies are.
    pub(super) run: Run,
    /// Where they were when they were read.
    pub(super) from: Place,
}

/// What becomes durable.
#[derive(Default)]
struct Changes {
    runs: Vec<Run>,
    objects: Vec<NewObject>,
    segments: Vec<Arc<Segment>>,
    moved: Vec<Moved>,
    /// The last record of the journal that is in them.
    journaled: Option<u64>,
    /// Whether the map is written in any case.
    writes_map: bool,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.objects.is_empty() && !self.writes_map
    }

    /// The blocks concerned.
    fn ranges(&self) -> Vec<Range<u64>> {
        let moved = self.moved.iter().map(|moved| moved.run);
        self.runs.iter().copied().chain(moved).map(|run| run.start..run.end()).collect()
    }
}

impl Inner {
    /// Puts a new root.
    ///
    /// # Errors
    /// If the device takes no writes any more, or does not from now on.
    pub(super) fn publish(&self, scope: Scope) -> Result<()> {
        let mut chain = self.chain.lock();
        self.writable(Operation::Sync)?;
        let close = matches!(scope, Scope::Close);
        let attempt = Attempt::begin(self);
        let changes = self.freeze(scope);
        // A discard may be published before it is in a record: then the root lacks only the record.
        let is_behind = |journal: &Journal| changes.journaled.is_some_and(|last| last > journal.covered());
        if changes.is_empty() && !close && !self.journal.as_ref().is_some_and(is_behind) {
            attempt.ended();
            return Ok(());
        }
        let prepared = self.prepare(&mut chain, &changes);
        let outcome = match prepared {
            Ok(()) => {
                let change = |root: &mut Root| self.change_root(root, &chain, &changes, close);
                self.put_root(Purpose::Publishing, |_| true, change)
            }
            Err(failure) => Err(self.latch(&failure, Operation::Sync)),
        };
        attempt.ended();
        outcome?;
        if let (Some(journal), Some(record)) = (&self.journal, changes.journaled) {
            journal.cover(record);
        }
        changes.segments.iter().for_each(|segment| self.keep_on_disk(segment));
        let mut state = self.state.write();
        changes.objects.iter().for_each(|object| drop(state.resident.remove(&object.id)));
        Ok(())
    }

    /// What the new root shall have that the last one has not.
    fn freeze(&self, scope: Scope) -> Changes {
        match scope {
            Scope::Move(segments, moved) => {
                let objects = segments.iter().map(|segment| segment.object).collect();
                Changes { objects, segments, moved, ..Changes::default() }
            }
            Scope::Counts => Changes { writes_map: true, ..Changes::default() },
            Scope::Sync | Scope::Close => {
                let mut state = self.state.write();
                state.seal(self);
                state.frozen = std::mem::take(&mut state.overlay);
                Changes {
                    runs: state.frozen.iter().collect(),
                    objects: state.unpublished.values().copied().collect(),
                    segments: state.resident.values().cloned().collect(),
                    moved: Vec::new(),
                    journaled: self.journal.as_ref().map(|_| state.journaled),
                    writes_map: false,
                }
            }
        }
    }

    /// Does all that a root needs before it may be put.
    fn prepare(&self, chain: &mut Chain, changes: &Changes) -> std::result::Result<(), Failure> {
        // All are under way before the first is waited for.
        changes.segments.iter().for_each(|segment| segment.begin_upload(&self.requests));
        for segment in &changes.segments {
            segment.finish_upload(&self.requests)?;
        }
        self.load_pages_to_publish(&changes.ranges())?;
        self.apply(chain, changes);
        let is_long =
            chain.delta.len() > self.options.delta_runs || chain.objects.len() > self.options.delta_runs / 4;
        if is_long || changes.writes_map {
            self.checkpoint_map(chain)?;
        }
        Ok(())
    }

    /// Loads pages of the map, and waits for the store as long as puts do: what was frozen for a
    /// root needs them.
    fn load_pages_to_publish(&self, ranges: &[Range<u64>]) -> std::result::Result<(), Failure> {
        loop {
            match self.load_pages(ranges) {
                // A get has no condition: that one is said to have failed was tried often enough.
                Err(failure)
                    if failure.may_pass()
                        && failure.kind != FailureKind::Condition
                        && self.requests.puts_wait()
                        && !self.is_latched() =>
                {
                    tracing::debug!(device = self.name, %failure, "pages of the map are waited for");
                }
                outcome => return outcome,
            }
        }
    }

    /// Gives the next root what was prepared.
    fn change_root(&self, root: &mut Root, chain: &Chain, changes: &Changes, close: bool) {
        if close {
            root.holder = Holder::default();
        }
        root.map = chain.map;
        root.objects.clone_from(&chain.objects);
        root.delta = chain.delta.iter().collect();
        if let (Some(position), Some(record)) = (root.journal, changes.journaled) {
            root.journal = Some(JournalPosition { record, epoch: self.epoch, ..position });
        }
    }

    /// Lets the map have the changes.
    fn apply(&self, chain: &mut Chain, changes: &Changes) {
        let state = &mut *self.state.write();
        for object in &changes.objects {
            state.objects.insert(ObjectEntry::new(*object));
            state.unpublished.remove(&object.id);
            chain.objects.push(*object);
        }
        let moved = changes.moved.iter().flat_map(|moved| state.map.still_at(&moved.run, moved.from));
        let moved: Vec<Run> = moved.collect();
        for run in changes.runs.iter().chain(&moved) {
            let before = state.map.apply(run);
            state.objects.moved(&before, run);
            match run.place {
                Some(_) => drop(chain.delta.replace(*run)),
                // Where nothing was, nothing has to be said.
                None => {
                    before.iter().for_each(|part| drop(chain.delta.replace(Run { place: None, ..*part })))
                }
            }
        }
        if !changes.runs.is_empty() {
            state.frozen = RunMap::default();
        }
    }

    /// Writes the pages of the map that changed, the directory and the object table.
    fn checkpoint_map(&self, chain: &mut Chain) -> std::result::Result<(), Failure> {
        self.touch_sparse_pages()?;
        let id = self.state.write().new_id(self);
        let (object, body, pages, map) = self.encode_map(id);
        let put = Request::Put { name: object.name(), body: vec![body], condition: Condition::None };
        self.requests.call(&put)?;
        let state = &mut *self.state.write();
        let live = 1 + pages.iter().filter(|(_, page)| page.is_some()).count() as u32;
        for page in state.map.written(pages) {
            state.objects.subtract(page.object, 1);
        }
        if let Some(before) = chain.map.replace(map) {
            state.objects.subtract(before.object, 1);
        }
        state.objects.insert(ObjectEntry { live, ..ObjectEntry::new(object) });
        chain.objects = vec![object];
        chain.delta = RunMap::default();
        Ok(())
    }

    /// The next map object, the pages in it, and how the root refers to it.
    fn encode_map(
        &self,
        id: ObjectId,
    ) -> (NewObject, Bytes, Vec<(PageNumber, Option<PageReference>)>, MapReference) {
        let state = self.state.read();
        let nonce = self.session;
        let header = Header { id, nonce, kind: ObjectKind::Map, blocks: 0, index: Vec::new() };
        let mut body = header.encode();
        let header_bytes = body.len() as u32;
        let mut directory = state.map.directory().clone();
        let mut pages = Vec::new();
        for (number, runs) in state.map.dirty() {
            let page = (!runs.is_empty()).then(|| {
                let (offset, length) = section(id, nonce, &mut body, &encode_page(number, runs));
                PageReference { object: id, offset, length }
            });
            match page {
                Some(page) => drop(directory.insert(number, page)),
                None => drop(directory.remove(&number)),
            }
            pages.push((number, page));
        }
        let directory = section(id, nonce, &mut body, &encode_directory(&directory));
        let objects = section(id, nonce, &mut body, &encode_objects(&state.objects));
        let bytes = body.len() as u32;
        let object = NewObject { id, nonce, kind: ObjectKind::Map, blocks: 0, header_bytes, bytes };
        (object, Bytes::from(body), pages, MapReference { object: id, nonce, directory, objects })
    }

    /// Lets the pages in the sparsest map objects be written again, if too little in them is live.
    fn touch_sparse_pages(&self) -> std::result::Result<(), Failure> {
        let pages: Vec<PageNumber> = {
            let state = self.state.read();
            let mut live: BTreeMap<ObjectId, u64> = BTreeMap::new();
            for page in state.map.directory().values() {
                *live.entry(page.object).or_default() += u64::from(page.length);
            }
            let stored: u64 = state.objects.usage().map_bytes;
            let wanted = 2 * live.values().sum::<u64>() + MAP_SLACK_BYTES;
            let mut sparse: Vec<(ObjectId, u64)> = live
                .iter()
                .filter_map(|(id, live)| {
                    let bytes = u64::from(state.objects.get(*id)?.object.bytes);
                    Some((*id, live * 1000 / bytes.max(1)))
                })
                .collect();
            sparse.sort_by_key(|(_, share)| *share);
            let count = if stored > wanted { sparse.len().div_ceil(2) } else { 0 };
            let chosen: Vec<ObjectId> = sparse[..count].iter().map(|(id, _)| *id).collect();
            let pages = state.map.directory().iter().filter(|(_, page)| chosen.contains(&page.object));
            pages.map(|(number, _)| *number).collect()
        };
        let ranges: Vec<Range<u64>> = pages.iter().map(|n| n.first_block()..n.first_block() + 1).collect();
        self.load_pages_to_publish(&ranges)?;
        let mut state = self.state.write();
        pages.iter().for_each(|number| state.map.touch(*number));
        Ok(())
    }
}
