//! Change journal: which paths below a directory were changed since an instant.
//!
//! A directory is *watched* from the first time that a caller asks about it. From then on each
//! committed batch is noted for the watched directories that its keys lie in: keys are paths, so
//! whatever changes the file system is noted by the same few lines. The journal lies in memory.
//!
//! An instant is named by a *token*: the number of a watch and a sequence number. Invariants:
//!
//! 1. A change is noted after it is visible, and before the call that made it returns. So a reader
//!    that was given a token and then sees the state before a change finds the change noted behind
//!    the token.
//! 2. Sequence numbers are times, and a token is older by [`GRACE`] than the answer that it comes
//!    with: the kernel may use attributes from before a change until it has taken the reply to the
//!    call that made it. What was changed within that time is told twice.
//! 3. A watch begins while no other operation is under way. Its first token is not accepted again,
//!    for the reason of 2: the second answer is "everything", too.
//! 4. A watch belongs to a content prefix. When what begins with the prefix is cloned or moved, the
//!    new place gets a *fork*: a watch with a number of its own, the notes so far, and the numbers
//!    of its ancestors, each good up to the instant of the fork. A prefix that is removed or
//!    overwritten loses its watch.
//! 5. What a reader knows goes along with the tree, as git's index does, or stays with the place
//!    ([`Knowledge`]). A reader of the second kind may know more of the place than its token says.
//!    So a place that has lost a watch remembers the watch's number: from such a reader it takes no
//!    token of that one any more, by which a clone of what was there would pass for it.
//! 6. A token is accepted if its watch is this one, or an ancestor at an instant before the fork,
//!    and all notes since then are kept. In every other case, after a remount, say, the answer is
//!    "everything".
//!
//! Files with several names live in link areas. A change there is noted by its key; the caller
//! finds the names ([`Changed::linked`]).
//!
//! Forks share the notes so far ([`layers`]), so what clones cost here is what changes after them.
//!
//! A reader that reads from the file system itself, and not by the kernel, needs no grace: by 1 a
//! change that it does not see is noted later. For it an answer has a second token, which is exact.
//! Such a reader can leave a *waiter* ([`waiters`]) with a question that has nothing to answer yet.
//! Both happen under one lock, so no change comes in between, and the waiter is woken once.

mod events;
mod layers;
mod notes;
mod waiters;

use crate::lock_order::{Rank, RankedMutex};
use crate::model::layout;
use crate::volume::directory_keys::{bounds, common_directory, directories, directories_above, is_in_area};
use espalier_engine::{Batch, KeyRange};
use events::{Event, events_of};
use layers::{Layers, NoteCount};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
pub use waiters::ChangeWaiter;
use waiters::{Waiters, Woken};

/// So much older than the answer is its token, in nanoseconds.
const GRACE: u64 = 1_000_000_000;
/// Watched directories; beyond that those that were not asked about for the longest time go.
const MAX_WATCHES: usize = 1 << 16;
/// Notes of all watches, those that forks share counted once.
const MAX_NOTES: usize = 1 << 18;
/// Changes of files with several names that are kept, counted in the same way.
const MAX_LINKED: usize = 1 << 14;
/// Link areas of which changes are kept.
const MAX_AREAS: usize = 1 << 16;
/// Watches of which places remember that they had them.
const MAX_LOST: usize = 1 << 16;
/// Ancestors whose tokens a fork accepts.
const MAX_ANCESTORS: usize = 16;
/// What tokens begin with.
const TOKEN_START: &str = "espalier:1";

/// What the knowledge of a reader is of, which asks with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// A tree: what the reader keeps lies in it, and is cloned and moved with it.
    OfTree,
    /// A place: what the reader keeps lies elsewhere.
    OfPlace,
}

