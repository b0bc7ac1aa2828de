//! Limited trees in memory: what each may hold, and a bound of what it holds.
//!
//! A limit lies in the record of its directory. In memory the directory's node has the *limited
//! tree*; nodes of one number share it, so it stays the same while anything that it counts is in
//! use. Nothing about what a tree holds is stored: `crate::quota` counts it.
//!
//! Protocol: a call that adds something is *charged* before it begins, with the most that it may
//! add. Each gauge has a *bound*: what was counted last, and all that was charged since. While the
//! bound is below the *threshold* nothing is counted. A call that fails gets its charge back.
//!
//! Invariants: the bound is never less than what the store holds for the tree, but for what others
//! gave up since the last count. What calls under way were charged is known at every moment, so
//! that a count neither misses nor forgets it.

use crate::model::tree_limits::TreeLimits;
use crate::model::types::NodeId;
use espalier_engine::{HeldTally, IndexId, Store};
use espalier_sync::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// No limit.
const UNLIMITED: u64 = u64::MAX;
/// Between two counts a tree may take its limit divided by this, even where less room is left.
const COUNTED_SHARE: u64 = 128;
/// That share is no less, and no more, in bytes.
const COUNTED_SHARE_BYTES: (u64, u64) = (64 << 10, 64 << 20);

/// So many trees stay in memory when nothing of them is used; few in tests.
const MAX_LATEST_TREES: usize = if cfg!(debug_assertions) { 3 } else { 1024 };

/// Pieces that the tallies of all trees may know, each of which takes some 300 bytes of memory; few
/// in tests, so that both ways are taken.
const MAX_KEPT_PIECES: usize = if cfg!(debug_assertions) { 200 } else { 128 << 10 };

/// A message may change two pages in part.
const PATCHED_BYTES_PER_MESSAGE: u64 = 8 << 10;

/// While what is there is replaced a tree may hold so many of these shares more.
const REPLACED_SHARES: u64 = 4;

/// What a tree with this limit may take between two counts.
fn counted_share(limit: u64) -> u64 {
    let (least, most) = COUNTED_SHARE_BYTES;
    (limit / COUNTED_SHARE).clamp(least, most)
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// It adds something.
    Add,
    /// It writes only where something is already, or room is kept.
    Replace,
}

/// The limited trees of a volume.
#[derive(Default)]
pub(crate) struct LimitTable {
    /// Some directory that was in memory has a limit.
    is_used: AtomicBool,
    /// Counts limits that were set or taken away.
    generation: AtomicU64,
    /// By the number of the directory.
    trees: Mutex<HashMap<u64, Weak<LimitedTree>>>,
    /// Those that were made last: what is known of them stays, also when nothing of them is used.
    latest: Mutex<VecDeque<Arc<LimitedTree>>>,
    /// What the tallies of all trees know.
    kept_pieces: Arc<AtomicUsize>,
}

/// The limited trees that a node lies in, the nearest first.
pub(crate) type Limits = Arc<[Arc<LimitedTree>]>;

impl LimitTable {
    /// True if a node may lie in a limited tree.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Changes whenever the trees that nodes lie in may have, but for moves.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The tree of directory `ino`, with these limits from now on.
    pub(crate) fn tree(&self, ino: u64, limits: TreeLimits) -> Arc<LimitedTree> {
        self.is_used.store(true, Ordering::Release);
        let mut trees = self.trees.lock();
        let tree = match trees.get(&ino).and_then(Weak::upgrade) {
            Some(tree) => tree,
            None => {
                trees.retain(|_, tree| tree.strong_count() > 0);
                let tree = Arc::new(LimitedTree::new(ino, self.kept_pieces.clone()));
                trees.insert(ino, Arc::downgrade(&tree));
                drop(trees);
                self.keep(&tree);
                tree
            }
        };
        tree.set_limits(limits);
        tree
    }

