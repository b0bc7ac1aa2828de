//! Binding clones: from a redirection of keys to shared nodes; `docs/design/clones.md` has the
//! model.
//!
//! Protocol: when the layers older than a pending clone have been absorbed, the root is the state
//! that it refers to. What begins with the source is then *cut out*: along its two borders headers
//! are made that show no more than it, everything inside is shared through views, and messages on
//! their way there become runs, seen through views, on the edges of the node that comes out. That
//! node is *grafted* in the place of what begins with the destination, one level above its own
//! height, so that all paths stay of equal length [BetrFS 0.5, section 3]. No part is read or
//! written but those of small sources, which are copied.
//!
//! If there is such a node already, because the source was cloned before, and little is pending
//! above it, then no header is made: what is pending becomes runs on the edge above it, in both
//! places.
//!
//! Cost: the headers along the borders of source and destination.
//!
//! Damage along a border keeps no clone from becoming part of the tree ([`graft`](super::graft)).

use super::editor::TreeEditor;
use super::graft::{Exact, Grafter, SharedSubtree};
use super::rebuild::changeable_root;
use crate::Result;
use crate::message::pending_clone::PendingClone;
use crate::message::resolve::KeyMessages;
use crate::model::ids::Msn;
use crate::model::key::{Key, KeyRange};
use crate::model::value::Value;
use crate::model::view::View;
use crate::tree::node::{Node, NodeSlot, Root, UNKNOWN_WEIGHT};
use crate::tree::query::{Descent, Toward};
use crate::tree::run_source::Reach;
use crate::tree::source::{Inserts, Merged, before_end_of};
use crate::tree::trees::Trees;
use std::sync::Arc;

/// What a large value counts for when it is decided whether to copy.
const VALUE_REFERENCE_BYTES: usize = 64;

/// A source with more deleted keys that still have messages than one for so many bytes of a part is
/// not copied: each clone would look at all of them again.
const BYTES_PER_DELETED_KEY: usize = 16;

