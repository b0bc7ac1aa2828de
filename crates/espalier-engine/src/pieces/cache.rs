//! Piece cache: decoded nodes and parts stay in memory, and large values that were read whole,
//! within a budget in bytes.
//!
//! The key is the piece id, and for a value its place in the piece. An id names one content for
//! ever: an entry can be useless, never wrong. A value of a value part that died is useless, and
//! stays until it is evicted.

use super::part::Part;
use crate::{PieceId, Result};
use bytes::Bytes;
use quick_cache::sync::Cache as QuickCache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CacheKey {
    /// A key-value part, or a node.
    Piece(PieceId),
    /// The large value that begins at this byte of a value part.
    Value(PieceId, u32),
}

/// A decoded piece, or a value.
#[derive(Clone)]
pub(super) enum Cached {
    /// A key-value part.
    Part(Arc<Part>),
    /// A node, as the tree sees it, and the bytes it takes.
    Node(Arc<dyn Any + Send + Sync>, usize),
    /// All bytes of a large value.
    Value(Bytes),
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<CacheKey, Cached> for ByBytes {
    fn weight(&self, _: &CacheKey, entry: &Cached) -> u64 {
        // 128 bytes for the cache's own tables.
        128 + match entry {
            Cached::Part(part) => part.memory() as u64,
            Cached::Node(_, bytes) => *bytes as u64,
            Cached::Value(bytes) => bytes.len() as u64,
        }
    }
}

/// Keeps all that a request evicts until the request has given up its lock: dropping a node may
/// drop the last handle on a piece, and a piece that dies is removed from this very cache.
#[derive(Clone)]
struct DropUnlocked;

impl Lifecycle<CacheKey, Cached> for DropUnlocked {
    type RequestState = Vec<Cached>;

    fn on_evict(&self, evicted: &mut Self::RequestState, _: CacheKey, entry: Cached) {
        evicted.push(entry);
    }
}

/// The least capacity of one shard in bytes: entries that are heavier than a shard are not kept.
const SHARD_BYTES: u64 = 8 << 20;

/// Decoded pieces and values.
pub(super) struct Cache {
    entries: QuickCache<CacheKey, Cached, ByBytes, DefaultHashBuilder, DropUnlocked>,
    /// A value was kept: before, no read need look for one.
    has_values: AtomicBool,
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
        Self { entries, has_values: AtomicBool::new(false) }
    }

    pub(super) fn set_capacity(&self, capacity: u64) {
        self.entries.set_capacity(capacity);
    }

    pub(super) fn contains(&self, id: PieceId) -> bool {
        self.entries.contains_key(&CacheKey::Piece(id))
    }

    /// What is kept under `key`, or what `load` gives; of many callers one loads, the others wait.
    pub(super) fn get_or_load(&self, key: CacheKey, load: impl FnOnce() -> Result<Cached>) -> Result<Cached> {
        self.entries.get_or_insert_with(&key, load)
    }

    /// The value that begins there, if it is kept.
    pub(super) fn value(&self, id: PieceId, offset: u32) -> Option<Bytes> {
        // A value that is not kept is no miss: most readers do not expect it to be.
        if !self.has_value(id, offset) {
            return None;
        }
        match self.entries.get(&CacheKey::Value(id, offset)) {
            Some(Cached::Value(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// True if the value that begins there is kept.
    pub(super) fn has_value(&self, id: PieceId, offset: u32) -> bool {
        self.has_values.load(Ordering::Relaxed) && self.entries.contains_key(&CacheKey::Value(id, offset))
    }

    /// Keeps the value that begins there.
    pub(super) fn keep_value(&self, id: PieceId, offset: u32, bytes: Bytes) {
        self.has_values.store(true, Ordering::Relaxed);
        self.entries.insert(CacheKey::Value(id, offset), Cached::Value(bytes));
    }

    /// As [`Self::get_or_load`] of a value.
    pub(super) fn value_or_load(
        &self,
        (id, offset): (PieceId, u32),
        load: impl FnOnce() -> Result<Bytes>,
    ) -> Result<Cached> {
        self.has_values.store(true, Ordering::Relaxed);
        self.get_or_load(CacheKey::Value(id, offset), || load().map(Cached::Value))
    }

    pub(super) fn insert(&self, id: PieceId, entry: Cached) {
        self.entries.insert(CacheKey::Piece(id), entry);
    }

    pub(super) fn remove(&self, id: PieceId) {
        self.entries.remove(&CacheKey::Piece(id));
    }

    /// Bytes kept, hits and misses.
    pub(super) fn figures(&self) -> (u64, u64, u64) {
        (self.entries.weight(), self.entries.hits(), self.entries.misses())
    }
}