    fn keep(&self, tree: &Arc<LimitedTree>) {
        let oldest = {
            let mut latest = self.latest.lock();
            latest.push_back(tree.clone());
            if latest.len() > MAX_LATEST_TREES { latest.pop_front() } else { None }
        };
        // Its end takes locks of the store.
        drop(oldest);
    }

    /// The trees that are in memory.
    pub(crate) fn trees(&self) -> Vec<Arc<LimitedTree>> {
        self.trees.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Limits were set or taken away.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

/// A tree that may hold no more than its limits say.
pub(crate) struct LimitedTree {
    /// The number of the directory.
    pub(crate) ino: u64,
    pub(crate) exclusive: Gauge,
    pub(crate) total: Gauge,
    /// The directory, and files and trees without a name that count for it, by serial number.
    members: Mutex<HashMap<u64, NodeId>>,
    /// It may refer to something that others refer to as well.
    pub(crate) is_sharing: AtomicBool,
    /// Bytes of shared pages that are copied when what was written comes to leaves, at most.
    pub(crate) patched: AtomicU64,
    /// Something of it was given up since it was last counted.
    has_freed: AtomicBool,
    /// The epoch of moves when its place was last told to the store.
    pub(crate) told: AtomicU64,
    /// Takes back what the store was told.
    pub(crate) apart: Mutex<Option<KeptApart>>,
    /// Held while it is counted.
    pub(crate) counting: Mutex<LastCount>,
    /// What the store found when it was last counted, for the next time. Held for a walk.
    pub(crate) tally: Mutex<KeptTally>,
    /// Charges that were kept.
    pub(crate) kept: AtomicU64,
}

/// What the store found when a tree was last counted. It is kept as long as all that are kept are
/// not too large together; without it the next count is a whole walk.
pub(crate) struct KeptTally {
    tally: HeldTally,
    /// What it knew after the last count.
    pieces: usize,
    /// The sum for all trees.
    all: Arc<AtomicUsize>,
}

impl KeptTally {
    /// Counts with it.
    pub(crate) fn count<T>(&mut self, count: impl FnOnce(&mut HeldTally) -> T) -> T {
        let counted = count(&mut self.tally);
        self.note(self.tally.pieces());
        if self.all.load(Ordering::Relaxed) > MAX_KEPT_PIECES {
            self.tally = HeldTally::default();
            self.note(0);
        }
        counted
    }

    fn note(&mut self, pieces: usize) {
        self.all.fetch_add(pieces.wrapping_sub(self.pieces), Ordering::Relaxed);
        self.pieces = pieces;
    }
}

impl Drop for KeptTally {
    fn drop(&mut self) {
        self.note(0);
    }
}

/// The store keeps the values of a tree apart from others as long as this is there.
pub(crate) struct KeptApart {
    store: Arc<Store>,
    owner: u64,
}

impl KeptApart {
    /// Has the store keep values of keys in `index` that begin with `prefix` apart.
    pub(crate) fn new(store: &Arc<Store>, owner: u64, index: IndexId, prefix: &[u8]) -> Self {
        store.keep_apart(owner, Some((index, prefix)));
        Self { store: store.clone(), owner }
    }

    /// The prefix is another one now.
    pub(crate) fn set(&self, index: IndexId, prefix: &[u8]) {
        self.store.keep_apart(self.owner, Some((index, prefix)));
    }
}

impl Drop for KeptApart {
    fn drop(&mut self) {
        self.store.keep_apart(self.owner, None);
    }
}

/// When a tree was last counted.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LastCount {
    /// When the count ended, by the monotonic clock.
    pub(crate) ended: Duration,
    /// How long it took.
    pub(crate) took: Duration,
    /// It was found to be full.
    pub(crate) is_full: bool,
    /// Charges that were kept until then.
    pub(crate) kept: u64,
}

impl LimitedTree {
    fn new(ino: u64, all: Arc<AtomicUsize>) -> Self {
        Self {
            ino,
            exclusive: Gauge::default(),
            total: Gauge::default(),
            members: Mutex::default(),
            is_sharing: AtomicBool::new(true),
            patched: AtomicU64::new(0),
            has_freed: AtomicBool::new(false),
            told: AtomicU64::new(u64::MAX),
            apart: Mutex::default(),
            counting: Mutex::default(),
            tally: Mutex::new(KeptTally { tally: HeldTally::default(), pieces: 0, all }),
            kept: AtomicU64::new(0),
        }
    }