/// What was changed below a directory since a token was given out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Names the instant of this answer, less the grace.
    pub(crate) token: String,
    /// Names the instant of this answer, for a reader that the kernel keeps nothing back from.
    pub(crate) exact: String,
    /// It is not known what was changed.
    pub(crate) everything: bool,
    /// Paths; one that ends with a slash stands for a directory with everything below.
    pub(crate) paths: Vec<Vec<u8>>,
    /// Files with several names, by their numbers in their link area. Their names are those below
    /// these content prefixes that the area serves.
    pub(crate) linked: BTreeMap<Vec<u8>, BTreeSet<u64>>,
}

/// See the module.
pub(crate) struct ChangeJournal {
    /// Some directory is watched, or was.
    in_use: AtomicBool,
    watches: RankedMutex<Watches>,
}

#[derive(Default)]
struct Watches {
    /// By content prefix.
    all: BTreeMap<Vec<u8>, Watch>,
    /// By the content prefix of a link area: what was changed there.
    linked: BTreeMap<Vec<u8>, Layers>,
    /// Since when `linked` is complete.
    linked_since: u64,
    /// By content prefix: the numbers of the watches that the place has lost; and how many.
    lost: BTreeMap<Vec<u8>, Vec<u64>>,
    lost_count: usize,
    /// The newest sequence number.
    last: u64,
    /// The notes of all watches, and those of link areas.
    notes: NoteCount,
    linked_notes: NoteCount,
    /// What waits for changes.
    waiters: Waiters,
}

struct Watch {
    id: u64,
    /// Numbers of watches that this one is a fork of, each with the instant up to which their
    /// tokens are good; the nearest last.
    ancestors: Vec<(u64, u64)>,
    /// Since when the notes are complete.
    since: u64,
    notes: Layers,
    /// When it was last asked about.
    asked: u64,
}

/// What a batch will have changed once it is committed.
pub(crate) struct PlannedNotes(Vec<Event>);

impl ChangeJournal {
    pub(crate) fn new() -> Self {
        Self { in_use: AtomicBool::new(false), watches: RankedMutex::new(Rank::Table, Watches::default()) }
    }

    /// What is to be noted when `batch` is committed; `None` if no directory is watched.
    pub(crate) fn plan(&self, batch: &Batch) -> Option<PlannedNotes> {
        self.in_use.load(Ordering::Acquire).then(|| PlannedNotes(events_of(batch)))
    }

    /// The batch was committed. `now`: on the monotonic clock.
    pub(crate) fn note(&self, planned: PlannedNotes, now: Duration, new_id: impl FnMut() -> u64) {
        if !planned.0.is_empty() {
            let woken = self.watches.lock().note(planned.0, now, new_id);
            woken.wake();
        }
    }

    /// Everything below a content prefix changed in the eyes of users.
    pub(crate) fn note_tree(&self, prefix: &[u8], now: Duration) {
        if self.in_use.load(Ordering::Acquire) {
            let woken = self.watches.lock().note(vec![Event::Tree(prefix.to_vec())], now, || 0);
            woken.wake();
        }
    }

    /// What was changed below the directory with content prefix `prefix` since `token` was given
    /// out; `None` if it is not watched. If that is nothing, `waiter` is woken by the next change
    /// there, and perhaps by another one. The caller holds the tree lock.
    pub(crate) fn changed(
        &self,
        prefix: &[u8],
        (token, knowledge): (&[u8], Knowledge),
        now: Duration,
        waiter: Option<&Arc<dyn ChangeWaiter>>,
    ) -> Option<Changed> {
        let mut watches = self.watches.lock();
        let changed = watches.changed(prefix, (token, knowledge), now)?;
        if let Some(waiter) = waiter.filter(|_| !changed.everything && changed.paths.is_empty()) {
            watches.waiters.add(prefix, waiter);
        }
        Some(changed)
    }

