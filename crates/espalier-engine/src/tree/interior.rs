//! Interior nodes: their edges, nodes above others, splitting and joining.

use crate::model::key::{Key, KeyRange, common_prefix_len};
use crate::tree::node::{Body, Child, Edge, Node};
use crate::tree::run::Run;
use std::sync::Arc;

/// Pivots and edges of an interior node.
pub(crate) fn edges_of(node: &mut Node) -> (&mut Vec<Key>, &mut Vec<Edge>) {
    match &mut node.body {
        Body::Interior { pivots, edges } => (pivots, edges),
        Body::Leaf(_) => unreachable!("only interior nodes have edges"),
    }
}

/// An interior node above `nodes`, which together cover `interval`; each comes with its lower
/// bound.
pub(crate) fn parent_of(nodes: Vec<(Key, Node)>, interval: &KeyRange) -> Node {
    let height = nodes.first().map_or(0, |(_, n)| n.height) + 1;
    let mut pivots: Vec<Key> = nodes.iter().skip(1).map(|(lower, _)| lower.clone()).collect();
    let mut edges = Vec::with_capacity(nodes.len().max(1));
    for (i, (_, node)) in nodes.iter().enumerate() {
        let covered = KeyRange {
            start: if i == 0 { interval.start.clone() } else { pivots[i - 1].clone() },
            end: pivots.get(i).cloned().or_else(|| interval.end.clone()),
        };
        let empty = matches!(&node.body, Body::Interior { edges, .. } if edges.iter().all(Edge::is_empty));
        let child = (!empty).then(|| Child::attach(node, &covered));
        edges.push(Edge { child, runs: Vec::new() });
    }
    if edges.is_empty() {
        edges.push(Edge::default());
        pivots.clear();
    }
    Node { height, body: Body::Interior { pivots, edges } }
}

/// Cuts an interior node with too many edges, where the pivots share the least prefix.
pub(crate) fn split_interior(node: Node, fanout: usize, interval: &KeyRange) -> Vec<(Key, Node)> {
    let Body::Interior { pivots, edges } = &node.body else { return vec![(interval.start.clone(), node)] };
    if edges.len() <= fanout {
        return vec![(interval.start.clone(), node)];
    }
    let count = edges.len();
    // Any pivot in the middle third will do.
    let middle = (count / 3).max(1)..=(count - count / 3 - 1).max(1);
    let shared = |i: usize| {
        let before = if i >= 2 { &pivots[i - 2] } else { &interval.start };
        common_prefix_len(before, &pivots[i - 1])
    };
    let Some(cut) = middle.min_by_key(|i| (shared(*i), i.abs_diff(count / 2))) else {
        return vec![(interval.start.clone(), node)];
    };
    let pivot = pivots[cut - 1].clone();
    let half = |range: std::ops::Range<usize>| Node {
        height: node.height,
        body: Body::Interior {
            pivots: pivots[range.start..range.end - 1].to_vec(),
            edges: edges[range].to_vec(),
        },
    };
    let left = KeyRange { start: interval.start.clone(), end: Some(pivot.clone()) };
    let right = KeyRange { start: pivot, end: interval.end.clone() };
    let mut halves = split_interior(half(0..cut), fanout, &left);
    halves.extend(split_interior(half(cut..count), fanout, &right));
    halves
}

impl Node {
    /// True if it denotes the empty map, and it shows.
    pub(crate) fn is_empty_map(&self) -> bool {
        match &self.body {
            Body::Leaf(run) => run.is_empty(),
            Body::Interior { edges, .. } => edges.iter().all(Edge::is_empty),
        }
    }

    /// True if a node cut out of this one shows all of it, through the same headers. False if that
    /// is not seen.
    pub(crate) fn is_same(&self, cut: &Node) -> bool {
        match (&self.body, &cut.body) {
            (Body::Leaf(a), Body::Leaf(b)) => a.is_same(b),
            (Body::Interior { pivots: p, edges: e }, Body::Interior { pivots: q, edges: f }) => {
                p == q && e.iter().zip(f).all(|(a, b)| a.is_same(b))
            }
            _ => false,
        }
    }
}

/// Joins two neighbouring nodes of one height, both in the key space of their parent; `pivot` lies
/// between.
pub(crate) fn join(left: &Node, pivot: &Key, right: &Node) -> Option<Node> {
    let body = match (&left.body, &right.body) {
        (Body::Leaf(a), Body::Leaf(b)) => {
            let mut run = Run::clone(a);
            run.append(b);
            Body::Leaf(Arc::new(run))
        }
        (Body::Interior { pivots: p, edges: e }, Body::Interior { pivots: q, edges: f }) => {
            let pivots = p.iter().chain([pivot]).chain(q).cloned().collect();
            Body::Interior { pivots, edges: e.iter().chain(f).cloned().collect() }
        }
        _ => return None,
    };
    Some(Node { height: left.height, body })
}
