//! Moving messages down: from a memtable to the root, from an edge to its child, into leaves.
//!
//! Each call computes a new root from an old one. Batches go to the child with most pending bytes;
//! cascades follow while a child holds too much itself [BetrFS 0.2]. Splits and joins happen on the
//! path that is being copied anyway.
//!
//! What is for a place that cannot be read waits above it, and keeps nothing else from moving: such
//! an edge is *stuck*, and passed over, until the next checkpoint, when it is tried again.

use crate::Result;
use crate::message::range_messages::{RangeMessages, RangeOps};
use crate::model::key::{Key, KeyRange, before_end, union_of};
use crate::model::op::RangeOp;
use crate::model::view::View;
use crate::tree::interior::{edges_of, join, parent_of, split_interior};
use crate::tree::node::{Body, Child, Edge, MAX_HEIGHT, Node, NodeSlot, Root, Spreading, UNKNOWN_WEIGHT};
use crate::tree::ops::compact::{compact, merged_ranges, run_sources};
use crate::tree::ops::leaf;
use crate::tree::ops::leaf::Gathering;
use crate::tree::run::{Run, join_runs, runs_within};
use crate::tree::source::{Merged, MessageSet};
use crate::tree::trees::Trees;
use crate::tree::write::{blocks_of, header_blocks};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// So many range deletes at a time are carried out at once.
const FEW_DELETES: usize = 16;

/// In a store that is short of space, a root that is a leaf of more blocks (or half of what makes
/// one) is only written again for a memtable if there is room for that: else messages wait above
/// it.
const SMALL_LEAF: u64 = 8;

/// What a part and a header above a leaf take, and a first leaf.
const ABOVE: Spreading = Spreading { each: 2, once: 2 };

/// How far a flush goes.
#[derive(Clone, Copy)]
struct Reach {
    /// Edges with more bytes than this are flushed.
    least: u64,
    /// All of them, or on each level only the heaviest.
    all: bool,
}

/// What [`Trees::sweep`] came to.
pub(crate) enum Sweep {
    /// The last leaf.
    End,
    /// Enough leaves looked at; the next begins here.
    Tired(Key),
    /// A leaf was rewritten: the new root, and where the next leaf begins, if there is one.
    Rewritten(Root, Option<Key>),
}

/// The same below one node.
enum Swept {
    End,
    Tired(Key),
    Rewritten(Option<Key>),
}

/// What there is to do in a tree.
pub(crate) type Work = Option<u64>;

impl Trees {
    /// Bytes on the heaviest edge of the root that is too heavy.
    pub(crate) fn pending_work(&self, root: &Root) -> Result<Work> {
        let Some(slot) = &root.slot else { return Ok(None) };
        // A root on the device has been left in order, or will be put in order when it is changed.
        let Some(node) = slot.unstored() else { return Ok(None) };
        Ok(self.heaviest(&node, self.tuning.edge as u64).map(|(_, bytes)| bytes))
    }

    /// The root after `messages`, newer than all that is there, have become part of the tree. A few
    /// range deletes are carried out `at_once`, so that what they held is free, and so is
    /// everything in a root that is a leaf; or messages wait above the leaves.
    pub(crate) fn absorb(
        self: &Arc<Self>,
        root: &Root,
        messages: &dyn MessageSet,
        at_once: bool,
    ) -> Result<Root> {
        match at_once {
            true => self.absorb_runs(&self.cleared(root, &messages.ranges())?, messages, true),
            false => self.absorb_runs(root, messages, false),
        }
    }

    /// Blocks that absorbing memtables may take in a store that is short of space, beside what
    /// their messages come to: of each a part for each edge of the root, and the root's header; or
    /// a root that is a small leaf, or what is put above it.
    ///
    /// # Errors
    /// Of reading the root.
    pub(crate) fn spreading(&self, root: &Root) -> Result<Spreading> {
        if let Some(known) = root.known_spreading() {
            return Ok(known);
        }
        let node = self.root_node(root)?;
        let once = header_blocks(&node) + 1;
        let found = match &node.body {
            Body::Leaf(base) => match self.leaf_blocks(base) {
                Some(blocks) => Spreading { each: 1, once: once + blocks },
                None => ABOVE,
            },
            // Each part is named in the header.
            Body::Interior { edges, .. } => {
                let edges = edges.len() as u64;
                Spreading { each: edges + edges.div_ceil(16), once }
            }
        };
        Ok(root.slot.as_ref().map_or(found, |slot| *slot.spread.get_or_init(|| found)))
    }

