//! From names to nodes.
//!
//! A lookup that has to ask the store does so without a lock, and then makes sure that what it
//! read still holds: nothing in the directory changed, no directory moved, and no node that had
//! been changed left memory. Otherwise it tries again, in the end with the directory locked.

use crate::file_system::{FileSystem, Held, check_name};
use crate::inode::node::{Directory, Known, Names, Node, Place, Role};
use crate::inode::tree_lock::TreeGuard;
use crate::model::error::{FsError, FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, Link, Record};
use crate::model::types::*;
use espalier_engine::Lsn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Lookups without lock before one with it.
const ATTEMPTS: u32 = 3;

impl Node {
    /// What directories have.
    ///
    /// # Panics
    /// If it is none; callers have made sure.
    pub(crate) fn dir(&self) -> &Directory {
        self.directory.as_deref().expect("the caller made sure that it is a directory")
    }
}

/// What a read without lock depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) version: u64,
    evictions: u64,
    epoch: u64,
    changes: u64,
}

impl FileSystem {
    /// Finds `name` in directory `parent` and takes a reference on it. `.` and `..` are understood.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::NotDirectory`], [`FsErrorKind::NameTooLong`]; of
    /// the store.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry> {
        let dir = self.dir(parent)?;
        let held = match name {
            b"." => self.hold(&dir)?,
            b".." => match dir.place().parent {
                Some(parent) => self.hold(&parent)?,
                None => self.hold(&dir)?,
            },
            _ => self.find(&dir, name)?.ok_or_else(|| no_entry(name))?,
        };
        self.entry(held)
    }

    /// Gives back `count` references. An unlinked file goes away with the last one.
    pub fn forget(&self, node: NodeId, count: u64) {
        if node != NodeId::ROOT {
            self.release(node, count);
        }
    }

    /// One reference more on a node that is in use.
    pub(crate) fn hold(&self, node: &Arc<Node>) -> Result<Held<'_>> {
        match self.nodes.acquire(node.id) {
            Some(node) => Ok(Held::adopt(self, node)),
            None => fail(FsErrorKind::Stale, format!("node {} is gone", node.id.0)),
        }
    }

    /// Turns a held node into the answer that passes the reference to the caller.
    pub(crate) fn entry(&self, held: Held<'_>) -> Result<Entry> {
        let attr = self.attr(&held)?;
        Ok(Entry { node: held.keep().id, attr })
    }

    /// The node of an entry, with a reference; `None` if there is no such entry.
    pub(crate) fn find(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Option<Held<'_>>> {
        check_name(name)?;
        for _ in 0..ATTEMPTS {
            let (stamp, key) = {
                let tree = self.tree.shared();
                let names = dir.dir().names.lock();
                match self.known(dir, &names, name) {
                    Look::Held(held) => {
                        self.volume.counters.lookup_hits.fetch_add(1, Ordering::Relaxed);
                        return Ok(Some(held));
                    }
                    Look::Absent => {
                        self.volume.counters.lookup_hits.fetch_add(1, Ordering::Relaxed);
                        return Ok(None);
                    }
                    Look::Ask => (
                        self.stamp(&tree, dir, &names),
                        layout::entry_key(&dir.content_prefix(tree.epoch), name),
                    ),
                }
            };
            self.volume.counters.lookup_misses.fetch_add(1, Ordering::Relaxed);
            let value = self.volume.store.get(self.volume.metadata(), &key)?;
            let record = value.map(|v| Record::decode(&v)).transpose().map_err(|e| self.at(dir, name, e))?;
            let tree = self.tree.shared();
            let mut names = dir.dir().names.lock();
            if self.stamp(&tree, dir, &names) == stamp {
                return self.learn(dir, &mut names, name, record);
            }
        }
        let tree = self.tree.shared();
        let mut names = dir.dir().names.lock();
        self.resolve(&tree, dir, &mut names, name)
    }

    /// What a read without lock of something in `dir` depends on.
    pub(crate) fn stamp(&self, tree: &TreeGuard<'_>, dir: &Node, names: &Names) -> Stamp {
        let evictions = dir.dir().evictions.load(Ordering::Acquire);
        let changes = dir.changes.newest();
        Stamp { version: names.version, evictions, epoch: tree.epoch, changes }
    }

    /// The node of an entry of a directory whose names are locked; `None` if there is none.
    pub(crate) fn resolve(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        names: &mut Names,
        name: &[u8],
    ) -> Result<Option<Held<'_>>> {
        match self.known(dir, names, name) {
            Look::Held(held) => return Ok(Some(held)),
            Look::Absent => return Ok(None),
            Look::Ask => {}
        }
        self.volume.counters.lookup_misses.fetch_add(1, Ordering::Relaxed);
        let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
        let value = self.volume.store.get(self.volume.metadata(), &key)?;
        let record = value.map(|v| Record::decode(&v)).transpose().map_err(|e| self.at(dir, name, e))?;
        self.learn(dir, names, name, record)
    }

    /// True if a directory whose names are locked has no entry `name`. Asks the store only if need
    /// be.
    pub(crate) fn is_free(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        names: &mut Names,
        name: &[u8],
    ) -> Result<bool> {
        match names.get(name) {
            Some(Known::Present(_)) => return Ok(false),
            Some(Known::Absent) => return Ok(true),
            None if self.is_complete(dir, names) => return Ok(true),
            None => {}
        }
        self.volume.counters.create_queries.fetch_add(1, Ordering::Relaxed);
        let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
        Ok(!self.volume.store.contains(self.volume.metadata(), &key)?)
    }

    /// What memory says about a name.
    fn known(&self, dir: &Arc<Node>, names: &Names, name: &[u8]) -> Look<'_> {
        if names.dead || self.is_lost(dir) {
            return Look::Absent;
        }
        match names.get(name) {
            Some(Known::Absent) => Look::Absent,
            Some(Known::Present(id)) => match self.nodes.acquire(id) {
                Some(node) => Look::Held(Held::adopt(self, node)),
                None => Look::Ask,
            },
            None if self.is_complete(dir, names) => Look::Absent,
            None => Look::Ask,
        }
    }

    /// True if a directory lies in a tree that was removed: nothing is found in it, and nothing
    /// made. The caller holds the tree lock.
    pub(crate) fn is_lost(&self, dir: &Arc<Node>) -> bool {
        self.lost_trees.load(Ordering::Acquire) > 0
            && dir.content_prefix(self.tree.epoch()).starts_with(layout::ORPHAN_AREA)
    }

    /// True if every entry of the directory is known: as many are known as there are.
    fn is_complete(&self, dir: &Node, names: &Names) -> bool {
        dir.dir().role == Role::Tree && names.present() == dir.state().inode.size
    }

    /// Takes up what the store said about a name.
    pub(crate) fn learn(
        &self,
        dir: &Arc<Node>,
        names: &mut Names,
        name: impl AsRef<[u8]> + Into<Arc<[u8]>>,
        record: Option<Record>,
    ) -> Result<Option<Held<'_>>> {
        // Somebody else may have taken up the same in the meantime.
        match self.known(dir, names, name.as_ref()) {
            Look::Held(held) => return Ok(Some(held)),
            Look::Absent => return Ok(None),
            Look::Ask => {}
        }
        let Some(record) = record else {
            self.set_name(dir, names, name, Known::Absent);
            return Ok(None);
        };
        match record {
            Record::Inode(inode) => Ok(Some(self.add_entry(dir, names, name, inode, self.volume.last_lsn()))),
            Record::Link(link) => {
                let held = self.linked(dir, &link).map_err(|e| self.at(dir, name.as_ref(), e))?;
                self.set_name(dir, names, name, Known::Present(held.id));
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
    ) -> Held<'_> {
        let name = name.into();
        let place = Place { parent: Some(dir.clone()), name: name.clone() };
        let node = Node::new(self.nodes.fresh_id(), place, inode, dir.dir().sum, lsn);
        self.nodes.acquire(dir.id);
        self.nodes.add(&node);
        self.set_name(dir, names, name, Known::Present(node.id));
        Held::adopt(self, node)
    }

    /// The node of a file in the link area that serves `dir`.
    fn linked(&self, dir: &Arc<Node>, link: &Link) -> Result<Held<'_>> {
        let area = self.area_of(dir)?;
        let name = layout::area_name(link.id);
        // Locked before names it may need to know about: those of the area come last.
        self.known_counts(&area)?;
        let mut names = area.dir().names.lock();
        if let Look::Held(held) = self.known(&area, &names, &name) {
            return Ok(held);
        }
        let epoch = self.tree.epoch();
        let key = layout::entry_key(&area.content_prefix(epoch), &name);
        let value = self.volume.store.get(self.volume.metadata(), &key)?;
        match value.map(|v| Record::decode(&v)).transpose()? {
            Some(Record::Inode(mut inode)) if inode.kind == link.kind => {
                inode.links = area.counted_names(link.id).unwrap_or(inode.links);
                Ok(self.add_entry(&area, &mut names, &name[..], inode, self.volume.last_lsn()))
            }
            _ => fail(
                FsErrorKind::Io,
                format!("the file it links to, number {:#x} of the link area, is missing", link.id),
            ),
        }
    }

    /// Remembers something about a name, and counts the memory.
    pub(crate) fn set_name(
        &self,
        dir: &Node,
        names: &mut Names,
        name: impl AsRef<[u8]> + Into<Arc<[u8]>>,
        known: Known,
    ) {
        dir.dir().used.store(true, Ordering::Relaxed);
        let grown = names.set(name, known);
        dir.dir().name_bytes.fetch_add(grown, Ordering::Relaxed);
        self.name_bytes.fetch_add(grown, Ordering::Relaxed);
    }

    /// Adds to an error where it came up.
    pub(crate) fn at(&self, dir: &Node, name: &[u8], error: FsError) -> FsError {
        error.context(format_args!("entry {} of directory {}", layout::show(name), dir.ino))
    }

    /// Forgets names of directories that were not used lately, while they take more memory than
    /// allowed. Called without locks.
    pub(crate) fn trim_names(&self) {
        let mut steps = 2 * self.nodes.shard_count();
        while self.name_bytes.load(Ordering::Relaxed) > self.volume.options.name_memory && steps > 0 {
            steps -= 1;
            let shard = self.sweep.fetch_add(1, Ordering::Relaxed);
            for node in self.nodes.directories(shard) {
                let directory = node.dir();
                if directory.used.swap(false, Ordering::Relaxed) && steps > self.nodes.shard_count() / 2 {
                    continue;
                }
                if let Some(mut names) = directory.names.try_lock() {
                    let freed = names.shrink(|id| self.nodes.is_live(id));
                    directory.name_bytes.fetch_sub(freed, Ordering::Relaxed);
                    self.name_bytes.fetch_sub(freed, Ordering::Relaxed);
                }
            }
        }
    }
}

/// What memory says about a name.
enum Look<'a> {
    Held(Held<'a>),
    Absent,
    Ask,
}

/// The error for a name that is not there.
pub(crate) fn no_entry(name: &[u8]) -> FsError {
    FsError::new(FsErrorKind::NotFound, format!("there is no entry {}", layout::show(name)))
}
