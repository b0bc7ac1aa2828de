//! Gathering: values of a leaf that lie in many places, or in value parts that are to be emptied,
//! are read and written again together.

use super::compact::PartsBuilder;
use crate::Result;
use crate::model::ids::{Msn, PieceId};
use crate::model::key::{Key, KeyRange};
use crate::model::op::Op;
use crate::model::value::{LargeValue, VALUE_PAGE, Value, ValueRef};
use crate::model::value_reader::load;
use crate::model::view::View;
use crate::tree::part_slot::PartSlot;
use crate::tree::run::{Run, ViewedPart};
use crate::tree::run_source::RunSource;
use crate::tree::source::Source;
use crate::tree::trees::Trees;
use bytes::Bytes;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A leaf with values in no more places than this is not rewritten.
const MAX_VALUE_PLACES: u64 = 8;

/// A leaf is rewritten if its values lie in places of fewer bytes than this on average: about what
/// a device reads in the time that it takes to begin somewhere else.
const PLACE_BYTES: u64 = 128 << 10;

/// Bytes that may lie between two values which are in one place.
const PLACE_GAP_BYTES: u64 = 64 << 10;

/// Where the values of a leaf lie.
#[derive(Default)]
struct ValueSpread {
    /// For each value part, and in it apart for values of whole pages and others (it has the ones
    /// first and the others behind them), where the last value ended.
    ends: BTreeMap<(PieceId, bool), u64>,
    /// How often a walk over the values has to begin somewhere else.
    places: u64,
    /// Bytes of the values.
    live: u64,
}

impl ValueSpread {
    fn add(&mut self, place: &ValueRef) {
        let (start, len) = (u64::from(place.offset), u64::from(place.len));
        self.live += len;
        let pages = (start | len).is_multiple_of(VALUE_PAGE as u64);
        let before = self.ends.insert((place.part.id(), pages), start + len);
        if !before.is_some_and(|end| (end..=end + PLACE_GAP_BYTES).contains(&start)) {
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
fn is_scattered(parts: &[Arc<ViewedPart>]) -> bool {
    let mut spread = ValueSpread::default();
    for part in parts {
        match part.slot.as_unwritten() {
            Some(part) => part.values().iter().filter_map(|v| v.place()).for_each(|place| spread.add(&place)),
            None => {
                spread.live += part.slot.summary.value_bytes;
                let values = part.slot.place().map(|p| p.values);
                values.iter().flat_map(|v| v.iter()).for_each(|(id, _)| spread.add_part(*id));
            }
        }
    }
    spread.places > MAX_VALUE_PLACES && spread.places * PLACE_BYTES > spread.live
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
    pub(crate) fn of(trees: &Trees, parts: &[Arc<ViewedPart>], sparse: bool) -> Option<Self> {
        if !sparse {
            let all = is_scattered(parts);
            return all.then_some(Self { all, sparse: HashSet::new() });
        }
        let mut holders: BTreeSet<PieceId> = BTreeSet::new();
        for part in parts {
            match part.slot.as_unwritten() {
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
        match slot.as_unwritten() {
            Some(part) => part.values().iter().filter_map(|v| v.place()).any(|p| self.concerns(p.part.id())),
            None => slot.place().is_none_or(|p| p.values.iter().any(|(id, _)| self.concerns(*id))),
        }
    }
}

/// Part of a leaf that is being rewritten.
enum LeafPiece {
    /// A part that stays as it is.
    Kept(Arc<ViewedPart>),
    Entry(Key, Msn, Value),
}

/// The same entries with the values in question in memory, to be written together.
pub(super) fn rewrite(
    trees: &Arc<Trees>,
    parts: Vec<Arc<ViewedPart>>,
    interval: &KeyRange,
    gather: &Gather,
) -> Result<Vec<Arc<ViewedPart>>> {
    let mut pieces: Vec<LeafPiece> = Vec::new();
    for part in parts {
        if !gather.concerns_part(&part.slot) {
            pieces.push(LeafPiece::Kept(part));
            continue;
        }
        let run = Run::of_parts(vec![part]);
        let mut source = RunSource::new(trees.clone(), Arc::new(run), View::identity());
        source.seek(&interval.start)?;
        while let Some(key) = source.key() {
            if let Some((msn, Op::Insert(value))) = source.messages().first() {
                pieces.push(LeafPiece::Entry(key.into(), *msn, value.clone()));
            }
            source.next()?;
        }
    }
    let moved = |piece: &LeafPiece| match piece {
        LeafPiece::Entry(_, _, value) if gather.concerns_value(value) => value.segments().to_vec(),
        _ => Vec::new(),
    };
    let segments: Vec<Arc<LargeValue>> = pieces.iter().flat_map(moved).collect();
    let mut read = read_in_place(trees, segments.iter())?;
    let mut out = PartsBuilder::new(trees);
    for piece in pieces {
        match piece {
            LeafPiece::Kept(part) => out.push_part(part),
            LeafPiece::Entry(key, msn, value) => {
                let value =
                    if gather.concerns_value(&value) { read_as_one(trees, value, &mut read)? } else { value };
                out.push(&key, &[(msn, Op::Insert(value))])?;
            }
        }
    }
    Ok(out.finish())
}

/// A value in memory; `read` holds segments of it that were read.
fn read_as_one(trees: &Trees, value: Value, read: &mut HashMap<*const LargeValue, Bytes>) -> Result<Value> {
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
