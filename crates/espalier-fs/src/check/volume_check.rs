//! Checks a volume against everything that `layout` and `record` promise, and names paths.
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
//! one number; directories that are marked uniform are; no key is longer than the volume says; what
//! lies in the data index belongs to a file or an orphan.

use crate::model::error::Result;
use crate::model::layout::{self, DATA, LINKS, METADATA, Parsed};
use crate::model::privileges::agrees_with_mark;
use crate::model::record::{
    Inode, LINK_COUNTS_RIGHT, LINK_COUNTS_STALE, Link, OrphanRecord, Record, VolumeState, XattrValue,
};
use crate::model::types::FileKind;
use crate::volume::context::decode_parameters;
use espalier_engine::{Cursor, Entry, IndexId, Key, KeyRange, Snapshot, Store};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckProblem {
    /// The path concerned.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Broken promises, at most [`MAX_PROBLEMS`] of them.
    pub problems: Vec<CheckProblem>,
    /// Problems beyond those listed.
    pub more_problems: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Everything else; a file with several names once.
    pub files: u64,
    /// Names of files that have, or had, several.
    pub links: u64,
    /// Blocks of data.
    pub blocks: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Unlinked files that are still held, or wait to be removed by the next mount.
    pub orphans: u64,
}

/// Problems listed in a report.
pub const MAX_PROBLEMS: usize = 1000;

/// Keys between calls of the progress function.
const PROGRESS_EVERY: u64 = 4096;

/// Checks volume `name` of a store. `progress` is called now and then with the number of keys seen.
///
/// # Errors
/// [`FsErrorKind::NotFound`](crate::FsErrorKind::NotFound) if there is no such volume,
/// [`FsErrorKind::Io`](crate::FsErrorKind::Io) if its parameters are damaged. Damage further in is
/// reported, not returned.
pub fn check(store: &Store, name: &str, progress: &mut dyn FnMut(u64)) -> Result<CheckReport> {
    let volume = crate::volume::context::find_volume(store, name)?;
    let block_size = u64::from(decode_parameters(&volume.parameters)?);
    let snapshot = store.snapshot()?;
    let mut check = Check {
        volume: volume.id,
        block_size,
        data: Beside::new(snapshot.cursor(IndexId { volume: volume.id, index: DATA }, KeyRange::all())?),
        snapshot,
        report: CheckReport::default(),
        orphans: BTreeSet::new(),
        expected: HashMap::new(),
        linked: BTreeMap::new(),
        names: BTreeMap::new(),
        marks: BTreeMap::new(),
        areas: HashMap::new(),
        listed: 0,
        numbers: Vec::new(),
        longest_key: u64::MAX,
        has_trees: false,
        keys: 0,
        progress,
    };
    check.run();
    Ok(check.report)
}

/// The data index, walked in step with the metadata.
struct Beside {
    cursor: Cursor,
    next: Option<Entry>,
}

impl Beside {
    fn new(cursor: Cursor) -> Self {
        Self { cursor, next: None }
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
    /// The owner that everything below has, where that was promised.
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

/// Names of one file in the link area.
struct LinkNames {
    path: String,
    link: Link,
    count: u64,
}

struct Check<'a> {
    volume: u32,
    block_size: u64,
    snapshot: Snapshot,
    data: Beside,
    report: CheckReport,
    orphans: BTreeSet<Vec<u8>>,
    /// Directories that have entries and were not walked yet, by content prefix.
    expected: HashMap<Key, Content>,
    /// Files in link areas, by the directory that has the area and the number in it.
    linked: BTreeMap<(Key, u64), Inode>,
    /// Entries that lead to them.
    names: BTreeMap<(Key, u64), LinkNames>,
    /// Directories that have an area as the links index says, and whether its counts are right.
    marks: BTreeMap<Key, bool>,
    /// Directories that say that they have an area, and the sum of deltas there.
    areas: HashMap<Key, u64>,
    /// Names that the links index lists.
    listed: u64,
    numbers: Vec<u64>,
    longest_key: u64,
    /// The orphan area holds removed trees.
    has_trees: bool,
    keys: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Check<'_> {
    fn run(&mut self) {
        self.read_state();
        self.read_orphans();
        self.read_links();
        self.advance_data();
        self.walk_metadata();
        self.skip_data(None);
        self.compare_links();
        self.compare_numbers();
        (self.progress)(self.keys);
    }

    fn problem(&mut self, path: impl Into<String>, message: impl Into<String>) {
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(CheckProblem { path: path.into(), message: message.into() });
        } else {
            self.report.more_problems += 1;
        }
    }

