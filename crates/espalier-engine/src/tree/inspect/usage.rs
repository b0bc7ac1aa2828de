//! Space usage: how much space ranges take, and how much of it is theirs alone, in whole pieces.
//! Headers and reference counts tell; no part is read.
//!
//! The headers that show something of the ranges are walked from the top. A node is *known* if the
//! walk has met all that refers to it: the volume table, or headers of known nodes that refer to it
//! for keys inside the ranges only, or for both. A piece is *theirs alone* if all that refers to it
//! was met, and shows it inside the ranges only. So nothing below a node that is not known is
//! theirs alone, and a walk that asks for no more ends there: it costs what is theirs alone, and
//! the borders of the ranges.
//! Bytes that entries refer to are told by [`held`](super::held).

use crate::Result;
use crate::model::ids::PieceId;
use crate::model::key::KeyRange;
use crate::model::view::View;
use crate::tree::inspect::space_use::{Counted, Look, Place, SpaceUse, covers, shown_of};
use crate::tree::node::{Body, Edge, Node, Root};
use crate::tree::run::{Run, ViewedPart};
use crate::tree::trees::Trees;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// What a walk has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sought {
    /// All that the ranges take.
    All,
    /// What is theirs alone; the other figure is too small.
    Exclusive,
}

/// A walk over what some ranges take.
pub(crate) struct Usage<'a> {
    trees: &'a Trees,
    sought: Sought,
    look: &'a Look<'a>,
    /// Nodes to be looked at, the highest first.
    nodes: BTreeMap<(Reverse<u8>, PieceId), Vec<Place>>,
    met: HashMap<PieceId, u64>,
}

impl<'a> Usage<'a> {
    pub(crate) fn new(trees: &'a Trees, sought: Sought, look: &'a Look<'a>) -> Self {
        Self { trees, sought, look, nodes: BTreeMap::new(), met: HashMap::new() }
    }

    /// Adds all ranges of an index with this root; none of them may overlap.
    pub(crate) fn add(&mut self, root: &Root, ranges: Arc<[KeyRange]>) {
        let Some(handle) = root.slot.as_ref().and_then(|slot| slot.place()) else { return };
        // By the volume table.
        *self.met.entry(handle.id()).or_default() += 1;
        let place = (View::identity(), ranges);
        self.nodes.entry((Reverse(root.height), handle.id())).or_default().push(place);
    }

    /// The space of all ranges added.
    pub(crate) fn finish(mut self) -> Result<SpaceUse> {
        let mut space = SpaceUse::default();
        let mut parts: HashSet<PieceId> = HashSet::new();
        while let Some(((_, id), places)) = self.nodes.pop_first() {
            let node = self.trees.node(id)?;
            let whole = places.iter().all(|(view, ranges)| covers(ranges, &view.range_outward()));
            let known = self.add_piece(id, whole, &mut space)?;
            if !known && self.sought == Sought::Exclusive {
                continue;
            }
            let Seen { inside, outside, .. } = self.look_at(&node, &places);
            for piece in inside {
                let met = self.met.entry(piece.id).or_default();
                *met += u64::from(known && !outside.contains(&piece.id));
                if !piece.is_node {
                    parts.insert(piece.id);
                }
            }
        }
        for part in parts {
            self.add_piece(part, true, &mut space)?;
        }
        Ok(space)
    }

    /// Adds a piece, `whole` if nothing of it is outside the ranges in the places that were met.
    /// True if all that refers to it was met.
    fn add_piece(&self, id: PieceId, whole: bool, space: &mut SpaceUse) -> Result<bool> {
        let Counted { count, bytes, .. } = (self.look)(id)?;
        let known = self.met.get(&id).is_some_and(|met| *met >= count);
        space.bytes += bytes;
        space.exclusive += if known && whole { bytes } else { 0 };
        Ok(known)
    }

