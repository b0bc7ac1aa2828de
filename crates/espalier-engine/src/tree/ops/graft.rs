//! Grafting: a key range is cut out of a tree as a node of its own, and a node takes the place of a
//! key range.
//!
//! Cutting makes headers along the two borders of the range that show no more than it; everything
//! inside is shared through views. Where a header along a border cannot be read nothing is taken
//! apart: each side shows its part of the node as it is, through narrower bounds. So damage keeps
//! no clone from becoming part of the tree, and only readers of the damaged keys meet it.

use super::editor::TreeEditor;
use super::rebuild::{changeable_root, join_with_next, root_above};
use super::run_merge::RunMerger;
use crate::Result;
use crate::model::key::{Key, KeyRange, lift};
use crate::model::view::View;
use crate::tree::interior::{edges_of, parent_of, split_interior};
use crate::tree::node::{Body, Child, Edge, Node, NodeSlot, Root, is_simple};
use crate::tree::run::{Run, runs_within};
use crate::tree::run_cuts::{runs_clear_of, runs_with_keys_in};
use crate::tree::trees::Trees;
use std::sync::Arc;

/// What a clone shares with its source: a node in a key space behind the prefix that is cloned.
pub(super) struct SharedSubtree {
    pub(super) slot: Arc<NodeSlot>,
    /// What all of its keys begin with in that key space; they lack it in the node's own.
    pub(super) behind: Key,
    pub(super) weight: u64,
    pub(super) height: u8,
    /// What is on its way to it in that key space, oldest first: little.
    pub(super) runs: Vec<Arc<Run>>,
}

/// The node below which lies all that begins with a prefix, and nothing else.
pub(super) enum Exact {
    /// Little is on its way to it.
    Light(SharedSubtree),
    /// So much that each clone would pay for it.
    Heavy {
        /// Of the node.
        height: u8,
    },
}

impl Exact {
    pub(super) fn height(&self) -> u8 {
        match self {
            Self::Light(found) => found.height,
            Self::Heavy { height } => *height,
        }
    }

    /// The node, if little is on its way to it.
    pub(super) fn light(self) -> Option<SharedSubtree> {
        match self {
            Self::Light(found) => Some(found),
            Self::Heavy { .. } => None,
        }
    }
}

impl SharedSubtree {
    /// It with what is on its way to it as a tree of its own.
    pub(super) fn as_root(&self) -> Root {
        let edges = vec![self.as_edge_behind(b"")];
        let node = Node { height: self.height + 1, body: Body::Interior { pivots: Vec::new(), edges } };
        Root { height: node.height, slot: Some(NodeSlot::new(node)) }
    }

    /// It as an edge.
    fn as_edge_behind(&self, prefix: &[u8]) -> Edge {
        let view = View::lifted(&[prefix, &*self.behind].concat());
        let child = Child { slot: self.slot.clone(), view, weight: self.weight };
        let view = View::lifted(prefix);
        let runs = self.runs.iter().map(|run| Arc::new(run.through(&view))).collect();
        Edge { child: Some(child), runs }
    }
}

impl TreeEditor<'_> {
    /// The root without what lies in `range`.
    pub(crate) fn without_range(&self, root: &Root, range: &KeyRange) -> Result<Root> {
        let node = (*changeable_root(self.trees, root)?).clone();
        Grafter::of(self).graft(node, range, None)
    }
}

/// Cuts nodes out of trees, and grafts them into trees.
pub(super) struct Grafter<'a> {
    trees: &'a Arc<Trees>,
    runs: RunMerger<'a>,
    /// Small neighbours of what is grafted are joined with it.
    joins: bool,
}

impl<'a> Grafter<'a> {
    pub(super) fn of(editor: &TreeEditor<'a>) -> Self {
        Self { trees: editor.trees, runs: editor.runs(), joins: true }
    }

    /// The same, but what is grafted inside of a clone stays beside its neighbours: both are shared
    /// with other clones, and joining them would make a header for each.
    pub(super) fn without_joining(self) -> Self {
        Self { joins: false, ..self }
    }

