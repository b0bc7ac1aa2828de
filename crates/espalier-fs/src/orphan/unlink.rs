//! The removal of names: what a file or directory loses with an entry, and whether its data is
//! deleted, detached or moved to the orphan area.

use crate::data::{blocks, reservation};
use crate::inode::node::{Node, Orphan, State};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::Inode;
use crate::model::types::NodeId;
use crate::orphan::orphan_area::Orphans;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::{Batch, Lsn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The change in memory that the removal of a name brings, once it is committed.
pub(crate) struct NameRemoval {
    pub(crate) inode: Inode,
    pub(crate) orphan: Orphan,
}

/// An entry that leads to a node.
pub(crate) struct NamedNode<'a> {
    pub(crate) dir: &'a Arc<Node>,
    pub(crate) name: &'a [u8],
    pub(crate) node: &'a Arc<Node>,
}

impl NamedNode<'_> {
    /// The key of the entry.
    pub(crate) fn key(&self, tree: &TreeGuard<'_>) -> Vec<u8> {
        layout::entry_key(&self.dir.content_prefix(tree.epoch), self.name)
    }
}

/// What becomes of the data of a file in use when it loses its last name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataPlace {
    /// It stays in its place.
    Stays,
    /// It moves to the orphan area: the place is needed at once.
    Vacated,
}

impl Orphans {
    /// Adds to a batch that a file loses a name. The caller holds one reference on the node.
    pub(crate) fn remove_name(
        &self,
        tree: &TreeGuard<'_>,
        name: &NamedNode<'_>,
        state: &State,
        now: i64,
        data: DataPlace,
        batch: &mut Batch,
    ) -> Result<NameRemoval> {
        let node = name.node;
        let key: Arc<[u8]> = name.key(tree).into();
        state.inode.flags.check_unprotected()?;
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
                return Ok(NameRemoval { inode, orphan: Orphan::No });
            }
            batch.delete(self.volume.metadata(), &base);
        }
        inode.links = 0;
        let mut orphan = Orphan::Empty;
        if inode.has_data() {
            // One reference is the caller's. No new one can come: the name is locked.
            if self.nodes.references(node.id) > 1 {
                orphan = if data == DataPlace::Vacated && !is_linked {
                    self.detached.detach_to_orphan_area(node, &inode, &base, batch)?
                } else {
                    self.detached.detach(node, base, batch)
                };
            } else {
                blocks::delete_all(&self.volume, &base, &inode, batch)?;
            }
        }
        Ok(NameRemoval { inode, orphan })
    }

    /// Takes over in memory the removal of names of a file. Returns the reference on its old
    /// parent, which the caller gives back when it holds no locks.
    #[must_use]
    pub(crate) fn name_removed(
        &self,
        node: &Arc<Node>,
        state: &mut State,
        removal: NameRemoval,
        lsn: Lsn,
    ) -> Option<NodeId> {
        let NameRemoval { inode, orphan } = removal;
        let place = node.place();
        if let (Some(area), Some(id)) = (&place.parent, layout::area_id(&place.name)) {
            area.set_link_count(id, inode.links);
        }
        let is_gone = inode.links == 0;
        node.take_over(state, inode, lsn);
        if is_gone { self.adopt_file(node, state, orphan) } else { None }
    }

    /// Adds to a batch that the empty directory `node` is removed: its entry, and one range in each
    /// index, which absorbs the messages that emptied it. Unlinked files whose data still lies
    /// there go too.
    pub(crate) fn remove_directory(
        &self,
        tree: &TreeGuard<'_>,
        node: &Arc<Node>,
        state: &State,
        batch: &mut Batch,
    ) -> Result<()> {
        state.inode.flags.check_unprotected()?;
        let key = node.entry_key(tree.epoch);
        let content = layout::content_range(&node.content_prefix(tree.epoch));
        batch.delete(self.volume.metadata(), &key);
        if state.inode.has_large_xattrs() {
            batch.delete_range(self.volume.data(), layout::file_range(&key));
        }
        batch.delete_range(self.volume.metadata(), content.clone());
        if self.links.is_in_use() {
            batch.delete_range(self.volume.links(), content.clone());
        }
        batch.delete_range(self.volume.data(), content);
        reservation::drop_below(&self.volume, &node.content_prefix(tree.epoch), batch)
    }

    /// In memory, a directory is removed. Its node stays until it has no references.
    pub(crate) fn directory_removed(&self, node: &Arc<Node>, state: &mut State, now: i64, lsn: Lsn) {
        let mut inode = state.inode.clone();
        inode.set_ctime(now);
        inode.xattrs = None;
        node.take_over(state, inode, lsn);
        state.orphan = Orphan::Empty;
        node.dir().removed.store(true, Ordering::Release);
        self.nodes.note(node.id);
    }
}

/// Refuses to remove a directory that has entries. The caller holds its names, so none can come.
pub(crate) fn check_empty(dir: &Arc<Node>) -> Result<()> {
    match dir.state().inode.size {
        0 => Ok(()),
        entries => fail(FsErrorKind::NotEmpty, format!("the directory has {entries} entries")),
    }
}
