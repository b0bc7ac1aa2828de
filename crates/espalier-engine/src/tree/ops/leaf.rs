//! Applying messages to a leaf.
//!
//! Parts that no message touches are kept as they are; touched ones are merged with the messages
//! into new parts. A leaf that has come to lie in too many places is rewritten whole while it is
//! written anyway: that keeps scans sequential however much is cloned and edited
//! (copy-on-abundant-write).

use crate::Result;
use crate::message::range_messages::RangeMessages;
use crate::message::resolve::Found;
use crate::model::ids::{Msn, PieceId};
use crate::model::key::{Key, KeyRange, before_end, common_prefix_len};
use crate::model::op::Op;
use crate::model::value::{LargeValue, VALUE_PAGE, Value, ValueRef};
use crate::model::value_reader::load;
use crate::model::view::View;
use crate::pieces::Part;
use crate::tree::node::Node;
use crate::tree::ops::compact::{PartsBuilder, merged_ranges, run_sources};
use crate::tree::part_slot::PartSlot;
use crate::tree::run::{Run, ViewedPart, separator};
use crate::tree::run_source::RunSource;
use crate::tree::source::{Merged, Source};
use crate::tree::trees::Trees;
use bytes::Bytes;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A leaf whose values lie in no more places than this is not rewritten.
const FEW_PLACES: u64 = 8;

/// A leaf is rewritten if its values lie in places of fewer bytes than this on average: about what
/// a device reads in the time that it takes to begin somewhere else.
const PLACE: u64 = 128 << 10;

/// Bytes that may lie between two values which are in one place.
const GAP: u64 = 64 << 10;

/// A leaf whose new parts, and values that have no place yet, are at least this many bytes is
/// written at once, not at the checkpoint. Values that have one do not count: of a leaf that only
/// refers to them there is little to write, and most of it will be replaced before the checkpoint
/// where more of the same comes.
const WRITE_AT_ONCE: u64 = 256 << 10;

/// Which values are read and written again while a leaf is written. That takes room for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gathering {
    /// None.
    Nothing,
    /// All of a leaf whose values lie in too many value parts.
    Scattered,
    /// Those in value parts that are to be emptied, for little of them is live.
    Sparse,
}

/// The leaves, each with its smallest key's lower bound, that `base` becomes when `runs` (oldest
/// first) are applied to it. Everything is in the key space of the parent, whose edge covers
/// `interval`. The first lower bound is the interval's start; there is no leaf if nothing is left.
/// Values are gathered as `gather` says.
pub(crate) fn apply(
    trees: &Arc<Trees>,
    base: &Run,
    runs: &[Arc<Run>],
    interval: &KeyRange,
    gather: Gathering,
) -> Result<Vec<(Key, Node)>> {
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
            parts.iter().map(|p| p.slot.clone()).filter(|s| s.unstored().is_some()).collect();
        // When space is short it stays in memory: then a flush that does not fit can be given up.
        if !trees.lean.load(Relaxed) && new.iter().map(|slot| to_write(slot)).sum::<u64>() >= WRITE_AT_ONCE {
            trees.store_parts(&new)?;
        }
    }
    Ok(leaves.into_iter().map(|(lower, parts)| (lower, Node::leaf(parts))).collect())
}

/// Bytes that the device does not have of a part and its values.
fn to_write(slot: &PartSlot) -> u64 {
    let bytes =
        |part: Arc<Part>| part.memory() + part.unplaced_values().map(|value| value.len()).sum::<usize>();
    slot.unstored().map_or(0, bytes) as u64
}

fn merge(trees: &Arc<Trees>, base: &Run, runs: &[Arc<Run>], interval: &KeyRange) -> Result<Vec<ViewedPart>> {
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
                    && !out.is_hungry()
                    && (part.slot.summary.bytes >= small || base.parts.len() == 1) =>
            {
                out.push_part(part.clone());
            }
            // Leaf pruning [BetrFS 0.2, section 5]: what is deleted is not read.
            Some(part) if !ranges.deletes_all_of(&segment) => {
                let run = Run { parts: vec![part.clone()], ranges: RangeMessages::default() };
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
        let mut found = Found::default();
        merged.levels(&key, |points, ranges| {
            found.add_level(points.iter().cloned(), ranges);
            !found.is_done()
        });
        if let Some(value) = found.value(&trees.merge, &*trees.pieces)? {
            out.push(&key, &[(Msn(0), Op::Insert(value))]);
        }
        merged.next_behind(&key)?;
    }
    Ok(())
}

