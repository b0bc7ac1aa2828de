//! Splitting of link areas.
//!
//! A directory gets a link area of its own where the area of a directory above served it: the files
//! all of whose names lie below move there, with new numbers in the area. Users do not see that:
//! `st_ino`, link counts and open files stay as they are. So it is a batch of its own, and a crash
//! after it leaves a tree in which everything is as it was before. A file that has names on both
//! sides can lie in neither area: then nothing is done.
//!
//! The cost is two keys for each name and those of each file, once.

use crate::data::blocks;
use crate::inode::forgotten::Location;
use crate::inode::inode_store::InodeStore;
use crate::inode::names::Known;
use crate::inode::node::Node;
use crate::inode::node_id::id_of;
use crate::inode::ownership::{Contradiction, OwnershipMarks};
use crate::links::link_area::LinkAreas;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::agrees_with_mark;
use crate::model::record::{AreaMark, Inode, Link};
use crate::references::DeferredReleases;
use crate::volume::state_record::VolumeStateRecord;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::{Batch, Key, Lsn};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file on its way to the lower area.
struct MovingFile {
    inode: Inode,
    /// Its number in the lower area.
    id: u64,
    names: Vec<Key>,
    /// Its node, if it is in memory.
    node: Option<Arc<Node>>,
}

pub(crate) struct AreaSplitter<'a> {
    pub(crate) areas: &'a LinkAreas,
    pub(crate) inodes: &'a InodeStore,
    pub(crate) ownership: &'a OwnershipMarks,
    pub(crate) state_record: &'a VolumeStateRecord,
}

