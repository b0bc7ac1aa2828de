//! Salvage: trees without what cannot be read, for a repair.
//!
//! A walk over everything that a root reaches gives a root that reaches only what can be read:
//! unreadable nodes become empty children, unreadable parts leave their runs, and parts with
//! unreadable values are made anew without them. Headers above a cut are made anew in memory, all
//! others are shared as they are.
//!
//! What is cut is told as [`Loss`]es. Losing a part of messages is worse than losing entries: what
//! lies below may be older than what was lost, and must not come to light. The filter of the part
//! tells which keys it may have held; [`Salvager::stale_keys`] finds those that are still visible.
//! And where a value is lost, newer messages that were to change it make something of nothing;
//! [`keys_without_base`] finds those.

use crate::Result;
use crate::message::resolve::KeyMessages;
use crate::model::ids::{Delta, IndexId, PieceId, Reference};
use crate::model::key::{Key, KeyRange, before_end, union_of};
use crate::model::value::Value;
use crate::model::value_reader::load;
use crate::model::view::View;
use crate::pieces::{Part, PartBuilder};
use crate::tree::node::{Body, Child, Edge, Node, NodeSlot, Root};
use crate::tree::part_slot::PartSlot;
use crate::tree::query::{Descent, Toward};
use crate::tree::run::{Run, ViewedPart};
use crate::tree::run_source::Reach;
use crate::tree::source::{Merged, MessageSet, Source};
use crate::tree::trees::Trees;
use crate::tree::write::references;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Something that a damaged store has lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The index concerned; `None` if it is not in one.
    pub index: Option<IndexId>,
    /// The keys concerned, as far as they are known: some of them, or all, are gone.
    pub range: Option<KeyRange>,
    /// What is gone, and why.
    pub message: String,
}

impl Loss {
    /// The loss of one key.
    pub(crate) fn key(index: IndexId, key: &Key, message: impl Into<String>) -> Self {
        let range = KeyRange { start: key.clone(), end: Some(behind(key)) };
        Self { index: Some(index), range: Some(range), message: message.into() }
    }
}

/// A part of messages that is gone, with what it may hide.
struct Hidden {
    index: IndexId,
    /// Leads from the part to the index.
    view: View,
    range: KeyRange,
    part: ViewedPart,
    message: String,
}

/// What has become of a piece.
enum Salvaged<T> {
    /// It is whole.
    Whole,
    /// What is left of it.
    Left(T),
    /// Nothing is left.
    Gone,
}

/// One repair of the trees of a store.
pub(crate) struct Salvager<'a> {
    trees: &'a Arc<Trees>,
    pub(crate) losses: Vec<Loss>,
    hidden: Vec<Hidden>,
    /// Nodes below which everything can be read.
    whole: HashSet<PieceId>,
    /// What is left of nodes.
    left: HashMap<PieceId, Arc<NodeSlot>>,
    /// What is left of parts.
    parts: HashMap<PieceId, Option<Arc<PartSlot>>>,
    /// Value parts that were read whole, with whether they are sound.
    values: HashMap<PieceId, bool>,
    index: IndexId,
    /// Called with every header and value part that is read.
    tick: &'a mut dyn FnMut(),
}

impl<'a> Salvager<'a> {
    pub(crate) fn new(trees: &'a Arc<Trees>, tick: &'a mut dyn FnMut()) -> Self {
        Self {
            trees,
            tick,
            losses: Vec::new(),
            hidden: Vec::new(),
            whole: HashSet::new(),
            left: HashMap::new(),
            parts: HashMap::new(),
            values: HashMap::new(),
            index: IndexId { volume: 0, index: 0 },
        }
    }

    /// What is left of the tree of an index.
    pub(crate) fn root(&mut self, index: IndexId, root: &Root) -> Root {
        self.index = index;
        let Some(slot) = &root.slot else { return root.clone() };
        match self.node(slot, root.height, &View::identity(), &KeyRange::all()) {
            Salvaged::Whole => root.clone(),
            Salvaged::Left(slot) => Root { slot: Some(slot), height: root.height },
            Salvaged::Gone => Root { slot: None, height: 0 },
        }
    }

