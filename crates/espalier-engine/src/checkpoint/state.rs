//! Checkpoint state: what checkpoints hand on to each other.

use crate::index::catalog::StoredRoot;
use crate::lock_order::{RankedMutex, rank};
use crate::model::ids::{IndexId, PieceId, Reference};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// Pieces that are noted as changed, at most; they take 8 bytes each.
const MAX_CHANGED_PIECES: usize = 512 << 10;

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
    pub(crate) changed: ChangedCounts,
}

/// Which counts, or live bytes, checkpoints have changed of late: for walks over trees that go on
/// from an earlier one. Nothing is noted unless that was asked for lately.
#[derive(Default)]
pub(crate) struct ChangedCounts {
    /// Counts the changes.
    number: u64,
    /// The pieces of each change since that is not forgotten, up to the last one.
    noted: VecDeque<Box<[PieceId]>>,
    /// How many these are.
    pieces: usize,
    /// The number when this was last asked; `None` if nothing is noted.
    asked: Cell<Option<u64>>,
}

impl ChangedCounts {
    /// How often counts have changed since the store was opened.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// What has changed since that number, some of it perhaps more than once; `None` if that is not
    /// known. From now on it is noted.
    pub(crate) fn since(&self, number: Option<u64>) -> Option<impl Iterator<Item = PieceId>> {
        self.asked.set(Some(self.number));
        let missed = usize::try_from(self.number.checked_sub(number?)?).ok()?;
        let skipped = self.noted.len().checked_sub(missed)?;
        Some(self.noted.iter().skip(skipped).flat_map(|pieces| pieces.iter().copied()))
    }

    /// The counts of these pieces change.
    pub(super) fn note(&mut self, pieces: impl ExactSizeIterator<Item = PieceId>) {
        self.number += 1;
        let Some(asked) = self.asked.get() else { return };
        self.pieces += pieces.len();
        self.noted.push_back(pieces.collect());
        while self.pieces > MAX_CHANGED_PIECES {
            let Some(oldest) = self.noted.pop_front() else { break };
            self.pieces -= oldest.len();
            if self.number - asked > self.noted.len() as u64 {
                // It was not asked for since the oldest of them.
                self.forget();
            }
        }
    }

    /// What has changed is not known.
    pub(super) fn forget(&mut self) {
        *self = Self { number: self.number + 1, ..Self::default() };
    }
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
