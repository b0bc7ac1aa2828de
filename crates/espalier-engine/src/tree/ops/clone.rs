//! Binding clones: from a redirection of keys to shared nodes; `docs/design/clones.md` has the model.
//!
//! Protocol: when the layers older than a goto have been absorbed, the root is the state that it
//! refers to. What begins with the source is then *cut out*: along its two borders headers are made
//! that show no more than it, everything inside is shared through views, and messages on their way
//! there become runs, seen through views, on the edges of the node that comes out. That node is
//! *hung* in the place of what begins with the destination, one level above its own height, so that
//! all paths stay of equal length [BetrFS 0.5, section 3]. No part is read or written but those of
//! small sources, which are copied.
//!
//! If there is such a node already, because the source was cloned before, and little is pending
//! above it, then no header is made: what is pending becomes runs on the edge above it, in both
//! places.
//!
//! Cost: the headers along the borders of source and destination.
//!
//! Where a header along a border cannot be read nothing is taken apart: each side shows its part of
//! the node as it is, through narrower bounds. So damage keeps no clone from becoming part of the
//! tree, and nobody but who reads it sees it.

use crate::Result;
use crate::message::pending_clone::PendingClone;
use crate::message::resolve::Found;
use crate::model::ids::Msn;
use crate::model::key::{Key, KeyRange};
use crate::model::value::Value;
use crate::model::view::View;
use crate::tree::interior::{edges_of, split_interior};
use crate::tree::node::{Body, Child, Edge, Node, NodeSlot, Root, UNKNOWN_WEIGHT};
use crate::tree::ops::compact::{compact, merged_ranges, run_sources};
use crate::tree::query::{Descent, Toward};
use crate::tree::run::{Run, runs_within, runs_without};
use crate::tree::source::{Inserts, Merged, before_end_of};
use crate::tree::trees::Trees;
use crate::tree::write::{blocks_of, header_blocks};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// So many runs of similar weight on one edge are merged into one.
const SIMILAR_RUNS: usize = 6;

/// And so many when the log is replayed.
const REPLAYED_RUNS: usize = 32;

/// Runs are similar if none has this many times the weight of another. With [`SIMILAR_RUNS`] it
/// bounds the runs on an edge by the logarithm of its weight, and the times that a message is
/// merged, too.
const SIMILAR: u64 = 6;

/// What a large value counts for when it is decided whether to copy.
const REFERENCE: usize = 64;

/// What a clone shares with its source: a node in a key space behind the prefix that is cloned.
struct Target {
    slot: Arc<NodeSlot>,
    /// What all of its keys begin with in that key space; they lack it in the node's own.
    behind: Key,
    weight: u64,
    height: u8,
    /// What is on its way to it in that key space, oldest first: little.
    runs: Vec<Arc<Run>>,
}

impl Target {
    /// It as an edge.
    fn seen_behind(&self, prefix: &[u8]) -> Edge {
        let view = View::lifted(&[prefix, &*self.behind].concat());
        let child = Child { slot: self.slot.clone(), view, weight: self.weight };
        let view = View::lifted(prefix);
        let runs = self.runs.iter().map(|run| Arc::new(run.through(&view))).collect();
        Edge { child: Some(child), runs }
    }
}

impl Trees {
    /// The root after `clone`, where `root` is the state it refers to.
    pub(crate) fn bind(self: &Arc<Self>, root: &Root, clone: &PendingClone) -> Result<Root> {
        let (source, destination) = (KeyRange::prefix(&clone.source), KeyRange::prefix(&clone.destination));
        let node = self.top(root)?;
        // What cannot be read is shared.
        if let Some(entries) = self.few_entries(root, &source).unwrap_or_default() {
            let root = self.hung((*node).clone(), &destination, None)?;
            let moved = |key: Key| [&*clone.destination, &key[clone.source.len()..]].concat().into();
            let entries = entries.into_iter().map(|(key, value)| (moved(key), value));
            return self.with_copies(&root, entries, clone.msn);
        }
        let target = match self.exact(&node, &source) {
            Some(target) if target.runs.is_empty() => {
                return self.hung((*node).clone(), &destination, Some(&target));
            }
            Some(target) => target,
            None => self.cut_out(&node, &source),
        };
        // In the source's own place, too: from now on they share header and runs, and the next
        // clone finds them.
        let root = self.hung((*node).clone(), &source, Some(&target))?;
        self.hung((*self.top(&root)?).clone(), &destination, Some(&target))
    }

