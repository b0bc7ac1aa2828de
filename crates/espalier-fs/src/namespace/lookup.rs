//! Lookup: from names to nodes.
//!
//! A lookup that has to ask the store does so without a lock, and then makes sure that what it read
//! still holds: nothing in the directory changed, no directory moved, and no node that had been
//! changed left memory ([`Stamp`]). Otherwise it tries again, in the end with the directory locked.

use crate::file::attr_reader::AttrReader;
use crate::inode::names::{Known, Names};
use crate::inode::node::{Node, Role};
use crate::inode::node_id;
use crate::inode::node_table::NodeTable;
use crate::inode::saved_locations::SavedLocations;
use crate::links::link_area::LinkAreas;
use crate::model::error::{FsError, FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, Link, Record};
use crate::model::types::*;
use crate::orphan::orphan_area::Orphans;
use crate::references::{HeldNode, References};
use crate::volume::context::VolumeContext;
use crate::volume::tree_lock::{TreeGuard, TreeLock};
use espalier_engine::Lsn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Lookups without lock before one with it.
const LOCK_FREE_ATTEMPTS: u32 = 3;

pub(crate) struct Lookup {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) references: Arc<References>,
    pub(crate) areas: Arc<LinkAreas>,
    pub(crate) attrs: Arc<AttrReader>,
    pub(crate) locations: Arc<SavedLocations>,
}

/// The state of a directory that a read without lock depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) version: u64,
    evictions: u64,
    epoch: u64,
    changes: u64,
}

/// What memory says about a name.
enum Remembered<'a> {
    Held(HeldNode<'a>),
    Absent,
    Unknown,
}

impl Lookup {
    /// Finds `name` in directory `parent` and takes a reference on it. `..` is understood.
    pub(crate) fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry> {
        let dir = self.nodes.dir(parent)?;
        let held = match name {
            b".." => match dir.place().parent {
                Some(parent) if parent.dir().role == Role::Tree => self.references.hold(&parent)?,
                Some(_) => return fail(FsErrorKind::Stale, "the directory was removed"),
                None => self.references.hold(&dir)?,
            },
            _ => self.find(&dir, name)?.ok_or_else(|| no_entry(name))?,
        };
        self.entry(held)
    }

    /// Turns a held node into the answer that passes the reference to the caller.
    pub(crate) fn entry(&self, held: HeldNode<'_>) -> Result<Entry> {
        let entry = self.entry_of(&held)?;
        held.keep();
        Ok(entry)
    }

    /// What users see of a node under a name; the reference stays with the caller.
    pub(crate) fn entry_of(&self, node: &Arc<Node>) -> Result<Entry> {
        let attr = self.attrs.attr(node)?;
        Ok(Entry { node: node.id, generation: self.generation(&attr), attr })
    }

    /// The generation that goes with the id of a node with these attributes.
    pub(crate) fn generation(&self, attr: &Attr) -> u32 {
        node_id::generation(self.volume.identity, attr.ino, attr.btime)
    }

    /// The node of an entry, with a reference; `None` if there is no such entry.
    pub(crate) fn find(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Option<HeldNode<'_>>> {
        check_name(name)?;
        for _ in 0..LOCK_FREE_ATTEMPTS {
            let (stamp, key) = {
                let tree = self.tree.shared();
                let names = dir.dir().names.lock();
                match self.remembered(&tree, dir, &names, name) {
                    Remembered::Held(held) => {
                        self.volume.counters.lookup_hits.fetch_add(1, Ordering::Relaxed);
                        return Ok(Some(held));
                    }
                    Remembered::Absent => {
                        self.volume.counters.lookup_hits.fetch_add(1, Ordering::Relaxed);
                        return Ok(None);
                    }
                    Remembered::Unknown => {
                        (stamp(&tree, dir, &names), layout::entry_key(&dir.content_prefix(tree.epoch), name))
                    }
                }
            };
            let record = self.load(dir, name, &key)?;
            let tree = self.tree.shared();
            let mut names = dir.dir().names.lock();
            if self::stamp(&tree, dir, &names) == stamp {
                return self.learn(&tree, dir, &mut names, name, record);
            }
        }
        let tree = self.tree.shared();
        let mut names = dir.dir().names.lock();
        self.resolve(&tree, dir, &mut names, name)
    }

