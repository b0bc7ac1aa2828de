//! States: what a mount shows that follows another writer: the newest state of a store, and older
//! ones for what the kernel still has of them.
//!
//! Protocol: the root is that of the state that was [shown](StateTable::show) last. Every other
//! node has the tag of its state (`node_tag`), so what was opened stays as it was. Once a state is
//! replaced the kernel is told to look up again what it knows, and so forgets the nodes of the old
//! one by and by. [`StateTable::close`] ends states of which it knows nothing any more, and those
//! that the store may have replaced so long ago that their data is gone: their nodes are stale from
//! then on.
//!
//! Invariant: a tag is used again only if the kernel had no node of its state, and no request that
//! may give it one was under way.

use super::errno::Errno;
use super::node_tag;
use super::volume::ServedVolume;
use crate::protocol::notify::Notification;
use espalier_fs::{FileSystem, NodeId};
use espalier_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Most names in the root of which the kernel is told one by one.
const MAX_TOLD_NAMES: usize = 10_000;

struct State {
    volume: Arc<ServedVolume>,
    /// Nodes that it holds without the kernel.
    own_nodes: u64,
    /// Once another one was shown in its place: when it was last known to be that of the store,
    /// which has replaced it since. This mount may have heard of that much later.
    last_current: Option<Instant>,
}

impl State {
    /// True if the kernel knows nothing of it and cannot learn of it. The table is locked.
    fn is_unknown(&self) -> bool {
        // A request that is under way holds the volume.
        if Arc::strong_count(&self.volume) > 1 {
            return false;
        }
        // What requests did before they let go of it is seen from here on: the count alone, which
        // is read without order, does not say so.
        fence(Ordering::Acquire);
        self.volume.fs().statistics().nodes <= self.own_nodes
    }
}

#[derive(Default)]
struct Table {
    /// By tag.
    states: BTreeMap<u64, State>,
    /// The tag of the one that was shown last.
    newest: u64,
    /// The number of the last tag that was used for the first time.
    last: u64,
    /// Tags to use again.
    free: Vec<u64>,
}

/// The states of a store that a mount follows.
pub(super) struct StateTable {
    xattrs: bool,
    table: Mutex<Table>,
}

impl StateTable {
    /// No states yet; they are served with extended attributes if `xattrs`.
    pub(super) fn new(xattrs: bool) -> Self {
        Self { xattrs, table: Mutex::default() }
    }

    /// Shows a state. The one that was shown before was still that of the store at `last_current`.
    /// Returns what the kernel has to be told, or `None` if there are no tags left.
    pub(super) fn show(&self, fs: Arc<FileSystem>, last_current: Instant) -> Option<Vec<Notification>> {
        let mut names = names_in_root(&fs);
        let own_nodes = fs.statistics().nodes;
        let mut table = self.table.lock();
        let tag = match table.free.pop() {
            Some(tag) => tag,
            None => {
                let tag = node_tag::snapshot_tag(table.last + 1)?;
                table.last += 1;
                tag
            }
        };
        let volume = Arc::new(ServedVolume::snapshot(fs, self.xattrs, tag));
        let before = table.newest;
        if let Some(before) = table.states.get_mut(&before) {
            before.last_current = Some(last_current);
            names.extend(names_in_root(before.volume.fs()));
        }
        table.states.insert(tag, State { volume, own_nodes, last_current: None });
        table.newest = tag;
        drop(table);
        names.sort();
        names.dedup();
        names.truncate(MAX_TOLD_NAMES);
        let root = NodeId::ROOT.0;
        let entry = |name| Notification::Entry { parent: root, name, expire: true };
        let mut told: Vec<Notification> = names.into_iter().map(entry).collect();
        told.push(Notification::Inode { node: root, data: Some((0, 0)) });
        told.push(Notification::Epoch);
        Some(told)
    }

    /// The state that a node belongs to.
    ///
    /// # Errors
    /// ESTALE if it was closed.
    pub(super) fn of(&self, node: NodeId) -> Result<Arc<ServedVolume>, Errno> {
        let table = self.table.lock();
        let tag = if node == NodeId::ROOT { table.newest } else { node_tag::tag(node) };
        table.states.get(&tag).map(|state| Arc::clone(&state.volume)).ok_or(Errno(libc::ESTALE))
    }

    /// Takes back `count` references to a node.
    pub(super) fn forget(&self, node: NodeId, count: u64) {
        // The root is always known.
        if node != NodeId::ROOT
            && let Ok(volume) = self.of(node)
        {
            volume.fs().forget(node_tag::local(node), count);
        }
    }

    /// Closes replaced states that the kernel does not know, and those that may have been replaced
    /// as long as `grace` before `now`. Returns how many replaced ones there still are.
    pub(super) fn close(&self, now: Instant, grace: Duration) -> usize {
        let mut closed = Vec::new();
        let table = &mut *self.table.lock();
        let free = &mut table.free;
        table.states.retain(|tag, state| {
            let Some(last_current) = state.last_current else { return true };
            let unknown = state.is_unknown();
            if unknown {
                free.push(*tag);
            }
            let stays = !unknown && now.saturating_duration_since(last_current) < grace;
            if !stays {
                closed.push(Arc::clone(&state.volume));
            }
            stays
        });
        table.states.len().saturating_sub(1)
    }
}

/// The names in the root, as far as they can be read; only caches depend on it.
fn names_in_root(fs: &FileSystem) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let listed = fs.readdir(NodeId::ROOT, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        names.len() < MAX_TOLD_NAMES
    });
    if let Err(error) = listed {
        tracing::debug!(%error, "the names in the root are not known");
    }
    names
}

#[cfg(test)]
mod tests;