    /// The node below which lies all that begins with a prefix, and nothing else, if there is one;
    /// none if that cannot be read.
    pub(super) fn find_exact(&self, root: &Node, source: &KeyRange) -> Option<Exact> {
        let (mut node, mut covered) = (Arc::new(root.clone()), KeyRange::all());
        // Behind nothing, in the key space of the node that is looked at.
        let mut source = source.clone();
        // In the key space behind the source.
        let mut pending: Vec<Arc<Run>> = Vec::new();
        let mut is_heavy = false;
        loop {
            let Body::Interior { pivots, edges } = &node.body else { return None };
            let i = Node::edge_for(pivots, &source.start);
            let edge = &edges[i];
            let Some(child) = &edge.child else { return None };
            if i != Node::edge_before(pivots, source.end.as_deref()) {
                return None;
            }
            if !is_heavy {
                // What lies lower is older.
                let inward = View::translated(&source.start, b"");
                let found = runs_with_keys_in(self.trees, &edge.runs, &source);
                pending.splice(0..0, found.iter().map(|run| Arc::new(run.through(&inward))));
                is_heavy = self.runs.weigh_more(&pending, self.runs.small_pending_bytes());
            }
            let height = node.height - 1;
            let whole = child.view.from.is_empty() && child.view.bounds == KeyRange::all();
            if let Some(behind) = child.view.to.strip_prefix(&*source.start).filter(|_| whole) {
                if is_heavy {
                    return Some(Exact::Heavy { height });
                }
                let (slot, behind) = (child.slot.clone(), behind.into());
                let mut edge = Edge { child: None, runs: pending };
                self.runs.merge_similar(&mut edge, &KeyRange::all());
                let (weight, runs) = (child.weight, edge.runs);
                return Some(Exact::Light(SharedSubtree { slot, behind, weight, height, runs }));
            }
            covered = node.interval(i, &covered);
            if child.lifts_all_of(&source) {
                (covered, source) = (child.view.range_inward(&covered), child.view.range_inward(&source));
                node = child.slot.load(self.trees, height).ok()?;
            } else {
                node = Arc::new(child.load(self.trees, height, &covered).ok()?);
            }
        }
    }

    /// What begins with a prefix as a node that shows nothing else.
    pub(super) fn extract(&self, node: &Node, source: &KeyRange) -> SharedSubtree {
        let cut = self.collapse_top(self.cut(node, &KeyRange::all(), source), source);
        let (weight, height) = (cut.weight(), cut.height);
        let slot = Child::attach(&cut, source).slot;
        SharedSubtree { slot, behind: Key::default(), weight, height, runs: Vec::new() }
    }

    /// The root after `target` has taken the place of what is in `range`.
    pub(super) fn graft(
        &self,
        mut node: Node,
        range: &KeyRange,
        target: Option<&SharedSubtree>,
    ) -> Result<Root> {
        let all = KeyRange::all();
        while target.is_some_and(|target| node.height <= target.height) {
            let child = (!node.is_empty_map()).then(|| Child::attach(&node, &all));
            let edges = vec![Edge { child, runs: Vec::new() }];
            node = Node { height: node.height + 1, body: Body::Interior { pivots: Vec::new(), edges } };
        }
        self.graft_into(&mut node, &all, range, target);
        if node.is_empty_map() {
            return Ok(Root::default());
        }
        Ok(root_above(self.trees, split_interior(node, self.trees.tuning.fanout, &all)))
    }

