//! Verification of a volume against all rules of `model::layout` and `model::record`; problems are
//! named by paths.
//!
//! One walk over the metadata in key order, with the data index in step beside it, over one
//! snapshot: nothing is changed, and a volume in use can be checked. What it needs in memory grows
//! with the number of directories waiting to be walked, of links, and eight bytes per file.
//!
//! Verified: every key and record can be understood; every entry lies in a directory that exists;
//! directories count their entries and subdirectories rightly; a file's blocks lie below its size,
//! are no longer than allowed and, unless it is sparse, all there; large extended attributes and
//! the entries that list them belong together; links, the files they lead to, their counts and the
//! links index agree, in every link area; areas and their marks belong together; no two files have
//! one number; directories that bear the ownership mark own what is below; no key is longer than
//! the volume says; no object has a flag that the volume does not know of; limits of trees can be
//! understood, and belong to directories with a link area of their own; what lies in the data index
//! belongs to a file or an orphan; reserved blocks have no data.

mod data;
mod links;

use crate::check::data_walk::{DataWalk, OrphanRecords};
use crate::check::paths::{directory_path, path_of};
use crate::check::report::{CheckReport, Findings};
use crate::check::reserved::ReservedCheck;
use crate::check::verify::data::DataCheck;
use crate::check::verify::links::LinkCheck;
use crate::data::reservation::kept_bytes;
use crate::model::error::Result;
use crate::model::layout::{self, DATA, LINKS, METADATA, Parsed};
use crate::model::privileges::agrees_with_mark;
use crate::model::record::{Inode, OrphanRecord, Record, VolumeState};
use crate::model::reserved_blocks::ReservedBlocks;
use crate::model::tree_limits::LimitsField;
use crate::model::types::{FileFlags, FileKind};
use crate::volume::context::{decode_parameters, find_volume};
use espalier_engine::{Cursor, IndexId, Key, KeyRange, Snapshot, Store};
use std::collections::HashMap;

/// Checks volume `name` of a store. `progress` is called now and then with the number of keys seen.
///
/// # Errors
/// [`FsErrorKind::NotFound`](crate::FsErrorKind::NotFound) if there is no such volume,
/// [`FsErrorKind::Io`](crate::FsErrorKind::Io) if its parameters are damaged,
/// [`FsErrorKind::Gone`](crate::FsErrorKind::Gone) if part of the state that is checked was deleted
/// meanwhile. Damage further in is reported, not returned.
pub fn check(store: &Store, name: &str, progress: &mut dyn FnMut(u64)) -> Result<CheckReport> {
    let volume = find_volume(store, name)?;
    let block_size = u64::from(decode_parameters(&volume.parameters)?);
    let snapshot = store.snapshot()?;
    let data = snapshot.cursor(IndexId { volume: volume.id, index: DATA }, KeyRange::all())?;
    let verification = Verification {
        store,
        volume: volume.id,
        snapshot,
        found: Findings { report: CheckReport::default(), keys: 0, progress },
        data: DataCheck { walk: DataWalk::new(data), orphans: OrphanRecords::default(), block_size },
        links: LinkCheck::default(),
        expected: HashMap::new(),
        numbers: Vec::new(),
        longest_key: u64::MAX,
        flags_used: FileFlags::default(),
    };
    let report = verification.run();
    store.still_there()?;
    Ok(report)
}

/// What is wrong with the limits of an object, if anything is.
pub(crate) fn limits_fault(inode: &Inode, is_root: bool) -> Option<&'static str> {
    match inode.limits {
        LimitsField::Absent => None,
        LimitsField::Malformed => Some("its limits cannot be understood"),
        LimitsField::Limits(_) if inode.has_link_area || is_root => None,
        LimitsField::Limits(_) => Some("it has limits and no link area of its own"),
    }
}

/// What a directory says about its content.
struct Content {
    path: String,
    entries: u64,
    directories: u64,
    setting: Setting,
}

