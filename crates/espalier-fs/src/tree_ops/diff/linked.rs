//! Differences of files with several names, in time that grows with what differs.
//!
//! The entry of such a file says nothing; its attributes lie in the link area that serves its name.
//! So three things are compared: the records of the areas (which give the *numbers* of changed
//! files), the links index (which gives names that lead to another number), and, only if there are
//! changed numbers, the names that lead to them. A clone has a copy of the area with the numbers of
//! the original, so what was not changed is shared and is not looked at.

use crate::inode::node::Node;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, Record};
use crate::namespace::context::Namespace;
use crate::tree_ops::diff::shown::{differs, path_below};
use crate::volume::link_index::LinkIndex;
use espalier_engine::{IndexId, KeyRange, Snapshot};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// One of the two trees.
struct Side {
    metadata: IndexId,
    links: IndexId,
    /// The content prefix of the tree.
    prefix: Arc<[u8]>,
    /// The content prefix of the directory whose area serves its top.
    served_by: Arc<[u8]>,
}

/// What is known of files with several names, while the entries are compared.
pub(super) struct LinkedFiles {
    snapshot: Snapshot,
    old: Side,
    new: Side,
    /// Numbers of files that both sides have, and that differ, by the directory of their area,
    /// whose prefix is relative to the tree.
    changed: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// Keys, relative to the trees, of names that may lead to different files.
    names: BTreeSet<Vec<u8>>,
}

/// Both trees, if they can have files with several names.
pub(super) struct LinkedSides {
    old: Side,
    new: Side,
}

impl LinkedSides {
    /// `None` if neither tree can have files with several names. The caller holds both tree locks.
    pub(super) fn of(
        (before, old, old_epoch): (&Namespace, &Arc<Node>, u64),
        (after, new, new_epoch): (&Namespace, &Arc<Node>, u64),
    ) -> Option<Self> {
        if !before.links.is_in_use() || !after.links.is_in_use() {
            return None;
        }
        Some(Self { old: Side::of(before, old, old_epoch)?, new: Side::of(after, new, new_epoch)? })
    }

    /// The content prefixes of the directories whose areas serve the tops.
    pub(super) fn served_by(&self) -> [Arc<[u8]>; 2] {
        [self.old.served_by.clone(), self.new.served_by.clone()]
    }
}

impl LinkedFiles {
    /// Looks at what the walk through the entries of both trees does not meet. The caller holds
    /// both tree locks.
    pub(super) fn new(LinkedSides { old, new }: LinkedSides, after: &Namespace) -> Result<Self> {
        let snapshot = after.volume.store.snapshot()?;
        let mut this = Self { snapshot, old, new, changed: BTreeMap::new(), names: BTreeSet::new() };
        this.compare_names(after)?;
        if this.old.serves_itself() && this.new.serves_itself() {
            // The walk through the entries passes both areas.
            return Ok(this);
        }
        let (there, here) =
            (layout::area_files(&this.old.served_by), layout::area_files(&this.new.served_by));
        let mut diff = after.volume.store.diff((this.old.metadata, &there), (this.new.metadata, &here))?;
        while let Some(difference) = diff.next()? {
            if let (Some(old), Some(new)) = (&difference.old, &difference.new)
                && let Some(id) = layout::area_id(&difference.key)
                && records_differ(&diff.read(old)?, &diff.read(new)?)?
            {
                this.changed.entry(Vec::new()).or_default().insert(id);
            }
        }
        Ok(this)
    }

    /// Finds the names that lead to different numbers, and those for which different areas serve.
    fn compare_names(&mut self, after: &Namespace) -> Result<()> {
        let (old, new) = (&self.old, &self.new);
        let mut diff = after.volume.store.diff((old.links, &old.prefix), (new.links, &new.prefix))?;
        let mut reshaped = Vec::new();
        while let Some(difference) = diff.next()? {
            let both = difference.old.is_some() && difference.new.is_some();
            match layout::is_area_mark(&difference.key) {
                false if both => drop(self.names.insert(difference.key.to_vec())),
                true if !both => reshaped.push(difference.key.to_vec()),
                _ => {}
            }
        }
        for prefix in reshaped {
            self.add_names_below(&prefix)?;
        }
        Ok(())
    }

    /// Adds all names of the new side below a relative prefix.
    fn add_names_below(&mut self, prefix: &[u8]) -> Result<()> {
        let range = KeyRange::prefix(&[&self.new.prefix, prefix].concat());
        let mut cursor = self.snapshot.cursor(self.new.links, range)?;
        while let Some(entry) = cursor.next()? {
            if !layout::is_area_mark(&entry.key) {
                self.names.insert(entry.key[self.new.prefix.len()..].to_vec());
            }
        }
        Ok(())
    }

