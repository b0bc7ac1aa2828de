//! Runs: sorted messages that came down together, or the entries of a leaf, and how they look
//! through a view.

use crate::message::range_messages::RangeMessages;
use crate::model::key::{Key, KeyRange, before_end, end_le};
use crate::model::view::View;
use crate::tree::part_slot::PartSlot;
use crate::tree::run_sums::{RunSums, Weight};
use std::ops::Range;
use std::sync::Arc;

/// Messages that came down together, or the entries of a leaf.
#[derive(Clone, Default)]
pub(crate) struct Run {
    /// In key order, overlapping at most in a bound. Shared: most parts appear in one run after the
    /// other as they are.
    pub(crate) parts: Vec<Arc<ViewedPart>>,
    pub(crate) ranges: RangeMessages,
    /// Of the parts, once the run is part of a node.
    pub(super) sums: RunSums,
}

/// A part as it appears in a node.
#[derive(Clone)]
pub(crate) struct ViewedPart {
    pub(crate) slot: Arc<PartSlot>,
    pub(crate) view: View,
    /// No visible key is smaller.
    pub(crate) first: Key,
    /// No visible key is larger; `None` says nothing.
    pub(crate) last: Option<Key>,
}

impl ViewedPart {
    /// The part as it is.
    pub(crate) fn whole(slot: Arc<PartSlot>) -> Self {
        let (first, last) = (slot.summary.first.clone(), slot.summary.last.clone());
        Self { slot, view: View::identity(), first, last: Some(last) }
    }

    /// The part through `view`; `None` if nothing of it is visible.
    pub(crate) fn viewed(slot: Arc<PartSlot>, mut view: View) -> Option<Self> {
        let summary = &slot.summary;
        // Bounds outside of what the part holds say nothing.
        if view.bounds.start <= summary.first {
            view.bounds.start = Key::default();
        }
        if !end_le(view.bounds.end.as_deref(), Some(&summary.last)) {
            view.bounds.end = None;
        }
        let shown = view.range_to_outer(&KeyRange::through(&summary.first, &summary.last));
        if shown.is_empty() {
            return None;
        }
        let last = view.outward(&summary.last).or(shown.end);
        Some(Self { slot, view, first: shown.start, last })
    }

    /// The range of keys under which it may show something: what the part holds, cut to the bounds.
    /// Exact at its end, where `last` may be a key that the bounds exclude.
    pub(crate) fn shown(&self) -> KeyRange {
        let summary = &self.slot.summary;
        self.view.range_to_outer(&KeyRange::through(&summary.first, &summary.last))
    }

    /// This part as seen through `view`.
    fn through(self: &Arc<Self>, view: &View) -> Option<Arc<Self>> {
        if view.from.is_empty() && view.to.is_empty() && self.lies_within(&view.bounds) {
            return Some(self.clone());
        }
        let seen = self.wholly_through(view);
        seen.or_else(|| Self::viewed(self.slot.clone(), view.compose(&self.view))).map(Arc::new)
    }

    /// True if all that is visible of it is known to lie in `range`.
    fn lies_within(&self, range: &KeyRange) -> bool {
        range.contains(&self.first) && self.last.as_ref().is_some_and(|last| range.contains(last))
    }

    /// False if all that is visible of it is known to lie outside of `range`.
    pub(crate) fn may_show_some_of(&self, range: &KeyRange) -> bool {
        before_end(&self.first, range.end.as_deref())
            && self.last.as_ref().is_none_or(|last| *last >= range.start)
    }

    /// The same if all that is visible of it stays visible: then its bounds say what they said.
    /// `None` if that is not known.
    pub(super) fn wholly_through(&self, view: &View) -> Option<Self> {
        let last = self.last.as_ref().filter(|_| self.lies_within(&view.bounds))?;
        if view.from.is_empty() && view.to.is_empty() {
            return Some(self.clone());
        }
        let moved = |key: &Key| {
            let rest = key.strip_prefix(&*view.from)?;
            Some(Key::from([&*view.to, rest].concat()))
        };
        let (first, last) = (moved(&self.first)?, moved(last)?);
        let seen = View { to: moved(&self.view.to)?, ..self.view.clone() };
        Some(Self { slot: self.slot.clone(), view: seen, first, last: Some(last) })
    }
}

impl Run {
    pub(crate) fn new(parts: Vec<Arc<ViewedPart>>, ranges: RangeMessages) -> Self {
        Self { parts, ranges, sums: RunSums::default() }
    }

    /// With parts alone.
    pub(crate) fn of_parts(parts: Vec<Arc<ViewedPart>>) -> Self {
        Self::new(parts, RangeMessages::default())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.ranges.is_empty()
    }

    /// Bytes of its parts, values and range messages.
    pub(crate) fn weight(&self) -> u64 {
        let parts = self.parts_weight();
        parts.bytes + parts.value_bytes + self.ranges.memory() as u64
    }

    /// The same without values.
    pub(super) fn message_bytes(&self) -> u64 {
        self.parts_weight().bytes + self.ranges.memory() as u64
    }

    /// Bytes of its large values.
    pub(super) fn value_bytes(&self) -> u64 {
        self.parts_weight().value_bytes
    }

    fn parts_weight(&self) -> Weight {
        self.sums.weight(|| {
            self.parts.iter().map(|part| &part.slot.summary).fold(Weight::default(), |sum, part| Weight {
                bytes: sum.bytes + u64::from(part.bytes),
                value_bytes: sum.value_bytes + part.value_bytes,
            })
        })
    }