    /// A root that denotes what `root` does behind `prefix`, without the prefix; `msn` is as new as
    /// anything there.
    pub(crate) fn taken_out(self: &Arc<Self>, root: &Root, prefix: &[u8], msn: Msn) -> Result<Root> {
        let source = KeyRange::prefix(prefix);
        if let Some(entries) = self.few_entries(root, &source).unwrap_or_default() {
            let entries = entries.into_iter().map(|(key, value)| (key[prefix.len()..].into(), value));
            return self.with_copies(&Root::default(), entries, msn);
        }
        let node = self.top(root)?;
        let target = match self.exact(&node, &source) {
            Some(target) => target,
            None => self.cut_out(&node, &source),
        };
        // Behind nothing the node's keys lack no more than what it lacks behind the prefix.
        self.hung(Node::empty(0), &KeyRange::all(), Some(&target))
    }

    /// The root after what begins with `prefix` has made room for what `other` denotes, behind the
    /// prefix.
    pub(crate) fn put_in(
        self: &Arc<Self>,
        root: &Root,
        prefix: &[u8],
        other: &Root,
        msn: Msn,
    ) -> Result<Root> {
        let (range, node) = (KeyRange::prefix(prefix), (*self.top(root)?).clone());
        if let Some(entries) = self.few_entries(other, &KeyRange::all()).unwrap_or_default() {
            let entries = entries.into_iter().map(|(key, value)| ([prefix, &key].concat().into(), value));
            return self.with_copies(&self.hung(node, &range, None)?, entries, msn);
        }
        let Some(slot) = other.slot.clone() else { return self.hung(node, &range, None) };
        let weight = self.root_node(other).map_or(UNKNOWN_WEIGHT, |node| node.weight());
        let target = Target { slot, behind: Key::default(), weight, height: other.height, runs: Vec::new() };
        self.hung(node, &range, Some(&target))
    }

    /// The root with entries that are newer than all that is there.
    fn with_copies(
        self: &Arc<Self>,
        root: &Root,
        entries: impl Iterator<Item = (Key, Value)>,
        msn: Msn,
    ) -> Result<Root> {
        let copies = Inserts::new(entries, msn);
        if copies.is_empty() {
            return Ok(root.clone());
        }
        let at_once = !self.lean.load(Relaxed);
        self.absorb_runs(root, &copies, at_once).or_else(|_| self.absorb_runs(root, &copies, false))
    }

    /// What begins with a prefix as a node that shows nothing else.
    fn cut_out(self: &Arc<Self>, node: &Node, source: &KeyRange) -> Target {
        let cut = self.lowered(self.cut(node, &KeyRange::all(), source), source);
        let (weight, height) = (cut.weight(), cut.height);
        let slot = Child::attach(&cut, source).slot;
        Target { slot, behind: Key::default(), weight, height, runs: Vec::new() }
    }

    /// The node below which lies all that begins with a prefix, and nothing else, if there is one
    /// and little is pending above; none if that cannot be read.
    fn exact(self: &Arc<Self>, root: &Node, source: &KeyRange) -> Option<Target> {
        let (mut node, mut covered) = (root.clone(), KeyRange::all());
        let mut pending: Vec<Arc<Run>> = Vec::new();
        loop {
            let Body::Interior { pivots, edges } = &node.body else { return None };
            let i = Node::edge_for(pivots, &source.start);
            let edge = &edges[i];
            let Some(child) = &edge.child else { return None };
            if i != Node::edge_before(pivots, source.end.as_deref()) {
                return None;
            }
            // What lies lower is older.
            pending.splice(0..0, runs_within(&edge.runs, source));
            if self.weighs_more(&pending, self.little()) {
                return None;
            }
            let height = node.height - 1;
            let whole = child.view.from.is_empty() && child.view.bounds == KeyRange::all();
            if let Some(behind) = child.view.to.strip_prefix(&*source.start).filter(|_| whole) {
                let (slot, behind) = (child.slot.clone(), behind.into());
                let inward = View::translated(&source.start, b"");
                let runs = pending.iter().map(|run| Arc::new(run.through(&inward))).collect();
                let mut edge = Edge { child: None, runs };
                self.merge_similar(&mut edge, &KeyRange::all());
                return Some(Target { slot, behind, weight: child.weight, height, runs: edge.runs });
            }
            covered = node.interval(i, &covered);
            node = child.load(self, height, &covered).ok()?;
        }
    }