    /// What `node`, covering `interval`, shows of `range`, as a node that refers to nothing else:
    /// headers are made along the borders, the rest is shared.
    fn cut(&self, node: &Node, interval: &KeyRange, range: &KeyRange) -> Node {
        let view = View::identity().restrict(range);
        let (pivots, edges) = match &node.body {
            Body::Leaf(run) => return Node { height: 0, body: Body::Leaf(Arc::new(run.through(&view))) },
            Body::Interior { pivots, edges } => (pivots, edges),
        };
        let mut shown = (Vec::new(), Vec::new());
        for (i, edge) in edges.iter().enumerate() {
            let covered = node.interval(i, interval);
            let inside = covered.intersect(range);
            if inside.is_empty() {
                continue;
            }
            if !shown.1.is_empty() {
                shown.0.push(pivots[i - 1].clone());
            }
            shown.1.push(match inside == covered {
                true => edge.clone(),
                false => self.cut_edge(edge, node.height - 1, &covered, &inside),
            });
        }
        if shown.1.is_empty() {
            shown.1.push(Edge::default());
        }
        let mut node = Node { height: node.height, body: Body::Interior { pivots: shown.0, edges: shown.1 } };
        drop_empty_edges(&mut node);
        node
    }

    /// The part of an edge over `covered` that concerns `inside`, as an edge over that. A child
    /// that shows nothing else stays as it is.
    fn cut_edge(&self, edge: &Edge, below: u8, covered: &KeyRange, inside: &KeyRange) -> Edge {
        let runs = runs_within(&edge.runs, inside);
        let Some(child) = &edge.child else { return Edge { child: None, runs } };
        if inside.covers(&child.view.range_outward()) {
            return Edge { child: Some(child.clone()), runs };
        }
        let lifted = lift(&inside.start, inside.end.as_deref());
        if child.is_behind_prefix() {
            let child = match child.slot.load(self.trees, below) {
                Ok(node) => self.cut_behind_prefix(child, &node, covered, inside),
                Err(_) => restricted(child, inside),
            };
            return Edge { child, runs };
        }
        let child = match child.load(self.trees, below, covered) {
            Ok(node) => {
                let cut = self.cut(&node, covered, inside);
                match child.view.to.starts_with(lifted) && node.is_same(&cut) {
                    true => Some(child.clone()),
                    false => (!cut.is_empty_map()).then(|| Child::attach(&cut, inside)),
                }
            }
            Err(_) => restricted(child, inside),
        };
        Edge { child, runs }
    }

    /// The part of a child, seen whole behind a prefix, that concerns `inside`. It is cut in the
    /// node's own key space: what is outside is not translated, and what is inside only if more can
    /// be lifted.
    fn cut_behind_prefix(
        &self,
        child: &Child,
        node: &Node,
        covered: &KeyRange,
        inside: &KeyRange,
    ) -> Option<Child> {
        let (covered, shown) = (child.view.range_inward(covered), child.view.range_inward(inside));
        if shown.is_empty() {
            return None;
        }
        let cut = self.cut(node, &covered, &shown);
        let lifted = lift(&inside.start, inside.end.as_deref());
        if child.view.to.starts_with(lifted) && node.is_same(&cut) {
            return Some(child.clone());
        }
        if cut.is_empty_map() {
            return None;
        }
        let inner = Child::attach(&cut, &shown);
        let to = [&*child.view.to, &*inner.view.to].concat();
        debug_assert!(to.starts_with(lifted), "less is lifted than the edge lifts");
        Some(Child { view: View::lifted(&to), ..inner })
    }

    /// `node`, which covers all keys, with headers that end at the borders of `range` and show
    /// nothing beyond: what takes the place of the range in a copy makes no headers below then, but
    /// on the way to its own height. These name little of what is pending. `None` if it is so
    /// already.
    pub(super) fn aligned(&self, node: &Node, range: &KeyRange) -> Option<Node> {
        let all = KeyRange::all();
        let mut node = match node.height {
            // Above a leaf there is no edge yet that could end there.
            0 => {
                let edges = vec![Edge { child: Some(Child::attach(node, &all)), runs: Vec::new() }];
                Node { height: 1, body: Body::Interior { pivots: Vec::new(), edges } }
            }
            _ => node.clone(),
        };
        let mut is_new = false;
        // From the right: then what is before the range ends at it, if nothing is inside.
        for border in range.end.iter().chain([&range.start]) {
            is_new |= self.align(&mut node, border);
        }
        if node.height == 1 && edges_of(&mut node).1.len() == 1 {
            return None;
        }
        if node.names() > self.trees.tuning.fanout {
            is_new |= self.move_names_down(&mut node, range);
        }
        if !is_new {
            return None;
        }
        let mut nodes = split_interior(node, self.trees.tuning.fanout, &all);
        match nodes.len() {
            1 => nodes.pop().map(|(_, node)| node),
            _ => Some(parent_of(nodes, &all)),
        }
    }

