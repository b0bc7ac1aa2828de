//! What all trees of a store share.

use crate::model::ids::PieceId;
use crate::model::op::MergeFunctions;
use crate::model::options::{Compression, Tuning};
use crate::pieces::Pieces;
use crate::space::Locator;
use crate::tree::memory::TreeMemory;
use crate::tree::policy::TreePolicy;
use crate::tree::unflushable::UnflushableEdges;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What all trees of a store share.
pub(crate) struct Trees {
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) locator: Arc<dyn Locator>,
    pub(crate) merge: MergeFunctions,
    pub(crate) tuning: Tuning,
    pub(crate) compression: Compression,
    pub(crate) memory: TreeMemory,
    /// How much of a leaf, in 256ths, may be on its way to it in large values: what they replace
    /// takes space until they have come down, so this depends on how much is left.
    pub(crate) patience: AtomicU64,
    /// Messages that memtables have handed on.
    pub(crate) absorbed: AtomicU64,
    /// Value parts that a sweep empties.
    pub(crate) sparse: Mutex<HashSet<PieceId>>,
    pub(crate) unflushable: UnflushableEdges,
    /// Space is short: do no more at a time than must be done.
    pub(crate) lean: AtomicBool,
    /// The store is being closed: operations leave out what need not be done.
    pub(crate) closing: AtomicBool,
    /// While less than this is dirty, runs may pile up on an edge: recovery leaves them to the
    /// flushes that follow.
    pub(crate) unmerged: AtomicUsize,
}

impl Trees {
    /// The policy of the moment.
    pub(crate) fn policy(&self) -> TreePolicy {
        TreePolicy {
            low_space: self.lean.load(Relaxed),
            closing: self.closing.load(Relaxed),
            value_quota: self.patience.load(Relaxed),
            unmerged_bytes: self.unmerged.load(Relaxed),
        }
    }
}
