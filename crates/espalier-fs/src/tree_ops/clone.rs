//! Clones of files and directories.
//!
//! The clone of a directory is one range clone in each index, a new entry with a delta of its own
//! (so that all numbers below are new and none is written), and, where names of files with several
//! names lie below, a clone of the link area that serves them. It excludes every other operation
//! for the moment that takes, so it is a picture of one instant. Nothing in memory needs to know:
//! of what is new nobody has a node.

use crate::file_system::{FileSystem, Held};
use crate::inode::node::{Node, Orphan, States};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, LINK_COUNTS_RIGHT, LINK_COUNTS_STALE};
use crate::model::types::*;
use crate::namespace::create::{check_new_name, count_entry};
use espalier_engine::{Batch, KeyRange};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// As many delayed times of the last read are written before a clone is made.
const FEW_ATIMES: usize = 512;

impl FileSystem {
    /// Makes entry `name` in `parent` a clone of `source`, with everything below it: the same
    /// content, times, owners, modes and extended attributes, numbers of its own. Files with
    /// several names in the source have those names in the clone, and no others. The cost does not
    /// depend on the size.
    ///
    /// # Errors
    /// As for [`FileSystem::mkdir`]; [`FsErrorKind::NotFound`] if `source` was removed;
    /// [`FsErrorKind::Permission`] if the caller is not root, and something in the source is not
    /// the caller's own or has set-id bits or capabilities.
    pub fn clone_tree(&self, source: NodeId, parent: NodeId, name: &[u8], caller: &Caller) -> Result<Entry> {
        let (source, dir) = (self.node(source)?, self.dir(parent)?);
        check_new_name(name)?;
        self.volume.check_writable()?;
        let held = if source.is_dir() {
            // What was unlinked is not to be copied half.
            if let Some(parent) = &source.place().parent {
                self.drain_below(parent, &source.place().name);
            }
            // Delayed times of the last read come along while that costs little.
            if self.atimes.lock().len() <= FEW_ATIMES {
                self.write_atimes()?;
            }
            self.clone_directory(&source, &dir, name, caller)?
        } else {
            self.clone_file(&source, &dir, name, caller)?
        };
        self.volume.counters.creates.fetch_add(1, Ordering::Relaxed);
        self.trim_names();
        self.entry(held)
    }

    fn clone_directory(
        &self,
        source: &Arc<Node>,
        dir: &Arc<Node>,
        name: &[u8],
        caller: &Caller,
    ) -> Result<Held<'_>> {
        let tree = self.tree.exclusive();
        let mut names = dir.dir().names.lock();
        self.check_free(&tree, dir, &mut names, name)?;
        let from = source.content_prefix(tree.epoch);
        if from.starts_with(layout::ORPHAN_AREA) || source.state().orphan != Orphan::No {
            return fail(FsErrorKind::NotFound, "the directory was removed");
        }
        let prefix = dir.content_prefix(tree.epoch);
        let (key, to) = (layout::entry_key(&prefix, name), layout::content_prefix(&prefix, name));
        self.check_key(&key)?;
        self.check_lengths(&from, &to)?;
        self.check_owned_alone(source, tree.epoch, caller)?;
        self.evacuate_file(&key)?;
        self.evacuate(&layout::content_range(&from))?;

