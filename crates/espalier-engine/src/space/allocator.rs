//! Block allocator: the map `used`, in memory, says which blocks may not be allocated.
//!
//! A bitmap with a tree of summaries above it: each node of the tree knows the longest free run
//! below it and the free runs at its two ends. Finding the leftmost run of a given length from a
//! given block, taking and releasing it cost O(log n) plus the bitmap words of the leaves
//! concerned, at any fill.
//!
//! A request takes the first of these that exists: a run close behind its hint (no further than a
//! few times the length of the request, so that small requests do not settle among large ones); a
//! leaf that is meant for its size class; a leaf that is wholly free, which is then meant for that
//! class; any run. Small requests take the lowest such run, large ones the highest. So holes have
//! the sizes that will be asked for, and long runs stay long.
//!
//! Memory: 1 bit per block and 101 bytes per 4096 blocks: 38.3 MiB per TiB, however fragmented.

use crate::Extent;

/// Blocks per leaf of the summary tree.
const LEAF_BLOCKS: u64 = 4096;
const LEAF_WORDS: usize = (LEAF_BLOCKS / 64) as usize;
/// Requests of at least this many blocks (256 KiB) are large.
const LARGE_REQUEST_BLOCKS: u64 = 64;
/// How far behind its hint a run may lie, in lengths of the request.
const NEAR_REQUEST_LENGTHS: u64 = 16;

/// What a node of the tree knows of its blocks. All lengths in blocks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Summary {
    free: u64,
    /// The free run at the beginning.
    prefix: u64,
    /// The free run at the end.
    suffix: u64,
    longest: u64,
}

impl Summary {
    /// Of two neighbours of `half` blocks each.
    fn join(left: Self, right: Self, half: u64) -> Self {
        Self {
            free: left.free + right.free,
            prefix: if left.prefix == half { half + right.prefix } else { left.prefix },
            suffix: if right.suffix == half { half + left.suffix } else { right.suffix },
            longest: left.longest.max(right.longest).max(left.suffix + right.prefix),
        }
    }
}

/// How many free runs there are of which length: `counts[i]` of 2^i up to 2^(i+1) - 1 blocks.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RunHistogram {
    /// Number of free runs by the binary logarithm of their length in blocks.
    pub counts: Vec<u64>,
}

/// Size classes of requests, by the binary logarithm of their blocks; the last has all larger ones.
const SIZE_CLASSES: usize = 8;
/// The class of a leaf that is wholly free.
const EMPTY_CLASS: usize = SIZE_CLASSES;

/// The longest run that lies in a single leaf, among the leaves of each class.
type ByClass = [u16; SIZE_CLASSES + 1];

/// Allocates runs of blocks.
pub(super) struct Allocator {
    /// One bit per block, set if used; blocks past the end of the device are used.
    words: Vec<u64>,
    /// A complete binary tree, root at 1, leaves at `leaves ..`.
    tree: Vec<Summary>,
    /// As `tree`, for the search within a class.
    by_class: Vec<ByClass>,
    /// What size of request each leaf is meant for.
    class: Vec<u8>,
    leaves: usize,
    blocks: u64,
}

impl Allocator {
    /// A map of `blocks` blocks, those set in `words` (one bit each, shorter is zero-filled) used.
    pub(super) fn new(blocks: u64, mut words: Vec<u64>) -> Self {
        let leaves = (blocks.div_ceil(LEAF_BLOCKS).max(1) as usize).next_power_of_two();
        let present = blocks.div_ceil(LEAF_BLOCKS) as usize * LEAF_WORDS;
        words.resize(present, 0);
        for block in blocks..present as u64 * 64 {
            words[(block / 64) as usize] |= 1 << (block % 64);
        }
        let mut this = Self {
            words,
            tree: vec![Summary::default(); 2 * leaves],
            by_class: vec![ByClass::default(); 2 * leaves],
            class: vec![0; leaves],
            leaves,
            blocks,
        };
        for leaf in 0..present / LEAF_WORDS {
            this.class[leaf] = this.guess_class(leaf);
        }
        if present > 0 {
            this.refresh(0, present / LEAF_WORDS - 1);
        }
        this
    }

