//! The notes of one watch, or of one link area, in layers that forks share.
//!
//! A fork freezes what was noted so far, and both sides go on with a layer of their own: so a
//! thousand clones of a directory with ten thousand notes hold these notes once. A fork merges
//! neighbours until the older one is more than twice as large as the newer one: so there are few,
//! and a note is copied once for each time that the notes double. Forgetting may shrink an older
//! layer between two forks.

use super::notes::Notes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// From so many notes on, those that the last caller did not need go.
const MANY_NOTES: usize = 1 << 10;

/// How many notes there are, those that forks share counted once.
#[derive(Debug, Clone, Default)]
pub(super) struct NoteCount(Arc<AtomicUsize>);

impl NoteCount {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// So many notes are there in place of others. Called under the lock of the journal.
    fn replace(&self, before: usize, now: usize) {
        self.0.store(self.get() + now - before, Ordering::Relaxed);
    }
}

/// Notes that are counted as long as they are there.
#[derive(Debug)]
struct Layer {
    notes: Notes,
    counted: usize,
    /// Of a layer that does not grow any more: the newest change.
    newest: u64,
    count: NoteCount,
}

impl Layer {
    fn new(notes: Notes, count: &NoteCount) -> Self {
        let mut layer = Self { notes, counted: 0, newest: 0, count: count.clone() };
        layer.change(|_| ());
        layer
    }

    fn change(&mut self, work: impl FnOnce(&mut Notes)) {
        work(&mut self.notes);
        let now = self.notes.len();
        self.count.replace(std::mem::replace(&mut self.counted, now), now);
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        self.count.replace(self.counted, 0);
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Layers {
    /// The oldest first.
    frozen: Vec<Arc<Layer>>,
    own: Layer,
}

impl Layers {
    pub(super) fn new(count: &NoteCount) -> Self {
        Self { frozen: Vec::new(), own: Layer::new(Notes::default(), count) }
    }

    pub(super) fn add(&mut self, rest: &[u8], now: u64, is_tree: bool) {
        self.own.change(|notes| match is_tree {
            true => notes.add_tree(rest, now),
            false => notes.add_entry(rest, now),
        });
    }

    /// The same notes, of which both sides know more later.
    pub(super) fn fork(&mut self) -> Self {
        let count = self.own.count.clone();
        if self.own.notes.len() > 0 {
            let mut full = std::mem::replace(&mut self.own, Layer::new(Notes::default(), &count));
            full.newest = full.notes.newest();
            self.frozen.push(Arc::new(full));
            self.merge();
        }
        Self { frozen: self.frozen.clone(), own: Layer::new(Notes::default(), &count) }
    }

    /// Merges the last layers while the one before is not much larger.
    fn merge(&mut self) {
        while let [.., older, newer] = &self.frozen[..]
            && newer.counted * 2 >= older.counted
        {
            let mut merged = Layer::new(older.notes.clone(), &self.own.count);
            merged.change(|notes| notes.absorb(&newer.notes));
            merged.newest = older.newest.max(newer.newest);
            self.frozen.truncate(self.frozen.len() - 2);
            self.frozen.push(Arc::new(merged));
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.frozen.clear();
        self.own.change(|notes| *notes = Notes::default());
    }

    /// If there are many notes, drops those of changes up to an instant that no fork shares; true
    /// if so.
    pub(super) fn forget_if_many(&mut self, until: u64) -> bool {
        let all: usize = self.frozen.iter().map(|layer| layer.counted).sum();
        if all + self.own.counted <= MANY_NOTES {
            return false;
        }
        self.frozen.retain(|layer| layer.newest > until);
        let forks = self.frozen.iter_mut().filter_map(Arc::get_mut);
        forks.chain([&mut self.own]).for_each(|layer| layer.change(|notes| notes.forget(until)));
        true
    }

    fn since(&self, since: u64) -> impl Iterator<Item = &Notes> {
        let frozen = self.frozen.iter().filter(move |layer| layer.newest > since);
        frozen.map(|layer| &layer.notes).chain([&self.own.notes])
    }

    /// The paths that were changed since an instant; see [`Notes::paths_since`].
    pub(super) fn paths_since(&self, since: u64) -> Option<Vec<Vec<u8>>> {
        let mut paths = Vec::new();
        for notes in self.since(since) {
            paths.append(&mut notes.paths_since(since)?);
        }
        if !self.frozen.is_empty() {
            paths.sort_unstable();
            paths.dedup();
        }
        Some(paths)
    }

    /// What was changed since an instant by the rest of its key; `None`: anything.
    pub(super) fn entries_since(&self, since: u64) -> Option<Vec<&[u8]>> {
        let mut entries = Vec::new();
        for notes in self.since(since) {
            entries.append(&mut notes.entries_since(since)?);
        }
        Some(entries)
    }
}
