//! Making one link area of several.
//!
//! All names of a file lead to one link area, the one that serves the directories in which they
//! are. So before a file gets a name where another area serves, or one of its names goes there, the
//! areas between the two places and the directory above both are *dissolved*: what lies in one
//! moves into the next above, its files with new numbers in that area, because a copy of an area
//! has the numbers of the original. Nobody sees that: `st_ino`, counts of names, what is open and
//! what was unlinked stay as they are. So each dissolution is a batch of its own, and what made it
//! necessary follows with another; a crash in between leaves a tree in which everything is as it
//! was before.
//!
//! The cost is two keys for each name and those of each file that the area serves, once: afterwards
//! the directory has no area any more. Files that have no name (a copy of an area that was not
//! corrected yet) do not come along.

use crate::file_system::{Deferred, FileSystem, Held};
use crate::inode::node::{Known, Node, Place};
use crate::inode::tree_lock::TreeGuard;
use crate::model::error::Result;
use crate::model::layout;
use crate::model::record::{Inode, Link};
use crate::model::types::NodeId;
use espalier_engine::{Batch, KeyRange};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file on its way to the area above.
struct Mover {
    inode: Inode,
    /// Its number in the area above.
    id: u64,
    names: u32,
    /// Its node, if it is in memory.
    node: Option<Arc<Node>>,
}

impl FileSystem {
    /// True if different link areas serve two directories.
    pub(crate) fn are_apart(&self, one: &Arc<Node>, other: &Arc<Node>) -> bool {
        one.area_directory().map(|top| top.id) != other.area_directory().map(|top| top.id)
    }

    /// Has one link area serve two directories, neither of them in a tree that was removed. The
    /// caller holds the exclusive tree lock, counts the epoch up before and afterwards, and holds
    /// no names and no states.
    pub(crate) fn join_areas(
        &self,
        tree: &TreeGuard<'_>,
        one: &Arc<Node>,
        other: &Arc<Node>,
        deferred: &mut Deferred<'_>,
    ) -> Result<()> {
        let common = common_directory(one, other).area_directory().map(|top| top.id);
        for dir in [one, other] {
            // From the top down, so that nothing moves twice.
            for top in areas_below(dir, common).iter().rev() {
                self.dissolve(tree, top, deferred)?;
            }
        }
        Ok(())
    }

    /// Moves what lies in the link area of `top`, which is not the root, to the area above.
    fn dissolve(&self, tree: &TreeGuard<'_>, top: &Arc<Node>, deferred: &mut Deferred<'_>) -> Result<()> {
        let Some(above) = top.place().parent else { return Ok(()) };
        let area = keep(self.area_of(top)?, deferred);
        let upper = keep(self.area_of(&above)?, deferred);
        let prefix = top.content_prefix(tree.epoch);
        let files = KeyRange::prefix(&layout::area_files(&prefix));
        // Files without a name whose data still lies there are not to lose it.
        self.evacuate(&files)?;
        let mut batch = Batch::new();
        let movers = self.move_names(&area, &upper, &prefix, &mut batch, deferred)?;
        for (id, mover) in &movers {
            let home = |area: &Arc<Node>, id: u64| {
                layout::entry_key(&area.content_prefix(tree.epoch), &layout::area_name(id))
            };
            let (old, new) = (home(&area, *id), home(&upper, mover.id));
            if mover.inode.has_data() {
                self.move_file(&mover.inode, &old, &new, &mut batch)?;
            }
            batch.insert(self.volume.metadata(), &new, mover.inode.encode());
            if let Some(node) = &mover.node {
                node.version.fetch_add(1, Ordering::AcqRel);
            }
        }
        batch.delete_range(self.volume.metadata(), files.clone());
        batch.delete_range(self.volume.data(), files);
        batch.delete(self.volume.links(), &prefix);
        let mut inode = top.state().inode.clone();
        (inode.area, inode.area_delta) = (false, 0);
        self.put(tree, top, &top.state(), &inode, &mut batch);
        let lsn = self.volume.commit_internal(batch)?;

        {
            let mut state = top.state();
            (state.inode.area, state.inode.area_delta, state.lsn) = (false, 0, lsn);
        }
        top.changed.store(true, Ordering::Release);
        top.dir().has_area.store(false, Ordering::Release);
        *top.dir().area.lock() = None;
        for (id, mover) in movers {
            upper.count_names(mover.id, mover.names);
            if let Some(node) = mover.node {
                let mut state = node.state();
                (state.inode.number, state.inode.links) = (mover.inode.number, mover.inode.links);
                state.lsn = lsn;
                node.changed.store(true, Ordering::Release);
                self.move_node(&node, (&area, id), (&upper, mover.id), deferred);
            }
        }
        Ok(())
    }

