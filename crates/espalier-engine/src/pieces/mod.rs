//! Pieces: key-value parts, value parts and node headers, encoded, written together, read and
//! verified.
//!
//! Protocol: to write, encode pieces under ids from [`Pieces::new_id`] (large values first, with
//! [`Pieces::write_values`]) and hand those that belong together to [`Pieces::write_group`]; they
//! get neighbouring blocks. To read, ask by id: what is returned was verified against the checksum
//! that the node translation table or the reference holds, now or when it was cached.
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
mod values;
pub(crate) mod wire;
mod write;

pub(crate) use filter::Filter;
pub(crate) use frame::Encoded;
pub(crate) use part::{Part, PartBuilder, PartCursor};
pub(crate) use prefetch_queue::{PrefetchPlace, cost};
pub(crate) use read::LEAST_DIRECT_BYTES;
pub(crate) use values::Sums;

use crate::device::GuardedDevice;
use crate::space::Locator;
use crate::{PieceId, Result};
use buffers::Buffers;
use bytes::Bytes;
use cache::{Cache, Cached};
use device_readahead::DeviceReadahead;
use prefetch_queue::PrefetchQueue;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most memory for device readahead, and for the prefetch queue, in bytes each; with little
/// memory an eighth of what there is, and a sixteenth.
const MAX_READ_AHEAD_BYTES: u64 = 32 << 20;

/// The pieces of one store.
pub(crate) struct Pieces {
    device: Arc<GuardedDevice>,
    locator: Arc<dyn Locator>,
    cache: Cache,
    device_readahead: DeviceReadahead,
    prefetch_queue: PrefetchQueue,
    /// Memory that is read into.
    buffers: Arc<Buffers>,
    /// As it was last set.
    capacity: AtomicU64,
    /// Value parts are cut before they get longer than this, in bytes.
    value_part: AtomicUsize,
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
        let (cache, readahead, prefetch) = split(capacity);
        let buffers = Buffers::new(readahead + prefetch);
        Self {
            cache: Cache::new(cache),
            device_readahead: DeviceReadahead::new(device.clone(), buffers.clone(), readahead),
            prefetch_queue: PrefetchQueue::new(device.clone(), buffers.clone(), prefetch),
            buffers,
            device,
            locator,
            capacity: AtomicU64::new(capacity),
            value_part: AtomicUsize::new(values::MAX_VALUE_PART_BYTES),
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
        let (cache, readahead, prefetch) = split(capacity);
        self.cache.set_capacity(cache);
        self.device_readahead.set_limit(readahead);
        self.prefetch_queue.set_limit(prefetch);
        self.buffers.keep(readahead + prefetch);
    }

    /// Bounds the length of new value parts, in bytes: what is live in one must fit into what a
    /// small store keeps free.
    pub(crate) fn bound_value_parts(&self, bytes: usize) {
        self.value_part.store(bytes.clamp(64 << 10, values::MAX_VALUE_PART_BYTES), Ordering::Relaxed);
    }

    /// Figures. Cheap.
    pub(crate) fn stats(&self) -> CacheStats {
        let (bytes, hits, misses) = self.cache.figures();
        CacheStats {
            bytes,
            read_ahead: self.device_readahead.bytes() + self.prefetch_queue.bytes(),
            hits,
            misses,
        }
    }

    /// An id for a piece to be written.
    pub(crate) fn new_id(&self) -> PieceId {
        self.locator.new_id()
    }

    /// A key-value part.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if it is not what was written; what the
    /// device says.
    pub(crate) fn part(&self, id: PieceId) -> Result<Arc<Part>> {
        match self.cache.get_or_load(id, || Ok(Cached::Part(Arc::new(self.read_part(id)?))))? {
            Cached::Part(part) => Ok(part),
            Cached::Node(..) => Err(frame::not_a(id, "key-value part")),
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
        let cached = self.cache.get_or_load(id, || {
            let (height, body) = self.read_node(id)?;
            let (node, bytes) = decode(height, body)?;
            Ok(Cached::Node(node, bytes))
        })?;
        match cached {
            Cached::Node(node, _) => node.downcast().map_err(|_| frame::not_a(id, "node")),
            Cached::Part(_) => Err(frame::not_a(id, "node")),
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

    /// Calls `wake` when there is work for [`Self::read_ahead_step`]. Without it, readers read
    /// ahead themselves.
    pub(crate) fn set_read_ahead_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.device_readahead.set_wake(Box::new(wake));
    }

    /// True if [`Self::read_ahead_step`] has something to do.
    pub(crate) fn has_read_ahead(&self) -> bool {
        self.buffers.is_wanted() || self.prefetch_queue.has_queued() || self.device_readahead.has_queued()
    }

    /// Much will be read. True if [`Self::read_ahead_step`] has something to do for that.
    pub(crate) fn expect_reads(&self) -> bool {
        self.buffers.want()
    }

    /// Reads one window or prefetch extent ahead of some reader; false if there is none to read.
    pub(crate) fn read_ahead_step(&self) -> bool {
        // That is over soon, and what is read afterwards finds the memory.
        self.buffers.provide() || self.prefetch_queue.step() || self.device_readahead.step()
    }

    /// The memory in bytes that [`Self::prefetch`] still has, and that it has if nothing is queued.
    pub(crate) fn prefetch_room(&self) -> (u64, u64) {
        self.prefetch_queue.room()
    }

    /// Enqueues what the scan `scan` will want. A hint.
    pub(crate) fn prefetch(&self, scan: u64, places: Vec<PrefetchPlace>) {
        self.prefetch_queue.enqueue(scan, places);
    }

    /// The scan `scan` wants nothing any more that had its turn before `turn`.
    pub(crate) fn passed(&self, scan: u64, turn: u64) {
        self.prefetch_queue.passed(scan, turn);
    }
}

/// Divides memory between cache, device readahead, and prefetch queue.
fn split(capacity: u64) -> (u64, u64, u64) {
    let (readahead, prefetch) =
        ((capacity / 8).min(MAX_READ_AHEAD_BYTES), (capacity / 16).min(MAX_READ_AHEAD_BYTES));
    (capacity - readahead - prefetch, readahead, prefetch)
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pieces({:?}, {:?})", self.device, self.stats())
    }
}

#[cfg(test)]
mod tests;
