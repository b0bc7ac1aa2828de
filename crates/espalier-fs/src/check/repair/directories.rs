//! Directories: those that have entries exist, and count them rightly.

use crate::check::paths::directory_path;
use crate::check::repair::state::{FoundDirectory, Repair};
use crate::model::error::Result;
use crate::model::layout::{self, DATA, LINKS, METADATA};
use crate::model::record::{Inode, Record, VolumeState};
use crate::model::types::{FileFlags, FileKind};
use espalier_engine::Key;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Where files without a name go.
const LOST_FOUND: &[u8] = b"lost+found";

impl Repair<'_> {
    /// The content prefix of `/lost+found`.
    pub(crate) fn lost_found(&mut self) -> Result<Vec<u8>> {
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
        (inode.has_link_area, inode.owned_alone) = (self.links.marks.contains_key(prefix), false);
        if self.directories.get(prefix).is_some_and(|found| found.entries > 0) {
            // It may have been the top of a clone, whose delta is lost: with none, all below would
            // have the numbers of the source.
            inode.delta = random_delta(prefix, inode.number);
            inode.link_area_delta = if inode.has_link_area { random_delta(prefix, inode.delta) } else { 0 };
        }
        let sum = self.sum_of(&above).wrapping_add(inode.delta);
        let directory = self.directories.entry(prefix.into()).or_default();
        (directory.says, directory.sum) = (Some((0, 0)), sum);
        if let Some(parsed) = layout::parse(&key) {
            self.clear_marks(parsed.prefix);
            let above = self.directories.entry(parsed.prefix.into()).or_default();
            above.entries += 1;
            above.directories += 1;
        }
        self.writer.put(METADATA, &key, inode.encode())
    }

    /// Directories that have entries exist, and count them rightly.
    pub(crate) fn mend_directories(&mut self) -> Result<()> {
        // The deepest first: making one makes an entry above.
        let depth = |prefix: &Key| prefix.iter().filter(|b| **b == layout::CONTENT).count();
        let mut missing: BTreeSet<(std::cmp::Reverse<usize>, Key)> = BTreeSet::new();
        let is_missing =
            |prefix: &Key, d: &FoundDirectory| d.says.is_none() && !prefix.is_empty() && d.entries > 0;
        for (prefix, _) in self.directories.iter().filter(|(prefix, d)| is_missing(prefix, d)) {
            missing.insert((std::cmp::Reverse(depth(prefix)), prefix.clone()));
        }
        while let Some((_, prefix)) = missing.pop_first() {
            let key = entry_of(&prefix);
            self.writer.flush()?;
            let taken = self.writer.get(METADATA, &key)?.is_some();
            let Some(parsed) = layout::parse(&key).filter(|_| !taken) else {
                self.drop_content(&prefix)?;
                continue;
            };
            let message = "the attributes of the directory are lost; it is there again, for root alone";
            self.writer.tell(parsed.path(), message, true);
            self.make_directory(&prefix)?;
            let above: Key = parsed.prefix.into();
            if self.directories.get(&above).is_some_and(|d| is_missing(&above, d)) {
                missing.insert((std::cmp::Reverse(depth(&above)), above));
            }
        }
        if self.directories.get(&Key::default()).is_none_or(|root| root.says.is_none()) {
            self.writer.tell("/", "the attributes of the root directory are lost; they are new", true);
            let mut root = Inode::new(FileKind::Directory, 0o755, 0, 0, 1, self.now);
            let counted = self.directories.entry(Key::default()).or_default();
            (root.size, root.links) = (counted.entries, counted.directories as u32);
            root.owned_alone = false;
            counted.says = Some((counted.entries, counted.directories));
            self.writer.put(METADATA, layout::ROOT_KEY, root.encode())?;
        }
        let known = self.state.filter(|_| self.unmarked.is_empty());
        let longest_key = known.and_then(|state| state.longest_key);
        let flags_used = FileFlags(self.flags_seen.0 | self.state.map_or(0, |state| state.flags_used.0));
        let state = VolumeState { next_number: self.next_number, longest_key, flags_used };
        if self.state != Some(state) {
            self.writer.put(METADATA, layout::STATE_KEY, state.encode())?;
        }
        self.writer.flush()
    }

    pub(crate) fn mend_counts(&mut self) -> Result<()> {
        for (prefix, directory) in std::mem::take(&mut self.directories) {
            let FoundDirectory { says: Some(says), entries, directories, .. } = directory else { continue };
            let loses_mark = self.unmarked.contains(&prefix);
            let has_link_area = !prefix.is_empty() && self.links.marks.contains_key(&prefix);
            if says == (entries, directories) && !loses_mark && !has_link_area {
                continue;
            }
            let key = entry_of(&prefix);
            let value = self.writer.get(METADATA, &key)?;
            let Some(Ok(Record::Inode(old))) = value.map(|value| Record::decode(&value)) else { continue };
            let mut inode = old.clone();
            (inode.size, inode.links) = (entries, directories as u32);
            inode.owned_alone &= !loses_mark;
            inode.has_link_area |= has_link_area;
            if inode == old {
                continue;
            }
            self.writer.put(METADATA, &key, inode.encode())?;
            if (old.size, old.links) != (inode.size, inode.links) {
                let message = format!("it has {entries} entries, {directories} of them directories");
                let path = layout::parse(&key).map_or_else(|| "/".into(), |parsed| parsed.path());
                self.writer.tell(path, message, false);
            }
        }
        Ok(())
    }

    /// What lies below something that is no directory goes.
    fn drop_content(&mut self, prefix: &Key) -> Result<()> {
        let below = [&**prefix, &[0]].concat();
        let path = layout::parse(&below).map_or_else(|| "/".into(), |parsed| directory_path(&parsed));
        self.writer.tell(path, "it is no directory; what lay below it is gone", true);
        for index in [METADATA, DATA, LINKS] {
            self.writer.delete_range(index, layout::content_range(prefix))?;
        }
        self.directories.retain(|other, _| !other.starts_with(prefix));
        self.writer.flush()
    }
}

/// A delta as clones have: equal in each run of a repair, so that one which was ended goes on.
fn random_delta(prefix: &[u8], number: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (prefix, number).hash(&mut hasher);
    hasher.finish()
}

/// The key of the entry of the directory with this content prefix.
fn entry_of(prefix: &[u8]) -> Vec<u8> {
    let Some((_, path)) = prefix.split_last() else { return layout::ROOT_KEY.to_vec() };
    let start = path.iter().rposition(|b| *b == layout::CONTENT).map_or(0, |at| at + 1);
    [&path[..start], &[0], &path[start..]].concat()
}
