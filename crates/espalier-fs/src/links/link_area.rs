//! Link areas: where files with several names live.
//!
//! A file with several names lies in the link area of the nearest directory above that has one: the
//! root, and the top directories of clones that hold links. The names are entries that contain its
//! number in the area; the links index lists them by path ([`crate::volume::link_index`]).
//!
//! A clone whose links led to an area outside of it gets a copy of that area at its own top. The
//! copy also holds files without names there, and its files count names that were not cloned: its
//! link counts are *stale*, and the mark in the links index says so. Then names are counted, once
//! after each mount, when a file in the area is first looked up.
//!
//! So nothing has to be corrected, and a clone goes on sharing all with its source. Only the files
//! without a name matter in the end: they hold space when the source has lost them. If room is
//! short, [`crate::tree_ops::correct_areas`] deletes them and stores the right counts.

use crate::inode::node::{LinkCounts, Node, Role};
use crate::inode::node_table::NodeTable;
use crate::lock_order::RankedMutex;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::AreaMark;
use crate::orphan::orphan_area::Orphans;
use crate::references::{HeldNode, References};
use crate::volume::context::VolumeContext;
use crate::volume::link_index::LinkIndex;
use crate::volume::tree_lock::{TreeGuard, TreeLock};
use espalier_engine::{Batch, IndexId, Key, KeyRange};
use std::sync::Arc;

/// Files that are corrected while other operations wait; few in tests, for many steps.
const CORRECTED_AT_ONCE: usize = if cfg!(debug_assertions) { 3 } else { 1024 };

pub(crate) struct LinkAreas {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) links: Arc<LinkIndex>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) references: Arc<References>,
    /// How far the search for stale areas has come in the links index.
    pub(crate) searched: RankedMutex<Key>,
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
        *counts = LinkCounts::Counted(self.links.count_below(&prefix)?);
        Ok(())
    }

    /// Stores the right link counts of files in the area of `top` from number `first` on, and
    /// deletes the files without a name among them. Returns where to go on; `None` if the whole
    /// area is right. The caller holds the tree lock exclusively.
    pub(crate) fn correct_some(
        &self,
        tree: &TreeGuard<'_>,
        (top, area): (&Arc<Node>, &Arc<Node>),
        first: u64,
    ) -> Result<Option<u64>> {
        let prefix = top.content_prefix(tree.epoch);
        let mark = self.links.area_mark(&prefix)?;
        let named: Vec<(u64, u32)> = match &*area.dir().link_counts.lock() {
            LinkCounts::Counted(counted) if mark.stale_counts => {
                let named = counted.range(first..).filter(|(_, names)| **names > 0);
                named.map(|(id, names)| (*id, *names)).take(CORRECTED_AT_ONCE + 1).collect()
            }
            _ => return Ok(None),
        };
        // The rest begins behind the last file of this step, with the files without a name there.
        let (now, rest) = named.split_at(named.len().min(CORRECTED_AT_ONCE));
        let next = now.last().filter(|_| !rest.is_empty()).and_then(|(id, _)| id.checked_add(1));
        let names = layout::area_prefix(&prefix);
        let mut range = KeyRange::prefix(&layout::area_files(&prefix));
        if first > 0 {
            range.start = layout::entry_key(&names, &layout::area_name(first)).into();
        }
        if let Some(next) = next {
            range.end = Some(layout::entry_key(&names, &layout::area_name(next)).into());
        }
        // Unlinked files in use whose data still lies there are not to lose it.
        self.orphans.move_away(&range)?;
        let mut batch = Batch::new();
        for index in [self.volume.metadata(), self.volume.data()] {
            let ids = now.iter().map(|(id, _)| *id);
            let ranges = self.ranges_without_names(index, &names, range.clone(), ids)?;
            ranges.into_iter().for_each(|range| batch.delete_range(index, range));
        }
        for (id, count) in now {
            let mut inode = self.links.inode_in_area(&names, *id)?;
            if inode.links != *count {
                inode.links = *count;
                let key = layout::entry_key(&names, &layout::area_name(*id));
                batch.insert(self.volume.metadata(), &key, inode.encode());
            }
        }
        if next.is_none() {
            let mark = AreaMark { stale_counts: false, ..mark };
            batch.insert(self.volume.links(), &prefix, mark.encode());
        }
        self.volume.commit_internal(batch)?;
        if next.is_none() {
            *area.dir().link_counts.lock() = LinkCounts::Right;
        }
        Ok(next)
    }

    /// The ranges of an index, within the range `all` of an area, between the files that are
    /// `named`, by their numbers, ascending. Ranges that hold nothing are left out: most copies
    /// need no deletion, and each range would wait in the tree as a message.
    fn ranges_without_names(
        &self,
        index: IndexId,
        names: &[u8],
        all: KeyRange,
        named: impl Iterator<Item = u64>,
    ) -> Result<Vec<KeyRange>> {
        let mut named = named.map(|id| Key::from(layout::entry_key(names, &layout::area_name(id))));
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
