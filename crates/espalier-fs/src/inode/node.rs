//! Nodes: what memory holds of the files and directories in use.
//!
//! A node stands for a (parent, name) pair; a file with several names lies in the link area, which
//! is a directory like any other here, so it too has one node. Nodes hold on to their parents, so
//! the way up to the root is always in memory and a key is made by walking it.
//!
//! Locks are taken in the order of [`Rank`]; `docs/design/fs.md` has the argument. Commits are made
//! with the locks of everything that they concern held, so the order in which changes become
//! visible is the order of the log.

use crate::inode::limits::{LimitTable, LimitedTree, Limits};
use crate::inode::names::Names;
use crate::inode::node_id::Identity;
use crate::inode::pending_changes::{ChangeNotes, PendingChanges, TreeChange};
use crate::lock_order::{Rank, RankedGuard, RankedMutex};
use crate::model::access::grants_differ;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::position::Positions;
use crate::model::record::Inode;
use crate::model::tree_limits::TreeLimits;
use crate::model::types::{FileKind, NodeId, SurplusNode};
use crate::volume::mtime_hold::MtimeHold;
use espalier_engine::Lsn;
use espalier_sync::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A content prefix longer than this is computed each time instead of remembered, so that deep
/// chains of directories do not take memory quadratic in their depth. In bytes.
const REMEMBERED_PREFIX: usize = 1024;

/// A file or directory in use.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// See [`Identity`].
    pub(crate) serial: u64,
    pub(crate) kind: FileKind,
    /// `st_ino`; never changes.
    pub(crate) ino: u64,
    place: RwLock<Place>,
    state: RankedMutex<State>,
    /// Of all nodes of the volume.
    pub(crate) changes: Arc<PendingChanges>,
    /// Of all nodes of the volume.
    pub(crate) limit_table: Arc<LimitTable>,
    /// Of a file or tree without a name: the limited trees that it counts for.
    charged: Mutex<Option<Limits>>,
    /// Changes before the keys of the node's data do.
    pub(crate) version: AtomicU64,
    /// The node was changed since it was loaded.
    pub(crate) changed: AtomicBool,
    /// When the last reference goes, there is work: a delayed time, or an unlinked file.
    pub(crate) pending: AtomicBool,
    pub(crate) directory: Option<Box<Directory>>,
}

/// Where a node is. The root has no parent.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) parent: Option<Arc<Node>>,
    pub(crate) name: Arc<[u8]>,
}

impl Place {
    /// What all nodes of the volume share.
    fn tables(&self) -> (Arc<PendingChanges>, Arc<LimitTable>) {
        let shared = |parent: &Arc<Node>| (parent.changes.clone(), parent.limit_table.clone());
        self.parent.as_ref().map(shared).unwrap_or_default()
    }
}

/// What changes about a node.
pub(crate) struct State {
    pub(crate) inode: Inode,
    /// The last batch that concerned the node, or may have before it was loaded.
    pub(crate) lsn: Lsn,
    /// The time of the last read is newer than in the store.
    pub(crate) atime_dirty: bool,
    pub(crate) orphan: Orphan,
    /// It never had a name, and may be given one.
    pub(crate) linkable: bool,
    /// Units of 512 bytes that a sparse file takes, where known.
    pub(crate) blocks: Option<u64>,
    /// Counts changes of the data.
    pub(crate) changes: u64,
    /// Whether write-back sets the time of modification.
    pub(crate) mtime_hold: MtimeHold,
    /// The newest change of a whole tree that is accounted for.
    pub(crate) caught_up: u64,
}

impl State {
    /// Notes that the data has changed; the blocks of a sparse file have to be counted again.
    pub(crate) fn data_changed(&mut self) {
        self.changes += 1;
        self.blocks = None;
    }
}

/// What has become of a file without a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Orphan {
    /// It has a name.
    No,
    /// It has nothing in the store.
    Empty,
    /// Its data lies at this base; the orphan area says so.
    Data(Arc<[u8]>),
    /// A directory that was removed with everything below, and is in use; it lies in the orphan
    /// area.
    Tree,
}

/// What kind of directory a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// An ordinary one.
    Tree,
    /// The link area of its parent.
    LinkArea,
    /// The orphan area.
    Orphans,
}