    /// Makes it a map of `blocks` blocks: those from `from` up to `end` are free, those behind
    /// `end` are used.
    pub(super) fn grow(&mut self, blocks: u64, from: u64, end: u64) {
        let mut words = std::mem::take(&mut self.words);
        words.resize(blocks.div_ceil(64) as usize, 0);
        for (number, word) in words.iter_mut().enumerate().skip((from / 64) as usize) {
            let below = |limit: u64| match limit.saturating_sub(number as u64 * 64) {
                bits @ 0..64 => (1 << bits) - 1,
                _ => u64::MAX,
            };
            *word = *word & below(from) | !below(end);
        }
        *self = Self::new(blocks, words);
    }

    /// The class that suits the holes a leaf has.
    fn guess_class(&self, leaf: usize) -> u8 {
        let (mut free, mut holes, mut open) = (0, 0, false);
        for word in &self.words[leaf * LEAF_WORDS..(leaf + 1) * LEAF_WORDS] {
            for_each_run(*word, |used, length| {
                free += if used { 0 } else { length };
                holes += u64::from(!used && !open);
                open = !used;
            });
        }
        class_of(free.checked_div(holes).unwrap_or(1)) as u8
    }

    /// Computes the summaries of some leaves and of what is above them.
    fn refresh(&mut self, first: usize, last: usize) {
        for leaf in first..=last {
            let summary = self.summarize(leaf);
            let class = if summary.free == LEAF_BLOCKS { EMPTY_CLASS } else { usize::from(self.class[leaf]) };
            self.tree[self.leaves + leaf] = summary;
            self.by_class[self.leaves + leaf] = ByClass::default();
            self.by_class[self.leaves + leaf][class] = summary.longest as u16;
        }
        let (mut first, mut last, mut half) =
            ((self.leaves + first) / 2, (self.leaves + last) / 2, LEAF_BLOCKS);
        while first > 0 {
            for node in first..=last {
                self.tree[node] = Summary::join(self.tree[2 * node], self.tree[2 * node + 1], half);
                let (left, right) = (self.by_class[2 * node], self.by_class[2 * node + 1]);
                self.by_class[node] = std::array::from_fn(|class| left[class].max(right[class]));
            }
            (first, last, half) = (first / 2, last / 2, half * 2);
        }
    }

    /// Blocks that may be allocated.
    pub(super) fn free(&self) -> u64 {
        self.tree[1].free
    }

    /// Bytes of memory it takes.
    pub(super) fn memory(&self) -> u64 {
        let per_leaf = 2 * (size_of::<Summary>() + size_of::<ByClass>()) + 1;
        (self.words.len() * 8 + self.leaves * per_leaf) as u64
    }

    /// The longest free run, in blocks.
    pub(super) fn longest(&self) -> u64 {
        self.tree[1].longest
    }

    /// Takes a run of `blocks` blocks: close behind `near` if there is one, else the lowest or
    /// highest.
    pub(super) fn allocate(&mut self, blocks: u32, near: Option<u64>) -> Option<Extent> {
        let want = u64::from(blocks);
        if want == 0 || self.longest() < want {
            return None;
        }
        let close = near.filter(|near| *near < self.blocks).and_then(|near| {
            self.find(want, near).filter(|start| *start - near <= NEAR_REQUEST_LENGTHS * want)
        });
        let class = class_of(want);
        let start = close
            .or_else(|| self.find_in_class(want, class, want >= LARGE_REQUEST_BLOCKS))
            .or_else(|| self.find_in_class(want, EMPTY_CLASS, want >= LARGE_REQUEST_BLOCKS))
            .or_else(
                || if want < LARGE_REQUEST_BLOCKS { self.find(want, 0) } else { self.find_last(want) },
            )?;
        let leaf = (start / LEAF_BLOCKS) as usize;
        if self.tree[self.leaves + leaf].free == LEAF_BLOCKS {
            self.class[leaf] = class as u8;
        }
        let extent = Extent { start, blocks };
        self.set(extent, true);
        Some(extent)
    }

    /// Takes the first free block at or behind `near`, or else the first there is.
    pub(super) fn allocate_behind(&mut self, near: u64) -> Option<Extent> {
        let start = self.find(1, near).or_else(|| self.find(1, 0))?;
        let extent = Extent { start, blocks: 1 };
        self.set(extent, true);
        Some(extent)
    }