impl AreaSplitter<'_> {
    /// Gives `top`, which has none and is not in a removed tree, a link area of its own. The caller
    /// holds the tree lock exclusively, for a move if names below lead to the area above, and holds
    /// no names and no states.
    ///
    /// # Errors
    /// [`FsErrorKind::Unsupported`] if a file has names below and elsewhere; of the store.
    pub(crate) fn split(
        &self,
        tree: &TreeGuard<'_>,
        top: &Arc<Node>,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<()> {
        let volume = &self.areas.volume;
        let upper = self.areas.area_of(top)?.keep_until(releases);
        let prefix = top.content_prefix(tree.epoch);
        let moving = self.moving_files(&upper, top, &prefix, releases)?;
        let mut batch = Batch::new();
        let (from, to) = (upper.content_prefix(tree.epoch), layout::area_prefix(&prefix));
        for (old, file) in &moving {
            let home = |area: &[u8], id: u64| layout::entry_key(area, &layout::area_name(id));
            let (old, new) = (home(&from, *old), home(&to, file.id));
            if file.inode.has_data() {
                blocks::move_all(volume, &file.inode, &old, &new, &mut batch)?;
            }
            batch.delete(volume.metadata(), &old);
            batch.insert(volume.metadata(), &new, file.inode.encode());
            let link = Link { kind: file.inode.kind, id: file.id, number: file.inode.number };
            for name in &file.names {
                batch.insert(volume.metadata(), name, link.encode());
                batch.insert(volume.links(), name, file.id.to_le_bytes().to_vec());
            }
            if let Some(node) = &file.node {
                node.version.fetch_add(1, Ordering::AcqRel);
            }
        }
        let mark = self.mark(tree, &upper, top, &moving)?;
        batch.insert(volume.links(), &prefix, mark.encode());
        let mut inode = top.state().inode.clone();
        inode.has_link_area = true;
        inode.link_area_delta = top.dir().link_area.sum.wrapping_sub(top.dir().sum);
        self.inodes.put(tree, top, &top.state(), &inode, &mut batch);
        let lsn = volume.commit_internal(batch)?;
        self.areas.links.set_in_use();
        top.take_over(&mut top.state(), inode, lsn);
        top.dir().link_area.exists.store(true, Ordering::Release);
        self.moved(&upper, top, moving, lsn, releases)
    }

    /// The mark of the lower area. Of the owners that the area above doubts it doubts those whose
    /// marks a file contradicts; if the directory is one of these it loses its own.
    fn mark(
        &self,
        tree: &TreeGuard<'_>,
        upper: &Arc<Node>,
        top: &Arc<Node>,
        moving: &BTreeMap<u64, MovingFile>,
    ) -> Result<AreaMark> {
        let Some(above) = upper.place().parent.filter(|_| !moving.is_empty()) else {
            return Ok(AreaMark::default());
        };
        let doubted = self.areas.links.area_mark(&above.content_prefix(tree.epoch))?.doubted_owners;
        let contradicts = |uid: u32| moving.values().any(|file| !agrees_with_mark(&file.inode, uid));
        let mark = AreaMark {
            stale_counts: false,
            doubted_owners: doubted.into_iter().filter(|uid| contradicts(*uid)).collect(),
        };
        let (uid, is_marked) = {
            let state = top.state();
            (state.inode.uid, state.inode.owned_alone)
        };
        if is_marked && mark.doubts(uid) {
            self.ownership.clear(top, Contradiction::Any)?;
        }
        Ok(mark)
    }

    /// The files of the upper area whose names lie below `prefix`, by their number there.
    fn moving_files(
        &self,
        upper: &Arc<Node>,
        top: &Arc<Node>,
        prefix: &[u8],
        releases: &mut DeferredReleases<'_>,
    ) -> Result<BTreeMap<u64, MovingFile>> {
        let mut names: BTreeMap<u64, Vec<Key>> = BTreeMap::new();
        self.areas.links.for_each_below(prefix, |key, id| {
            names.entry(id).or_default().push(key.clone());
            true
        })?;
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.areas.load_link_counts(upper)?;
        let sum = upper.dir().sum.wrapping_sub(top.dir().link_area.sum);
        let mut moving = BTreeMap::new();
        for (id, names) in names {
            let (mut inode, node) = self.file(upper, id, releases)?;
            let count = names.len() as u64;
            let all = u64::from(upper.link_count(id).unwrap_or(inode.links));
            if all != count {
                let path = names.first().and_then(|name| layout::parse(name)).map(|name| name.path());
                return fail(
                    FsErrorKind::Unsupported,
                    format!(
                        "{} has {} names outside of the directory: move them into it, or take a clone",
                        path.unwrap_or_default(),
                        all.saturating_sub(count)
                    ),
                );
            }
            inode.number = inode.number.wrapping_add(sum);
            inode.links = names.len() as u32;
            moving.insert(id, MovingFile { inode, id: self.state_record.fresh_number()?, names, node });
        }
        Ok(moving)
    }

    /// File `id` of an area, with its node if that is in memory.
    fn file(
        &self,
        area: &Arc<Node>,
        id: u64,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<(Inode, Option<Arc<Node>>)> {
        let known = area.dir().names.lock().get(&layout::area_name(id));
        let node = match known {
            Some(Known::Present(node)) => self.areas.nodes.acquire(node),
            _ => None,
        };
        releases.add(node.as_ref().map(|node| node.id));
        let inode = match &node {
            Some(node) => node.state().inode.clone(),
            None => {
                let prefix = area.content_prefix(self.areas.tree.epoch());
                self.areas.links.inode_in_area(&prefix, id)?
            }
        };
        Ok((inode, node))
    }

    /// Takes over in memory that files have moved to the area of `top`.
    fn moved(
        &self,
        upper: &Arc<Node>,
        top: &Arc<Node>,
        moving: BTreeMap<u64, MovingFile>,
        lsn: Lsn,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<()> {
        if moving.is_empty() {
            return Ok(());
        }
        let lower = self.areas.area_of(top)?.keep_until(releases);
        let nodes = &self.areas.nodes;
        for (old, file) in moving {
            upper.set_link_count(old, 0);
            let new = layout::area_name(file.id);
            let Some(node) = file.node else {
                let ino = file.inode.number.wrapping_add(lower.dir().sum);
                let location = Location { parent: top.id, in_link_area: true, name: new[..].into() };
                nodes.relocate(id_of(ino), location);
                continue;
            };
            {
                let mut state = node.state();
                (state.inode.number, state.inode.links) = (file.inode.number, file.inode.links);
                state.lsn = lsn;
                node.changed.store(true, Ordering::Release);
            }
            releases.add(nodes.move_node(&node, &lower, &new));
            nodes.set_name(&lower, &mut lower.dir().names.lock(), &new[..], Known::Present(node.id));
            let old = layout::area_name(old);
            nodes.set_name(upper, &mut upper.dir().names.lock(), &old[..], Known::Absent);
        }
        Ok(())
    }
}