/// The link area of a directory, if it has one of its own.
pub(crate) struct LinkAreaOf {
    /// It has one; it may lose it, but never gets one.
    pub(crate) exists: AtomicBool,
    /// Its node, while that is in memory.
    pub(crate) node: Mutex<Option<NodeId>>,
    /// What is added to numbers in it; never changes.
    pub(crate) sum: u64,
}

/// What only directories have.
pub(crate) struct Directory {
    pub(crate) role: Role,
    pub(crate) link_area: LinkAreaOf,
    /// Of a link area: what is known about the link counts in it.
    pub(crate) link_counts: Mutex<LinkCounts>,
    /// As the flag of the inode when tree changes were last applied to it.
    pub(crate) owned_alone: AtomicBool,
    /// Changes of everything below; made when there is something to note.
    notes: OnceLock<Arc<ChangeNotes>>,
    /// The sum of the deltas from the root to this directory, itself included; never changes.
    pub(crate) sum: u64,
    pub(crate) names: RankedMutex<Names>,
    /// Counts nodes that were changed and left memory, so that what was read from the store before
    /// is known to be stale.
    pub(crate) evictions: AtomicU64,
    /// Bytes of the names known, as counted in the total.
    pub(crate) name_bytes: AtomicU64,
    /// It was removed: its place says nothing any more.
    pub(crate) removed: AtomicBool,
    /// It was used since names were last given up to save memory.
    pub(crate) used: AtomicBool,
    prefix: Mutex<Option<(u64, Arc<[u8]>)>>,
    /// The limited tree that it is the top of.
    limited: Mutex<Option<Arc<LimitedTree>>>,
    /// The limited trees that it lies in, with the epoch of moves and the generation of limits.
    limits: Mutex<Option<(u64, u64, Limits)>>,
    /// The sort of positions that a listing chose last, with the version of the names.
    pub(crate) positions: Mutex<Option<(u64, Positions)>>,
}

impl Directory {
    /// True if it has a link area of its own. The caller holds the tree lock.
    pub(crate) fn has_link_area(&self) -> bool {
        self.link_area.exists.load(Ordering::Acquire)
    }

    /// Changes of everything below.
    pub(crate) fn notes(&self) -> &Arc<ChangeNotes> {
        self.notes.get_or_init(Arc::default)
    }
}

/// What is known about the link counts of the files in a link area.
#[derive(Debug, Default)]
pub(crate) enum LinkCounts {
    /// The mark of the area was not read yet.
    #[default]
    Unknown,
    /// The inodes have them right.
    Right,
    /// The area is a copy: these counts are right, by number in the area, and a file that is not
    /// listed has no name.
    Counted(BTreeMap<u64, u32>),
}

impl Node {
    /// A node of something found in the store. `sum`: of the deltas above it.
    pub(crate) fn new(identity: Identity, place: Place, inode: Inode, sum: u64, lsn: Lsn) -> Arc<Self> {
        let limits = inode.limits.get();
        let node = Self::with_role(identity, place, inode, sum, lsn, Role::Tree);
        if limits.is_some() {
            node.set_limits(limits);
        }
        node
    }

    /// The node of an area, which is a directory without a name.
    pub(crate) fn new_area(identity: Identity, parent: &Arc<Self>, role: Role) -> Arc<Self> {
        let place = Place { parent: Some(parent.clone()), name: [].into() };
        let sum = parent.directory.as_ref().map_or(0, |d| d.link_area.sum);
        Self::with_role(identity, place, Inode::new(FileKind::Directory, 0, 0, 0, 0, 0), sum, Lsn(0), role)
    }

    /// A node that a server before this one had. `ino`: its number, and `sums` those of a directory
    /// for its entries and for its link area, which no longer follow from its place if it has lost
    /// its name.
    pub(crate) fn restored(
        identity: Identity,
        place: Place,
        inode: Inode,
        ino: u64,
        directory: Option<(Role, [u64; 2])>,
    ) -> Result<Arc<Self>> {
        let (role, sums) = directory.unwrap_or((Role::Tree, [0; 2]));
        let made = Arc::into_inner(Self::with_role(identity, place, inode, 0, Lsn(0), role));
        let Some(mut node) = made.filter(|node| node.is_dir() == directory.is_some()) else {
            return fail(FsErrorKind::Io, "a file is no directory");
        };
        node.ino = ino;
        if let Some(directory) = &mut node.directory {
            [directory.sum, directory.link_area.sum] = sums;
        }
        let node = Arc::new(node);
        let limits = node.state().inode.limits.get();
        if limits.is_some() {
            node.set_limits(limits);
        }
        Ok(node)
    }

