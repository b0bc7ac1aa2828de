//! The walk that finds out whether a whole tree belongs to its owner, on a snapshot of the store.
//!
//! Directories that bear the ownership mark are not entered, unless the link area that serves them
//! doubts the marks of their owner. Files with several names are looked at once for each area.

use crate::inode::node::Node;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout::{self, Parsed};
use crate::model::privileges::{belongs_alone, belongs_to_caller};
use crate::model::record::{AreaMark, Inode, Record};
use crate::model::types::Caller;
use crate::volume::context::VolumeContext;
use crate::volume::link_index::LinkIndex;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::{Cursor, IndexId, KeyRange, Snapshot};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A walk that has not begun yet.
pub(crate) struct OwnershipWalk {
    snapshot: Snapshot,
    metadata: IndexId,
    links: IndexId,
    /// The content prefix of the top.
    prefix: Arc<[u8]>,
    caller: Caller,
    /// The areas that serve what is walked, outermost first. The last one whose prefix fits serves
    /// an entry, because each lies below the one before or beside it.
    areas: Vec<ServingArea>,
    /// The top bears the mark; only the files behind doubted names have to be looked at.
    is_marked: bool,
    found: WalkResult,
}

/// A link area that serves some of what is walked.
struct ServingArea {
    /// The content prefix of the directory that has it.
    prefix: Vec<u8>,
    /// It doubts the owner's marks.
    is_doubting: bool,
    /// Files in it that belong to the owner.
    checked: HashSet<u64>,
}

/// What a walk found that met nothing foreign.
#[derive(Default)]
pub(crate) struct WalkResult {
    /// Everything agrees with marks; otherwise only this caller, as a member of a group, may handle
    /// the tree as its own.
    pub(crate) is_markable: bool,
    /// The directories in the tree that have a link area which doubts the owner's marks: their
    /// content prefixes behind that of the top.
    pub(crate) areas_below: Vec<Vec<u8>>,
}

impl OwnershipWalk {
    /// Prepares a walk over what is below directory `top`, as it is now. The caller holds the tree
    /// lock, exclusively if the result is to be used under a later lock.
    pub(crate) fn new(
        volume: &VolumeContext,
        top: &Arc<Node>,
        tree: &TreeGuard<'_>,
        caller: &Caller,
    ) -> Result<Self> {
        volume.counters.ownership_walks.fetch_add(1, Ordering::Relaxed);
        let serving = top.link_area_directory().map(|top| top.content_prefix(tree.epoch));
        let mut walk = Self {
            snapshot: volume.store.snapshot()?,
            metadata: volume.metadata(),
            links: volume.links(),
            prefix: top.content_prefix(tree.epoch),
            caller: caller.clone(),
            areas: Vec::new(),
            is_marked: top.state().inode.owned_alone,
            // Root's trees are not all root's own.
            found: WalkResult { is_markable: caller.uid != 0, areas_below: Vec::new() },
        };
        if let Some(prefix) = serving {
            walk.enter_area(prefix.to_vec())?;
        }
        Ok(walk)
    }

    /// Looks at everything below the top.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`], with the first path that is not the caller's to use; of the
    /// store.
    pub(crate) fn run(mut self) -> Result<WalkResult> {
        if self.is_marked {
            self.check_names_below(&self.prefix.clone())?;
            return Ok(self.found);
        }
        let mut cursor = self.cursor(self.metadata, layout::content_range(&self.prefix))?;
        // Content prefixes of marked directories, which are not entered.
        let mut marked: HashSet<Vec<u8>> = HashSet::new();
        while let Some(entry) = cursor.next()? {
            let Some(parsed) = layout::parse(&entry.key) else { continue };
            // Files in areas are checked by the names that lead there.
            if parsed.name.is_empty() || parsed.directory.iter().any(Vec::is_empty) {
                continue;
            }
            if marked.remove(parsed.prefix) {
                match layout::content_range(parsed.prefix).end {
                    Some(behind) => cursor.seek(&behind),
                    None => break,
                }
                continue;
            }
            match Record::decode(&cursor.read(&entry.value)?)? {
                Record::Link(link) => self.check_file(&entry.key, link.id, &parsed)?,
                Record::Inode(inode) => {
                    self.check(&inode, &parsed)?;
                    let content = || layout::content_prefix(parsed.prefix, &parsed.name);
                    if inode.has_link_area {
                        self.enter_area(content())?;
                    }
                    if inode.owned_alone && inode.size > 0 {
                        let content = content();
                        if self.serving(&content).is_some_and(|area| self.areas[area].is_doubting) {
                            self.check_names_below(&content)?;
                        }
                        marked.insert(content);
                    }
                }
            }
        }
        Ok(self.found)
    }