    /// The record at the key of entry `name`, from the store.
    fn load(&self, dir: &Node, name: &[u8], key: &[u8]) -> Result<Option<Record>> {
        self.volume.counters.lookup_misses.fetch_add(1, Ordering::Relaxed);
        let value = self.volume.store.get(self.volume.metadata(), key)?;
        value.map(|v| Record::decode(&v)).transpose().map_err(|e| at_entry(dir, name, e))
    }

    /// The node of an entry of a directory whose names are locked; `None` if there is none.
    pub(crate) fn resolve(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        names: &mut Names,
        name: &[u8],
    ) -> Result<Option<HeldNode<'_>>> {
        match self.remembered(tree, dir, names, name) {
            Remembered::Held(held) => return Ok(Some(held)),
            Remembered::Absent => return Ok(None),
            Remembered::Unknown => {}
        }
        let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
        let record = self.load(dir, name, &key)?;
        self.learn(tree, dir, names, name, record)
    }

    /// True if a directory whose names are locked has no entry `name`. Asks the store only if
    /// memory does not tell.
    fn is_free(&self, tree: &TreeGuard<'_>, dir: &Arc<Node>, names: &mut Names, name: &[u8]) -> Result<bool> {
        match names.get(name) {
            Some(Known::Present(_)) => return Ok(false),
            Some(Known::Absent) => return Ok(true),
            None if is_complete(dir, names) => return Ok(true),
            None => {}
        }
        self.volume.counters.create_queries.fetch_add(1, Ordering::Relaxed);
        let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
        Ok(!self.volume.store.contains(self.volume.metadata(), &key)?)
    }

    /// Refuses to make an entry that exists, or one in a removed directory.
    pub(crate) fn check_free(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        names: &mut Names,
        name: &[u8],
    ) -> Result<()> {
        self.check_not_removed(tree, dir, names)?;
        if self.is_free(tree, dir, names, name)? {
            return Ok(());
        }
        fail(FsErrorKind::Exists, format!("there is an entry {} already", layout::show(name)))
    }

    /// Refuses a directory that was removed, or lies in a removed tree.
    pub(crate) fn check_not_removed(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        names: &Names,
    ) -> Result<()> {
        if names.dead || self.orphans.is_in_removed_tree(dir, tree.epoch) {
            return fail(FsErrorKind::NotFound, "the directory was removed");
        }
        Ok(())
    }

    /// What memory says about a name.
    fn remembered(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        names: &Names,
        name: &[u8],
    ) -> Remembered<'_> {
        if names.dead || self.orphans.is_in_removed_tree(dir, tree.epoch) {
            return Remembered::Absent;
        }
        match names.get(name) {
            Some(Known::Absent) => Remembered::Absent,
            Some(Known::Present(id)) => match self.nodes.acquire(id) {
                Some(node) => Remembered::Held(self.references.adopt(node)),
                None => Remembered::Unknown,
            },
            None if is_complete(dir, names) => Remembered::Absent,
            None => Remembered::Unknown,
        }
    }

    /// Takes over in memory what the store said about a name.
    pub(crate) fn learn(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        names: &mut Names,
        name: impl AsRef<[u8]> + Into<Arc<[u8]>>,
        record: Option<Record>,
    ) -> Result<Option<HeldNode<'_>>> {
        // Another lookup may have taken over the same meanwhile.
        match self.remembered(tree, dir, names, name.as_ref()) {
            Remembered::Held(held) => return Ok(Some(held)),
            Remembered::Absent => return Ok(None),
            Remembered::Unknown => {}
        }
        match record {
            None => {
                self.nodes.set_name(dir, names, name, Known::Absent);
                Ok(None)
            }
            Some(Record::Inode(inode)) => {
                Ok(Some(self.add_entry(dir, names, name, inode, self.volume.last_lsn())))
            }
            Some(Record::Link(link)) => {
                let held = self.linked(tree, dir, &link).map_err(|e| at_entry(dir, name.as_ref(), e))?;
                self.nodes.set_name(dir, names, name, Known::Present(held.id));
                Ok(Some(held))
            }
        }
    }

    /// Makes the node of an entry of `dir` that was not in memory, with one reference, and
    /// remembers its name.
    pub(crate) fn add_entry(
        &self,
        dir: &Arc<Node>,
        names: &mut Names,
        name: impl Into<Arc<[u8]>>,
        inode: Inode,
        lsn: Lsn,
    ) -> HeldNode<'_> {
        self.references.adopt(self.nodes.add_entry(dir, names, name, inode, lsn))
    }

    /// The node of a file in the link area that serves `dir`.
    fn linked(&self, tree: &TreeGuard<'_>, dir: &Arc<Node>, link: &Link) -> Result<HeldNode<'_>> {
        let area = self.areas.area_of(dir)?;
        // Before the names of the area, which come last in the lock order.
        self.areas.load_link_counts(&area)?;
        self.file_in_area(tree, &area, link.id, Some(link.kind))
    }

    /// The node of file `id` in an area whose link counts are loaded. `kind`: of the file, where an
    /// entry says it.
    pub(crate) fn file_in_area(
        &self,
        tree: &TreeGuard<'_>,
        area: &Arc<Node>,
        id: u64,
        kind: Option<FileKind>,
    ) -> Result<HeldNode<'_>> {
        match self.find_in_area(tree, area, id, kind)? {
            Some(held) => Ok(held),
            None => fail(FsErrorKind::Io, format!("file {id:#x} of the link area is missing")),
        }
    }

    /// As [`Lookup::file_in_area`]; `None` if the area has no such file.
    pub(crate) fn find_in_area(
        &self,
        tree: &TreeGuard<'_>,
        area: &Arc<Node>,
        id: u64,
        kind: Option<FileKind>,
    ) -> Result<Option<HeldNode<'_>>> {
        let name = layout::area_name(id);
        let mut names = area.dir().names.lock();
        if let Remembered::Held(held) = self.remembered(tree, area, &names, &name) {
            return Ok(Some(held));
        }
        let key = layout::entry_key(&area.content_prefix(tree.epoch), &name);
        let value = self.volume.store.get(self.volume.metadata(), &key)?;
        match value.map(|v| Record::decode(&v)).transpose()? {
            Some(Record::Inode(mut inode))
                if !inode.is_dir() && kind.is_none_or(|kind| kind == inode.kind) =>
            {
                inode.links = area.link_count(id).unwrap_or(inode.links);
                Ok(Some(self.add_entry(area, &mut names, &name[..], inode, self.volume.last_lsn())))
            }
            _ => Ok(None),
        }
    }
}