    fn index(&self, index: u8) -> IndexId {
        IndexId { volume: self.volume, index }
    }

    fn count_key(&mut self) {
        self.keys += 1;
        if self.keys.is_multiple_of(PROGRESS_EVERY) {
            (self.progress)(self.keys);
        }
    }

    /// A cursor over an index; a problem if there is none.
    fn cursor(&mut self, index: u8, range: KeyRange) -> Option<Cursor> {
        match self.snapshot.cursor(self.index(index), range) {
            Ok(cursor) => Some(cursor),
            Err(error) => {
                self.problem("/", format!("index {index} cannot be read: {error}"));
                None
            }
        }
    }

    /// The next key and value of a walk; a problem ends it.
    fn next(&mut self, cursor: &mut Cursor, what: &str, after: &[u8]) -> Option<(Key, bytes::Bytes)> {
        let entry = cursor.next().and_then(|entry| match entry {
            Some(entry) => cursor.read(&entry.value).map(|value| Some((entry.key, value))),
            None => Ok(None),
        });
        match entry {
            Ok(next) => {
                self.count_key();
                next
            }
            Err(error) => {
                self.problem(path_of(after), format!("{what} behind this cannot be read: {error}"));
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
            Ok(state) => self.longest_key = state.and_then(|state| state.longest_key).unwrap_or(u64::MAX),
            Err(error) => self.problem("/", error.to_string()),
        }
    }

    fn read_orphans(&mut self) {
        let Some(mut cursor) = self.cursor(METADATA, layout::entries_range(layout::ORPHAN_AREA)) else {
            return;
        };
        let mut last = Key::default();
        while let Some((key, value)) = self.next(&mut cursor, "orphans", &last) {
            self.report.orphans += 1;
            match OrphanRecord::decode(&value) {
                Ok(OrphanRecord::Tree) => self.has_trees = true,
                Ok(OrphanRecord::File(base)) => {
                    if !self.orphans.insert(base.to_vec()) {
                        self.problem(path_of(base), "two unlinked files have their data in one place");
                    }
                }
                Err(error) => self.problem(path_of(&key), error.to_string()),
            }
            last = key;
        }
    }

    /// What the links index says: names, which are looked up later, and marks.
    fn read_links(&mut self) {
        self.marks.insert(Key::default(), true);
        let Some(mut cursor) = self.cursor(LINKS, KeyRange::all()) else { return };
        let mut last = Key::default();
        while let Some((key, value)) = self.next(&mut cursor, "links", &last) {
            if !key.is_empty() && !layout::is_area_mark(&key) {
                self.listed += 1;
            } else if value[..] == *LINK_COUNTS_RIGHT || value[..] == *LINK_COUNTS_STALE {
                self.marks.insert(key.clone(), value[..] == *LINK_COUNTS_RIGHT);
            } else {
                self.problem(area_path(&key), "the mark of a link area cannot be understood");
            }
            last = key;
        }
    }

    fn walk_metadata(&mut self) {
        let Some(mut cursor) = self.cursor(METADATA, KeyRange::all()) else { return };
        let mut walked: Option<Walked> = None;
        let mut has_root = false;
        let mut last = Key::default();
        while let Some((key, value)) = self.next(&mut cursor, "entries", &last) {
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
                        self.problem(parsed.path(), message);
                    }
                    self.metadata(&parsed, &value, &mut walked);
                }
                _ => self.problem(path_of(&key), "the key of an entry cannot be understood"),
            }
            last = key;
        }
        if let Some(walked) = walked {
            self.walked(walked);
        }
        if !has_root {
            self.problem("/", "the root directory is missing");
        }
        let unseen: Vec<Content> = self.expected.drain().map(|(_, content)| content).collect();
        for content in unseen {
            let message = format!("the directory should have {} entries, and has none", content.entries);
            self.problem(content.path, message);
        }
    }

    /// One key of the metadata index.
    fn metadata(&mut self, parsed: &Parsed<'_>, value: &[u8], walked: &mut Option<Walked>) {
        if parsed.base == layout::STATE_KEY {
            return;
        }
        if parsed.prefix.starts_with(layout::ORPHAN_AREA) {
            return;
        }
        let record = match Record::decode(value) {
            Ok(record) => record,
            Err(error) => return self.problem(parsed.path(), error.to_string()),
        };
        if parsed.directory.last().is_some_and(Vec::is_empty) {
            return self.linked_file(parsed, record);
        }
        if parsed.name.is_empty() && !parsed.prefix.is_empty() {
            return self.problem(parsed.path(), "an entry without a name");
        }
        if !parsed.name.is_empty() {
            self.count_entry(parsed, record.kind(), walked);
        }
        let setting = walked.as_ref().filter(|_| !parsed.name.is_empty()).map(|w| w.setting.clone());
        let setting = setting.unwrap_or_default();
        let keeps = match (&record, setting.owned_alone) {
            (Record::Inode(inode), Some(uid)) => agrees_with_mark(inode, uid),
            (Record::Link(_), promised) => promised.is_none(),
            _ => true,
        };
        if !keeps {
            self.problem(parsed.path(), "a directory above promises that no such entry is below");
        }
        match record {
            Record::Inode(inode) => self.inode(parsed, &inode, &setting),
            Record::Link(link) => self.link(parsed, link, &setting),
        }
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
            return self.problem(
                path,
                format!("{entries} entries lie in this directory, which does not exist or says it is empty"),
            );
        };
        if content.entries != entries {
            self.problem(&path, format!("the directory has {entries} entries, and says {}", content.entries));
        }
        if content.directories != directories {
            let message =
                format!("the directory has {directories} subdirectories, and says {}", content.directories);
            self.problem(&path, message);
        }
    }

    fn inode(&mut self, parsed: &Parsed<'_>, inode: &Inode, setting: &Setting) {
        let sum = setting.sum.wrapping_add(inode.delta);
        self.numbers.push(inode.number.wrapping_add(sum));
        if inode.is_dir() {
            self.report.directories += 1;
            let prefix: Key = if parsed.base == layout::ROOT_KEY {
                Key::default()
            } else {
                layout::content_prefix(parsed.prefix, &parsed.name).into()
            };
            if inode.area || prefix.is_empty() {
                if !self.marks.contains_key(&prefix) {
                    self.problem(
                        parsed.path(),
                        "the directory has a link area, and the links index does not say so",
                    );
                }
                self.areas.insert(prefix.clone(), sum.wrapping_add(inode.area_delta));
            }
            if inode.size > 0 {
                let (entries, directories) = (inode.size, u64::from(inode.links));
                let area = if inode.area { prefix.clone() } else { setting.area.clone() };
                let setting = Setting { sum, area, owned_alone: inode.owned_alone.then_some(inode.uid) };
                let content = Content { path: parsed.path(), entries, directories, setting };
                self.expected.insert(prefix, content);
            } else if inode.links > 0 {
                self.problem(parsed.path(), "an empty directory with subdirectories");
            }
        } else {
            self.report.files += 1;
            if parsed.base == layout::ROOT_KEY {
                self.problem("/", "the root is no directory");
            }
            if inode.links != 1 {
                self.problem(
                    parsed.path(),
                    format!("a file outside the link area says that it has {} names", inode.links),
                );
            }
        }
        self.file_data(parsed, inode);
    }

    fn linked_file(&mut self, parsed: &Parsed<'_>, record: Record) {
        let holder: Key = parsed.prefix[..parsed.prefix.len() - 1].into();
        match (layout::area_id(&parsed.name), record) {
            (Some(id), Record::Inode(inode)) if !inode.is_dir() => {
                match self.areas.get(&holder) {
                    Some(sum) => self.numbers.push(inode.number.wrapping_add(*sum)),
                    None => self.problem(parsed.path(), "the directory does not say that it has a link area"),
                }
                self.file_data(parsed, &inode);
                self.linked.insert((holder, id), inode);
            }
            _ => self.problem(parsed.path(), "something in the link area that does not belong there"),
        }
    }

    fn link(&mut self, parsed: &Parsed<'_>, link: Link, setting: &Setting) {
        self.report.links += 1;
        let listed = self.snapshot.get(self.index(LINKS), parsed.base).ok().flatten();
        if listed.as_deref() != Some(&link.id.to_le_bytes()[..]) {
            self.problem(parsed.path(), "the entry is a link, and the links index does not say so");
        }
        let path = parsed.path();
        let new = LinkNames { path, link: link.clone(), count: 0 };
        let names = self.names.entry((setting.area.clone(), link.id)).or_insert(new);
        names.count += 1;
        if names.link != link {
            let message = format!("the entry contradicts {}, another name of the same file", names.path);
            self.problem(parsed.path(), message);
        }
    }

    /// Links, files in the link areas, and the links index.
    fn compare_links(&mut self) {
        let names = std::mem::take(&mut self.names);
        for (place, names) in &names {
            let is_settled = self.marks.get(&place.0).copied().unwrap_or(true);
            match self.linked.remove(place) {
                None => self.problem(&names.path, "the file that this is a name of is missing"),
                Some(inode) => {
                    self.report.files += 1;
                    if is_settled && u64::from(inode.links) != names.count {
                        let message = format!("the file has {} names, and says {}", names.count, inode.links);
                        self.problem(&names.path, message);
                    }
                    if inode.kind != names.link.kind || inode.number != names.link.number {
                        self.problem(&names.path, "the entry contradicts the file that it is a name of");
                    }
                }
            }
        }
        let nameless: Vec<(Key, u64)> = self.linked.keys().cloned().collect();
        for (holder, id) in nameless {
            if self.marks.get(&holder).copied().unwrap_or(true) {
                let path = path_of(&layout::entry_key(&layout::area_prefix(&holder), &layout::area_name(id)));
                self.problem(path, "a file in the link area has no name");
            }
        }
        let unknown: Vec<Key> = self.marks.keys().filter(|k| !self.areas.contains_key(*k)).cloned().collect();
        for mark in unknown {
            self.problem(area_path(&mark), "the links index names a link area that does not exist");
        }
        if self.listed != self.report.links {
            let message =
                format!("the links index lists {} links, there are {}", self.listed, self.report.links);
            self.problem("/", message);
        }
    }

    fn compare_numbers(&mut self) {
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.sort_unstable();
        for pair in numbers.windows(2).filter(|pair| pair[0] == pair[1]) {
            self.problem("/", format!("two files have number {}", pair[0]));
        }
    }

    /// The next key of the data index.
    fn advance_data(&mut self) {
        let last = self.data.next.take().map(|entry| entry.key).unwrap_or_default();
        match self.data.cursor.next() {
            Ok(next) => self.data.next = next,
            Err(error) => self.problem(path_of(&last), format!("data behind this cannot be read: {error}")),
        }
        self.count_key();
    }

    /// Passes over what lies before the data of `base` (to the end if `None`): it must be an
    /// orphan's.
    fn skip_data(&mut self, base: Option<&[u8]>) {
        while let Some(entry) = &self.data.next {
            let parsed = layout::parse(&entry.key).filter(|p| !p.rest.is_empty());
            let in_tree = parsed.as_ref().is_some_and(|p| p.prefix.starts_with(layout::ORPHAN_AREA));
            let owner = parsed.map(|p| p.base.to_vec());
            let path = path_of(&entry.key);
            match owner {
                Some(owner) if base.is_some_and(|base| *owner >= *base) => return,
                Some(owner) if self.orphans.contains(&owner) => {}
                Some(_) if in_tree && self.has_trees => {}
                Some(_) => self.problem(path, "data of a file that does not exist"),
                None => self.problem(path, "the key of data cannot be understood"),
            }
            self.advance_data();
        }
    }

    /// The data of one file or directory.
    fn file_data(&mut self, parsed: &Parsed<'_>, inode: &Inode) {
        self.skip_data(Some(parsed.base));
        let (mut blocks, mut large) = (0, 0);
        while let Some(entry) = &self.data.next {
            let Some(rest) =
                entry.key.strip_prefix(parsed.base).filter(|r| r.first().is_some_and(|b| *b <= 1))
            else {
                break;
            };
            let len = entry.value.len() as u64;
            let fault = match layout::block_number(rest) {
                Some(number) => {
                    blocks += 1;
                    self.report.blocks += 1;
                    self.report.bytes += len;
                    self.block_fault(inode, number, len)
                }
                None => {
                    large += 1;
                    xattr_fault(inode, rest, len)
                }
            };
            if let Some(fault) = fault {
                self.problem(parsed.path(), fault);
            }
            self.advance_data();
        }
        if inode.kind == FileKind::Regular && !inode.sparse && blocks < inode.size.div_ceil(self.block_size) {
            let message = format!(
                "{} of {} blocks are there, and the file is not sparse",
                blocks,
                inode.size.div_ceil(self.block_size)
            );
            self.problem(parsed.path(), message);
        }
        let listed = inode
            .xattrs
            .iter()
            .flat_map(|x| x.values())
            .filter(|v| matches!(v, XattrValue::Large(_)))
            .count();
        if large < listed {
            self.problem(
                parsed.path(),
                format!("{} values of extended attributes are missing", listed - large),
            );
        }
    }

    fn block_fault(&self, inode: &Inode, number: u64, len: u64) -> Option<String> {
        if inode.kind != FileKind::Regular {
            return Some(format!("block {number} of something that is no regular file"));
        }
        let most = inode.size.saturating_sub(number.saturating_mul(self.block_size)).min(self.block_size);
        (len > most).then(|| format!("block {number} has {len} bytes, where the file has {most}"))
    }
}

pub(crate) fn xattr_fault(inode: &Inode, rest: &[u8], len: u64) -> Option<String> {
    let name = rest.get(1..).unwrap_or_default();
    match inode.xattrs.as_ref().and_then(|x| x.get(name)) {
        Some(XattrValue::Large(listed)) if u64::from(*listed) == len && rest[0] == 1 => None,
        _ => Some(format!(
            "the value of extended attribute {} does not belong to the entry",
            layout::show(name)
        )),
    }
}

/// The path of the file that a key belongs to.
pub(crate) fn path_of(key: &[u8]) -> String {
    layout::parse(key).map_or_else(|| format!("key {}", key.escape_ascii()), |parsed| parsed.path())
}

/// The path of the directory whose link area a mark is about.
fn area_path(mark: &[u8]) -> String {
    let inside = [mark, layout::ROOT_KEY].concat();
    layout::parse(&inside).map_or_else(|| path_of(mark), |parsed| directory_path(&parsed))
}

pub(crate) fn directory_path(parsed: &Parsed<'_>) -> String {
    let names: Vec<String> = parsed.directory.iter().map(|n| layout::show(n)).collect();
    format!("/{}", names.join("/"))
}

#[cfg(test)]
mod tests;