    /// So many bytes may be pending at a clone that it takes along. Each clone names their parts in
    /// the header above it, and each flushes them for itself.
    fn little(&self) -> u64 {
        (4 * self.tuning.part as u64).min(self.tuning.edge as u64 / 2)
    }

    fn weighs_more(&self, runs: &[Arc<Run>], bytes: u64) -> bool {
        runs.iter().map(|run| run.weight()).sum::<u64>() > bytes
    }

    /// The root without what lies in `range`.
    pub(crate) fn without_range(self: &Arc<Self>, root: &Root, range: &KeyRange) -> Result<Root> {
        self.hung((*self.top(root)?).clone(), range, None)
    }

    /// The root after `target` has taken the place of what is in `range`.
    fn hung(self: &Arc<Self>, mut node: Node, range: &KeyRange, target: Option<&Target>) -> Result<Root> {
        let all = KeyRange::all();
        while target.is_some_and(|target| node.height <= target.height) {
            let child = (!node.is_hollow()).then(|| Child::attach(&node, &all));
            let edges = vec![Edge { child, runs: Vec::new() }];
            node = Node { height: node.height + 1, body: Body::Interior { pivots: Vec::new(), edges } };
        }
        self.hang(&mut node, &all, range, target);
        if node.is_hollow() {
            return Ok(Root::default());
        }
        Ok(self.grown(split_interior(node, self.tuning.fanout, &all)))
    }

    /// The entries of a range, if they are few enough to be copied.
    fn few_entries(self: &Arc<Self>, root: &Root, range: &KeyRange) -> Result<Option<Vec<(Key, Value)>>> {
        let mut entries = Vec::new();
        let Some(slot) = &root.slot else { return Ok(Some(entries)) };
        let mut start = range.start.clone();
        let (mut bytes, mut values) = (0, 0);
        loop {
            let all = KeyRange::all();
            let toward = Toward::Key(&start);
            let Descent { interval, sources } =
                Descent::new(self, slot, root.height, View::identity(), all, toward)?;
            let mut merged = Merged::new(sources);
            merged.seek(&start)?;
            while let Some(key) =
                merged.smallest().filter(|key| before_end_of(key, &interval) && before_end_of(key, range))
            {
                let mut found = Found::default();
                merged.levels(&key, |points, ranges| {
                    found.add_level(points.iter().cloned(), ranges);
                    !found.is_done()
                });
                if found.is_costly() {
                    return Ok(None);
                }
                if let Some(value) = found.value(&self.merge, &*self.pieces)? {
                    let large = !value.segments().is_empty();
                    bytes += key.len() + if large { REFERENCE } else { value.len() };
                    values += if large { value.len() } else { 0 };
                    entries.push((key.clone(), value));
                }
                // Values by reference weigh on the edge that they are copied to.
                if bytes > self.tuning.part || values > self.tuning.edge / 2 {
                    return Ok(None);
                }
                merged.next_behind(&key)?;
            }
            match interval.end {
                Some(end) if before_end_of(&end, range) => start = end,
                _ => return Ok(Some(entries)),
            }
        }
    }

    /// What `node`, covering `interval`, shows of `range`, as a node that refers to nothing else:
    /// headers are made along the borders, the rest is shared.
    fn cut(self: &Arc<Self>, node: &Node, interval: &KeyRange, range: &KeyRange) -> Node {
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
        self.drop_hollow(&mut node);
        node
    }

    /// The part of an edge over `covered` that concerns `inside`, as an edge over that.
    fn cut_edge(self: &Arc<Self>, edge: &Edge, below: u8, covered: &KeyRange, inside: &KeyRange) -> Edge {
        let runs = runs_within(&edge.runs, inside);
        let Some(child) = &edge.child else { return Edge { child: None, runs } };
        if inside.covers(&child.view.range_outward()) {
            return Edge { child: Some(child.clone()), runs };
        }
        let child = match child.load(self, below, covered) {
            Ok(node) => {
                let node = self.cut(&node, covered, inside);
                (!node.is_hollow()).then(|| Child::attach(&node, inside))
            }
            Err(_) => Some(Child { view: child.view.restrict(inside), ..child.clone() })
                .filter(|child| !child.view.is_empty()),
        };
        Edge { child, runs }
    }

