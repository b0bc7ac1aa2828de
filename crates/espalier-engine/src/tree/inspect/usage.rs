//! Space usage: how much space ranges take, and how much of it is theirs alone. Headers and
//! reference counts tell; no part is read.
//!
//! The headers that show something of the ranges are walked from the top. A node is *known* if the
//! walk has met all that refers to it: the volume table, or headers of known nodes that refer to it
//! for keys inside the ranges only, or for both. A piece is *theirs alone* if all that refers to it
//! was met, and shows it inside the ranges only. So nothing below a node that is not known is
//! theirs alone, and a walk that asks for no more ends there: it costs what is theirs alone, and
//! the borders of the ranges.

use crate::Result;
use crate::model::ids::PieceId;
use crate::model::key::KeyRange;
use crate::model::view::View;
use crate::tree::node::{Body, Node, Root};
use crate::tree::run::Run;
use crate::tree::trees::Trees;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Space on the device, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Of all pieces that hold something of the ranges. A piece on a border counts as a whole.
    pub bytes: u64,
    /// Of those that hold nothing else: about what deleting the ranges would give back.
    pub exclusive: u64,
}

/// What a walk has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sought {
    /// All that the ranges take.
    All,
    /// What is theirs alone; the other figure is too small.
    Exclusive,
}

/// Where a node appears, and which keys of that place are asked for.
type Place = (View, Arc<[KeyRange]>);

/// A walk over what some ranges take.
pub(crate) struct Usage<'a> {
    trees: &'a Trees,
    sought: Sought,
    /// How many counts a piece has, and its bytes.
    look: &'a dyn Fn(PieceId) -> Result<(u64, u64)>,
    /// Nodes to be looked at, the highest first.
    nodes: BTreeMap<(Reverse<u8>, PieceId), Vec<Place>>,
    met: HashMap<PieceId, u64>,
}

impl<'a> Usage<'a> {
    pub(crate) fn new(
        trees: &'a Trees,
        sought: Sought,
        look: &'a dyn Fn(PieceId) -> Result<(u64, u64)>,
    ) -> Self {
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
            let (mut inside, mut outside) = (HashSet::new(), HashSet::new());
            for place in &places {
                self.look_at(&node, place, &mut inside, &mut outside);
            }
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
        let (count, bytes) = (self.look)(id)?;
        let known = self.met.get(&id).is_some_and(|met| *met >= count);
        space.bytes += bytes;
        space.exclusive += if known && whole { bytes } else { 0 };
        Ok(known)
    }

    /// Sorts what a node refers to by whether that is for keys inside the range.
    fn look_at(
        &mut self,
        node: &Node,
        (view, ranges): &Place,
        inside: &mut HashSet<Piece>,
        outside: &mut HashSet<PieceId>,
    ) {
        match &node.body {
            Body::Leaf(run) => look_at_run(run, view, ranges, inside, outside),
            Body::Interior { edges, .. } => {
                for edge in edges {
                    edge.runs.iter().for_each(|run| look_at_run(run, view, ranges, inside, outside));
                    let Some(child) = &edge.child else { continue };
                    let Some(handle) = child.slot.place() else { continue };
                    let view = view.compose(&child.view);
                    let shown = view.range_outward();
                    if ranges.iter().any(|range| range.overlaps(&shown)) {
                        inside.insert(Piece { id: handle.id(), is_node: true });
                        let key = (Reverse(node.height - 1), handle.id());
                        self.nodes.entry(key).or_default().push((view, ranges.clone()));
                    } else {
                        outside.insert(handle.id());
                    }
                }
            }
        }
    }
}

/// Something that a header refers to.
#[derive(PartialEq, Eq, Hash)]
struct Piece {
    id: PieceId,
    is_node: bool,
}

/// True if one of the ranges covers what is shown.
fn covers(ranges: &[KeyRange], shown: &KeyRange) -> bool {
    ranges.iter().any(|range| range.covers(shown))
}

fn look_at_run(
    run: &Run,
    view: &View,
    ranges: &[KeyRange],
    inside: &mut HashSet<Piece>,
    outside: &mut HashSet<PieceId>,
) {
    for part in &run.parts {
        let Some(place) = part.slot.place() else { continue };
        let last = part.last.as_ref().map(|last| [&**last, &[0]].concat().into());
        let shown = view.range_to_outer(&KeyRange { start: part.first.clone(), end: last });
        let pieces = std::iter::once(place.handle.id()).chain(place.values.iter().map(|(id, _)| *id));
        if ranges.iter().any(|range| range.overlaps(&shown)) {
            inside.extend(pieces.clone().map(|id| Piece { id, is_node: false }));
        }
        if !covers(ranges, &shown) {
            outside.extend(pieces);
        }
    }
}
