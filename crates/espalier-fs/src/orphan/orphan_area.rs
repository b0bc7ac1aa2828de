//! Files without a name that somebody still holds.
//!
//! The kernel holds a file while it is unlinked, and does not say whether anybody has it open. So
//! unlinking moves nothing: the entry goes, the data stays where it is (*detached*), and a record
//! in the orphan area names the place. With the last reference data and record go, those of small
//! files together ([`crate::orphan::deferred_unlink`]). Recovery does the same for every record that it finds.
//!
//! Whoever needs the place sooner (a new entry of that name, a move or removal of the directory)
//! moves the data into the orphan area first ([`FileSystem::evacuate`]).

use crate::file_system::FileSystem;
use crate::inode::node::{Node, Orphan, State};
use crate::inode::tree_lock::TreeGuard;
use crate::model::error::Result;
use crate::model::layout;
use crate::model::record::{self, Inode, OrphanRecord};
use crate::model::types::{FileKind, NodeId};
use espalier_engine::{Batch, KeyRange, LARGE_VALUE, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Records that recovery removes with one batch.
const RECOVERY_BATCH: usize = 1024;

/// The key of the record of an unlinked file.
pub(crate) fn record_key(id: NodeId) -> [u8; layout::ORPHAN_KEY] {
    layout::orphan_key(id.0)
}

impl FileSystem {
    /// True if there is work when the last reference on `node` goes.
    pub(crate) fn is_orphan(&self, node: &Node) -> bool {
        matches!(node.state().orphan, Orphan::Data(_) | Orphan::Tree)
    }

    /// Where the data and large attributes of `node` lie.
    pub(crate) fn data_base(&self, tree: &TreeGuard<'_>, node: &Node, state: &State) -> Arc<[u8]> {
        match &state.orphan {
            Orphan::No => node.entry_key(tree.epoch).into(),
            Orphan::Data(base) => base.clone(),
            Orphan::Empty | Orphan::Tree => record_key(node.id).into(),
        }
    }

    /// Adds to a batch what is needed before data of a file without a name can be stored.
    /// The caller gives the state the result after the commit.
    #[must_use]
    pub(crate) fn record_orphan(&self, node: &Node, state: &State, batch: &mut Batch) -> Option<Orphan> {
        if state.orphan != Orphan::Empty {
            return None;
        }
        let key = record_key(node.id);
        batch.insert_new(self.volume.metadata(), &key, record::encode_orphan(&key));
        node.pending.store(true, Ordering::Release);
        Some(Orphan::Data(key.into()))
    }

    /// Adds to a batch that the data at `base` now belongs to a file without a name.
    pub(crate) fn detach(&self, node: &Node, base: Arc<[u8]>, batch: &mut Batch) -> Orphan {
        batch.insert_new(self.volume.metadata(), &record_key(node.id), record::encode_orphan(&base));
        node.pending.store(true, Ordering::Release);
        Orphan::Data(base)
    }

    /// Adds to a batch that the data at `base` moves to the orphan area.
    pub(crate) fn detach_away(
        &self,
        node: &Node,
        inode: &Inode,
        base: &[u8],
        batch: &mut Batch,
    ) -> Result<Orphan> {
        let key = record_key(node.id);
        node.version.fetch_add(1, Ordering::AcqRel);
        self.move_file(inode, base, &key, batch)?;
        batch.insert(self.volume.metadata(), &key, record::encode_orphan(&key));
        node.pending.store(true, Ordering::Release);
        Ok(Orphan::Data(key.into()))
    }

    /// Adds to a batch that everything of a file in the data index moves. Values move by reference.
    pub(crate) fn move_file(&self, inode: &Inode, from: &[u8], to: &[u8], batch: &mut Batch) -> Result<()> {
        if self.is_large(inode) {
            let xattrs = inode.has_large_xattrs();
            for (from, to) in layout::file_prefixes(from, xattrs).zip(layout::file_prefixes(to, xattrs)) {
                batch.move_range(self.volume.data(), &from, &to);
            }
            return Ok(());
        }
        self.read_file(inode, from, |key, value| {
            batch.insert(self.volume.data(), &layout::rebase(key, from, to), value)
        })?;
        self.delete_data(from, inode, batch);
        Ok(())
    }

    /// Gives keys and values of everything that a file has in the data index at `base`.
    pub(crate) fn read_file(
        &self,
        inode: &Inode,
        base: &[u8],
        mut each: impl FnMut(&[u8], Value),
    ) -> Result<()> {
        let is_tiny = inode.kind == FileKind::Regular && inode.size < LARGE_VALUE as u64;
        if is_tiny && !inode.has_large_xattrs() {
            // One key at most, whose value lies beside it: no need for a walk.
            let key = layout::block_key(base, 0);
            if let Some(value) = self.volume.store.get(self.volume.data(), &key)? {
                each(&key, value.into());
            }
            return Ok(());
        }
        let mut cursor = self.volume.store.cursor(self.volume.data(), layout::file_range(base))?;
        while let Some(entry) = cursor.next()? {
            each(&entry.key, entry.value);
        }
        Ok(())
    }

    /// The last reference on a file without a name is gone, and with it its data.
    pub(crate) fn remove_orphan(&self, tree: &TreeGuard<'_>, node: &Arc<Node>) -> Result<()> {
        if node.state().orphan == Orphan::Tree {
            return self.remove_orphan_tree(tree, node);
        }
        self.remove_orphan_file(node, &mut node.state())
    }

    /// Removes data and record of a file without a name that nobody holds.
    pub(crate) fn remove_orphan_file(&self, node: &Node, state: &mut State) -> Result<()> {
        let Orphan::Data(base) = state.orphan.clone() else { return Ok(()) };
        let mut batch = Batch::new();
        self.delete_data(&base, &state.inode, &mut batch);
        batch.delete(self.volume.metadata(), &record_key(node.id));
        // If that fails all stays as it is: as long as the record names the place, nobody else may
        // have it.
        self.volume.commit_internal(batch)?;
        self.forget_data(state);
        Ok(())
    }

    /// Nobody holds anything in a tree that was removed: it goes.
    fn remove_orphan_tree(&self, tree: &TreeGuard<'_>, node: &Arc<Node>) -> Result<()> {
        let content = layout::content_range(&node.content_prefix(tree.epoch));
        self.evacuate(&content)?;
        let mut batch = Batch::new();
        self.delete_tree_record(&record_key(node.id), &mut batch);
        let result = self.volume.commit_internal(batch);
        // If that failed, recovery removes it: nobody else gets this place, as no other node has
        // the number.
        node.state().orphan = Orphan::Empty;
        self.volume.counters.orphans.fetch_sub(1, Ordering::Relaxed);
        self.lost_trees.fetch_sub(1, Ordering::AcqRel);
        result.map(|_| ())
    }

    /// Adds to a batch that a tree in the orphan area goes, whose record lies at `key`.
    pub(crate) fn delete_tree_record(&self, key: &[u8], batch: &mut Batch) {
        batch.delete(self.volume.metadata(), key);
        batch.delete_range(self.volume.data(), layout::file_range(key));
        if let Some(parsed) = layout::parse(key) {
            let content = layout::content_range(&layout::content_prefix(parsed.prefix, &parsed.name));
            batch.delete_range(self.volume.metadata(), content.clone());
            batch.delete_range(self.volume.data(), content.clone());
            if self.any_links.load(Ordering::Relaxed) {
                batch.delete_range(self.volume.links(), content);
            }
        }
    }

    /// True if detached data lies in `range`.
    pub(crate) fn is_detached_in(&self, range: &KeyRange) -> bool {
        self.detached.lock().range::<[u8], _>(range.bounds()).next().is_some()
    }

    /// Moves detached data out of `range`. The caller holds what keeps more from coming: the names
    /// of the directory concerned, or the exclusive tree lock; and no states.
    pub(crate) fn evacuate(&self, range: &KeyRange) -> Result<()> {
        if !self.is_detached_in(range) {
            return Ok(());
        }
        self.remove_forgotten_in(range);
        loop {
            let next =
                self.detached.lock().range::<[u8], _>(range.bounds()).next().map(|(b, id)| (b.clone(), *id));
            let Some((base, id)) = next else { return Ok(()) };
            let Some(node) = self.nodes.get(id) else { continue };
            let mut state = node.state();
            if state.orphan != Orphan::Data(base.clone()) {
                continue;
            }
            let mut batch = Batch::new();
            let orphan = self.detach_away(&node, &state.inode, &base, &mut batch)?;
            state.lsn = self.volume.commit_internal(batch)?;
            state.orphan = orphan;
            self.detached.lock().remove(&base);
        }
    }

    /// Moves detached data away from the place of one file.
    pub(crate) fn evacuate_file(&self, base: &[u8]) -> Result<()> {
        if self.detached.lock().contains_key(base) {
            return self.evacuate(&KeyRange::new(base, [base, &[0]].concat()));
        }
        Ok(())
    }

    /// Has references given back that the kernel no longer needs, if some are in the way in
    /// `range`. Called without locks.
    pub(crate) fn drain_forgets(&self, range: &KeyRange) {
        if let Some(drain) = &self.volume.options.forget_drain
            && self.is_detached_in(range)
        {
            drain();
        }
    }

    /// Has the mount give back its references to unlinked files, if there are such files; true if
    /// there were. When a call finds no space it is worth another try then: what was unlinked a
    /// moment ago holds its blocks until the kernel has let go of it. Called without locks.
    pub fn release_unlinked(&self) -> bool {
        let Some(drain) = &self.volume.options.forget_drain else { return false };
        // Files that were made without a name are not detached from anywhere.
        if self.detached.lock().is_empty() && self.forgotten.lock().is_empty() {
            return false;
        }
        drain();
        self.remove_forgotten();
        true
    }

    /// Removes what unlinked files left behind when the store was last used.
    pub(crate) fn empty_orphan_area(&self) -> Result<()> {
        let mut cursor =
            self.volume.store.cursor(self.volume.metadata(), layout::entries_range(layout::ORPHAN_AREA))?;
        let mut batch = Batch::new();
        while let Some(entry) = cursor.next()? {
            let record = cursor.read(&entry.value)?;
            match OrphanRecord::decode(&record)? {
                OrphanRecord::Tree => self.delete_tree_record(&entry.key, &mut batch),
                OrphanRecord::File(base) => {
                    batch.delete_range(self.volume.data(), layout::file_range(base));
                    batch.delete(self.volume.metadata(), &entry.key);
                }
            }
            if batch.len() >= RECOVERY_BATCH {
                self.volume.commit_internal(std::mem::take(&mut batch))?;
            }
        }
        if !batch.is_empty() {
            self.volume.commit_internal(batch)?;
        }
        Ok(())
    }
}
