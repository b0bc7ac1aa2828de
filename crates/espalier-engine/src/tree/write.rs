//! Putting nodes and parts on the device.

use crate::Result;
use crate::model::ids::{PieceId, Reference};
use crate::model::piece::PieceHandle;
use crate::model::view::View;
use crate::pieces::{Encoded, Part};
use crate::tree::Root;
use crate::tree::codec;
use crate::tree::memory::{Charge, TreeMemory};
use crate::tree::node::{Body, Edge, Node, NodeSlot};
use crate::tree::part_slot::{NAMED_PART_BYTES, PartSlot, StoredPart};
use crate::tree::run::Run;
use crate::tree::trees::Trees;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a number in a header, and of a length, at most.
const MAX_NUMBER_BYTES: usize = 10;
const MAX_LENGTH_BYTES: usize = 5;

/// A header put on the device, and what it refers to: one count each.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) id: PieceId,
    pub(crate) refers: Vec<Reference>,
}

impl Trees {
    /// Writes what the device does not have of the tree below `slot`, children first, and adds the
    /// headers that it wrote to `written`.
    pub(crate) fn write(&self, slot: &Arc<NodeSlot>, written: &mut Vec<Written>) -> Result<Arc<PieceHandle>> {
        let Some(node) = slot.as_unwritten() else {
            return slot.place().ok_or_else(|| crate::Error::damaged("a node is nowhere"));
        };
        if let Body::Interior { edges, .. } = &node.body {
            for child in edges.iter().filter_map(|e| e.child.as_ref()) {
                self.write(&child.slot, written)?;
            }
        }
        let new: Vec<Arc<PartSlot>> = runs_of(&node)
            .flat_map(|r| &r.parts)
            .map(|p| p.slot.clone())
            .filter(|s| s.as_unwritten().is_some())
            .collect();
        self.store_parts(&new)?;
        let id = self.locator.new_id();
        let (body, holds) = codec::encode(&node)?;
        debug_assert!(body.len() <= header_bytes(&node), "a header has more bytes than was reckoned");
        let refers = references(&node);
        let encoded = Encoded::new(id, crate::PieceKind::Node(node.height), &body, self.compression, holds)?;
        let handles = self.pieces.writer.write_group(vec![encoded], None)?;
        let Some(handle) = handles.into_iter().next() else {
            return Err(crate::Error::damaged("a write gave no piece"));
        };
        self.pieces.keep_node(id, node.clone(), memory_of(&node, body.len()));
        slot.set_stored(handle.clone());
        for run in runs_of(&node) {
            run.sums.forget_header_bytes();
            run.parts.iter().for_each(|part| part.slot.set_named());
        }
        written.push(Written { id, refers });
        Ok(handle)
    }

    /// Blocks that what the device does not have of the tree below `slot` will take, at most. A
    /// tree never grows, so it is counted once: writers ask again and again, and what has been
    /// written since only makes it less.
    pub(crate) fn unwritten_blocks(&self, slot: &NodeSlot) -> u64 {
        slot.unwritten(|| self.unwritten(slot, &mut HashSet::new()))
    }

    /// Blocks that what the device does not have of a tree will take, at most, but for nodes and
    /// parts that an earlier call has given for this tree or another. From then on they are in
    /// [`Self::counted_blocks`].
    pub(crate) fn new_unwritten_blocks(&self, root: &Root) -> u64 {
        root.slot.as_ref().map_or(0, |slot| new_unwritten(slot, &Counting::Begins(&self.memory)))
    }

    /// The sum of what [`Self::new_unwritten_blocks`] has given, without what has been written
    /// since, and what no tree has any more.
    pub(crate) fn counted_blocks(&self) -> u64 {
        self.memory.counted_blocks.load(Ordering::Relaxed) as u64
    }

    /// What [`Self::new_unwritten_blocks`] would give, at most.
    pub(crate) fn uncounted_blocks(&self, root: &Root) -> u64 {
        root.slot.as_ref().map_or(0, |slot| new_unwritten(slot, &Counting::Looks))
    }

    /// Blocks that what the device does not have of these trees will take, at most, counted now.
    pub(crate) fn unwritten_together(&self, roots: &[Root]) -> u64 {
        let mut seen = HashSet::new();
        let slots = roots.iter().filter_map(|root| root.slot.as_ref());
        slots.map(|slot| self.unwritten(slot, &mut seen)).sum()
    }