    /// This run as seen through `view`.
    pub(crate) fn through(&self, view: &View) -> Run {
        let parts = self.parts_near(&view.bounds).iter().filter_map(|p| p.through(view)).collect();
        let mut ranges = self.ranges.within(&view.bounds);
        let in_place = view.from.is_empty() && view.to.is_empty();
        if !in_place && !ranges.is_empty() {
            ranges = ranges.map_ranges(|range| view.range_to_outer(range));
        }
        Run::new(parts, ranges)
    }

    /// The same, in one piece with this run if that shows no more.
    pub(super) fn shared_through(self: &Arc<Self>, view: &View) -> Arc<Run> {
        let in_place = view.from.is_empty() && view.to.is_empty();
        match in_place && self.lies_within(&view.bounds) {
            true => self.clone(),
            false => Arc::new(self.through(view)),
        }
    }

    /// True if all that it shows is known to lie in `range`.
    fn lies_within(&self, range: &KeyRange) -> bool {
        // What lies between its first and its last part does, too.
        let begins = self.parts.first().is_none_or(|part| part.first >= range.start);
        let ends = |part: &Arc<ViewedPart>| part.last.as_ref().is_some_and(|last| range.contains(last));
        begins && self.parts.last().is_none_or(ends) && self.ranges.lies_within(range)
    }

    /// True if it may show something in `range`, as far as its bounds tell: then taking the range
    /// out of it changes them.
    fn reaches_into(&self, range: &KeyRange) -> bool {
        self.parts_near(range).iter().any(|part| part.may_show_some_of(range)) || self.ranges.touches(range)
    }

    /// This run without what lies in `range`.
    pub(crate) fn without(&self, range: &KeyRange) -> Run {
        let before = KeyRange { start: Key::default(), end: Some(range.start.clone()) };
        let mut rest = match before.is_empty() {
            true => Run::default(),
            false => self.through(&View::identity().restrict(&before)),
        };
        if let Some(end) = &range.end {
            let behind = KeyRange { start: end.clone(), end: None };
            rest.append(&self.through(&View::identity().restrict(&behind)));
        }
        rest
    }

    /// The parts that may show keys in `range`, and perhaps one more.
    pub(super) fn parts_near(&self, range: &KeyRange) -> &[Arc<ViewedPart>] {
        &self.parts[self.numbers_near(range)]
    }

    /// The numbers of these parts.
    pub(super) fn numbers_near(&self, range: &KeyRange) -> Range<usize> {
        // Each ends where the next one begins, or before.
        let from = self.parts.partition_point(|p| p.first < range.start).saturating_sub(1);
        let to = self.parts.partition_point(|p| before_end(&p.first, range.end.as_deref()));
        from.min(to)..to
    }

    /// The part that holds `key` if any does, and its number.
    pub(crate) fn part_for(&self, key: &[u8]) -> Option<(usize, &Arc<ViewedPart>)> {
        let number = self.parts.partition_point(|p| *p.first <= *key).checked_sub(1)?;
        let part = &self.parts[number];
        part.last.as_ref().is_none_or(|last| *key <= **last).then_some((number, part))
    }

    /// True if a run cut out of this one shows all of it, and through the same bounds.
    pub(super) fn is_same(&self, cut: &Run) -> bool {
        let parts = self.parts.iter().zip(&cut.parts);
        self.parts.len() == cut.parts.len()
            && parts.clone().all(|(a, b)| Arc::ptr_eq(&a.slot, &b.slot) && a.view == b.view)
            && self.ranges.is_empty()
    }

    /// Appends a run; all its keys are larger.
    pub(super) fn append(&mut self, other: &Run) {
        self.sums = RunSums::default();
        self.parts.extend(other.parts.iter().cloned());
        for (range, ops) in other.ranges.iter() {
            self.ranges.push_fragment(range, ops.clone());
        }
    }
}

/// What of `runs` lies in `range`.
pub(crate) fn runs_within(runs: &[Arc<Run>], range: &KeyRange) -> Vec<Arc<Run>> {
    let view = View::identity().restrict(range);
    runs.iter().map(|run| run.shared_through(&view)).filter(|run| !run.is_empty()).collect()
}

/// What of `runs` lies on both sides of `range`.
pub(crate) fn runs_without(runs: &[Arc<Run>], range: &KeyRange) -> Vec<Arc<Run>> {
    let without = |run: &Arc<Run>| match run.reaches_into(range) {
        true => Arc::new(run.without(range)),
        false => run.clone(),
    };
    runs.iter().map(without).filter(|run| !run.is_empty()).collect()
}

/// The runs of two neighbouring edges as the runs of one, oldest first.
pub(crate) fn join_runs(left: &[Arc<Run>], right: &[Arc<Run>]) -> Vec<Arc<Run>> {
    // Their keys are disjoint, so only the order within each side matters.
    let count = left.len().max(right.len());
    let side = |runs: &[Arc<Run>], i: usize| (i + runs.len()).checked_sub(count).map(|i| runs[i].clone());
    (0..count)
        .filter_map(|i| match (side(left, i), side(right, i)) {
            (Some(a), Some(b)) => {
                let mut run = (*a).clone();
                run.append(&b);
                Some(Arc::new(run))
            }
            (a, b) => a.or(b),
        })
        .collect()
}

/// The shortest key that separates `left` from the larger `right`.
pub(crate) fn separator(left: &[u8], right: &[u8]) -> Key {
    right[..(crate::model::key::common_prefix_len(left, right) + 1).min(right.len())].into()
}

#[cfg(test)]
mod tests;
