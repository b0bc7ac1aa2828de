//! Absorbing: the messages of a sealed memtable become runs on the edges of the root.

use super::compact::compact;
use super::editor::TreeEditor;
use super::leaf;
use super::rebuild::{changeable_root, root_above};
use crate::Result;
use crate::message::range_messages::{RangeMessages, RangeOps};
use crate::model::key::{Key, KeyRange, union_of};
use crate::model::op::RangeOp;
use crate::model::view::View;
use crate::tree::interior::edges_of;
use crate::tree::node::{AbsorbCost, Body, Child, Edge, Node, NodeSlot, Root};
use crate::tree::run::Run;
use crate::tree::source::{Merged, MessageSet};
use crate::tree::trees::Trees;
use crate::tree::write::{blocks_of, header_blocks};
use std::sync::Arc;

/// So many range deletes at a time are carried out at once.
const FEW_RANGE_DELETES: usize = 16;

/// In a store that is short of space, a root that is a leaf of more blocks (or half of what makes
/// one) is only written again for a memtable if there is room for that: else messages wait above
/// it.
const SMALL_LEAF_BLOCKS: u64 = 8;

/// What a part and a header above a leaf take, and a first leaf.
const ABOVE_LEAF_COST: AbsorbCost = AbsorbCost { each: 2, once: 2 };

impl TreeEditor<'_> {
    /// The root after `messages`, newer than all that is there, have become part of the tree. A few
    /// range deletes are carried out `at_once`, so that what they held is free, and so is
    /// everything in a root that is a leaf; or messages wait above the leaves.
    pub(crate) fn absorb(&self, root: &Root, messages: &dyn MessageSet, at_once: bool) -> Result<Root> {
        match at_once {
            true => self.absorb_runs(&self.delete_ranges(root, &messages.ranges())?, messages, true),
            false => self.absorb_runs(root, messages, false),
        }
    }

    /// Blocks that absorbing memtables may take in a store that is short of space, beside what
    /// their messages come to: of each a part for each edge of the root, and the root's header; or
    /// a root that is a small leaf, or what is put above it.
    ///
    /// # Errors
    /// Of reading the root.
    pub(crate) fn absorb_cost(&self, root: &Root) -> Result<AbsorbCost> {
        if let Some(known) = root.known_absorb_cost() {
            return Ok(known);
        }
        let node = self.trees.root_node(root)?;
        let once = header_blocks(&node) + 1;
        let found = match &node.body {
            Body::Leaf(base) => match leaf_blocks(self.trees, base) {
                Some(blocks) => AbsorbCost { each: 1, once: once + blocks },
                None => ABOVE_LEAF_COST,
            },
            // Each part is named in the header.
            Body::Interior { edges, .. } => {
                let edges = edges.len() as u64;
                AbsorbCost { each: edges + edges.div_ceil(16), once }
            }
        };
        Ok(root.slot.as_ref().map_or(found, |slot| *slot.spread.get_or_init(|| found)))
    }

    /// The same for a root that cannot be read: more than it is.
    pub(crate) fn assume_absorb_cost(&self, root: &Root) {
        if let Some(slot) = &root.slot {
            slot.spread
                .get_or_init(|| AbsorbCost { each: self.trees.tuning.fanout as u64, ..ABOVE_LEAF_COST });
        }
    }

    /// The root after a sealed memtable's messages have become runs on its edges.
    pub(crate) fn absorb_runs(&self, root: &Root, messages: &dyn MessageSet, at_once: bool) -> Result<Root> {
        let all = KeyRange::all();
        let ranges = messages.ranges();
        let node = changeable_root(self.trees, root)?;
        let mut merged = Merged::new(vec![messages.source()]);
        merged.seek(b"")?;
        match &node.body {
            Body::Leaf(base) => {
                let run = Arc::new(compact(self.trees, &mut merged, &ranges, &all)?);
                let small =
                    at_once || leaf_blocks(self.trees, base).is_some() || run.ranges.deletes_all_of(&all);
                if small {
                    match leaf::apply(self, base, std::slice::from_ref(&run), &all, self.policy.gathering()) {
                        // What cannot be read must not keep a checkpoint from being made.
                        Err(_) if !at_once => {}
                        leaves => return Ok(root_above(self.trees, leaves?)),
                    }
                }
                Ok(root_above(self.trees, vec![(Key::default(), above(root, &node, run))]))
            }
            Body::Interior { .. } => {
                let mut node = (*node).clone();
                for i in 0..edges_of(&mut node).1.len() {
                    let interval = node.interval(i, &all);
                    let run = compact(self.trees, &mut merged, &ranges, &interval)?;
                    self.runs().add_run(&mut edges_of(&mut node).1[i], &interval, run);
                }
                Ok(root_above(self.trees, vec![(Key::default(), node)]))
            }
        }
    }

    /// The root without what `ranges` delete, if that is a few ranges only.
    fn delete_ranges(&self, root: &Root, ranges: &RangeMessages) -> Result<Root> {
        let mut root = root.clone();
        let deletes = |ops: &RangeOps| ops.iter().any(|(_, op)| *op == RangeOp::Delete);
        let deleted: Vec<KeyRange> =
            ranges.iter().filter(|(_, ops)| deletes(ops)).map(|(range, _)| range).collect();
        if deleted.len() <= FEW_RANGE_DELETES && root.height > 0 {
            for range in union_of(deleted) {
                root = self.without_range(&root, &range)?;
            }
        }
        Ok(root)
    }
}

/// The blocks of the parts of a leaf; `None` if they are many.
fn leaf_blocks(trees: &Trees, base: &Run) -> Option<u64> {
    let most = SMALL_LEAF_BLOCKS.min((trees.tuning.leaf / trees.tuning.part.max(1) / 2) as u64);
    let blocks = base.parts.iter().map(|part| blocks_of(part.slot.summary.bytes as usize)).sum();
    (blocks <= most).then_some(blocks)
}

/// A root above the root `leaf` with a run that waits for it.
fn above(leaf: &Root, node: &Node, run: Arc<Run>) -> Node {
    let child =
        |slot: &Arc<NodeSlot>| Child { slot: slot.clone(), view: View::identity(), weight: node.weight() };
    let edge = Edge { child: leaf.slot.as_ref().map(child), runs: vec![run] };
    Node { height: 1, body: Body::Interior { pivots: Vec::new(), edges: vec![edge] } }
}
