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
//!
//! Invariant: once all that has changed was measured the sums are those of what is noted. A part is
//! measured again if it appears at other places, if known headers refer to it more or less often,
//! or if its count has changed; and with it the value parts that it refers to.

use super::space_use::{Counted, Look, Place, covers, shown_of};
use crate::Result;
use crate::model::ids::{PieceId, Reference};
use crate::model::key::KeyRange;
use crate::model::value::ValueRef;
use crate::model::view::View;
use crate::tree::run::ViewedPart;
use crate::tree::trees::Trees;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Parts and value parts that are measured in one go, which keeps checkpoints from being made; few
/// in tests, for many steps.
const PARTS_AT_ONCE: usize = if cfg!(debug_assertions) { 100 } else { 16 << 10 };
/// Of them those whose entries are read.
const READ_AT_ONCE: usize = if cfg!(debug_assertions) { 3 } else { 256 };

/// What the walk has seen of parts.
#[derive(Default)]
pub(super) struct Shares {
    parts: HashMap<PieceId, PartTally>,
    values: HashMap<PieceId, ValueTally>,
    /// What known headers refer to.
    known: HashMap<PieceId, Known>,
    /// What is to be measured again, if it is there.
    changed_parts: BTreeSet<PieceId>,
    changed_values: BTreeSet<PieceId>,
    /// Bytes that entries inside refer to, and those of them that nothing else refers to.
    bytes: (u64, u64),
    /// Parts and value parts that count in part only, or not at all.
    shared: usize,
}

/// What known headers refer to of one part.
#[derive(Default, Clone, Copy)]
struct Known {
    headers: u64,
    /// Of a value part, with what several of them name as often.
    bytes: u64,
}

/// A key-value part, where it appears, and what it was found to hold.
struct PartTally {
    /// The value parts that its entries refer to.
    values: Arc<[Reference]>,
    places: Vec<Appearance>,
    measured: Measured,
}

/// A place where a part may show entries.
pub(super) struct Appearance {
    header: PieceId,
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

/// What counts of a part, in bytes, and of what it refers to.
#[derive(Default)]
struct Measured {
    all: u64,
    alone: u64,
    shares: ValueShares,
}

/// What the entries of a part refer to in value parts.
#[derive(Default)]
enum ValueShares {
    #[default]
    None,
    /// The same for all of them.
    Uniform { shown: Shown, is_known: bool },
    /// Told one by one.
    Mixed(Box<[(PieceId, ValueShare)]>),
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
#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Shown {
    inside: bool,
    outside: bool,
}

/// Bytes of a value part.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct ValueShare {
    /// That entries inside refer to.
    inside: u64,
    /// That entries refer to which known headers show inside only.
    alone: u64,
    /// That entries refer to which known headers show outside.
    outside: u64,
}

/// A value part.
#[derive(Default)]
struct ValueTally {
    share: ValueShare,
    /// The key-value parts that part of `alone` comes from.
    holders: BTreeSet<PieceId>,
    /// What was found to count.
    counted: (u64, u64),
}

impl Appearance {
    /// How the header `id` shows a part at one of its places; `None` if it does not.
    pub(super) fn of(part: &ViewedPart, id: PieceId, (view, ranges): &Place, is_known: bool) -> Option<Self> {
        let shown = shown_of(part, view);
        let side = match ranges.iter().any(|range| range.overlaps(&shown)) {
            true if covers(ranges, &shown) => Side::Inside,
            true => Side::Border,
            false if shown.is_empty() => return None,
            false => Side::Outside,
        };
        let view = view.compose(&part.view);
        Some(Self { header: id, view, ranges: ranges.clone(), side, is_known })
    }
}

impl Shares {
    /// Key-value parts and value parts that are known.
    pub(super) fn pieces(&self) -> usize {
        self.parts.len() + self.values.len()
    }

    /// What counts: what entries inside refer to, and what of it nothing else does.
    pub(super) fn bytes(&self) -> (u64, u64) {
        self.bytes
    }

    /// True if something else refers to part of what is inside.
    pub(super) fn is_sharing(&self) -> bool {
        self.shared > 0
    }

    /// True if a part counts as theirs alone.
    pub(super) fn is_own(&self, part: PieceId) -> bool {
        self.parts.get(&part).is_some_and(|part| part.measured.alone > 0)
    }

    /// A known header refers to these parts and value parts.
    pub(super) fn add_references(&mut self, references: &[Reference]) {
        for (id, bytes) in references {
            let known = self.known.entry(*id).or_default();
            (known.headers, known.bytes) = (known.headers + 1, known.bytes + bytes);
            self.changed_parts.insert(*id);
            self.changed_values.insert(*id);
        }
    }

    /// Takes back [`Shares::add_references`].
    pub(super) fn remove_references(&mut self, references: &[Reference]) {
        for (id, bytes) in references {
            if let Some(known) = self.known.get_mut(id) {
                (known.headers, known.bytes) = (known.headers - 1, known.bytes - bytes);
                if known.headers == 0 {
                    self.known.remove(id);
                }
            }
            self.changed_parts.insert(*id);
            self.changed_values.insert(*id);
        }
    }

