//! Flush backlog: what waits on the edges of roots, for which writers may have to wait.
//!
//! Protocol: absorbing and flushing note what they leave on the edges; back-pressure asks for
//! [`FlushBacklog::fullness`] before a batch is accepted. A flush that found no room to be written
//! is noted as refused until the next checkpoint, as nothing else makes room; meanwhile writers do
//! not wait for flushes.

use super::accounting::SpaceAccounting;
use crate::signal::WorkSignal;
use crate::space::Space;
use espalier_storage::BLOCK;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// When space is low, writers wait while an edge of a root has more than this many times what makes
/// it heavy: the more lies there, the more room its flush takes. An edge is heavy with at most an
/// eighth of the pool, so what waits can be flushed.
const MAX_HEAVY_EDGES: usize = 3;

/// Writers wait while large values that wait on roots take more than one part in so many of the
/// free space: what they replace is free only when they have come down. (A bound for each edge made
/// them wait for seconds as soon as a memtable with many values was absorbed, with half of the
/// store free. A quarter made them wait for whole flushes when a memtable full of references was,
/// as after a hundred renames of files of 4 MiB.)
const VALUE_SHARE_OF_FREE: u64 = 2;

/// See the [module](self).
pub(crate) struct FlushBacklog {
    space: Arc<Space>,
    accounting: Arc<SpaceAccounting>,
    signal: Arc<WorkSignal>,
    /// Bytes on an edge beyond which writers wait when space is low.
    most_edge_bytes: f64,
    /// Bytes on the heaviest edge of a root, when it was last looked at.
    edge_bytes: AtomicU64,
    /// Large values on the edges of roots, in hundredths of what may be there.
    value_percent: AtomicU64,
    /// Checkpoints there had been when a flush did not fit; until the next one, none will.
    refused_at: AtomicU64,
}

impl FlushBacklog {
    /// Nothing waits; an edge with `heavy` bytes is flushed.
    pub(crate) fn new(
        space: Arc<Space>,
        accounting: Arc<SpaceAccounting>,
        signal: Arc<WorkSignal>,
        heavy: usize,
    ) -> Self {
        Self {
            space,
            accounting,
            signal,
            most_edge_bytes: (MAX_HEAVY_EDGES * heavy.max(1)) as f64,
            edge_bytes: AtomicU64::new(0),
            value_percent: AtomicU64::new(0),
            refused_at: AtomicU64::new(u64::MAX),
        }
    }

    /// A tree has changed: `bytes` wait on the heaviest edge of a root.
    pub(crate) fn note_edge(&self, bytes: u64) {
        self.accounting.recount();
        if self.edge_bytes.swap(bytes, Ordering::Relaxed) > bytes {
            self.signal.note_progress();
        }
    }

    /// Bytes on the heaviest edge of a root, when it was last looked at; 0 if none is heavy.
    pub(crate) fn edge_bytes(&self) -> u64 {
        self.edge_bytes.load(Ordering::Relaxed)
    }

    /// So many bytes of large values wait on roots.
    pub(crate) fn note_values(&self, bytes: u64) {
        let most = (self.space.free_blocks() * BLOCK as u64 / VALUE_SHARE_OF_FREE).max(1);
        self.value_percent.store(bytes.saturating_mul(100) / most, Ordering::Relaxed);
    }

    /// How much waits on the edges of roots: 1 is as much as writers may leave behind. Messages
    /// count when space is low. 0 if flushing has no room, for then waiting does not help.
    pub(crate) fn fullness(&self) -> f64 {
        if self.is_refused() {
            return 0.0;
        }
        if !self.accounting.is_low() {
            return self.value_percent.load(Ordering::Relaxed) as f64 / 100.0;
        }
        self.edge_bytes.load(Ordering::Relaxed) as f64 / self.most_edge_bytes
    }

    /// True if a flush did not fit and no checkpoint has been made since.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused_at.load(Ordering::Acquire) == self.accounting.checkpoints()
    }

    /// A flush does not fit.
    pub(crate) fn refuse(&self) {
        self.refused_at.store(self.accounting.checkpoints(), Ordering::Release);
    }

    /// There is more room than there was: what did not fit may fit now.
    pub(crate) fn forget_refusal(&self) {
        self.refused_at.store(u64::MAX, Ordering::Release);
    }
}