    /// Sees to it that `node`, aligned to `range`, names nothing that is pending, or less. False if
    /// that cannot be.
    fn move_names_down(&self, node: &mut Node, range: &KeyRange) -> bool {
        let all = KeyRange::all();
        let end = range.end.as_ref().map(|end| KeyRange { start: end.clone(), end: None });
        let before = KeyRange { start: Key::default(), end: Some(range.start.clone()) };
        let pieces = [Some(before), Some(range.clone()), end].into_iter().flatten();
        if edges_of(node).1.len() > 3 {
            let cut = pieces.filter(|piece| !piece.is_empty());
            let cut = cut.map(|piece| (piece.start.clone(), self.cut(node, &all, &piece)));
            *node = parent_of(cut.filter(|(_, node)| !node.is_empty_map()).collect(), &all);
            return true;
        }
        let mut is_new = false;
        for i in 0..edges_of(node).1.len() {
            let (covered, below) = (node.interval(i, &all), node.height - 1);
            let edge = &mut edges_of(node).1[i];
            let Some(child) = edge.child.as_ref().filter(|_| below > 0 && !edge.runs.is_empty()) else {
                continue;
            };
            let Ok(mut inner) = child.load(self.trees, below, &covered) else { continue };
            self.pass_on(&edge.runs, &mut inner, &covered);
            *edge = Edge { child: Some(Child::attach(&inner, &covered)), runs: Vec::new() };
            is_new = true;
        }
        is_new
    }

    /// Puts runs that are pending above an interior node on its edges.
    fn pass_on(&self, runs: &[Arc<Run>], node: &mut Node, interval: &KeyRange) {
        for i in 0..edges_of(node).1.len() {
            let covered = node.interval(i, interval);
            let edge = &mut edges_of(node).1[i];
            edge.runs.extend(runs_within(runs, &covered));
            self.runs.merge_similar(edge, &covered);
        }
    }

    /// [`Self::aligned`] at one border; false if nothing had to be changed.
    fn align(&self, node: &mut Node, border: &Key) -> bool {
        let i = Node::edge_for(edges_of(node).0, border);
        let (covered, below) = (node.interval(i, &KeyRange::all()), node.height - 1);
        let (pivots, edges) = edges_of(node);
        let Some(child) = edges[i].child.clone().filter(|_| covered.start != *border) else { return false };
        let before = KeyRange { start: covered.start.clone(), end: Some(border.clone()) };
        let behind = KeyRange { start: border.clone(), end: covered.end.clone() };
        let left = self.cut_edge(&edges[i], below, &covered, &before);
        let right = self.cut_edge(&edges[i], below, &covered, &behind);
        let is_same = |edge: &Edge| edge.child.as_ref().is_some_and(|c| Arc::ptr_eq(&c.slot, &child.slot));
        match (left.is_empty(), right.is_empty()) {
            (false, false) => {
                edges.splice(i..=i, [left, right]);
                pivots.insert(i, border.clone());
            }
            (false, true) if !is_same(&left) => edges[i] = left,
            (true, false) if !is_same(&right) => edges[i] = right,
            _ => return false,
        }
        true
    }

