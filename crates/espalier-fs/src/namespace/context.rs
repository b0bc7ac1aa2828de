//! The components that operations on directory entries use.

use crate::inode::inode_store::InodeStore;
use crate::inode::node_table::NodeTable;
use crate::inode::ownership::OwnershipMarks;
use crate::inode::saved_locations::SavedLocations;
use crate::links::link_area::LinkAreas;
use crate::links::merge_areas::AreaMerger;
use crate::links::split_areas::AreaSplitter;
use crate::namespace::lookup::Lookup;
use crate::orphan::orphan_area::Orphans;
use crate::references::References;
use crate::volume::context::VolumeContext;
use crate::volume::link_index::LinkIndex;
use crate::volume::state_record::VolumeStateRecord;
use crate::volume::tree_lock::TreeLock;
use std::sync::Arc;

pub(crate) struct Namespace {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) state_record: Arc<VolumeStateRecord>,
    pub(crate) inodes: Arc<InodeStore>,
    pub(crate) links: Arc<LinkIndex>,
    pub(crate) ownership: Arc<OwnershipMarks>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) references: Arc<References>,
    pub(crate) areas: Arc<LinkAreas>,
    pub(crate) locations: Arc<SavedLocations>,
    pub(crate) lookup: Arc<Lookup>,
}

impl Namespace {
    /// True if a node may lie in a limited tree.
    #[inline]
    pub(crate) fn nodes_are_limited(&self) -> bool {
        self.orphans.area.limit_table.is_used()
    }

    /// Merges link areas.
    pub(crate) fn area_merger(&self) -> AreaMerger<'_> {
        AreaMerger { areas: &self.areas, inodes: &self.inodes, state_record: &self.state_record }
    }

    /// Splits link areas.
    pub(crate) fn area_splitter(&self) -> AreaSplitter<'_> {
        AreaSplitter {
            areas: &self.areas,
            inodes: &self.inodes,
            ownership: &self.ownership,
            state_record: &self.state_record,
        }
    }
}