    /// Adds to a batch that the names which an area serves lead to the area above. Returns the
    /// files by their number in the lower area.
    fn move_names(
        &self,
        area: &Node,
        upper: &Node,
        prefix: &[u8],
        batch: &mut Batch,
        deferred: &mut Deferred<'_>,
    ) -> Result<BTreeMap<u64, Mover>> {
        let mut names = Vec::new();
        self.names_below(prefix, |key, id| {
            names.push((key.clone(), id));
            true
        })?;
        let mut movers = BTreeMap::new();
        for (key, id) in names {
            let mover = match movers.entry(id) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.mover(area, upper, prefix, id, deferred)?),
            };
            mover.names += 1;
            mover.inode.links = mover.names;
            let link = Link { kind: mover.inode.kind, id: mover.id, number: mover.inode.number };
            batch.insert(self.volume.metadata(), &key, link.encode());
            batch.insert(self.volume.links(), &key, mover.id.to_le_bytes().to_vec());
        }
        Ok(movers)
    }

    /// File `id` of an area as it is to be in the area above, as yet without a name.
    fn mover(
        &self,
        area: &Node,
        upper: &Node,
        prefix: &[u8],
        id: u64,
        deferred: &mut Deferred<'_>,
    ) -> Result<Mover> {
        let known = area.dir().names.lock().get(&layout::area_name(id));
        let node = match known {
            Some(Known::Present(node)) => self.nodes.acquire(node),
            _ => None,
        };
        node.iter().for_each(|node| deferred.release(node.id));
        let mut inode = match &node {
            Some(node) => node.state().inode.clone(),
            None => self.inode_in_area(&layout::area_prefix(prefix), id)?,
        };
        let sum = area.dir().sum.wrapping_sub(upper.dir().sum);
        inode.number = inode.number.wrapping_add(sum);
        Ok(Mover { inode, id: self.fresh_number()?, names: 0, node })
    }

    /// In memory, a file moves from one area to another.
    fn move_node(
        &self,
        node: &Arc<Node>,
        (area, old): (&Arc<Node>, u64),
        (upper, new): (&Arc<Node>, u64),
        deferred: &mut Deferred<'_>,
    ) {
        let name = layout::area_name(new);
        self.nodes.acquire(upper.id);
        node.set_place(Place { parent: Some(upper.clone()), name: name[..].into() });
        deferred.release(area.id);
        self.set_name(upper, &mut upper.dir().names.lock(), &name[..], Known::Present(node.id));
        self.set_name(area, &mut area.dir().names.lock(), &layout::area_name(old)[..], Known::Absent);
    }
}

/// The node of a reference that is given back when all locks are.
fn keep(held: Held<'_>, deferred: &mut Deferred<'_>) -> Arc<Node> {
    let node = held.keep();
    deferred.release(node.id);
    node
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

/// The directories from `dir` upwards that have link areas, up to the one that is not to be among
/// them.
fn areas_below(dir: &Arc<Node>, end: Option<NodeId>) -> Vec<Arc<Node>> {
    let mut found = Vec::new();
    let mut at = dir.area_directory();
    while let Some(top) = at.filter(|top| Some(top.id) != end) {
        at = top.place().parent.and_then(|parent| parent.area_directory());
        found.push(top);
    }
    found
}
