//! Run map: ranges of blocks and where they lie.
//!
//! Invariant: runs do not overlap; a run's blocks lie one after the other in its object.

use crate::format::ObjectId;
use std::collections::BTreeMap;
use std::ops::Range;

/// A block in an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The object.
    pub(crate) object: ObjectId,
    /// Which of its blocks.
    pub(crate) index: u32,
}

impl Place {
    fn behind(self, blocks: u64) -> Self {
        Self { index: self.index + blocks as u32, ..self }
    }
}

/// Blocks that follow each other, and where they lie; without a place they read as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first block.
    pub(crate) start: u64,
    /// How many.
    pub(crate) blocks: u32,
    /// Where the first lies.
    pub(crate) place: Option<Place>,
}

impl Run {
    /// The block behind it.
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.blocks)
    }

    /// False if its place would have an index that is no number.
    pub(crate) fn place_fits(&self) -> bool {
        self.place.is_none_or(|place| place.index.checked_add(self.blocks).is_some())
    }

    /// The part of it in `range`, which it meets.
    pub(crate) fn within(&self, range: &Range<u64>) -> Self {
        let (start, end) = (self.start.max(range.start), self.end().min(range.end));
        let place = self.place.map(|place| place.behind(start - self.start));
        Self { start, blocks: (end - start) as u32, place }
    }

    /// True if `next` goes on where it ends.
    fn is_continued_by(&self, next: &Self) -> bool {
        let same = match (self.place, next.place) {
            (Some(place), Some(next)) => place.behind(u64::from(self.blocks)) == next,
            (None, None) => true,
            _ => false,
        };
        same && self.end() == next.start && self.blocks.checked_add(next.blocks).is_some()
    }
}

/// Runs by their first block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunMap(BTreeMap<u64, (u32, Option<Place>)>);

impl RunMap {
    /// Number of runs.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if no block is mentioned.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All runs in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Run> {
        self.0.iter().map(|(start, (blocks, place))| Run { start: *start, blocks: *blocks, place: *place })
    }

    /// The parts of runs that lie in `range`, in order.
    pub(crate) fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Run> {
        let before = self.0.range(..=range.start).next_back().map(|(start, _)| *start);
        let from = before.unwrap_or(range.start);
        let runs = self.0.range(from..range.end.max(from));
        runs.map(|(start, (blocks, place))| Run { start: *start, blocks: *blocks, place: *place })
            .filter(move |run| run.end() > range.start && run.start < range.end)
            .map({
                let range = range.clone();
                move |run| run.within(&range)
            })
    }

    /// Takes what lies in `range` out and returns it.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> Vec<Run> {
        let removed: Vec<Run> = self.overlapping(range.clone()).collect();
        let (Some(first), Some(last)) = (removed.first().copied(), removed.last().copied()) else {
            return removed;
        };
        let whole = |map: &Self, at: u64| {
            let (start, (blocks, place)) = map.0.range(..=at).next_back()?;
            Some(Run { start: *start, blocks: *blocks, place: *place })
        };
        let (head, tail) = (whole(self, first.start), whole(self, last.start));
        removed.iter().for_each(|run| {
            self.0.remove(&run.start);
        });
        if let Some(head) = head.filter(|head| head.start < first.start) {
            let kept = head.within(&(head.start..first.start));
            self.0.insert(kept.start, (kept.blocks, kept.place));
        }
        if let Some(tail) = tail.filter(|tail| tail.end() > last.end()) {
            let kept = tail.within(&(last.end()..tail.end()));
            self.0.insert(kept.start, (kept.blocks, kept.place));
        }
        removed
    }

    /// Puts a run in the place of what was there, which is returned.
    pub(crate) fn replace(&mut self, run: Run) -> Vec<Run> {
        let removed = self.remove(run.start..run.end());
        self.insert(run);
        removed
    }

    /// Adds a run behind all others.
    pub(crate) fn append(&mut self, run: Run) {
        self.0.insert(run.start, (run.blocks, run.place));
    }

    /// Adds a run where nothing is, joined with its neighbours if it goes on where they end.
    fn insert(&mut self, mut run: Run) {
        if let Some((start, (blocks, place))) = self.0.range(..run.start).next_back() {
            let before = Run { start: *start, blocks: *blocks, place: *place };
            if before.is_continued_by(&run) {
                run = Run { blocks: before.blocks + run.blocks, ..before };
            }
        }
        if let Some((blocks, place)) = self.0.get(&run.end()) {
            let after = Run { start: run.end(), blocks: *blocks, place: *place };
            if run.is_continued_by(&after) {
                self.0.remove(&after.start);
                run.blocks += after.blocks;
            }
        }
        self.0.insert(run.start, (run.blocks, run.place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_storage::Random;

    #[test]
    fn runs_are_what_an_array_of_blocks_is() {
        const BLOCKS: u64 = 64;
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut map = RunMap::default();
            let mut model: Vec<Option<Option<Place>>> = vec![None; BLOCKS as usize];
            for _ in 0..100 {
                let start = random.below(BLOCKS);
                let blocks = 1 + random.below(BLOCKS - start) as u32;
                let range = start..start + u64::from(blocks);
                let object = ObjectId(1 + random.below(3));
                let place = random.one_in(2).then(|| Place { object, index: random.below(8) as u32 });
                let before: Vec<Run> = map.overlapping(range.clone()).collect();
                let removed = if random.one_in(3) {
                    model[start as usize..range.end as usize].fill(None);
                    map.remove(range)
                } else {
                    for block in range.clone() {
                        model[block as usize] = Some(place.map(|place| place.behind(block - start)));
                    }
                    map.replace(Run { start, blocks, place })
                };
                assert_eq!(before, removed, "seed {seed}");
                let mut found = vec![None; BLOCKS as usize];
                for run in map.iter() {
                    for block in run.start..run.end() {
                        let place = run.place.map(|place| place.behind(block - run.start));
                        assert!(found[block as usize].replace(place).is_none(), "seed {seed}: overlap");
                    }
                }
                assert_eq!(found, model, "seed {seed}");
            }
        }
    }
}
