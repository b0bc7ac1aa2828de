//! Link areas: where files with several names live.
//!
//! A file with several names lies in the link area of the nearest directory above that has one: the
//! root, and the top directories of clones that hold links. The names are entries that contain its
//! number in the area; the links index lists them by path ([`crate::volume::link_index`]).
//!
//! A clone whose links led to an area outside of it gets a copy of that area at its own top. The
//! copy also holds files without names there, and its files count names that were not cloned: its
//! link counts are *stale*, and the mark in the links index says so. They are counted once, when a
//! file in the area is first looked up, and the background corrects the stored counts and deletes
//! the files without a name ([`LinkAreas::correct_all`]).

use crate::inode::node::{LinkCounts, Node, Role};
use crate::inode::node_table::NodeTable;
use crate::lock_order::RankedMutex;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::AreaMark;
use crate::model::types::NodeId;
use crate::orphan::orphan_area::Orphans;
use crate::references::{HeldNode, References};
use crate::volume::context::VolumeContext;
use crate::volume::link_index::LinkIndex;
use crate::volume::tree_lock::TreeLock;
use espalier_engine::{Batch, IndexId, Key, KeyRange};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Operations in one batch of corrections.
const CORRECTION_BATCH_OPERATIONS: usize = 1024;

pub(crate) struct LinkAreas {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) links: Arc<LinkIndex>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) references: Arc<References>,
    /// Areas whose stale link counts the background corrects, with a reference on each.
    pub(crate) stale: RankedMutex<Vec<NodeId>>,
}

impl LinkAreas {
    /// The node of the link area that serves `dir`. The caller holds the tree lock.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`] in a removed tree.
    pub(crate) fn area_of(&self, dir: &Arc<Node>) -> Result<HeldNode<'_>> {
        match dir.link_area_directory() {
            Some(top) => Ok(self.area_at(&top)),
            None => fail(FsErrorKind::NotFound, "the directory was removed"),
        }
    }

    /// The node of the link area of `top`, which has one.
    fn area_at(&self, top: &Arc<Node>) -> HeldNode<'_> {
        let mut area = top.dir().link_area.node.lock();
        if let Some(node) = area.and_then(|id| self.nodes.acquire(id)) {
            return self.references.adopt(node);
        }
        let node = Node::new_area(self.nodes.temporary_identity(), top, Role::LinkArea);
        self.nodes.acquire(top.id);
        self.nodes.add(&node);
        *area = Some(node.id);
        self.references.adopt(node)
    }

    /// Finds out whether the link counts in an area are right, and counts names if they are stale.
    pub(crate) fn load_link_counts(&self, area: &Arc<Node>) -> Result<()> {
        let mut counts = area.dir().link_counts.lock();
        if !matches!(*counts, LinkCounts::Unknown) {
            return Ok(());
        }
        let Some(top) = area.place().parent else { return Ok(()) };
        let prefix = top.content_prefix(self.tree.epoch());
        if !self.links.has_stale_counts(&prefix)? {
            *counts = LinkCounts::Right;
            return Ok(());
        }
        let mut found = HashMap::new();
        self.links.for_each_below(&prefix, |_, id| {
            *found.entry(id).or_insert(0u32) += 1;
            true
        })?;
        *counts = LinkCounts::Counted(found);
        drop(counts);
        self.plan_correction(area);
        Ok(())
    }

    /// Has the background correct the stale link counts of an area.
    pub(crate) fn plan_correction(&self, area: &Arc<Node>) {
        if self.volume.options.read_only {
            return;
        }
        let mut stale = self.stale.lock();
        if !stale.contains(&area.id) && self.nodes.acquire(area.id).is_some() {
            stale.push(area.id);
        }
    }

    /// Corrects the link counts of all areas that wait for it. Called without locks.
    pub(crate) fn correct_all(&self) -> Result<()> {
        let waiting = std::mem::take(&mut *self.stale.lock());
        let mut result = Ok(());
        for id in waiting {
            result = result.and(self.correct(id));
            self.references.release(id, 1);
        }
        result
    }

    /// Corrects the link counts of one area and deletes the files without a name in it.
    fn correct(&self, id: NodeId) -> Result<()> {
        let tree = self.tree.exclusive();
        let Some(area) = self.nodes.get(id) else { return Ok(()) };
        let Some(top) = area.place().parent.filter(|top| !top.is_removed()) else { return Ok(()) };
        let prefix = top.content_prefix(tree.epoch);
        let mark = self.links.area_mark(&prefix)?;
        if !mark.stale_counts {
            return Ok(());
        }
        // Unlinked files in use whose data still lies there are not to lose it.
        self.orphans.move_away(&KeyRange::prefix(&layout::area_files(&prefix)))?;
        let counts = self.links.count_below(&prefix)?;
        let names = layout::area_prefix(&prefix);
        let mut batch = Batch::new();
        for index in [self.volume.metadata(), self.volume.data()] {
            for range in self.ranges_without_names(index, &prefix, &counts)? {
                batch.delete_range(index, range);
                self.commit_if_full(&mut batch)?;
            }
        }
        for (id, count) in counts {
            let mut inode = self.links.inode_in_area(&names, id)?;
            if inode.links != count {
                inode.links = count;
                let key = layout::entry_key(&names, &layout::area_name(id));
                batch.insert(self.volume.metadata(), &key, inode.encode());
                self.commit_if_full(&mut batch)?;
            }
        }
        let mark = AreaMark { stale_counts: false, ..mark };
        batch.insert(self.volume.links(), &prefix, mark.encode());
        self.volume.commit_internal(batch)?;
        *area.dir().link_counts.lock() = LinkCounts::Right;
        Ok(())
    }

    fn commit_if_full(&self, batch: &mut Batch) -> Result<()> {
        if batch.len() >= CORRECTION_BATCH_OPERATIONS {
            self.volume.commit_internal(std::mem::take(batch))?;
        }
        Ok(())
    }

    /// The ranges of an index, within the area at a content prefix, between the files that are
    /// `named`. Ranges that hold nothing are left out: most copies need no deletion, and each range
    /// would wait in the tree as a message.
    fn ranges_without_names(
        &self,
        index: IndexId,
        prefix: &[u8],
        named: &BTreeMap<u64, u32>,
    ) -> Result<Vec<KeyRange>> {
        let all = KeyRange::prefix(&layout::area_files(prefix));
        let names = layout::area_prefix(prefix);
        let mut named = named.keys().map(|id| Key::from(layout::entry_key(&names, &layout::area_name(*id))));
        let mut found = Vec::new();
        let mut behind = all.start.clone();
        let mut next = named.next();
        let mut cursor = self.volume.store.cursor(index, all.clone())?;
        while let Some(entry) = cursor.next()? {
            while let Some(end) = next.as_deref().map(|file| Key::from([file, &[2]].concat()))
                && end <= entry.key
            {
                behind = end;
                next = named.next();
            }
            match &next {
                // One key of a file shows that it is there; it may have many blocks.
                Some(file) if *file <= entry.key => cursor.seek(&[file, &[2][..]].concat()),
                Some(file) => {
                    found.push(KeyRange { start: behind.clone(), end: Some(file.clone()) });
                    cursor.seek(file);
                }
                None => {
                    found.push(KeyRange { start: behind, end: all.end });
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// True if different link areas serve two directories.
pub(crate) fn are_served_apart(one: &Arc<Node>, other: &Arc<Node>) -> bool {
    one.link_area_directory().map(|top| top.id) != other.link_area_directory().map(|top| top.id)
}

#[cfg(test)]
mod tests;