    /// The first free run that begins at `from` or later, cut to `most` blocks.
    pub(super) fn free_run(&self, from: u64, most: u32) -> Option<Extent> {
        let start = self.find(1, from)?;
        let run = Extent { start, blocks: most };
        let mut blocks = 0;
        for (word, mask) in spans(run) {
            let used = self.words.get(word).copied().unwrap_or(u64::MAX) & mask;
            if used != 0 {
                let first = (start % 64) * u64::from(blocks == 0);
                blocks += u64::from(used.trailing_zeros()) - first;
                break;
            }
            blocks += u64::from(mask.count_ones());
        }
        Some(Extent { start, blocks: u32::try_from(blocks).ok()? })
    }

    /// Takes a given run; false (and nothing done) if a block of it is used or not there.
    #[must_use]
    pub(super) fn take(&mut self, extent: Extent) -> bool {
        let fits = self.all(extent, false);
        if fits {
            self.set(extent, true);
        }
        fits
    }

    /// Gives a run back; false (and nothing done) if a block of it is free or not there.
    #[must_use]
    pub(super) fn release(&mut self, extent: Extent) -> bool {
        let fits = self.all(extent, true);
        if fits {
            self.set(extent, false);
        }
        fits
    }

    /// True if every block of `extent` is used (or free).
    pub(super) fn all(&self, extent: Extent, used: bool) -> bool {
        extent.start.checked_add(u64::from(extent.blocks)).is_some_and(|end| end <= self.blocks)
            && spans(extent).all(|(word, mask)| {
                let bits = if used { self.words[word] } else { !self.words[word] };
                bits & mask == mask
            })
    }

    /// The bits of blocks `64 * number ..`, set if used.
    pub(super) fn word(&self, number: usize) -> u64 {
        self.words.get(number).copied().unwrap_or(u64::MAX)
    }

    /// Counts the free runs by length. Reads the whole map.
    pub(super) fn histogram(&self) -> RunHistogram {
        let mut counts = Vec::new();
        let mut end = |run: u64| {
            if run > 0 {
                let class = run.ilog2() as usize;
                if counts.len() <= class {
                    counts.resize(class + 1, 0);
                }
                counts[class] += 1;
            }
        };
        let mut run = 0;
        for word in &self.words {
            for_each_run(*word, |used, length| {
                if used {
                    end(std::mem::take(&mut run));
                } else {
                    run += length;
                }
            });
        }
        end(run);
        RunHistogram { counts }
    }

    fn set(&mut self, extent: Extent, used: bool) {
        for (word, mask) in spans(extent) {
            if used {
                self.words[word] |= mask;
            } else {
                self.words[word] &= !mask;
            }
        }
        self.refresh((extent.start / LEAF_BLOCKS) as usize, ((extent.end() - 1) / LEAF_BLOCKS) as usize);
    }

    fn summarize(&self, leaf: usize) -> Summary {
        let mut summary = Summary::default();
        let (mut run, mut seen_used) = (0, false);
        for word in &self.words[leaf * LEAF_WORDS..(leaf + 1) * LEAF_WORDS] {
            for_each_run(*word, |used, length| {
                if used {
                    if !seen_used {
                        (summary.prefix, seen_used) = (run, true);
                    }
                    run = 0;
                } else {
                    run += length;
                    summary.free += length;
                    summary.longest = summary.longest.max(run);
                }
            });
        }
        summary.suffix = run;
        if !seen_used {
            summary.prefix = run;
        }
        summary
    }

    /// The start of the leftmost run of `want` free blocks that begins at `from` or later.
    fn find(&self, want: u64, from: u64) -> Option<u64> {
        let mut search = RunSearch { want, from, carry: 0 };
        self.descend(&mut search, 1, 0, self.leaves as u64 * LEAF_BLOCKS)
    }

