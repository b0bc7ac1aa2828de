//! Pieces: key-value parts, value parts and node headers, encoded, written together, read and
//! verified.
//!
//! Protocol: to write, encode pieces under new ids (large values first, with
//! [`PieceWriter::write_values`]) and hand those that belong together to
//! [`PieceWriter::write_group`]; they get neighbouring blocks. To read, ask by id: what is returned
//! was verified against the checksum that the node translation table or the reference holds, now or
//! when it was cached.
//!
//! Invariants:
//! - a piece is registered after its bytes were written, and never written again;
//! - nothing that fails its checksum is returned, decoded or cached;
//! - the memory for decoded pieces and read-ahead stays within [`Pieces::set_capacity`].

mod buffers;
mod cache;
mod device_readahead;
mod filter;
mod frame;
mod part;
mod prefetch_queue;
mod read;
mod read_ahead;
mod values;
pub(crate) mod wire;
mod write;

pub(crate) use filter::Filter;
pub(crate) use frame::Encoded;
pub(crate) use part::{Part, PartBuilder, PartCursor};
pub(crate) use prefetch_queue::{PrefetchPlace, cost};
pub(crate) use read::LEAST_DIRECT_BYTES;
pub(crate) use read_ahead::PieceReadahead;
pub(crate) use values::Sums;

use crate::device::GuardedDevice;
use crate::space::Locator;
use crate::{PieceId, Result};
use bytes::Bytes;
use cache::{Cache, CacheKey, Cached};
use read_ahead::MAX_READ_AHEAD_BYTES;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use write::PieceWriter;

/// The pieces of one store.
pub(crate) struct Pieces {
    device: Arc<GuardedDevice>,
    locator: Arc<dyn Locator>,
    cache: Cache,
    /// What is read before a reader asks for it.
    pub(crate) read_ahead: Arc<PieceReadahead>,
    pub(crate) writer: PieceWriter,
    /// As it was last set.
    capacity: AtomicU64,
}

/// Figures about the cache.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheStats {
    /// Bytes of decoded pieces.
    pub(crate) bytes: u64,
    /// Bytes read ahead and not used yet, or just used.
    pub(crate) read_ahead: u64,
    /// Look-ups that found what they wanted.
    pub(crate) hits: u64,
    /// Look-ups that had to read.
    pub(crate) misses: u64,
}

impl Pieces {
    /// The pieces on `device` that `locator` knows, with `capacity` bytes of memory.
    pub(crate) fn new(device: Arc<GuardedDevice>, locator: Arc<dyn Locator>, capacity: u64) -> Self {
        let read_ahead =
            Arc::new(PieceReadahead::new(&device, read_ahead_share(capacity, device.read_ahead_bytes())));
        Self {
            cache: Cache::new(cache_share(capacity, device.read_ahead_bytes())),
            writer: PieceWriter::new(device.clone(), locator.clone(), read_ahead.clone()),
            read_ahead,
            device,
            locator,
            capacity: AtomicU64::new(capacity),
        }
    }

    /// Changes how much memory decoded pieces and read-ahead may take; what is too much goes at
    /// once. Changes of less than a 64th are left for later, so this may be called often.
    pub(crate) fn set_capacity(&self, capacity: u64) {
        let before = self.capacity.load(Ordering::Relaxed);
        if capacity.abs_diff(before) <= before / 64
            || self.capacity.compare_exchange(before, capacity, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let device_bytes = self.device.read_ahead_bytes();
        self.cache.set_capacity(cache_share(capacity, device_bytes));
        self.read_ahead.set_limits(read_ahead_share(capacity, device_bytes));
    }

    /// `Ok` if no read has found that part of the state that is read was deleted.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`](crate::ErrorKind::Gone).
    pub(crate) fn still_there(&self) -> Result<()> {
        self.device.still_there()
    }

    /// How many bytes of values the device wants announced at any time, so that it is never idle; 0
    /// if announcements change nothing.
    pub(crate) fn wanted_ahead(&self) -> u64 {
        self.device.read_ahead_bytes()
    }

    /// Figures. Cheap.
    pub(crate) fn stats(&self) -> CacheStats {
        let (bytes, hits, misses) = self.cache.figures();
        CacheStats { bytes, read_ahead: self.read_ahead.bytes(), hits, misses }
    }

    /// A key-value part.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if it is not what was written; what the
    /// device says.
    pub(crate) fn part(&self, id: PieceId) -> Result<Arc<Part>> {
        match self
            .cache
            .get_or_load(CacheKey::Piece(id), || Ok(Cached::Part(Arc::new(self.read_part(id)?))))?
        {
            Cached::Part(part) => Ok(part),
            Cached::Node(..) | Cached::Value(_) => Err(frame::not_a(id, "key-value part")),
        }
    }

    /// Keeps a part that was just written, as long as there is room.
    pub(crate) fn keep_part(&self, id: PieceId, part: Arc<Part>) {
        self.cache.insert(id, Cached::Part(part));
    }

    /// A node. `decode` makes it of its height and the body of its piece, and says how many bytes
    /// it takes in memory.
    ///
    /// # Errors
    /// As for [`Self::part`], and those of `decode`.
    pub(crate) fn node<T: Any + Send + Sync>(
        &self,
        id: PieceId,
        decode: impl FnOnce(u8, Bytes) -> Result<(Arc<T>, usize)>,
    ) -> Result<Arc<T>> {
        let cached = self.cache.get_or_load(CacheKey::Piece(id), || {
            let (height, body) = self.read_node(id)?;
            let (node, bytes) = decode(height, body)?;
            Ok(Cached::Node(node, bytes))
        })?;
        match cached {
            Cached::Node(node, _) => node.downcast().map_err(|_| frame::not_a(id, "node")),
            Cached::Part(_) | Cached::Value(_) => Err(frame::not_a(id, "node")),
        }
    }

    /// Keeps a node that was just written, as long as there is room; it takes `bytes` in memory.
    pub(crate) fn keep_node<T: Any + Send + Sync>(&self, id: PieceId, node: Arc<T>, bytes: usize) {
        self.cache.insert(id, Cached::Node(node, bytes));
    }

    /// Gives up the memory of a piece that will not be asked for. A cached part has handles on its
    /// value parts and keeps their blocks from being reused: so this is due when a part dies.
    pub(crate) fn forget(&self, id: PieceId) {
        self.cache.remove(id);
    }
}

/// Of `capacity`, the bytes for device readahead and those for the prefetch queue. Where
/// announcements keep a device busy, they are twice the `device_bytes` that it wants announced: a
/// reader uses one half while the other arrives.
fn read_ahead_share(capacity: u64, device_bytes: u64) -> (u64, u64) {
    let for_queue = match device_bytes {
        0 => (capacity / 16).min(MAX_READ_AHEAD_BYTES),
        bytes => (capacity / 8).min(bytes.saturating_mul(2)),
    };
    ((capacity / 8).min(MAX_READ_AHEAD_BYTES), for_queue)
}

/// Of `capacity`, the bytes for decoded pieces.
fn cache_share(capacity: u64, device_bytes: u64) -> u64 {
    let (device, queue) = read_ahead_share(capacity, device_bytes);
    capacity - device - queue
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pieces({:?}, {:?})", self.device, self.stats())
    }
}

#[cfg(test)]
mod tests;
