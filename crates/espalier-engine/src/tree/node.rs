//! Nodes, edges, runs, and how they look through a view.

use super::Trees;
use super::slot::{NodeSlot, PartSlot};
use crate::Result;
use crate::message::range_messages::RangeMessages;
use crate::model::key::{Key, KeyRange, before_end, end_le, lift};
use crate::model::view::View;
use std::sync::Arc;

/// A node header in memory. Keys are in the node's own key space.
#[derive(Clone)]
pub(crate) struct Node {
    /// Distance to the leaves.
    pub(crate) height: u8,
    pub(crate) body: Body,
}

#[derive(Clone)]
pub(crate) enum Body {
    /// The entries: a run of inserts, one per key, without range messages. Walks hold it, and copy
    /// nothing.
    Leaf(Arc<Run>),
    /// Edge `i` covers the keys from pivot `i - 1` up to pivot `i`.
    Interior { pivots: Vec<Key>, edges: Vec<Edge> },
}

/// A child with what is on its way to it.
#[derive(Clone, Default)]
pub(crate) struct Edge {
    /// `None` is the empty map.
    pub(crate) child: Option<Child>,
    /// Oldest first.
    pub(crate) runs: Vec<Arc<Run>>,
}

/// The weight of a node that could not be read when the edge to it was made.
pub(super) const UNKNOWN_WEIGHT: u64 = 0;

/// A reference to a node.
#[derive(Clone)]
pub(crate) struct Child {
    pub(crate) slot: Arc<NodeSlot>,
    pub(crate) view: View,
    /// Of a leaf the bytes of its parts and values, of an interior node the number of its edges; or
    /// [`UNKNOWN_WEIGHT`].
    pub(crate) weight: u64,
}

/// Messages that came down together, or the entries of a leaf.
#[derive(Clone, Default)]
pub(crate) struct Run {
    /// In key order, overlapping at most in a bound.
    pub(crate) parts: Vec<ViewedPart>,
    pub(crate) ranges: RangeMessages,
}

/// A part as it appears in a node.
#[derive(Clone)]
pub(crate) struct ViewedPart {
    pub(crate) slot: Arc<PartSlot>,
    pub(crate) view: View,
    /// No visible key is smaller.
    pub(crate) first: Key,
    /// No visible key is larger; `None` says nothing.
    pub(crate) last: Option<Key>,
}

impl ViewedPart {
    /// The part as it is.
    pub(crate) fn whole(slot: Arc<PartSlot>) -> Self {
        let (first, last) = (slot.summary.first.clone(), slot.summary.last.clone());
        Self { slot, view: View::identity(), first, last: Some(last) }
    }

    /// The part through `view`; `None` if nothing of it is visible.
    pub(crate) fn viewed(slot: Arc<PartSlot>, mut view: View) -> Option<Self> {
        let summary = &slot.summary;
        // Bounds outside of what the part holds say nothing.
        if view.bounds.start <= summary.first {
            view.bounds.start = Key::default();
        }
        if !end_le(view.bounds.end.as_deref(), Some(&summary.last)) {
            view.bounds.end = None;
        }
        let held = KeyRange { start: summary.first.clone(), end: Some(just_behind(&summary.last)) };
        let shown = view.range_to_outer(&held);
        if shown.is_empty() {
            return None;
        }
        let last = view.outward(&summary.last).or(shown.end);
        Some(Self { slot, view, first: shown.start, last })
    }

    /// This part as seen through `view`.
    fn through(&self, view: &View) -> Option<Self> {
        self.wholly_through(view).or_else(|| Self::viewed(self.slot.clone(), view.compose(&self.view)))
    }

    /// The same if all that is visible of it stays visible: then its bounds say what they said.
    /// `None` if that is not known.
    fn wholly_through(&self, view: &View) -> Option<Self> {
        let last = self.last.as_ref()?;
        if !view.bounds.contains(&self.first) || !view.bounds.contains(last) {
            return None;
        }
        if view.from.is_empty() && view.to.is_empty() {
            return Some(self.clone());
        }
        let moved = |key: &Key| {
            let rest = key.strip_prefix(&*view.from)?;
            Some(Key::from([&*view.to, rest].concat()))
        };
        let (first, last) = (moved(&self.first)?, moved(last)?);
        let seen = View { to: moved(&self.view.to)?, ..self.view.clone() };
        Some(Self { slot: self.slot.clone(), view: seen, first, last: Some(last) })
    }
}

