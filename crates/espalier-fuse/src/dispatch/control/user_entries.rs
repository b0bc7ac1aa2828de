//! Entries of users, of which each user has a bounded number.
//!
//! Invariant: an entry of one user is dropped for another user's only if there are too many of all
//! users together, and then it is one of the user that has the most.

use std::collections::{HashMap, VecDeque};

/// How many entries are kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Of one user; beyond that the user's oldest is dropped.
    pub(super) per_user: usize,
    /// Of all users; beyond that the oldest of the user that has the most is dropped.
    pub(super) total: usize,
}

/// Entries with the numbers of their users, the oldest first.
pub(super) struct UserEntries<T> {
    limits: Limits,
    entries: VecDeque<(u32, T)>,
}

impl<T> UserEntries<T> {
    /// No entries.
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, entries: VecDeque::new() }
    }

    /// Adds an entry of user `uid`.
    pub(super) fn push(&mut self, uid: u32, entry: T) {
        if self.entries.len() >= self.limits.per_user && self.count(uid) >= self.limits.per_user {
            self.drop_oldest_of(uid);
        }
        if self.entries.len() >= self.limits.total
            && let Some(largest) = self.largest()
        {
            self.drop_oldest_of(largest);
        }
        self.entries.push_back((uid, entry));
    }

    /// The entry of user `uid` for which `is_it` is true.
    pub(super) fn find(&self, uid: u32, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        self.entries.iter().find(|(of, entry)| *of == uid && is_it(entry)).map(|(_, entry)| entry)
    }

    /// The same, which is there no more.
    pub(super) fn remove(&mut self, uid: u32, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let at = self.entries.iter().position(|(of, entry)| *of == uid && is_it(entry))?;
        self.entries.remove(at).map(|(_, entry)| entry)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All entries with their users, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().map(|(uid, entry)| (*uid, entry))
    }

    fn count(&self, uid: u32) -> usize {
        self.entries.iter().filter(|(of, _)| *of == uid).count()
    }

    /// The user that has the most entries; of several the one with the highest number.
    fn largest(&self) -> Option<u32> {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        self.entries.iter().for_each(|(uid, _)| *counts.entry(*uid).or_default() += 1);
        counts.into_iter().max_by_key(|(uid, count)| (*count, *uid)).map(|(uid, _)| uid)
    }

    fn drop_oldest_of(&mut self, uid: u32) {
        self.remove(uid, |_| true);
    }
}

#[cfg(test)]
mod tests;
