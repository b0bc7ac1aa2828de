//! Verification: checks a tree against the definitions of `docs/design/tree.md`.
//!
//! The walk follows logical edges with the functions that queries use, so it accepts exactly what
//! readers see. A header that several edges share is checked once for each interval that it covers
//! in its own key space, and counted once.
//!
//! What was deleted because the state that is read was replaced is no damage. The walk ends there,
//! and its caller asks the device.

use crate::Result;
use crate::model::ids::{Delta, IndexId, PieceId, PieceKind};
use crate::model::key::{Key, KeyRange, before_end};
use crate::model::op::Op;
use crate::model::value::Value;
use crate::model::value_reader::load;
use crate::model::view::View;
use crate::tree::node::{Body, Child, Edge, Node, NodeSlot, Root, UNKNOWN_WEIGHT, is_simple};
use crate::tree::run::{Run, ViewedPart};
use crate::tree::source::{MessageSet, Source};
use crate::tree::trees::Trees;
use crate::tree::write::references;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Problems beyond this many are only counted.
const MAX_PROBLEMS: usize = 1000;

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The index concerned; `None` if it is not in one.
    pub index: Option<IndexId>,
    /// The keys concerned, as far as they are known.
    pub range: Option<KeyRange>,
    /// What is wrong.
    pub message: String,
}

/// What a verification found.
#[derive(Debug, Clone, Default)]
pub struct VerifyReport {
    /// What is wrong; empty if the store is sound.
    pub problems: Vec<Problem>,
    /// Problems found beyond those listed.
    pub more_problems: u64,
    /// Node headers, shared ones once.
    pub nodes: u64,
    /// Key-value parts, shared ones once.
    pub parts: u64,
    /// Entries and messages, each time they are visible.
    pub entries: u64,
    /// Bytes of large values that were read, each time they are visible.
    pub value_bytes: u64,
    /// Height of each index's tree.
    pub heights: Vec<(IndexId, u8)>,
}

/// How far a verification has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes looked at.
    pub done: u64,
    /// Bytes there are, if that is known.
    pub total: u64,
}

/// Where an entry appears.
#[derive(Clone, Copy)]
struct EntryPlace<'a> {
    viewed: &'a ViewedPart,
    /// Leads from the node to the index.
    view: &'a View,
    /// What the edge covers, in the keys of the node.
    interval: &'a KeyRange,
    /// The part holds entries of a leaf, not messages.
    leaf: bool,
}

