//! Makes a volume keep every promise of `layout` and `record` again, after parts of it were lost.
//!
//! What is there stays; what only leads to it is made anew. One walk over the metadata in key
//! order, with the data index in step beside it, over one snapshot, notes what there is; then come,
//! each in terms of what is noted, data without a file, links, directories and counts. Since keys
//! are full paths, a directory or file whose entry is lost is found again under its name by what
//! lies below it.
//!
//! - A file keeps the blocks it has; those it lacks read as zeros, and are told. Where a file has
//!   holes, only those that lie in what the store below has lost are told: whether there was data
//!   cannot be known.
//! - Data without an entry gets one: an ordinary file of root's that nobody else can read.
//! - So does a directory that has entries. What has lost its last name goes to `/lost+found`.
//! - Names of files that are gone, and what cannot be understood, go.

use crate::check::volume_check::{directory_path, path_of, xattr_fault};
use crate::model::error::Result;
use crate::model::layout::{self, DATA, LINKS, METADATA, Parsed};
use crate::model::record::{
    Inode, LINK_COUNTS_RIGHT, LINK_COUNTS_STALE, Link, OrphanRecord, Record, VolumeState, XattrValue,
};
use crate::model::types::FileKind;
use crate::volume::context::decode_parameters;
use espalier_engine::{Batch, Cursor, Entry, IndexId, Key, KeyRange, Loss, Snapshot, Store};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Changes that one batch makes.
const BATCH: usize = 256;
/// Keys between calls of the progress function.
const PROGRESS_EVERY: u64 = 4096;
/// Numbers that are passed over when it is not known which were given out.
const NUMBERS_SKIPPED: u64 = 1 << 16;
/// Where files without a name go.
const LOST_FOUND: &[u8] = b"lost+found";

/// Something that a repair did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The path concerned.
    pub path: String,
    /// What was done, or what is lost.
    pub message: String,
    /// Content is lost; otherwise only what leads to it was put right.
    pub lost: bool,
}