    fn descend(&self, search: &mut RunSearch, node: usize, start: u64, length: u64) -> Option<u64> {
        let end = start + length;
        if end <= search.from {
            return None;
        }
        let summary = self.tree[node];
        if start >= search.from {
            if search.carry + summary.prefix >= search.want {
                return Some(start - search.carry);
            }
            if summary.longest < search.want {
                search.carry = if summary.free == length { search.carry + length } else { summary.suffix };
                return None;
            }
        } else if summary.free == 0 {
            return None;
        }
        if node >= self.leaves {
            return self.scan(search, node - self.leaves);
        }
        let half = length / 2;
        self.descend(search, 2 * node, start, half)
            .or_else(|| self.descend(search, 2 * node + 1, start + half, half))
    }

    /// A run of `want` free blocks in one leaf of `class`, the lowest or highest such leaf.
    fn find_in_class(&self, want: u64, class: usize, highest: bool) -> Option<u64> {
        let fits = |node: usize| u64::from(self.by_class[node][class]) >= want;
        if !fits(1) {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            let (one, other) = if highest { (2 * node + 1, 2 * node) } else { (2 * node, 2 * node + 1) };
            node = if fits(one) { one } else { other };
        }
        let leaf = node - self.leaves;
        self.scan(&mut RunSearch { want, from: 0, carry: 0 }, leaf)
    }

    /// The highest start of a run of `want` free blocks.
    fn find_last(&self, want: u64) -> Option<u64> {
        let (mut node, mut start, mut length) = (1, 0, self.leaves as u64 * LEAF_BLOCKS);
        if self.longest() < want {
            return None;
        }
        // Downwards while the run lies within one child; `longest` of the node is always enough.
        while node < self.leaves {
            let (left, right) = (self.tree[2 * node], self.tree[2 * node + 1]);
            let half = length / 2;
            if right.longest >= want {
                (node, start) = (2 * node + 1, start + half);
            } else if left.suffix + right.prefix >= want {
                return Some(start + half + right.prefix - want);
            } else {
                node *= 2;
            }
            length = half;
        }
        let leaf = node - self.leaves;
        let (mut at, mut run, mut found) = (start, 0, None);
        for word in &self.words[leaf * LEAF_WORDS..(leaf + 1) * LEAF_WORDS] {
            for_each_run(*word, |used, length| {
                at += length;
                run = if used { 0 } else { run + length };
                if run >= want {
                    found = Some(at - want);
                }
            });
        }
        found
    }

    /// Searches one leaf run by run.
    fn scan(&self, search: &mut RunSearch, leaf: usize) -> Option<u64> {
        let mut at = leaf as u64 * LEAF_BLOCKS;
        let mut found = None;
        for word in &self.words[leaf * LEAF_WORDS..(leaf + 1) * LEAF_WORDS] {
            for_each_run(*word, |used, length| {
                let begin = at.max(search.from);
                at += length;
                if used {
                    search.carry = 0;
                } else if at > begin && found.is_none() {
                    search.carry += at - begin;
                    if search.carry >= search.want {
                        found = Some(at - search.carry);
                    }
                }
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

fn class_of(blocks: u64) -> usize {
    (blocks.max(1).ilog2() as usize).min(SIZE_CLASSES - 1)
}

struct RunSearch {
    want: u64,
    from: u64,
    /// Free blocks just before the place reached, none of them before `from`.
    carry: u64,
}

/// The words of a bitmap that `extent` touches, each with the mask of its bits there.
fn spans(extent: Extent) -> impl Iterator<Item = (usize, u64)> {
    let (start, end) = (extent.start, extent.end());
    (start / 64..end.div_ceil(64)).map(move |word| {
        let low = start.max(word * 64) - word * 64;
        let high = end.min(word * 64 + 64) - word * 64;
        let mask = if high - low == 64 { u64::MAX } else { ((1 << (high - low)) - 1) << low };
        (word as usize, mask)
    })
}

/// Calls `run` with (used, length) for each run of equal bits, from the low end.
fn for_each_run(word: u64, mut run: impl FnMut(bool, u64)) {
    match word {
        0 => run(false, 64),
        u64::MAX => run(true, 64),
        _ => {
            let (mut rest, mut left) = (word, 64u32);
            while left > 0 {
                let used = rest & 1 == 1;
                let length = if used { rest.trailing_ones() } else { rest.trailing_zeros() }.min(left);
                run(used, u64::from(length));
                rest = rest.checked_shr(length).unwrap_or(0);
                left -= length;
            }
        }
    }
}

#[cfg(test)]
mod tests;
