//! Times of the last read (`atime`) that are not written yet.
//!
//! A read changes the time in memory only, by the rule that the mount follows ([`Atime`]). It is
//! written with the next change of the inode, by the background, or when the node leaves memory; a
//! crash may lose it.

use crate::inode::inode_store::InodeStore;
use crate::inode::node::{Node, State, States};
use crate::inode::node_table::NodeTable;
use crate::lock_order::{Rank, RankedMutex};
use crate::model::error::{FsErrorKind, Result};
use crate::model::types::*;
use crate::volume::context::VolumeContext;
use crate::volume::tree_lock::{TreeGuard, TreeLock};
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A time of the last read that is older is renewed in any case.
const RENEWAL_AGE_NANOSECONDS: i64 = 24 * 3600 * 1_000_000_000;
/// Nodes that wait for the background; others are written when they leave memory.
const QUEUE_MAX_NODES: usize = 64 << 10;
/// Times that one batch writes.
pub(crate) const NODES_PER_BATCH: usize = 64;

pub(crate) struct AccessTimes {
    volume: Arc<VolumeContext>,
    tree: Arc<TreeLock>,
    nodes: Arc<NodeTable>,
    inodes: Arc<InodeStore>,
    /// The rule that decides which reads change the time.
    pub(crate) rule: AtimeRule,
    /// Nodes whose time is to be written.
    queue: RankedMutex<Vec<NodeId>>,
}

impl AccessTimes {
    pub(crate) fn new(
        volume: Arc<VolumeContext>,
        tree: Arc<TreeLock>,
        nodes: Arc<NodeTable>,
        inodes: Arc<InodeStore>,
    ) -> Arc<Self> {
        let rule = AtimeRule::new(volume.options.atime);
        let queue = RankedMutex::new(Rank::Table, Vec::new());
        Arc::new(Self { volume, tree, nodes, inodes, rule, queue })
    }

    /// Notes that `node` was read; true if the time of the last read changed.
    pub(crate) fn touch(&self, node: &Arc<Node>) -> bool {
        self.are_kept() && self.touch_locked(node, &mut node.state())
    }

    fn are_kept(&self) -> bool {
        self.rule.get() != Atime::Never && !self.volume.options.read_only
    }

    /// As [`AccessTimes::touch`], with the state locked.
    pub(crate) fn touch_locked(&self, node: &Arc<Node>, state: &mut State) -> bool {
        if !self.are_kept() {
            return false;
        }
        let now = self.volume.clock();
        let inode = &mut state.inode;
        if inode.flags.has(FileFlags::NOATIME) {
            return false;
        }
        let newer = inode.atime > inode.mtime && inode.atime > inode.ctime;
        let is_recent = newer && now.saturating_sub(inode.atime) < RENEWAL_AGE_NANOSECONDS;
        if is_recent && self.rule.get() == Atime::Relative {
            return false;
        }
        if inode.atime == now || !self.volume.caller_waits() {
            return false;
        }
        inode.atime = now;
        if !std::mem::replace(&mut state.atime_dirty, true) {
            node.pending.store(true, Ordering::Release);
            let mut queue = self.queue.lock();
            if queue.len() < QUEUE_MAX_NODES {
                queue.push(node.id);
            }
        }
        true
    }

    /// The time of `node` is still to be written, as it was in a server before this one.
    pub(crate) fn restored(&self, node: &Node) {
        node.pending.store(true, Ordering::Release);
        let mut queue = self.queue.lock();
        if queue.len() < QUEUE_MAX_NODES {
            queue.push(node.id);
        }
    }

    /// Number of nodes in the queue.
    pub(crate) fn queued(&self) -> usize {
        self.queue.lock().len()
    }

    /// Writes the time of one node, if it is not written yet.
    pub(crate) fn write(&self, tree: &TreeGuard<'_>, node: &Arc<Node>) -> Result<()> {
        let mut state = node.state();
        if !state.atime_dirty {
            return Ok(());
        }
        let inode = state.inode.clone();
        let mut batch = Batch::new();
        self.inodes.put(tree, node, &state, &inode, &mut batch);
        match self.inodes.commit_inode_internal(node, &mut state, inode, batch) {
            // A call that asks for durability does not fail because there is no room for a time.
            Err(error) if error.kind() == FsErrorKind::NoSpace => Ok(()),
            result => result,
        }
    }

    /// Writes all times in the queue, many with one batch.
    pub(crate) fn write_all(&self) -> Result<()> {
        let mut queue = std::mem::take(&mut *self.queue.lock());
        // In the order in which states are locked.
        queue.sort_unstable();
        for ids in queue.chunks(NODES_PER_BATCH) {
            let nodes: Vec<Arc<Node>> = ids.iter().filter_map(|id| self.nodes.get(*id)).collect();
            // A call that asks for durability does not fail because there is no room for times.
            if !self.write_some(&nodes)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Writes the times of nodes with one batch, if they are not written yet. The nodes are in the
    /// order of their ids, each once. False if there is no room.
    pub(crate) fn write_some(&self, nodes: &[Arc<Node>]) -> Result<bool> {
        let tree = self.tree.shared();
        let mut states = States::lock(&nodes.iter().collect::<Vec<_>>());
        let mut batch = Batch::new();
        let mut written = Vec::with_capacity(nodes.len());
        for node in nodes {
            let state = states.of(node);
            if state.atime_dirty {
                self.inodes.put(&tree, node, state, &state.inode, &mut batch);
                written.push(node);
            }
        }
        if batch.is_empty() {
            return Ok(true);
        }
        let lsn = match self.volume.commit_times(batch) {
            Ok(lsn) => lsn,
            Err(error) if error.kind() == FsErrorKind::NoSpace => return Ok(false),
            Err(error) => return Err(error),
        };
        for node in written {
            let state = states.of(node);
            (state.lsn, state.atime_dirty) = (lsn, false);
            node.changed.store(true, Ordering::Release);
        }
        Ok(true)
    }
}
