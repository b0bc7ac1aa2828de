//! Checkpoint state: what checkpoints hand on to each other.

use crate::index::catalog::StoredRoot;
use crate::lock_order::{RankedMutex, rank};
use crate::model::ids::{IndexId, PieceId, Reference};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The state as of the last checkpoint.
#[derive(Default)]
pub(crate) struct CheckpointState {
    /// The counted root of each index.
    pub(crate) roots: BTreeMap<IndexId, StoredRoot>,
    /// Nodes without references whose own references are still counted.
    pub(crate) reclaim: Vec<PieceId>,
    /// Those of them that cannot be read, and so not be taken apart: until the store is opened
    /// again no checkpoint tries to.
    pub(super) unreadable: HashSet<PieceId>,
    /// Headers on the device whose references are not counted, with what they refer to.
    pub(super) uncounted: HashMap<PieceId, Vec<Reference>>,
}

impl CheckpointState {
    /// The state of a store that has just been opened.
    pub(crate) fn new(roots: BTreeMap<IndexId, StoredRoot>, reclaim: Vec<PieceId>) -> Self {
        Self { roots, reclaim, ..Self::default() }
    }

    /// The same with headers on the device that are not counted yet.
    pub(crate) fn with_uncounted(mut self, uncounted: HashMap<PieceId, Vec<Reference>>) -> Self {
        self.uncounted = uncounted;
        self
    }

    fn nodes(&self) -> BTreeMap<IndexId, PieceId> {
        self.roots.iter().filter_map(|(id, root)| root.node.map(|node| (*id, node))).collect()
    }
}

/// The roots that the last checkpoint has counted, for those that cannot wait for a checkpoint
/// under way.
pub(crate) struct CountedRoots {
    /// `None` while counts change. With a number for each time that they did.
    nodes: RankedMutex<(u64, Option<BTreeMap<IndexId, PieceId>>), { rank::COUNTED_ROOTS }>,
}

impl CountedRoots {
    pub(super) fn new(state: &CheckpointState) -> Self {
        Self { nodes: RankedMutex::new((0, Some(state.nodes()))) }
    }

    /// The root of an index (`None` if that was empty), and which count this is; `None` if nothing
    /// can be said, as counts are being changed.
    pub(crate) fn of(&self, id: IndexId) -> Option<(u64, Option<PieceId>)> {
        let nodes = self.nodes.lock();
        nodes.1.as_ref().map(|roots| (nodes.0, roots.get(&id).copied()))
    }

    /// Counts are about to change.
    pub(super) fn begin_change(&self) {
        self.set(None);
    }

    /// Counts have changed: they are those of `state`.
    pub(super) fn end_change(&self, state: &CheckpointState) {
        self.set(Some(state.nodes()));
    }

    fn set(&self, roots: Option<BTreeMap<IndexId, PieceId>>) {
        let mut nodes = self.nodes.lock();
        *nodes = (nodes.0 + 1, roots);
    }
}
