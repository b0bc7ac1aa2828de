//! Comparison cache: the answers of whole comparisons of two directories, for as long as they hold.
//!
//! Protocol: a comparison is *asked* for before it takes its snapshot of the store, and *kept* when
//! its last difference was found. A change of the volume is *begun* before its batch is committed,
//! and is *under way* until after that.
//!
//! An answer is a function of what lies below some content prefixes, its *sources*, in the indexes
//! of metadata and of links: those of the two directories, and those of the link areas that serve
//! their tops ([`Trees`]). Invariants:
//!
//! 1. An answer is kept only if no change was under way when the comparison was asked for, and
//!    given only if no change of its sources was begun since then.
//! 2. So it is what a comparison would find now. A change that the comparison's snapshot has not
//!    was committed, and so begun, after the comparison was asked for. From its beginning on,
//!    before any reader can see it, the answer is not given.
//! 3. A change of a key concerns the sources that the key begins with. A range operation, and a
//!    clone by its destination, concerns the sources whose keys it meets: those that lie in the
//!    range, and those that it lies in. The source of a clone does not change.
//!
//! What is not committed is seen by no comparison, kept or not. Rights are no part of an answer:
//! whether a caller may ask is judged each time. All of it lies in memory and is bounded. Answers
//! that were not asked for during many changes are dropped; when there are no comparisons under way
//! either, changes cost next to nothing again.

use crate::lock_order::{Rank, RankedMutex};
use crate::model::layout::{self, LINKS, METADATA, ORPHAN_AREA};
use crate::model::types::Change;
use crate::volume::directory_keys::{bounds, directories};
use espalier_engine::{Batch, KeyRange, Touch};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What all answers take, with what is kept about them.
const MAX_BYTES: usize = 16 << 20;
/// What one answer takes.
const MAX_ANSWER_BYTES: usize = 256 << 10;
/// What is kept about an answer, beside what it is known by and its paths.
const OVERHEAD_BYTES: usize = 512;
/// What is kept of a difference beside its path.
const DIFFERENCE_BYTES: usize = size_of::<(Change, Vec<u8>)>();
/// After so many changes without a question everything is dropped.
const MAX_CHANGES_UNASKED: u64 = 1 << 20;

/// The differences between two trees, in the order in which the comparison found them.
pub(crate) type DifferenceList = Arc<[(Change, Vec<u8>)]>;

/// What was compared.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trees {
    /// The content prefixes of both.
    pub(crate) tops: [Arc<[u8]>; 2],
    /// The content prefixes of the directories whose link areas serve both tops, if files with
    /// several names were compared.
    pub(crate) served_by: Option<[Arc<[u8]>; 2]>,
}

/// Which indexes of a batch change what users see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concern {
    /// All.
    All,
    /// Only that of links: in that of metadata only times of the last read and ownership marks
    /// change.
    Links,
}

/// See the module.
pub(crate) struct ComparisonCache {
    /// Changes that have begun and not ended.
    under_way: AtomicU64,
    /// False only if there are no sources.
    in_use: AtomicBool,
    table: RankedMutex<Table>,
}

#[derive(Default)]
struct Table {
    /// How many changes were begun.
    changes: u64,
    /// This number when a comparison was last asked for.
    asked: u64,
    /// The sources of what is kept, and of comparisons under way.
    sources: BTreeMap<Box<[u8]>, Source>,
    kept: HashMap<Arc<Trees>, Kept>,
    /// What is kept by the number of its last use.
    by_use: BTreeMap<u64, Arc<Trees>>,
    uses: u64,
    /// What all answers take.
    bytes: usize,
}

struct Source {
    /// The number of the last change of it since it is here.
    changed: u64,
    /// Answers and comparisons that have it.
    users: usize,
}

struct Kept {
    answer: DifferenceList,
    /// The last change before the comparison was asked for.
    as_of: u64,
    used: u64,
    bytes: usize,
}

/// A change that has begun, until this is dropped.
pub(crate) struct ChangeUnderWay<'a>(&'a AtomicU64);

/// What is known when a comparison is asked for.
pub(crate) enum Asked {
    /// Its answer.
    Known(DifferenceList),
    /// Nothing, but what it finds may be kept.
    Unknown(Comparing),
    /// Nothing, and a change is under way.
    Changing,
}

