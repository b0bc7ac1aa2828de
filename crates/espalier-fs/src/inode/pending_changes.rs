//! Pending tree changes: changes of owners and modes of whole trees that nodes in memory have not
//! applied yet.
//!
//! A change of everything below a directory is one range message in the store, and one note in
//! memory. The note has a number and is kept at the directory's node. Each node knows the number up
//! to which it is up to date. A reader of its state ([`Node::state`]) has it catch up first: it
//! collects the notes on the way up to the root and applies them in order, with the merge function
//! that the store applies too. An inode that was read from the store is up to date when it becomes
//! a node.
//!
//! Invariants:
//! - A note counts for what lies below its directory, not for the directory itself, which is
//!   changed at once.
//! - A directory that moves takes along the notes above its old place, and remembers the newest
//!   number: a note above its new place counts for what is below it only if it is newer.
//! - Other nodes catch up before they move, because their state is locked then.
//! - The holder of the exclusive tree lock makes notes and moves directories. Nodes catch up
//!   without that lock, so moves are counted, and a node that met a move on its way up looks again.
//! - A note is dropped when all nodes in memory have caught up ([`NodeTable::catch_up_all`], called
//!   by the background and by `FileSystem::changed_nodes`).
//!
//! [`Node::state`]: crate::inode::node::Node::state
//! [`NodeTable::catch_up_all`]: crate::inode::node_table::NodeTable::catch_up_all

use crate::model::merge;
use crate::model::record::Inode;
use crate::model::types::NodeId;
use espalier_engine::Lsn;
use espalier_sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// With more notes at one directory all nodes catch up at once, so that looking for notes stays
/// cheap.
const MAX_NOTES_PER_DIRECTORY: usize = 64;

/// One change of everything below a directory.
#[derive(Clone)]
pub(crate) struct TreeChange {
    pub(crate) number: u64,
    pub(crate) lsn: Lsn,
    function: u16,
    argument: Arc<[u8]>,
}

impl TreeChange {
    /// Users see what it changes.
    pub(crate) fn is_visible(&self) -> bool {
        self.function != merge::MARK_OWNED
    }

    pub(crate) fn apply(&self, inode: &Inode) -> Inode {
        merge::changed_inode(inode, self.function, &self.argument)
    }
}

/// The notes at one directory.
#[derive(Default)]
pub(crate) struct ChangeNotes(Mutex<Notes>);

#[derive(Default)]
struct Notes {
    below: Vec<TreeChange>,
    /// A note above this directory counts for what is below only if its number is greater.
    inherited: u64,
}

impl ChangeNotes {
    /// Adds to `found` the notes with numbers above `after`; returns the number above which notes
    /// of directories further up count.
    pub(crate) fn collect(&self, after: u64, found: &mut Vec<TreeChange>) -> u64 {
        let notes = self.0.lock();
        found.extend(notes.below.iter().filter(|change| change.number > after).cloned());
        after.max(notes.inherited)
    }

    /// The number above which notes of directories further up count.
    pub(crate) fn inherited(&self) -> u64 {
        self.0.lock().inherited
    }

    /// Drops the notes up to `newest`, which all nodes have applied.
    pub(crate) fn drop_applied(&self, newest: u64) {
        self.0.lock().below.retain(|change| change.number > newest);
    }
}

/// What all nodes of a mounted volume share.
#[derive(Default)]
pub(crate) struct PendingChanges {
    /// The number of the newest change.
    newest: AtomicU64,
    /// Counts the beginnings and ends of moves: odd while a directory moves.
    moves: AtomicU64,
    /// Notes of the directories that have some.
    noted: Mutex<Vec<Weak<ChangeNotes>>>,
    /// Nodes that have changed since the mount last asked for them.
    changed: Mutex<Vec<NodeId>>,
    /// Counts changes of the rights of single directories.
    rights: AtomicU64,
}

impl PendingChanges {
    /// The number of the newest change.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Callers may have other rights on a directory from now on. The caller holds its state.
    pub(crate) fn note_rights(&self) {
        self.rights.fetch_add(1, Ordering::AcqRel);
    }

    /// What all rights on directories depend on, but for moves: they are the same as long as this
    /// is.
    pub(crate) fn rights(&self) -> (u64, u64) {
        (self.rights.load(Ordering::Acquire), self.newest())
    }

    /// Collects notes by `collect`, again if a directory moved meanwhile.
    pub(crate) fn collect_between_moves(&self, collect: impl Fn() -> Vec<TreeChange>) -> Vec<TreeChange> {
        loop {
            let moves = self.moves.load(Ordering::Acquire);
            if moves.is_multiple_of(2) {
                let found = collect();
                if self.moves.load(Ordering::Acquire) == moves {
                    return found;
                }
            }
            std::thread::yield_now();
        }
    }

    /// Moves a directory by `set`; its notes take along those that `collect` finds above its old
    /// place.
    pub(crate) fn move_directory<T>(
        &self,
        notes: &Arc<ChangeNotes>,
        collect: impl FnOnce() -> Vec<TreeChange>,
        set: impl FnOnce() -> T,
    ) -> T {
        self.moves.fetch_add(1, Ordering::AcqRel);
        let above = collect();
        {
            let mut inner = notes.0.lock();
            if !above.is_empty() {
                self.noted.lock().push(Arc::downgrade(notes));
                inner.below.extend(above);
            }
            inner.inherited = self.newest();
        }
        let done = set();
        self.moves.fetch_add(1, Ordering::AcqRel);
        done
    }

    /// Notes a committed change of everything below a directory. True if the directory has so many
    /// notes that all nodes should catch up. The caller holds the exclusive tree lock.
    pub(crate) fn note(&self, notes: &Arc<ChangeNotes>, function: u16, argument: &[u8], lsn: Lsn) -> bool {
        let number = self.newest() + 1;
        let many = {
            let mut notes = notes.0.lock();
            notes.below.push(TreeChange { number, function, argument: argument.into(), lsn });
            notes.below.len() > MAX_NOTES_PER_DIRECTORY
        };
        self.noted.lock().push(Arc::downgrade(notes));
        self.newest.store(number, Ordering::Release);
        many
    }

    /// Remembers for the mount that a node has changed.
    pub(crate) fn report(&self, id: NodeId) {
        self.changed.lock().push(id);
    }

    /// The notes of the directories that have some, which are no longer listed afterwards.
    pub(crate) fn take_noted(&self) -> Vec<Weak<ChangeNotes>> {
        std::mem::take(&mut *self.noted.lock())
    }

    /// The nodes that have changed since this was last asked.
    pub(crate) fn take_changed(&self) -> Vec<NodeId> {
        let mut changed = std::mem::take(&mut *self.changed.lock());
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// Drops reports of nodes that are not `live`: a mount may never ask, and need not hear of
    /// nodes that left memory.
    pub(crate) fn retain_changed(&self, live: impl Fn(NodeId) -> bool) {
        let mut changed = self.changed.lock();
        changed.sort_unstable();
        changed.dedup();
        changed.retain(|id| live(*id));
    }
}