/// What the directories above mean for an entry.
#[derive(Debug, Clone, Default)]
struct Setting {
    /// The sum of their deltas.
    sum: u64,
    /// The content prefix of the one whose link area serves it.
    area: Key,
    /// The owner of everything below, where a directory bears the ownership mark.
    owned_alone: Option<u32>,
}

/// The entries of the directory that is being walked.
struct Walked {
    prefix: Key,
    entries: u64,
    directories: u64,
    path: String,
    setting: Setting,
}

struct Verification<'a> {
    store: &'a Store,
    volume: u32,
    snapshot: Snapshot,
    found: Findings<'a>,
    data: DataCheck,
    links: LinkCheck,
    /// Directories that have entries and were not walked yet, by content prefix.
    expected: HashMap<Key, Content>,
    /// The numbers of all inodes.
    numbers: Vec<u64>,
    longest_key: u64,
    flags_used: FileFlags,
}

impl Verification<'_> {
    fn run(mut self) -> CheckReport {
        self.read_state();
        self.read_orphans();
        self.links.expect_root();
        if let Some(mut cursor) = self.cursor(LINKS, KeyRange::all()) {
            self.links.read_index(&mut cursor, &mut self.found);
        }
        self.data.advance(&mut self.found);
        self.walk_metadata();
        self.data.skip_to(None, &mut self.found);
        self.links.compare(&mut self.found);
        compare_numbers(self.numbers, &mut self.found);
        (self.found.progress)(self.found.keys);
        self.found.report
    }

    fn index(&self, index: u8) -> IndexId {
        IndexId { volume: self.volume, index }
    }

    /// A cursor over an index; a problem if there is none.
    fn cursor(&mut self, index: u8, range: KeyRange) -> Option<Cursor> {
        match self.snapshot.cursor(self.index(index), range) {
            Ok(cursor) => Some(cursor),
            Err(error) => {
                self.found.problem("/", format!("index {index} cannot be read: {error}"));
                None
            }
        }
    }

    /// What the volume says of itself; it lies behind some of the entries that it is about.
    fn read_state(&mut self) {
        let value = self.snapshot.get(self.index(METADATA), layout::STATE_KEY);
        match value
            .map_err(Into::into)
            .and_then(|value| value.as_deref().map(VolumeState::decode).transpose())
        {
            Ok(state) => {
                self.longest_key = state.and_then(|state| state.longest_key).unwrap_or(u64::MAX);
                self.flags_used = state.map_or(FileFlags::ALL, |state| state.flags_used);
            }
            Err(error) => self.found.problem("/", error.to_string()),
        }
    }

    fn read_orphans(&mut self) {
        let Some(mut cursor) = self.cursor(METADATA, layout::entries_range(layout::ORPHAN_AREA)) else {
            return;
        };
        let mut last = Key::default();
        while let Some((key, value)) = self.found.next(&mut cursor, "orphans", &last) {
            self.found.report.orphans += 1;
            match OrphanRecord::decode(&value) {
                Ok(OrphanRecord::Tree) => self.data.orphans.has_trees = true,
                Ok(OrphanRecord::File(base)) => {
                    if !self.data.orphans.bases.insert(base.to_vec()) {
                        self.found.problem(path_of(base), "two unlinked files have their data in one place");
                    }
                }
                Err(error) => self.found.problem(path_of(&key), error.to_string()),
            }
            last = key;
        }
    }

    fn walk_metadata(&mut self) {
        let Some(mut cursor) = self.cursor(METADATA, KeyRange::all()) else { return };
        let mut walked: Option<Walked> = None;
        let mut has_root = false;
        let mut last = Key::default();
        while let Some((key, value)) = self.found.next(&mut cursor, "entries", &last) {
            match layout::parse(&key) {
                Some(parsed) if parsed.rest.is_empty() => {
                    has_root |= *key == *layout::ROOT_KEY;
                    // The root's own key cannot get longer, and is not counted.
                    let counts = *key != *layout::ROOT_KEY && !parsed.directory.iter().any(Vec::is_empty);
                    if key.len() as u64 > self.longest_key && counts {
                        let message = format!(
                            "its key has {} bytes, and the volume says that none is so long",
                            key.len()
                        );
                        self.found.problem(parsed.path(), message);
                    }
                    self.metadata(&parsed, &value, &mut walked);
                }
                _ => self.found.problem(path_of(&key), "the key of an entry cannot be understood"),
            }
            last = key;
        }
        if let Some(walked) = walked {
            self.walked(walked);
        }
        if !has_root {
            self.found.problem("/", "the root directory is missing");
        }
        let unseen: Vec<Content> = self.expected.drain().map(|(_, content)| content).collect();
        for content in unseen {
            let message = format!("the directory should have {} entries, and has none", content.entries);
            self.found.problem(content.path, message);
        }
    }

    /// One key of the metadata index.
    fn metadata(&mut self, parsed: &Parsed<'_>, value: &[u8], walked: &mut Option<Walked>) {
        if parsed.base == layout::STATE_KEY {
            return;
        }
        if parsed.base.starts_with(layout::RESERVATION_AREA) {
            return self.reserved(parsed, value);
        }
        if parsed.prefix.starts_with(layout::ORPHAN_AREA) {
            return;
        }
        let record = match Record::decode(value) {
            Ok(record) => record,
            Err(error) => return self.found.problem(parsed.path(), error.to_string()),
        };
        if let Record::Inode(inode) = &record
            && inode.flags.0 & !self.flags_used.0 != 0
        {
            self.found.problem(parsed.path(), "it has a flag that the volume says no object has");
        }
        if let Record::Inode(inode) = &record
            && let Some(fault) = limits_fault(inode, parsed.base == layout::ROOT_KEY)
        {
            self.found.problem(parsed.path(), fault);
        }
        if parsed.directory.last().is_some_and(Vec::is_empty) {
            return self.linked_file(parsed, record);
        }
        if parsed.name.is_empty() && !parsed.prefix.is_empty() {
            return self.found.problem(parsed.path(), "an entry without a name");
        }
        if !parsed.name.is_empty() {
            self.count_entry(parsed, record.kind(), walked);
        }
        let setting = walked.as_ref().filter(|_| !parsed.name.is_empty()).map(|w| w.setting.clone());
        let setting = setting.unwrap_or_default();
        let keeps = match (&record, setting.owned_alone) {
            (Record::Inode(inode), Some(uid)) => agrees_with_mark(inode, uid),
            // The file that it leads to decides.
            _ => true,
        };
        if !keeps {
            self.found.problem(parsed.path(), "a directory above promises that no such entry is below");
        }
        match record {
            Record::Inode(inode) => self.inode(parsed, &inode, &setting),
            Record::Link(link) => {
                let listed = self.snapshot.get(self.index(LINKS), parsed.base).ok().flatten();
                let place = (&setting.area, setting.owned_alone);
                self.links.see_name(parsed, link, place, listed.as_deref(), &mut self.found);
            }
        }
    }

    /// The record of reserved blocks of a file.
    fn reserved(&mut self, parsed: &Parsed<'_>, value: &[u8]) {
        let base = &parsed.base[layout::RESERVATION_AREA.len()..];
        let (snapshot, block_size) = (&self.snapshot, self.data.block_size);
        let check = ReservedCheck { snapshot, volume: self.volume, block_size };
        let message = match check.fault(base, value, self.data.orphans.have(base)) {
            Ok(None) => {
                let kept = ReservedBlocks::decode(value)
                    .map(|reserved| kept_bytes(self.store, block_size, &reserved));
                self.found.report.reserved += kept.unwrap_or(0);
                return;
            }
            Ok(Some(fault)) => fault,
            Err(error) => error.to_string(),
        };
        self.found.problem(path_of(base), message);
    }

    fn count_entry(&mut self, parsed: &Parsed<'_>, kind: FileKind, walked: &mut Option<Walked>) {
        if walked.as_ref().is_none_or(|w| *w.prefix != *parsed.prefix) {
            let path = directory_path(parsed);
            let setting = self.expected.get(parsed.prefix).map(|c| c.setting.clone()).unwrap_or_default();
            let next = Walked { prefix: parsed.prefix.into(), entries: 0, directories: 0, path, setting };
            if let Some(done) = walked.replace(next) {
                self.walked(done);
            }
        }
        if let Some(walked) = walked {
            walked.entries += 1;
            walked.directories += u64::from(kind == FileKind::Directory);
        }
    }

    /// All entries of a directory were seen.
    fn walked(&mut self, walked: Walked) {
        let Walked { prefix, entries, directories, path, setting: _ } = walked;
        let Some(content) = self.expected.remove(&prefix) else {
            return self.found.problem(
                path,
                format!("{entries} entries lie in this directory, which does not exist or says it is empty"),
            );
        };
        if content.entries != entries {
            self.found
                .problem(&path, format!("the directory has {entries} entries, and says {}", content.entries));
        }
        if content.directories != directories {
            let message =
                format!("the directory has {directories} subdirectories, and says {}", content.directories);
            self.found.problem(&path, message);
        }
    }

    fn inode(&mut self, parsed: &Parsed<'_>, inode: &Inode, setting: &Setting) {
        let sum = setting.sum.wrapping_add(inode.delta);
        self.numbers.push(inode.number.wrapping_add(sum));
        if inode.is_dir() {
            self.found.report.directories += 1;
            let prefix: Key = if parsed.base == layout::ROOT_KEY {
                Key::default()
            } else {
                layout::content_prefix(parsed.prefix, &parsed.name).into()
            };
            if inode.has_link_area || prefix.is_empty() {
                let sum = sum.wrapping_add(inode.link_area_delta);
                let promised = inode.owned_alone.then_some(inode.uid);
                self.links.see_area(parsed, &prefix, (sum, promised), &mut self.found);
            }
            if inode.size > 0 {
                let (entries, directories) = (inode.size, u64::from(inode.links));
                let area = if inode.has_link_area { prefix.clone() } else { setting.area.clone() };
                let setting = Setting { sum, area, owned_alone: inode.owned_alone.then_some(inode.uid) };
                let content = Content { path: parsed.path(), entries, directories, setting };
                self.expected.insert(prefix, content);
            } else if inode.links > 0 {
                self.found.problem(parsed.path(), "an empty directory with subdirectories");
            }
        } else {
            self.found.report.files += 1;
            if parsed.base == layout::ROOT_KEY {
                self.found.problem("/", "the root is no directory");
            }
            if inode.links != 1 {
                self.found.problem(
                    parsed.path(),
                    format!("a file outside the link area says that it has {} names", inode.links),
                );
            }
        }
        self.data.file_data(parsed, inode, &mut self.found);
    }

    fn linked_file(&mut self, parsed: &Parsed<'_>, record: Record) {
        let holder: Key = parsed.prefix[..parsed.prefix.len() - 1].into();
        match (layout::area_id(&parsed.name), record) {
            (Some(id), Record::Inode(inode)) if !inode.is_dir() => {
                match self.links.link_area_sum(&holder) {
                    Some(sum) => self.numbers.push(inode.number.wrapping_add(sum)),
                    None => self
                        .found
                        .problem(parsed.path(), "the directory does not say that it has a link area"),
                }
                self.data.file_data(parsed, &inode, &mut self.found);
                self.links.see_file(holder, id, inode);
            }
            _ => self.found.problem(parsed.path(), "something in the link area that does not belong there"),
        }
    }
}

fn compare_numbers(mut numbers: Vec<u64>, found: &mut Findings<'_>) {
    numbers.sort_unstable();
    for pair in numbers.windows(2).filter(|pair| pair[0] == pair[1]) {
        found.problem("/", format!("two files have number {}", pair[0]));
    }
}

#[cfg(test)]
mod tests;