    fn cursor(&self, index: IndexId, range: KeyRange) -> Result<Cursor> {
        Ok(self.snapshot.cursor(index, range)?)
    }

    /// The area of the directory with content prefix `prefix` serves what is below from now on.
    fn enter_area(&mut self, prefix: Vec<u8>) -> Result<()> {
        let mark = self.snapshot.get(self.links, &prefix)?;
        let mark = mark.map_or_else(|| Ok(AreaMark::default()), |mark| AreaMark::decode(&mark))?;
        let is_doubting = match self.caller.uid {
            0 => !mark.doubted_owners.is_empty(),
            uid => mark.doubts(uid),
        };
        if is_doubting && let Some(below) = prefix.strip_prefix(&self.prefix[..]) {
            self.found.areas_below.push(below.to_vec());
        }
        self.areas.push(ServingArea { prefix, is_doubting, checked: HashSet::new() });
        Ok(())
    }

    /// The place in the list of the area that serves this key or content prefix.
    fn serving(&self, key: &[u8]) -> Option<usize> {
        self.areas.iter().rposition(|area| key.starts_with(&area.prefix))
    }

    /// Looks at the files with names below a content prefix that the area serving it holds.
    fn check_names_below(&mut self, prefix: &[u8]) -> Result<()> {
        let cursor = self.cursor(self.links, KeyRange::prefix(prefix))?;
        let mut names = Vec::new();
        let mut seen = HashSet::new();
        LinkIndex::for_each_of(cursor, prefix, |key, id| {
            if seen.insert(id) {
                names.push((key.clone(), id));
            }
            true
        })?;
        for (key, id) in names {
            if let Some(parsed) = layout::parse(&key) {
                self.check_file(&key, id, &parsed)?;
            }
        }
        Ok(())
    }

    /// Looks at file `id` of the area that serves `key`, which is a name of it.
    fn check_file(&mut self, key: &[u8], id: u64, name: &Parsed<'_>) -> Result<()> {
        let area = self.serving(key);
        let holder = area.map_or(&[][..], |area| &self.areas[area].prefix);
        if area.is_some_and(|area| self.areas[area].checked.contains(&id)) {
            return Ok(());
        }
        let home = layout::entry_key(&layout::area_prefix(holder), &layout::area_name(id));
        let value = self.snapshot.get(self.metadata, &home)?;
        match value.map(|value| Record::decode(&value)).transpose()? {
            Some(Record::Inode(inode)) if !inode.is_dir() => self.check(&inode, name)?,
            _ => return fail(FsErrorKind::Io, format!("file {id:#x} of a link area is missing")),
        }
        if let Some(area) = area {
            self.areas[area].checked.insert(id);
        }
        Ok(())
    }

    fn check(&mut self, inode: &Inode, name: &Parsed<'_>) -> Result<()> {
        check_holder(inode, &self.caller, || name.path())?;
        self.found.is_markable &= belongs_alone(inode, self.caller.uid);
        Ok(())
    }
}

/// Refuses an object that is not the caller's alone, or, if that is root, which a flag forbids to
/// change.
pub(crate) fn check_holder(inode: &Inode, caller: &Caller, path: impl Fn() -> String) -> Result<()> {
    if inode.flags.protect() {
        return fail(FsErrorKind::Permission, format!("{} is immutable or append-only", path()));
    }
    if caller.uid == 0 || belongs_to_caller(inode, caller.uid, caller.gid) {
        return Ok(());
    }
    let reason = "belongs to another user, or may run with another user's rights";
    fail(FsErrorKind::Permission, format!("{} {reason}", path()))
}
