//! Tree memory: bytes of parts and large values in memory that the device does not have yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Counters that parts and large values change while they are in memory.
#[derive(Default)]
pub(crate) struct TreeMemory {
    /// Bytes of parts that the device does not have, and of what headers that it does not have say
    /// of other parts.
    pub(crate) dirty_bytes: Arc<AtomicUsize>,
    /// Bytes of large values in memory: on their way to the log, in memtables, or in parts that the
    /// device does not have.
    pub(crate) value_bytes: Arc<AtomicUsize>,
    /// Blocks that nodes and parts take which count as unwritten
    /// ([`Trees::new_unwritten_blocks`](super::Trees::new_unwritten_blocks)).
    pub(crate) counted_blocks: Arc<AtomicUsize>,
    /// Bytes of large values that the log has written to their place since a commit last looked.
    pub(crate) placed_value_bytes: Arc<AtomicU64>,
}

/// Adds to a count of bytes or blocks while it lives.
pub(crate) struct Charge {
    total: Arc<AtomicUsize>,
    count: usize,
}

impl Charge {
    pub(super) fn new(total: &Arc<AtomicUsize>, count: usize) -> Self {
        total.fetch_add(count, Relaxed);
        Self { total: total.clone(), count }
    }

    /// Takes up to `count` of it apart.
    pub(super) fn split_off(&mut self, count: usize) -> Self {
        let count = count.min(self.count);
        self.count -= count;
        Self { total: self.total.clone(), count }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.fetch_sub(self.count, Relaxed);
    }
}
