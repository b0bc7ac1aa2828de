//! Waiters: what is to be woken when something changes below a watched directory.
//!
//! The journal holds them weakly, each for one directory and until it was woken once: a reader that
//! went away leaves nothing behind but a place, which the next one for that directory takes.

use super::events::{Event, content_of};
use crate::model::layout;
use crate::volume::directory_keys::{bounds, common_directory, directories_above, is_in_area};
use espalier_engine::KeyRange;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Is told that something may have changed.
pub trait ChangeWaiter: Send + Sync {
    /// Something may have changed in a directory. Called while a change is being made, so it
    /// returns at once and calls nothing of the file system.
    fn wake(&self);
}

/// Waiters by the content prefix of their directory.
#[derive(Default)]
pub(super) struct Waiters(BTreeMap<Vec<u8>, Vec<Weak<dyn ChangeWaiter>>>);

/// Waiters that are to be woken, without the lock of the journal.
#[derive(Default)]
#[must_use]
pub(super) struct Woken(Vec<Weak<dyn ChangeWaiter>>);

impl Woken {
    pub(super) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(super) fn wake(self) {
        self.0.iter().filter_map(Weak::upgrade).for_each(|waiter| waiter.wake());
    }
}

impl Waiters {
    /// Has `waiter` woken by the next change below a directory.
    pub(super) fn add(&mut self, prefix: &[u8], waiter: &Arc<dyn ChangeWaiter>) {
        let there = self.0.entry(prefix.to_vec()).or_default();
        there.retain(|waiter| waiter.strong_count() > 0);
        there.push(Arc::downgrade(waiter));
    }

    /// Takes those that an event may concern.
    pub(super) fn concerned(&mut self, event: &Event) -> Woken {
        if self.0.is_empty() {
            return Woken::default();
        }
        match event {
            Event::Entry(key) if key.starts_with(layout::ORPHAN_AREA) => Woken::default(),
            // Which directories have a name of the file is not known here.
            Event::Entry(key) if is_in_area(key) => self.all(),
            Event::Entry(key) => {
                let mut woken = self.above(key);
                // An empty directory that moves or is removed has no keys but this one.
                woken.add(content_of(key).map(|content| self.at(&content)).unwrap_or_default());
                woken
            }
            Event::Tree(prefix) => self.around(&KeyRange::prefix(prefix), prefix),
            Event::Gone(range) => self.around(range, common_directory(range)),
            Event::Cloned(source, destination) => {
                let mut woken = self.around(&KeyRange::prefix(source), source);
                woken.add(self.around(&KeyRange::prefix(destination), destination));
                woken
            }
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Takes all.
    pub(super) fn all(&mut self) -> Woken {
        Woken(std::mem::take(&mut self.0).into_values().flatten().collect())
    }

    /// Takes those of one directory.
    fn at(&mut self, prefix: &[u8]) -> Woken {
        Woken(self.0.remove(prefix).unwrap_or_default())
    }

    /// Takes those of the directories above a key.
    fn above(&mut self, key: &[u8]) -> Woken {
        Woken(directories_above(key).filter_map(|above| self.0.remove(above)).flatten().collect())
    }

    /// Takes those of the directories in a range, and of those above.
    fn around(&mut self, range: &KeyRange, directory: &[u8]) -> Woken {
        let mut woken = self.above(directory);
        if !range.is_empty() {
            let inside: Vec<Vec<u8>> =
                self.0.range::<[u8], _>(bounds(range)).map(|(key, _)| key.clone()).collect();
            woken.0.extend(inside.iter().filter_map(|key| self.0.remove(key)).flatten());
        }
        woken
    }
}