    /// Goes down as long as there is a single edge, and it can be read: what is pending on it
    /// passes on to the edges below.
    fn collapse_top(&self, mut node: Node, interval: &KeyRange) -> Node {
        loop {
            let Body::Interior { edges, .. } = &node.body else { return node };
            let [Edge { child, runs }] = &edges[..] else { return node };
            match child {
                None if runs.is_empty() => return Node::empty(0),
                None if node.height == 1 => return node,
                None => node.height = 1,
                Some(_) if node.height == 1 && !runs.is_empty() => return node,
                Some(child) => {
                    let Ok(mut below) = child.load(self.trees, node.height - 1, interval) else {
                        return node;
                    };
                    let runs = &self.runs.merge_if_small(runs, interval);
                    if !runs.is_empty() {
                        self.pass_on(runs, &mut below, interval);
                    }
                    node = below;
                }
            }
        }
    }

    /// Puts `target`, which is lower than `node`, in the place of what `node`, covering `interval`,
    /// has in `range`. `node` may have too many edges afterwards.
    fn graft_into(
        &self,
        node: &mut Node,
        interval: &KeyRange,
        range: &KeyRange,
        target: Option<&SharedSubtree>,
    ) {
        if let Body::Leaf(run) = &mut node.body {
            *run = Arc::new(run.without(range));
            return;
        }
        let below = node.height - 1;
        let first = Node::edge_for(edges_of(node).0, &range.start);
        let last = Node::edge_before(edges_of(node).0, range.end.as_deref()).max(first);
        let (a, b) = (node.interval(first, interval), node.interval(last, interval));
        let before = KeyRange { start: a.start.clone(), end: Some(range.start.clone()) };
        let behind = range.end.as_ref().map(|end| KeyRange { start: end.clone(), end: b.end.clone() });
        let behind = behind.filter(|behind| !behind.is_empty());
        // If it lies within what one child covers.
        let one = target.is_none_or(|target| target.height < below) && first == last;
        let within = one
            .then(|| self.graft_below(&edges_of(node).1[first].clone(), below, &a, &a, range, target))
            .flatten();
        let mut new: Vec<(Key, Edge)> = Vec::new();
        if let Some(within) = within {
            new = within;
        } else {
            let edges = edges_of(node).1;
            let left = match before.is_empty() {
                true => None,
                false => Some(self.cut_edge(&edges[first], below, &a, &before)),
            };
            let right = behind.as_ref().map(|behind| self.cut_edge(&edges[last], below, &b, behind));
            let own = target.filter(|target| target.height == below);
            let guest = if own.is_none() { target } else { None };
            // The neighbour on the left makes room.
            let host = KeyRange { start: a.start.clone(), end: range.end.clone() };
            let beside = left.as_ref().filter(|edge| guest.is_some() && !edge.is_empty());
            match beside.and_then(|left| self.graft_below(left, below, &before, &host, range, guest)) {
                Some(hosted) => new.extend(hosted),
                None => {
                    new.extend(left.map(|left| (a.start.clone(), left)));
                    let nothing = KeyRange { start: range.start.clone(), end: Some(range.start.clone()) };
                    let edge = Edge::default();
                    let grafted =
                        guest.and_then(|_| self.graft_below(&edge, below, &nothing, range, range, guest));
                    match (own, grafted) {
                        (Some(target), _) => {
                            new.push((range.start.clone(), target.as_edge_behind(&range.start)));
                        }
                        (None, Some(grafted)) => new.extend(grafted),
                        (None, None) => new.push((range.start.clone(), Edge::default())),
                    }
                }
            }
            new.extend(behind.zip(right).map(|(behind, right)| (behind.start, right)));
        }
        self.put_edges(node, first..last + 1, new, interval);
    }

