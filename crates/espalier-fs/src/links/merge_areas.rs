//! Merging of link areas.
//!
//! All names of a file lead to one link area, the one that serves the directories in which they
//! are. So before a file gets a name where another area serves, or one of its names moves there,
//! the areas between the two places and the directory above both are *dissolved*: the files of one
//! move into the next area above, with new numbers in that area, because a copy of an area has the
//! numbers of the original. Users do not see that: `st_ino`, link counts, open and unlinked files
//! stay as they are. So each dissolution is a batch of its own, and the operation that needs it
//! follows with another; a crash in between leaves a tree in which everything is as it was before.
//!
//! The cost is two keys for each name and those of each file that the area serves, once: afterwards
//! the directory has no area any more. Files without a name (in a copy of an area that was not
//! corrected yet) stay behind and are deleted.

use crate::data::blocks;
use crate::inode::forgotten::Location;
use crate::inode::inode_store::InodeStore;
use crate::inode::names::Known;
use crate::inode::node::Node;
use crate::inode::node_id::id_of;
use crate::links::link_area::LinkAreas;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, Link};
use crate::model::types::NodeId;
use crate::references::DeferredReleases;
use crate::volume::state_record::VolumeStateRecord;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::{Batch, KeyRange, Lsn};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file on its way to the area above.
struct MovingFile {
    inode: Inode,
    /// Its number in the area above.
    id: u64,
    names: u32,
    /// Its node, if it is in memory.
    node: Option<Arc<Node>>,
}

/// A link area that is being dissolved into the next one above.
struct Dissolution {
    /// The directory that has the area, and its content prefix.
    top: Arc<Node>,
    prefix: Arc<[u8]>,
    lower: Arc<Node>,
    upper: Arc<Node>,
}

pub(crate) struct AreaMerger<'a> {
    pub(crate) areas: &'a LinkAreas,
    pub(crate) inodes: &'a InodeStore,
    pub(crate) state_record: &'a VolumeStateRecord,
}