    /// Watches the directory with content prefix `prefix` from now on, if it is not watched. The
    /// caller holds the exclusive tree lock.
    pub(crate) fn watch(&self, prefix: &[u8], id: u64, now: Duration) -> Changed {
        self.in_use.store(true, Ordering::Release);
        let mut watches = self.watches.lock();
        let now = watches.tick(now);
        let notes = Layers::new(&watches.notes);
        let new = Watch { id, ancestors: Vec::new(), since: now, notes, asked: now };
        let watch = watches.all.entry(prefix.to_vec()).or_insert(new);
        let token = token_text(watch.id, watch.since.saturating_sub(1));
        let exact = token_text(watch.id, now);
        let woken = watches.trim();
        drop(watches);
        woken.wake();
        Changed { token, exact, everything: true, ..Changed::default() }
    }
}

fn token_text(id: u64, sequence: u64) -> String {
    format!("{TOKEN_START}:{id:016x}:{sequence}")
}

/// The watch and the sequence number that a token names.
fn parse_token(token: &[u8]) -> Option<(u64, u64)> {
    let rest = std::str::from_utf8(token).ok()?.strip_prefix(TOKEN_START)?.strip_prefix(':')?;
    let (id, sequence) = rest.split_once(':')?;
    Some((u64::from_str_radix(id, 16).ok()?, sequence.parse().ok()?))
}

impl Watch {
    /// The sequence number behind which the notes tell what changed since `token`.
    fn accepted(&self, token: &[u8]) -> Option<u64> {
        let (id, sequence) = parse_token(token)?;
        let mut ancestors = self.ancestors.iter();
        let is_known =
            id == self.id || ancestors.any(|(ancestor, until)| *ancestor == id && sequence <= *until);
        (is_known && sequence >= self.since).then_some(sequence)
    }
}