    /// The same for a root that cannot be read: more than it is.
    pub(crate) fn assume_spreading(&self, root: &Root) {
        if let Some(slot) = &root.slot {
            slot.spread.get_or_init(|| Spreading { each: self.tuning.fanout as u64, ..ABOVE });
        }
    }

    /// The blocks of the parts of a leaf; `None` if they are many.
    fn leaf_blocks(&self, base: &Run) -> Option<u64> {
        let most = SMALL_LEAF.min((self.tuning.leaf / self.tuning.part.max(1) / 2) as u64);
        let blocks = base.parts.iter().map(|part| blocks_of(part.slot.summary.bytes as usize)).sum();
        (blocks <= most).then_some(blocks)
    }

    /// The root after a sealed memtable's messages have become runs on its edges.
    pub(crate) fn absorb_runs(
        self: &Arc<Self>,
        root: &Root,
        messages: &dyn MessageSet,
        at_once: bool,
    ) -> Result<Root> {
        let all = KeyRange::all();
        let ranges = messages.ranges();
        let node = self.top(root)?;
        let mut merged = Merged::new(vec![messages.source()]);
        merged.seek(b"")?;
        match &node.body {
            Body::Leaf(base) => {
                let run = Arc::new(compact(self, &mut merged, &ranges, &all)?);
                let small = at_once || self.leaf_blocks(base).is_some() || run.ranges.deletes_all_of(&all);
                if small {
                    match leaf::apply(self, base, std::slice::from_ref(&run), &all, self.gathering()) {
                        // What cannot be read keeps nobody from making a checkpoint.
                        Err(_) if !at_once => {}
                        leaves => return Ok(self.grown(leaves?)),
                    }
                }
                Ok(self.grown(vec![(Key::default(), above(root, &node, run))]))
            }
            Body::Interior { .. } => {
                let mut node = (*node).clone();
                for i in 0..edges_of(&mut node).1.len() {
                    let interval = node.interval(i, &all);
                    let run = compact(self, &mut merged, &ranges, &interval)?;
                    self.receive(&mut edges_of(&mut node).1[i], &interval, run);
                }
                Ok(self.grown(vec![(Key::default(), node)]))
            }
        }
    }

    /// The root without what `ranges` delete, if that is a few ranges only.
    fn cleared(self: &Arc<Self>, root: &Root, ranges: &RangeMessages) -> Result<Root> {
        let mut root = root.clone();
        let deletes = |ops: &RangeOps| ops.iter().any(|(_, op)| *op == RangeOp::Delete);
        let deleted: Vec<KeyRange> =
            ranges.iter().filter(|(_, ops)| deletes(ops)).map(|(range, _)| range).collect();
        if deleted.len() <= FEW_DELETES && root.height > 0 {
            for range in union_of(deleted) {
                root = self.without_range(&root, &range)?;
            }
        }
        Ok(root)
    }

    /// The root after its heaviest edge has been flushed; `None` if no edge is too heavy.
    pub(crate) fn flush(self: &Arc<Self>, root: &Root) -> Result<Option<Root>> {
        let node = self.root_node(root)?;
        let reach = Reach { least: self.tuning.edge as u64, all: !self.lean.load(Relaxed) };
        let mut node = (*node).clone();
        while let Some((i, _)) = self.heaviest(&node, reach.least) {
            if self.flush_edge(&mut node, i, &KeyRange::all(), reach)? {
                return Ok(Some(self.grown(split_interior(node, self.tuning.fanout, &KeyRange::all()))));
            }
        }
        Ok(None)
    }

    /// The root after messages have been moved to one leaf, however few they are; `None` if there
    /// are none above the leaves. What is deleted or replaced takes space until its message gets
    /// there.
    pub(crate) fn squeeze(self: &Arc<Self>, root: &Root) -> Result<Option<Root>> {
        let Ok(mut node) = self.root_node(root).map(|node| (*node).clone()) else { return Ok(None) };
        if !self.squeeze_node(&mut node, &KeyRange::all())? {
            return Ok(None);
        }
        Ok(Some(self.grown(split_interior(node, self.tuning.fanout, &KeyRange::all()))))
    }

