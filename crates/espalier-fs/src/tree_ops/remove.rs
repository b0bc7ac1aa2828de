//! Removal of a directory with everything below, at once.
//!
//! If nobody holds anything below, one range in each index goes. Otherwise the tree moves into the
//! orphan area, where what is held can be used until it is given up, but nothing is found by its
//! name, and nothing made; the last reference takes the tree away, or recovery does. Names of files
//! in a link area outside are taken off one by one: that is the part whose cost grows, with the
//! number of such names.

use crate::file_system::{Deferred, FileSystem, Held, check_name};
use crate::inode::node::{Known, Node, Orphan, Place};
use crate::inode::tree_lock::TreeGuard;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, Record};
use crate::model::types::*;
use crate::namespace::create::{count_entry, uncount_entry};
use crate::namespace::lookup::no_entry;
use crate::orphan::orphan_area::record_key;
use espalier_engine::{Batch, Lsn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file in a link area that loses names.
struct Loss<'a> {
    held: Held<'a>,
    inode: Inode,
    orphan: Orphan,
}

impl FileSystem {
    /// Removes directory `name` of `parent` and everything below it. What is in use there can be
    /// used as long as somebody holds it. The cost does not depend on what is below, but for names
    /// of files with several names.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::NotDirectory`]; [`FsErrorKind::Permission`] if the
    /// caller is not root, and something there is not the caller's own or has set-id bits or
    /// capabilities; of the store.
    pub fn remove_tree(&self, parent: NodeId, name: &[u8], caller: &Caller) -> Result<()> {
        let dir = self.dir(parent)?;
        check_name(name)?;
        self.volume.check_writable()?;
        self.drain_below(&dir, name);
        let mut deferred = Deferred::new(self);
        let held: Held<'_>;
        let tree = self.tree.exclusive_for_move();
        let result = (|| {
            let mut names = dir.dir().names.lock();
            let held = self.resolve(&tree, &dir, &mut names, name)?.ok_or_else(|| no_entry(name))?;
            if !held.is_dir() {
                return fail(FsErrorKind::NotDirectory, format!("{} is no directory", layout::show(name)));
            }
            self.check_owned_alone(&held, tree.epoch, caller)?;
            self.take_tree(&tree, &dir, &held, None, &mut deferred)?;
            names.version += 1;
            self.set_name(&dir, &mut names, name, Known::Absent);
            Ok(held)
        })();
        // Given back after the locks: that may be what takes the tree away.
        held = result?;
        drop(tree);
        drop(held);
        Ok(())
    }

    /// Takes a tree away, and puts another one in its place if there is one: its inode, and a batch
    /// that gives it its content. The caller holds the exclusive tree lock and the names of `dir`.
    pub(crate) fn take_tree(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        node: &Arc<Node>,
        replacement: Option<(&Inode, Batch)>,
        deferred: &mut Deferred<'_>,
    ) -> Result<Lsn> {
        let content = node.content_prefix(tree.epoch);
        let range = layout::content_range(&content);
        self.evacuate(&range)?;
        let (key, now) = (node.entry_key(tree.epoch), self.volume.now());
        let mut batch = Batch::new();
        let losses = self.take_names(tree, node, &content, now, &mut batch)?;
        let mut inode = node.state().inode.clone();
        inode.set_ctime(now);
        batch.delete(self.volume.metadata(), &key);
        if inode.has_large_xattrs() {
            batch.delete_range(self.volume.data(), layout::file_range(&key));
        }
        (inode.xattrs, inode.size, inode.links) = (None, 0, 0);
        if self.any_links.load(Ordering::Relaxed) {
            batch.delete_range(self.volume.links(), range.clone());
        }
        // One reference is the caller's; every node below has one on its parent.
        let is_held = self.nodes.references(node.id) > 1;
        if is_held {
            let record = record_key(node.id);
            let aside = layout::content_prefix(layout::ORPHAN_AREA, &layout::area_name(node.id.0));
            batch.insert(self.volume.metadata(), &record, inode.encode());
            batch.move_range(self.volume.metadata(), &content, &aside);
            batch.move_range(self.volume.data(), &content, &aside);
        } else {
            batch.delete_range(self.volume.metadata(), range.clone());
            batch.delete_range(self.volume.data(), range);
        }
        let mut above = dir.state().inode.clone();
        uncount_entry(&mut above, FileKind::Directory, now);
        if let Some((new, content)) = replacement {
            batch.append(content);
            batch.insert(self.volume.metadata(), &key, new.encode());
            count_entry(&mut above, new, now)?;
        }
        self.put(tree, dir, &dir.state(), &above, &mut batch);
        let lsn = self.volume.commit(batch)?;
        self.take_over(dir, &mut dir.state(), above, lsn);
        self.lose_names(losses, lsn, deferred);
        node.dir().names.lock().dead = true;
        let mut state = node.state();
        self.take_over(node, &mut state, inode, lsn);
        state.orphan = if is_held { Orphan::Tree } else { Orphan::Empty };
        drop(state);
        if is_held {
            tree.changed_unasked(node.id);
            node.pending.store(true, Ordering::Release);
            self.volume.counters.orphans.fetch_add(1, Ordering::Relaxed);
            self.lost_trees.fetch_add(1, Ordering::AcqRel);
            self.nodes.acquire(self.orphans.id);
            let name = layout::area_name(node.id.0);
            let old = node.set_place(Place { parent: Some(self.orphans.clone()), name: name[..].into() });
            old.parent.iter().for_each(|parent| deferred.release(parent.id));
        }
        Ok(lsn)
    }

