//! Comparison: at which keys two ranges may differ, without looking at what they share.
//!
//! Both trees are walked from the top, each range in the key space behind its prefix. A node that
//! both walks reach through the same translation denotes the same on both sides and is skipped.
//! Parts are skipped likewise: two paths that see the same parts in the same order give a key the
//! same messages, except for keys in parts (and range messages) that only one side sees. Those keys
//! are the *suspects*, but for those for which such parts of both sides have equal messages. Why
//! that is enough: "Comparison" in `docs/design/tree.md`.

mod messages;

use crate::Result;
use crate::model::ids::{Msn, PieceId};
use crate::model::key::{Key, KeyRange, union_of};
use crate::model::view::View;
use crate::tree::inspect::suspects::Suspects;
use crate::tree::node::{Body, Node, NodeSlot, Root};
use crate::tree::part_slot::PartSlot;
use crate::tree::run::{Run, ViewedPart};
use crate::tree::trees::Trees;
use messages::SidePiece;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What names a piece here, on the device or in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Name {
    Stored(PieceId),
    Memory(usize),
}

/// The translation of a view with nothing in it that could be left out.
type Translation = (Key, Key);

/// What both sides see of one piece, or of one range message: ranges behind the prefixes.
type Coverage = [Vec<KeyRange>; 2];

/// Nodes of one side still to be looked at, by all that tells how they are seen; the highest come
/// first.
type Frontier = BTreeMap<(std::cmp::Reverse<u8>, Name, [Key; 3], Option<Key>), (Arc<NodeSlot>, View)>;

/// A part as both sides see it through one translation.
struct SeenPart {
    slot: Arc<PartSlot>,
    coverage: Coverage,
    /// Sides that see it in runs on edges.
    in_runs: [bool; 2],
}

#[derive(Default)]
struct Comparison {
    frontiers: [Frontier; 2],
    /// Entries of leaves, with the views through which they are seen.
    leaves: [Vec<(View, Arc<Run>)>; 2],
    parts: HashMap<(Name, Translation), SeenPart>,
    ranges: HashMap<Msn, Coverage>,
    nodes: u64,
}

impl Trees {
    /// Where the keys behind two prefixes may differ.
    pub(crate) fn suspects(&self, sides: [(&Root, &[u8]); 2]) -> Result<Suspects> {
        self.suspects_seen(sides.map(|(root, prefix)| (root, View::translated(prefix, b""))))
    }

    /// False if two trees are known to have the same in a range of keys.
    pub(crate) fn may_differ(&self, sides: [&Root; 2], range: &KeyRange) -> Result<bool> {
        let view = View::identity().restrict(range);
        let suspects = self.suspects_seen(sides.map(|root| (root, view.clone())))?;
        Ok(!suspects.keys.is_empty() || !suspects.ranges.is_empty())
    }

    /// Where trees may differ as they look through views.
    fn suspects_seen(&self, sides: [(&Root, View); 2]) -> Result<Suspects> {
        let mut comparison = Comparison::default();
        for (side, (root, view)) in sides.into_iter().enumerate() {
            if let Some(slot) = &root.slot {
                comparison.visit_node(side, slot, root.height, view);
            }
        }
        while let Some((side, slot, height, view)) = comparison.next() {
            comparison.nodes += 1;
            let node = slot.load(self, height)?;
            comparison.look(side, &node, &view);
        }
        comparison.finish(self)
    }
}

impl Comparison {
    fn visit_node(&mut self, side: usize, slot: &Arc<NodeSlot>, height: u8, view: View) {
        if view.is_empty() {
            return;
        }
        let name = match slot.place() {
            Some(handle) => Name::Stored(handle.id()),
            None => Name::Memory(Arc::as_ptr(slot) as usize),
        };
        // Two bounded views of one node may differ in nothing else.
        let View { from, to, bounds } = view.clone();
        let key = (std::cmp::Reverse(height), name, [from, to, bounds.start], bounds.end);
        // A node that is seen whole is the same for each reader that sees it whole.
        if view.from.is_empty()
            && view.bounds == KeyRange::all()
            && self.frontiers[1 - side].get(&key).is_some_and(|(_, other)| *other == view)
        {
            self.frontiers[1 - side].remove(&key);
            return;
        }
        self.frontiers[side].insert(key, (slot.clone(), view));
    }

    /// The highest node that is left: all above it have been looked at, so the other side would
    /// have it by now if it had it at all.
    fn next(&mut self) -> Option<(usize, Arc<NodeSlot>, u8, View)> {
        let top = |side: usize| self.frontiers[side].keys().next().map(|key| key.0.0);
        let side = usize::from(top(1) > top(0));
        let ((std::cmp::Reverse(height), ..), (slot, view)) = self.frontiers[side].pop_first()?;
        Some((side, slot, height, view))
    }

    fn look(&mut self, side: usize, node: &Node, view: &View) {
        match &node.body {
            Body::Leaf(run) => self.leaves[side].push((view.clone(), run.clone())),
            Body::Interior { pivots, edges } => {
                for edge in &edges[Node::edges_within(pivots, &view.bounds)] {
                    edge.runs.iter().for_each(|run| self.run((side, true), run, view));
                    if let Some(child) = &edge.child {
                        self.visit_node(side, &child.slot, node.height - 1, view.compose(&child.view));
                    }
                }
            }
        }
    }

