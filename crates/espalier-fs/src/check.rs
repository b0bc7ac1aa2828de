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
//! links index agree; no two files have one number; what lies in the data index belongs to a file
//! or an orphan.

use crate::error::Result;
use crate::fs::decode_parameters;
use crate::layout::{self, DATA, LINKS, METADATA, Parsed};
use crate::record::{self, Inode, Link, Record, XattrValue};
use crate::types::FileKind;
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
/// [`FsErrorKind::Io`](crate::FsErrorKind::Io) if its parameters are damaged. Damage further in is reported, not returned.
pub fn check(store: &Store, name: &str, progress: &mut dyn FnMut(u64)) -> Result<CheckReport> {
    let volume = crate::fs::find_volume(store, name)?;
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
        numbers: Vec::new(),
        next_number: u64::MAX,
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
}

/// The entries of the directory that is being walked.
struct Walked {
    prefix: Key,
    entries: u64,
    directories: u64,
    path: String,
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
    /// Files in the link area.
    linked: BTreeMap<u64, Inode>,
    /// Entries that lead to them.
    names: BTreeMap<u64, LinkNames>,
    numbers: Vec<u64>,
    next_number: u64,
    keys: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Check<'_> {
    fn run(&mut self) {
        self.read_orphans();
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

    fn read_orphans(&mut self) {
        let Some(mut cursor) = self.cursor(METADATA, layout::entries_range(layout::ORPHAN_AREA)) else {
            return;
        };
        let mut last = Key::default();
        while let Some((key, value)) = self.next(&mut cursor, "orphans", &last) {
            self.report.orphans += 1;
            match record::decode_orphan(&value) {
                Ok(base) => {
                    if !self.orphans.insert(base.to_vec()) {
                        self.problem(path_of(base), "two unlinked files have their data in one place");
                    }
                }
                Err(error) => self.problem(path_of(&key), error.to_string()),
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
            return match record::decode_state(value) {
                Ok(next) => self.next_number = next,
                Err(error) => self.problem("/", error.to_string()),
            };
        }
        if parsed.prefix == layout::ORPHAN_AREA {
            return;
        }
        let record = match Record::decode(value) {
            Ok(record) => record,
            Err(error) => return self.problem(parsed.path(), error.to_string()),
        };
        if parsed.prefix == layout::LINK_AREA {
            return self.linked_file(parsed, record);
        }
        if parsed.name.is_empty() && !parsed.prefix.is_empty() {
            return self.problem(parsed.path(), "an entry without a name");
        }
        if !parsed.name.is_empty() {
            self.count_entry(parsed, record.kind(), walked);
        }
        match record {
            Record::Inode(inode) => self.inode(parsed, &inode),
            Record::Link(link) => self.link(parsed, link),
        }
    }

    fn count_entry(&mut self, parsed: &Parsed<'_>, kind: FileKind, walked: &mut Option<Walked>) {
        if walked.as_ref().is_none_or(|w| *w.prefix != *parsed.prefix) {
            let path = directory_path(parsed);
            let next = Walked { prefix: parsed.prefix.into(), entries: 0, directories: 0, path };
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
        let Walked { prefix, entries, directories, path } = walked;
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

    fn inode(&mut self, parsed: &Parsed<'_>, inode: &Inode) {
        self.count_number(parsed, inode);
        if inode.is_dir() {
            self.report.directories += 1;
            if inode.size > 0 {
                let prefix = if parsed.base == layout::ROOT_KEY {
                    Vec::new()
                } else {
                    layout::content_prefix(parsed.prefix, &parsed.name)
                };
                let (entries, directories) = (inode.size, u64::from(inode.links));
                self.expected.insert(prefix.into(), Content { path: parsed.path(), entries, directories });
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

    fn count_number(&mut self, parsed: &Parsed<'_>, inode: &Inode) {
        self.numbers.push(inode.number);
        if inode.delta == 0 && inode.number >= self.next_number {
            self.problem(parsed.path(), format!("number {} was never given out", inode.number));
        }
    }

    fn linked_file(&mut self, parsed: &Parsed<'_>, record: Record) {
        match (layout::area_id(&parsed.name), record) {
            (Some(id), Record::Inode(inode)) if !inode.is_dir() => {
                self.report.files += 1;
                self.count_number(parsed, &inode);
                self.file_data(parsed, &inode);
                self.linked.insert(id, inode);
            }
            _ => self.problem(parsed.path(), "something in the link area that does not belong there"),
        }
    }

    fn link(&mut self, parsed: &Parsed<'_>, link: Link) {
        self.report.links += 1;
        let listed = self.snapshot.get(self.index(LINKS), parsed.base).ok().flatten();
        if listed.as_deref() != Some(&link.id.to_le_bytes()[..]) {
            self.problem(parsed.path(), "the entry is a link, and the links index does not say so");
        }
        let path = parsed.path();
        let names = self.names.entry(link.id).or_insert(LinkNames { path, link: link.clone(), count: 0 });
        names.count += 1;
        if names.link != link {
            let message = format!("the entry contradicts {}, another name of the same file", names.path);
            self.problem(parsed.path(), message);
        }
    }

    /// Links, files in the link area, and the links index.
    fn compare_links(&mut self) {
        let names = std::mem::take(&mut self.names);
        for (id, names) in &names {
            match self.linked.remove(id) {
                None => self.problem(&names.path, "the file that this is a name of is missing"),
                Some(inode) => {
                    if u64::from(inode.links) != names.count {
                        let message = format!("the file has {} names, and says {}", names.count, inode.links);
                        self.problem(&names.path, message);
                    }
                    if inode.kind != names.link.kind || inode.number != names.link.number {
                        self.problem(&names.path, "the entry contradicts the file that it is a name of");
                    }
                }
            }
        }
        let nameless: Vec<u64> = self.linked.keys().copied().collect();
        for id in nameless {
            self.problem(format!("/(area)/{id:016x}"), "a file in the link area has no name");
        }
        let Some(mut cursor) = self.cursor(LINKS, KeyRange::all()) else { return };
        let mut listed = 0;
        let mut last = Key::default();
        while let Some((key, _)) = self.next(&mut cursor, "links", &last) {
            listed += 1;
            last = key;
        }
        if listed != self.report.links {
            let message = format!("the links index lists {listed} links, there are {}", self.report.links);
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

    /// Passes over what lies before the data of `base` (to the end if `None`): it must be an orphan's.
    fn skip_data(&mut self, base: Option<&[u8]>) {
        while let Some(entry) = &self.data.next {
            let owner = layout::parse(&entry.key).filter(|p| !p.rest.is_empty()).map(|p| p.base.to_vec());
            let path = path_of(&entry.key);
            match owner {
                Some(owner) if base.is_some_and(|base| *owner >= *base) => return,
                Some(owner) if self.orphans.contains(&owner) => {}
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

fn xattr_fault(inode: &Inode, rest: &[u8], len: u64) -> Option<String> {
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
fn path_of(key: &[u8]) -> String {
    layout::parse(key).map_or_else(|| format!("key {}", key.escape_ascii()), |parsed| parsed.path())
}

fn directory_path(parsed: &Parsed<'_>) -> String {
    let names: Vec<String> = parsed.directory.iter().map(|n| layout::show(n)).collect();
    format!("/{}", names.join("/"))
}

#[cfg(test)]
mod tests;