/// A comparison under way whose answer may be kept.
pub(crate) struct Comparing {
    cache: Arc<ComparisonCache>,
    trees: Arc<Trees>,
    as_of: u64,
    found: Vec<(Change, Vec<u8>)>,
    bytes: usize,
}

impl Trees {
    /// The content prefixes that the answer depends on.
    fn sources(&self) -> impl Iterator<Item = Box<[u8]>> {
        let areas = self.served_by.iter().flatten().map(|top| layout::area_prefix(top).into());
        self.tops.iter().map(|top| (**top).into()).chain(areas)
    }

    fn bytes(&self) -> usize {
        let known_by = self.tops.iter().chain(self.served_by.iter().flatten());
        // A second time in the sources.
        OVERHEAD_BYTES + known_by.map(|prefix| 2 * prefix.len()).sum::<usize>()
    }
}

impl ComparisonCache {
    pub(crate) fn new() -> Self {
        Self {
            under_way: AtomicU64::new(0),
            in_use: AtomicBool::new(false),
            table: RankedMutex::new(Rank::Table, Table::default()),
        }
    }

    /// `batch` is about to be committed. The result is dropped when that is done.
    pub(crate) fn begin_change(&self, batch: &Batch, concern: Concern) -> ChangeUnderWay<'_> {
        // In this order, and the other way round where a comparison is asked for: one of the two
        // sees the other.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let under_way = ChangeUnderWay(&self.under_way);
        // Freed when other changes may go on.
        let mut dropped = HashMap::new();
        if self.in_use.load(Ordering::SeqCst) {
            let mut table = self.table.lock();
            table.note(batch, concern);
            if table.changes - table.asked > MAX_CHANGES_UNASKED {
                dropped = table.drop_all();
                self.in_use.store(!table.sources.is_empty(), Ordering::SeqCst);
            }
        }
        drop(dropped);
        under_way
    }

    /// Asks for a comparison. The caller holds the tree lock, by which it knows the `trees`, and
    /// takes the snapshot for the comparison afterwards.
    pub(crate) fn ask(self: &Arc<Self>, trees: Trees) -> Asked {
        let mut table = self.table.lock();
        table.asked = table.changes;
        if let Some(answer) = table.answer(&trees) {
            return Asked::Known(answer);
        }
        self.in_use.store(true, Ordering::SeqCst);
        if self.under_way.load(Ordering::SeqCst) != 0 {
            return Asked::Changing;
        }
        let (trees, as_of) = (Arc::new(trees), table.changes);
        table.use_sources(&trees);
        Asked::Unknown(Comparing {
            cache: self.clone(),
            bytes: trees.bytes(),
            trees,
            as_of,
            found: Vec::new(),
        })
    }
}

impl Drop for ChangeUnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Comparing {
    /// The comparison has found one more difference. False if there are too many to be kept.
    pub(crate) fn add(&mut self, change: Change, path: &[u8]) -> bool {
        self.bytes += DIFFERENCE_BYTES + path.len();
        self.found.push((change, path.to_vec()));
        self.bytes <= MAX_ANSWER_BYTES
    }

    /// The comparison has found everything.
    pub(crate) fn keep(mut self) {
        let found = DifferenceList::from(std::mem::take(&mut self.found));
        let mut table = self.cache.table.lock();
        if table.are_unchanged(&self.trees, self.as_of) {
            table.keep(&self.trees, found, self.as_of, self.bytes);
        }
    }
}

impl Drop for Comparing {
    fn drop(&mut self) {
        self.cache.table.lock().release_sources(&self.trees);
    }
}

impl Table {
    fn note(&mut self, batch: &Batch, concern: Concern) {
        self.changes += 1;
        let is_seen = |index| index == LINKS || (index == METADATA && concern == Concern::All);
        // Neighbours lie in one directory mostly.
        let mut last = None;
        for touch in batch.touches() {
            match touch {
                Touch::Key { index, key, .. } if is_seen(index.index) => {
                    let directory = directories(key);
                    if last.replace(directory) != Some(directory) {
                        self.note_around(directory);
                    }
                }
                Touch::Range { index, range, .. } if is_seen(index.index) => self.note_range(range),
                Touch::Clone { index, destination, .. } if is_seen(index.index) => {
                    self.note_range(&KeyRange::prefix(destination));
                }
                _ => {}
            }
        }
    }