    fn lose(&mut self, range: KeyRange, message: String) {
        self.losses.push(Loss { index: Some(self.index), range: Some(range), message });
    }

    /// `view` leads from the node to the index, `interval` is what the node covers, in its own
    /// keys.
    fn node(
        &mut self,
        slot: &Arc<NodeSlot>,
        height: u8,
        view: &View,
        interval: &KeyRange,
    ) -> Salvaged<Arc<NodeSlot>> {
        let id = slot.place().map(|handle| handle.id());
        // The caller asks the device whether all of it is there still: if not, nothing is cut.
        if id.is_some_and(|id| self.whole.contains(&id)) || self.trees.pieces.still_there().is_err() {
            return Salvaged::Whole;
        }
        (self.tick)();
        let node = match slot.load(self.trees, height) {
            Ok(node) => node,
            Err(error) => {
                self.lose(view.range_to_outer(interval), format!("everything there is lost: {error}"));
                return Salvaged::Gone;
            }
        };
        let body = match &node.body {
            Body::Leaf(run) => self.run(run, view, true).map(|run| Body::Leaf(Arc::new(run))),
            Body::Interior { pivots, edges } => self
                .edges(&node, edges, view, interval)
                .map(|edges| Body::Interior { pivots: pivots.clone(), edges }),
        };
        let Some(body) = body else {
            self.whole.extend(id);
            return Salvaged::Whole;
        };
        // All that share the node share what is left of it; the walk went on only to report what
        // each of them lost.
        if let Some(left) = id.and_then(|id| self.left.get(&id)) {
            return Salvaged::Left(left.clone());
        }
        let left = NodeSlot::new(Node { height: node.height, body });
        self.left.extend(id.map(|id| (id, left.clone())));
        Salvaged::Left(left)
    }

    /// The edges of a node without what is gone; `None` if nothing is.
    fn edges(&mut self, node: &Node, edges: &[Edge], view: &View, interval: &KeyRange) -> Option<Vec<Edge>> {
        let mut changed = false;
        let mut left = Vec::with_capacity(edges.len());
        for (i, edge) in edges.iter().enumerate() {
            let covered = node.interval(i, interval);
            let mut kept = Edge { child: edge.child.clone(), runs: Vec::with_capacity(edge.runs.len()) };
            for run in &edge.runs {
                match self.run(run, view, false) {
                    None => kept.runs.push(run.clone()),
                    Some(run) => {
                        changed = true;
                        kept.runs.extend(Some(run).filter(|run| !run.is_empty()).map(Arc::new));
                    }
                }
            }
            if let Some(child) = &edge.child {
                match self.child(child, node.height, &covered, view) {
                    Salvaged::Whole => {}
                    Salvaged::Left(child) => (changed, kept.child) = (true, Some(child)),
                    Salvaged::Gone => (changed, kept.child) = (true, None),
                }
            }
            left.push(kept);
        }
        changed.then_some(left)
    }

    fn child(&mut self, child: &Child, height: u8, covered: &KeyRange, view: &View) -> Salvaged<Child> {
        let Some(height) = height.checked_sub(1) else {
            self.lose(view.range_to_outer(covered), "a leaf has a child".into());
            return Salvaged::Gone;
        };
        let inner = child.view.range_inward(covered);
        let down = view.compose(&child.view.restrict(covered));
        match self.node(&child.slot, height, &down, &inner) {
            Salvaged::Whole => Salvaged::Whole,
            Salvaged::Gone => Salvaged::Gone,
            Salvaged::Left(slot) => {
                let weight = slot.as_unwritten().map_or(child.weight, |node| node.weight());
                Salvaged::Left(Child { slot, view: child.view.clone(), weight })
            }
        }
    }

    /// A run without what is gone; `None` if nothing is.
    fn run(&mut self, run: &Run, view: &View, leaf: bool) -> Option<Run> {
        let mut changed = false;
        let mut parts = Vec::with_capacity(run.parts.len());
        for part in &run.parts {
            match self.part(part, view, leaf) {
                Salvaged::Whole => parts.push(part.clone()),
                Salvaged::Left(left) => (changed, _) = (true, parts.extend(left.map(Arc::new))),
                Salvaged::Gone => changed = true,
            }
        }
        changed.then(|| Run::new(parts, run.ranges.clone()))
    }

