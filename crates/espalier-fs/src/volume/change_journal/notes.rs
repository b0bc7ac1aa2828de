//! The notes of one watched directory: entries, and directories with everything below, by the rest
//! of their keys behind the directory's content prefix, each with the sequence number of the last
//! change.
//!
//! Notes are bounded: when there are too many, those below one directory at the top become one note
//! that stands for all of it, and what changes there later only renews that.

use crate::model::layout::{self, CONTENT};
use crate::volume::directory_keys::directories_above;
use std::collections::BTreeMap;

/// Notes of one watch.
const MAX_NOTES: usize = 1 << 14;

#[derive(Debug, Clone, Default)]
pub(super) struct Notes {
    entries: BTreeMap<Box<[u8]>, u64>,
    trees: BTreeMap<Box<[u8]>, Tree>,
    /// Trees that stand for many notes.
    gathered: usize,
}

#[derive(Debug, Clone, Copy)]
struct Tree {
    changed: u64,
    /// It stands for the notes below it.
    is_gathered: bool,
}

impl Notes {
    pub(super) fn len(&self) -> usize {
        self.entries.len() + self.trees.len()
    }

    pub(super) fn add_entry(&mut self, rest: &[u8], now: u64) {
        if !self.renew_gathered(rest, now) {
            self.entries.insert(rest.into(), now);
            self.bound();
        }
    }

    pub(super) fn add_tree(&mut self, rest: &[u8], now: u64) {
        if !self.renew_gathered(rest, now) {
            let is_gathered = self.trees.get(rest).is_some_and(|tree| tree.is_gathered);
            self.trees.insert(rest.into(), Tree { changed: now, is_gathered });
            self.bound();
        }
    }

    /// Renews the note that stands for what is noted; true if there is one.
    fn renew_gathered(&mut self, rest: &[u8], now: u64) -> bool {
        if self.gathered == 0 {
            return false;
        }
        for above in directories_above(rest).skip(1) {
            if let Some(tree) = self.trees.get_mut(above).filter(|tree| tree.is_gathered) {
                tree.changed = tree.changed.max(now);
                return true;
            }
        }
        false
    }

    /// Gathers notes if there are too many.
    fn bound(&mut self) {
        while self.len() > MAX_NOTES {
            let Some(largest) = self.largest_directory() else {
                // They all lie at the top itself: it cannot be said what is not changed.
                let changed = self.newest();
                *self = Self { gathered: 1, ..Self::default() };
                self.trees.insert([].into(), Tree { changed, is_gathered: true });
                return;
            };
            self.gather(&largest);
        }
    }

    /// The directory at the top with the most notes below it; `None` if none has a share that is
    /// worth it.
    fn largest_directory(&self) -> Option<Vec<u8>> {
        let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
        for rest in self.entries.keys().chain(self.trees.keys()) {
            if let Some(top) = directories_above(rest).nth(1) {
                *counts.entry(top).or_default() += 1;
            }
        }
        let (top, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        (count > 1).then(|| top.to_vec())
    }

    fn gather(&mut self, top: &[u8]) {
        let mut changed = 0;
        let mut keep = |rest: &[u8], of: u64| {
            let is_below = rest.starts_with(top);
            if is_below {
                changed = changed.max(of);
            }
            !is_below
        };
        self.entries.retain(|rest, of| keep(rest, *of));
        self.trees.retain(|rest, tree| keep(rest, tree.changed));
        self.trees.insert(top.into(), Tree { changed, is_gathered: true });
        self.gathered = self.trees.values().filter(|tree| tree.is_gathered).count();
    }

    /// Takes over notes that are not older.
    pub(super) fn absorb(&mut self, newer: &Self) {
        for (rest, tree) in &newer.trees {
            self.add_tree(rest, tree.changed);
            if let Some(known) =
                self.trees.get_mut(rest).filter(|known| !known.is_gathered && tree.is_gathered)
            {
                known.is_gathered = true;
                self.gathered += 1;
            }
        }
        newer.entries.iter().for_each(|(rest, changed)| self.add_entry(rest, *changed));
    }

    /// The instant of the last change; 0 if there is none.
    pub(super) fn newest(&self) -> u64 {
        let trees = self.trees.values().map(|tree| &tree.changed);
        self.entries.values().chain(trees).copied().max().unwrap_or(0)
    }

    /// Drops what was changed up to an instant.
    pub(super) fn forget(&mut self, until: u64) {
        self.entries.retain(|_, changed| *changed > until);
        self.trees.retain(|_, tree| tree.changed > until);
        self.gathered = self.trees.values().filter(|tree| tree.is_gathered).count();
    }

    /// The entries that were changed since an instant; `None`: everything, or whole directories.
    pub(super) fn entries_since(&self, since: u64) -> Option<Vec<&[u8]>> {
        if self.trees.values().any(|tree| tree.changed > since) {
            return None;
        }
        let changed = self.entries.iter().filter(|(_, changed)| **changed > since);
        Some(changed.map(|(rest, _)| &**rest).collect())
    }

    /// The paths that were changed since an instant, those of directories with a slash behind them;
    /// `None`: everything.
    pub(super) fn paths_since(&self, since: u64) -> Option<Vec<Vec<u8>>> {
        let mut paths = Vec::new();
        for (rest, _) in self.entries.iter().filter(|(_, changed)| **changed > since) {
            paths.push(entry_path(rest)?);
        }
        for (rest, _) in self.trees.iter().filter(|(_, tree)| tree.changed > since) {
            paths.push(tree_path(rest)?);
        }
        Some(paths)
    }
}

/// The path of an entry.
fn entry_path(rest: &[u8]) -> Option<Vec<u8>> {
    let parsed = layout::parse(rest)?;
    let mut path = parsed.directory.join(&b'/');
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(&parsed.name);
    (!parsed.name.is_empty()).then_some(path)
}

/// The path of a directory, with a slash behind it.
fn tree_path(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut path = Vec::new();
    for name in prefix.split_inclusive(|byte| *byte == CONTENT) {
        path.extend(layout::unescape(name.strip_suffix(&[CONTENT])?)?);
        path.push(b'/');
    }
    (!path.is_empty()).then_some(path)
}
