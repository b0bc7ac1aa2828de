//! What a repair knows of the volume.

use crate::check::repair::data::DataRepair;
use crate::check::repair::writer::RepairWriter;
use crate::model::error::Result;
use crate::model::layout;
use crate::model::record::{AreaMark, Inode, Link, VolumeState};
use crate::model::types::{FileFlags, FileKind};
use espalier_engine::{Cursor, Key, KeyRange, Snapshot};
use std::collections::{BTreeMap, BTreeSet};

/// A directory, by its content prefix.
#[derive(Default)]
pub(crate) struct FoundDirectory {
    /// What its inode says: entries and subdirectories; `None` without an inode.
    pub(crate) says: Option<(u64, u64)>,
    pub(crate) entries: u64,
    pub(crate) directories: u64,
    /// The sum of the deltas from the root to it.
    pub(crate) sum: u64,
}

/// A file in a link area: the directory that has the area, and the number in it.
pub(crate) type AreaFile = (Key, u64);

/// Links and the files that they lead to.
#[derive(Default)]
pub(crate) struct FoundLinks {
    /// Files in link areas.
    pub(crate) linked: BTreeMap<AreaFile, Inode>,
    /// The entries that lead to them.
    pub(crate) names: BTreeMap<AreaFile, Vec<(Key, Link)>>,
    /// Directories that have a link area, and the mark in the links index if there is one that can
    /// be understood.
    pub(crate) marks: BTreeMap<Key, Option<AreaMark>>,
}

impl FoundLinks {
    /// The directory whose link area serves the directory with this content prefix.
    pub(crate) fn area_of(&self, prefix: &[u8]) -> Key {
        let ends = prefix.iter().enumerate().rev().filter(|(_, b)| **b == layout::CONTENT);
        let mut above = ends.map(|(at, _)| &prefix[..=at]);
        above.find(|prefix| self.marks.contains_key(*prefix)).map(Key::from).unwrap_or_default()
    }
}

pub(crate) struct Repair<'a> {
    pub(crate) snapshot: Snapshot,
    pub(crate) writer: RepairWriter<'a>,
    pub(crate) data: DataRepair,
    pub(crate) directories: BTreeMap<Key, FoundDirectory>,
    pub(crate) links: FoundLinks,
    /// Directories below which an entry contradicts an ownership mark.
    pub(crate) unmarked: BTreeSet<Key>,
    /// Keys of records of reserved blocks.
    pub(crate) reserved: Vec<Key>,
    pub(crate) state: Option<VolumeState>,
    /// All flags that objects have.
    pub(crate) flags_seen: FileFlags,
    pub(crate) next_number: u64,
    /// The highest inode number so far that is not of a clone.
    pub(crate) highest: u64,
    pub(crate) now: i64,
}

impl Repair<'_> {
    pub(crate) fn cursor(&self, index: u8, range: KeyRange) -> Result<Cursor> {
        Ok(self.snapshot.cursor(self.writer.index(index), range)?)
    }

    /// The sum of the deltas above the entries of the directory with this content prefix.
    pub(crate) fn sum_of(&self, prefix: &[u8]) -> u64 {
        self.directories.get(prefix).map_or(0, |directory| directory.sum)
    }

    /// A new inode for an entry of the directory with this content prefix.
    pub(crate) fn new_inode(&mut self, prefix: &[u8], kind: FileKind, mode: u32) -> Inode {
        let number = self.next_number.wrapping_sub(self.sum_of(prefix));
        self.next_number += 1;
        Inode::new(kind, mode, 0, 0, number, self.now)
    }

    /// The directory with this content prefix, and those above, lose the ownership mark.
    pub(crate) fn clear_marks(&mut self, prefix: &[u8]) {
        let ends = prefix.iter().enumerate().filter(|(_, b)| **b == layout::CONTENT);
        self.unmarked.extend(ends.map(|(at, _)| Key::from(&prefix[..=at])));
        self.unmarked.insert(Key::default());
    }
}
