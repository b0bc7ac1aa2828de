//! Moving a slice of what is pending down to the leaf it is for, where a flush of a whole edge has
//! no room.
//!
//! A flush writes again all that waits on an edge, and in a store that was full for long that may
//! be more than there is room for. A *slice* is an interval of keys within one leaf: what waits for
//! it on all edges above is applied to the leaf, and the rest is left where it is, in the same
//! parts, seen through narrower views. So a step costs some parts of the leaf, no more messages
//! than one part of each run holds, and the headers on the way, however much waits.
//!
//! Invariant: in the slice nothing is left on any edge above the leaf; so nothing older lies above.

use super::editor::TreeEditor;
use super::leaf;
use super::rebuild::{is_shared, is_shared_root, replace_edge, root_above};
use crate::Result;
use crate::model::key::{Key, KeyRange, before_end};
use crate::tree::interior::{edges_of, split_interior};
use crate::tree::node::{Body, Edge, Node, Root};
use crate::tree::policy::Gathering;
use crate::tree::run::{Run, runs_within, runs_without};
use std::sync::Arc;

/// So many parts of a leaf are written again for one slice, at most.
const SLICE_LEAF_PARTS: usize = 4;

/// Moves one slice.
#[derive(Clone, Copy)]
struct SliceMove<'a> {
    editor: TreeEditor<'a>,
    /// Where something has to be pending.
    range: &'a KeyRange,
    /// Also into shared leaves.
    shared: bool,
}

/// What a node has become, and the slice of it that has come down.
type Sliced = (Vec<(Key, Node)>, KeyRange);

impl TreeEditor<'_> {
    /// The root after a slice of the messages on its heaviest edge has been moved to a leaf, or one
    /// from further down if nothing waits there; `None` if there are no messages above the leaves.
    pub(crate) fn flush_slice_for_space(&self, root: &Root) -> Result<Option<Root>> {
        let Ok(node) = self.trees.root_node(root) else { return Ok(None) };
        let all = KeyRange::all();
        let range = self.heaviest(&node, 0).map_or(all.clone(), |(i, _)| node.interval(i, &all));
        let slice = SliceMove { editor: *self, range: &range, shared: true };
        Ok(slice.in_root(&node)?.map(|(root, _)| root))
    }

    /// The root after the first slice of what is pending in `range` has been moved to its leaf, and
    /// where to go on; but nothing into what is shared, for that would take space. `None` if
    /// nothing is pending there.
    pub(crate) fn flush_range_slice(&self, root: &Root, range: &KeyRange) -> Result<Option<(Root, Key)>> {
        if is_shared_root(self.trees, root)? {
            return Ok(None);
        }
        let Ok(node) = self.trees.root_node(root) else { return Ok(None) };
        let sliced = SliceMove { editor: *self, range, shared: false }.in_root(&node)?;
        let next = |slice: KeyRange| slice.end.unwrap_or_default().max(range.start.clone());
        Ok(sliced.map(|(root, slice)| (root, next(slice))))
    }
}

impl SliceMove<'_> {
    fn in_root(&self, node: &Node) -> Result<Option<(Root, KeyRange)>> {
        let all = KeyRange::all();
        let Some((nodes, slice)) = self.in_node(node, &all, Vec::new())? else { return Ok(None) };
        Ok(Some((root_above(self.editor.trees, nodes), slice)))
    }

    /// Moves a slice of `pending` (oldest first), and of what waits in the node, to a leaf below
    /// it; but to none that cannot be read.
    fn in_node(&self, node: &Node, interval: &KeyRange, pending: Vec<Arc<Run>>) -> Result<Option<Sliced>> {
        let (pivots, edges) = match &node.body {
            Body::Interior { pivots, edges } => (pivots, edges),
            Body::Leaf(_) if pending.is_empty() => return Ok(None),
            Body::Leaf(base) => return self.in_leaf(base, interval, &pending).map(Some),
        };
        let below = node.height - 1;
        for (i, edge) in edges.iter().enumerate().skip(Node::edge_for(pivots, &self.range.start)) {
            let covered = node.interval(i, interval);
            if !before_end(&covered.start, self.range.end.as_deref()) {
                break;
            }
            let Edge { child, runs } = edge;
            if !self.shared
                && child.as_ref().map_or(Ok(false), |child| is_shared(self.editor.trees, child))?
            {
                continue;
            }
            let pending = [runs.clone(), runs_within(&pending, &covered)].concat();
            let child = match child {
                Some(child) if below > 0 || !pending.is_empty() => {
                    match child.load(self.editor.trees, below, &covered) {
                        Ok(child) => child,
                        Err(_) => continue,
                    }
                }
                None if !pending.is_empty() => Node::empty(below),
                _ => continue,
            };
            let sliced = match self.in_node(&child, &covered, pending) {
                Err(error) if error.is_of_reading() => continue,
                sliced => sliced?,
            };
            if let Some((nodes, slice)) = sliced {
                let mut node = node.clone();
                let rest = runs_without(&edges_of(&mut node).1[i].runs, &slice);
                replace_edge(self.editor.trees, &mut node, i, nodes, &rest, interval);
                return Ok(Some((split_interior(node, self.editor.trees.tuning.fanout, interval), slice)));
            }
        }
        Ok(None)
    }

    fn in_leaf(&self, base: &Run, interval: &KeyRange, pending: &[Arc<Run>]) -> Result<Sliced> {
        let slice = KeyRange { start: interval.start.clone(), end: end_of_slice(base, interval, pending) };
        let leaves =
            leaf::apply(&self.editor, base, &runs_within(pending, &slice), interval, Gathering::Nothing)?;
        Ok((leaves, slice))
    }
}

/// Where the slice ends that begins with the first pending key: it touches one part of each run,
/// and some of the leaf.
fn end_of_slice(base: &Run, interval: &KeyRange, pending: &[Arc<Run>]) -> Option<Key> {
    let starts = |run: &Arc<Run>| {
        let range = run.ranges.iter().next().map(|(range, _)| range.start);
        run.parts.first().map(|part| part.first.clone()).into_iter().chain(range).min()
    };
    let start = pending.iter().filter_map(starts).min().unwrap_or_default().max(interval.start.clone());
    let second =
        |run: &Arc<Run>| run.parts.iter().skip(1).map(|part| part.first.clone()).find(|key| *key > start);
    let touched = base.parts.partition_point(|part| part.first <= start).saturating_sub(1);
    let behind = base.parts.get(touched + SLICE_LEAF_PARTS).map(|part| part.first.clone());
    let first = pending.iter().filter_map(second).chain(behind).min();
    first.filter(|key| before_end(key, interval.end.as_deref())).or_else(|| interval.end.clone())
}

#[cfg(test)]
mod tests;