    /// Goes down as long as there is a single edge, and it can be read: what is pending on it
    /// passes on to the edges below.
    fn lowered(self: &Arc<Self>, mut node: Node, interval: &KeyRange) -> Node {
        loop {
            let Body::Interior { edges, .. } = &node.body else { return node };
            let [Edge { child, runs }] = &edges[..] else { return node };
            match child {
                None if runs.is_empty() => return Node::empty(0),
                None if node.height == 1 => return node,
                None => node.height = 1,
                Some(_) if node.height == 1 && !runs.is_empty() => return node,
                Some(child) => {
                    let Ok(mut below) = child.load(self, node.height - 1, interval) else { return node };
                    let runs = &self.as_one(runs, interval);
                    if !runs.is_empty() {
                        for i in 0..edges_of(&mut below).1.len() {
                            let covered = below.interval(i, interval);
                            let edge = &mut edges_of(&mut below).1[i];
                            edge.runs.extend(runs_within(runs, &covered));
                            self.merge_similar(edge, &covered);
                        }
                    }
                    node = below;
                }
            }
        }
    }

    /// Runs as one run if they are not many bytes: on each of the edges to which they go a part of
    /// it is seen, and not a part of each of them. What cannot be read stays as it is.
    fn as_one(self: &Arc<Self>, runs: &[Arc<Run>], interval: &KeyRange) -> Vec<Arc<Run>> {
        if runs.len() < 2 || self.lean.load(Relaxed) || self.weighs_more(runs, 2 * self.little()) {
            return runs.to_vec();
        }
        match self.compacted(runs, interval) {
            Ok(run) if run.is_empty() => Vec::new(),
            Ok(run) => vec![Arc::new(run)],
            Err(_) => runs.to_vec(),
        }
    }

    fn compacted(self: &Arc<Self>, runs: &[Arc<Run>], interval: &KeyRange) -> Result<Run> {
        let ranges = merged_ranges(runs);
        let mut merged = Merged::new(run_sources(self, runs));
        merged.seek(&interval.start)?;
        compact(self, &mut merged, &ranges, interval)
    }