    /// The same but for the nodes and parts in `seen`, by their address.
    fn unwritten(&self, slot: &NodeSlot, seen: &mut HashSet<usize>) -> u64 {
        let Some(node) = slot.as_unwritten() else { return 0 };
        if !seen.insert(std::ptr::from_ref(slot).addr()) {
            return 0;
        }
        let mut total = 0;
        for run in runs_of(&node).filter(|run| !run.sums.is_stored()) {
            let mut unwritten = 0;
            for part in &run.parts {
                let Some(new) = part.slot.as_unwritten() else { continue };
                unwritten += 1;
                // Several edges, and clones, may see one part.
                if seen.insert(Arc::as_ptr(&part.slot).addr()) {
                    total += part_blocks(&new);
                }
            }
            if unwritten == 0 {
                run.sums.note_stored();
            }
        }
        if let Body::Interior { edges, .. } = &node.body {
            let children = edges.iter().filter_map(|e| e.child.as_ref());
            total += children.map(|child| self.unwritten(&child.slot, seen)).sum::<u64>();
        }
        total + header_blocks(&node)
    }

    /// Writes parts, their unstored values first, together; each once, however often it is named.
    pub(crate) fn store_parts(&self, slots: &[Arc<PartSlot>]) -> Result<()> {
        let mut seen = HashSet::new();
        let slots = slots.iter().filter(|slot| seen.insert(Arc::as_ptr(slot)));
        let parts: Vec<_> = slots.filter_map(|s| s.as_unwritten().map(|p| (s, p))).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let values: Vec<_> = parts.iter().flat_map(|(_, p)| p.unplaced_values()).cloned().collect();
        if !values.is_empty() {
            self.pieces.writer.write_values(&values, None)?;
        }
        let mut encoded = Vec::with_capacity(parts.len());
        for (_, part) in &parts {
            encoded.push(part.encode(self.locator.new_id(), self.compression)?);
        }
        for ((slot, part), handle) in parts.iter().zip(self.pieces.writer.write_group(encoded, None)?) {
            self.pieces.keep_part(handle.id(), part.clone());
            slot.set_stored(StoredPart { handle, values: part.value_parts().into() });
            for value in part.values() {
                value.forget_bytes();
            }
        }
        Ok(())
    }

    /// What the header `id` refers to.
    pub(crate) fn references_of(&self, id: PieceId) -> Result<Vec<Reference>> {
        let node = self.node(id)?;
        Ok(references(&node))
    }
}

/// Whether what is found to be new counts from then on.
enum Counting<'a> {
    Begins(&'a TreeMemory),
    Looks,
}

impl Counting<'_> {
    /// The share of so many blocks, if they count from now on.
    fn share(&self, blocks: u64) -> Option<Charge> {
        match self {
            Self::Begins(memory) => Some(Charge::new(&memory.counted_blocks, blocks as usize)),
            Self::Looks => None,
        }
    }
}

/// Blocks of what is unwritten below `slot` and does not count yet.
fn new_unwritten(slot: &NodeSlot, counting: &Counting<'_>) -> u64 {
    let begins = matches!(counting, Counting::Begins(_));
    let is_new = || if begins { slot.begins_to_count() } else { !slot.counts() };
    // What lies below a node that counts does so, too: a node never changes.
    let Some(node) = slot.as_unwritten().filter(|_| is_new()) else { return 0 };
    let is_new = |run: &Run| if begins { run.sums.begins_to_count() } else { !run.sums.counts() };
    let runs = runs_of(&node).filter(|run| !run.sums.is_stored() && is_new(run));
    let is_new = |part: &PartSlot| if begins { part.begins_to_count() } else { !part.counts() };
    let parts = runs.flat_map(|run| &run.parts);
    let mut total = header_blocks(&node);
    counting.share(total).into_iter().for_each(|share| slot.charge(share));
    for slot in parts.map(|part| &part.slot) {
        let Some(part) = slot.as_unwritten().filter(|_| is_new(slot)) else { continue };
        let blocks = part_blocks(&part);
        counting.share(blocks).into_iter().for_each(|share| slot.charge(share));
        total += blocks;
    }
    if let Body::Interior { edges, .. } = &node.body {
        let children = edges.iter().filter_map(|e| e.child.as_ref());
        total += children.map(|child| new_unwritten(&child.slot, counting)).sum::<u64>();
    }
    total
}

