//! Unwritten memory: bytes of nodes, parts and values that the device does not have.
//!
//! What only snapshots hold of it is *pinned*: newer nodes and values have replaced it, so no work
//! brings it to the device, and writers must not wait for that. Checkpoints find out how much it
//! is; it can only become less until the next one.

use crate::tree::Trees;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the [module](self).
pub(crate) struct UnwrittenMemory {
    trees: Arc<Trees>,
    pinned_nodes: AtomicUsize,
    pinned_values: AtomicUsize,
}

impl UnwrittenMemory {
    /// Of these trees.
    pub(crate) fn new(trees: Arc<Trees>) -> Self {
        Self { trees, pinned_nodes: AtomicUsize::new(0), pinned_values: AtomicUsize::new(0) }
    }

    /// Bytes of nodes, parts and large values in memory that the device does not have, or not for
    /// good, and that work can bring there.
    pub(crate) fn bytes(&self) -> u64 {
        let values = self.trees.memory.value_bytes.load(Ordering::Relaxed);
        (self.node_bytes() + values - pinned_of(&self.pinned_values, values)) as u64
    }

    /// Bytes of nodes and parts that the device does not have, and that a checkpoint would write.
    pub(crate) fn node_bytes(&self) -> usize {
        let dirty = self.trees.memory.dirty_bytes.load(Ordering::Relaxed);
        dirty - pinned_of(&self.pinned_nodes, dirty)
    }

    /// Bytes that only snapshots hold, as far as is known.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        (self.pinned_nodes.load(Ordering::Relaxed) + self.pinned_values.load(Ordering::Relaxed)) as u64
    }

    /// Only snapshots hold so many bytes of nodes and parts, and of values.
    pub(crate) fn set_pinned(&self, nodes: usize, values: usize) {
        self.pinned_values.store(values, Ordering::Relaxed);
        self.pinned_nodes.store(nodes, Ordering::Relaxed);
    }
}

/// How many of `all` bytes are pinned; never more again, for what snapshots let go of is not pinned
/// any more.
fn pinned_of(pinned: &AtomicUsize, all: usize) -> usize {
    pinned.fetch_min(all, Ordering::Relaxed).min(all)
}