/// The smallest key behind `key`.
fn just_behind(key: &[u8]) -> Key {
    [key, &[0]].concat().into()
}

impl Run {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.ranges.is_empty()
    }

    /// Bytes of its parts, values and range messages.
    pub(crate) fn weight(&self) -> u64 {
        self.parts.iter().map(|p| p.slot.weight()).sum::<u64>() + self.ranges.memory() as u64
    }

    /// The same without values.
    fn message_bytes(&self) -> u64 {
        let parts: u64 = self.parts.iter().map(|p| u64::from(p.slot.summary.bytes)).sum();
        parts + self.ranges.memory() as u64
    }

    /// This run as seen through `view`.
    pub(crate) fn through(&self, view: &View) -> Run {
        let parts = self.parts_near(&view.bounds).iter().filter_map(|p| p.through(view)).collect();
        let ranges = if self.ranges.is_empty() {
            RangeMessages::default()
        } else {
            self.ranges.within(&view.bounds).map_ranges(|range| view.range_to_outer(range))
        };
        Run { parts, ranges }
    }

    /// The parts that may show keys in `range`, and perhaps one more.
    fn parts_near(&self, range: &KeyRange) -> &[ViewedPart] {
        // Each ends where the next one begins, or before.
        let from = self.parts.partition_point(|p| p.first < range.start).saturating_sub(1);
        let to = self.parts.partition_point(|p| before_end(&p.first, range.end.as_deref()));
        &self.parts[from.min(to)..to]
    }

    /// The part that holds `key` if any does, and its number.
    pub(crate) fn part_for(&self, key: &[u8]) -> Option<(usize, &ViewedPart)> {
        let number = self.parts.partition_point(|p| *p.first <= *key).checked_sub(1)?;
        let part = &self.parts[number];
        part.last.as_ref().is_none_or(|last| *key <= **last).then_some((number, part))
    }

    /// Appends a run whose keys are all larger.
    pub(super) fn append(&mut self, other: &Run) {
        self.parts.extend(other.parts.iter().cloned());
        for (range, ops) in other.ranges.iter() {
            self.ranges.push_fragment(range, ops.clone());
        }
    }
}

impl Edge {
    /// Bytes on their way to the child, without large values.
    pub(crate) fn pending(&self) -> u64 {
        self.runs.iter().map(|r| r.message_bytes()).sum()
    }

    /// Bytes of large values on their way to the child.
    pub(crate) fn pending_values(&self) -> u64 {
        self.runs.iter().flat_map(|r| &r.parts).map(|p| p.slot.summary.value_bytes).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.child.is_none() && self.runs.is_empty()
    }
}

impl Child {
    /// The node `node`, whose keys are in the key space of the parent, as the simple child of an
    /// edge that covers `interval`.
    pub(crate) fn attach(node: &Node, interval: &KeyRange) -> Child {
        let prefix = lift(&interval.start, interval.end.as_deref());
        let weight = node.weight();
        let slot = if prefix.is_empty() {
            NodeSlot::new(node.clone())
        } else {
            NodeSlot::new(node.through(&View::translated(prefix, b""), interval))
        };
        Child { slot, view: View::lifted(prefix), weight }
    }

    /// True if not all of the node is shown, as it could not be read when it was to be taken apart
    /// (`tree/clone`).
    pub(super) fn is_bounded(&self) -> bool {
        self.view.bounds != KeyRange::all()
    }

    /// The child in the key space of the parent, for an edge that covers `interval`.
    pub(crate) fn load(&self, trees: &Trees, height: u8, interval: &KeyRange) -> Result<Node> {
        let node = self.slot.load(trees, height)?;
        // A node of which not all is shown covers more than that: else its first and last edges
        // would be taken for shown whole.
        let inner = match self.is_bounded() {
            true => KeyRange::all(),
            false => self.view.range_inward(interval),
        };
        Ok(node.through(&self.view.restrict(interval), &inner))
    }
}

impl Node {
    /// A leaf without entries, or an interior node above nothing.
    pub(crate) fn empty(height: u8) -> Node {
        let body = match height {
            0 => Body::Leaf(Arc::default()),
            _ => Body::Interior { pivots: Vec::new(), edges: vec![Edge::default()] },
        };
        Node { height, body }
    }

