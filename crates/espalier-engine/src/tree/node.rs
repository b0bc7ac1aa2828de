//! Nodes, their edges and slots, and how they look through a view.
//!
//! A node slot is the place of one version of a node: it is filled once in memory and becomes
//! *stored* once; what it holds never changes. Versions of trees share slots, so a write of one
//! version writes the node for all of them.

use crate::lock_order::{RankedRwLock, rank};
use crate::model::key::{Key, KeyRange, lift};
use crate::model::piece::PieceHandle;
use crate::model::view::View;
use crate::tree::memory::Charge;
use crate::tree::run::{Run, ViewedPart};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

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

/// Blocks that absorbing memtables may take, beside what their messages come to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AbsorbCost {
    /// For each of them.
    pub(crate) each: u64,
    /// However many they are.
    pub(crate) once: u64,
}

impl AbsorbCost {
    /// For so many memtables.
    pub(crate) fn of(self, tables: u64) -> u64 {
        if tables > 0 { self.once + self.each.saturating_mul(tables) } else { 0 }
    }
}

/// The place of a node.
pub(crate) struct NodeSlot {
    state: RankedRwLock<NodeState, { rank::NODE_SLOT }>,
    /// Blocks that the tree below will take, once they were counted
    /// ([`Trees::unwritten_blocks`](super::Trees::unwritten_blocks)).
    unwritten: OnceLock<u64>,
    /// The node is part of a sum of what is unwritten.
    is_counted: AtomicBool,
    /// See [`AbsorbCost`].
    pub(super) spread: OnceLock<AbsorbCost>,
}

enum NodeState {
    /// With its share in a sum of what is unwritten, once it counts.
    Memory(Arc<Node>, Option<Charge>),
    Stored(Arc<PieceHandle>),
}

impl NodeSlot {
    /// A node just made.
    pub(crate) fn new(node: Node) -> Arc<Self> {
        Self::with(NodeState::Memory(Arc::new(node), None))
    }

    /// A node that a header, a volume or a checkpoint names.
    pub(crate) fn stored(handle: Arc<PieceHandle>) -> Arc<Self> {
        Self::with(NodeState::Stored(handle))
    }

    fn with(state: NodeState) -> Arc<Self> {
        Arc::new(Self {
            state: RankedRwLock::new(state),
            unwritten: OnceLock::new(),
            is_counted: AtomicBool::new(false),
            spread: OnceLock::new(),
        })
    }

    /// Where the node lies, if it is on the device.
    pub(crate) fn place(&self) -> Option<Arc<PieceHandle>> {
        match &*self.state.read() {
            NodeState::Memory(..) => None,
            NodeState::Stored(handle) => Some(handle.clone()),
        }
    }

    /// The node, or the piece to read it from.
    pub(super) fn node_or_handle(&self) -> Result<Arc<Node>, Arc<PieceHandle>> {
        match &*self.state.read() {
            NodeState::Memory(node, _) => Ok(node.clone()),
            NodeState::Stored(handle) => Err(handle.clone()),
        }
    }

    /// The node, if it is not on the device.
    pub(crate) fn as_unwritten(&self) -> Option<Arc<Node>> {
        match &*self.state.read() {
            NodeState::Memory(node, _) => Some(node.clone()),
            NodeState::Stored(_) => None,
        }
    }

    /// What `count` gave for the node that is not on the device when it was first asked; 0 once it
    /// is there.
    pub(super) fn unwritten(&self, count: impl FnOnce() -> u64) -> u64 {
        match &*self.state.read() {
            NodeState::Stored(_) => return 0,
            NodeState::Memory(..) => {}
        }
        *self.unwritten.get_or_init(count)
    }

    /// True for the first caller, which is to [`charge`](Self::charge) it: from now on the node is
    /// part of a sum of what is unwritten.
    pub(super) fn begins_to_count(&self) -> bool {
        !self.is_counted.swap(true, Ordering::Relaxed)
    }

    /// True if the node is part of a sum of what is unwritten.
    pub(super) fn counts(&self) -> bool {
        self.is_counted.load(Ordering::Relaxed)
    }

    /// The node has a share in that sum until it lies on the device, or is gone.
    pub(super) fn charge(&self, share: Charge) {
        if let NodeState::Memory(_, charge) = &mut *self.state.write() {
            *charge = Some(share);
        }
    }

    /// The node now lies on the device.
    pub(crate) fn set_stored(&self, handle: Arc<PieceHandle>) {
        *self.state.write() = NodeState::Stored(handle);
    }
}

