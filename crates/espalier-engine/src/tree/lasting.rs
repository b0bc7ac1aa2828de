//! What a change of a tree takes for good.
//!
//! A flush writes again what it changes, and what it replaces is free after the next checkpoint, unless a clone or
//! a snapshot needs it. Then the store holds both from now on, and whoever lets a pool be drawn on has to know.
//! Counts are those of the last checkpoint, so the tree to compare with is the one that it has counted: what came
//! in between, and was never written, has no counts.

use super::Trees;
use super::flush::Root;
use super::node::{Body, Node};
use super::slot::{NodeSlot, PartSlot};
use super::write::{blocks_of, header_blocks, runs_of};
use crate::Result;
use crate::types::PieceId;
use std::collections::HashSet;
use std::sync::Arc;

/// Headers looked at for one answer. A change is a path; what a deletion drops may be a whole tree, and is enough to
/// know of long before its end.
const MOST_HEADERS: usize = 4096;

/// Blocks that a change takes and that do not come back with the next checkpoint.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Lasting {
    /// All of them. Values that are dead beside others that live are not counted as free.
    pub(crate) more: u64,
    /// Those that stand beside what somebody else needs, at most.
    pub(crate) copied: u64,
}

/// What of a counted tree a newer one does not name any more, in blocks as [`Trees::unwritten_blocks`] reckons.
#[derive(Default)]
struct Replaced {
    /// Somebody else refers to it: it stays.
    kept: u64,
    /// Nobody does: it is free after the next checkpoint.
    freed: u64,
    headers: usize,
    seen: HashSet<PieceId>,
}

impl Trees {
    /// What the tree `new` takes beside the counted tree with the root `counted` when the next checkpoint has been made.
    pub(crate) fn lasting_blocks(&self, counted: Option<PieceId>, new: &Root) -> Result<Lasting> {
        let Some(slot) = &new.slot else { return Ok(Lasting::default()) };
        let mut named = HashSet::new();
        name(slot, &mut named, &mut HashSet::new());
        let mut replaced = Replaced::default();
        if let Some(counted) = counted {
            self.replaced(counted, false, &named, &mut replaced)?;
        }
        let more = self.unwritten_blocks(slot).saturating_sub(replaced.freed);
        Ok(Lasting { more, copied: more.min(replaced.kept) })
    }

    /// Adds what lies below the header `id`, and it itself, but for what is in `named` and what lies below that.
    fn replaced(
        &self,
        id: PieceId,
        shared: bool,
        named: &HashSet<PieceId>,
        sum: &mut Replaced,
    ) -> Result<()> {
        if named.contains(&id) || sum.headers == MOST_HEADERS || !sum.seen.insert(id) {
            return Ok(());
        }
        sum.headers += 1;
        let shared = shared || self.locator.is_shared(id)?;
        let node = self.node(id)?;
        sum.add(header_blocks(&node), shared);
        for slot in runs_of(&node).flat_map(|run| &run.parts).map(|part| &part.slot) {
            let Some(id) = slot.place().map(|place| place.handle.id()) else { continue };
            if !named.contains(&id) && sum.seen.insert(id) {
                let shared = shared || self.locator.is_shared(id)?;
                sum.add(blocks_of(slot.summary.bytes as usize), shared);
            }
        }
        for child in children(&node).filter_map(|slot| slot.place()) {
            self.replaced(child.id(), shared, named, sum)?;
        }
        Ok(())
    }
}

impl Replaced {
    fn add(&mut self, blocks: u64, shared: bool) {
        *(if shared { &mut self.kept } else { &mut self.freed }) += blocks;
    }
}

/// The stored pieces that what is not stored of a tree names; what lies below them is named by them.
fn name(slot: &Arc<NodeSlot>, named: &mut HashSet<PieceId>, seen: &mut HashSet<*const NodeSlot>) {
    let Some(node) = slot.unstored() else {
        named.extend(slot.place().map(|handle| handle.id()));
        return;
    };
    if seen.insert(Arc::as_ptr(slot)) {
        let place = |slot: &Arc<PartSlot>| slot.place().map(|place| place.handle.id());
        named.extend(runs_of(&node).flat_map(|run| &run.parts).filter_map(|part| place(&part.slot)));
        children(&node).for_each(|child| name(child, named, seen));
    }
}

fn children(node: &Node) -> impl Iterator<Item = &Arc<NodeSlot>> {
    let edges: &[_] = match &node.body {
        Body::Leaf(_) => &[],
        Body::Interior { edges, .. } => edges,
    };
    edges.iter().filter_map(|edge| edge.child.as_ref()).map(|child| &child.slot)
}
