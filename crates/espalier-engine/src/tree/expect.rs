//! Expected look-ups: what they will read of a tree, told to the device in a few rounds.
//!
//! Look-ups of many keys wait for the device once for each node and part, one after the other.
//! Where a read takes long, it is begun for all of them together: the nodes of one height, then
//! those below, and in the end the parts that may hold the keys.

use crate::Result;
use crate::model::ids::PieceId;
use crate::model::key::Key;
use crate::tree::node::{Body, Node, NodeSlot, Root};
use crate::tree::run::Run;
use crate::tree::trees::Trees;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Tells the device of all that look-ups of `keys` in the tree at `root` may read. What a newer
/// message makes superfluous is told too.
pub(crate) fn expect(trees: &Trees, root: &Root, keys: &[&[u8]]) -> Result<()> {
    let Some(slot) = &root.slot else { return Ok(()) };
    let mut level: Vec<(Arc<NodeSlot>, Key)> =
        keys.iter().map(|key| (slot.clone(), Key::from(*key))).collect();
    let mut parts = BTreeSet::new();
    for height in (0..=root.height).rev() {
        let nodes: BTreeSet<PieceId> =
            level.iter().filter_map(|(slot, _)| slot.place()).map(|handle| handle.id()).collect();
        trees.pieces.expect(nodes.into_iter());
        let mut below = Vec::with_capacity(level.len());
        for (slot, key) in level {
            let node = slot.load(trees, height)?;
            let (pivots, edges) = match &node.body {
                Body::Leaf(run) => {
                    parts.extend(part_of(run, &key));
                    continue;
                }
                Body::Interior { pivots, edges } => (pivots, edges),
            };
            let edge = &edges[Node::edge_for(pivots, &key)];
            parts.extend(edge.runs.iter().filter_map(|run| part_of(run, &key)));
            if let Some(child) = &edge.child
                && let Some(inner) = child.view.inward(&key)
            {
                below.push((child.slot.clone(), inner));
            }
        }
        level = below;
    }
    trees.pieces.expect(parts.into_iter());
    Ok(())
}

/// The part of a run that may hold `key`, if it is on the device.
fn part_of(run: &Run, key: &[u8]) -> Option<PieceId> {
    let (_, part) = run.part_for(key)?;
    let inner = part.view.inward(key)?;
    let may_hold = part.slot.summary.filter.may_contain(&inner);
    Some(part.slot.place().filter(|_| may_hold)?.handle.id())
}
