//! The footprint of a change of a tree: the blocks that it takes permanently.
//!
//! A flush writes again what it changes, and what it replaces is free after the next checkpoint,
//! unless a clone or a snapshot needs it. Then the store holds both from now on, and a caller that
//! draws on the pool has to know. Counts are those of the last checkpoint, so the new tree is
//! compared with the one that this checkpoint counted: what came in between, and was never written,
//! has no counts.

use crate::model::ids::PieceId;
use crate::tree::node::{Body, Node, NodeSlot, Root};
use crate::tree::part_slot::PartSlot;
use crate::tree::trees::Trees;
use crate::tree::write::{blocks_of, header_blocks, runs_of};
use std::collections::HashSet;
use std::sync::Arc;

/// Headers looked at for one answer. A change is a path; what a deletion drops may be a whole tree,
/// and is enough to know of long before its end.
const MAX_FOOTPRINT_HEADERS: usize = 4096;

/// What a change takes, in blocks, and what the next checkpoint gives back for it.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Footprint {
    written: u64,
    /// Of what it replaces, what nothing else needs. Values that are dead beside others that live
    /// do not count.
    freed: u64,
    /// Of what it replaces, what stays.
    kept: u64,
}

impl Footprint {
    /// Blocks that do not come back.
    pub(crate) fn more(self) -> u64 {
        self.written.saturating_sub(self.freed)
    }

    /// Those of them that are copies of what a clone or snapshot still needs, at most.
    pub(crate) fn copied(self) -> u64 {
        self.more().min(self.kept)
    }

    /// Blocks that do not come back, or less than none if more comes back than was taken.
    pub(crate) fn net(self) -> i64 {
        self.written as i64 - self.freed as i64
    }
}

/// What of a counted tree a newer one does not name any more, in blocks as
/// [`Trees::unwritten_blocks`] counts them.
struct Replaced {
    lasting: Footprint,
    /// More need not be found to be free.
    enough: u64,
    headers: usize,
    seen: HashSet<PieceId>,
}

impl Trees {
    /// What the tree `new` takes beside the counted tree with the root `counted` when the next
    /// checkpoint has been made. That it gives back more than it takes and `enough` beside that
    /// need not be found out.
    pub(crate) fn footprint(&self, counted: Option<PieceId>, new: &Root, enough: u64) -> Footprint {
        let lasting = self.whole_footprint(new);
        let mut named = HashSet::new();
        if let Some(slot) = &new.slot {
            name(slot, &mut named, &mut HashSet::new());
        }
        let enough = lasting.written.saturating_add(enough);
        let mut replaced =
            Replaced { lasting: Footprint { kept: 0, ..lasting }, enough, headers: 0, seen: HashSet::new() };
        if let Some(counted) = counted {
            self.replaced(counted, u8::MAX, false, &named, &mut replaced);
        }
        replaced.lasting
    }

    /// The same if nothing is known of what it replaces: all of it may be needed.
    pub(crate) fn whole_footprint(&self, new: &Root) -> Footprint {
        let written = new.slot.as_ref().map_or(0, |slot| self.unwritten_blocks(slot));
        Footprint { written, freed: 0, kept: written }
    }

    /// Adds what lies below the header `id`, and it itself, but for what is in `named` and what
    /// lies below that. What cannot be read, or is as high as what lies above it, is not free
    /// either.
    fn replaced(&self, id: PieceId, above: u8, shared: bool, named: &HashSet<PieceId>, sum: &mut Replaced) {
        if named.contains(&id) || sum.is_done() || !sum.seen.insert(id) {
            return;
        }
        sum.headers += 1;
        let is_shared = |id| self.locator.is_shared(id).unwrap_or(true);
        let shared = shared || is_shared(id);
        if shared && sum.lasting.kept >= sum.lasting.written {
            // All below stays as well, and it is known that everything may be copied.
            return;
        }
        let Some(node) = self.node(id).ok().filter(|node| node.height < above) else { return };
        sum.add(header_blocks(&node), shared);
        for slot in runs_of(&node).flat_map(|run| &run.parts).map(|part| &part.slot) {
            let Some(id) = slot.place().map(|place| place.handle.id()) else { continue };
            if !named.contains(&id) && sum.seen.insert(id) {
                sum.add(blocks_of(slot.summary.bytes as usize), shared || is_shared(id));
            }
        }
        for child in children(&node).filter_map(|slot| slot.place()) {
            self.replaced(child.id(), node.height, shared, named, sum);
        }
    }
}

impl Replaced {
    fn add(&mut self, blocks: u64, shared: bool) {
        *(if shared { &mut self.lasting.kept } else { &mut self.lasting.freed }) += blocks;
    }

    fn is_done(&self) -> bool {
        self.headers == MAX_FOOTPRINT_HEADERS || self.lasting.freed >= self.enough
    }
}

/// The stored pieces that what is not stored of a tree names; what lies below them is named by
/// them.
fn name(slot: &Arc<NodeSlot>, named: &mut HashSet<PieceId>, seen: &mut HashSet<*const NodeSlot>) {
    let Some(node) = slot.as_unwritten() else {
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
