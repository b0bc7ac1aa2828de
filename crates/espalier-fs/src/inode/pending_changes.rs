//! Changes of whole trees, as nodes in memory come to know of them.
//!
//! A change of everything below a directory is one message in the store, and one note in memory: it
//! is numbered and kept at the directory's node. Every node knows the number up to which it is up
//! to date. Whoever looks at its state ([`Node::state`]) has it catch up first: it collects what is
//! noted on the way up to the root, and applies it in order, with the function that the store
//! applies too. What is read from the store is up to date when it becomes a node.
//!
//! Invariants:
//! - A note counts for what lies below its directory, not for the directory itself, which is
//!   changed at once.
//! - A directory that moves takes along what was noted above its old place, and remembers the
//!   newest number: what is noted above its new place counts for what is below it only if it is
//!   newer.
//! - Other nodes catch up before they move, as their state is locked then.
//! - Notes are made, and directories moved, by the holder of the exclusive tree lock. Nodes catch
//!   up without it, so moves are counted, and who has met one on its way looks again.
//! - A note goes when all nodes in memory have caught up ([`FileSystem::changed_nodes`], the
//!   background).

use crate::file_system::FileSystem;
use crate::inode::node::{Node, Orphan, Role, State};
use crate::model::error::Result;
use crate::model::layout;
use crate::model::merge;
use crate::model::record::Inode;
use crate::model::types::NodeId;
use espalier_engine::Lsn;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// As many names for each node that is looked for are looked at.
const NAMES_PER_NODE: usize = 16;
/// With more notes at one directory all nodes catch up at once, so that looking for them stays
/// cheap.
const MAX_NOTES: usize = 64;

/// What all nodes of a mounted volume share.
#[derive(Default)]
pub(crate) struct Changes {
    /// The number of the newest change.
    newest: AtomicU64,
    /// Odd while a directory moves; counts moves.
    moves: AtomicU64,
    /// Directories with notes.
    noted: Mutex<Vec<Weak<Node>>>,
    /// Nodes that have caught up since somebody asked for them.
    changed: Mutex<Vec<NodeId>>,
}

/// What is noted at a directory.
#[derive(Default)]
pub(crate) struct Notes {
    below: Vec<Change>,
    /// What is noted above counts for what is below only if its number is greater.
    inherited: u64,
}

/// One change of everything below a directory.
#[derive(Clone)]
struct Change {
    number: u64,
    function: u16,
    argument: Arc<[u8]>,
    lsn: Lsn,
}

impl Changes {
    /// The number of the newest change.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }
}

impl Node {
    /// Applies to a state what was noted since it was last looked at. `newest`: the number of the
    /// newest change.
    pub(crate) fn catch_up(&self, state: &mut State, newest: u64) {
        // What has no name is reached by no change.
        if state.orphan == Orphan::No {
            let mut missed = self.missed(state.caught_up);
            missed.retain(|change| change.number <= newest);
            for change in &missed {
                state.inode = changed_inode(&state.inode, change.function, &change.argument);
                state.lsn = state.lsn.max(change.lsn);
            }
            if !missed.is_empty() {
                self.changed.store(true, Ordering::Release);
                self.tell_changed();
                if let Some(directory) = &self.directory {
                    directory.owned_alone.store(state.inode.owned_alone, Ordering::Release);
                }
            }
        }
        state.caught_up = newest;
    }

    /// Remembers that somebody may want to know that it changed.
    pub(crate) fn tell_changed(&self) {
        self.changes.changed.lock().push(self.id);
    }

    /// What is noted above with numbers above `after`, in order.
    fn missed(&self, after: u64) -> Vec<Change> {
        loop {
            let moves = self.changes.moves.load(Ordering::Acquire);
            if moves.is_multiple_of(2) {
                let found = self.noted_above(after);
                if self.changes.moves.load(Ordering::Acquire) == moves {
                    return found;
                }
            }
            std::thread::yield_now();
        }
    }

    fn noted_above(&self, mut after: u64) -> Vec<Change> {
        let mut found = Vec::new();
        let mut above = self.place().parent;
        while let Some(node) = above {
            let directory = node.dir();
            // What was removed is no longer below the root.
            if directory.role == Role::Orphans {
                break;
            }
            let notes = directory.notes.lock();
            found.extend(notes.below.iter().filter(|change| change.number > after).cloned());
            after = after.max(notes.inherited);
            drop(notes);
            above = node.place().parent;
        }
        found.sort_unstable_by_key(|change| change.number);
        found
    }