    fn run(&mut self, (side, is_on_edge): (usize, bool), run: &Run, view: &View) {
        let near = run.parts_near(&view.bounds).iter();
        near.for_each(|part| self.part((side, is_on_edge), part, view));
        for (range, ops) in run.ranges.within(&view.bounds).iter() {
            let range = view.range_to_outer(&range);
            for (msn, _) in ops.iter().filter(|_| !range.is_empty()) {
                self.ranges.entry(*msn).or_default()[side].push(range.clone());
            }
        }
    }

    fn part(&mut self, (side, is_on_edge): (usize, bool), part: &ViewedPart, view: &View) {
        if !part.may_show_some_of(&view.bounds) {
            return;
        }
        let composed = view.compose(&part.view);
        let translation = shortest(&composed);
        let Some(seen) = ViewedPart::viewed(part.slot.clone(), composed) else { return };
        // Exact: a key that it counted among what both sides see, and that one side does not see,
        // would be said to have equal messages.
        let range = seen.shown();
        let entry = self.parts.entry((name_of(&part.slot), translation));
        let entry = entry.or_insert_with(|| SeenPart::new(seen.slot));
        entry.coverage[side].push(range);
        entry.in_runs[side] |= is_on_edge;
    }

    /// Adds the parts of all leaves. Where both sides see a leaf in one place, most of its parts
    /// are mostly the same: these are passed over at once.
    fn add_leaves(&mut self) {
        let [old, new] = std::mem::take(&mut self.leaves);
        let mut old: HashMap<View, Vec<Arc<Run>>> = old.into_iter().fold(HashMap::new(), |mut all, leaf| {
            all.entry(leaf.0).or_default().push(leaf.1);
            all
        });
        for (view, run) in new {
            match old.get_mut(&view).and_then(Vec::pop) {
                Some(other) => self.both_leaves(&view, [&other, &run]),
                None => self.run((1, false), &run, &view),
            }
        }
        for (view, runs) in old {
            runs.iter().for_each(|run| self.run((0, false), run, &view));
        }
    }

    /// Adds the parts of two leaves that are seen through one view, but for those that both have.
    fn both_leaves(&mut self, view: &View, runs: [&Run; 2]) {
        let [mut old, mut new] = runs.map(|run| run.parts_near(&view.bounds));
        loop {
            let (take_old, take_new) = match (old.first(), new.first()) {
                (None, None) => return,
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some(a), Some(b)) if name_of(&a.slot) == name_of(&b.slot) && a.view == b.view => {
                    (old, new) = (&old[1..], &new[1..]);
                    continue;
                }
                (Some(a), Some(b)) => (a.first <= b.first, b.first <= a.first),
            };
            for (side, parts, take) in [(0, &mut old, take_old), (1, &mut new, take_new)] {
                if let Some((first, rest)) = parts.split_first().filter(|_| take) {
                    self.part((side, false), first, view);
                    *parts = rest;
                }
            }
        }
    }

    fn finish(mut self, trees: &Trees) -> Result<Suspects> {
        self.add_leaves();
        let mut suspects = Suspects { nodes: self.nodes, ..Suspects::default() };
        let mut pieces = [Vec::new(), Vec::new()];
        let mut elsewhere = Vec::new();
        for ((_, (from, to)), SeenPart { slot, coverage, in_runs }) in self.parts {
            if in_runs.contains(&true) && coverage.iter().all(|ranges| !ranges.is_empty()) {
                elsewhere.extend(coverage.iter().flatten().cloned());
            }
            for (side, only) in differing(coverage).into_iter().enumerate() {
                pieces[side].extend(only.into_iter().map(|range| {
                    let view = View::translated(&from, &to).restrict(&range);
                    SidePiece { range, slot: slot.clone(), view, in_leaf: !in_runs[side] }
                }));
            }
        }
        elsewhere.extend(self.ranges.values().flatten().flatten().cloned());
        messages::compare_messages(trees, pieces, union_of(elsewhere), &mut suspects)?;
        for coverage in self.ranges.into_values() {
            suspects.ranges.extend(differing(coverage).into_iter().flatten());
        }
        suspects.sort_ranges();
        Ok(suspects)
    }
}

impl SeenPart {
    fn new(slot: Arc<PartSlot>) -> Self {
        Self { slot, coverage: Coverage::default(), in_runs: [false; 2] }
    }
}

fn name_of(slot: &Arc<PartSlot>) -> Name {
    match slot.id() {
        Some(id) => Name::Stored(id),
        None => Name::Memory(Arc::as_ptr(slot) as usize),
    }
}

/// The translation of `view` without the bytes that both prefixes end in.
fn shortest(view: &View) -> Translation {
    let same = view.from.iter().rev().zip(view.to.iter().rev()).take_while(|(a, b)| a == b).count();
    (view.from[..view.from.len() - same].into(), view.to[..view.to.len() - same].into())
}

/// What each side covers and the other does not.
fn differing(coverage: Coverage) -> Coverage {
    let [old, new] = coverage.map(union_of);
    [without(&old, &new), without(&new, &old)]
}

/// What is in `ranges` and not in `others`; both are in order.
fn without(ranges: &[KeyRange], others: &[KeyRange]) -> Vec<KeyRange> {
    let mut rest = Vec::new();
    for range in ranges {
        let mut at = Some(range.start.clone());
        for other in others.iter().filter(|other| other.overlaps(range)) {
            let Some(start) = at.take() else { break };
            rest.push(KeyRange { start, end: Some(other.start.clone()) });
            at = other.end.clone();
        }
        rest.extend(at.map(|start| KeyRange { start, end: range.end.clone() }));
    }
    rest.retain(|range| !range.is_empty());
    rest
}