/// The state of a directory that a read without lock of an entry depends on.
pub(crate) fn stamp(tree: &TreeGuard<'_>, dir: &Node, names: &Names) -> Stamp {
    let evictions = dir.dir().evictions.load(Ordering::Acquire);
    let changes = dir.changes.newest();
    Stamp { version: names.version, evictions, epoch: tree.epoch, changes }
}

/// True if every entry of the directory is known: as many are known as there are.
fn is_complete(dir: &Node, names: &Names) -> bool {
    dir.dir().role == Role::Tree && names.present() == dir.state().inode.size
}

/// Adds the entry to an error about it.
pub(crate) fn at_entry(dir: &Node, name: &[u8], error: FsError) -> FsError {
    error.context(format_args!("entry {} of directory {}", layout::show(name), dir.ino))
}

/// The error for a name that does not exist.
pub(crate) fn no_entry(name: &[u8]) -> FsError {
    FsError::new(FsErrorKind::NotFound, format!("there is no entry {}", layout::show(name)))
}

/// Refuses what cannot be the name of an entry.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        return fail(
            FsErrorKind::NameTooLong,
            format!("a name of {} bytes; {MAX_NAME} are allowed", name.len()),
        );
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return fail(FsErrorKind::Invalid, format!("{:?} is no name", String::from_utf8_lossy(name)));
    }
    Ok(())
}

/// As [`check_name`], where `.` and `..` count as names that are taken.
pub(crate) fn check_new_name(name: &[u8]) -> Result<()> {
    if name == b"." || name == b".." {
        return fail(FsErrorKind::Exists, "every directory has . and ..");
    }
    check_name(name)
}