    fn squeeze_node(self: &Arc<Self>, node: &mut Node, interval: &KeyRange) -> Result<bool> {
        while let Some((i, _)) = self.heaviest(node, 0) {
            if self.flush_edge(node, i, interval, Reach { least: 0, all: false })? {
                return Ok(true);
            }
        }
        if node.height < 2 {
            return Ok(false);
        }
        for i in 0..edges_of(node).1.len() {
            let covered = node.interval(i, interval);
            let below = node.height - 1;
            // Nothing is changed below what is stuck.
            let Edge { child: Some(child), runs } = edges_of(node).1[i].clone() else { continue };
            if !runs.is_empty() {
                continue;
            }
            let Ok(mut child) = child.load(self, below, &covered) else { continue };
            if self.squeeze_node(&mut child, &covered)? {
                self.replace(node, i, split_interior(child, self.tuning.fanout, &covered), &[], interval);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The edge with most pending bytes that is not stuck, if that is more than `least`.
    ///
    /// Messages weigh as much as it costs to hand them on: large values are referred to, and not
    /// copied on the way. But what they replace takes space meanwhile, and a leaf may have to be
    /// rewritten for them; so an edge is heavy as well with more of them than
    /// [`Self::most_values`].
    pub(crate) fn heaviest(&self, node: &Node, least: u64) -> Option<(usize, u64)> {
        let Body::Interior { edges, .. } = &node.body else { return None };
        let most = self.most_values(node.height);
        let heavy = self.tuning.edge as u64;
        let weight = |edge: &Edge| {
            let values = u128::from(edge.pending_values()) * u128::from(heavy) / u128::from(most);
            edge.pending().max(u64::try_from(values).unwrap_or(u64::MAX))
        };
        let moving = edges.iter().enumerate().filter(|(_, edge)| !self.unflushable.contains(edge));
        let pending = moving.map(|(i, edge)| (i, weight(edge)));
        pending.filter(|(_, bytes)| *bytes > least).max_by_key(|(_, bytes)| *bytes)
    }

    /// Tries again what could not be read.
    pub(crate) fn forget_stuck(&self) {
        self.unflushable.clear();
    }

    /// Moves one step down what is pending in `range`, but not into what is shared, for that would
    /// take space; returns the new root and where to go on. `None` if nothing is pending there.
    pub(crate) fn push_down(self: &Arc<Self>, root: &Root, range: &KeyRange) -> Result<Option<(Root, Key)>> {
        let Ok(mut node) = self.root_node(root).map(|node| (*node).clone()) else { return Ok(None) };
        if matches!(node.body, Body::Leaf(_)) || self.is_shared_root(root)? {
            return Ok(None);
        }
        let all = KeyRange::all();
        let Some(at) = self.push_down_node(&mut node, &all, range)? else { return Ok(None) };
        let next = if at > range.start { at } else { range.start.clone() };
        Ok(Some((self.grown(split_interior(node, self.tuning.fanout, &all)), next)))
    }

    /// The same below a node; returns the start of what was changed.
    fn push_down_node(
        self: &Arc<Self>,
        node: &mut Node,
        interval: &KeyRange,
        range: &KeyRange,
    ) -> Result<Option<Key>> {
        let below = node.height - 1;
        for i in Node::edge_for(edges_of(node).0, &range.start)..edges_of(node).1.len() {
            let covered = node.interval(i, interval);
            if !before_end(&covered.start, range.end.as_deref()) {
                break;
            }
            let edge = edges_of(node).1[i].clone();
            if edge.child.as_ref().is_some_and(|child| self.is_shared(child).unwrap_or(true)) {
                continue;
            }
            // Also if it is for other keys: the child is not changed below messages that wait for
            // it.
            if !edge.runs.is_empty() {
                let reach = Reach { least: self.tuning.edge as u64, all: !self.lean.load(Relaxed) };
                if self.unflushable.contains(&edge) || !self.flush_edge(node, i, interval, reach)? {
                    continue;
                }
                return Ok(Some(covered.start));
            }
            let Some(child) = edge.child.filter(|_| below > 0) else { continue };
            let Ok(mut child) = child.load(self, below, &covered) else { continue };
            if let Some(at) = self.push_down_node(&mut child, &covered, range)? {
                self.replace(node, i, split_interior(child, self.tuning.fanout, &covered), &[], interval);
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// True if somebody else refers to the child, too.
    pub(crate) fn is_shared(&self, child: &Child) -> Result<bool> {
        match child.slot.place() {
            Some(handle) => self.locator.is_shared(handle.id()),
            None => Ok(false),
        }
    }

    pub(crate) fn is_shared_root(&self, root: &Root) -> Result<bool> {
        match root.slot.as_ref().and_then(|slot| slot.place()) {
            Some(handle) => self.locator.is_shared(handle.id()),
            None => Ok(false),
        }
    }

    /// How many bytes of large values an edge of a node of height `height` may hold: a share of
    /// what lies in the leaves below it, half that share one level further up, and so on.
    fn most_values(&self, height: u8) -> u64 {
        let leaf = (self.tuning.leaf as u64).saturating_mul(self.patience.load(Relaxed)) / 256;
        let below =
            (self.tuning.fanout as u64 / 2).max(1).saturating_pow(u32::from(height).saturating_sub(1));
        leaf.max(1).saturating_mul(below)
    }

    /// The bytes of large values that wait on the edges of the root; none if no edge has more than
    /// it may, for then nothing will be done about them.
    pub(crate) fn values_waiting(&self, root: &Root) -> u64 {
        let Some(node) = root.slot.as_ref().and_then(|slot| slot.unstored()) else { return 0 };
        let Body::Interior { edges, .. } = &node.body else { return 0 };
        let moving =
            || edges.iter().filter(|edge| !self.unflushable.contains(edge)).map(Edge::pending_values);
        let worst = moving().max().unwrap_or(0);
        if worst > self.most_values(node.height) { moving().sum() } else { 0 }
    }

    /// The same for what has to become part of the tree: of a root that cannot be read, one above
    /// it, where that can wait.
    ///
    /// # Errors
    /// Of reading a root that is as high as one may be.
    pub(crate) fn top(&self, root: &Root) -> Result<Arc<Node>> {
        match (self.root_node(root), &root.slot) {
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
    pub(crate) fn grown(self: &Arc<Self>, mut nodes: Vec<(Key, Node)>) -> Root {
        while nodes.len() > 1 {
            let node = parent_of(nodes, &KeyRange::all());
            nodes = split_interior(node, self.tuning.fanout, &KeyRange::all());
        }
        let Some((_, mut node)) = nodes.pop() else { return Root::default() };
        // A root with a single edge and nothing on it is not needed.
        while let Body::Interior { edges, .. } = &node.body {
            let [Edge { child, runs }] = &edges[..] else { break };
            if !runs.is_empty() {
                break;
            }
            let Some(child) = child else { return Root::default() };
            match child.load(self, node.height - 1, &KeyRange::all()) {
                Ok(below) => node = below,
                // It can be read later or it cannot; a root too many does no harm.
                Err(_) => break,
            }
        }
        Root { height: node.height, slot: Some(NodeSlot::new(node)) }
    }

    /// Looks at up to `visits` leaves from `from` on, for the first whose value parts hold much
    /// that is dead, and rewrites that one. Leaves below pending messages are passed over: squeeze
    /// those first.
    pub(crate) fn sweep(self: &Arc<Self>, root: &Root, from: &[u8], visits: &mut usize) -> Result<Sweep> {
        if self.is_shared_root(root)? {
            return Ok(Sweep::End);
        }
        let Ok(mut node) = self.root_node(root).map(|node| (*node).clone()) else { return Ok(Sweep::End) };
        let all = KeyRange::all();
        if let Body::Leaf(base) = &node.body {
            return match self.rewritten(base, &all) {
                Ok(Some(leaves)) => Ok(Sweep::Rewritten(self.grown(leaves), None)),
                Err(error) if !error.is_of_reading() => Err(error),
                _ => Ok(Sweep::End),
            };
        }
        Ok(match self.sweep_node(&mut node, &all, from, visits)? {
            Swept::End => Sweep::End,
            Swept::Tired(next) => Sweep::Tired(next),
            Swept::Rewritten(next) => {
                Sweep::Rewritten(self.grown(split_interior(node, self.tuning.fanout, &all)), next)
            }
        })
    }

    fn rewritten(self: &Arc<Self>, base: &Run, interval: &KeyRange) -> Result<Option<Vec<(Key, Node)>>> {
        if leaf::Gather::of(self, &base.parts, true).is_some() {
            return leaf::apply(self, base, &[], interval, Gathering::Sparse).map(Some);
        }
        Ok(None)
    }

    /// What to gather when a leaf is written anyway: nothing when space is short, for then it may
    /// be that a checkpoint depends on it, and nothing when somebody waits for the end: one step
    /// may concern many leaves, and gathering takes a read for each value.
    fn gathering(&self) -> Gathering {
        let hurried = self.lean.load(Relaxed) || self.closing.load(Relaxed);
        if hurried { Gathering::Nothing } else { Gathering::Scattered }
    }

    fn sweep_node(
        self: &Arc<Self>,
        node: &mut Node,
        interval: &KeyRange,
        from: &[u8],
        visits: &mut usize,
    ) -> Result<Swept> {
        let below = node.height - 1;
        let first = Node::edge_for(edges_of(node).0, from);
        for i in first..edges_of(node).1.len() {
            let covered = node.interval(i, interval);
            let Edge { child: Some(child), runs } = edges_of(node).1[i].clone() else { continue };
            if !runs.is_empty() || self.is_shared(&child)? {
                continue;
            }
            if *visits == 0 {
                return Ok(Swept::Tired(covered.start));
            }
            // What cannot be read stays where it is.
            let Ok(mut child) = child.load(self, below, &covered) else { continue };
            if let Body::Leaf(base) = &child.body {
                *visits -= 1;
                let rewritten = match self.rewritten(base, &covered) {
                    Err(error) if error.is_of_reading() => continue,
                    rewritten => rewritten?,
                };
                if let Some(leaves) = rewritten {
                    self.replace(node, i, leaves, &[], interval);
                    return Ok(Swept::Rewritten(covered.end));
                }
                continue;
            }
            match self.sweep_node(&mut child, &covered, from, visits)? {
                Swept::End => {}
                Swept::Rewritten(next) => {
                    let nodes = split_interior(child, self.tuning.fanout, &covered);
                    self.replace(node, i, nodes, &[], interval);
                    return Ok(Swept::Rewritten(next));
                }
                tired => return Ok(tired),
            }
        }
        Ok(Swept::End)
    }

    /// Adds a run to an edge that covers `interval`.
    fn receive(self: &Arc<Self>, edge: &mut Edge, interval: &KeyRange, mut run: Run) {
        if run.ranges.deletes_all_of(interval) {
            // Leaf pruning [BetrFS 0.2, section 5]: a child that is deleted is dropped unread.
            *edge = Edge::default();
        }
        if edge.is_empty() {
            run.ranges = without_deletes(&run.ranges);
        }
        if !run.is_empty() {
            edge.runs.push(Arc::new(run));
            self.merge_similar(edge, interval);
        }
    }

    /// Flushes edge `i` of `node`, which covers `interval`, into its child and further down as
    /// needed; false if something there cannot be read: then it is as it was, and stuck.
    fn flush_edge(
        self: &Arc<Self>,
        node: &mut Node,
        i: usize,
        interval: &KeyRange,
        reach: Reach,
    ) -> Result<bool> {
        let covered = node.interval(i, interval);
        let edge = edges_of(node).1[i].clone();
        match self.flushed(&edge, node.height - 1, &covered, reach) {
            Ok(nodes) => {
                self.replace(node, i, nodes, &[], interval);
                Ok(true)
            }
            Err(error) if error.is_of_reading() && self.unflushable.insert(&edge) => {
                tracing::warn!(%error, "messages wait above a place that cannot be read");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// What the child of an edge over `covered` becomes with what waits on the edge.
    fn flushed(
        self: &Arc<Self>,
        edge: &Edge,
        below: u8,
        covered: &KeyRange,
        reach: Reach,
    ) -> Result<Vec<(Key, Node)>> {
        let mut child = match &edge.child {
            Some(child) => child.load(self, below, covered)?,
            None => Node::empty(below),
        };
        if let Body::Leaf(base) = &child.body {
            return leaf::apply(self, base, &edge.runs, covered, self.gathering());
        }
        self.distribute(&mut child, &edge.runs, covered)?;
        while let Some((j, _)) = self.heaviest(&child, reach.least) {
            if self.flush_edge(&mut child, j, covered, reach)? && !reach.all {
                break;
            }
        }
        Ok(split_interior(child, self.tuning.fanout, covered))
    }

    /// Moves runs (oldest first) to the edges of `node`.
    fn distribute(self: &Arc<Self>, node: &mut Node, runs: &[Arc<Run>], interval: &KeyRange) -> Result<()> {
        for i in 0..edges_of(node).1.len() {
            let covered = node.interval(i, interval);
            let mut seen = runs_within(runs, &covered);
            let run = match &mut seen[..] {
                [] => continue,
                // A run whose parts lie wholly here is passed on as it is.
                [run]
                    if run.parts.iter().all(|p| {
                        p.view.is_identity() || p.view.from.is_empty() && p.view.bounds == KeyRange::all()
                    }) =>
                {
                    (**run).clone()
                }
                _ => {
                    let ranges = merged_ranges(&seen);
                    let mut merged = Merged::new(run_sources(self, &seen));
                    merged.seek(&covered.start)?;
                    compact(self, &mut merged, &ranges, &covered)?
                }
            };
            self.receive(&mut edges_of(node).1[i], &covered, run);
        }
        Ok(())
    }

    /// Puts `nodes` in the place of edge `i`, with `rest` on the way to them, and tidies up around
    /// them.
    pub(crate) fn replace(
        self: &Arc<Self>,
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
            self.join_with_next(node, left, interval);
        }
    }

    /// Joins edge `left` with the next one if both are small and can be read.
    pub(crate) fn join_with_next(self: &Arc<Self>, node: &mut Node, left: usize, interval: &KeyRange) {
        let below = node.height - 1;
        if left + 1 >= edges_of(node).1.len() {
            return;
        }
        let (a_covers, b_covers) = (node.interval(left, interval), node.interval(left + 1, interval));
        let (pivots, edges) = edges_of(node);
        let (a, b) = (&edges[left], &edges[left + 1]);
        let union = KeyRange { start: a_covers.start.clone(), end: b_covers.end.clone() };
        let weight = |edge: &Edge| edge.child.as_ref().map_or(0, |c| c.weight);
        let most = if below == 0 { self.tuning.leaf as u64 / 2 } else { self.tuning.fanout as u64 / 2 };
        let child = match (&a.child, &b.child) {
            (None, None) => None,
            // A child shows nothing beyond its own keys, so its edge may cover more.
            (Some(child), None) if b.runs.is_empty() => Some(child.clone()),
            (None, Some(child)) if a.runs.is_empty() => Some(child.clone()),
            (Some(_), Some(_)) if weight(a) + weight(b) > most => return,
            (Some(x), Some(y)) => {
                let (x, y) = (x.load(self, below, &a_covers), y.load(self, below, &b_covers));
                let (Ok(x), Ok(y)) = (x, y) else { return };
                // What waits in one that clones share would be named again in a header for each of
                // them.
                if x.names() + y.names() > self.tuning.fanout {
                    return;
                }
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
}

/// A root above the root `leaf` with a run that waits for it.
fn above(leaf: &Root, node: &Node, run: Arc<Run>) -> Node {
    let child =
        |slot: &Arc<NodeSlot>| Child { slot: slot.clone(), view: View::identity(), weight: node.weight() };
    let edge = Edge { child: leaf.slot.as_ref().map(child), runs: vec![run] };
    Node { height: 1, body: Body::Interior { pivots: Vec::new(), edges: vec![edge] } }
}

/// The range messages that still matter where nothing older lies below.
fn without_deletes(ranges: &RangeMessages) -> RangeMessages {
    let mut kept = RangeMessages::default();
    for (range, ops) in ranges.iter() {
        kept.push_fragment(range, ops.iter().filter(|(_, op)| *op != RangeOp::Delete).cloned().collect());
    }
    kept
}