    /// What is left of a part may show nothing through its view any more.
    fn part(&mut self, viewed: &ViewedPart, view: &View, leaf: bool) -> Salvaged<Option<ViewedPart>> {
        let id = viewed.slot.place().map(|stored| stored.handle.id());
        let part = match viewed.slot.load(self.trees) {
            Ok(part) => part,
            Err(error) => {
                let held = KeyRange { start: viewed.first.clone(), end: viewed.last.as_ref().map(behind) };
                let range = view.range_to_outer(&held);
                let message = format!("entries there are lost: {error}");
                if leaf {
                    self.lose(range, message);
                } else {
                    let (index, part) = (self.index, viewed.clone());
                    self.hidden.push(Hidden { index, view: view.clone(), range, part, message });
                }
                return Salvaged::Gone;
            }
        };
        if part.values().iter().all(|v| v.place().is_none_or(|place| self.is_sound(place.part.id()))) {
            return Salvaged::Whole;
        }
        let known = id.and_then(|id| self.parts.get(&id).cloned());
        let rebuilt = self.without_lost_values(&part, viewed, view, leaf);
        let slot = known.unwrap_or_else(|| rebuilt.map(|part| PartSlot::new(&self.trees.memory, part)));
        self.parts.extend(id.map(|id| (id, slot.clone())));
        Salvaged::Left(slot.and_then(|slot| ViewedPart::viewed(slot, viewed.view.clone())))
    }

    /// A value part is read whole, once.
    fn is_sound(&mut self, id: PieceId) -> bool {
        let (pieces, tick) = (&self.trees.pieces, &mut self.tick);
        *self.values.entry(id).or_insert_with(|| {
            tick();
            pieces.check(id).is_ok()
        })
    }

    /// The entries of a part with values that can be read. In place of messages with a value that
    /// cannot be read there are deletions, or patches of zeros: what lies below is older. Values
    /// that share a part with damage are written again.
    fn without_lost_values(
        &mut self,
        part: &Arc<Part>,
        viewed: &ViewedPart,
        view: &View,
        leaf: bool,
    ) -> Option<Part> {
        let mut builder = PartBuilder::new();
        let mut cursor = part.cursor();
        cursor.first();
        while cursor.valid() {
            let op = cursor.op();
            let holders: Vec<PieceId> =
                op.large_values().iter().filter_map(|large| large.place()).map(|at| at.part.id()).collect();
            let sound = holders.into_iter().fold(true, |sound, part| sound & self.is_sound(part));
            let lose_entry = |salvage: &mut Self, message| {
                if let Some(key) = viewed.view.outward(cursor.key()) {
                    let range = KeyRange { end: Some(behind(&key)), start: key };
                    salvage.lose(view.range_to_outer(&range), message);
                }
            };
            let left = match op.value() {
                Some(value) if !sound => match load(value, &*self.trees.pieces) {
                    Ok(bytes) => Some(op.with_value(Value::from(bytes))),
                    Err(error) => {
                        lose_entry(self, format!("a value is lost: {error}"));
                        (!leaf).then(|| op.without_value())
                    }
                },
                _ => Some(op),
            };
            if let Some(Err(error)) = left.map(|op| builder.push(cursor.key(), cursor.msn(), &op)) {
                lose_entry(self, format!("an entry is lost: {error}"));
            }
            cursor.next();
        }
        (!builder.is_empty()).then(|| builder.finish())
    }