/// Repairs volume `name` of a store that has lost `losses`. What was wrong before and is right
/// afterwards is told in the order in which it was found. `progress` is called now and then with
/// the number of keys seen. `now` is the time for what is made, in nanoseconds since the Unix
/// epoch. Durable when the store was closed.
///
/// # Errors
/// As for [`check`](fn@crate::check); of the store.
pub fn repair(
    store: &Store,
    name: &str,
    losses: &[Loss],
    now: i64,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Repaired>> {
    let volume = crate::volume::context::find_volume(store, name)?;
    let block_size = u64::from(decode_parameters(&volume.parameters)?);
    let snapshot = store.snapshot()?;
    let data = snapshot.cursor(IndexId { volume: volume.id, index: DATA }, KeyRange::all())?;
    let mut repair = Repair {
        store,
        volume: volume.id,
        block_size,
        snapshot,
        lost: lost_data(volume.id, losses),
        data: Beside { cursor: data, next: None },
        batch: Batch::new(),
        done: Vec::new(),
        orphans: BTreeSet::new(),
        directories: BTreeMap::new(),
        linked: BTreeMap::new(),
        names: BTreeMap::new(),
        marks: BTreeMap::new(),
        broken: BTreeSet::new(),
        has_trees: false,
        nameless: BTreeMap::new(),
        state: None,
        next_number: 0,
        highest: 0,
        now,
        keys: 0,
        progress,
    };
    repair.run()?;
    Ok(repair.done)
}

/// The data index, walked in step with the metadata.
struct Beside {
    cursor: Cursor,
    next: Option<Entry>,
}

/// A directory, by its content prefix.
#[derive(Default)]
struct Directory {
    /// What its inode says: entries and subdirectories; `None` without an inode.
    says: Option<(u64, u64)>,
    entries: u64,
    directories: u64,
    /// The sum of the deltas from the root to it.
    sum: u64,
}

/// A file in a link area: the directory that has the area, and the number in it.
type Place = (Key, u64);

/// Data without an entry.
#[derive(Default)]
struct Nameless {
    size: u64,
}

struct Repair<'a> {
    store: &'a Store,
    volume: u32,
    block_size: u64,
    snapshot: Snapshot,
    /// Ranges of the data index of which the store has lost something, ascending.
    lost: Vec<KeyRange>,
    data: Beside,
    batch: Batch,
    done: Vec<Repaired>,
    orphans: BTreeSet<Vec<u8>>,
    directories: BTreeMap<Key, Directory>,
    /// Files in link areas.
    linked: BTreeMap<Place, Inode>,
    /// The entries that lead to them.
    names: BTreeMap<Place, Vec<(Key, Link)>>,
    /// Directories that have a link area, and what the links index says of it.
    marks: BTreeMap<Key, Option<u8>>,
    /// Directories below which something is that may not keep their promises.
    broken: BTreeSet<Key>,
    /// The orphan area holds removed trees.
    has_trees: bool,
    /// Data without an entry, by the key that the entry would have.
    nameless: BTreeMap<Key, Nameless>,
    state: Option<VolumeState>,
    next_number: u64,
    highest: u64,
    now: i64,
    keys: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Repair<'_> {
    fn run(&mut self) -> Result<()> {
        self.read_orphans()?;
        self.read_marks()?;
        self.advance_data()?;
        self.walk_metadata()?;
        self.skip_data(None)?;
        self.settle_numbers();
        self.name_data()?;
        self.mend_links()?;
        self.mend_directories()?;
        self.mend_links_index()?;
        self.mend_counts()?;
        self.flush()?;
        (self.progress)(self.keys);
        Ok(())
    }

    fn index(&self, index: u8) -> IndexId {
        IndexId { volume: self.volume, index }
    }

    fn tell(&mut self, path: impl Into<String>, message: impl Into<String>, lost: bool) {
        self.done.push(Repaired { path: path.into(), message: message.into(), lost });
    }

    fn put(&mut self, index: u8, key: &[u8], value: Vec<u8>) -> Result<()> {
        let index = self.index(index);
        self.batch.insert(index, key, value);
        self.flush_full()
    }

    fn delete(&mut self, index: u8, key: &[u8]) -> Result<()> {
        let index = self.index(index);
        self.batch.delete(index, key);
        self.flush_full()
    }

    fn flush_full(&mut self) -> Result<()> {
        if self.batch.len() < BATCH { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<()> {
        if !self.batch.is_empty() {
            self.store.commit(std::mem::take(&mut self.batch))?;
        }
        Ok(())
    }

    fn count_key(&mut self) {
        self.keys += 1;
        if self.keys.is_multiple_of(PROGRESS_EVERY) {
            (self.progress)(self.keys);
        }
    }

    fn next(&mut self, cursor: &mut Cursor) -> Result<Option<(Key, bytes::Bytes)>> {
        self.count_key();
        match cursor.next()? {
            Some(entry) => Ok(Some((entry.key, cursor.read(&entry.value)?))),
            None => Ok(None),
        }
    }

    fn cursor(&self, index: u8, range: KeyRange) -> Result<Cursor> {
        Ok(self.snapshot.cursor(self.index(index), range)?)
    }

    fn read_orphans(&mut self) -> Result<()> {
        let mut cursor = self.cursor(METADATA, layout::entries_range(layout::ORPHAN_AREA))?;
        while let Some((key, value)) = self.next(&mut cursor)? {
            match OrphanRecord::decode(&value) {
                Ok(OrphanRecord::File(base)) => drop(self.orphans.insert(base.to_vec())),
                Ok(OrphanRecord::Tree) => self.has_trees = true,
                Err(_) => self.delete(METADATA, &key)?,
            }
        }
        Ok(())
    }

    /// Which directories have a link area.
    fn read_marks(&mut self) -> Result<()> {
        self.marks.insert(Key::default(), None);
        let mut cursor = self.cursor(LINKS, KeyRange::all())?;
        while let Some((key, value)) = self.next(&mut cursor)? {
            if layout::is_area_mark(&key) {
                self.marks.insert(key, value.first().copied());
            }
        }
        Ok(())
    }

    /// The directory whose link area serves the directory with this content prefix.
    fn area_of(&self, prefix: &[u8]) -> Key {
        let ends = prefix.iter().enumerate().rev().filter(|(_, b)| **b == layout::CONTENT);
        let mut above = ends.map(|(at, _)| &prefix[..=at]);
        above.find(|prefix| self.marks.contains_key(*prefix)).map(Key::from).unwrap_or_default()
    }

    /// The sum of the deltas above the entries of the directory with this content prefix.
    fn sum_of(&self, prefix: &[u8]) -> u64 {
        self.directories.get(prefix).map_or(0, |directory| directory.sum)
    }

    fn walk_metadata(&mut self) -> Result<()> {
        let mut cursor = self.cursor(METADATA, KeyRange::all())?;
        while let Some((key, value)) = self.next(&mut cursor)? {
            let parsed = match layout::parse(&key) {
                Some(parsed) if parsed.rest.is_empty() => parsed,
                _ => {
                    self.tell(path_of(&key), "the key of an entry could not be understood; it is gone", true);
                    self.delete(METADATA, &key)?;
                    continue;
                }
            };
            if parsed.base == layout::STATE_KEY {
                self.state = VolumeState::decode(&value).ok();
            } else if !parsed.prefix.starts_with(layout::ORPHAN_AREA) {
                self.metadata(&parsed, &value)?;
            }
        }
        Ok(())
    }

    fn metadata(&mut self, parsed: &Parsed<'_>, value: &[u8]) -> Result<()> {
        let is_root = parsed.base == layout::ROOT_KEY;
        let is_misplaced = parsed.name.is_empty() && !is_root;
        let record = match Record::decode(value) {
            Ok(record) if !is_misplaced => record,
            _ => {
                self.tell(parsed.path(), "the entry could not be understood; it is gone", true);
                return self.delete(METADATA, parsed.base);
            }
        };
        if parsed.directory.last().is_some_and(Vec::is_empty) {
            let holder: Key = parsed.prefix[..parsed.prefix.len() - 1].into();
            return match (layout::area_id(&parsed.name), record) {
                (Some(id), Record::Inode(inode)) if !inode.is_dir() => {
                    self.see_number(inode.number.wrapping_add(self.sum_of(&holder)));
                    let inode = self.file_data(parsed, inode)?;
                    self.marks.entry(holder.clone()).or_insert(None);
                    self.linked.insert((holder, id), inode);
                    Ok(())
                }
                _ => self.delete(METADATA, parsed.base),
            };
        }
        if !is_root {
            let above = self.directories.entry(parsed.prefix.into()).or_default();
            above.entries += 1;
            above.directories += u64::from(record.kind() == FileKind::Directory);
        }
        match record {
            Record::Inode(inode) => self.inode(parsed, inode),
            Record::Link(link) => {
                let place = (self.area_of(parsed.prefix), link.id);
                self.names.entry(place).or_default().push((parsed.base.into(), link));
                Ok(())
            }
        }
    }

    fn inode(&mut self, parsed: &Parsed<'_>, inode: Inode) -> Result<()> {
        let sum = self.sum_of(parsed.prefix).wrapping_add(inode.delta);
        self.see_number(inode.number.wrapping_add(sum));
        let mut inode = self.file_data(parsed, inode)?;
        if inode.is_dir() {
            let prefix: Key = content_of(parsed).into();
            if inode.area {
                self.marks.entry(prefix.clone()).or_insert(None);
            }
            let directory = self.directories.entry(prefix).or_default();
            (directory.says, directory.sum) = (Some((inode.size, u64::from(inode.links))), sum);
        } else if inode.links != 1 {
            inode.links = 1;
            self.put(METADATA, parsed.base, inode.encode())?;
        }
        Ok(())
    }

    fn advance_data(&mut self) -> Result<()> {
        self.count_key();
        self.data.next = self.data.cursor.next()?;
        Ok(())
    }

    /// Notes what lies before the data of `base` (to the end if `None`) and is no orphan's.
    fn skip_data(&mut self, base: Option<&[u8]>) -> Result<()> {
        while let Some(entry) = &self.data.next {
            let parsed = layout::parse(&entry.key).filter(|parsed| !parsed.rest.is_empty());
            match parsed {
                Some(parsed) if base.is_some_and(|base| parsed.base >= base) => return Ok(()),
                Some(parsed) if self.orphans.contains(parsed.base) => {}
                Some(parsed) if self.has_trees && parsed.prefix.starts_with(layout::ORPHAN_AREA) => {}
                Some(parsed) => {
                    let found = self.nameless.entry(parsed.base.into()).or_default();
                    match layout::block_number(parsed.rest) {
                        Some(number) => {
                            let start = number.saturating_mul(self.block_size);
                            found.size = found.size.max(start.saturating_add(entry.value.len() as u64));
                        }
                        None => {
                            let key = entry.key.clone();
                            self.delete(DATA, &key)?;
                        }
                    }
                }
                None => {
                    let key = entry.key.clone();
                    self.tell(path_of(&key), "the key of data could not be understood; it is gone", true);
                    self.delete(DATA, &key)?;
                }
            }
            self.advance_data()?;
        }
        Ok(())
    }

    /// Goes through the data of one file or directory; returns its inode as it is to be.
    fn file_data(&mut self, parsed: &Parsed<'_>, inode: Inode) -> Result<Inode> {
        self.skip_data(Some(parsed.base))?;
        let mut mended = inode.clone();
        let (mut missing, mut doubtful) = (Missing::default(), Missing::default());
        let mut large = BTreeSet::new();
        let mut due = 0;
        while let Some(entry) = &self.data.next {
            let Some(rest) =
                entry.key.strip_prefix(parsed.base).filter(|r| r.first().is_some_and(|b| *b <= 1))
            else {
                break;
            };
            let (key, len) = (entry.key.clone(), entry.value.len() as u64);
            let keep = match layout::block_number(rest) {
                Some(number) => {
                    let start = number.saturating_mul(self.block_size);
                    let room = inode.size.saturating_sub(start).min(self.block_size);
                    if inode.kind == FileKind::Regular && start > due {
                        match inode.sparse {
                            true => self.lost_of(parsed.base, due..start.min(inode.size), &mut doubtful),
                            false => missing.add(due..start.min(inode.size)),
                        }
                    }
                    due = start.saturating_add(self.block_size);
                    inode.kind == FileKind::Regular && len <= room && room > 0
                }
                None if xattr_fault(&inode, rest, len).is_none() => large.insert(rest[1..].to_vec()),
                None => false,
            };
            if !keep {
                self.tell(parsed.path(), "data that did not belong to it is gone", false);
                self.delete(DATA, &key)?;
            }
            self.advance_data()?;
        }
        if inode.kind == FileKind::Regular && due < inode.size {
            match inode.sparse {
                true => self.lost_of(parsed.base, due..inode.size, &mut doubtful),
                false => missing.add(due..inode.size),
            }
        }
        for range in &missing.0 {
            let message = format!("bytes {} to {} are lost and read as zeros", range.start, range.end);
            self.tell(parsed.path(), message, true);
            mended.sparse = true;
        }
        for range in &doubtful.0 {
            let message = format!(
                "bytes {} to {} read as zeros: something there may be lost (the file has holes)",
                range.start, range.end
            );
            self.tell(parsed.path(), message, true);
        }
        self.drop_lost_xattrs(parsed, &mut mended, &large);
        if mended != inode {
            self.put(METADATA, parsed.base, mended.encode())?;
        }
        Ok(mended)
    }

    /// Notes which of the bytes `hole` of a file lie in what the store has lost.
    fn lost_of(&self, base: &[u8], hole: Range<u64>, doubtful: &mut Missing) {
        let first = self.lost.partition_point(|lost| {
            lost.end.as_ref().is_some_and(|end| self.offset_of(base, end) <= hole.start)
        });
        for lost in &self.lost[first..] {
            let start = self.offset_of(base, &lost.start).max(hole.start);
            let end = lost.end.as_ref().map_or(u64::MAX, |end| self.offset_of(base, end)).min(hole.end);
            if start >= hole.end {
                return;
            }
            if start < end {
                doubtful.add(start..end);
            }
        }
    }

    /// The first byte of a file whose block does not lie before `key`.
    fn offset_of(&self, base: &[u8], key: &[u8]) -> u64 {
        if *key <= *layout::block_key(base, 0) {
            return 0;
        }
        let Some([layout::BLOCK, rest @ ..]) = key.strip_prefix(base) else { return u64::MAX };
        let mut number = [0; 8];
        let length = rest.len().min(8);
        number[..length].copy_from_slice(&rest[..length]);
        let behind = u64::from(rest.len() > 8);
        u64::from_be_bytes(number).saturating_add(behind).saturating_mul(self.block_size)
    }

    fn drop_lost_xattrs(&mut self, parsed: &Parsed<'_>, inode: &mut Inode, there: &BTreeSet<Vec<u8>>) {
        let Some(xattrs) = &inode.xattrs else { return };
        let is_lost =
            |name: &[u8], value: &XattrValue| matches!(value, XattrValue::Large(_)) && !there.contains(name);
        let lost: Vec<Box<[u8]>> = xattrs
            .iter()
            .filter(|(name, value)| is_lost(name, value))
            .map(|(name, _)| name.clone())
            .collect();
        if lost.is_empty() {
            return;
        }
        let mut kept = (**xattrs).clone();
        for name in lost {
            kept.remove(&name);
            let message = format!("the extended attribute {} is lost", layout::show(&name));
            self.tell(parsed.path(), message, true);
        }
        inode.xattrs = (!kept.is_empty()).then(|| Arc::new(kept));
    }

    /// Notes a number that users have seen. Those of clones are random, and no measure.
    fn see_number(&mut self, number: u64) {
        if number < 1 << 48 {
            self.highest = self.highest.max(number);
        }
    }

    /// No number that was given out may be given out again.
    fn settle_numbers(&mut self) {
        match self.state {
            Some(state) => self.next_number = state.next_number,
            None => {
                self.next_number = self.highest + NUMBERS_SKIPPED;
                self.tell("/", "which numbers were given out was lost; new files get higher ones", false);
            }
        }
    }

    /// A new inode for an entry of the directory with this content prefix.
    fn new_inode(&mut self, prefix: &[u8], kind: FileKind, mode: u32) -> Inode {
        let number = self.next_number.wrapping_sub(self.sum_of(prefix));
        self.next_number += 1;
        Inode::new(kind, mode, 0, 0, number, self.now)
    }

    /// The directory with this content prefix, and those above, promise nothing about what is below
    /// any more.
    fn break_promises(&mut self, prefix: &[u8]) {
        let ends = prefix.iter().enumerate().filter(|(_, b)| **b == layout::CONTENT);
        self.broken.extend(ends.map(|(at, _)| Key::from(&prefix[..=at])));
        self.broken.insert(Key::default());
    }

    /// Gives data without an entry one.
    fn name_data(&mut self) -> Result<()> {
        for (base, found) in std::mem::take(&mut self.nameless) {
            let Some(parsed) = layout::parse(&base) else { continue };
            if found.size == 0 {
                continue;
            }
            let in_area = parsed.directory.last().is_some_and(Vec::is_empty);
            let holder = if in_area { &parsed.prefix[..parsed.prefix.len() - 1] } else { parsed.prefix };
            let mut inode = self.new_inode(holder, FileKind::Regular, 0o600);
            (inode.size, inode.sparse) = (found.size, true);
            if let (true, Some(id)) = (in_area, layout::area_id(&parsed.name)) {
                self.tell(parsed.path(), "the attributes of a file with several names are lost", true);
                self.marks.entry(holder.into()).or_insert(None);
                self.linked.insert((holder.into(), id), inode);
                continue;
            }
            let taken = self.store.get(self.index(METADATA), &base)?.is_some();
            if taken || parsed.name.is_empty() || parsed.directory.iter().any(Vec::is_empty) {
                self.tell(parsed.path(), "data that did not belong to it is gone", true);
                let index = self.index(DATA);
                self.batch.delete_range(index, layout::file_range(&base));
                self.flush_full()?;
                continue;
            }
            let message = "its attributes are lost; what is left of its data is there again, for root alone";
            self.tell(parsed.path(), message, true);
            self.directories.entry(parsed.prefix.into()).or_default().entries += 1;
            self.break_promises(parsed.prefix);
            self.put(METADATA, &base, inode.encode())?;
        }
        Ok(())
    }

    /// Links and the files they lead to.
    fn mend_links(&mut self) -> Result<()> {
        let names = std::mem::take(&mut self.names);
        let mut linked = std::mem::take(&mut self.linked);
        let mut left: BTreeMap<Place, Vec<(Key, Link)>> = BTreeMap::new();
        for (place, entries) in names {
            let Some(inode) = linked.remove(&place) else {
                for (key, _) in entries {
                    self.tell(path_of(&key), "the file that this was a name of is lost", true);
                    self.delete(METADATA, &key)?;
                    self.uncount(&key);
                }
                continue;
            };
            let entries = self.mend_file(&place, inode, entries)?;
            left.insert(place, entries);
        }
        for (place, inode) in linked {
            let (holder, id) = &place;
            if self.marks.get(holder) == Some(&LINK_COUNTS_STALE.first().copied()) {
                // It came with a clone that has no name of it.
                let home = layout::entry_key(&layout::area_prefix(holder), &layout::area_name(*id));
                let data = self.index(DATA);
                self.delete(METADATA, &home)?;
                self.batch.delete_range(data, layout::file_range(&home));
                continue;
            }
            let above = if holder.is_empty() { self.lost_found()? } else { holder.to_vec() };
            let name = [b"lost-", &layout::area_name(*id)[..]].concat();
            let key = layout::entry_key(&above, &name);
            self.tell(path_of(&key), "a file whose names are lost", true);
            self.break_promises(&above);
            self.directories.entry(above.into()).or_default().entries += 1;
            let link = Link { kind: inode.kind, id: *id, number: inode.number };
            self.put(METADATA, &key, link.encode())?;
            let entries = self.mend_file(&place, inode, vec![(key.into(), link)])?;
            left.insert(place, entries);
        }
        self.tell_names(&left);
        self.names = left;
        Ok(())
    }

    /// What was told of files in link areas is told of their names.
    fn tell_names(&mut self, names: &BTreeMap<Place, Vec<(Key, Link)>>) {
        let mut paths: HashMap<String, Vec<String>> = HashMap::new();
        for ((holder, id), entries) in names {
            let home = layout::entry_key(&layout::area_prefix(holder), &layout::area_name(*id));
            paths.insert(path_of(&home), entries.iter().map(|(key, _)| path_of(key)).collect());
        }
        for done in std::mem::take(&mut self.done) {
            match paths.get(&done.path) {
                Some(names) => {
                    self.done
                        .extend(names.iter().map(|path| Repaired { path: path.clone(), ..done.clone() }));
                }
                None => self.done.push(done),
            }
        }
    }

    fn mend_file(
        &mut self,
        (holder, id): &Place,
        mut inode: Inode,
        mut entries: Vec<(Key, Link)>,
    ) -> Result<Vec<(Key, Link)>> {
        let home = layout::entry_key(&layout::area_prefix(holder), &layout::area_name(*id));
        self.flush()?;
        let stored = self.store.get(self.index(METADATA), &home)?;
        inode.links = entries.len() as u32;
        if stored.as_deref() != Some(&inode.encode()[..]) {
            self.put(METADATA, &home, inode.encode())?;
        }
        for (key, link) in &mut entries {
            let right = Link { kind: inode.kind, id: *id, number: inode.number };
            if *link != right {
                *link = right;
                self.put(METADATA, key, link.encode())?;
            }
        }
        Ok(entries)
    }

    /// One entry, which is no directory, less in the directory of `key`.
    fn uncount(&mut self, key: &[u8]) {
        if let Some(parsed) = layout::parse(key)
            && let Some(directory) = self.directories.get_mut(parsed.prefix)
        {
            directory.entries = directory.entries.saturating_sub(1);
        }
    }

    /// The links index lists every link and every area, and nothing else.
    fn mend_links_index(&mut self) -> Result<()> {
        let mut due: HashMap<Key, Vec<u8>> = HashMap::new();
        for ((_, id), entries) in std::mem::take(&mut self.names) {
            due.extend(entries.into_iter().map(|(key, _)| (key, id.to_le_bytes().to_vec())));
        }
        // All counts are right now.
        let exists = |holder: &Key| self.directories.get(holder).is_some_and(|d| d.says.is_some());
        let holders = self.marks.keys().filter(|holder| !holder.is_empty() && exists(holder));
        due.extend(holders.map(|holder| (holder.clone(), LINK_COUNTS_RIGHT.to_vec())));
        let mut cursor = self.cursor(LINKS, KeyRange::all())?;
        while let Some((key, value)) = self.next(&mut cursor)? {
            match due.remove(&key) {
                Some(right) if value == right => {}
                Some(right) => self.put(LINKS, &key, right)?,
                None => self.delete(LINKS, &key)?,
            }
        }
        for (key, right) in due {
            self.put(LINKS, &key, right)?;
        }
        Ok(())
    }

    /// The content prefix of `/lost+found`.
    fn lost_found(&mut self) -> Result<Vec<u8>> {
        let prefix = layout::content_prefix(b"", LOST_FOUND);
        if self.directories.get(&prefix[..]).is_none_or(|d| d.says.is_none()) {
            self.make_directory(&prefix)?;
        }
        Ok(prefix)
    }

    /// Makes the inode of a directory that has none.
    fn make_directory(&mut self, prefix: &[u8]) -> Result<()> {
        let key = entry_of(prefix);
        let above = layout::parse(&key).map_or(Key::default(), |parsed| parsed.prefix.into());
        let mut inode = self.new_inode(&above, FileKind::Directory, 0o700);
        (inode.area, inode.owned_alone) = (self.marks.contains_key(prefix), false);
        let sum = self.sum_of(&above);
        let directory = self.directories.entry(prefix.into()).or_default();
        (directory.says, directory.sum) = (Some((0, 0)), sum);
        if let Some(parsed) = layout::parse(&key) {
            self.break_promises(parsed.prefix);
            let above = self.directories.entry(parsed.prefix.into()).or_default();
            above.entries += 1;
            above.directories += 1;
        }
        self.put(METADATA, &key, inode.encode())
    }

    /// Directories that have entries exist, and count them rightly.
    fn mend_directories(&mut self) -> Result<()> {
        // The deepest first: making one makes an entry above.
        let depth = |prefix: &Key| prefix.iter().filter(|b| **b == layout::CONTENT).count();
        let mut missing: BTreeSet<(std::cmp::Reverse<usize>, Key)> = BTreeSet::new();
        let is_missing =
            |prefix: &Key, d: &Directory| d.says.is_none() && !prefix.is_empty() && d.entries > 0;
        for (prefix, _) in self.directories.iter().filter(|(prefix, d)| is_missing(prefix, d)) {
            missing.insert((std::cmp::Reverse(depth(prefix)), prefix.clone()));
        }
        while let Some((_, prefix)) = missing.pop_first() {
            let key = entry_of(&prefix);
            self.flush()?;
            let taken = self.store.get(self.index(METADATA), &key)?.is_some();
            let Some(parsed) = layout::parse(&key).filter(|_| !taken) else {
                self.drop_content(&prefix)?;
                continue;
            };
            let message = "the attributes of the directory are lost; it is there again, for root alone";
            self.tell(parsed.path(), message, true);
            self.make_directory(&prefix)?;
            let above: Key = parsed.prefix.into();
            if self.directories.get(&above).is_some_and(|d| is_missing(&above, d)) {
                missing.insert((std::cmp::Reverse(depth(&above)), above));
            }
        }
        if self.directories.get(&Key::default()).is_none_or(|root| root.says.is_none()) {
            self.tell("/", "the attributes of the root directory are lost; they are new", true);
            let mut root = Inode::new(FileKind::Directory, 0o755, 0, 0, 1, self.now);
            let counted = self.directories.entry(Key::default()).or_default();
            (root.size, root.links) = (counted.entries, counted.directories as u32);
            root.owned_alone = false;
            counted.says = Some((counted.entries, counted.directories));
            self.put(METADATA, layout::ROOT_KEY, root.encode())?;
        }
        let known = self.state.filter(|_| self.broken.is_empty());
        let longest_key = known.and_then(|state| state.longest_key);
        let state = VolumeState { next_number: self.next_number, longest_key };
        if self.state != Some(state) {
            self.put(METADATA, layout::STATE_KEY, state.encode())?;
        }
        self.flush()
    }

    fn mend_counts(&mut self) -> Result<()> {
        for (prefix, directory) in std::mem::take(&mut self.directories) {
            let Directory { says: Some(says), entries, directories, .. } = directory else { continue };
            let is_broken = self.broken.contains(&prefix);
            let has_area = !prefix.is_empty() && self.marks.contains_key(&prefix);
            if says == (entries, directories) && !is_broken && !has_area {
                continue;
            }
            let key = entry_of(&prefix);
            let value = self.store.get(self.index(METADATA), &key)?;
            let Some(Ok(Record::Inode(old))) = value.map(|value| Record::decode(&value)) else { continue };
            let mut inode = old.clone();
            (inode.size, inode.links) = (entries, directories as u32);
            inode.owned_alone &= !is_broken;
            inode.area |= has_area;
            if inode == old {
                continue;
            }
            self.put(METADATA, &key, inode.encode())?;
            if (old.size, old.links) != (inode.size, inode.links) {
                let message = format!("it has {entries} entries, {directories} of them directories");
                let path = layout::parse(&key).map_or_else(|| "/".into(), |parsed| parsed.path());
                self.tell(path, message, false);
            }
        }
        Ok(())
    }

    /// What lies below something that is no directory goes.
    fn drop_content(&mut self, prefix: &Key) -> Result<()> {
        let below = [&**prefix, &[0]].concat();
        let path = layout::parse(&below).map_or_else(|| "/".into(), |parsed| directory_path(&parsed));
        self.tell(path, "it is no directory; what lay below it is gone", true);
        for index in [METADATA, DATA, LINKS] {
            let index = self.index(index);
            self.batch.delete_range(index, layout::content_range(prefix));
        }
        self.directories.retain(|other, _| !other.starts_with(prefix));
        self.flush()
    }
}

/// Ranges of bytes that are missing, neighbours joined.
#[derive(Default)]
struct Missing(Vec<Range<u64>>);

impl Missing {
    fn add(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.0.push(range),
        }
    }
}

/// The ranges of a volume's data index in which something is lost, ascending and disjoint.
fn lost_data(volume: u32, losses: &[Loss]) -> Vec<KeyRange> {
    let index = IndexId { volume, index: DATA };
    let mut ranges: Vec<KeyRange> = losses
        .iter()
        .filter(|loss| loss.index == Some(index))
        .filter_map(|loss| loss.range.clone())
        .collect();
    ranges.sort_by(|a, b| a.start.cmp(&b.start));
    let mut joined: Vec<KeyRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end.as_ref().is_none_or(|end| range.start <= *end) => {
                last.end = match (last.end.take(), range.end) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                };
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// The content prefix of the directory with this entry.
fn content_of(parsed: &Parsed<'_>) -> Vec<u8> {
    match parsed.base == layout::ROOT_KEY {
        true => Vec::new(),
        false => layout::content_prefix(parsed.prefix, &parsed.name),
    }
}

/// The key of the entry of the directory with this content prefix.
fn entry_of(prefix: &[u8]) -> Vec<u8> {
    let Some((_, path)) = prefix.split_last() else { return layout::ROOT_KEY.to_vec() };
    let start = path.iter().rposition(|b| *b == layout::CONTENT).map_or(0, |at| at + 1);
    [&path[..start], &[0], &path[start..]].concat()
}

#[cfg(test)]
mod tests;