    /// Sorts what a node refers to by whether that is for keys inside the ranges.
    fn look_at<'n>(&mut self, node: &'n Node, places: &[Place]) -> Seen<'n> {
        let mut seen = Seen::default();
        match &node.body {
            Body::Leaf(run) => places.iter().for_each(|place| seen.look_at_run(run, place)),
            Body::Interior { pivots, edges } => {
                for place @ (view, ranges) in places {
                    let touched = |range| Node::edges_within(pivots, &view.range_inward(range));
                    let touched: BTreeSet<usize> = ranges.iter().flat_map(touched).collect();
                    for edge in &touched {
                        self.look_at_edge(&edges[*edge], node.height, place, &mut seen);
                    }
                    let shown = Node::edges_within(pivots, &view.bounds);
                    seen.others.extend(shown.filter(|edge| !touched.contains(edge)));
                }
                for edge in std::mem::take(&mut seen.others) {
                    seen.pass_edge(&edges[edge]);
                }
            }
        }
        seen.pass_other_parts();
        seen
    }

    fn look_at_edge<'n>(&mut self, edge: &'n Edge, height: u8, place: &Place, seen: &mut Seen<'n>) {
        edge.runs.iter().for_each(|run| seen.look_at_run(run, place));
        let (view, ranges) = place;
        let Some(child) = &edge.child else { return };
        let Some(handle) = child.slot.place() else { return };
        let view = view.compose(&child.view);
        let shown = view.range_outward();
        if ranges.iter().any(|range| range.overlaps(&shown)) {
            seen.inside.insert(Piece { id: handle.id(), is_node: true });
            let key = (Reverse(height - 1), handle.id());
            self.nodes.entry(key).or_default().push((view, ranges.clone()));
        } else {
            seen.outside.insert(handle.id());
        }
    }
}

/// What a node refers to.
#[derive(Default)]
struct Seen<'n> {
    /// For keys inside the ranges.
    inside: HashSet<Piece>,
    /// For keys outside of them; of edges that show nothing inside, only what is `inside`, too.
    outside: HashSet<PieceId>,
    /// Edges that a place shows and that show nothing inside.
    others: BTreeSet<usize>,
    /// Runs, with the numbers of those of their parts that may show something inside: the others
    /// show nothing there.
    other_parts: Vec<(&'n Run, BTreeSet<usize>)>,
}

/// Something that a header refers to.
#[derive(PartialEq, Eq, Hash)]
struct Piece {
    id: PieceId,
    is_node: bool,
}

impl<'n> Seen<'n> {
    fn look_at_run(&mut self, run: &'n Run, (view, ranges): &Place) {
        let near = ranges.iter().flat_map(|range| run.numbers_near(&view.range_inward(range)));
        let near: BTreeSet<usize> = near.collect();
        for part in near.iter().map(|number| &run.parts[*number]) {
            let Some(place) = part.slot.place() else { continue };
            let shown = shown_of(part, view);
            let pieces = std::iter::once(place.handle.id()).chain(place.values.iter().map(|(id, _)| *id));
            if ranges.iter().any(|range| range.overlaps(&shown)) {
                self.inside.extend(pieces.clone().map(|id| Piece { id, is_node: false }));
            }
            if !covers(ranges, &shown) {
                self.outside.extend(pieces);
            }
        }
        if near.len() < run.parts.len() {
            self.other_parts.push((run, near));
        }
    }

    /// Passes an edge that shows nothing inside.
    fn pass_edge(&mut self, edge: &Edge) {
        if self.has_parts_inside() {
            edge.runs.iter().flat_map(|run| &run.parts).for_each(|part| self.pass_part(part));
        }
        if let Some(handle) = edge.child.as_ref().and_then(|child| child.slot.place()) {
            self.pass(handle.id(), true);
        }
    }

    /// Passes parts that show nothing inside.
    fn pass_other_parts(&mut self) {
        let others = std::mem::take(&mut self.other_parts);
        if !self.has_parts_inside() {
            return;
        }
        for (run, near) in others {
            let passed = run.parts.iter().enumerate().filter(|(number, _)| !near.contains(number));
            passed.for_each(|(_, part)| self.pass_part(part));
        }
    }

    fn has_parts_inside(&self) -> bool {
        self.inside.iter().any(|piece| !piece.is_node)
    }

    fn pass_part(&mut self, part: &ViewedPart) {
        if let Some(place) = part.slot.place() {
            self.pass(place.handle.id(), false);
            place.values.iter().for_each(|(id, _)| self.pass(*id, false));
        }
    }

    /// What is inside as well is also outside.
    fn pass(&mut self, id: PieceId, is_node: bool) {
        if self.inside.contains(&Piece { id, is_node }) {
            self.outside.insert(id);
        }
    }
}