    /// The count or the live bytes of a piece have changed.
    pub(super) fn count_has_changed(&mut self, id: PieceId) {
        if self.parts.contains_key(&id) {
            self.changed_parts.insert(id);
        } else if self.values.contains_key(&id) {
            self.changed_values.insert(id);
        }
    }

    /// Replaces what a header shows, which were these parts. Returns which they are now.
    pub(super) fn set_appearances(
        &mut self,
        header: PieceId,
        before: &[PieceId],
        now: Vec<(PieceId, Arc<[Reference]>, Appearance)>,
    ) -> Vec<PieceId> {
        for id in before {
            if let Some(part) = self.parts.get_mut(id) {
                part.places.retain(|place| place.header != header);
                self.changed_parts.insert(*id);
            }
        }
        let mut ids = Vec::with_capacity(now.len());
        for (id, values, appearance) in now {
            // Most parts appear once.
            let new = || PartTally { values, places: Vec::with_capacity(1), measured: Measured::default() };
            self.parts.entry(id).or_insert_with(new).places.push(appearance);
            self.changed_parts.insert(id);
            ids.push(id);
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Measures some of what has changed; true once all of it was. `look` says what the tables have
    /// of a piece.
    pub(super) fn measure(&mut self, trees: &Trees, look: &Look<'_>) -> Result<bool> {
        let (mut left, mut left_to_read) = (PARTS_AT_ONCE, READ_AT_ONCE);
        while left > 0 && left_to_read > 0 {
            let read = if let Some(id) = self.changed_parts.pop_first() {
                self.measure_part(trees, look, id)?
            } else if let Some(id) = self.changed_values.pop_first() {
                self.measure_values(trees, look, id)?
            } else {
                return Ok(true);
            };
            (left, left_to_read) = (left - 1, left_to_read.saturating_sub(read));
        }
        Ok(self.changed_parts.is_empty() && self.changed_values.is_empty())
    }

    /// Returns how many parts it has read.
    fn measure_part(&mut self, trees: &Trees, look: &Look<'_>, id: PieceId) -> Result<usize> {
        let Some(part) = self.parts.get(&id) else { return Ok(0) };
        let (measured, read) = self.measured(trees, look, (id, part))?;
        let Some(part) = self.parts.get_mut(&id) else { return Ok(read) };
        let (values, is_gone) = (part.values.clone(), part.places.is_empty());
        let before = std::mem::replace(&mut part.measured, measured);
        let (all, alone) = (part.measured.all, part.measured.alone);
        let shares = part.measured.shares.of(&values);
        if is_gone {
            self.parts.remove(&id);
        }
        self.bytes = (self.bytes.0 + all - before.all, self.bytes.1 + alone - before.alone);
        let is_shared = |(all, alone): (u64, u64)| usize::from(alone < all);
        self.shared = self.shared + is_shared((all, alone)) - is_shared((before.all, before.alone));
        for (value, share) in before.shares.of(&values) {
            let tally = self.values.entry(value).or_default();
            tally.share.remove(share);
            tally.holders.remove(&id);
            self.changed_values.insert(value);
        }
        for (value, share) in shares {
            let tally = self.values.entry(value).or_default();
            tally.share.add(share);
            if share.alone > 0 {
                tally.holders.insert(id);
            }
            self.changed_values.insert(value);
        }
        Ok(read)
    }

    /// What a part holds, and how many parts were read for that.
    fn measured(
        &self,
        trees: &Trees,
        look: &Look<'_>,
        (id, part): (PieceId, &PartTally),
    ) -> Result<(Measured, usize)> {
        if part.places.is_empty() {
            return Ok((Measured::default(), 0));
        }
        let Counted { count, bytes, .. } = look(id)?;
        let (any, known, shares) = part.show(trees, id)?;
        let is_alone = self.known.get(&id).is_some_and(|known| known.headers >= count);
        let measured = Measured {
            all: if any.inside > 0 { bytes * any.inside / any.all } else { 0 },
            alone: if any.inside > 0 && is_alone { bytes * known.inside_only / known.all.max(1) } else { 0 },
            shares,
        };
        let read = usize::from(matches!(measured.shares, ValueShares::Mixed(_)));
        Ok((measured, read))
    }

    /// Returns how many parts it has read.
    fn measure_values(&mut self, trees: &Trees, look: &Look<'_>, id: PieceId) -> Result<usize> {
        let Some(tally) = self.values.get(&id) else { return Ok(0) };
        let (share, mut counted, mut read) = (tally.share, (0, 0), 0);
        if share.inside > 0 {
            let Counted { bytes, live, .. } = look(id)?;
            let known = self.known.get(&id).map_or(0, |known| known.bytes);
            let others = live.saturating_sub(known).saturating_add(share.outside);
            let mut own = share.alone.min(bytes).saturating_sub(others);
            if own > 0 && others > 0 {
                // What the holders share must not count twice.
                own = self.distinct(trees, id, &tally.holders)?.saturating_sub(others);
                read = tally.holders.len();
            }
            counted = (share.inside.min(bytes), own);
        }
        let Some(tally) = self.values.get_mut(&id) else { return Ok(read) };
        let before = std::mem::replace(&mut tally.counted, counted);
        self.bytes = (self.bytes.0 + counted.0 - before.0, self.bytes.1 + counted.1 - before.1);
        let is_shared = |(all, alone): (u64, u64)| usize::from(alone < all);
        self.shared = self.shared + is_shared(counted) - is_shared(before);
        if share == ValueShare::default() {
            self.values.remove(&id);
        }
        Ok(read)
    }

    /// How many bytes of a value part entries of these key-value parts refer to that known headers
    /// show inside only.
    fn distinct(&self, trees: &Trees, part: PieceId, holders: &BTreeSet<PieceId>) -> Result<u64> {
        let mut found: Vec<(u32, u32)> = Vec::new();
        for (id, seen) in holders.iter().filter_map(|id| Some((*id, self.parts.get(id)?))) {
            let places: Vec<&Appearance> = seen.places.iter().filter(|place| place.is_known).collect();
            show_entries(trees, id, &places, &mut |value, shown| {
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

impl PartTally {
    /// How many entries all places show, and those of known headers, and what these entries refer
    /// to in value parts.
    fn show(&self, trees: &Trees, own: PieceId) -> Result<(Entries, Entries, ValueShares)> {
        let places: Vec<&Appearance> = self.places.iter().collect();
        let known: Vec<&Appearance> = self.places.iter().filter(|place| place.is_known).collect();
        if let Some(shown) = uniform(&places) {
            let entries = Entries::all_shown(shown);
            let is_known = !known.is_empty();
            let known = if is_known { Entries::all_shown(shown) } else { Entries::default() };
            return Ok((entries, known, ValueShares::Uniform { shown, is_known }));
        }
        let mut shares: BTreeMap<PieceId, ValueShare> = BTreeMap::new();
        let any = show_entries(trees, own, &places, &mut |value, shown| {
            shares.entry(value.part.id()).or_default().add_any(u64::from(value.len), shown);
        })?;
        let known = match (known.is_empty(), uniform(&known)) {
            (true, _) => Entries::default(),
            (false, Some(shown)) => {
                for (id, bytes) in self.values.iter() {
                    shares.entry(*id).or_default().add_known(*bytes, shown);
                }
                Entries::all_shown(shown)
            }
            (false, None) => show_entries(trees, own, &known, &mut |value, shown| {
                shares.entry(value.part.id()).or_default().add_known(u64::from(value.len), shown);
            })?,
        };
        Ok((any, known, ValueShares::Mixed(shares.into_iter().collect())))
    }
}

/// What these places show of all entries, if that is the same.
fn uniform(places: &[&Appearance]) -> Option<Shown> {
    let side = places.first()?.side;
    let is_uniform = side != Side::Border && places.iter().all(|place| place.side == side);
    is_uniform.then_some(Shown { inside: side == Side::Inside, outside: side == Side::Outside })
}

/// Tells of each large value of a part where places show it.
fn show_entries(
    trees: &Trees,
    part: PieceId,
    places: &[&Appearance],
    note: &mut dyn FnMut(&ValueRef, Shown),
) -> Result<Entries> {
    let mut entries = Entries::default();
    let loaded = trees.pieces.part(part)?;
    let mut cursor = loaded.cursor();
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

impl Entries {
    /// Of a part that is shown as a whole.
    fn all_shown(shown: Shown) -> Self {
        let inside = u64::from(shown.inside);
        Self { all: 1, inside_only: inside, inside }
    }
}

impl ValueShares {
    /// The shares of the value parts that the part refers to.
    fn of(&self, values: &[Reference]) -> Vec<(PieceId, ValueShare)> {
        match self {
            Self::None => Vec::new(),
            Self::Uniform { shown, is_known } => {
                let share = |bytes: u64| {
                    let mut share = ValueShare::default();
                    share.add_any(bytes, *shown);
                    if *is_known {
                        share.add_known(bytes, *shown);
                    }
                    share
                };
                values.iter().map(|(id, bytes)| (*id, share(*bytes))).collect()
            }
            Self::Mixed(shares) => shares.to_vec(),
        }
    }
}

impl ValueShare {
    /// An entry of some place refers to so many bytes.
    fn add_any(&mut self, bytes: u64, shown: Shown) {
        self.inside += if shown.inside { bytes } else { 0 };
    }

    /// Known headers show the entry.
    fn add_known(&mut self, bytes: u64, shown: Shown) {
        self.alone += if shown.inside && !shown.outside { bytes } else { 0 };
        self.outside += if shown.outside { bytes } else { 0 };
    }

    fn add(&mut self, other: Self) {
        self.inside += other.inside;
        self.alone += other.alone;
        self.outside += other.outside;
    }

    fn remove(&mut self, other: Self) {
        self.inside -= other.inside;
        self.alone -= other.alone;
        self.outside -= other.outside;
    }
}