    /// [`Self::graft_into`] below an edge that covers `covered` and is to cover `host`; the edges
    /// that come out, each with its start. `None` if what is below cannot be read.
    fn graft_below(
        &self,
        edge: &Edge,
        below: u8,
        covered: &KeyRange,
        host: &KeyRange,
        range: &KeyRange,
        target: Option<&SharedSubtree>,
    ) -> Option<Vec<(Key, Edge)>> {
        let children = match &edge.child {
            Some(child) if child.lifts_all_of(range) => {
                let node = (*child.slot.load(self.trees, below).ok()?).clone();
                let (inner, inner_range) = (child.view.range_inward(host), child.view.range_inward(range));
                let children = self.graft_into_child(node, &inner, &inner_range, target);
                let outward = |key: &[u8]| Key::from([&*child.view.to, key].concat());
                let raised = |(start, child): (Key, Option<Child>)| {
                    let raised = child.map(|c| Child { view: View::lifted(&outward(&c.view.to)), ..c });
                    (outward(&start), raised)
                };
                let mut raised: Vec<_> = children.into_iter().map(raised).collect();
                // The first one reaches down to where the edge does.
                raised[0].0 = host.start.clone();
                raised
            }
            Some(child) => {
                let node = child.load(self.trees, below, covered).ok()?;
                self.graft_into_child(node, host, range, target)
            }
            None => self.graft_into_child(Node::empty(below), host, range, target),
        };
        let runs = runs_clear_of(self.trees, &edge.runs, range);
        let ends: Vec<Option<Key>> =
            children.iter().skip(1).map(|(start, _)| Some(start.clone())).chain([host.end.clone()]).collect();
        let edge = |((start, child), end): ((Key, Option<Child>), Option<Key>)| {
            let covered = KeyRange { start: start.clone(), end };
            debug_assert!(child.as_ref().is_none_or(|child| is_simple(&child.view, &covered)));
            (start, Edge { child, runs: runs_within(&runs, &covered) })
        };
        Some(children.into_iter().zip(ends).map(edge).collect())
    }

    /// `node`, which covers `host`, after [`Self::graft_into`] as one child or several, each with
    /// its start; at least one.
    fn graft_into_child(
        &self,
        mut node: Node,
        host: &KeyRange,
        range: &KeyRange,
        target: Option<&SharedSubtree>,
    ) -> Vec<(Key, Option<Child>)> {
        self.graft_into(&mut node, host, range, target);
        let nodes = split_interior(node, self.trees.tuning.fanout, host);
        let ends: Vec<Option<Key>> =
            nodes.iter().skip(1).map(|(start, _)| Some(start.clone())).chain([host.end.clone()]).collect();
        let child = |((start, node), end): ((Key, Node), Option<Key>)| {
            let covered = KeyRange { start: start.clone(), end };
            (start, (!node.is_empty_map()).then(|| Child::attach(&node, &covered)))
        };
        nodes.into_iter().zip(ends).map(child).collect()
    }

    /// Puts edges, each with its start, in the place of some, and tidies up around them.
    fn put_edges(
        &self,
        node: &mut Node,
        place: std::ops::Range<usize>,
        new: Vec<(Key, Edge)>,
        interval: &KeyRange,
    ) {
        let (pivots, edges) = edges_of(node);
        let count = new.len();
        let inner: Vec<Key> = new.iter().skip(1).map(|(start, _)| start.clone()).collect();
        edges.splice(place.clone(), new.into_iter().map(|(_, edge)| edge));
        pivots.splice(place.start..place.end - 1, inner);
        drop_empty_edges(node);
        if !self.joins {
            return;
        }
        for left in (place.start.saturating_sub(1)..place.start + count).rev() {
            // A leaf that is grafted is shared, too.
            join_with_next(self.trees, node, left, interval, Node::named_parts);
        }
    }
}

/// A child through bounds, if it shows something there.
fn restricted(child: &Child, inside: &KeyRange) -> Option<Child> {
    Some(Child { view: child.view.restrict(inside), ..child.clone() }).filter(|child| !child.view.is_empty())
}

/// Gives what empty edges cover to their neighbours: the children of these show nothing there.
fn drop_empty_edges(node: &mut Node) {
    let mut i = 0;
    while edges_of(node).1.len() > 1 && i < edges_of(node).1.len() {
        if !edges_of(node).1[i].is_empty() {
            i += 1;
            continue;
        }
        let (pivots, edges) = edges_of(node);
        edges.remove(i);
        pivots.remove(i.saturating_sub(1));
    }
}
