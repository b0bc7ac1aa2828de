//! Held bytes: how many bytes of the store entries of some ranges refer to, and how many of these
//! nothing else refers to. It is a walk over headers that can go on from an earlier one.
//!
//! The headers that show something of the ranges are walked from the top. A node is *known* if the
//! walk has met all that refers to it: the volume table, or headers of known nodes that refer to it
//! for keys inside the ranges only, or for both. A piece is *theirs alone* if all that refers to it
//! was met, and shows it inside the ranges only. So nothing below a node that is not known is
//! theirs alone, and a walk that asks for no more ends there: it costs what is theirs alone, and
//! the borders of the ranges. What counts of parts is told by [`shares`](super::shares).
//!
//! Protocol: [`HeldTally::begin`] says what is asked for and which counts have changed since the
//! last time; then [`HeldTally::go_on`], until it says that all is counted, with a new beginning
//! whenever a checkpoint may have been made. After an error the tally is void.
//!
//! Invariants: what the walk notes of a node depends on the node's header, which never changes, the
//! places where it appears, and whether it is known. So a node is looked at again if one of the
//! last two has changed, and never otherwise. Both depend on the nodes above, which are looked at
//! before, and on the node's count, whose changes are told. A place that lies wholly inside says
//! nothing of where it lies, so a tree that moves is not walked again.

use crate::model::ids::{IndexId, PieceId, Reference};
use crate::model::key::KeyRange;
use crate::model::view::View;
use crate::tree::inspect::shares::{Appearance, Shares};
use crate::tree::inspect::space_use::{Counted, Look, Place, SpaceUse, covers};
use crate::tree::node::{Body, Edge, Node, Root};
use crate::tree::run::Run;
use crate::tree::trees::Trees;
use crate::tree::write::part_references;
use crate::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Headers that are looked at in one go, which keeps checkpoints from being made; few in tests, for
/// many steps.
const HEADERS_AT_ONCE: usize = if cfg!(debug_assertions) { 7 } else { 256 };

/// What is asked for: of each index its root and the ranges, none of which may overlap.
pub(crate) type AskedRanges = BTreeMap<IndexId, (Root, Arc<[KeyRange]>)>;

/// What some ranges held when they were last counted: see [`Store::bytes_held`].
///
/// [`Store::bytes_held`]: crate::Store::bytes_held
#[derive(Default)]
pub struct HeldTally {
    /// The count of references that it is as of; `None` if it has none.
    as_of: Option<u64>,
    /// What is not theirs alone is counted, too.
    is_all: bool,
    roots: BTreeMap<IndexId, PieceId>,
    nodes: HashMap<PieceId, NodeTally>,
    /// Nodes that may have to be looked at again, the highest first.
    queue: BTreeSet<(Reverse<u8>, PieceId)>,
    /// Edges with messages, by the nodes that they lie in.
    pending: HashMap<PieceId, Vec<PendingEdge>>,
    /// How many nodes are not known.
    unknown: usize,
    shares: Shares,
    /// Bytes of headers: of all, and of those that hold nothing else.
    headers: (u64, u64),
    looked_at: u64,
}

/// A node that the walk has met.
struct NodeTally {
    height: u8,
    links: BTreeMap<Source, Link>,
    /// What was found when it was looked at.
    seen: Option<Seen>,
}

/// What refers to a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Volume(IndexId),
    Node(PieceId),
}

/// How something refers to a node.
#[derive(Default, PartialEq)]
struct Link {
    places: Vec<Place>,
    /// A known node refers to it for keys outside, or is not known itself.
    is_outside: bool,
}

/// A node as it was looked at.
struct Seen {
    state: State,
    bytes: u64,
    children: Vec<PieceId>,
    parts: Vec<PieceId>,
    /// What the header names, if it is known.
    references: Vec<Reference>,
}

/// What decides what is found in a node.
#[derive(PartialEq)]
struct State {
    places: Vec<Place>,
    is_known: bool,
    /// No place shows anything outside.
    is_whole: bool,
}

/// An edge of a known header on which messages wait.
struct PendingEdge {
    child: Option<PieceId>,
    is_one_run: bool,
    has_ranges: bool,
    /// With their messages.
    parts: Vec<(PieceId, u32)>,
}

