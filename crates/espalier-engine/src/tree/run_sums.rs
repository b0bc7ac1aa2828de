//! Sums over the parts of a run, computed once.
//!
//! Nodes name the same runs as one root follows the other, and an edge above thousands of clones
//! names thousands of parts. Asked of each part again with each clone, what an edge weighs and what
//! a header takes would be most of the time.
//!
//! Invariants: a run changes only before it is part of a node, and a copy begins without sums. What
//! a run weighs never changes. What it takes in a header becomes less when its parts are stored:
//! the sum is never too small, and is computed again after a header that names the run was written.
//! A run that counts has only parts that count, and a stored one only parts that are stored.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// See the [module](self).
#[derive(Default)]
pub(super) struct RunSums {
    weight: OnceLock<Weight>,
    /// Bytes in a header plus one; 0 if that is not known.
    header_bytes: AtomicUsize,
    is_counted: AtomicBool,
    is_stored: AtomicBool,
}

/// What the parts of a run weigh.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Weight {
    /// Bytes of their bodies.
    pub(super) bytes: u64,
    /// Bytes of the large values that they refer to.
    pub(super) value_bytes: u64,
}

impl RunSums {
    /// What the parts weigh: what `sum` gave when it was first asked.
    pub(super) fn weight(&self, sum: impl FnOnce() -> Weight) -> Weight {
        *self.weight.get_or_init(sum)
    }

    /// Bytes that the run takes in a header, at most: what `reckon` gave, unless it was forgotten.
    pub(super) fn header_bytes(&self, reckon: impl FnOnce() -> usize) -> usize {
        match self.header_bytes.load(Ordering::Relaxed) {
            0 => {
                let bytes = reckon();
                self.header_bytes.store(bytes.saturating_add(1), Ordering::Relaxed);
                bytes
            }
            known => known - 1,
        }
    }

    /// Parts have been stored: they may take less in a header now.
    pub(super) fn forget_header_bytes(&self) {
        self.header_bytes.store(0, Ordering::Relaxed);
    }

    /// True for the first caller: from now on all parts are in a sum of what is unwritten.
    pub(super) fn begins_to_count(&self) -> bool {
        !self.is_counted.swap(true, Ordering::Relaxed)
    }

    /// True if all parts are in a sum of what is unwritten.
    pub(super) fn counts(&self) -> bool {
        self.is_counted.load(Ordering::Relaxed)
    }

    /// True if all parts are known to be stored.
    pub(super) fn is_stored(&self) -> bool {
        self.is_stored.load(Ordering::Relaxed)
    }

    /// All parts were found to be stored.
    pub(super) fn note_stored(&self) {
        self.is_stored.store(true, Ordering::Relaxed);
    }
}

/// A copy may change.
impl Clone for RunSums {
    fn clone(&self) -> Self {
        Self::default()
    }
}