    /// Its limits.
    pub(crate) fn limits(&self) -> TreeLimits {
        TreeLimits { exclusive: self.exclusive.limit(), total: self.total.limit() }
    }

    /// Gives it these limits, or none: then what it holds is not known any more.
    pub(crate) fn set_limits(&self, limits: TreeLimits) {
        let before = self.limits();
        if before != limits {
            self.exclusive.set_limit(limits.exclusive);
            self.total.set_limit(limits.total);
            if before != TreeLimits::default() {
                // What was refused may fit now.
                self.note_freed();
            }
        }
    }

    /// What the node with this serial number and id holds counts for this tree.
    pub(crate) fn add_member(&self, serial: u64, id: NodeId) {
        self.members.lock().insert(serial, id);
    }

    /// Serial numbers and ids of the nodes that count for it, with all below. Those that left
    /// memory are to be taken out.
    pub(crate) fn members(&self) -> Vec<(u64, NodeId)> {
        self.members.lock().iter().map(|(serial, id)| (*serial, *id)).collect()
    }

    /// A node has left memory.
    pub(crate) fn remove_member(&self, serial: u64) {
        self.members.lock().remove(&serial);
    }

    /// Something of it was given up: it is worth counting again.
    pub(crate) fn note_freed(&self) {
        self.has_freed.store(true, Ordering::Release);
    }

    /// The next call that is charged counts.
    pub(crate) fn count_next(&self) {
        self.exclusive.count_next();
        self.total.count_next();
    }

    /// True if something was given up since this was last asked.
    pub(crate) fn take_freed(&self) -> bool {
        self.has_freed.swap(false, Ordering::AcqRel)
    }

    /// What is still to be copied of shared pages if so many messages have not come to the leaves.
    pub(crate) fn settle_patched(&self, messages: u64) -> u64 {
        let most = messages.saturating_mul(PATCHED_BYTES_PER_MESSAGE);
        let before = self.patched.fetch_min(most, Ordering::AcqRel);
        before.min(most)
    }

    /// True if it was counted since it got its limits.
    pub(crate) fn is_known(&self) -> bool {
        self.exclusive.is_known() && self.total.is_known()
    }

    /// True if all that was charged is below what may be charged without a count.
    pub(crate) fn has_room(&self, what: WriteKind) -> bool {
        self.exclusive.has_room(what) && self.total.has_room(what)
    }