    /// Adds to a batch that the files of the area that serves `node` lose their names below.
    fn take_names<'a>(
        &'a self,
        tree: &TreeGuard<'_>,
        node: &Arc<Node>,
        content: &[u8],
        now: i64,
        batch: &mut Batch,
    ) -> Result<Vec<Loss<'a>>> {
        if node.dir().has_area() {
            return Ok(Vec::new());
        }
        let counts = self.count_below(content)?;
        let mut losses = Vec::new();
        if counts.is_empty() {
            return Ok(losses);
        }
        let area = self.area_of(node)?;
        self.known_counts(&area)?;
        for (id, count) in counts {
            let held = self.file_in_area(tree, &area, id)?;
            let mut inode = held.state().inode.clone();
            inode.links = inode.links.saturating_sub(count);
            inode.set_ctime(now);
            let home = held.entry_key(tree.epoch);
            let mut orphan = Orphan::No;
            if inode.links > 0 {
                batch.insert(self.volume.metadata(), &home, inode.encode());
            } else {
                batch.delete(self.volume.metadata(), &home);
                orphan = Orphan::Empty;
                if inode.has_data() && self.nodes.references(held.id) > 1 {
                    orphan = self.detach(&held, home.into(), batch);
                } else if inode.has_data() {
                    self.delete_data(&home, &inode, batch);
                }
            }
            tree.changed_unasked(held.id);
            losses.push(Loss { held, inode, orphan });
        }
        Ok(losses)
    }

    /// Takes over in memory what [`FileSystem::take_names`] prepared.
    fn lose_names(&self, losses: Vec<Loss<'_>>, lsn: Lsn, deferred: &mut Deferred<'_>) {
        for Loss { held, inode, orphan } in losses {
            let place = held.place();
            if let (Some(area), Some(id)) = (&place.parent, layout::area_id(&place.name)) {
                area.count_names(id, inode.links);
            }
            let mut state = held.state();
            self.take_over(&held, &mut state, inode, lsn);
            if orphan != Orphan::No {
                self.become_orphan(&held, &mut state, orphan, deferred);
            }
            drop(state);
            // The reference is given back when all locks are.
            deferred.release(held.keep().id);
        }
    }

    /// The node of file `id` in an area.
    pub(crate) fn file_in_area(&self, tree: &TreeGuard<'_>, area: &Arc<Node>, id: u64) -> Result<Held<'_>> {
        let name = layout::area_name(id);
        let mut names = area.dir().names.lock();
        if let Some(Known::Present(node)) = names.get(&name)
            && let Some(node) = self.nodes.acquire(node)
        {
            return Ok(Held::adopt(self, node));
        }
        let key = layout::entry_key(&area.content_prefix(tree.epoch), &name);
        match self.volume.store.get(self.volume.metadata(), &key)?.map(|v| Record::decode(&v)).transpose()? {
            Some(Record::Inode(mut inode)) if !inode.is_dir() => {
                inode.links = area.counted_names(id).unwrap_or(inode.links);
                Ok(self.add_entry(area, &mut names, &name[..], inode, self.volume.last_lsn()))
            }
            _ => fail(FsErrorKind::Io, format!("file {id:#x} of a link area is missing")),
        }
    }
}
