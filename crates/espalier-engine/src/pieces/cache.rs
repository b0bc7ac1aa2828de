//! Piece cache: decoded nodes and parts stay in memory, within a budget in bytes.
//!
//! The key is the piece id, which names one content for ever: an entry can be useless, never wrong.

use super::part::Part;
use crate::{PieceId, Result};
use quick_cache::sync::Cache as QuickCache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};
use std::any::Any;
use std::sync::Arc;

/// A decoded piece.
#[derive(Clone)]
pub(super) enum Cached {
    /// A key-value part.
    Part(Arc<Part>),
    /// A node, as the tree sees it, and the bytes it takes.
    Node(Arc<dyn Any + Send + Sync>, usize),
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<PieceId, Cached> for ByBytes {
    fn weight(&self, _: &PieceId, entry: &Cached) -> u64 {
        // 128 bytes for the cache's own tables.
        128 + match entry {
            Cached::Part(part) => part.memory() as u64,
            Cached::Node(_, bytes) => *bytes as u64,
        }
    }
}

/// Keeps all that a request evicts until the request has given up its lock: dropping a node may
/// drop the last handle on a piece, and a piece that dies is removed from this very cache.
#[derive(Clone)]
struct DropUnlocked;

impl Lifecycle<PieceId, Cached> for DropUnlocked {
    type RequestState = Vec<Cached>;

    fn on_evict(&self, evicted: &mut Self::RequestState, _: PieceId, entry: Cached) {
        evicted.push(entry);
    }
}

/// The least capacity of one shard in bytes: entries that are heavier than a shard are not kept.
const SHARD_BYTES: u64 = 8 << 20;

/// Decoded pieces.
pub(super) struct Cache {
    entries: QuickCache<PieceId, Cached, ByBytes, DefaultHashBuilder, DropUnlocked>,
}

impl Cache {
    /// Of `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        let shards = usize::try_from(capacity / SHARD_BYTES).unwrap_or(usize::MAX).clamp(1, 16);
        // About the size of a part, which is what most entries are.
        let entries = usize::try_from(capacity / (16 << 10)).unwrap_or(usize::MAX).max(64);
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity(entries)
            .weight_capacity(capacity)
            .build();
        let entries = match options {
            Ok(options) => {
                QuickCache::with_options(options, ByBytes, DefaultHashBuilder::default(), DropUnlocked)
            }
            Err(_) => {
                QuickCache::with(entries, capacity, ByBytes, DefaultHashBuilder::default(), DropUnlocked)
            }
        };
        Self { entries }
    }

    pub(super) fn set_capacity(&self, capacity: u64) {
        self.entries.set_capacity(capacity);
    }

    pub(super) fn contains(&self, id: PieceId) -> bool {
        self.entries.contains_key(&id)
    }

    /// What is kept under `id`, or what `load` gives; of many callers one loads, the others wait.
    pub(super) fn get_or_load(&self, id: PieceId, load: impl FnOnce() -> Result<Cached>) -> Result<Cached> {
        self.entries.get_or_insert_with(&id, load)
    }

    pub(super) fn insert(&self, id: PieceId, entry: Cached) {
        self.entries.insert(id, entry);
    }

    pub(super) fn remove(&self, id: PieceId) {
        self.entries.remove(&id);
    }

    /// Bytes kept, hits and misses.
    pub(super) fn figures(&self) -> (u64, u64, u64) {
        (self.entries.weight(), self.entries.hits(), self.entries.misses())
    }
}
