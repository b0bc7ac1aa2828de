//! Applying messages to a leaf.
//!
//! Parts that no message touches are kept as they are; touched ones are merged with the messages
//! into new parts. A leaf that has come to lie in too many places is rewritten whole while it is
//! written anyway: that keeps scans sequential however much is cloned and edited
//! (copy-on-abundant-write).

use super::editor::TreeEditor;
use super::gather::{Gather, rewrite};
use crate::Result;
use crate::message::resolve::KeyMessages;
use crate::model::ids::Msn;
use crate::model::key::{Key, KeyRange, before_end, common_prefix_len};
use crate::model::op::Op;
use crate::model::view::View;
use crate::pieces::Part;
use crate::tree::node::Node;
use crate::tree::ops::compact::{PartsBuilder, merged_ranges, run_sources};
use crate::tree::part_slot::PartSlot;
use crate::tree::policy::Gathering;
use crate::tree::run::{Run, ViewedPart, separator};
use crate::tree::run_source::RunSource;
use crate::tree::source::{Merged, Source};
use crate::tree::trees::Trees;
use std::sync::Arc;

/// A leaf is written at once, not at the checkpoint, if its new parts and the values that have no
/// place yet are at least this many bytes. Values that have one do not count: of a leaf that only
/// refers to them there is little to write, and most of it will be replaced before the checkpoint
/// where more of the same comes.
const WRITE_AT_ONCE_BYTES: u64 = 256 << 10;

/// The leaves, each with its smallest key's lower bound, that `base` becomes when `runs` (oldest
/// first) are applied to it. Everything is in the key space of the parent, and the edge covers
/// `interval`. The first lower bound is the interval's start; there is no leaf if nothing is left.
/// Values are gathered as `gather` says.
pub(crate) fn apply(
    editor: &TreeEditor<'_>,
    base: &Run,
    runs: &[Arc<Run>],
    interval: &KeyRange,
    gather: Gathering,
) -> Result<Vec<(Key, Node)>> {
    let trees = editor.trees;
    let parts = merge(trees, base, runs, interval)?;
    let mut leaves = split(parts, trees.tuning.leaf as u64, &interval.start);
    for (_, parts) in &mut leaves {
        let found = match gather {
            Gathering::Nothing => None,
            Gathering::Scattered => Gather::of(trees, parts, false),
            Gathering::Sparse => Gather::of(trees, parts, true),
        };
        if let Some(gather) = found {
            *parts = rewrite(trees, std::mem::take(parts), interval, &gather)?;
        }
        let new: Vec<Arc<PartSlot>> =
            parts.iter().map(|p| p.slot.clone()).filter(|s| s.as_unwritten().is_some()).collect();
        // When space is low it stays in memory: then a flush that does not fit can be given up.
        if !editor.policy.low_space
            && new.iter().map(|slot| to_write(slot)).sum::<u64>() >= WRITE_AT_ONCE_BYTES
        {
            trees.store_parts(&new)?;
        }
    }
    Ok(leaves.into_iter().map(|(lower, parts)| (lower, Node::leaf(parts))).collect())
}

/// Bytes that the device does not have of a part and its values.
fn to_write(slot: &PartSlot) -> u64 {
    let bytes =
        |part: Arc<Part>| part.memory() + part.unplaced_values().map(|value| value.len()).sum::<usize>();
    slot.as_unwritten().map_or(0, bytes) as u64
}