/// What a header shows at some places.
#[derive(Default)]
struct Found {
    links: BTreeMap<PieceId, Link>,
    parts: Vec<(PieceId, Arc<[Reference]>, Appearance)>,
    pending: Vec<PendingEdge>,
}

impl HeldTally {
    /// How many headers were looked at so far.
    pub fn headers_looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Nodes, parts and value parts that it knows: it takes some 300 bytes of memory for each.
    pub fn pieces(&self) -> usize {
        self.nodes.len() + self.shares.pieces()
    }

    /// The count of references that it is as of.
    pub(crate) fn as_of(&self) -> Option<u64> {
        self.as_of
    }

    /// What is asked for now, as of the count `number`. `changed` are the pieces whose counts
    /// differ from those of the last time; `None` if that is not known.
    ///
    /// # Errors
    /// [`Damaged`](crate::ErrorKind::Damaged).
    pub(crate) fn begin(
        &mut self,
        asked: &AskedRanges,
        is_all: bool,
        number: u64,
        changed: Option<impl Iterator<Item = PieceId>>,
    ) -> Result<()> {
        match changed {
            Some(changed) if self.is_all == is_all && self.as_of.is_some() => {
                changed.for_each(|id| self.count_has_changed(id));
            }
            _ => *self = Self { is_all, looked_at: self.looked_at, ..Self::default() },
        }
        self.as_of = Some(number);
        let roots: BTreeMap<IndexId, (PieceId, u8, &Arc<[KeyRange]>)> = asked
            .iter()
            .filter_map(|(index, (root, ranges))| {
                let handle = root.slot.as_ref().and_then(|slot| slot.place())?;
                Some((*index, (handle.id(), root.height, ranges)))
            })
            .collect();
        let gone = |(index, id): &(&IndexId, &PieceId)| roots.get(*index).is_none_or(|root| root.0 != **id);
        let gone: Vec<_> = self.roots.iter().filter(gone).map(|(index, id)| (*index, *id)).collect();
        gone.into_iter().for_each(|(index, id)| self.unlink(id, Source::Volume(index)));
        for (index, (id, height, ranges)) in &roots {
            let places = vec![place_of(View::identity(), ranges)];
            self.link(*id, *height, Source::Volume(*index), Link { places, is_outside: false })?;
        }
        self.roots = roots.into_iter().map(|(index, (id, ..))| (index, id)).collect();
        Ok(())
    }

    /// Looks at some of what may have changed; the figures once all of it was looked at.
    ///
    /// # Errors
    /// Of the device; [`Damaged`](crate::ErrorKind::Damaged).
    pub(crate) fn go_on(&mut self, trees: &Trees, look: &Look<'_>) -> Result<Option<SpaceUse>> {
        let mut left = HEADERS_AT_ONCE;
        while let Some((_, id)) = self.queue.pop_first() {
            self.visit(trees, look, id)?;
            left -= 1;
            if left == 0 && !self.queue.is_empty() {
                return Ok(None);
            }
        }
        if !self.shares.measure(trees, look)? {
            return Ok(None);
        }
        let (all, alone) = self.shares.bytes();
        let (is_unsettled, messages) = self.pending(look)?;
        Ok(Some(SpaceUse {
            bytes: self.headers.0 + all,
            exclusive: self.headers.1 + alone,
            is_unsettled,
            messages,
            is_sharing: self.unknown > 0 || self.shares.is_sharing(),
        }))
    }

    /// True if messages wait that would free something if they were applied, and how many of their
    /// own wait. To apply those above something shared takes a copy of that, unless several runs
    /// become one; and to apply shared ones takes a copy of them.
    fn pending(&self, look: &Look<'_>) -> Result<(bool, u64)> {
        let (mut is_unsettled, mut messages) = (false, 0);
        for PendingEdge { child, is_one_run, has_ranges, parts } in self.pending.values().flatten() {
            let own: u64 =
                parts.iter().filter(|part| self.shares.is_own(part.0)).map(|part| u64::from(part.1)).sum();
            messages += own;
            let is_shared = |child: &PieceId| look(*child).map(|counted| counted.count > 1);
            is_unsettled = is_unsettled
                || (own > 0 || *has_ranges)
                    && !(*is_one_run && child.as_ref().map(is_shared).transpose()?.unwrap_or(false));
        }
        Ok((is_unsettled, messages))
    }