/// One verification.
pub(crate) struct Verifier<'a> {
    trees: &'a Arc<Trees>,
    pub(crate) report: VerifyReport,
    /// How many references the headers seen hold on each piece.
    pub(crate) references: HashMap<PieceId, Delta>,
    seen_nodes: BTreeSet<PieceId>,
    /// Pieces that headers refer to of which not all is seen.
    hidden: Vec<PieceId>,
    /// Nodes with what they cover: what is shared whole is checked once.
    covered: HashSet<(PieceId, KeyRange)>,
    seen_parts: BTreeSet<PieceId>,
    /// Value parts that were read whole, with whether they are sound.
    value_parts: BTreeMap<PieceId, bool>,
    index: Option<IndexId>,
    done: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Verifier<'a> {
    pub(crate) fn new(trees: &'a Arc<Trees>, progress: &'a mut dyn FnMut(u64)) -> Self {
        Self {
            trees,
            report: VerifyReport::default(),
            references: HashMap::new(),
            seen_nodes: BTreeSet::new(),
            hidden: Vec::new(),
            covered: HashSet::new(),
            seen_parts: BTreeSet::new(),
            value_parts: BTreeMap::new(),
            index: None,
            done: 0,
            progress,
        }
    }

    /// The report, and how many references the headers hold on each piece.
    pub(crate) fn finish(mut self) -> (VerifyReport, HashMap<PieceId, Delta>) {
        for piece in std::mem::take(&mut self.hidden) {
            if self.is_node(piece) {
                self.note_unreadable(piece, "of which nothing is seen any more");
            }
        }
        // What is damaged outside of every value harms no path, but it is damage.
        let damaged: Vec<PieceId> =
            self.value_parts.iter().filter(|(_, sound)| !**sound).map(|(id, _)| *id).collect();
        for id in damaged {
            self.problem(None, format!("value part {id} is not what was written"));
        }
        (self.report, self.references)
    }

    /// True if part of what is verified was deleted meanwhile.
    fn is_over(&self) -> bool {
        self.trees.pieces.still_there().is_err()
    }

    /// Adds a problem.
    pub(crate) fn problem(&mut self, range: Option<&KeyRange>, message: impl Into<String>) {
        if self.report.problems.len() < MAX_PROBLEMS {
            let problem = Problem { index: self.index, range: range.cloned(), message: message.into() };
            self.report.problems.push(problem);
        } else {
            self.report.more_problems += 1;
        }
    }

    /// Checks the tree of an index.
    pub(crate) fn index(&mut self, index: IndexId, root: &Root) {
        self.index = Some(index);
        self.report.heights.push((index, root.height));
        if let Some(slot) = &root.slot {
            if let Some(handle) = slot.place() {
                self.references.entry(handle.id()).or_default().count += 1;
            }
            self.slot(slot, root.height, &View::identity(), &KeyRange::all(), true);
        }
        self.index = None;
    }

    /// Checks the large values that messages of an index name which are not in its tree yet: what
    /// only the log has. Of the parts they lie in nothing else is promised.
    pub(crate) fn pending<'t>(&mut self, index: IndexId, tables: impl Iterator<Item = &'t dyn MessageSet>) {
        self.index = Some(index);
        let mut sound = HashMap::new();
        for table in tables {
            if let Err(error) = self.pending_in(&mut *table.source(), &mut sound) {
                self.problem(None, error.to_string());
            }
        }
        self.index = None;
    }

    fn pending_in(&mut self, source: &mut dyn Source, sound: &mut HashMap<PieceId, bool>) -> Result<()> {
        source.seek(b"")?;
        while let Some(key) = source.key() {
            for value in source.messages().iter().filter_map(|(_, op)| op.value()) {
                self.pending_value(key, value, sound);
            }
            source.next()?;
        }
        Ok(())
    }

    fn pending_value(&mut self, key: &[u8], value: &Value, sound: &mut HashMap<PieceId, bool>) {
        let pieces = &self.trees.pieces;
        let mut parts = value.segments().iter().filter_map(|segment| segment.place()).map(|at| at.part.id());
        let whole = parts.all(|part| *sound.entry(part).or_insert_with(|| pieces.check(part).is_ok()));
        if !whole && let Err(error) = load(value, &**pieces) {
            let range = KeyRange { start: key.into(), end: Some([key, &[0]].concat().into()) };
            self.problem(Some(&range), error.to_string());
        }
    }

    /// Counts the references of a node without references that is still to be taken apart.
    pub(crate) fn visit_dead(&mut self, id: PieceId) {
        self.references.entry(id).or_default();
        self.note_unreadable(id, "being reclaimed");
    }

    fn is_node(&self, id: PieceId) -> bool {
        self.trees.locator.locate(id).is_ok_and(|location| matches!(location.kind, PieceKind::Node(_)))
    }

    /// Counts the references of a node that no index shows, and of those below it that were not
    /// counted yet.
    fn note_unreadable(&mut self, id: PieceId, why: &str) {
        let mut rest = vec![id];
        while let Some(id) = rest.pop().filter(|_| !self.is_over()) {
            if !self.seen_nodes.insert(id) {
                continue;
            }
            match self.trees.references_of(id) {
                Ok(refers) => {
                    for (piece, bytes) in refers {
                        self.count_reference(piece, bytes);
                        // Below a node that nothing refers to there are others that only it refers
                        // to.
                        if self.is_node(piece) {
                            rest.push(piece);
                        }
                    }
                }
                Err(error) => self.problem(None, format!("node {id}, {why}: {error}")),
            }
        }
    }

    /// A header refers to `piece`.
    fn count_reference(&mut self, piece: PieceId, bytes: u64) {
        let found = self.references.entry(piece).or_default();
        found.count += 1;
        found.bytes = found.bytes.saturating_add_unsigned(bytes);
    }

    /// `view` leads from the node to the index, `interval` is what the node covers, in its own
    /// keys. If it is not `whole`, only that much of it is seen: along a border that could not be
    /// read it was not taken apart (`tree/clone`).
    fn slot(&mut self, slot: &Arc<NodeSlot>, height: u8, view: &View, interval: &KeyRange, whole: bool) {
        if self.is_over() {
            return;
        }
        if let Some(handle) = slot.place()
            && !self.covered.insert((handle.id(), interval.clone()))
        {
            return;
        }
        let outer = view.range_to_outer(interval);
        let node = match slot.load(self.trees, height) {
            Ok(node) => node,
            Err(error) => return self.problem(Some(&outer), error.to_string()),
        };
        let id = slot.place().map(|h| h.id());
        if id.is_none_or(|id| self.seen_nodes.insert(id)) {
            self.report.nodes += 1;
            if id.is_some() {
                for (piece, bytes) in references(&node) {
                    self.count_reference(piece, bytes);
                }
            }
        }
        let node = match whole {
            true => node,
            false => {
                self.hidden.extend(references(&node).into_iter().map(|(piece, _)| piece));
                Arc::new(node.through(&View::identity().restrict(interval), &KeyRange::all()))
            }
        };
        match &node.body {
            Body::Leaf(run) => {
                self.run(run, view, interval, true);
                if !run.ranges.is_empty() {
                    self.problem(Some(&outer), "a leaf holds range messages");
                }
            }
            Body::Interior { pivots, edges } => {
                if edges.len() != pivots.len() + 1 {
                    return self.problem(Some(&outer), "pivots and edges do not match");
                }
                for (i, edge) in edges.iter().enumerate() {
                    self.edge(&node, i, edge, view, interval);
                }
            }
        }
    }

    fn edge(&mut self, node: &Node, i: usize, edge: &Edge, view: &View, interval: &KeyRange) {
        let covered = node.interval(i, interval);
        let outer = view.range_to_outer(&covered);
        if covered.is_empty() {
            return self.problem(Some(&outer), format!("edge {i} covers no keys: pivots are out of order"));
        }
        for run in &edge.runs {
            self.run(run, view, &covered, false);
        }
        let Some(child) = &edge.child else { return };
        self.child(child, node.height, &covered, view);
    }

    fn child(&mut self, child: &Child, height: u8, covered: &KeyRange, view: &View) {
        let outer = view.range_to_outer(covered);
        let simple = is_simple(&child.view, covered);
        if child.view.from.is_empty() && child.view.bounds == KeyRange::all() && !simple {
            self.problem(Some(&outer), format!("a child is seen through {:?}, not its lift", child.view.to));
        }
        if height == 0 {
            return self.problem(Some(&outer), "a leaf has a child");
        }
        let inner = child.view.range_inward(covered);
        let down =
            if simple { view.compose(&child.view) } else { view.compose(&child.view.restrict(covered)) };
        self.slot(&child.slot, height - 1, &down, &inner, !child.is_bounded());
        if let Ok(node) = child.slot.load(self.trees, height - 1)
            && simple
            && child.weight != UNKNOWN_WEIGHT
            && node.weight() != child.weight
        {
            self.problem(
                Some(&outer),
                format!("a child weighs {}, its edge says {}", node.weight(), child.weight),
            );
        }
    }

    fn run(&mut self, run: &Run, view: &View, interval: &KeyRange, leaf: bool) {
        let mut last: Option<Key> = None;
        for part in &run.parts {
            self.part(part, view, interval, leaf, &mut last);
        }
        for (range, _) in run.ranges.iter() {
            if !interval.covers(&range) {
                self.problem(Some(&view.range_to_outer(&range)), "a range message reaches beyond its edge");
            }
        }
    }

    fn part(
        &mut self,
        viewed: &ViewedPart,
        view: &View,
        interval: &KeyRange,
        leaf: bool,
        last: &mut Option<Key>,
    ) {
        if self.is_over() {
            return;
        }
        let held = KeyRange { start: viewed.first.clone(), end: viewed.last.clone() };
        let outer = view.range_to_outer(&held);
        let place = viewed.slot.place().map_or("in memory".into(), |p| p.handle.id().to_string());
        let part = match viewed.slot.load(self.trees) {
            Ok(part) => part,
            Err(error) => return self.problem(Some(&outer), error.to_string()),
        };
        match viewed.slot.place() {
            Some(stored) if !self.seen_parts.insert(stored.handle.id()) => {}
            Some(stored) => {
                self.report.parts += 1;
                // Past the caches, which hold what was good when it was read.
                if let Err(error) = self.trees.pieces.check(stored.handle.id()) {
                    self.problem(Some(&outer), error.to_string());
                }
            }
            None => self.report.parts += 1,
        }
        let summary = &viewed.slot.summary;
        let mut cursor = part.cursor();
        cursor.first();
        let mut previous: Option<(Key, crate::Msn)> = None;
        while cursor.valid() && !self.is_over() {
            self.report.entries += 1;
            if previous.as_ref().is_some_and(|(key, msn)| {
                (&**key, std::cmp::Reverse(*msn)) >= (cursor.key(), std::cmp::Reverse(cursor.msn()))
            }) {
                self.problem(Some(&outer), format!("part {place} is not in order"));
            }
            if !summary.filter.may_contain(cursor.key()) {
                self.problem(Some(&outer), format!("the filter of part {place} denies a key of it"));
            }
            if let Some(key) = viewed.view.outward(cursor.key()) {
                let same = previous.as_ref().is_some_and(|(k, _)| **k == *cursor.key());
                self.entry(EntryPlace { viewed, view, interval, leaf }, &key, last.as_ref(), same);
                *last = Some(key);
                self.op(&cursor.op(), view, last.as_deref().unwrap_or_default(), leaf, &place);
            }
            previous = Some((cursor.key().into(), cursor.msn()));
            cursor.next();
        }
        self.done += part.memory() as u64 + part.value_bytes();
        (self.progress)(self.done);
    }

    /// `last` is the key before, and with `same` the part itself holds it just before this one.
    fn entry(&mut self, place: EntryPlace<'_>, key: &Key, last: Option<&Key>, same: bool) {
        let EntryPlace { viewed, view, interval, leaf } = place;
        let at = || {
            view.range_to_outer(&KeyRange { start: key.clone(), end: Some([&**key, &[0]].concat().into()) })
        };
        if !interval.contains(key) {
            self.problem(Some(&at()), "a key lies outside of what its edge covers");
        }
        if last.is_some_and(|last| last > key || (last == key && (!same || leaf))) {
            self.problem(Some(&at()), "a key comes after a larger one, or twice");
        }
        if *key < viewed.first
            || viewed.last.as_ref().is_some_and(|last| !before_end(key, Some(last)) && key != last)
        {
            self.problem(Some(&at()), "a key lies outside of what the header says of its part");
        }
    }

    fn op(&mut self, op: &Op, view: &View, key: &[u8], leaf: bool, place: &str) {
        let at =
            || view.range_to_outer(&KeyRange { start: key.into(), end: Some([key, &[0]].concat().into()) });
        if leaf && !matches!(op, Op::Insert(_)) {
            return self.problem(Some(&at()), format!("part {place} of a leaf holds a message"));
        }
        let Some(value) = op.value() else { return };
        let trees = self.trees;
        let mut sound = true;
        for stored in value.segments().iter().filter_map(|segment| segment.place()) {
            self.report.value_bytes += u64::from(stored.len);
            // A value part is read whole, once; only if it is damaged each value in it is tried.
            let part = stored.part.id();
            sound &= *self.value_parts.entry(part).or_insert_with(|| trees.pieces.check(part).is_ok());
        }
        if !sound && let Err(error) = load(value, &*trees.pieces) {
            self.problem(Some(&at()), error.to_string());
        }
    }
}

#[cfg(test)]
mod tests;