impl TreeEditor<'_> {
    /// The root after `clone`, where `root` is the state it refers to.
    pub(crate) fn bind(&self, root: &Root, clone: &PendingClone) -> Result<Root> {
        let grafter = Grafter::of(self);
        let (source, destination) = (KeyRange::prefix(&clone.source), KeyRange::prefix(&clone.destination));
        let node = changeable_root(self.trees, root)?;
        let found = grafter.find_exact(&node, &source);
        // What is shared already needs no look at its entries. What cannot be read is shared.
        let small = match &found {
            Some(found) if found.height() > 0 => None,
            Some(Exact::Light(found)) => small_source(self.trees, &found.as_root(), b"").unwrap_or_default(),
            _ => small_source(self.trees, root, &clone.source).unwrap_or_default(),
        };
        if let Some(entries) = small {
            let root = grafter.graft((*node).clone(), &destination, None)?;
            let moved = |key: Key| [&*clone.destination, &*key].concat().into();
            let entries = entries.into_iter().map(|(key, value)| (moved(key), value));
            return self.insert_copies(&root, entries, clone.msn);
        }
        let found = found.and_then(Exact::light);
        let into = if clone.is_inside { Grafter::of(self).without_joining() } else { Grafter::of(self) };
        let mut is_in_place = found.as_ref().is_some_and(|found| found.runs.is_empty());
        let mut target = found.unwrap_or_else(|| grafter.extract(&node, &source));
        for replaced in &clone.replaced {
            is_in_place &= !self.align(&grafter, &mut target, replaced);
        }
        if is_in_place {
            return into.graft((*node).clone(), &destination, Some(&target));
        }
        // In the source's own place, too: from now on they share header and runs, and the next
        // clone finds them.
        let root = grafter.graft((*node).clone(), &source, Some(&target))?;
        into.graft((*changeable_root(self.trees, &root)?).clone(), &destination, Some(&target))
    }

    /// Sees to it that headers end where the clone of `target` will get something else in the place
    /// of what begins with `replaced`. Otherwise each such clone would have headers of its own
    /// there, down to a leaf. False if it is so already, or cannot be.
    fn align(&self, grafter: &Grafter<'_>, target: &mut SharedSubtree, replaced: &[u8]) -> bool {
        let Some(inner) = replaced.strip_prefix(&*target.behind) else { return false };
        let Ok(node) = target.slot.load(self.trees, target.height) else { return false };
        let Some(aligned) = grafter.aligned(&node, &KeyRange::prefix(inner)) else { return false };
        (target.weight, target.height) = (aligned.weight(), aligned.height);
        target.slot = NodeSlot::new(aligned);
        true
    }

    /// A root that denotes what `root` does behind `prefix`, without the prefix; `msn` is as new as
    /// anything there.
    pub(crate) fn extract_prefix(&self, root: &Root, prefix: &[u8], msn: Msn) -> Result<Root> {
        let grafter = Grafter::of(self);
        let source = KeyRange::prefix(prefix);
        if let Some(entries) = small_source(self.trees, root, prefix).unwrap_or_default() {
            return self.insert_copies(&Root::default(), entries.into_iter(), msn);
        }
        let node = changeable_root(self.trees, root)?;
        let target = match grafter.find_exact(&node, &source).and_then(Exact::light) {
            Some(target) => target,
            None => grafter.extract(&node, &source),
        };
        // Behind nothing the node's keys lack no more than what it lacks behind the prefix.
        grafter.graft(Node::empty(0), &KeyRange::all(), Some(&target))
    }

    /// The root after what begins with `prefix` has made room for what `other` denotes, behind the
    /// prefix.
    pub(crate) fn insert_at_prefix(
        &self,
        root: &Root,
        prefix: &[u8],
        other: &Root,
        msn: Msn,
    ) -> Result<Root> {
        let grafter = Grafter::of(self);
        let (range, node) = (KeyRange::prefix(prefix), (*changeable_root(self.trees, root)?).clone());
        if let Some(entries) = small_source(self.trees, other, b"").unwrap_or_default() {
            let entries = entries.into_iter().map(|(key, value)| ([prefix, &key].concat().into(), value));
            return self.insert_copies(&grafter.graft(node, &range, None)?, entries, msn);
        }
        let Some(slot) = other.slot.clone() else { return grafter.graft(node, &range, None) };
        let weight = self.trees.root_node(other).map_or(UNKNOWN_WEIGHT, |node| node.weight());
        let target =
            SharedSubtree { slot, behind: Key::default(), weight, height: other.height, runs: Vec::new() };
        grafter.graft(node, &range, Some(&target))
    }

    /// The root with entries that are newer than all that is there.
    fn insert_copies(
        &self,
        root: &Root,
        entries: impl Iterator<Item = (Key, Value)>,
        msn: Msn,
    ) -> Result<Root> {
        let copies = Inserts::new(entries, msn);
        if copies.is_empty() {
            return Ok(root.clone());
        }
        let at_once = !self.policy.low_space;
        self.absorb_runs(root, &copies, at_once).or_else(|_| self.absorb_runs(root, &copies, false))
    }
}

/// What begins with `prefix`, without it, if it is little enough to be copied.
fn small_source(trees: &Arc<Trees>, root: &Root, prefix: &[u8]) -> Result<Option<Vec<(Key, Value)>>> {
    let range = &KeyRange::prefix(prefix);
    let mut entries = Vec::new();
    let Some(slot) = &root.slot else { return Ok(Some(entries)) };
    let mut start = range.start.clone();
    let (mut bytes, mut values, mut deleted) = (0, 0, 0);
    loop {
        let toward = Toward::Key(&start);
        let descent =
            Descent::new(trees, slot, root.height, View::identity(), range.clone(), toward, Reach::Far)?;
        let Descent { interval, mut sources, .. } = descent;
        sources.iter_mut().for_each(|source| source.narrow(&interval));
        let mut merged = Merged::new(sources);
        merged.seek(&start)?;
        while let Some(key) = merged.smallest().filter(|key| before_end_of(key, &interval)) {
            let mut found = KeyMessages::default();
            merged.levels(&key, |points, ranges| {
                found.add_level(points.iter().cloned(), ranges);
                !found.is_done()
            });
            if found.is_costly() {
                return Ok(None);
            }
            if let Some(value) = found.value(&trees.merge, &*trees.pieces)? {
                let large = !value.segments().is_empty();
                bytes += key.len() + if large { VALUE_REFERENCE_BYTES } else { value.len() };
                values += if large { value.len() } else { 0 };
                entries.push((key[prefix.len()..].into(), value));
            } else {
                deleted += 1;
            }
            // Values by reference weigh on the edge that they are copied to.
            let most = trees.tuning.part;
            if bytes > most || values > trees.tuning.edge / 2 || deleted > most / BYTES_PER_DELETED_KEY {
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

#[cfg(test)]
mod tests;