impl Edge {
    /// Bytes on their way to the child, without large values.
    pub(crate) fn pending(&self) -> u64 {
        self.runs.iter().map(|r| r.message_bytes()).sum()
    }

    /// Bytes of large values on their way to the child.
    pub(crate) fn pending_values(&self) -> u64 {
        self.runs.iter().map(|r| r.value_bytes()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.child.is_none() && self.runs.is_empty()
    }

    /// See [`Node::is_same`].
    pub(super) fn is_same(&self, cut: &Edge) -> bool {
        let child = match (&self.child, &cut.child) {
            (Some(a), Some(b)) => Arc::ptr_eq(&a.slot, &b.slot) && a.view == b.view,
            (a, b) => a.is_none() && b.is_none(),
        };
        let runs = self.runs.iter().zip(&cut.runs);
        child && self.runs.len() == cut.runs.len() && runs.clone().all(|(a, b)| a.is_same(b))
    }
}

impl Child {
    /// The node `node`, with keys in the key space of the parent, as the simple child of an edge
    /// that covers `interval`.
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

    /// True if the node is shown whole, behind a prefix with which every key in `range` begins:
    /// what changes there can be changed in the node's own key space, without translating the
    /// header.
    pub(super) fn lifts_all_of(&self, range: &KeyRange) -> bool {
        self.is_behind_prefix() && KeyRange::prefix(&self.view.to).covers(range)
    }

    /// True if the node is shown whole behind a prefix: what it has in a range can be told in its
    /// own key space, without translating the header.
    pub(super) fn is_behind_prefix(&self) -> bool {
        self.view.from.is_empty() && !self.is_bounded()
    }

    /// True if not all of the node is shown, as it could not be read when it was to be taken apart
    /// (`tree/clone`).
    pub(super) fn is_bounded(&self) -> bool {
        self.view.bounds != KeyRange::all()
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

    pub(crate) fn leaf(parts: Vec<Arc<ViewedPart>>) -> Node {
        Node { height: 0, body: Body::Leaf(Arc::new(Run::of_parts(parts))) }
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

    /// How many parts the header names.
    pub(super) fn named_parts(&self) -> usize {
        match &self.body {
            Body::Leaf(run) => run.parts.len(),
            Body::Interior { .. } => self.names(),
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

    /// The edge with the interval that holds `key`.
    pub(crate) fn edge_for(pivots: &[Key], key: &[u8]) -> usize {
        pivots.partition_point(|p| **p <= *key)
    }

    /// The edge with the interval that holds the keys just before `end`.
    pub(crate) fn edge_before(pivots: &[Key], end: Option<&[u8]>) -> usize {
        end.map_or(pivots.len(), |end| pivots.partition_point(|p| **p < *end))
    }

    /// The edges that keys in `range` belong to.
    pub(crate) fn edges_within(pivots: &[Key], range: &KeyRange) -> Range<usize> {
        match range.is_empty() {
            true => 0..0,
            false => {
                Self::edge_for(pivots, &range.start)..Self::edge_before(pivots, range.end.as_deref()) + 1
            }
        }
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
        let runs = self.runs.iter().map(|r| r.shared_through(narrowed)).filter(|r| !r.is_empty()).collect();
        Edge { child: child.filter(|c| !c.view.is_empty()), runs }
    }
}

/// The most levels of interior nodes that a tree may have.
pub(crate) const MAX_HEIGHT: u8 = 64;

/// What absorbing into an empty tree takes.
const EMPTY_TREE_COST: AbsorbCost = AbsorbCost { each: 1, once: 1 };

/// The root of an index; `None` is the empty map.
#[derive(Clone, Default)]
pub(crate) struct Root {
    pub(crate) slot: Option<Arc<NodeSlot>>,
    pub(crate) height: u8,
}

impl Root {
    /// The cost of absorbing into this tree, if it was computed before.
    pub(crate) fn known_absorb_cost(&self) -> Option<AbsorbCost> {
        self.slot.as_ref().map_or(Some(EMPTY_TREE_COST), |slot| slot.spread.get().copied())
    }
}

/// True if a child of an edge over `interval` may be seen through `view`: whole, behind a prefix
/// that is at least what the interval lifts. It is more where the edge reaches beyond what the
/// child shows.
pub(crate) fn is_simple(view: &View, interval: &KeyRange) -> bool {
    let prefix = lift(&interval.start, interval.end.as_deref());
    view.from.is_empty() && view.to.starts_with(prefix) && view.bounds == KeyRange::all()
}