impl Watches {
    /// The next sequence number.
    fn tick(&mut self, now: Duration) -> u64 {
        self.last = (self.last + 1).max(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        self.last
    }

    /// Notes what happened; returns what waited for it.
    fn note(&mut self, events: Vec<Event>, now: Duration, mut new_id: impl FnMut() -> u64) -> Woken {
        let now = self.tick(now);
        let mut woken = Woken::default();
        for event in events {
            woken.add(self.waiters.concerned(&event));
            match event {
                Event::Entry(key) => self.note_entry(&key, now),
                Event::Tree(prefix) => self.note_tree(&prefix, now),
                Event::Gone(range) => self.note_gone(&range, now),
                Event::Cloned(source, destination) => {
                    self.note_clone(&source, &destination, now, &mut new_id);
                }
            }
        }
        woken.add(self.trim());
        woken
    }

    fn note_entry(&mut self, key: &[u8], now: u64) {
        if is_in_area(key) {
            if !key.starts_with(layout::ORPHAN_AREA) {
                self.note_linked(key, now);
            }
            return;
        }
        for above in directories_above(key) {
            if let Some(watch) = self.all.get_mut(above) {
                watch.add(&key[above.len()..], now, false);
            }
        }
    }

    /// Notes a key in a link area.
    fn note_linked(&mut self, key: &[u8], now: u64) {
        let (area, rest) = key.split_at(directories(key).len());
        let notes = self.linked.entry(area.to_vec()).or_insert_with(|| Layers::new(&self.linked_notes));
        notes.add(rest, now, false);
    }

    fn note_tree(&mut self, prefix: &[u8], now: u64) {
        if is_in_area(prefix) {
            return;
        }
        for above in directories_above(prefix).filter(|above| above.len() < prefix.len()) {
            if let Some(watch) = self.all.get_mut(above) {
                watch.add(&prefix[above.len()..], now, true);
            }
        }
        let below = KeyRange::prefix(prefix);
        for (_, watch) in self.all.range_mut::<[u8], _>(bounds(&below)) {
            watch.forget_before(now);
        }
    }

    fn note_gone(&mut self, range: &KeyRange, now: u64) {
        self.drop_watches(range);
        drop_keys(&mut self.linked, range);
        // In a link area only files without a name are deleted by ranges.
        let directory = common_directory(range);
        if is_in_area(directory) {
            return;
        }
        // The directory that is gone, or one around the range.
        for above in directories_above(directory) {
            if let Some(watch) = self.all.get_mut(above) {
                watch.add(&directory[above.len()..], now, true);
            }
        }
    }

    fn note_clone(&mut self, source: &[u8], destination: &[u8], now: u64, new_id: &mut impl FnMut() -> u64) {
        let (from, to) = (KeyRange::prefix(source), KeyRange::prefix(destination));
        let rebased = |key: &[u8]| [destination, &key[source.len()..]].concat();
        let forks: Vec<(Vec<u8>, Watch)> = self
            .all
            .range_mut::<[u8], _>(bounds(&from))
            .map(|(prefix, watch)| (rebased(prefix), watch.fork(new_id(), now)))
            .collect();
        let mut linked: Vec<(Vec<u8>, Layers)> = self
            .linked
            .range_mut::<[u8], _>(bounds(&from))
            .map(|(area, notes)| (rebased(area), notes.fork()))
            .collect();
        // All files of an area that lies above what is cloned.
        if let (Some(area), Some(copy)) = (whole_area(source), whole_area(destination)) {
            linked.extend(self.linked.get_mut(area).map(|notes| (copy.to_vec(), notes.fork())));
        }
        self.drop_watches(&to);
        drop_keys(&mut self.linked, &to);
        self.linked.extend(linked);
        if !is_in_area(destination) {
            for above in directories_above(destination).filter(|above| above.len() < destination.len()) {
                if let Some(watch) = self.all.get_mut(above) {
                    watch.add(&destination[above.len()..], now, true);
                }
            }
        }
        self.all.extend(forks);
    }

    /// Drops the watches in a range, and remembers where they were.
    fn drop_watches(&mut self, range: &KeyRange) {
        for (prefix, watch) in drop_keys(&mut self.all, range) {
            self.lose(prefix, watch.id);
        }
    }

    fn lose(&mut self, prefix: Vec<u8>, id: u64) {
        self.lost.entry(prefix).or_default().push(id);
        self.lost_count += 1;
    }

    /// Drops what is too much. The answers to tokens that need it will be "everything"; returns
    /// what may wait for that.
    fn trim(&mut self) -> Woken {
        if self.linked_notes.get() > MAX_LINKED || self.linked.len() > MAX_AREAS {
            self.linked.clear();
            self.linked_since = self.last;
        }
        if self.lost_count > MAX_LOST {
            // Watches that are gone have no further forks: without ancestors no fork accepts them.
            self.lost.clear();
            self.lost_count = 0;
            self.all.values_mut().for_each(|watch| watch.ancestors.clear());
        }
        if self.all.len() <= MAX_WATCHES && self.notes.get() <= MAX_NOTES {
            return Woken::default();
        }
        let mut ages: Vec<(u64, Vec<u8>)> =
            self.all.iter().map(|(prefix, watch)| (watch.asked, prefix.clone())).collect();
        ages.sort_unstable();
        for (_, prefix) in ages {
            if self.all.len() <= MAX_WATCHES / 2 && self.notes.get() <= MAX_NOTES / 2 {
                break;
            }
            if let Some(watch) = self.all.remove(&prefix) {
                self.lose(prefix, watch.id);
            }
        }
        self.waiters.all()
    }

    fn changed(
        &mut self,
        prefix: &[u8],
        (token, knowledge): (&[u8], Knowledge),
        now: Duration,
    ) -> Option<Changed> {
        let now = self.tick(now);
        let is_lost = knowledge == Knowledge::OfPlace
            && self
                .lost
                .get(prefix)
                .is_some_and(|lost| parse_token(token).is_some_and(|(id, _)| lost.contains(&id)));
        let watch = self.all.get_mut(prefix)?;
        watch.asked = now;
        let next = now.saturating_sub(GRACE).max(watch.since.saturating_sub(1));
        let exact = token_text(watch.id, now);
        let mut changed = Changed { token: token_text(watch.id, next), exact, ..Changed::default() };
        let accepted = watch.accepted(token).filter(|since| *since >= self.linked_since && !is_lost);
        let Some(paths) = accepted.and_then(|since| watch.notes.paths_since(since)) else {
            changed.everything = true;
            return Some(changed);
        };
        changed.paths = paths;
        if let Some(since) = accepted {
            // The other token of the answer that had this one is older by so much.
            watch.forget_if_many(since.saturating_sub(GRACE));
            match self.linked_since(prefix, since) {
                Some(linked) => changed.linked = linked,
                None => (changed.everything, changed.paths) = (true, Vec::new()),
            }
        }
        Some(changed)
    }

    /// The files with several names, some of which may lie below `prefix`, that were changed since;
    /// `None`: there were too many.
    fn linked_since(&self, prefix: &[u8], since: u64) -> Option<BTreeMap<Vec<u8>, BTreeSet<u64>>> {
        // Those in areas of directories above, and in areas below.
        let above = directories_above(prefix)
            .filter(|above| above.len() < prefix.len())
            .filter_map(|above| self.linked.get_key_value(&layout::area_prefix(above)));
        let below = KeyRange::prefix(prefix);
        let below = self.linked.range::<[u8], _>(bounds(&below));
        let mut found: BTreeMap<Vec<u8>, BTreeSet<u64>> = BTreeMap::new();
        for (area, notes) in above.chain(below) {
            let Some((_, served)) = area.split_last() else { continue };
            let served = if served.len() > prefix.len() { served } else { prefix };
            for rest in notes.entries_since(since)? {
                let key = [area, rest].concat();
                if let Some(id) = layout::parse(&key).and_then(|parsed| layout::area_id(&parsed.name)) {
                    found.entry(served.to_vec()).or_default().insert(id);
                }
            }
        }
        Some(found)
    }
}

impl Watch {
    /// Notes an entry, or a directory with everything below, by the rest of its key.
    fn add(&mut self, rest: &[u8], now: u64, is_tree: bool) {
        if rest.is_empty() {
            self.forget_before(now);
        } else {
            self.notes.add(rest, now, is_tree);
        }
    }