    pub(crate) fn leaf(parts: Vec<ViewedPart>) -> Node {
        Node { height: 0, body: Body::Leaf(Arc::new(Run { parts, ranges: RangeMessages::default() })) }
    }

    /// See [`Child::weight`].
    pub(crate) fn weight(&self) -> u64 {
        match &self.body {
            Body::Leaf(run) => run.weight(),
            Body::Interior { edges, .. } => edges.len() as u64,
        }
    }

    /// How often the header of an interior node names a part.
    pub(super) fn names(&self) -> usize {
        match &self.body {
            Body::Leaf(_) => 0,
            Body::Interior { edges, .. } => {
                edges.iter().flat_map(|e| &e.runs).map(|run| run.parts.len()).sum()
            }
        }
    }

    /// The interval that edge `i` covers in a node that covers `interval`.
    pub(crate) fn interval(&self, i: usize, interval: &KeyRange) -> KeyRange {
        match &self.body {
            Body::Leaf(_) => interval.clone(),
            Body::Interior { pivots, .. } => KeyRange {
                start: if i == 0 { interval.start.clone() } else { pivots[i - 1].clone() },
                end: pivots.get(i).cloned().or_else(|| interval.end.clone()),
            },
        }
    }

    /// The edge whose interval holds `key`.
    pub(crate) fn edge_for(pivots: &[Key], key: &[u8]) -> usize {
        pivots.partition_point(|p| **p <= *key)
    }

    /// The edge whose interval holds the keys just before `end`.
    pub(crate) fn edge_before(pivots: &[Key], end: Option<&[u8]>) -> usize {
        end.map_or(pivots.len(), |end| pivots.partition_point(|p| **p < *end))
    }

    /// The node that denotes what this one, covering `interval`, denotes through `view`.
    ///
    /// This is the one function behind lifting, splitting, trimming, translating and making simple:
    /// it makes a header and shares every part and every child.
    pub(crate) fn through(&self, view: &View, interval: &KeyRange) -> Node {
        let body = match &self.body {
            Body::Leaf(run) => Body::Leaf(Arc::new(run.through(view))),
            Body::Interior { pivots, edges } => {
                let mut seen = (Vec::new(), Vec::new());
                for (i, edge) in edges.iter().enumerate() {
                    let covered = self.interval(i, interval);
                    let shown = view.range_to_outer(&covered);
                    if shown.is_empty() {
                        continue;
                    }
                    let narrowed = view.restrict(&shown);
                    // The first visible edge reaches down to wherever its node does.
                    if !seen.1.is_empty() {
                        debug_assert!(i > 0 && view.bounds.contains(&pivots[i - 1]));
                        seen.0.push(shown.start.clone());
                    }
                    // What lies in the edge's interval stays visible as a whole, or it is cut.
                    let whole = view.bounds.covers(&covered) && KeyRange::prefix(&view.from).covers(&covered);
                    seen.1.push(edge.through(view, &narrowed, whole));
                }
                if seen.1.is_empty() {
                    seen.1.push(Edge::default());
                }
                Body::Interior { pivots: seen.0, edges: seen.1 }
            }
        };
        Node { height: self.height, body }
    }
}

