//! Moving messages down: from a memtable to the root, from an edge to its child, into leaves.
//!
//! Each call computes a new root from an old one. Batches go to the child with most pending bytes;
//! cascades follow while a child holds too much itself [BetrFS 0.2]. Splits and joins happen on the
//! path that is being copied anyway.
//!
//! What is for a place that cannot be read waits above it, and keeps nothing else from moving: such
//! an edge is *unflushable*, and passed over, until the next checkpoint, when it is tried again.

use super::compact::{compact, merged_ranges, run_sources};
use super::editor::TreeEditor;
use super::leaf;
use super::rebuild::{is_shared, is_shared_root, replace_edge, root_above};
use crate::Result;
use crate::model::ids::PieceId;
use crate::model::key::{Key, KeyRange, before_end};
use crate::tree::interior::{edges_of, split_interior};
use crate::tree::node::{Body, Child, Edge, Node, Root};
use crate::tree::run::{Run, ViewedPart, runs_within};
use crate::tree::source::Merged;
use std::collections::HashSet;
use std::sync::Arc;

/// How far a flush goes.
#[derive(Clone, Copy)]
struct FlushReach {
    /// Edges with more bytes than this are flushed.
    least: u64,
    /// All of them, or on each level only the heaviest.
    all: bool,
}