    /// Moves a directory in memory by `set`. The caller holds the exclusive tree lock.
    pub(crate) fn take_notes_along<T>(self: &Arc<Self>, set: impl FnOnce() -> T) -> T {
        let Some(directory) = &self.directory else { return set() };
        self.changes.moves.fetch_add(1, Ordering::AcqRel);
        let inherited = directory.notes.lock().inherited;
        let above = self.noted_above(inherited);
        let mut notes = directory.notes.lock();
        if !above.is_empty() {
            self.changes.noted.lock().push(Arc::downgrade(self));
            notes.below.extend(above);
        }
        notes.inherited = self.changes.newest();
        drop(notes);
        let done = set();
        self.changes.moves.fetch_add(1, Ordering::AcqRel);
        done
    }
}

impl FileSystem {
    /// Notes a change of everything below a directory, which was committed. The caller holds the
    /// exclusive tree lock.
    pub(crate) fn note_change(&self, top: &Arc<Node>, function: u16, argument: &[u8], lsn: Lsn) {
        let changes = &top.changes;
        let number = changes.newest() + 1;
        let many = {
            let mut notes = top.dir().notes.lock();
            notes.below.push(Change { number, function, argument: argument.into(), lsn });
            notes.below.len() > MAX_NOTES
        };
        changes.noted.lock().push(Arc::downgrade(top));
        changes.newest.store(number, Ordering::Release);
        if many {
            self.catch_up_all();
        }
    }

    /// The nodes whose attributes were changed by [`FileSystem::chown_tree`] and
    /// [`FileSystem::chmod_tree`] since this was last asked. Takes time for each node in memory,
    /// without keeping others from their work: the mount has a thread of its own tell the kernel.
    pub fn changed_nodes(&self) -> Vec<NodeId> {
        self.catch_up_all();
        let mut changed = std::mem::take(&mut *self.root_changes().changed.lock());
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// The nodes in memory of a directory (or file) and everything below it, each file by whatever
    /// name it is known; `None` if there are more than `limit`, or it takes a look at many more
    /// names to find them.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`](crate::FsErrorKind::Stale); of the store.
    pub fn nodes_below(&self, node: NodeId, limit: usize) -> Result<Option<Vec<NodeId>>> {
        let top = self.node(node)?;
        let tree = self.tree.shared();
        let (mut found, mut looked_at) = (vec![top.id], 0);
        let mut waiting = vec![top.clone()];
        while let Some(node) = waiting.pop() {
            let Some(directory) = &node.directory else { continue };
            let names = directory.names.lock();
            looked_at += names.len();
            if looked_at > NAMES_PER_NODE * limit {
                return Ok(None);
            }
            for node in names.nodes().filter_map(|id| self.nodes.get(id)) {
                found.push(node.id);
                waiting.push(node);
            }
            if found.len() > limit {
                return Ok(None);
            }
        }
        if top.is_dir() && !top.is_removed() {
            // What is known by a name elsewhere.
            let area = self.area_of(&top)?;
            let (mut known, mut room) = (Vec::new(), limit);
            self.names_below(&top.content_prefix(tree.epoch), |_, id| {
                known.push(layout::area_name(id));
                room = room.saturating_sub(1);
                room > 0
            })?;
            if room == 0 {
                return Ok(None);
            }
            let names = area.dir().names.lock();
            let nodes = known.iter().filter_map(|name| names.get(name)).filter_map(|known| known.node());
            found.extend(nodes.filter(|id| self.nodes.is_live(*id)));
        }
        found.sort_unstable();
        found.dedup();
        Ok(Some(found))
    }

    /// Has all nodes in memory catch up, and drops what is noted so far.
    pub(crate) fn catch_up_all(&self) {
        let changes = self.root_changes();
        let noted = std::mem::take(&mut *changes.noted.lock());
        if noted.is_empty() {
            return;
        }
        let newest = changes.newest();
        for shard in 0..self.nodes.shard_count() {
            for node in self.nodes.in_shard(shard) {
                drop(node.state());
            }
        }
        for node in noted.iter().filter_map(Weak::upgrade) {
            node.dir().notes.lock().below.retain(|change| change.number > newest);
        }
        // Nobody may ask; nodes that left memory need not be told of.
        let mut changed = changes.changed.lock();
        changed.sort_unstable();
        changed.dedup();
        changed.retain(|id| self.nodes.is_live(*id));
    }

    fn root_changes(&self) -> &Changes {
        &self.orphans.changes
    }
}

/// What a merge function makes of an inode.
pub(crate) fn changed_inode(inode: &Inode, function: u16, argument: &[u8]) -> Inode {
    let mut inode = inode.clone();
    match function {
        merge::CHANGE_OWNER => merge::change_owner(&mut inode, argument),
        _ => merge::change_mode(&mut inode, argument),
    }
    inode
}