    /// True if all that was charged is below the limits, as it was counted just now.
    pub(crate) fn fits(&self, what: WriteKind) -> bool {
        self.exclusive.fits(what) && self.total.fits(what)
    }
}

/// One limit and a bound of what counts for it, in bytes.
#[derive(Debug)]
pub(crate) struct Gauge {
    limit: AtomicU64,
    /// Never less than what is held.
    bound: AtomicU64,
    /// As long as the bound is no more than this nothing is counted.
    threshold: AtomicU64,
    /// The same for calls that replace what is there.
    replace_threshold: AtomicU64,
    /// What was counted last.
    counted: AtomicU64,
    /// The least that was counted since the limit was set, with what others gave up since.
    least: AtomicU64,
    /// What calls under way were charged.
    under_way: AtomicU64,
    /// It was counted since it has a limit.
    is_known: AtomicBool,
}

/// A gauge before a count.
pub(crate) struct BeforeCount {
    bound: u64,
    under_way: u64,
}

impl Default for Gauge {
    fn default() -> Self {
        Self {
            limit: AtomicU64::new(UNLIMITED),
            bound: AtomicU64::new(0),
            threshold: AtomicU64::new(UNLIMITED),
            replace_threshold: AtomicU64::new(UNLIMITED),
            counted: AtomicU64::new(0),
            least: AtomicU64::new(UNLIMITED),
            under_way: AtomicU64::new(0),
            is_known: AtomicBool::new(false),
        }
    }
}

impl Gauge {
    /// The limit.
    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Acquire)).filter(|limit| *limit != UNLIMITED)
    }

    /// Gives it another limit, or the first: the next call that is charged counts, or one soon.
    fn set_limit(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(UNLIMITED), Ordering::Release);
        let is_known = limit.is_some() && self.is_known.load(Ordering::Acquire);
        self.is_known.store(is_known, Ordering::Release);
        let threshold = match limit {
            None => UNLIMITED,
            Some(_) if is_known => 0,
            // As long as nothing was counted a share may be taken, so that no call waits for the
            // first count if that is made in the background meanwhile.
            Some(limit) => self.bound().saturating_add(counted_share(limit)),
        };
        self.threshold.store(threshold, Ordering::Release);
        self.replace_threshold.store(threshold, Ordering::Release);
        self.least.store(UNLIMITED, Ordering::Release);
    }

    /// True if it was counted since it has a limit, or has none.
    fn is_known(&self) -> bool {
        self.limit().is_none() || self.is_known.load(Ordering::Acquire)
    }

    /// What it holds at most, as far as that is known.
    pub(crate) fn bound(&self) -> u64 {
        self.bound.load(Ordering::Acquire)
    }

    fn has_room(&self, what: WriteKind) -> bool {
        let threshold = match what {
            WriteKind::Add => &self.threshold,
            WriteKind::Replace => &self.replace_threshold,
        };
        let threshold = threshold.load(Ordering::Acquire);
        threshold == UNLIMITED || self.bound() <= threshold
    }

    fn fits(&self, what: WriteKind) -> bool {
        let limit = self.limit.load(Ordering::Acquire);
        match what {
            WriteKind::Add => self.bound() <= limit,
            WriteKind::Replace => self.counted.load(Ordering::Acquire) <= self.most_replaced(limit),
        }
    }

    /// What it may hold, as it is counted, while what is there is replaced: its limit, or what it
    /// holds beyond that without having written more, and what replacing takes for a while.
    fn most_replaced(&self, limit: u64) -> u64 {
        let least = self.least.load(Ordering::Acquire);
        let base = if least == UNLIMITED { limit } else { limit.max(least) };
        base.saturating_add(REPLACED_SHARES * counted_share(limit))
    }

    /// A count begins.
    pub(crate) fn begin_count(&self) -> BeforeCount {
        // In this order: what a call is charged in between counts twice rather than not at all.
        let under_way = self.under_way.load(Ordering::Acquire);
        BeforeCount { bound: self.bound(), under_way }
    }

    /// What was committed before the count took `counted` bytes.
    pub(crate) fn end_count(&self, before: &BeforeCount, counted: u64) {
        let known = counted.saturating_add(before.under_way);
        // The bound becomes what is known, and what was charged since the count began.
        let bound = self.bound.fetch_add(known.wrapping_sub(before.bound), Ordering::AcqRel);
        let bound = bound.wrapping_add(known.wrapping_sub(before.bound));
        let limit = self.limit.load(Ordering::Acquire);
        if limit == UNLIMITED {
            return;
        }
        self.is_known.store(true, Ordering::Release);
        self.counted.store(counted, Ordering::Release);
        // What was not charged is there because others gave it up.
        let given = known.saturating_sub(before.bound);
        let least = self.least.load(Ordering::Acquire);
        let least = if least == UNLIMITED { counted } else { counted.min(least.saturating_add(given)) };
        self.least.store(least, Ordering::Release);
        let beyond = bound.saturating_add(counted_share(limit));
        let most = self.most_replaced(limit);
        self.threshold.store(if bound <= limit { limit.max(beyond) } else { limit }, Ordering::Release);
        self.replace_threshold.store(if counted <= most { most.max(beyond) } else { 0 }, Ordering::Release);
    }

    /// The next call that is charged counts: the bound may be too low.
    fn count_next(&self) {
        if self.limit().is_some() {
            self.threshold.store(0, Ordering::Release);
            self.replace_threshold.store(0, Ordering::Release);
        }
    }

    fn charge(&self, bytes: u64) {
        if bytes > 0 {
            self.bound.fetch_add(bytes, Ordering::AcqRel);
            self.under_way.fetch_add(bytes, Ordering::AcqRel);
        }
    }

    fn end_charge(&self, bytes: u64, is_kept: bool) {
        if bytes > 0 && !is_kept {
            self.bound.fetch_sub(bytes, Ordering::AcqRel);
        }
        if bytes > 0 {
            self.under_way.fetch_sub(bytes, Ordering::AcqRel);
        }
    }
}