impl TreeEditor<'_> {
    /// Bytes on the heaviest edge of the root that is too heavy.
    pub(crate) fn heaviest_edge_bytes(&self, root: &Root) -> Result<Option<u64>> {
        let Some(slot) = &root.slot else { return Ok(None) };
        // A root on the device has been left in order, or will be put in order when it is changed.
        let Some(node) = slot.as_unwritten() else { return Ok(None) };
        Ok(self.heaviest(&node, self.trees.tuning.edge as u64).map(|(_, bytes)| bytes))
    }

    /// The root after its heaviest edge has been flushed; `None` if no edge is too heavy.
    pub(crate) fn flush(&self, root: &Root) -> Result<Option<Root>> {
        let node = self.trees.root_node(root)?;
        let reach = FlushReach { least: self.trees.tuning.edge as u64, all: !self.policy.low_space };
        let mut node = (*node).clone();
        while let Some((i, _)) = self.heaviest(&node, reach.least) {
            if self.flush_edge(&mut node, i, &KeyRange::all(), reach)? {
                return Ok(Some(root_above(
                    self.trees,
                    split_interior(node, self.trees.tuning.fanout, &KeyRange::all()),
                )));
            }
        }
        Ok(None)
    }

    /// The root after messages have been moved to one leaf, however few they are; `None` if there
    /// are none above the leaves. What is deleted or replaced takes space until its message gets
    /// there.
    pub(crate) fn flush_for_space(&self, root: &Root) -> Result<Option<Root>> {
        let Ok(mut node) = self.trees.root_node(root).map(|node| (*node).clone()) else { return Ok(None) };
        if !self.flush_node_for_space(&mut node, &KeyRange::all())? {
            return Ok(None);
        }
        Ok(Some(root_above(self.trees, split_interior(node, self.trees.tuning.fanout, &KeyRange::all()))))
    }

    fn flush_node_for_space(&self, node: &mut Node, interval: &KeyRange) -> Result<bool> {
        while let Some((i, _)) = self.heaviest(node, 0) {
            if self.flush_edge(node, i, interval, FlushReach { least: 0, all: false })? {
                return Ok(true);
            }
        }
        if node.height < 2 {
            return Ok(false);
        }
        for i in 0..edges_of(node).1.len() {
            let covered = node.interval(i, interval);
            let below = node.height - 1;
            // Nothing is changed below what is unflushable.
            let Edge { child: Some(child), runs } = edges_of(node).1[i].clone() else { continue };
            if !runs.is_empty() {
                continue;
            }
            let Ok(mut child) = child.load(self.trees, below, &covered) else { continue };
            if self.flush_node_for_space(&mut child, &covered)? {
                replace_edge(
                    self.trees,
                    node,
                    i,
                    split_interior(child, self.trees.tuning.fanout, &covered),
                    &[],
                    interval,
                );
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The edge with most pending bytes that is not unflushable, if that is more than `least`.
    ///
    /// Messages weigh as much as it costs to hand them on: large values are referred to, and not
    /// copied on the way. But what they replace takes space meanwhile, and a leaf may have to be
    /// rewritten for them; so an edge is heavy as well with more of them than
    /// [`Self::most_values`].
    pub(crate) fn heaviest(&self, node: &Node, least: u64) -> Option<(usize, u64)> {
        let Body::Interior { edges, .. } = &node.body else { return None };
        let most = self.most_values(node.height);
        let heavy = self.trees.tuning.edge as u64;
        let weight = |edge: &Edge| {
            let values = u128::from(edge.pending_values()) * u128::from(heavy) / u128::from(most);
            edge.pending().max(u64::try_from(values).unwrap_or(u64::MAX))
        };
        let moving = edges.iter().enumerate().filter(|(_, edge)| !self.trees.unflushable.contains(edge));
        let pending = moving.map(|(i, edge)| (i, weight(edge)));
        pending.filter(|(_, bytes)| *bytes > least).max_by_key(|(_, bytes)| *bytes)
    }

    /// Moves one step down what is pending in `range`, but not into what is shared, for that would
    /// take space; returns the new root and where to go on. `None` if nothing is pending there.
    /// `merges`: what waits above something shared becomes one run, so that what is void in it is
    /// held no longer; what is shared itself, as by a clone and its source, waits on.
    pub(crate) fn flush_range(
        &self,
        root: &Root,
        range: &KeyRange,
        merges: bool,
    ) -> Result<Option<(Root, Key)>> {
        let Ok(mut node) = self.trees.root_node(root).map(|node| (*node).clone()) else { return Ok(None) };
        if matches!(node.body, Body::Leaf(_)) || is_shared_root(self.trees, root)? {
            return Ok(None);
        }
        let all = KeyRange::all();
        let Some(at) = self.flush_range_node(&mut node, &all, range, merges)? else { return Ok(None) };
        let next = if at > range.start { at } else { range.start.clone() };
        Ok(Some((root_above(self.trees, split_interior(node, self.trees.tuning.fanout, &all)), next)))
    }

    /// The same below a node; returns the start of what was changed.
    fn flush_range_node(
        &self,
        node: &mut Node,
        interval: &KeyRange,
        range: &KeyRange,
        merges: bool,
    ) -> Result<Option<Key>> {
        let below = node.height - 1;
        for i in Node::edge_for(edges_of(node).0, &range.start)..edges_of(node).1.len() {
            let covered = node.interval(i, interval);
            if !before_end(&covered.start, range.end.as_deref()) {
                break;
            }
            if merges && self.has_shared_messages(node, i) {
                continue;
            }
            let edge = edges_of(node).1[i].clone();
            if edge.child.as_ref().is_some_and(|child| is_shared(self.trees, child).unwrap_or(true)) {
                if merges && edge.runs.len() > 1 && self.merge_edge(node, i, &covered) {
                    return Ok(Some(covered.start));
                }
                continue;
            }
            // Also if it is for other keys: the child is not changed below messages that wait for
            // it.
            if !edge.runs.is_empty() {
                let reach = FlushReach { least: self.trees.tuning.edge as u64, all: !self.policy.low_space };
                if self.trees.unflushable.contains(&edge) || !self.flush_edge(node, i, interval, reach)? {
                    continue;
                }
                return Ok(Some(covered.start));
            }
            let Some(child) = edge.child.filter(|_| below > 0) else { continue };
            if let Some((at, child)) = self.flush_range_child(&child, below, &covered, range, merges)? {
                let new = split_interior(child, self.trees.tuning.fanout, &covered);
                replace_edge(self.trees, node, i, new, &[], interval);
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The same below an interior child, with the child that comes out. It is looked at in its own
    /// key space: mostly nothing is pending there, and translating a header that names thousands of
    /// parts would be all that was done.
    fn flush_range_child(
        &self,
        child: &Child,
        below: u8,
        covered: &KeyRange,
        range: &KeyRange,
        merges: bool,
    ) -> Result<Option<(Key, Node)>> {
        if !child.is_behind_prefix() {
            let Ok(mut node) = child.load(self.trees, below, covered) else { return Ok(None) };
            let at = self.flush_range_node(&mut node, covered, range, merges)?;
            return Ok(at.map(|at| (at, node)));
        }
        let (inner, wanted) = (child.view.range_inward(covered), child.view.range_inward(range));
        let Ok(node) = child.slot.load(self.trees, below) else { return Ok(None) };
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut node = (*node).clone();
        let at = self.flush_range_node(&mut node, &inner, &wanted, merges)?;
        let outward = |at: Key| Key::from([&*child.view.to, &*at].concat());
        Ok(at.map(|at| (outward(at), node.through(&child.view.restrict(covered), &inner))))
    }

    /// True if messages wait on edge `i` of a node and something else refers to all of them:
    /// another edge, or another header. Applying them would take a copy.
    fn has_shared_messages(&self, node: &mut Node, i: usize) -> bool {
        let (_, edges) = edges_of(node);
        let parts = |edge: &Edge| -> Vec<PieceId> {
            let parts = edge.runs.iter().flat_map(|run| &run.parts);
            parts.filter_map(|part| Some(part.slot.place()?.handle.id())).collect()
        };
        let is_new = |part: &Arc<ViewedPart>| part.slot.place().is_none();
        let has_more = |run: &Arc<Run>| !run.ranges.is_empty() || run.parts.iter().any(is_new);
        if edges[i].runs.is_empty() || edges[i].runs.iter().any(has_more) {
            return false;
        }
        let others = edges.iter().enumerate().filter(|(other, _)| *other != i);
        let others: HashSet<PieceId> = others.flat_map(|(_, edge)| parts(edge)).collect();
        let is_shared = |id| others.contains(&id) || self.trees.locator.is_shared(id).unwrap_or(true);
        parts(&edges[i]).into_iter().all(is_shared)
    }

    /// Makes one run of those of an edge; false if they cannot be read, or space is short.
    fn merge_edge(&self, node: &mut Node, i: usize, covered: &KeyRange) -> bool {
        let edge = &mut edges_of(node).1[i];
        match self.runs().merge_runs(&edge.runs, covered) {
            Ok(run) if !self.policy.low_space => {
                edge.runs = if run.is_empty() { Vec::new() } else { vec![Arc::new(run)] };
                true
            }
            _ => false,
        }
    }

    /// How many bytes of large values an edge of a node of height `height` may hold: a share of
    /// what lies in the leaves below it, half that share one level further up, and so on.
    fn most_values(&self, height: u8) -> u64 {
        let leaf = (self.trees.tuning.leaf as u64).saturating_mul(self.policy.value_quota) / 256;
        let below =
            (self.trees.tuning.fanout as u64 / 2).max(1).saturating_pow(u32::from(height).saturating_sub(1));
        leaf.max(1).saturating_mul(below)
    }

    /// The bytes of large values that wait on the edges of the root; none if no edge has more than
    /// it may, for then nothing will be done about them.
    pub(crate) fn pending_value_bytes(&self, root: &Root) -> u64 {
        let Some(node) = root.slot.as_ref().and_then(|slot| slot.as_unwritten()) else { return 0 };
        let Body::Interior { edges, .. } = &node.body else { return 0 };
        let moving =
            || edges.iter().filter(|edge| !self.trees.unflushable.contains(edge)).map(Edge::pending_values);
        let worst = moving().max().unwrap_or(0);
        if worst > self.most_values(node.height) { moving().sum() } else { 0 }
    }

    /// Flushes edge `i` of `node`, which covers `interval`, into its child and further down as
    /// needed; false if something there cannot be read: then it is as it was, and unflushable.
    fn flush_edge(&self, node: &mut Node, i: usize, interval: &KeyRange, reach: FlushReach) -> Result<bool> {
        let covered = node.interval(i, interval);
        let edge = edges_of(node).1[i].clone();
        match self.flush_into_child(&edge, node.height - 1, &covered, reach) {
            Ok(nodes) => {
                replace_edge(self.trees, node, i, nodes, &[], interval);
                Ok(true)
            }
            Err(error) if error.is_of_reading() && self.trees.unflushable.insert(&edge) => {
                tracing::warn!(%error, "messages wait above a place that cannot be read");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// What the child of an edge over `covered` becomes with what waits on the edge.
    fn flush_into_child(
        &self,
        edge: &Edge,
        below: u8,
        covered: &KeyRange,
        reach: FlushReach,
    ) -> Result<Vec<(Key, Node)>> {
        let mut child = match &edge.child {
            Some(child) => child.load(self.trees, below, covered)?,
            None => Node::empty(below),
        };
        if let Body::Leaf(base) = &child.body {
            return leaf::apply(self, base, &edge.runs, covered, self.policy.gathering());
        }
        self.distribute(&mut child, &edge.runs, covered)?;
        while let Some((j, _)) = self.heaviest(&child, reach.least) {
            if self.flush_edge(&mut child, j, covered, reach)? && !reach.all {
                break;
            }
        }
        Ok(split_interior(child, self.trees.tuning.fanout, covered))
    }

    /// Moves runs (oldest first) to the edges of `node`.
    fn distribute(&self, node: &mut Node, runs: &[Arc<Run>], interval: &KeyRange) -> Result<()> {
        for i in 0..edges_of(node).1.len() {
            let covered = node.interval(i, interval);
            let mut seen = runs_within(runs, &covered);
            let run = match &mut seen[..] {
                [] => continue,
                // A run that lies wholly here is passed on as it is.
                [run]
                    if run.parts.iter().all(|p| {
                        p.view.is_identity() || p.view.from.is_empty() && p.view.bounds == KeyRange::all()
                    }) =>
                {
                    (**run).clone()
                }
                _ => {
                    let ranges = merged_ranges(&seen);
                    let mut merged = Merged::new(run_sources(self.trees, &seen));
                    merged.seek(&covered.start)?;
                    compact(self.trees, &mut merged, &ranges, &covered)?
                }
            };
            self.runs().add_run(&mut edges_of(node).1[i], &covered, run);
        }
        Ok(())
    }
}