    /// Puts `target`, which is lower than `node`, in the place of what `node`, covering `interval`,
    /// has in `range`. `node` may have too many edges afterwards.
    fn hang(
        self: &Arc<Self>,
        node: &mut Node,
        interval: &KeyRange,
        range: &KeyRange,
        target: Option<&Target>,
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
            .then(|| self.hang_into(&edges_of(node).1[first].clone(), below, &a, &a, range, target))
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
            match beside.and_then(|left| self.hang_into(left, below, &before, &host, range, guest)) {
                Some(hosted) => new.extend(hosted),
                None => {
                    new.extend(left.map(|left| (a.start.clone(), left)));
                    let nothing = KeyRange { start: range.start.clone(), end: Some(range.start.clone()) };
                    let edge = Edge::default();
                    let hung =
                        guest.and_then(|_| self.hang_into(&edge, below, &nothing, range, range, guest));
                    match (own, hung) {
                        (Some(target), _) => {
                            new.push((range.start.clone(), target.seen_behind(&range.start)));
                        }
                        (None, Some(hung)) => new.extend(hung),
                        (None, None) => new.push((range.start.clone(), Edge::default())),
                    }
                }
            }
            new.extend(behind.zip(right).map(|(behind, right)| (behind.start, right)));
        }
        self.put_edges(node, first..last + 1, new, interval);
    }

    /// [`Trees::hang`] below an edge that covers `covered` and is to cover `host`; the edges that
    /// come out, each with its start. `None` if what is below cannot be read.
    fn hang_into(
        self: &Arc<Self>,
        edge: &Edge,
        below: u8,
        covered: &KeyRange,
        host: &KeyRange,
        range: &KeyRange,
        target: Option<&Target>,
    ) -> Option<Vec<(Key, Edge)>> {
        let mut child = match &edge.child {
            Some(child) => child.load(self, below, covered).ok()?,
            None => Node::empty(below),
        };
        self.hang(&mut child, host, range, target);
        let runs = runs_without(&edge.runs, range);
        let nodes = split_interior(child, self.tuning.fanout, host);
        let ends: Vec<Option<Key>> =
            nodes.iter().skip(1).map(|(start, _)| Some(start.clone())).chain([host.end.clone()]).collect();
        let edge = |((start, node), end): ((Key, Node), Option<Key>)| {
            let covered = KeyRange { start: start.clone(), end };
            let child = (!node.is_hollow()).then(|| Child::attach(&node, &covered));
            (start, Edge { child, runs: runs_within(&runs, &covered) })
        };
        Some(nodes.into_iter().zip(ends).map(edge).collect())
    }

    /// Puts edges, each with its start, in the place of some, and tidies up around them.
    fn put_edges(
        self: &Arc<Self>,
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
        self.drop_hollow(node);
        for left in (place.start.saturating_sub(1)..place.start + count).rev() {
            self.join_with_next(node, left, interval);
        }
    }

    /// Gives what edges without anything cover to their neighbours, whose children show nothing
    /// there.
    fn drop_hollow(&self, node: &mut Node) {
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

    /// The root after what waits on one of its edges in many small parts has become one run; `None`
    /// if nowhere it does that takes no more than `room` blocks. In a store that is short of space
    /// each checkpoint may leave a part with a few deletions there, which takes a block.
    pub(crate) fn joined_runs(self: &Arc<Self>, root: &Root, room: u64) -> Result<Option<Root>> {
        let Ok(mut node) = self.root_node(root).map(|node| (*node).clone()) else { return Ok(None) };
        let header = header_blocks(&node);
        let Body::Interior { edges, .. } = &node.body else { return Ok(None) };
        let parts = |edge: &Edge| edge.runs.iter().map(|run| run.parts.len() as u64).sum::<u64>();
        let (part, values) = ((self.tuning.part as u64 / 2).max(1), (self.tuning.leaf as u64 / 8).max(1));
        let least = |edge: &Edge| edge.pending() / part + edge.pending_values() / values + 1;
        let many = |edge: &Edge| edge.runs.len() > 1 && parts(edge) > 2 * least(edge);
        let fits = |edge: &Edge| blocks_of(edge.pending() as usize) + least(edge) + header <= room;
        let mut found: Vec<usize> =
            (0..edges.len()).filter(|i| many(&edges[*i]) && fits(&edges[*i])).collect();
        found.sort_by_key(|i| std::cmp::Reverse(parts(&edges[*i])));
        for i in found {
            let (_, edges) = edges_of(&mut node);
            let before = parts(&edges[i]);
            let runs = edges[i].runs.clone();
            let Ok(run) = self.compacted(&runs, &node.interval(i, &KeyRange::all())) else { continue };
            if (run.parts.len() as u64) < before {
                edges_of(&mut node).1[i].runs = if run.is_empty() { Vec::new() } else { vec![Arc::new(run)] };
                return Ok(Some(self.grown(vec![(Key::default(), node)])));
            }
        }
        Ok(None)
    }

    /// Merges the newest runs of an edge over `interval` as long as enough of them are similar. One
    /// that cannot be read stays as it is, and so do older ones.
    pub(crate) fn merge_similar(self: &Arc<Self>, edge: &mut Edge, interval: &KeyRange) {
        let mut readable = 0;
        // Merging makes reads faster and takes space until the next checkpoint.
        while !self.lean.load(Relaxed) {
            let (mut least, mut most, mut from) = (u64::MAX, 0, edge.runs.len());
            while let Some(run) = from.checked_sub(1).filter(|i| *i >= readable).map(|i| &edge.runs[i]) {
                least = least.min(run.weight().max(1));
                most = most.max(run.weight());
                if most >= SIMILAR * least {
                    break;
                }
                from -= 1;
            }
            let few = match self.memory.dirty_bytes.load(Relaxed) < self.unmerged.load(Relaxed) {
                true => REPLAYED_RUNS,
                false => SIMILAR_RUNS,
            };
            if edge.runs.len() - from < few {
                break;
            }
            match self.compacted(&edge.runs[from..], interval) {
                Ok(run) => {
                    edge.runs.truncate(from);
                    edge.runs.extend(Some(run).filter(|run| !run.is_empty()).map(Arc::new));
                }
                Err(_) => {
                    let alone = |run: &Arc<Run>| self.compacted(std::slice::from_ref(run), interval).is_err();
                    let Some(last) = edge.runs[from..].iter().rposition(alone) else { break };
                    readable = from + last + 1;
                }
            }
        }
    }
}