    /// What changed before is not known any more.
    fn forget_before(&mut self, now: u64) {
        self.since = now;
        self.notes.clear();
    }

    /// If there are many notes, drops those that a caller with this token does not need.
    fn forget_if_many(&mut self, since: u64) {
        if self.notes.forget_if_many(since) {
            self.since = self.since.max(since);
        }
    }

    /// The watch of a clone.
    fn fork(&mut self, id: u64, now: u64) -> Self {
        let skipped = (self.ancestors.len() + 1).saturating_sub(MAX_ANCESTORS);
        let mut ancestors: Vec<(u64, u64)> = self.ancestors.iter().skip(skipped).copied().collect();
        ancestors.push((self.id, now));
        Self { id, ancestors, since: self.since, notes: self.notes.fork(), asked: now }
    }
}

/// The link area whose files all begin with this prefix.
fn whole_area(files: &[u8]) -> Option<&[u8]> {
    files.strip_suffix(&[layout::ENTRY]).filter(|area| is_in_area(area) && directories(area) == *area)
}

/// Removes the keys of a range; gives them.
fn drop_keys<V>(all: &mut BTreeMap<Vec<u8>, V>, range: &KeyRange) -> Vec<(Vec<u8>, V)> {
    if range.is_empty() {
        return Vec::new();
    }
    let keys: Vec<Vec<u8>> = all.range::<[u8], _>(bounds(range)).map(|(key, _)| key.clone()).collect();
    keys.into_iter().filter_map(|key| all.remove_entry(&key)).collect()
}

#[cfg(test)]
mod tests;