    /// The keys of an index that are still visible and may have had newer messages in what is lost,
    /// or rest on something that is; `root` is what is left of its tree. Each is a loss.
    ///
    /// # Errors
    /// If what is left cannot be read after all.
    pub(crate) fn stale_keys(&mut self, index: IndexId, root: &Root) -> Result<HashSet<Key>> {
        let mut stale = HashSet::new();
        let all = std::mem::take(&mut self.hidden);
        let (concerned, others) = all.into_iter().partition(|hidden| hidden.index == index);
        self.hidden = others;
        let concerned: Vec<Hidden> = concerned;
        self.index = index;
        for hidden in concerned {
            visible(self.trees, None, root, &hidden.range, &mut |key, _| {
                let inner = hidden.view.inward(key).and_then(|key| hidden.part.view.inward(&key));
                if inner.is_some_and(|key| hidden.part.slot.summary.filter.may_contain(&key)) {
                    stale.insert(key.clone());
                }
            })?;
            self.lose(hidden.range, hidden.message);
        }
        let lost = self.losses.iter().filter(|loss| loss.index == Some(index));
        for range in union_of(lost.filter_map(|loss| loss.range.clone()).collect()) {
            stale.extend(keys_without_base(self.trees, None, root, &range)?);
        }
        let stale_key = |key| Loss::key(index, key, "what is there may be older than what was lost");
        self.losses.extend(stale.iter().map(stale_key));
        Ok(stale)
    }
}

/// The keys in `range` with a value that messages of the tree or of `newer` make of nothing.
///
/// # Errors
/// If what is left cannot be read after all.
pub(crate) fn keys_without_base(
    trees: &Arc<Trees>,
    newer: Option<&dyn MessageSet>,
    root: &Root,
    range: &KeyRange,
) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    visible(trees, newer, root, range, &mut |key, baseless| {
        if baseless {
            keys.push(key.clone());
        }
    })?;
    Ok(keys)
}

/// Calls `each` with the keys in `range` that have a value, and whether it rests on nothing.
fn visible(
    trees: &Arc<Trees>,
    newer: Option<&dyn MessageSet>,
    root: &Root,
    range: &KeyRange,
    each: &mut dyn FnMut(&Key, bool),
) -> Result<()> {
    let mut start = range.start.clone();
    loop {
        let mut interval = range.clone();
        let mut sources: Vec<Box<dyn Source>> = newer.map(|newer| newer.source()).into_iter().collect();
        if let Some(slot) = &root.slot {
            let (view, within) = (View::identity(), range.clone());
            let descent =
                Descent::new(trees, slot, root.height, view, within, Toward::Key(&start), Reach::Far)?;
            interval = descent.interval;
            sources.extend(descent.sources);
        }
        let mut merged = Merged::new(sources);
        merged.seek(&start)?;
        while let Some(key) = merged.smallest().filter(|key| before_end(key, interval.end.as_deref())) {
            let mut found = KeyMessages::default();
            merged.levels(&key, |points, ranges| {
                found.add_level(points.iter().cloned(), ranges);
                !found.is_done()
            });
            let baseless = found.rests_on_nothing();
            // What rests on a value has one, whatever changes it.
            if !baseless || found.value(&trees.merge, &*trees.pieces)?.is_some() {
                each(&key, baseless);
            }
            merged.next_behind(&key)?;
        }
        match interval.end {
            Some(end) if before_end(&end, range.end.as_deref()) && end > start => start = end,
            _ => return Ok(()),
        }
    }
}

/// The smallest key behind `key`.
fn behind(key: &Key) -> Key {
    [&**key, &[0]].concat().into()
}

/// How often pieces are referred to by roots and headers on the device, and which pieces headers in
/// memory refer to.
#[derive(Default)]
pub(crate) struct References {
    pub(crate) counts: HashMap<PieceId, Delta>,
    pub(crate) fresh: HashSet<PieceId>,
    /// Headers on the device that only headers in memory lead to, with what they refer to.
    pub(crate) uncounted: HashMap<PieceId, Vec<Reference>>,
    /// Headers looked at: what several roots share counts once.
    seen: HashSet<PieceId>,
    met: HashSet<usize>,
}

impl References {
    /// Adds what a root on the device reaches. To be called for all of these before
    /// [`References::add_fresh`] is for the others.
    ///
    /// # Errors
    /// If a header cannot be read.
    pub(crate) fn add_root(&mut self, trees: &Arc<Trees>, root: &Root) -> Result<()> {
        let Some(slot) = &root.slot else { return Ok(()) };
        let Some(handle) = slot.place() else { return Ok(()) };
        self.counts.entry(handle.id()).or_default().count += 1;
        self.add_node(trees, slot, root.height)
    }