impl AreaMerger<'_> {
    /// Has one link area serve two directories, neither of them in a removed tree. The caller holds
    /// the tree lock exclusively for a move, and holds no names and no states.
    pub(crate) fn merge(
        &self,
        tree: &TreeGuard<'_>,
        one: &Arc<Node>,
        other: &Arc<Node>,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<()> {
        let common = common_directory(one, other).link_area_directory().map(|top| top.id);
        for top in [one, other].into_iter().flat_map(|dir| area_directories(dir, common)) {
            if top.state().inode.limits.get().is_some() {
                return fail(
                    FsErrorKind::CrossesLimit,
                    "a file with several names cannot cross the border of a limited tree",
                );
            }
        }
        for dir in [one, other] {
            // From the top down, so that no file moves twice.
            for top in area_directories(dir, common).iter().rev() {
                self.dissolve(tree, top, releases)?;
            }
        }
        Ok(())
    }

    /// Moves the files in the link area of `top`, which is not the root, to the area above.
    fn dissolve(
        &self,
        tree: &TreeGuard<'_>,
        top: &Arc<Node>,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<()> {
        let volume = &self.areas.volume;
        let Some(above) = top.place().parent else { return Ok(()) };
        let area = Dissolution {
            top: top.clone(),
            prefix: top.content_prefix(tree.epoch),
            lower: self.areas.area_of(top)?.keep_until(releases),
            upper: self.areas.area_of(&above)?.keep_until(releases),
        };
        let files = KeyRange::prefix(&layout::area_files(&area.prefix));
        // Unlinked files in use whose data still lies there are not to lose it.
        self.areas.orphans.move_away(&files)?;
        let mut batch = Batch::new();
        let moving = self.move_names(&area, &mut batch, releases)?;
        for (id, file) in &moving {
            let home = |area: &Arc<Node>, id: u64| {
                layout::entry_key(&area.content_prefix(tree.epoch), &layout::area_name(id))
            };
            let (old, new) = (home(&area.lower, *id), home(&area.upper, file.id));
            if file.inode.has_data() {
                blocks::move_all(volume, &file.inode, &old, &new, &mut batch)?;
            }
            batch.insert(volume.metadata(), &new, file.inode.encode());
            if let Some(node) = &file.node {
                node.version.fetch_add(1, Ordering::AcqRel);
            }
        }
        batch.delete_range(volume.metadata(), files.clone());
        batch.delete_range(volume.data(), files);
        self.move_doubts(tree, &area, &above, &mut batch)?;
        batch.delete(volume.links(), &area.prefix);
        let mut inode = top.state().inode.clone();
        (inode.has_link_area, inode.link_area_delta) = (false, 0);
        self.inodes.put(tree, top, &top.state(), &inode, &mut batch);
        let lsn = volume.commit_internal(batch)?;
        self.dissolved(&area, moving, lsn, releases);
        Ok(())
    }

    /// Adds to a batch that the area above doubts the marks that the lower area doubts, because the
    /// names that lead there lead to the area above from now on.
    fn move_doubts(
        &self,
        tree: &TreeGuard<'_>,
        area: &Dissolution,
        above: &Arc<Node>,
        batch: &mut Batch,
    ) -> Result<()> {
        let links = &self.areas.links;
        let doubted = links.area_mark(&area.prefix)?.doubted_owners;
        let Some(top) = above.link_area_directory().filter(|_| !doubted.is_empty()) else {
            return Ok(());
        };
        let prefix = top.content_prefix(tree.epoch);
        let mut mark = links.area_mark(&prefix)?;
        mark.doubt(doubted);
        batch.insert(self.areas.volume.links(), &prefix, mark.encode());
        Ok(())
    }

    /// Takes over in memory that an area was dissolved.
    fn dissolved(
        &self,
        area: &Dissolution,
        moving: BTreeMap<u64, MovingFile>,
        lsn: Lsn,
        releases: &mut DeferredReleases<'_>,
    ) {
        {
            let mut state = area.top.state();
            (state.inode.has_link_area, state.inode.link_area_delta, state.lsn) = (false, 0, lsn);
        }
        area.top.changed.store(true, Ordering::Release);
        area.top.dir().link_area.exists.store(false, Ordering::Release);
        *area.top.dir().link_area.node.lock() = None;
        let nodes = &self.areas.nodes;
        for (old, file) in moving {
            area.upper.set_link_count(file.id, file.names);
            let new = layout::area_name(file.id);
            let Some(node) = file.node else {
                let ino = file.inode.number.wrapping_add(area.upper.dir().sum);
                if let Some(above) = area.upper.place().parent {
                    let location = Location { parent: above.id, in_link_area: true, name: new[..].into() };
                    nodes.relocate(id_of(ino), location);
                }
                continue;
            };
            {
                let mut state = node.state();
                (state.inode.number, state.inode.links) = (file.inode.number, file.inode.links);
                state.lsn = lsn;
                node.changed.store(true, Ordering::Release);
            }
            releases.add(nodes.move_node(&node, &area.upper, &new));
            let (lower, upper) = (&area.lower, &area.upper);
            nodes.set_name(upper, &mut upper.dir().names.lock(), &new[..], Known::Present(node.id));
            let old = layout::area_name(old);
            nodes.set_name(lower, &mut lower.dir().names.lock(), &old[..], Known::Absent);
        }
    }

    /// Adds to a batch that the names which an area serves lead to the area above. Returns the
    /// files by their number in the lower area.
    fn move_names(
        &self,
        area: &Dissolution,
        batch: &mut Batch,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<BTreeMap<u64, MovingFile>> {
        let mut names = Vec::new();
        self.areas.links.for_each_below(&area.prefix, |key, id| {
            names.push((key.clone(), id));
            true
        })?;
        let volume = &self.areas.volume;
        let mut moving = BTreeMap::new();
        for (key, id) in names {
            let file = match moving.entry(id) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.moving_file(area, id, releases)?),
            };
            file.names += 1;
            file.inode.links = file.names;
            let link = Link { kind: file.inode.kind, id: file.id, number: file.inode.number };
            batch.insert(volume.metadata(), &key, link.encode());
            batch.insert(volume.links(), &key, file.id.to_le_bytes().to_vec());
        }
        Ok(moving)
    }

    /// File `id` of the lower area as it is to be in the upper one, as yet without a name.
    fn moving_file(
        &self,
        area: &Dissolution,
        id: u64,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<MovingFile> {
        let known = area.lower.dir().names.lock().get(&layout::area_name(id));
        let node = match known {
            Some(Known::Present(node)) => self.areas.nodes.acquire(node),
            _ => None,
        };
        releases.add(node.as_ref().map(|node| node.id));
        let mut inode = match &node {
            Some(node) => node.state().inode.clone(),
            None => self.areas.links.inode_in_area(&layout::area_prefix(&area.prefix), id)?,
        };
        let sum = area.lower.dir().sum.wrapping_sub(area.upper.dir().sum);
        inode.number = inode.number.wrapping_add(sum);
        Ok(MovingFile { inode, id: self.state_record.fresh_number()?, names: 0, node })
    }
}

/// The lowest directory that is, or is above, both.
fn common_directory(one: &Arc<Node>, other: &Arc<Node>) -> Arc<Node> {
    let mut at = one.clone();
    while !at.contains(other) {
        let Some(parent) = at.place().parent else { break };
        at = parent;
    }
    at
}

/// The directories from `dir` upwards that have link areas, up to but without `end`.
fn area_directories(dir: &Arc<Node>, end: Option<NodeId>) -> Vec<Arc<Node>> {
    let mut found = Vec::new();
    let mut at = dir.link_area_directory();
    while let Some(top) = at.filter(|top| Some(top.id) != end) {
        at = top.place().parent.and_then(|parent| parent.link_area_directory());
        found.push(top);
    }
    found
}