/// Where the values of a leaf lie.
#[derive(Default)]
struct Layout {
    /// For each value part, and in it apart for values of whole pages and others (it has the ones
    /// first and the others behind them), where the last value ended.
    ends: BTreeMap<(PieceId, bool), u64>,
    /// How often a walk over the values has to begin somewhere else.
    places: u64,
    /// Bytes of the values.
    live: u64,
}

impl Layout {
    fn add(&mut self, place: &ValueRef) {
        let (start, len) = (u64::from(place.offset), u64::from(place.len));
        self.live += len;
        let pages = (start | len).is_multiple_of(VALUE_PAGE as u64);
        let before = self.ends.insert((place.part.id(), pages), start + len);
        if !before.is_some_and(|end| (end..=end + GAP).contains(&start)) {
            self.places += 1;
        }
    }

    /// Values in `part` of which nothing else is known.
    fn add_part(&mut self, part: PieceId) {
        if let Entry::Vacant(entry) = self.ends.entry((part, true)) {
            entry.insert(0);
            self.places += 1;
        }
    }
}

/// True if the values of these parts lie in too many places.
fn is_scattered(parts: &[ViewedPart]) -> bool {
    let mut layout = Layout::default();
    for part in parts {
        match part.slot.unstored() {
            Some(part) => part.values().iter().filter_map(|v| v.place()).for_each(|place| layout.add(&place)),
            None => {
                layout.live += part.slot.summary.value_bytes;
                let values = part.slot.place().map(|p| p.values);
                values.iter().flat_map(|v| v.iter()).for_each(|(id, _)| layout.add_part(*id));
            }
        }
    }
    layout.places > FEW_PLACES && layout.places * PLACE > layout.live
}

/// Which of the value parts that a leaf's values lie in are to be left: all if they are too many,
/// else those of which little is live.
pub(crate) struct Gather {
    all: bool,
    sparse: HashSet<PieceId>,
}

impl Gather {
    /// What there is to gather in a leaf of `parts`; `None` for nothing. `sparse` asks for those in
    /// value parts that are to be emptied.
    pub(crate) fn of(trees: &Trees, parts: &[ViewedPart], sparse: bool) -> Option<Self> {
        if !sparse {
            let all = is_scattered(parts);
            return all.then_some(Self { all, sparse: HashSet::new() });
        }
        let mut holders: BTreeSet<PieceId> = BTreeSet::new();
        for part in parts {
            match part.slot.unstored() {
                Some(part) => {
                    holders.extend(part.values().iter().filter_map(|v| v.place()).map(|p| p.part.id()));
                }
                None => {
                    holders.extend(part.slot.place().iter().flat_map(|p| p.values.iter().map(|(id, _)| *id)))
                }
            }
        }
        let sparse = trees.sparse.lock();
        let found: HashSet<PieceId> = holders.into_iter().filter(|holder| sparse.contains(holder)).collect();
        (!found.is_empty()).then_some(Self { all: false, sparse: found })
    }

    fn concerns(&self, part: PieceId) -> bool {
        self.all || self.sparse.contains(&part)
    }

    fn concerns_value(&self, value: &Value) -> bool {
        let concerned = |p: ValueRef| self.concerns(p.part.id());
        value.segments().iter().any(|s| s.place().is_some_and(concerned))
    }

    fn concerns_part(&self, slot: &PartSlot) -> bool {
        match slot.unstored() {
            Some(part) => part.values().iter().filter_map(|v| v.place()).any(|p| self.concerns(p.part.id())),
            None => slot.place().is_none_or(|p| p.values.iter().any(|(id, _)| self.concerns(*id))),
        }
    }
}

/// Part of a leaf that is being rewritten.
enum Piece {
    /// A part that stays as it is.
    Kept(ViewedPart),
    Entry(Key, Msn, Value),
}