    fn with_role(
        identity: Identity,
        place: Place,
        inode: Inode,
        sum: u64,
        lsn: Lsn,
        role: Role,
    ) -> Arc<Self> {
        let Identity { id, serial } = identity;
        let sum = sum.wrapping_add(inode.delta);
        let directory = inode.is_dir().then(|| {
            Box::new(Directory {
                role,
                link_area: LinkAreaOf {
                    exists: AtomicBool::new(inode.has_link_area),
                    node: Mutex::default(),
                    sum: sum.wrapping_add(inode.link_area_delta),
                },
                link_counts: Mutex::default(),
                owned_alone: AtomicBool::new(inode.owned_alone),
                notes: OnceLock::new(),
                sum,
                names: RankedMutex::new(Rank::Names, Names::of_node(serial)),
                evictions: AtomicU64::new(0),
                name_bytes: AtomicU64::new(0),
                removed: AtomicBool::new(false),
                used: AtomicBool::new(true),
                prefix: Mutex::default(),
                limited: Mutex::default(),
                limits: Mutex::default(),
                positions: Mutex::default(),
            })
        });
        let (changes, limit_table) = place.tables();
        Arc::new(Self {
            id,
            serial,
            kind: inode.kind,
            ino: inode.number.wrapping_add(sum),
            place: RwLock::new(place),
            state: RankedMutex::with_key(
                Rank::State,
                id.0,
                State {
                    inode,
                    lsn,
                    atime_dirty: false,
                    orphan: Orphan::No,
                    linkable: false,
                    blocks: None,
                    changes: 0,
                    mtime_hold: MtimeHold::default(),
                    caught_up: changes.newest(),
                },
            ),
            changes,
            limit_table,
            charged: Mutex::default(),
            version: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            pending: AtomicBool::new(false),
            directory,
        })
    }

    pub(crate) fn place(&self) -> Place {
        self.place.read().clone()
    }

    /// True if a kernel may know it by a name: neither the root nor an area.
    pub(crate) fn may_be_surplus(&self) -> bool {
        let is_area = self.directory.as_ref().is_some_and(|directory| directory.role != Role::Tree);
        !is_area && self.place.read().parent.is_some()
    }

    /// What the mount is told of a node on which it should give back its references.
    pub(crate) fn as_surplus(&self) -> SurplusNode {
        let Place { parent, name } = self.place();
        // In a link area lies a file with several names, of which none is known here.
        let dir = parent.filter(|dir| !self.is_dir() && dir.dir().role == Role::Tree);
        SurplusNode { node: self.id, place: dir.map(|dir| (dir.id, name)) }
    }

    /// True if its data and attributes lie at this entry.
    pub(crate) fn is_at(&self, parent: &Node, name: &[u8]) -> bool {
        let place = self.place.read();
        place.parent.as_ref().is_some_and(|p| p.id == parent.id) && *place.name == *name
    }

    /// Moves it in memory; returns where it was. The caller moves the reference on the parent too,
    /// and holds the state, or has looked at it since it took the exclusive tree lock.
    pub(crate) fn set_place(self: &Arc<Self>, place: Place) -> Place {
        let set = || std::mem::replace(&mut *self.place.write(), place);
        match &self.directory {
            Some(directory) => {
                let above = || self.noted_above(directory.notes().inherited());
                self.changes.move_directory(directory.notes(), above, set)
            }
            None => set(),
        }
    }