        let mut inode = source.state().inode.clone();
        let mut batch = Batch::new();
        self.clone_content(source, &from, &to, &mut inode, &mut batch)?;
        if inode.has_large_xattrs() {
            let old = source.entry_key(tree.epoch);
            self.read_file(&inode, &old, |xattr, value| {
                batch.insert(self.volume.data(), &layout::rebase(xattr, &old, &key), value);
            })?;
        }
        inode.delta = self.volume.env.random();
        self.clear_marks_unless(dir, &inode)?;
        batch.insert(self.volume.metadata(), &key, inode.encode());
        let mut state = dir.state();
        let mut above = state.inode.clone();
        count_entry(&mut above, &inode, self.volume.now())?;
        self.put(&tree, dir, &state, &above, &mut batch);
        let lsn = self.volume.commit(batch)?;
        self.volume.copied_now();
        self.take_over(dir, &mut state, above, lsn);
        drop(state);
        let has_area = inode.area;
        let held = self.add_entry(dir, &mut names, name, inode, lsn);
        names.version += 1;
        if has_area {
            let area = self.area_of(&held)?;
            self.plan_settling(&area);
        }
        Ok(held)
    }

    /// Adds to a batch that everything below content prefix `from` appears below `to`.
    pub(crate) fn clone_content(
        &self,
        source: &Arc<Node>,
        from: &[u8],
        to: &[u8],
        inode: &mut Inode,
        batch: &mut Batch,
    ) -> Result<()> {
        batch.clone_range(self.volume.metadata(), from, to);
        batch.clone_range(self.volume.data(), from, to);
        if self.any_links.load(Ordering::Relaxed) {
            self.clone_links(source, from, to, inode, batch)?;
        } else if from.is_empty() {
            inode.area = false;
        }
        if from.is_empty() {
            // Of the root comes along what is not below it: its attributes, the volume's state,
            // orphans.
            let own = [to, layout::ROOT_KEY].concat();
            batch.delete(self.volume.metadata(), &own);
            batch.delete_range(self.volume.data(), layout::file_range(&own));
            let orphans = KeyRange::prefix(&[to, layout::ORPHAN_AREA].concat());
            batch.delete_range(self.volume.metadata(), orphans.clone());
            batch.delete_range(self.volume.data(), orphans);
        }
        Ok(())
    }

    /// Adds to a batch what makes the links below a clone its own.
    fn clone_links(
        &self,
        source: &Arc<Node>,
        from: &[u8],
        to: &[u8],
        inode: &mut Inode,
        batch: &mut Batch,
    ) -> Result<()> {
        batch.clone_range(self.volume.links(), from, to);
        if source.dir().has_area() && !from.is_empty() {
            return Ok(());
        }
        let mut any = false;
        self.names_below(from, |_, _| {
            any = true;
            false
        })?;
        inode.area = any;
        if !any {
            return Ok(());
        }
        if from.is_empty() {
            let mark = self.volume.store.get(self.volume.links(), b"")?;
            let unsettled = mark.is_some_and(|mark| *mark == *LINK_COUNTS_STALE);
            batch.insert(
                self.volume.links(),
                to,
                if unsettled { LINK_COUNTS_STALE } else { LINK_COUNTS_RIGHT },
            );
            return Ok(());
        }
        let Some(top) = source.area_directory() else { return Ok(()) };
        // Numbers there keep their distance to those of entries.
        inode.area_delta = top.dir().area_sum.wrapping_sub(source.dir().sum);
        let area = layout::area_files(&top.content_prefix(self.tree.epoch()));
        // What was unlinked there, and is in use, is not to be copied.
        self.evacuate(&KeyRange::prefix(&area))?;
        let copy = layout::area_files(to);
        batch.clone_range(self.volume.metadata(), &area, &copy);
        batch.clone_range(self.volume.data(), &area, &copy);
        batch.insert(self.volume.links(), to, LINK_COUNTS_STALE);
        Ok(())
    }

    fn clone_file(
        &self,
        source: &Arc<Node>,
        dir: &Arc<Node>,
        name: &[u8],
        caller: &Caller,
    ) -> Result<Held<'_>> {
        let tree = self.tree.shared();
        let mut names = dir.dir().names.lock();
        self.check_free(&tree, dir, &mut names, name)?;
        let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
        self.check_key(&key)?;
        if source.is_removed() {
            return fail(FsErrorKind::NotFound, "the file was removed");
        }
        self.check_owned_alone(source, tree.epoch, caller)?;
        self.evacuate_file(&key)?;
        let number = self.fresh_number()?.wrapping_sub(dir.dir().sum);
        let promised = source.state().inode.clone();
        self.clear_marks_unless(dir, &promised)?;
        let mut states = States::lock(&[source, dir]);
        let state = states.of(source);
        if state.orphan != Orphan::No {
            return fail(FsErrorKind::NotFound, "the file was removed");
        }
        let base = source.entry_key(tree.epoch);
        let mut inode = state.inode.clone();
        (inode.links, inode.number) = (1, number);
        let mut batch = Batch::new();
        if self.is_large(&inode) {
            let xattrs = inode.has_large_xattrs();
            let (from, to) = (layout::file_prefixes(&base, xattrs), layout::file_prefixes(&key, xattrs));
            for (from, to) in from.zip(to) {
                batch.clone_range(self.volume.data(), &from, &to);
            }
        } else if inode.has_data() {
            self.read_file(&inode, &base, |old, value| {
                batch.insert(self.volume.data(), &layout::rebase(old, &base, &key), value);
            })?;
        }
        batch.insert(self.volume.metadata(), &key, inode.encode());
        let mut above = states.of(dir).inode.clone();
        count_entry(&mut above, &inode, self.volume.now())?;
        self.put(&tree, dir, states.of(dir), &above, &mut batch);
        let lsn = self.volume.commit(batch)?;
        self.volume.copied_now();
        self.take_over(dir, states.of(dir), above, lsn);
        drop(states);
        let held = self.add_entry(dir, &mut names, name, inode, lsn);
        names.version += 1;
        Ok(held)
    }
}