    /// Has the files compared that a key, relative to the trees, leads to.
    pub(super) fn add_name(&mut self, key: &[u8]) {
        self.names.insert(key.to_vec());
    }

    /// Takes notice of a file in the area of a directory whose records are not the same.
    ///
    /// # Errors
    /// A record is damaged.
    pub(super) fn note(&mut self, (directory, id): (&[u8], u64), old: &[u8], new: &[u8]) -> Result<()> {
        if records_differ(old, new)? {
            self.changed.entry(directory.to_vec()).or_default().insert(id);
        }
        Ok(())
    }

    /// The paths that both sides have and that differ, when all entries were compared.
    pub(super) fn finish(mut self) -> Result<VecDeque<Vec<u8>>> {
        for (directory, ids) in std::mem::take(&mut self.changed) {
            let prefix = [&*self.new.prefix, &directory].concat();
            let cursor = self.snapshot.cursor(self.new.links, KeyRange::prefix(&prefix))?;
            LinkIndex::for_each_of(cursor, &prefix, |key, id| {
                if ids.contains(&id) {
                    self.names.insert(key[self.new.prefix.len()..].to_vec());
                }
                true
            })?;
        }
        let mut found = VecDeque::new();
        for key in &self.names {
            let Some(path) = path_below(key) else { continue };
            // Whether a name is new, or gone, the entries tell.
            if let (Some(old), Some(new)) =
                (self.old.file(&self.snapshot, key)?, self.new.file(&self.snapshot, key)?)
                && differs(&old, &new)
            {
                found.push_back(path);
            }
        }
        Ok(found)
    }
}

impl Side {
    fn of(namespace: &Namespace, dir: &Arc<Node>, epoch: u64) -> Option<Self> {
        let top = dir.link_area_directory()?;
        Some(Self {
            metadata: namespace.volume.metadata(),
            links: namespace.volume.links(),
            prefix: dir.content_prefix(epoch),
            served_by: top.content_prefix(epoch),
        })
    }

    fn serves_itself(&self) -> bool {
        self.prefix == self.served_by
    }

    /// The attributes of the file that a name leads to, through the links index if it is there;
    /// `None` if there is no such name.
    fn file(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<Inode>> {
        let name = [&*self.prefix, key].concat();
        let Some(value) = snapshot.get(self.links, &name)? else {
            let entry = snapshot.get(self.metadata, &name)?.map(|value| Record::decode(&value));
            return Ok(entry.transpose()?.and_then(|entry| match entry {
                Record::Inode(inode) => Some(inode),
                Record::Link(_) => None,
            }));
        };
        let Ok(id) = value[..].try_into().map(u64::from_le_bytes) else {
            return fail(FsErrorKind::Io, "an entry of the links index is damaged");
        };
        let area = layout::area_prefix(&self.serving(snapshot, key)?);
        let file = layout::entry_key(&area, &layout::area_name(id));
        match snapshot.get(self.metadata, &file)?.map(|value| Record::decode(&value)).transpose()? {
            Some(Record::Inode(inode)) if !inode.is_dir() => Ok(Some(inode)),
            _ => fail(FsErrorKind::Io, format!("file {id:#x} of a link area is missing")),
        }
    }

    /// The content prefix of the directory whose area serves a name: the nearest one above it.
    fn serving(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Arc<[u8]>> {
        let ends = key.iter().enumerate().filter(|(_, byte)| **byte == layout::CONTENT).map(|(at, _)| at + 1);
        for end in ends.collect::<Vec<_>>().into_iter().rev() {
            let prefix = [&*self.prefix, &key[..end]].concat();
            if snapshot.get(self.links, &prefix)?.is_some() {
                return Ok(prefix.into());
            }
        }
        Ok(self.served_by.clone())
    }
}

fn records_differ(old: &[u8], new: &[u8]) -> Result<bool> {
    Ok(match (Record::decode(old)?, Record::decode(new)?) {
        (Record::Inode(old), Record::Inode(new)) => differs(&old, &new),
        _ => false,
    })
}

/// The content prefix of the directory, and the number of the file, if a key stands for a file in
/// the link area of a directory.
pub(super) fn area_file(key: &[u8]) -> Option<(&[u8], u64)> {
    let parsed = layout::parse(key)?;
    let (area, above) = parsed.directory.split_last()?;
    if !area.is_empty() || above.iter().any(Vec::is_empty) || !parsed.rest.is_empty() {
        return None;
    }
    Some((parsed.prefix.strip_suffix(&[layout::CONTENT])?, layout::area_id(&parsed.name)?))
}