    fn count_has_changed(&mut self, id: PieceId) {
        match self.nodes.get(&id) {
            Some(node) => drop(self.queue.insert((Reverse(node.height), id))),
            None => self.shares.count_has_changed(id),
        }
    }

    /// Notes how `source` refers to a node.
    fn link(&mut self, id: PieceId, height: u8, source: Source, link: Link) -> Result<()> {
        let new = || NodeTally { height, links: BTreeMap::new(), seen: None };
        let node = self.nodes.entry(id).or_insert_with(new);
        if node.height != height {
            return Err(Error::damaged(format!("node {id} is referred to at heights {height} and others")));
        }
        if node.links.get(&source) != Some(&link) {
            node.links.insert(source, link);
            self.queue.insert((Reverse(height), id));
        }
        Ok(())
    }

    /// `source` refers to a node no longer.
    fn unlink(&mut self, id: PieceId, source: Source) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node.links.remove(&source).is_some()
        {
            self.queue.insert((Reverse(node.height), id));
        }
    }

    /// Looks at a node again if that may find something else.
    fn visit(&mut self, trees: &Trees, look: &Look<'_>, id: PieceId) -> Result<()> {
        let Some(node) = self.nodes.get(&id) else { return Ok(()) };
        if node.links.is_empty() {
            self.forget(id);
            return Ok(());
        }
        let (height, Counted { count, bytes, .. }) = (node.height, look(id)?);
        let met = node.links.values().filter(|link| !link.is_outside).count() as u64;
        let mut known_places: HashSet<&Place> = HashSet::new();
        let places = node.links.values().flat_map(|link| &link.places);
        let places: Vec<Place> = places.filter(|place| known_places.insert(place)).cloned().collect();
        let is_whole = places.iter().all(|(view, ranges)| covers(ranges, &view.range_outward()));
        let state = State { places, is_known: met >= count, is_whole };
        if node.seen.as_ref().is_some_and(|seen| seen.state == state) {
            return Ok(());
        }
        let (mut found, mut references) = (Found::default(), Vec::new());
        if state.is_known || self.is_all {
            let header = trees.node(id)?;
            if header.height != height {
                return Err(Error::damaged(format!("node {id} has not height {height} as a reference says")));
            }
            self.looked_at += 1;
            found = Found::of(&header, id, &state);
            references = if state.is_known { part_references(&header) } else { Vec::new() };
        }
        self.take_over(id, (state, bytes), found, references)
    }

    /// Replaces what was noted of a node.
    fn take_over(
        &mut self,
        id: PieceId,
        (state, bytes): (State, u64),
        found: Found,
        references: Vec<Reference>,
    ) -> Result<()> {
        let Some(node) = self.nodes.get_mut(&id) else { return Ok(()) };
        let (height, before) = (node.height, node.seen.take());
        self.unknown += usize::from(!state.is_known);
        self.headers.0 += bytes;
        self.headers.1 += if state.is_known && state.is_whole { bytes } else { 0 };
        let (children, parts) = before.map(|seen| self.take_back(seen)).unwrap_or_default();
        let source = Source::Node(id);
        for child in children.iter().filter(|child| !found.links.contains_key(child)) {
            self.unlink(*child, source);
        }
        let children: Vec<PieceId> = found.links.keys().copied().collect();
        for (child, link) in found.links {
            self.link(child, height.saturating_sub(1), source, link)?;
        }
        let parts = self.shares.set_appearances(id, &parts, found.parts);
        self.shares.add_references(&references);
        match found.pending.is_empty() {
            true => drop(self.pending.remove(&id)),
            false => drop(self.pending.insert(id, found.pending)),
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.seen = Some(Seen { state, bytes, children, parts, references });
        }
        Ok(())
    }

    /// Takes back what sums have of a node; returns the children and parts that it noted.
    fn take_back(&mut self, seen: Seen) -> (Vec<PieceId>, Vec<PieceId>) {
        let Seen { state, bytes, children, parts, references } = seen;
        self.unknown -= usize::from(!state.is_known);
        self.headers.0 -= bytes;
        self.headers.1 -= if state.is_known && state.is_whole { bytes } else { 0 };
        self.shares.remove_references(&references);
        (children, parts)
    }

    /// Nothing refers to a node any more.
    fn forget(&mut self, id: PieceId) {
        let seen = self.nodes.remove(&id).and_then(|node| node.seen);
        let Some(seen) = seen else { return };
        let (children, parts) = self.take_back(seen);
        children.into_iter().for_each(|child| self.unlink(child, Source::Node(id)));
        self.shares.set_appearances(id, &parts, Vec::new());
        self.pending.remove(&id);
    }
}