impl Edge {
    /// This edge through `view`; `narrowed` shows no more than its interval, `whole` says that all
    /// of its interval is visible.
    fn through(&self, view: &View, narrowed: &View, whole: bool) -> Edge {
        let child = self.child.as_ref().map(|child| {
            // A child that is shown whole keeps its bounds, so that a simple one stays simple.
            let seen = if whole && child.view.to.starts_with(&view.from) {
                View { bounds: child.view.bounds.clone(), ..view.compose(&child.view) }
            } else {
                narrowed.compose(&child.view)
            };
            Child { slot: child.slot.clone(), view: seen, weight: child.weight }
        });
        let runs =
            self.runs.iter().map(|r| r.through(narrowed)).filter(|r| !r.is_empty()).map(Arc::new).collect();
        Edge { child: child.filter(|c| !c.view.is_empty()), runs }
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

/// The runs of two neighbouring edges as the runs of one, oldest first.
pub(crate) fn join_runs(left: &[Arc<Run>], right: &[Arc<Run>]) -> Vec<Arc<Run>> {
    // Their keys are disjoint, so only the order within each side matters.
    let count = left.len().max(right.len());
    let side = |runs: &[Arc<Run>], i: usize| (i + runs.len()).checked_sub(count).map(|i| runs[i].clone());
    (0..count)
        .filter_map(|i| match (side(left, i), side(right, i)) {
            (Some(a), Some(b)) => {
                let mut run = (*a).clone();
                run.append(&b);
                Some(Arc::new(run))
            }
            (a, b) => a.or(b),
        })
        .collect()
}

/// The shortest key that separates `left` from the larger `right`.
pub(crate) fn separator(left: &[u8], right: &[u8]) -> Key {
    right[..(crate::model::key::common_prefix_len(left, right) + 1).min(right.len())].into()
}

/// True if a child of an edge over `interval` may be seen through `view`: whole, behind a prefix
/// that is at least what the interval lifts. It is more where the edge reaches beyond what the
/// child shows.
pub(crate) fn is_simple(view: &View, interval: &KeyRange) -> bool {
    let prefix = lift(&interval.start, interval.end.as_deref());
    view.from.is_empty() && view.to.starts_with(prefix) && view.bounds == KeyRange::all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::Msn;
    use crate::model::op::Op;
    use crate::model::value::Value;
    use crate::pieces::PartBuilder;
    use crate::{FormatOptions, OpenOptions, Store};
    use espalier_storage::{MemoryDevice, Random, SimulatedEnvironment};
    use std::collections::BTreeSet;

    fn key(random: &mut Random) -> Key {
        (0..random.below(4)).map(|_| *random.choose(&[0u8, 1, 0xff])).collect()
    }

    fn view(random: &mut Random) -> View {
        let range = KeyRange { start: key(random), end: (!random.one_in(3)).then(|| key(random)) };
        match random.below(3) {
            0 => View::lifted(&key(random)).restrict(&range),
            1 => View::identity().restrict(&range),
            _ => View::translated(&key(random), &key(random)).restrict(&range),
        }
    }

    /// The keys that a part shows.
    fn shown(part: &ViewedPart, trees: &Trees) -> Vec<Key> {
        let loaded = part.slot.load(trees).unwrap();
        let mut cursor = loaded.cursor();
        cursor.first();
        let mut keys = Vec::new();
        while cursor.valid() {
            keys.extend(part.view.outward(cursor.key()));
            cursor.next();
        }
        keys
    }

    #[test]
    fn a_run_through_a_view_shows_what_each_of_its_parts_does() {
        let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
        Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
        let store = Store::open(device, env, OpenOptions::default()).unwrap();
        let trees = &store.shared.trees;
        let mut random = Random::new(5);
        let mut wholly = 0;
        for _ in 0..5000 {
            let keys: BTreeSet<Key> = (0..random.below(30)).map(|_| key(&mut random)).collect();
            let keys: Vec<Key> = keys.into_iter().collect();
            let mut run = Run::default();
            for keys in keys.chunks(random.between(1..=4) as usize) {
                let mut builder = PartBuilder::new();
                keys.iter().for_each(|key| builder.push(key, Msn(1), &Op::Insert(Value::from(vec![1]))));
                run.parts.push(ViewedPart::whole(PartSlot::new(trees, builder.finish())));
            }
            for _ in 0..3 {
                let view = view(&mut random);
                let before: Vec<Key> = run.parts.iter().flat_map(|part| shown(part, trees)).collect();
                let expected: Vec<Key> = before.iter().filter_map(|key| view.outward(key)).collect();
                for part in &run.parts {
                    let composed = ViewedPart::viewed(part.slot.clone(), view.compose(&part.view));
                    if let Some(short) = part.wholly_through(&view) {
                        let long = composed.unwrap();
                        assert_eq!((&short.view, &short.first), (&long.view, &long.first), "{view:?}");
                        assert_eq!(short.last, long.last, "{view:?}");
                        wholly += 1;
                    }
                }
                run = run.through(&view);
                let after: Vec<Key> = run.parts.iter().flat_map(|part| shown(part, trees)).collect();
                assert_eq!(after, expected, "{view:?}");
                for part in &run.parts {
                    for key in shown(part, trees) {
                        assert!(part.first <= key && part.last.as_ref().is_none_or(|last| key <= *last));
                    }
                }
            }
        }
        assert!(wholly > 1000, "{wholly}");
    }
}
