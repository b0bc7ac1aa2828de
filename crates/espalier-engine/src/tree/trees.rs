//! What all trees of a store share: pieces, merge functions, tuning, counters.

use crate::lock_order::{RankedMutex, rank};
use crate::model::ids::PieceId;
use crate::model::op::MergeFunctions;
use crate::model::options::{Compression, Tuning};
use crate::pieces::Pieces;
use crate::space::Locator;
use crate::tree::memory::TreeMemory;
use crate::tree::unflushable::UnflushableEdges;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What all trees of a store share.
pub(crate) struct Trees {
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) locator: Arc<dyn Locator>,
    pub(crate) merge: MergeFunctions,
    pub(crate) tuning: Tuning,
    pub(crate) compression: Compression,
    pub(crate) memory: TreeMemory,
    /// Messages that memtables have handed on.
    pub(crate) absorbed: AtomicU64,
    /// Sparse value parts, out of which live values are relocated.
    pub(crate) sparse: RankedMutex<HashSet<PieceId>, { rank::SPARSE_PARTS }>,
    pub(crate) unflushable: UnflushableEdges,
}