impl Found {
    /// What the header `id` shows in this state.
    fn of(node: &Node, id: PieceId, state: &State) -> Self {
        let mut found = Self::default();
        match &node.body {
            Body::Leaf(run) => {
                state.places.iter().for_each(|place| found.add_run(run, id, place, state.is_known));
            }
            Body::Interior { pivots, edges } => found.add_edges((pivots, edges), id, state),
        }
        found
    }

    fn add_edges(&mut self, (pivots, edges): (&[crate::Key], &[Edge]), id: PieceId, state: &State) {
        let mut others: BTreeSet<usize> = BTreeSet::new();
        for place @ (view, ranges) in &state.places {
            let touched = |range| Node::edges_within(pivots, &view.range_inward(range));
            let touched: BTreeSet<usize> = ranges.iter().flat_map(touched).collect();
            for edge in &touched {
                self.add_edge(&edges[*edge], id, place, state.is_known);
            }
            let shown = Node::edges_within(pivots, &view.bounds);
            for edge in shown.filter(|edge| !touched.contains(edge)) {
                others.insert(edge);
                edges[edge].runs.iter().for_each(|run| self.add_run(run, id, place, state.is_known));
            }
        }
        for child in others.into_iter().filter_map(|edge| edges[edge].child.as_ref()) {
            let Some(handle) = child.slot.place() else { continue };
            if let Some(link) = self.links.get_mut(&handle.id()) {
                link.is_outside = true;
            }
        }
        // What was met for keys outside only is of no interest.
        self.links.retain(|_, link| !link.places.is_empty());
        self.links.values_mut().for_each(|link| link.is_outside |= !state.is_known);
    }

    fn add_edge(&mut self, edge: &Edge, id: PieceId, place: &Place, is_known: bool) {
        edge.runs.iter().for_each(|run| self.add_run(run, id, place, is_known));
        let handle = edge.child.as_ref().and_then(|child| child.slot.place());
        if is_known && !edge.runs.is_empty() {
            let parts = edge.runs.iter().flat_map(|run| &run.parts);
            self.pending.push(PendingEdge {
                child: handle.as_ref().map(|handle| handle.id()),
                is_one_run: edge.runs.len() == 1,
                has_ranges: edge.runs.iter().any(|run| !run.ranges.is_empty()),
                parts: parts
                    .filter_map(|part| Some((part.slot.place()?.handle.id(), part.slot.summary.entries)))
                    .collect(),
            });
        }
        let (Some(child), Some(handle)) = (&edge.child, handle) else { return };
        let (view, ranges) = place;
        let view = view.compose(&child.view);
        let shown = view.range_outward();
        let link = self.links.entry(handle.id()).or_default();
        if ranges.iter().any(|range| range.overlaps(&shown)) {
            let place = place_of(view, ranges);
            if !link.places.contains(&place) {
                link.places.push(place);
            }
        } else {
            link.is_outside = true;
        }
    }

    /// Notes the parts of a run that a place of the header may show.
    fn add_run(&mut self, run: &Run, id: PieceId, place: &Place, is_known: bool) {
        for part in run.parts_near(&place.0.bounds) {
            let Some(stored) = part.slot.place() else { continue };
            if let Some(appearance) = Appearance::of(part, id, place, is_known) {
                self.parts.push((stored.handle.id(), stored.values, appearance));
            }
        }
    }
}

/// A place where a node appears through a view. It says no more than what matters there, so that it
/// is the same place for as long as that is so.
fn place_of(view: View, ranges: &Arc<[KeyRange]>) -> Place {
    let shown = view.range_outward();
    if covers(ranges, &shown) {
        let from = view.from.clone();
        return (View { to: from, ..view }, vec![KeyRange::all()].into());
    }
    match ranges.iter().all(|range| range.overlaps(&shown)) {
        true => (view, ranges.clone()),
        false => (view, ranges.iter().filter(|range| range.overlaps(&shown)).cloned().collect()),
    }
}
