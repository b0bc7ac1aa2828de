//! Loading: the node or part of a slot, from memory or else from the device.

use crate::model::ids::PieceId;
use crate::model::key::KeyRange;
use crate::pieces::Part;
use crate::tree::codec;
use crate::tree::node::{Child, Node, NodeSlot, Root};
use crate::tree::part_slot::PartSlot;
use crate::tree::trees::Trees;
use crate::tree::write::memory_of;
use crate::{Error, Result};
use std::sync::Arc;

impl Trees {
    /// The node that the header `id` holds.
    pub(crate) fn node(&self, id: PieceId) -> Result<Arc<Node>> {
        self.pieces.node(id, |height, body| {
            let node = codec::decode(id, height, &body, &*self.locator)?;
            let bytes = memory_of(&node, body.len());
            Ok((Arc::new(node), bytes))
        })
    }

    /// The node at the top of a tree; an empty leaf for the empty map.
    pub(super) fn root_node(&self, root: &Root) -> Result<Arc<Node>> {
        match &root.slot {
            Some(slot) => slot.load(self, root.height),
            None => Ok(Arc::new(Node::empty(0))),
        }
    }
}

impl PartSlot {
    /// The part. Readers rely on what its header says of it, so a part that differs is damaged.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged); what the device says.
    pub(crate) fn load(&self, trees: &Trees) -> Result<Arc<Part>> {
        self.part_or_handle().or_else(|handle| {
            let part = trees.pieces.part(handle.id())?;
            let summary = &self.summary;
            let agrees = summary.first[..] == *part.first_key()
                && summary.last[..] == *part.last_key()
                && summary.entries as usize == part.len();
            if !agrees {
                let message = format!("the header of part {} says other things than the part", handle.id());
                return Err(Error::damaged(message));
            }
            Ok(part)
        })
    }
}

impl NodeSlot {
    /// The node; `height` is what the reference to it says.
    pub(crate) fn load(&self, trees: &Trees, height: u8) -> Result<Arc<Node>> {
        let handle = match self.node_or_handle() {
            Ok(node) => return Ok(node),
            Err(handle) => handle,
        };
        let node = trees.node(handle.id())?;
        if node.height != height {
            let message =
                format!("node {} has height {} where its parent needs {height}", handle.id(), node.height);
            return Err(Error::damaged(message));
        }
        Ok(node)
    }
}

impl Child {
    /// The child in the key space of the parent, for an edge that covers `interval`.
    pub(crate) fn load(&self, trees: &Trees, height: u8, interval: &KeyRange) -> Result<Node> {
        let node = self.slot.load(trees, height)?;
        // A node of which not all is shown covers more than that: else its first and last edges
        // would be taken for shown whole.
        let inner = match self.is_bounded() {
            true => KeyRange::all(),
            false => self.view.range_inward(interval),
        };
        Ok(node.through(&self.view.restrict(interval), &inner))
    }
}