/// The same entries with the values in question in memory, to be written together.
fn rewrite(
    trees: &Arc<Trees>,
    parts: Vec<ViewedPart>,
    interval: &KeyRange,
    gather: &Gather,
) -> Result<Vec<ViewedPart>> {
    let mut pieces: Vec<Piece> = Vec::new();
    for part in parts {
        if !gather.concerns_part(&part.slot) {
            pieces.push(Piece::Kept(part));
            continue;
        }
        let run = Run { parts: vec![part], ranges: RangeMessages::default() };
        let mut source = RunSource::new(trees.clone(), Arc::new(run), View::identity());
        source.seek(&interval.start)?;
        while let Some(key) = source.key() {
            if let Some((msn, Op::Insert(value))) = source.messages().first() {
                pieces.push(Piece::Entry(key.into(), *msn, value.clone()));
            }
            source.next()?;
        }
    }
    let moved = |piece: &Piece| match piece {
        Piece::Entry(_, _, value) if gather.concerns_value(value) => value.segments().to_vec(),
        _ => Vec::new(),
    };
    let segments: Vec<Arc<LargeValue>> = pieces.iter().flat_map(moved).collect();
    let mut read = read_in_place(trees, segments.iter())?;
    let mut out = PartsBuilder::new(trees);
    for piece in pieces {
        match piece {
            Piece::Kept(part) => out.push_part(part),
            Piece::Entry(key, msn, value) => {
                let value =
                    if gather.concerns_value(&value) { joined(trees, value, &mut read)? } else { value };
                out.push(&key, &[(msn, Op::Insert(value))]);
            }
        }
    }
    Ok(out.finish())
}

/// A value in memory; `read` holds segments of it that were read.
fn joined(trees: &Trees, value: Value, read: &mut HashMap<*const LargeValue, Bytes>) -> Result<Value> {
    Ok(match value.segments() {
        [] => value,
        [one] => {
            Value::from(read.remove(&Arc::as_ptr(one)).map_or_else(|| load(&value, &*trees.pieces), Ok)?)
        }
        segments => {
            let mut bytes = Vec::with_capacity(value.len());
            for segment in segments {
                match read.remove(&Arc::as_ptr(segment)).or_else(|| segment.bytes()) {
                    Some(read) => bytes.extend_from_slice(&read),
                    None => bytes.extend_from_slice(&load(&Value::shared(segment.clone()), &*trees.pieces)?),
                }
            }
            Value::from(bytes)
        }
    })
}

/// Reads those of `segments` that are not in memory.
fn read_in_place<'a>(
    trees: &Trees,
    segments: impl Iterator<Item = &'a Arc<LargeValue>>,
) -> Result<HashMap<*const LargeValue, Bytes>> {
    let missing = segments.filter(|segment| segment.bytes().is_none());
    let (names, places): (Vec<_>, Vec<_>) =
        missing.filter_map(|segment| Some((Arc::as_ptr(segment), segment.place()?))).unzip();
    let read = trees.pieces.read_neighbours(&places)?;
    Ok(names.into_iter().zip(read).collect())
}

/// Cuts parts into leaves of at most about `most` bytes, where neighbours share the least prefix
/// [BetrFS 0.5, section 3.4: preferential splitting].
fn split(parts: Vec<ViewedPart>, most: u64, start: &Key) -> Vec<(Key, Vec<ViewedPart>)> {
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
        let mut leaf: Vec<ViewedPart> = Vec::new();
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
mod tests {
    use crate::model::ids::IndexId;
    use crate::{Batch, FormatOptions, OpenOptions, Store};
    use espalier_storage::{MemoryDevice, SimulatedEnvironment};
    use std::sync::Arc;

    #[test]
    fn a_leaf_that_refers_to_what_the_log_has_placed_waits_for_the_checkpoint() {
        let (device, env) = (Arc::new(MemoryDevice::new(512 << 20)), Arc::new(SimulatedEnvironment::new(1)));
        Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
        let store = Store::open(device, env, OpenOptions::default()).unwrap();
        let id = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
        let written = || store.statistics().device.bytes_written;
        let absorbed = |first: u8, synced: bool| {
            let mut batch = Batch::new();
            (0..64u8).for_each(|n| batch.insert(id, &[first, n], vec![first ^ n; 32 << 10]));
            store.commit(batch).unwrap();
            if synced {
                store.sync_all().unwrap();
            }
            let before = written();
            store.shared.absorb_at_once(&[id]).unwrap();
            written() - before
        };
        assert!(absorbed(1, false) >= 2 << 20, "values without a place are written with their leaf");
        assert_eq!(absorbed(2, true), 0);
        store.checkpoint().unwrap();
        for key in [[1, 7], [2, 7]] {
            assert_eq!(store.get(id, &key).unwrap().unwrap(), vec![key[0] ^ 7; 32 << 10]);
        }
        assert!(store.verify(&mut |_| {}).unwrap().problems.is_empty());
    }
}
