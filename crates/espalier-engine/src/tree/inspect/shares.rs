//! Shares: how many bytes of parts entries of some ranges refer to, and how many of these nothing
//! else refers to.
//!
//! Of each key-value part that the walk meets it is noted where it appears. A part that appears
//! inside of the ranges only counts by what its header says; of one that also appears outside, or
//! on a border, the entries are read.
//!
//! What others refer to in a value part is a sum: the live bytes in the node translation table,
//! less what the headers refer to that the walk knows, and what these show outside. So the sum is
//! all that is known of references from elsewhere, and not which bytes they mean. Of what the
//! ranges refer to at least the difference is theirs alone, and that counts: never what others hold
//! as well, but too little where a part has values of both. Where others refer to a part, what
//! several parts of the ranges refer to counts once, which takes reading them; otherwise it may
//! count up to what is dead in the part.

use crate::Result;
use crate::model::ids::PieceId;
use crate::model::key::KeyRange;
use crate::model::value::ValueRef;
use crate::model::view::View;
use crate::tree::node::{Edge, Node};
use crate::tree::part_slot::{PartSlot, StoredPart};
use crate::tree::run::{Run, ViewedPart};
use crate::tree::trees::Trees;
use crate::tree::write::references;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What the tables say of a piece.
pub(crate) struct Counted {
    /// How many references to it count.
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// Of a value part the live bytes.
    pub(crate) live: u64,
}

/// Asks the tables about a piece.
pub(crate) type Look<'a> = dyn Fn(PieceId) -> Result<Counted> + 'a;

/// True if one of the ranges covers what is shown.
pub(super) fn covers(ranges: &[KeyRange], shown: &KeyRange) -> bool {
    ranges.iter().any(|range| range.covers(shown))
}

/// Where a part appears that a node shows through `view`.
pub(super) fn shown_of(part: &ViewedPart, view: &View) -> KeyRange {
    let last = part.last.as_ref().map(|last| [&**last, &[0]].concat().into());
    view.range_to_outer(&KeyRange { start: part.first.clone(), end: last })
}

/// What the walk has seen of parts.
#[derive(Default)]
pub(super) struct Shares {
    parts: HashMap<PieceId, Seen>,
    known: HashMap<PieceId, Known>,
    /// Children of known headers for which messages wait; none for several runs.
    pending: Vec<Option<PieceId>>,
}

/// What known headers refer to of one part.
#[derive(Default, Clone, Copy)]
struct Known {
    headers: u64,
    /// Of a value part, with what several of them name as often.
    bytes: u64,
}

/// A key-value part and where it appears.
struct Seen {
    slot: Arc<PartSlot>,
    stored: StoredPart,
    places: Vec<Appearance>,
}

/// A place where a part may show entries.
struct Appearance {
    view: View,
    ranges: Arc<[KeyRange]>,
    side: Side,
    /// The header is known.
    is_known: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Inside,
    Border,
    Outside,
}

/// How many entries of a key-value part some places show, and where.
#[derive(Default)]
struct Entries {
    all: u64,
    /// Inside, and nowhere else.
    inside_only: u64,
    /// Inside, and perhaps outside as well.
    inside: u64,
}

/// Where an entry is shown.
#[derive(Default, Clone, Copy)]
struct Shown {
    inside: bool,
    outside: bool,
}

/// Bytes of a value part.
#[derive(Default)]
struct ValueShare {
    /// That entries inside refer to.
    inside: u64,
    /// That entries refer to which known headers show inside only.
    alone: u64,
    /// That entries refer to which known headers show outside.
    outside: u64,
    /// The key-value parts that part of `alone` comes from.
    holders: Vec<PieceId>,
}

impl Shares {
    /// Notes all that a known header refers to.
    pub(super) fn add_header(&mut self, node: &Node) {
        for (id, bytes) in references(node) {
            let known = self.known.entry(id).or_default();
            (known.headers, known.bytes) = (known.headers + 1, known.bytes + bytes);
        }
    }

    /// Notes that messages wait on an edge of a known header.
    pub(super) fn add_pending(&mut self, edge: &Edge) {
        let place = edge.child.as_ref().and_then(|child| child.slot.place());
        self.pending.push(place.filter(|_| edge.runs.len() == 1).map(|handle| handle.id()));
    }

