//! Rebuilding a path: roots, and nodes in the place of edges.

use crate::Result;
use crate::model::key::{Key, KeyRange};
use crate::model::view::View;
use crate::tree::interior::{edges_of, join, parent_of, split_interior};
use crate::tree::node::{Body, Child, Edge, MAX_HEIGHT, Node, NodeSlot, Root, UNKNOWN_WEIGHT};
use crate::tree::run::{Run, join_runs, runs_within};
use crate::tree::trees::Trees;
use std::sync::Arc;

/// True if more than one header or root refers to the child.
pub(super) fn is_shared(trees: &Trees, child: &Child) -> Result<bool> {
    match child.slot.place() {
        Some(handle) => trees.locator.is_shared(handle.id()),
        None => Ok(false),
    }
}

/// True if more than one header or root refers to the root node.
pub(super) fn is_shared_root(trees: &Trees, root: &Root) -> Result<bool> {
    match root.slot.as_ref().and_then(|slot| slot.place()) {
        Some(handle) => trees.locator.is_shared(handle.id()),
        None => Ok(false),
    }
}

/// The root node, or if that cannot be read one above it, where messages can wait.
///
/// # Errors
/// Of reading a root that is as high as one may be.
pub(super) fn changeable_root(trees: &Trees, root: &Root) -> Result<Arc<Node>> {
    match (trees.root_node(root), &root.slot) {
        (Err(_), Some(slot)) if root.height < MAX_HEIGHT => {
            let child = Child { slot: slot.clone(), view: View::identity(), weight: UNKNOWN_WEIGHT };
            let edges = vec![Edge { child: Some(child), runs: Vec::new() }];
            let body = Body::Interior { pivots: Vec::new(), edges };
            Ok(Arc::new(Node { height: root.height + 1, body }))
        }
        (read, _) => read,
    }
}

/// A root above `nodes`, which cover all keys.
pub(super) fn root_above(trees: &Trees, mut nodes: Vec<(Key, Node)>) -> Root {
    while nodes.len() > 1 {
        let node = parent_of(nodes, &KeyRange::all());
        nodes = split_interior(node, trees.tuning.fanout, &KeyRange::all());
    }
    let Some((_, mut node)) = nodes.pop() else { return Root::default() };
    // A root with a single edge and nothing on it is not needed.
    while let Body::Interior { edges, .. } = &node.body {
        let [Edge { child, runs }] = &edges[..] else { break };
        if !runs.is_empty() {
            break;
        }
        let Some(child) = child else { return Root::default() };
        match child.load(trees, node.height - 1, &KeyRange::all()) {
            Ok(below) => node = below,
            // It can be read later or it cannot; a root too many does no harm.
            Err(_) => break,
        }
    }
    Root { height: node.height, slot: Some(NodeSlot::new(node)) }
}

/// Puts `nodes` in the place of edge `i`, with `rest` on the way to them, and tidies up around
/// them.
pub(super) fn replace_edge(
    trees: &Trees,
    node: &mut Node,
    i: usize,
    nodes: Vec<(Key, Node)>,
    rest: &[Arc<Run>],
    interval: &KeyRange,
) {
    let covered = node.interval(i, interval);
    let count = nodes.len().max(1);
    let mut inner = parent_of(nodes, &covered);
    for new in 0..if rest.is_empty() { 0 } else { count } {
        let interval = inner.interval(new, &covered);
        edges_of(&mut inner).1[new].runs = runs_within(rest, &interval);
    }
    let Body::Interior { pivots: new_pivots, edges: new_edges } = inner.body else {
        unreachable!("a parent is interior")
    };
    let (pivots, edges) = edges_of(node);
    edges.splice(i..=i, new_edges);
    pivots.splice(i..i, new_pivots);
    // From the right, so that what is joined does not move what is still to be looked at.
    let first = i.saturating_sub(1);
    for left in (first..i + count).rev() {
        join_with_next(trees, node, left, interval, Node::names);
    }
}

/// Joins edge `left` with the next one if both are small and can be read, and the header would not
/// name much of what `counted` counts.
pub(super) fn join_with_next(
    trees: &Trees,
    node: &mut Node,
    left: usize,
    interval: &KeyRange,
    counted: impl Fn(&Node) -> usize,
) {
    let below = node.height - 1;
    if left + 1 >= edges_of(node).1.len() {
        return;
    }
    let (a_covers, b_covers) = (node.interval(left, interval), node.interval(left + 1, interval));
    let (pivots, edges) = edges_of(node);
    let (a, b) = (&edges[left], &edges[left + 1]);
    let union = KeyRange { start: a_covers.start.clone(), end: b_covers.end.clone() };
    let weight = |edge: &Edge| edge.child.as_ref().map_or(0, |c| c.weight);
    let most = if below == 0 { trees.tuning.leaf as u64 / 2 } else { trees.tuning.fanout as u64 / 2 };
    let child = match (&a.child, &b.child) {
        (None, None) => None,
        // A child shows nothing beyond its own keys, so its edge may cover more.
        (Some(child), None) if b.runs.is_empty() => Some(child.clone()),
        (None, Some(child)) if a.runs.is_empty() => Some(child.clone()),
        (Some(_), Some(_)) if weight(a) + weight(b) > most => return,
        (Some(x), Some(y)) => {
            let stored = |child: &Child| child.slot.load(trees, below);
            let (Ok(seen_x), Ok(seen_y)) = (stored(x), stored(y)) else { return };
            // What waits in one that clones share would be named again in a header for each of
            // them.
            if counted(&seen_x) + counted(&seen_y) > trees.tuning.fanout {
                return;
            }
            let (x, y) = (x.load(trees, below, &a_covers), y.load(trees, below, &b_covers));
            let (Ok(x), Ok(y)) = (x, y) else { return };
            match join(&x, &pivots[left], &y) {
                Some(joined) => Some(Child::attach(&joined, &union)),
                None => return,
            }
        }
        _ => return,
    };
    let runs = join_runs(&a.runs, &b.runs);
    edges.splice(left..left + 2, [Edge { child, runs }]);
    pivots.remove(left);
}
