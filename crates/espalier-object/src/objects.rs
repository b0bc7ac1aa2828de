//! Object table: the objects that a root names, and what of each is live.
//!
//! Invariant: between two roots, the live blocks of a segment are those that the map has in it, and
//! the live sections of a map object are its pages that the directory names, and one more for the
//! object that the root names.

use crate::format::{FRAME_BLOCKS, NewObject, ObjectId, ObjectKind, frame_bytes};
use crate::runs::Run;
use espalier_storage::BLOCK;
use std::collections::BTreeMap;
use std::ops::Range;

/// One object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectEntry {
    /// What never changes.
    pub(crate) object: NewObject,
    /// Blocks or sections in use.
    pub(crate) live: u32,
    /// A time of the server's clock at which nothing was in use any more.
    pub(crate) died: Option<u64>,
}

impl ObjectEntry {
    /// An object of which nothing is in use yet.
    pub(crate) fn new(object: NewObject) -> Self {
        Self { object, live: 0, died: None }
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        self.object.name()
    }

    /// True if nothing in it is in use.
    pub(crate) fn is_dead(&self) -> bool {
        self.live == 0
    }
}

impl NewObject {
    /// The object's name.
    pub(crate) fn name(&self) -> String {
        self.id.name(self.kind, self.nonce)
    }

    /// Where some frames lie in it, as far as it has them.
    pub(crate) fn frames_at(&self, frames: Range<u32>) -> Range<u64> {
        let at = |frame: u32| {
            let offset = u64::from(self.header_bytes) + u64::from(frame) * frame_bytes(FRAME_BLOCKS) as u64;
            offset.min(u64::from(self.bytes))
        };
        at(frames.start)..at(frames.end)
    }
}

/// All objects, by number.
#[derive(Debug, Default)]
pub(crate) struct ObjectTable(BTreeMap<ObjectId, ObjectEntry>);

/// What is stored, and what of it is in use.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Segments that have live blocks.
    pub segments: u64,
    /// Their bytes.
    pub segment_bytes: u64,
    /// Bytes of the blocks in them that are live.
    pub live_bytes: u64,
    /// Map objects in use.
    pub map_objects: u64,
    /// Their bytes.
    pub map_bytes: u64,
    /// Objects that wait for their grace time to pass.
    pub dead_objects: u64,
    /// Their bytes.
    pub dead_bytes: u64,
    /// Of the segments, those that compaction found to be damaged or missing when it tried them
    /// last: they stay as they are until it tries them again.
    pub unmovable_segments: u64,
}

impl ObjectTable {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ObjectEntry> {
        self.0.values()
    }

    /// Those that were made last come first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &ObjectEntry> {
        self.0.values().rev()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ObjectEntry> {
        self.0.values_mut()
    }

    pub(crate) fn get(&self, id: ObjectId) -> Option<&ObjectEntry> {
        self.0.get(&id)
    }

    /// Adds an object.
    pub(crate) fn insert(&mut self, entry: ObjectEntry) {
        self.0.insert(entry.object.id, entry);
    }

    /// Forgets an object that was deleted.
    pub(crate) fn remove(&mut self, id: ObjectId) {
        self.0.remove(&id);
    }

    /// So many more blocks or sections of an object are in use.
    pub(crate) fn add(&mut self, id: ObjectId, count: u32) {
        if let Some(entry) = self.0.get_mut(&id) {
            entry.live = entry.live.saturating_add(count);
            entry.died = None;
        }
    }

    /// So many fewer.
    pub(crate) fn subtract(&mut self, id: ObjectId, count: u32) {
        if let Some(entry) = self.0.get_mut(&id) {
            debug_assert!(entry.live >= count, "{id} has {} live, {count} fewer are wanted", entry.live);
            entry.live = entry.live.saturating_sub(count);
        }
    }

    /// So many are in use; returns what was said before, if that is another number.
    pub(crate) fn correct(&mut self, id: ObjectId, live: u32) -> Option<u32> {
        let entry = self.0.get_mut(&id).filter(|entry| entry.live != live)?;
        if live > 0 {
            entry.died = None;
        }
        Some(std::mem::replace(&mut entry.live, live))
    }

    /// Blocks moved: away from `before`, to where `run` says.
    pub(crate) fn moved(&mut self, before: &[Run], run: &Run) {
        for (object, blocks) in before.iter().filter_map(|run| Some((run.place?.object, run.blocks))) {
            self.subtract(object, blocks);
        }
        if let Some(place) = run.place {
            self.add(place.object, run.blocks);
        }
    }

    /// What is stored.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for entry in self.iter() {
            let bytes = u64::from(entry.object.bytes);
            match (entry.is_dead(), entry.object.kind) {
                (true, _) => {
                    usage.dead_objects += 1;
                    usage.dead_bytes += bytes;
                }
                (false, ObjectKind::Data) => {
                    usage.segments += 1;
                    usage.segment_bytes += bytes;
                    usage.live_bytes += u64::from(entry.live) * BLOCK as u64;
                }
                (false, ObjectKind::Map) => {
                    usage.map_objects += 1;
                    usage.map_bytes += bytes;
                }
            }
        }
        usage
    }
}