/// Bytes that a call may add.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    pub(crate) exclusive: u64,
    pub(crate) total: u64,
    /// Of what the tree shares this becomes exclusive along with that: a changed entry takes a copy
    /// of the part that it lies in, and what is written into part of a page one of the page.
    pub(crate) along: u64,
    /// Of that, what comes when what is written comes to a leaf.
    pub(crate) patched: u64,
}

impl Growth {
    /// The same for both.
    pub(crate) fn both(bytes: u64) -> Self {
        Self { exclusive: bytes, total: bytes, ..Self::default() }
    }

    /// The same with what may become exclusive along with it.
    pub(crate) fn along(self, bytes: u64) -> Self {
        Self { along: bytes, ..self }
    }

    /// What it comes to in a tree.
    fn of(self, tree: &LimitedTree) -> (u64, u64) {
        let along = if tree.is_sharing.load(Ordering::Acquire) { self.along } else { 0 };
        (self.exclusive.saturating_add(along), self.total)
    }
}

/// What a call was charged, while it is under way. It is given back unless it is kept.
#[must_use]
#[derive(Default)]
pub(crate) struct Charge {
    /// With the exclusive bytes, and those in all.
    parts: Vec<(Arc<LimitedTree>, (u64, u64))>,
    /// Trees that are to be counted after the call.
    counted_next: Vec<Arc<LimitedTree>>,
    is_kept: bool,
}

impl Charge {
    /// Charges a tree.
    pub(crate) fn add(&mut self, tree: &Arc<LimitedTree>, growth: Growth) {
        let (exclusive, total) = growth.of(tree);
        tree.exclusive.charge(exclusive);
        tree.total.charge(total);
        if growth.patched > 0 && exclusive > growth.exclusive {
            tree.patched.fetch_add(growth.patched, Ordering::AcqRel);
        }
        self.parts.push((tree.clone(), (exclusive, total)));
    }

    /// If the call succeeds the next one counts the tree: what was known of what comes into it may
    /// have grown since.
    pub(crate) fn count_next(&mut self, tree: &Arc<LimitedTree>) {
        self.counted_next.push(tree.clone());
    }

    /// Adds another charge of the same call.
    pub(crate) fn append(&mut self, mut other: Charge) {
        self.parts.append(&mut other.parts);
        self.counted_next.append(&mut other.counted_next);
    }

    /// The trees that were charged.
    pub(crate) fn trees(&self) -> impl Iterator<Item = &Arc<LimitedTree>> {
        self.parts.iter().map(|(tree, _)| tree)
    }

    /// The call has ended: what it was charged stays if it has succeeded.
    pub(crate) fn end<T, E>(mut self, result: Result<T, E>) -> Result<T, E> {
        self.is_kept = result.is_ok();
        result
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        for (tree, (exclusive, total)) in &self.parts {
            tree.kept.fetch_add(u64::from(self.is_kept), Ordering::AcqRel);
            tree.exclusive.end_charge(*exclusive, self.is_kept);
            tree.total.end_charge(*total, self.is_kept);
        }
        if self.is_kept {
            self.counted_next.iter().for_each(|tree| tree.count_next());
        }
    }
}

#[cfg(test)]
mod tests;