    fn add_node(&mut self, trees: &Arc<Trees>, slot: &Arc<NodeSlot>, height: u8) -> Result<()> {
        let Some(handle) = slot.place() else { return Ok(()) };
        if !self.seen.insert(handle.id()) {
            return Ok(());
        }
        let node = slot.load(trees, height)?;
        for (id, bytes) in references(&node) {
            let delta = self.counts.entry(id).or_default();
            delta.count += 1;
            delta.bytes = delta.bytes.saturating_add_unsigned(bytes);
        }
        children(&node).try_for_each(|child| self.add_node(trees, &child.slot, height.saturating_sub(1)))
    }

    /// Adds what a root in memory reaches. Headers on the device that nothing else refers to are
    /// counted by the checkpoint that counts the new ones above them, if these are still there.
    ///
    /// # Errors
    /// If a header cannot be read.
    pub(crate) fn add_fresh(&mut self, trees: &Arc<Trees>, root: &Root) -> Result<()> {
        match &root.slot {
            Some(slot) if slot.place().is_none() => self.add_fresh_node(trees, slot, root.height),
            _ => Ok(()),
        }
    }

    fn add_fresh_node(&mut self, trees: &Arc<Trees>, slot: &Arc<NodeSlot>, height: u8) -> Result<()> {
        let id = slot.place().map(|handle| handle.id());
        let known = match id {
            Some(id) => self.seen.contains(&id) || self.uncounted.contains_key(&id),
            None => !self.met.insert(Arc::as_ptr(slot) as usize),
        };
        if known {
            return Ok(());
        }
        let node = slot.load(trees, height)?;
        let refers = references(&node);
        self.fresh.extend(refers.iter().map(|(id, _)| *id));
        if let Some(id) = id {
            self.uncounted.insert(id, refers);
        }
        children(&node)
            .try_for_each(|child| self.add_fresh_node(trees, &child.slot, height.saturating_sub(1)))
    }
}

/// The children of a node.
fn children(node: &Node) -> impl Iterator<Item = &Child> {
    let edges: &[Edge] = match &node.body {
        Body::Leaf(_) => &[],
        Body::Interior { edges, .. } => edges,
    };
    edges.iter().filter_map(|edge| edge.child.as_ref())
}

/// The ranges of keys that lie in some of the pieces `wanted`, below a root. What cannot be read
/// holds nothing.
pub(crate) fn ranges_of_pieces(trees: &Arc<Trees>, root: &Root, wanted: &HashSet<PieceId>) -> Vec<KeyRange> {
    let mut found = Vec::new();
    if let Some(slot) = &root.slot {
        let mut search = PieceSearch { trees, wanted, found: &mut found };
        search.node(slot, root.height, &View::identity(), &KeyRange::all());
    }
    found
}

/// A walk over headers.
struct PieceSearch<'a> {
    trees: &'a Arc<Trees>,
    wanted: &'a HashSet<PieceId>,
    found: &'a mut Vec<KeyRange>,
}

impl PieceSearch<'_> {
    fn node(&mut self, slot: &Arc<NodeSlot>, height: u8, view: &View, interval: &KeyRange) {
        if slot.place().is_some_and(|handle| self.wanted.contains(&handle.id())) {
            self.found.push(view.range_to_outer(interval));
        }
        let Ok(node) = slot.load(self.trees, height) else { return };
        match &node.body {
            Body::Leaf(run) => self.run(run, view),
            Body::Interior { edges, .. } => {
                for (i, edge) in edges.iter().enumerate() {
                    edge.runs.iter().for_each(|run| self.run(run, view));
                    let (Some(child), Some(height)) = (&edge.child, height.checked_sub(1)) else { continue };
                    let covered = node.interval(i, interval);
                    let down = view.compose(&child.view.restrict(&covered));
                    self.node(&child.slot, height, &down, &child.view.range_inward(&covered));
                }
            }
        }
    }

    fn run(&mut self, run: &Run, view: &View) {
        for part in &run.parts {
            let Some(stored) = part.slot.place() else { continue };
            let is_wanted = self.wanted.contains(&stored.handle.id())
                || stored.values.iter().any(|(id, _)| self.wanted.contains(id));
            if is_wanted {
                let held = KeyRange { start: part.first.clone(), end: part.last.as_ref().map(behind) };
                self.found.push(view.range_to_outer(&held));
            }
        }
    }
}