fn merge(
    trees: &Arc<Trees>,
    base: &Run,
    runs: &[Arc<Run>],
    interval: &KeyRange,
) -> Result<Vec<Arc<ViewedPart>>> {
    let ranges = merged_ranges(runs);
    let mut merged = Merged::new(run_sources(trees, runs));
    merged.seek(&interval.start)?;
    let mut out = PartsBuilder::new(trees);
    let small = trees.tuning.part as u32 / 4;
    for i in 0..base.parts.len().max(1) {
        let segment = KeyRange {
            start: if i == 0 { interval.start.clone() } else { base.parts[i].first.clone() },
            end: base.parts.get(i + 1).map(|p| p.first.clone()).or_else(|| interval.end.clone()),
        };
        let part = base.parts.get(i);
        let touched = merged.smallest().is_some_and(|key| before_end(&key, segment.end.as_deref()))
            || ranges.touches(&segment);
        match part {
            Some(part)
                if !touched
                    && !out.is_building_small_part()
                    && (part.slot.summary.bytes >= small || base.parts.len() == 1) =>
            {
                out.push_part(part.clone());
            }
            // Leaf pruning [BetrFS 0.2, section 5]: what is deleted is not read.
            Some(part) if !ranges.deletes_all_of(&segment) => {
                let run = Run::of_parts(vec![part.clone()]);
                let mut source = RunSource::new(trees.clone(), Arc::new(run), View::identity());
                source.seek(&segment.start)?;
                merged.push_oldest(Box::new(source));
                resolve_into(trees, &mut merged, &segment, &mut out)?;
                merged.pop_oldest();
            }
            _ => resolve_into(trees, &mut merged, &segment, &mut out)?,
        }
    }
    Ok(out.finish())
}

/// Adds the entries that `merged` gives within `segment`.
fn resolve_into(
    trees: &Trees,
    merged: &mut Merged,
    segment: &KeyRange,
    out: &mut PartsBuilder<'_>,
) -> Result<()> {
    while let Some(key) = merged.smallest().filter(|key| before_end(key, segment.end.as_deref())) {
        let mut found = KeyMessages::default();
        merged.levels(&key, |points, ranges| {
            found.add_level(points.iter().cloned(), ranges);
            !found.is_done()
        });
        if let Some(value) = found.value(&trees.merge, &*trees.pieces)? {
            out.push(&key, &[(Msn(0), Op::Insert(value))])?;
        }
        merged.next_behind(&key)?;
    }
    Ok(())
}

/// Cuts parts into leaves of at most about `most` bytes, where neighbours share the least prefix
/// [BetrFS 0.5, section 3.4: preferential splitting].
fn split(parts: Vec<Arc<ViewedPart>>, most: u64, start: &Key) -> Vec<(Key, Vec<Arc<ViewedPart>>)> {
    let total: u64 = parts.iter().map(|p| p.slot.weight()).sum();
    let mut leaves = Vec::new();
    if parts.is_empty() {
        return leaves;
    }
    let count = if total <= most { 1 } else { (total * 3).div_ceil(most * 2).max(2) };
    let mut rest = parts.into_iter().peekable();
    let mut lower = start.clone();
    let mut left = total;
    for n in (1..=count).rev() {
        let share = left / n;
        let mut leaf: Vec<Arc<ViewedPart>> = Vec::new();
        let mut size = 0;
        // The best place to cut so far: shared prefix, number of parts, pivot.
        let mut best: Option<(usize, usize, Key, u64)> = None;
        while let Some(part) = rest.next() {
            size += part.slot.weight();
            leaf.push(part);
            let (Some(next), Some(last)) = (rest.peek(), leaf.last().and_then(|p| p.last.as_ref())) else {
                continue;
            };
            if n > 1 && size * 5 >= share * 4 && *last < next.first {
                let shared = common_prefix_len(last, &next.first);
                if best.as_ref().is_none_or(|b| shared < b.0) {
                    best = Some((shared, leaf.len(), separator(last, &next.first), size));
                }
            }
            if n > 1 && size * 5 >= share * 6 && best.is_some() {
                break;
            }
        }
        match best {
            Some((_, parts, pivot, size)) => {
                let behind = leaf.split_off(parts);
                leaves.push((std::mem::replace(&mut lower, pivot), leaf));
                left -= size;
                rest = behind.into_iter().chain(rest).collect::<Vec<_>>().into_iter().peekable();
            }
            None => {
                if !leaf.is_empty() {
                    leaves.push((lower.clone(), leaf));
                }
                break;
            }
        }
    }
    leaves
}

#[cfg(test)]
mod tests;
