//! The attributes of a node as users see them. The blocks of a file that is sparse or has reserved
//! blocks are counted when they are asked for, and remembered until its data changes.

use crate::data::blocks::{self, DataSource, units};
use crate::data::data_reader::DataReader;
use crate::inode::node::{Node, Orphan, State};
use crate::model::error::Result;
use crate::model::types::*;
use crate::volume::context::VolumeContext;
use std::sync::Arc;

pub(crate) struct AttrReader {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) data: Arc<DataReader>,
}

impl AttrReader {
    /// The attributes of a node whose state is `state`, and whether its blocks are known.
    pub(crate) fn known_attr(&self, node: &Node, state: &State) -> (Attr, bool) {
        let inode = &state.inode;
        let known = match inode.kind {
            FileKind::Regular if inode.sparse || inode.reserved => state.blocks,
            FileKind::Regular => Some(units(inode.size)),
            _ => Some(0),
        };
        let mut attr = inode.attr(node.ino, known.unwrap_or(0), self.volume.block_size);
        if state.orphan != Orphan::No {
            attr.nlink = 0;
        }
        (attr, known.is_some())
    }

    /// The attributes of a node.
    pub(crate) fn attr(&self, node: &Arc<Node>) -> Result<Attr> {
        let (mut attr, changes) = {
            let state = node.state();
            let (attr, is_all) = self.known_attr(node, &state);
            if is_all {
                return Ok(attr);
            }
            (attr, state.changes)
        };
        attr.blocks = self.data.count_units(node)?;
        let mut state = node.state();
        if state.changes == changes {
            state.blocks = Some(attr.blocks);
        }
        Ok(attr)
    }

    /// The units that the blocks of a sparse file take after its attributes were changed, if they
    /// have to be counted.
    pub(crate) fn count_units_after(&self, node: &Arc<Node>, set: &SetAttr) -> Result<Option<u64>> {
        let is_known = self.known_attr(node, &node.state()).1;
        match set.size {
            None if is_known => Ok(None),
            None => self.data.count_units(node).map(Some),
            Some(_) if node.kind != FileKind::Regular => Ok(None),
            Some(size) => self.data.read_stable(node, |source| {
                let sparse = blocks::is_sparse_with(&self.volume, size, source.size, source.sparse);
                // Which blocks stay reserved is known only with the change.
                if !sparse || source.reserved {
                    return Ok(None);
                }
                let source = DataSource { base: source.base.clone(), size, sparse, reserved: false };
                blocks::count_all_units(&self.volume, &source).map(Some)
            }),
        }
    }
}