    /// Something changes in the directory with this content prefix: that concerns the sources that
    /// the prefix begins with. It looks up no more than one for each directory above.
    ///
    /// The orphan area lies in what serves the volume's root, and is no part of any answer but of
    /// trees in it.
    fn note_around(&mut self, prefix: &[u8]) {
        let shortest = if prefix.starts_with(ORPHAN_AREA) { ORPHAN_AREA.len() } else { 0 };
        let mut upto = prefix;
        while let Some((source, found)) = self.sources.range_mut::<[u8], _>(up_to(upto)).next_back() {
            let common = source.iter().zip(upto).take_while(|(a, b)| a == b).count();
            let is_around = common == source.len();
            if is_around && common >= shortest {
                found.changed = self.changes;
            }
            // All others that the prefix begins with come before this one, which begins with them.
            match common.checked_sub(usize::from(is_around)) {
                Some(rest) => upto = directories(&upto[..rest]),
                None => return,
            }
        }
    }

    /// Something may change at any key of a range.
    fn note_range(&mut self, range: &KeyRange) {
        if range.is_empty() {
            return;
        }
        self.note_around(directories(&range.start));
        for (_, source) in self.sources.range_mut::<[u8], _>(bounds(range)) {
            source.changed = self.changes;
        }
    }

    /// True if nothing below the sources has changed since a change, and they were here since.
    fn are_unchanged(&self, trees: &Trees, as_of: u64) -> bool {
        trees.sources().all(|source| self.sources.get(&source).is_some_and(|found| found.changed <= as_of))
    }

    /// An answer that holds. One that does not is dropped.
    fn answer(&mut self, trees: &Trees) -> Option<DifferenceList> {
        let as_of = self.kept.get(trees)?.as_of;
        if !self.are_unchanged(trees, as_of) {
            self.drop_kept(trees);
            return None;
        }
        self.uses += 1;
        let kept = self.kept.get_mut(trees)?;
        let trees = self.by_use.remove(&kept.used)?;
        kept.used = self.uses;
        self.by_use.insert(kept.used, trees);
        Some(kept.answer.clone())
    }

    fn keep(&mut self, trees: &Arc<Trees>, answer: DifferenceList, as_of: u64, bytes: usize) {
        self.drop_kept(trees);
        self.use_sources(trees);
        self.uses += 1;
        self.by_use.insert(self.uses, trees.clone());
        self.kept.insert(trees.clone(), Kept { answer, as_of, used: self.uses, bytes });
        self.bytes += bytes;
        while self.bytes > MAX_BYTES {
            let Some((_, oldest)) = self.by_use.first_key_value() else { break };
            let oldest = oldest.clone();
            self.drop_kept(&oldest);
        }
    }

    fn drop_kept(&mut self, trees: &Trees) {
        if let Some(kept) = self.kept.remove(trees) {
            self.by_use.remove(&kept.used);
            self.bytes -= kept.bytes;
            self.release_sources(trees);
        }
    }

    /// Forgets all answers, which are returned.
    fn drop_all(&mut self) -> HashMap<Arc<Trees>, Kept> {
        let kept = std::mem::take(&mut self.kept);
        kept.keys().for_each(|trees| self.release_sources(trees));
        (self.by_use, self.bytes) = (BTreeMap::new(), 0);
        kept
    }

    fn use_sources(&mut self, trees: &Trees) {
        for prefix in trees.sources() {
            let new = Source { changed: self.changes, users: 0 };
            self.sources.entry(prefix).or_insert(new).users += 1;
        }
    }

    fn release_sources(&mut self, trees: &Trees) {
        for prefix in trees.sources() {
            let Some(source) = self.sources.get_mut(&prefix) else { continue };
            source.users -= 1;
            if source.users == 0 {
                self.sources.remove(&prefix);
            }
        }
    }
}

/// All keys up to this one.
fn up_to(last: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(last))
}

#[cfg(test)]
mod tests;