/// Blocks that a part with its large values takes, at most, but for values that have their place.
fn part_blocks(part: &Part) -> u64 {
    let values = part.unplaced_values().map(|value| blocks_of(value.len()));
    blocks_of(part.memory()) + values.sum::<u64>()
}

/// Blocks that so many bytes of a header or a part take, at most: with a list of its places if it
/// finds no run.
pub(super) fn blocks_of(bytes: usize) -> u64 {
    let blocks = (bytes as u64 + 128).div_ceil(espalier_storage::BLOCK as u64);
    blocks + u64::from(blocks > 1)
}

/// Blocks that the header of a node takes, at most.
pub(super) fn header_blocks(node: &Node) -> u64 {
    blocks_of(header_bytes(node))
}

/// Bytes that a node takes in memory whose header has a body of so many bytes. Keys and filters are
/// in pieces of memory of their own, about as long.
pub(super) fn memory_of(node: &Node, body: usize) -> usize {
    512 + body + node.named_parts() * NAMED_PART_BYTES
}

/// Bytes of the header of a node ([`codec::encode`]), at most: every number and length with as many
/// as it can have, and every key as if it shared nothing with the one before.
pub(super) fn header_bytes(node: &Node) -> usize {
    let mut bytes = 2 * MAX_NUMBER_BYTES;
    if let Body::Interior { pivots, edges } = &node.body {
        bytes += pivots.iter().map(|pivot| pivot.len() + 2 * MAX_LENGTH_BYTES).sum::<usize>();
        let child = |edge: &Edge| {
            3 * MAX_NUMBER_BYTES + edge.child.as_ref().map_or(0, |child| view_bytes(&child.view))
        };
        bytes += edges.iter().map(child).sum::<usize>();
    }
    bytes + runs_of(node).map(|run| run.sums.header_bytes(|| run_bytes(run))).sum::<usize>()
}

/// Bytes of a run in a header, at most.
fn run_bytes(run: &Run) -> usize {
    let mut bytes = 2 * MAX_NUMBER_BYTES + run.ranges.memory() + run.ranges.len() * 8 * MAX_NUMBER_BYTES;
    for part in &run.parts {
        let summary = &part.slot.summary;
        let values = part.slot.value_parts();
        bytes += summary.first.len() + summary.last.len() + summary.filter.encoded_len();
        bytes += view_bytes(&part.view) + 6 * MAX_NUMBER_BYTES + 4 * MAX_LENGTH_BYTES;
        bytes += values * 2 * MAX_NUMBER_BYTES;
    }
    bytes
}

fn view_bytes(view: &View) -> usize {
    let end = view.bounds.end.as_ref().map_or(0, |end| end.len());
    view.from.len() + view.to.len() + view.bounds.start.len() + end + 4 * MAX_LENGTH_BYTES
}

/// The runs of a node: of a leaf its entries, of an interior node what lies on its edges.
pub(crate) fn runs_of(node: &Node) -> Box<dyn Iterator<Item = &Run> + '_> {
    match &node.body {
        Body::Leaf(run) => Box::new(std::iter::once(&**run)),
        Body::Interior { edges, .. } => Box::new(edges.iter().flat_map(|e| e.runs.iter().map(|r| &**r))),
    }
}

/// The pieces that a node refers to, all of which lie on the device: each once, ascending.
pub(crate) fn references(node: &Node) -> Vec<Reference> {
    let children: &[_] = match &node.body {
        Body::Leaf(_) => &[],
        Body::Interior { edges, .. } => edges,
    };
    let children = children.iter().filter_map(|e| e.child.as_ref()).filter_map(|c| c.slot.place());
    let mut found: BTreeMap<PieceId, u64> = children.map(|handle| (handle.id(), 0)).collect();
    add_part_references(node, &mut found);
    found.into_iter().collect()
}

/// The parts and value parts that a node refers to, all of which lie on the device: each once,
/// ascending.
pub(super) fn part_references(node: &Node) -> Vec<Reference> {
    let mut found: BTreeMap<PieceId, u64> = BTreeMap::new();
    add_part_references(node, &mut found);
    found.into_iter().collect()
}

fn add_part_references(node: &Node, found: &mut BTreeMap<PieceId, u64>) {
    for part in runs_of(node).flat_map(|r| &r.parts).filter_map(|p| p.slot.place()) {
        // A part that is seen through several views counts once.
        if found.insert(part.handle.id(), 0).is_none() {
            for (value, bytes) in part.values.iter() {
                *found.entry(*value).or_default() += bytes;
            }
        }
    }
}
