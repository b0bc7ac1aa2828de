//! Removing entries.

use crate::file_system::{Deferred, FileSystem, Held, check_name};
use crate::inode::node::{Known, Node, Orphan, Place, State, States};
use crate::inode::tree_lock::TreeGuard;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::Inode;
use crate::model::types::*;
use crate::namespace::create::uncount_entry;
use crate::namespace::lookup::no_entry;
use espalier_engine::{Batch, Lsn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the removal of a name changes in memory, once it is committed.
pub(crate) struct Removal {
    inode: Inode,
    orphan: Orphan,
}

/// An entry that leads to a node.
pub(crate) struct Name<'a> {
    pub(crate) dir: &'a Arc<Node>,
    pub(crate) name: &'a [u8],
    pub(crate) node: &'a Arc<Node>,
}

impl Name<'_> {
    /// The key of the entry.
    pub(crate) fn key(&self, tree: &TreeGuard<'_>) -> Vec<u8> {
        layout::entry_key(&self.dir.content_prefix(tree.epoch), self.name)
    }
}

impl FileSystem {
    /// Removes the entry of something that is no directory.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::IsDirectory`]; of the store.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let dir = self.dir(parent)?;
        check_name(name)?;
        self.volume.check_writable()?;
        let mut deferred = Deferred::new(self);
        let held: Held<'_>;
        let tree = self.tree.shared();
        let mut names = dir.dir().names.lock();
        held = self.resolve(&tree, &dir, &mut names, name)?.ok_or_else(|| no_entry(name))?;
        if held.is_dir() {
            return fail(FsErrorKind::IsDirectory, format!("{} is a directory", layout::show(name)));
        }
        let mut states = States::lock(&[&dir, &held]);
        let now = self.volume.now();
        let mut batch = Batch::new();
        let gone = Name { dir: &dir, name, node: &held };
        let removal = self.remove_name(&tree, &gone, states.of(&held), now, false, &mut batch)?;
        let mut above = states.of(&dir).inode.clone();
        uncount_entry(&mut above, held.kind, now);
        self.put(&tree, &dir, states.of(&dir), &above, &mut batch);
        let lsn = self.volume.commit(batch)?;
        self.take_over(&dir, states.of(&dir), above, lsn);
        self.removed(&held, states.of(&held), removal, lsn, &mut deferred);
        names.version += 1;
        self.set_name(&dir, &mut names, name, Known::Absent);
        Ok(())
    }

    /// Adds to a batch that a file loses a name. The caller holds a reference on the node, and no
    /// more. `vacate`: the place is needed at once, so nothing may be left there.
    pub(crate) fn remove_name(
        &self,
        tree: &TreeGuard<'_>,
        name: &Name<'_>,
        state: &State,
        now: i64,
        vacate: bool,
        batch: &mut Batch,
    ) -> Result<Removal> {
        let node = name.node;
        let key: Arc<[u8]> = name.key(tree).into();
        let mut inode = state.inode.clone();
        inode.links = inode.links.saturating_sub(1);
        inode.set_ctime(now);
        batch.delete(self.volume.metadata(), &key);
        let is_linked = !node.is_at(name.dir, name.name);
        let base = if is_linked { node.entry_key(tree.epoch).into() } else { key.clone() };
        if is_linked {
            batch.delete(self.volume.links(), &key);
            if inode.links > 0 {
                batch.insert(self.volume.metadata(), &base, inode.encode());
                return Ok(Removal { inode, orphan: Orphan::No });
            }
            batch.delete(self.volume.metadata(), &base);
        }
        inode.links = 0;
        let mut orphan = Orphan::Empty;
        if inode.has_data() {
            // One reference is the caller's. No new one can come: the name is locked.
            if self.nodes.references(node.id) > 1 {
                orphan = if vacate && !is_linked {
                    self.detach_away(node, &inode, &base, batch)?
                } else {
                    self.detach(node, base, batch)
                };
            } else {
                self.delete_data(&base, &inode, batch);
            }
        }
        Ok(Removal { inode, orphan })
    }

    /// Takes over in memory what [`FileSystem::remove_name`] prepared.
    pub(crate) fn removed(
        &self,
        node: &Arc<Node>,
        state: &mut State,
        removal: Removal,
        lsn: Lsn,
        deferred: &mut Deferred<'_>,
    ) {
        let Removal { inode, orphan } = removal;
        let place = node.place();
        if let (Some(area), Some(id)) = (&place.parent, layout::area_id(&place.name)) {
            area.count_names(id, inode.links);
        }
        let is_gone = inode.links == 0;
        self.take_over(node, state, inode, lsn);
        if is_gone {
            self.become_orphan(node, state, orphan, deferred);
        }
    }

    /// In memory, a file without names moves to the orphan area.
    pub(crate) fn become_orphan(
        &self,
        node: &Arc<Node>,
        state: &mut State,
        orphan: Orphan,
        deferred: &mut Deferred<'_>,
    ) {
        let name = layout::area_name(node.id.0);
        if let Orphan::Data(base) = &orphan {
            self.volume.counters.orphans.fetch_add(1, Ordering::Relaxed);
            if **base != layout::orphan_key(node.id.0) {
                self.detached.lock().insert(base.clone(), node.id);
            }
        }
        state.orphan = orphan;
        self.nodes.acquire(self.orphans.id);
        let old = node.set_place(Place { parent: Some(self.orphans.clone()), name: name[..].into() });
        if let Some(parent) = old.parent {
            deferred.release(parent.id);
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::NotDirectory`], [`FsErrorKind::NotEmpty`]; of the
    /// store.
    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let dir = self.dir(parent)?;
        match name {
            b"." => return fail(FsErrorKind::Invalid, "a directory cannot be removed by the name ."),
            b".." => return fail(FsErrorKind::NotEmpty, "the parent has at least this directory"),
            _ => check_name(name)?,
        }
        self.volume.check_writable()?;
        self.drain_below(&dir, name);
        let held: Held<'_>;
        let tree = self.tree.shared();
        let mut names = dir.dir().names.lock();
        held = self.resolve(&tree, &dir, &mut names, name)?.ok_or_else(|| no_entry(name))?;
        if !held.is_dir() {
            return fail(FsErrorKind::NotDirectory, format!("{} is no directory", layout::show(name)));
        }
        let mut below = held.dir().names.lock();
        check_empty(&held)?;
        let content = layout::content_range(&held.content_prefix(tree.epoch));
        let swallowed = self.swallow(&content);
        self.evacuate(&content)?;
        let mut states = States::lock(&[&dir, &held]);
        let mut batch = Batch::new();
        let now = self.volume.now();
        self.remove_dir(&tree, &held, states.of(&held), &mut batch);
        let mut above = states.of(&dir).inode.clone();
        uncount_entry(&mut above, FileKind::Directory, now);
        self.put(&tree, &dir, states.of(&dir), &above, &mut batch);
        swallowed.add_to(&mut batch);
        let lsn = self.volume.commit(batch)?;
        self.take_over(&dir, states.of(&dir), above, lsn);
        self.removed_dir(&held, states.of(&held), now, lsn);
        drop(states);
        below.dead = true;
        names.version += 1;
        self.set_name(&dir, &mut names, name, Known::Absent);
        swallowed.gone();
        Ok(())
    }

    /// Has references given back that are in the way of removing or moving a directory.
    pub(crate) fn drain_below(&self, dir: &Arc<Node>, name: &[u8]) {
        if self.volume.options.forget_drain.is_none() || self.detached.lock().is_empty() {
            return;
        }
        let range = {
            let tree = self.tree.shared();
            layout::content_range(&layout::content_prefix(&dir.content_prefix(tree.epoch), name))
        };
        self.drain_forgets(&range);
    }

    /// Adds to a batch that the empty directory `node` goes: its entry, and one range in each
    /// index, which swallows the messages that emptied it.
    pub(crate) fn remove_dir(
        &self,
        tree: &TreeGuard<'_>,
        node: &Arc<Node>,
        state: &State,
        batch: &mut Batch,
    ) {
        let key = node.entry_key(tree.epoch);
        let content = layout::content_range(&node.content_prefix(tree.epoch));
        batch.delete(self.volume.metadata(), &key);
        if state.inode.has_large_xattrs() {
            batch.delete_range(self.volume.data(), layout::file_range(&key));
        }
        batch.delete_range(self.volume.metadata(), content.clone());
        if self.any_links.load(Ordering::Relaxed) {
            batch.delete_range(self.volume.links(), content.clone());
        }
        batch.delete_range(self.volume.data(), content);
    }

    /// In memory, a directory is gone. Its node stays until it is forgotten.
    pub(crate) fn removed_dir(&self, node: &Arc<Node>, state: &mut State, now: i64, lsn: Lsn) {
        let mut inode = state.inode.clone();
        inode.set_ctime(now);
        inode.xattrs = None;
        self.take_over(node, state, inode, lsn);
        state.orphan = Orphan::Empty;
    }
}

/// Refuses to remove a directory that has entries. The caller holds its names, so none can come.
pub(crate) fn check_empty(dir: &Arc<Node>) -> Result<()> {
    match dir.state().inode.size {
        0 => Ok(()),
        entries => fail(FsErrorKind::NotEmpty, format!("the directory has {entries} entries")),
    }
}
