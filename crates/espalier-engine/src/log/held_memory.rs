//! Held memory: what batches take in memory until the log has written them.

use super::LoggedOp;
use crate::model::batch::op_bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that an operation takes beside its key and what it carries: itself, and what an allocator
/// adds to two or three pieces of memory.
const OPERATION_BYTES: usize = size_of::<LoggedOp>() + 64;

/// Counts the memory of a batch while it lives.
pub(super) struct HeldMemory {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl HeldMemory {
    /// Adds what `ops` take to `total`: without large values, which others hold as well and count,
    /// and with what they take once more when they are encoded.
    pub(super) fn of(total: &Arc<AtomicU64>, ops: &[LoggedOp]) -> Self {
        let bytes = ops.iter().map(|op| OPERATION_BYTES + 2 * small_bytes(op)).sum::<usize>() as u64;
        total.fetch_add(bytes, Ordering::Relaxed);
        Self { total: total.clone(), bytes }
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn small_bytes(op: &LoggedOp) -> usize {
    match op {
        LoggedOp::Point { key, op, .. } if op.large_values().is_empty() => key.len() + op_bytes(op),
        LoggedOp::Point { key, .. } => key.len(),
        LoggedOp::Range { range, .. } => range.start.len() + range.end.as_ref().map_or(0, |end| end.len()),
        LoggedOp::Clone { source, destination, .. } => source.len() + destination.len(),
        LoggedOp::Superseded => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::batch::Batch;
    use crate::model::ids::IndexId;

    #[test]
    fn batches_count_while_they_live() {
        let total = Arc::<AtomicU64>::default();
        let index = IndexId { volume: 1, index: 0 };
        let held = |batch: &Batch| HeldMemory::of(&total, &batch.ops);
        let (mut small, mut large) = (Batch::new(), Batch::new());
        small.insert(index, b"key", vec![0; 100]);
        large.insert(index, b"key", vec![0; 1 << 20]);
        let small = held(&small);
        let bytes = total.load(Ordering::Relaxed);
        assert!((200..500).contains(&bytes), "{bytes}");
        let large = held(&large);
        assert!(total.load(Ordering::Relaxed) < 2 * bytes, "a large value counts elsewhere");
        drop(small);
        drop(large);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }
}