    /// True if messages wait that are not above something shared, where they would have to stay,
    /// or are several runs there.
    pub(super) fn has_pending(&self, look: &Look<'_>) -> Result<bool> {
        for child in &self.pending {
            let is_shared = child.map(|child| look(child).map(|counted| counted.count > 1));
            if !is_shared.transpose()?.unwrap_or(false) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes the parts of a run that a place of a header may show.
    pub(super) fn add_run(&mut self, run: &Run, place: &(View, Arc<[KeyRange]>), is_known: bool) {
        run.parts_near(&place.0.bounds).iter().for_each(|part| self.add_part(part, place, is_known));
    }

    fn add_part(&mut self, part: &ViewedPart, (view, ranges): &(View, Arc<[KeyRange]>), is_known: bool) {
        let Some(stored) = part.slot.place() else { return };
        let shown = shown_of(part, view);
        let side = match ranges.iter().any(|range| range.overlaps(&shown)) {
            true if covers(ranges, &shown) => Side::Inside,
            true => Side::Border,
            false if shown.is_empty() => return,
            false => Side::Outside,
        };
        let view = view.compose(&part.view);
        let id = stored.handle.id();
        let seen = self.parts.entry(id).or_insert_with(|| Seen {
            slot: part.slot.clone(),
            stored,
            places: Vec::new(),
        });
        seen.places.push(Appearance { view, ranges: ranges.clone(), side, is_known });
    }

    /// The bytes of all parts that count: what entries inside refer to, and what of it nothing else
    /// does. `look` says what the tables have of a piece.
    pub(super) fn finish(&self, trees: &Trees, look: &Look<'_>) -> Result<(u64, u64)> {
        let (mut all, mut alone) = (0, 0);
        let mut values = BTreeMap::new();
        for (id, seen) in &self.parts {
            let [any, known] = seen.measure(trees, *id, &mut values)?;
            if any.inside == 0 {
                continue;
            }
            let Counted { count, bytes, .. } = look(*id)?;
            all += bytes * any.inside / any.all;
            if self.known.get(id).is_some_and(|known| known.headers >= count) {
                alone += bytes * known.inside_only / known.all.max(1);
            }
        }
        for (id, share) in values.into_iter().filter(|(_, share)| share.inside > 0) {
            let Counted { bytes, live, .. } = look(id)?;
            let known = self.known.get(&id).map_or(0, |known| known.bytes);
            let others = live.saturating_sub(known).saturating_add(share.outside);
            all += share.inside.min(bytes);
            let mut own = share.alone.min(bytes).saturating_sub(others);
            if own > 0 && others > 0 {
                // What the holders share must not count twice.
                own = self.distinct(trees, id, &share.holders)?.saturating_sub(others);
            }
            alone += own;
        }
        Ok((all, alone))
    }

    /// How many bytes of a value part entries of these key-value parts refer to that known headers
    /// show inside only.
    fn distinct(&self, trees: &Trees, part: PieceId, holders: &[PieceId]) -> Result<u64> {
        let mut found: Vec<(u32, u32)> = Vec::new();
        for seen in holders.iter().filter_map(|holder| self.parts.get(holder)) {
            let places: Vec<&Appearance> = seen.places.iter().filter(|place| place.is_known).collect();
            seen.show_entries(trees, &places, &mut |value, shown| {
                if value.part.id() == part && shown.inside && !shown.outside {
                    found.push((value.offset, value.len));
                }
            })?;
        }
        found.sort_unstable();
        let (mut sum, mut end) = (0, 0);
        for (first, len) in found {
            let behind = u64::from(first) + u64::from(len);
            sum += behind.saturating_sub(end.max(u64::from(first)));
            end = end.max(behind);
        }
        Ok(sum)
    }
}

impl Seen {
    /// How many entries all places show, and those of known headers, and what these entries refer
    /// to in value parts.
    fn measure(
        &self,
        trees: &Trees,
        own: PieceId,
        values: &mut BTreeMap<PieceId, ValueShare>,
    ) -> Result<[Entries; 2]> {
        let any = self.show(trees, &|_| true, &mut |id, bytes, shown| {
            values.entry(id).or_default().inside += if shown.inside { bytes } else { 0 };
        })?;
        let known = self.show(trees, &|place| place.is_known, &mut |id, bytes, shown| {
            let share = values.entry(id).or_default();
            if shown.inside && !shown.outside {
                share.alone += bytes;
                if share.holders.last() != Some(&own) {
                    share.holders.push(own);
                }
            }
            share.outside += if shown.outside { bytes } else { 0 };
        })?;
        Ok([any, known])
    }

    /// Tells what of the part some places show, and of each value, or each sum of values, where.
    fn show(
        &self,
        trees: &Trees,
        which: &dyn Fn(&Appearance) -> bool,
        note: &mut dyn FnMut(PieceId, u64, Shown),
    ) -> Result<Entries> {
        let places: Vec<&Appearance> = self.places.iter().filter(|place| which(place)).collect();
        let Some(first) = places.first() else { return Ok(Entries::default()) };
        let side = first.side;
        if side == Side::Border || places.iter().any(|place| place.side != side) {
            return self.show_entries(trees, &places, &mut |value, shown| {
                note(value.part.id(), u64::from(value.len), shown);
            });
        }
        let shown = Shown { inside: side == Side::Inside, outside: side == Side::Outside };
        self.stored.values.iter().for_each(|(id, bytes)| note(*id, *bytes, shown));
        let inside = u64::from(shown.inside);
        Ok(Entries { all: 1, inside_only: inside, inside })
    }

    fn show_entries(
        &self,
        trees: &Trees,
        places: &[&Appearance],
        note: &mut dyn FnMut(&ValueRef, Shown),
    ) -> Result<Entries> {
        let mut entries = Entries::default();
        let mut cursor = self.slot.load(trees)?.cursor();
        cursor.first();
        while cursor.valid() {
            let mut shown = Shown::default();
            for place in places {
                let Some(key) = place.view.outward(cursor.key()) else { continue };
                let inside = place.ranges.iter().any(|range| range.contains(&key));
                (shown.inside, shown.outside) = (shown.inside | inside, shown.outside | !inside);
            }
            entries.all += 1;
            entries.inside += u64::from(shown.inside);
            entries.inside_only += u64::from(shown.inside && !shown.outside);
            for value in cursor.op().large_values().iter().filter_map(|value| value.place()) {
                note(&value, shown);
            }
            cursor.next();
        }
        Ok(entries)
    }
}
