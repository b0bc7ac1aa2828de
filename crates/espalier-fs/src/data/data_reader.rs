//! Reads of a file's data without lock.
//!
//! A read takes the place of the data under the tree lock, reads without any lock, and reads again
//! if the keys changed meanwhile; after some attempts with the locks held.

use crate::data::blocks::{self, DataSource};
use crate::inode::node::{Node, State};
use crate::model::error::Result;
use crate::volume::context::VolumeContext;
use crate::volume::tree_lock::{TreeGuard, TreeLock};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Reads without lock before one with the locks.
const LOCK_FREE_ATTEMPTS: u32 = 4;

pub(crate) struct DataReader {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
}

impl DataReader {
    /// Runs a read of a file's data without lock, again if its keys changed meanwhile.
    pub(crate) fn read_stable<T>(
        &self,
        node: &Arc<Node>,
        mut read: impl FnMut(&DataSource) -> Result<T>,
    ) -> Result<T> {
        let source = |tree: &TreeGuard<'_>, state: &State| {
            DataSource::new(node.data_base(tree.epoch, state), &state.inode)
        };
        for _ in 0..LOCK_FREE_ATTEMPTS {
            let (found, version, epoch) = {
                let tree = self.tree.shared();
                let state = node.state();
                (source(&tree, &state), node.version.load(Ordering::Acquire), tree.epoch)
            };
            let result = read(&found);
            if node.version.load(Ordering::Acquire) == version && self.tree.epoch() == epoch {
                return result;
            }
        }
        let tree = self.tree.shared();
        let state = node.state();
        read(&source(&tree, &state))
    }

    /// Units of 512 bytes that a file takes.
    pub(crate) fn count_units(&self, node: &Arc<Node>) -> Result<u64> {
        self.read_stable(node, |source| blocks::count_all_units(&self.volume, source))
    }
}