    /// What changes about the node, up to date.
    pub(crate) fn state(&self) -> RankedGuard<'_, State> {
        let mut state = self.state.lock();
        let newest = self.changes.newest();
        if state.caught_up < newest {
            self.catch_up(&mut state, newest);
        }
        state
    }

    /// Applies to a state the tree changes that are pending, up to number `newest`.
    fn catch_up(&self, state: &mut State, newest: u64) {
        // No change reaches a file without a name.
        if state.orphan == Orphan::No {
            let mut missed = self.changes.collect_between_moves(|| self.noted_above(state.caught_up));
            missed.retain(|change| change.number <= newest);
            for change in &missed {
                state.inode = change.apply(&state.inode);
                state.lsn = state.lsn.max(change.lsn);
            }
            if !missed.is_empty() {
                self.changed.store(true, Ordering::Release);
                if missed.iter().any(TreeChange::is_visible) {
                    self.changes.report(self.id);
                }
                if let Some(directory) = &self.directory {
                    directory.owned_alone.store(state.inode.owned_alone, Ordering::Release);
                }
            }
        }
        state.caught_up = newest;
    }

    /// The notes above with numbers above `after`, in order.
    fn noted_above(&self, mut after: u64) -> Vec<TreeChange> {
        let mut found = Vec::new();
        let mut above = self.place().parent;
        while let Some(node) = above {
            let directory = node.dir();
            // A removed tree is no longer below the root.
            if directory.role == Role::Orphans {
                break;
            }
            if let Some(notes) = directory.notes.get() {
                after = notes.collect(after, &mut found);
            }
            above = node.place().parent;
        }
        found.sort_unstable_by_key(|change| change.number);
        found
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.directory.is_some()
    }

    /// The part that only directories have.
    ///
    /// # Panics
    /// If the node is no directory; callers have made sure.
    pub(crate) fn dir(&self) -> &Directory {
        self.directory.as_deref().expect("the caller made sure that it is a directory")
    }

    /// Counts in the parent that a changed node leaves memory, so that what a lookup read from the
    /// store before is known to be stale.
    pub(crate) fn count_eviction(&self) {
        if self.changed.load(Ordering::Acquire)
            && let Some(parent) = &self.place().parent
            && let Some(directory) = &parent.directory
        {
            directory.evictions.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Takes over in memory the inode that batch `lsn` stored.
    pub(crate) fn take_over(&self, state: &mut State, inode: Inode, lsn: Lsn) {
        if let Some(directory) = &self.directory {
            directory.owned_alone.store(inode.owned_alone, Ordering::Release);
        }
        debug_assert!(inode.limits == state.inode.limits, "limits are set by `set_limits`");
        self.take_over_limited(state, inode, lsn);
    }

    /// As [`Node::take_over`], of an inode whose limits differ.
    pub(crate) fn take_over_limited(&self, state: &mut State, inode: Inode, lsn: Lsn) {
        if self.is_dir() && grants_differ(&state.inode, &inode) {
            self.changes.note_rights();
        }
        self.changed.store(true, Ordering::Release);
        state.inode = inode;
        state.lsn = lsn;
        state.atime_dirty = false;
    }

    /// Notes in a link area that file `id` has `names` names now.
    pub(crate) fn set_link_count(&self, id: u64, names: u32) {
        if let Some(directory) = &self.directory
            && let LinkCounts::Counted(counts) = &mut *directory.link_counts.lock()
        {
            counts.insert(id, names);
        }
    }

    /// The number of names of file `id` in a link area, if its inode may be wrong about it.
    pub(crate) fn link_count(&self, id: u64) -> Option<u32> {
        match &*self.directory.as_ref()?.link_counts.lock() {
            LinkCounts::Counted(counts) => Some(counts.get(&id).copied().unwrap_or(0)),
            _ => None,
        }
    }

    /// The key at which the data and the large attributes of the node begin. The caller holds the
    /// tree lock.
    pub(crate) fn data_base(&self, epoch: u64, state: &State) -> Arc<[u8]> {
        match &state.orphan {
            Orphan::No => self.entry_key(epoch).into(),
            Orphan::Data(base) => base.clone(),
            Orphan::Empty | Orphan::Tree => self.orphan_key().into(),
        }
    }

    /// The key of the record of the node in the orphan area.
    pub(crate) fn orphan_key(&self) -> [u8; layout::ORPHAN_KEY_BYTES] {
        layout::orphan_key(self.serial)
    }

    /// Its path in the volume. The caller holds the tree lock.
    pub(crate) fn path(self: &Arc<Self>) -> Vec<u8> {
        let mut at = self.clone();
        let mut names = Vec::new();
        while let Place { parent: Some(parent), name } = at.place() {
            names.push(name);
            at = parent;
        }
        let mut path: Vec<u8> = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }

    /// The content prefix of this directory. `epoch` counts the moves of directories; the caller
    /// holds the tree lock, so it stands still.
    pub(crate) fn content_prefix(self: &Arc<Self>, epoch: u64) -> Arc<[u8]> {
        if let Some(known) = self.remembered_prefix(epoch) {
            return known;
        }
        let mut below: Vec<Arc<Node>> = Vec::new();
        let mut at = self.clone();
        let mut prefix: Vec<u8> = loop {
            if let Some(known) = at.remembered_prefix(epoch) {
                if below.is_empty() {
                    return known;
                }
                break known.to_vec();
            }
            let Some(parent) = at.place.read().parent.clone() else { break Vec::new() };
            below.push(std::mem::replace(&mut at, parent));
        };
        if below.is_empty() {
            return prefix.into();
        }
        while let Some(node) = below.pop() {
            layout::escape(&node.place.read().name, &mut prefix);
            prefix.push(1);
            node.remember_prefix(epoch, &prefix);
        }
        prefix.into()
    }

    fn remembered_prefix(&self, epoch: u64) -> Option<Arc<[u8]>> {
        let remembered = self.directory.as_ref()?.prefix.lock();
        remembered.as_ref().filter(|(of, _)| *of == epoch).map(|(_, prefix)| prefix.clone())
    }

    fn remember_prefix(&self, epoch: u64, prefix: &[u8]) {
        if let Some(directory) = &self.directory
            && prefix.len() <= REMEMBERED_PREFIX
        {
            *directory.prefix.lock() = Some((epoch, prefix.into()));
        }
    }

    /// The key of its entry. The caller holds the tree lock, and the state unless it is a
    /// directory.
    pub(crate) fn entry_key(&self, epoch: u64) -> Vec<u8> {
        let place = self.place.read();
        match &place.parent {
            Some(parent) => layout::entry_key(&parent.content_prefix(epoch), &place.name),
            None => layout::ROOT_KEY.to_vec(),
        }
    }

    /// The directory whose link area serves this one: the nearest that has one. `None` in a tree
    /// that was removed.
    pub(crate) fn link_area_directory(self: &Arc<Self>) -> Option<Arc<Self>> {
        let mut at = self.clone();
        loop {
            match at.directory.as_ref().map(|d| (d.role, d.has_link_area())) {
                Some((Role::Orphans, _)) => return None,
                Some((Role::Tree, true)) => return Some(at),
                _ => {}
            }
            let parent = at.place.read().parent.clone()?;
            at = parent;
        }
    }

    /// Gives a directory limits, or takes them away. The caller holds the exclusive tree lock, or
    /// nothing else knows the node.
    pub(crate) fn set_limits(self: &Arc<Self>, limits: Option<TreeLimits>) {
        let Some(directory) = &self.directory else { return };
        let tree = limits.map(|limits| self.limit_table.tree(self.ino, limits));
        if let Some(tree) = &tree {
            tree.add_member(self.serial, self.id);
        }
        let before = std::mem::replace(&mut *directory.limited.lock(), tree);
        if let Some(before) = before.filter(|_| limits.is_none()) {
            // It may be in use still, and get a limit again.
            before.set_limits(TreeLimits::default());
        }
        self.limit_table.changed();
    }

    /// The limited tree that this directory is the top of.
    pub(crate) fn limited_tree(&self) -> Option<Arc<LimitedTree>> {
        self.directory.as_ref()?.limited.lock().clone()
    }

    /// The limited trees that it lies in or is the top of. `epoch` counts the moves of directories.
    #[inline]
    pub(crate) fn limits(self: &Arc<Self>, epoch: u64) -> Option<Limits> {
        if self.limit_table.is_used() { self.find_limits(epoch) } else { None }
    }

    fn find_limits(self: &Arc<Self>, epoch: u64) -> Option<Limits> {
        let generation = self.limit_table.generation();
        let dir = match (&self.directory, self.place().parent) {
            (None, Some(parent)) if parent.dir().role != Role::Orphans => parent,
            _ => self.clone(),
        };
        let remembered = dir.directory.as_ref().map(|directory| &directory.limits);
        let found = remembered.and_then(|limits| limits.lock().clone());
        if let Some((_, _, limits)) = found.filter(|(e, g, _)| (*e, *g) == (epoch, generation)) {
            return Some(limits).filter(|limits| !limits.is_empty());
        }
        let limits = dir.collect_limits();
        if let Some(remembered) = remembered {
            *remembered.lock() = Some((epoch, generation, limits.clone()));
        }
        Some(limits).filter(|limits| !limits.is_empty())
    }

    /// Looks for limits on the way up.
    pub(crate) fn collect_limits(self: &Arc<Self>) -> Limits {
        let mut found: Vec<Arc<LimitedTree>> = Vec::new();
        let mut at = self.clone();
        loop {
            found.extend(at.limited_tree());
            let Some(parent) = at.place().parent else { break };
            if parent.dir().role == Role::Orphans {
                found.extend(at.charged.lock().iter().flat_map(|limits| limits.iter().cloned()));
                break;
            }
            at = parent;
        }
        found.into()
    }

    /// What it holds counts for these trees while it has no name.
    pub(crate) fn charge_to(self: &Arc<Self>, limits: Option<Limits>) {
        limits.iter().flat_map(|limits| limits.iter()).for_each(|tree| tree.add_member(self.serial, self.id));
        *self.charged.lock() = limits;
    }

    /// The limited trees for which it counts while it has no name.
    pub(crate) fn charged_trees(&self) -> Vec<Arc<LimitedTree>> {
        self.charged.lock().iter().flat_map(|limits| limits.iter().cloned()).collect()
    }

    /// It is no longer in use: what it held without a name counts for no tree any more.
    pub(crate) fn note_given_up(&self) {
        if self.limit_table.is_used() {
            let charged = self.charged.lock();
            charged.iter().flat_map(|limits| limits.iter()).for_each(|tree| tree.note_freed());
        }
    }

    /// True if it lies in a tree that was removed, or is a file without a name.
    pub(crate) fn is_removed(self: &Arc<Self>) -> bool {
        let mut at = self.clone();
        loop {
            if at.directory.as_ref().is_some_and(|d| d.role == Role::Orphans) {
                return true;
            }
            let Some(parent) = at.place.read().parent.clone() else { return false };
            at = parent;
        }
    }

    /// Refuses a directory that was removed while it was empty. Its place is that of another
    /// directory by now, or may become so.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`].
    pub(crate) fn check_has_place(&self) -> Result<()> {
        match self.is_dir() && self.state().orphan == Orphan::Empty {
            true => fail(FsErrorKind::NotFound, "the directory was removed"),
            false => Ok(()),
        }
    }

    /// True if `other` is this node or lies below it.
    pub(crate) fn contains(&self, other: &Arc<Node>) -> bool {
        let mut at = Some(other.clone());
        while let Some(node) = at {
            if node.id == self.id {
                return true;
            }
            at = node.place.read().parent.clone();
        }
        false
    }
}

impl Drop for Node {
    /// Lets go of the chain of parents in a loop: recursion would be as deep as the directories.
    fn drop(&mut self) {
        let mut parent = self.place.get_mut().parent.take();
        while let Some(mut node) = parent.and_then(Arc::into_inner) {
            parent = node.place.get_mut().parent.take();
        }
    }
}

/// The states of several nodes, locked in order.
pub(crate) struct States<'a>(Vec<(NodeId, RankedGuard<'a, State>)>);

impl<'a> States<'a> {
    /// Locks the states of `nodes`, which may name one node several times.
    pub(crate) fn lock(nodes: &[&'a Arc<Node>]) -> Self {
        let mut sorted: Vec<&'a Arc<Node>> = nodes.to_vec();
        sorted.sort_unstable_by_key(|n| n.id);
        sorted.dedup_by_key(|n| n.id);
        Self(sorted.into_iter().map(|n| (n.id, n.state())).collect())
    }

    /// The state of one of the nodes.
    ///
    /// # Panics
    /// If `node` was not among them.
    pub(crate) fn of(&mut self, node: &Node) -> &mut State {
        let found = self.0.iter_mut().find(|(id, _)| *id == node.id);
        &mut found.expect("the node's state was locked").1
    }
}
