//! Reference counts: what new headers and roots refer to gains, what dead ones referred to loses.
//!
//! Gains and losses are netted before anything is counted, so that what old and new headers share
//! does not dirty its page of the node translation table. A node that loses its last reference is
//! dead; it is taken apart at once, or waits on the reclaim list.

use super::state::CheckpointState;
use crate::Result;
use crate::index::catalog::StoredRoot;
use crate::model::ids::{Delta, IndexId, PieceId, PieceKind, Reference};
use crate::space::Locator;
use crate::space::{Space, VolumeTable, table_page_of};
use crate::tree::Trees;
use std::collections::{HashMap, HashSet};

/// Dead nodes taken apart in one checkpoint; the rest waits on the reclaim list.
const MAX_RECLAIMED_NODES: usize = 16 << 10;

/// What is left to reclaim.
pub(super) struct LeftToReclaim {
    /// Dead nodes that wait to be taken apart.
    pub(super) waiting: Vec<PieceId>,
    /// Those of them that cannot be read.
    pub(super) unreadable: HashSet<PieceId>,
    /// The pieces whose counts, or live bytes, have changed.
    pub(super) changed: Vec<PieceId>,
}

/// A count under way.
struct Count<'a> {
    space: &'a Space,
    trees: &'a Trees,
    deltas: HashMap<PieceId, Delta>,
    lost: Vec<Reference>,
    dead: HashSet<PieceId>,
    unreadable: HashSet<PieceId>,
    touched: Touched,
}

/// Counts the references that the roots in `stored` bring, and those that what they replace had.
pub(super) fn count_references(
    space: &Space,
    trees: &Trees,
    stored: &[(IndexId, StoredRoot)],
    volumes: &VolumeTable,
    state: &CheckpointState,
) -> Result<LeftToReclaim> {
    let (gained, lost) = changed_roots(stored, volumes, state);
    let deltas = count_gains(gained, state);
    let touched = Touched::new(space, deltas.keys());
    let (dead, unreadable) = (HashSet::new(), state.unreadable.clone());
    let mut count = Count { space, trees, deltas, lost, dead, unreadable, touched };
    count.reclaim(state);
    count.lose()?;
    let without = space.count(&count.deltas)?;
    let waiting =
        state.reclaim.iter().copied().chain(without).filter(|id| !count.dead.contains(id)).collect();
    for id in count.dead {
        space.uncount_node(id)?;
    }
    let changed = count.deltas.into_keys().collect();
    Ok(LeftToReclaim { waiting, unreadable: count.unreadable, changed })
}

/// The roots that are referred to from now on, and those that are not any more.
fn changed_roots(
    stored: &[(IndexId, StoredRoot)],
    volumes: &VolumeTable,
    state: &CheckpointState,
) -> (Vec<Reference>, Vec<Reference>) {
    let mut gained: Vec<Reference> = Vec::new();
    let mut lost: Vec<Reference> = Vec::new();
    for (id, root) in stored {
        let old = state.roots.get(id).and_then(|r| r.node);
        if old != root.node {
            gained.extend(root.node.map(|id| (id, 0)));
            lost.extend(old.map(|id| (id, 0)));
        }
    }
    let deleted = state.roots.iter().filter(|(id, _)| !volumes.volumes.contains_key(&id.volume));
    lost.extend(deleted.filter_map(|(_, root)| root.node).map(|id| (id, 0)));
    (gained, lost)
}

/// What is gained, by new roots and by the headers below them that no count knows.
fn count_gains(mut gained: Vec<Reference>, state: &CheckpointState) -> HashMap<PieceId, Delta> {
    let mut deltas: HashMap<PieceId, Delta> = HashMap::new();
    let mut entered: HashSet<PieceId> = HashSet::new();
    while let Some((id, bytes)) = gained.pop() {
        let delta = deltas.entry(id).or_default();
        delta.count += 1;
        delta.bytes = delta.bytes.saturating_add_unsigned(bytes);
        // They stay uncounted until all is counted: a header that cannot be read below leaves that
        // to the next checkpoint.
        if let Some(refers) = state.uncounted.get(&id).filter(|_| entered.insert(id)) {
            gained.extend(refers);
        }
    }
    deltas
}

impl Count<'_> {
    /// Takes apart nodes on the reclaim list.
    fn reclaim(&mut self, state: &CheckpointState) {
        for id in state.reclaim.iter().filter(|id| !state.unreadable.contains(id)).take(MAX_RECLAIMED_NODES) {
            let Ok(refers) = self.trees.references_of(*id) else {
                self.unreadable.insert(*id);
                continue;
            };
            // At least one, so that there is progress.
            if !self.touched.add(&refers, !self.dead.is_empty()) {
                break;
            }
            self.dead.insert(*id);
            self.lost.extend(refers);
        }
    }

    /// Counts what is lost, and takes apart nodes that die of it.
    fn lose(&mut self) -> Result<()> {
        while let Some((id, bytes)) = self.lost.pop() {
            let delta = self.deltas.entry(id).or_default();
            delta.count -= 1;
            delta.bytes = delta.bytes.saturating_sub_unsigned(bytes);
            // Later losses may bring it to 0, later gains cannot come: all are in.
            let left = i64::from(self.space.tables.references(id)?.unwrap_or(0)) + delta.count;
            if left == 0
                && self.dead.len() < MAX_RECLAIMED_NODES
                && self.is_node(id)?
                && !self.dead.contains(&id)
            {
                let Ok(refers) = self.trees.references_of(id) else {
                    self.unreadable.insert(id);
                    continue;
                };
                if self.touched.add(&refers, !self.dead.is_empty()) {
                    self.dead.insert(id);
                    self.lost.extend(refers);
                }
            }
        }
        Ok(())
    }

    fn is_node(&self, id: PieceId) -> Result<bool> {
        Ok(matches!(self.space.locate(id)?.kind, PieceKind::Node(_)))
    }
}

/// Pages of the node translation table that a checkpoint changes: each needs a new block before its
/// old one is free, so with little room few nodes are taken apart at a time.
struct Touched {
    pages: HashSet<u64>,
    most: usize,
}

impl Touched {
    fn new<'a>(space: &Space, ids: impl Iterator<Item = &'a PieceId>) -> Self {
        // Half of what is free, a half of that for the pages above.
        let most = (space.free_blocks() / 4) as usize;
        Self { pages: ids.map(|id| table_page_of(*id)).collect(), most }
    }

    /// Notes changes of these pieces; false (and nothing noted) if they are too many and `bounded`.
    /// Those on pages that change anyway are never too many: mostly the newer header refers to the
    /// same pieces, and only if the older one is taken apart at once do they stay as they are.
    fn add(&mut self, refers: &[Reference], bounded: bool) -> bool {
        let pages: HashSet<u64> = refers.iter().map(|(id, _)| table_page_of(*id)).collect();
        let more = pages.difference(&self.pages).count();
        if bounded && more > 0 && self.pages.len() + more > self.most {
            return false;
        }
        self.pages.extend(pages);
        true
    }
}
