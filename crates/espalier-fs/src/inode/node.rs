//! Nodes: what memory holds of the files and directories in use.
//!
//! A node stands for a (parent, name) pair; a file with several names lies in the link area, which
//! is a directory like any other here, so it too has one node. Nodes hold on to their parents, so
//! the way up to the root is always in memory and a key is made by walking it.
//!
//! Locks, in the order in which they are taken:
//! 1. `FileSystem::tree`: shared by every operation that uses keys, exclusive for those that move
//!    directories;
//! 2. `FileSystem::renames`, by renames across directories;
//! 3. [`Directory::names`], ancestors first, the link area last;
//! 4. [`Node::state`], by ascending id; states of unlinked files last;
//! 5. tables (nodes, orphans, numbers), held for a moment only.
//!
//! Commits are made with the locks 1 to 4 of all they concern held, so the order in which changes
//! become visible is the order of the log.

use crate::inode::mtime_hold::MtimeHold;
use crate::inode::pending_changes::{Changes, Notes};
use crate::model::layout;
use crate::model::record::Inode;
use crate::model::types::{FileKind, NodeId};
use espalier_engine::Lsn;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A content prefix longer than this is computed each time instead of remembered, so that deep
/// chains of directories do not take memory quadratic in their depth. In bytes.
const REMEMBERED_PREFIX: usize = 1024;

/// A file or directory in use.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) kind: FileKind,
    /// `st_ino`; never changes.
    pub(crate) ino: u64,
    place: RwLock<Place>,
    state: Mutex<State>,
    /// Of all nodes.
    pub(crate) changes: Arc<Changes>,
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

/// What has become of a file without a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Orphan {
    /// It has a name.
    No,
    /// It has nothing in the store.
    Empty,
    /// Its data lies at this base; the orphan area says so.
    Data(Arc<[u8]>),
    /// A directory that was removed with all that is below, which somebody holds; it lies in the
    /// orphan area.
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

/// What only directories have.
pub(crate) struct Directory {
    pub(crate) role: Role,
    /// It has a link area of its own; it may lose it, but never gets one.
    pub(crate) has_area: AtomicBool,
    /// That link area, while it is in memory.
    pub(crate) area: Mutex<Option<NodeId>>,
    /// Of a link area: what is known about the numbers of names.
    pub(crate) counts: Mutex<Counts>,
    /// As the flag of the inode; true at most too long.
    pub(crate) owned_alone: AtomicBool,
    /// Changes of everything below.
    pub(crate) notes: Mutex<Notes>,
    /// The sum of the deltas from the root to this directory, itself included; never changes.
    pub(crate) sum: u64,
    /// What is added to numbers in its link area, if it has one; never changes.
    pub(crate) area_sum: u64,
    pub(crate) names: Mutex<Names>,
    /// Counts nodes that were changed and left memory, so that what was read from the store before
    /// is known to be stale.
    pub(crate) evictions: AtomicU64,
    /// Bytes of the names known, as counted in the total.
    pub(crate) name_bytes: AtomicU64,
    /// It was used since names were last given up to save memory.
    pub(crate) used: AtomicBool,
    prefix: Mutex<Option<(u64, Arc<[u8]>)>>,
}

impl Directory {
    /// True if it has a link area of its own. The caller holds the tree lock.
    pub(crate) fn has_area(&self) -> bool {
        self.has_area.load(Ordering::Acquire)
    }
}

/// What is known about the numbers of names of the files in a link area.
#[derive(Debug, Default)]
pub(crate) enum Counts {
    /// Nobody has looked.
    #[default]
    Unknown,
    /// The inodes have them right.
    Settled,
    /// The area is a copy: these are right, by number in the area, and what is not listed has no
    /// name.
    Counted(HashMap<u64, u32>),
}

/// What is known about the names in a directory.
#[derive(Default)]
pub(crate) struct Names {
    map: HashMap<Arc<[u8]>, Known, foldhash::quality::RandomState>,
    present: u64,
    bytes: u64,
    /// Counts changes of the directory.
    pub(crate) version: u64,
    /// The directory was removed.
    pub(crate) dead: bool,
}

/// What is known about one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// There is no such entry.
    Absent,
    /// There is one. The node may have left memory; 0: there was none.
    Present(NodeId),
}

impl Known {
    /// The node, which may have left memory, if there is an entry.
    pub(crate) fn node(self) -> Option<NodeId> {
        match self {
            Self::Present(id) => Some(id),
            Self::Absent => None,
        }
    }
}

impl Names {
    pub(crate) fn get(&self, name: &[u8]) -> Option<Known> {
        self.map.get(name).copied()
    }

    /// Number of names of which something is known.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The nodes of known names, also of those that have left memory.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.map.values().filter_map(|known| known.node())
    }

    /// Number of names known to be present.
    pub(crate) fn present(&self) -> u64 {
        self.present
    }

    /// So many names in all are about to be known.
    pub(crate) fn expect(&mut self, names: usize) {
        self.map.reserve(names.saturating_sub(self.map.len()));
    }

    /// Remembers `known` about `name`; returns by how many bytes the memory grew.
    pub(crate) fn set(&mut self, name: impl AsRef<[u8]> + Into<Arc<[u8]>>, known: Known) -> u64 {
        let present = u64::from(matches!(known, Known::Present(_)));
        self.present += present;
        if let Some(old) = self.map.get_mut(name.as_ref()) {
            self.present -= u64::from(matches!(old, Known::Present(_)));
            *old = known;
            return 0;
        }
        let cost = name_cost(name.as_ref());
        self.bytes += cost;
        self.map.insert(name.into(), known);
        cost
    }

    /// Forgets what does not lead to a node for which `live` is true; returns the bytes freed.
    pub(crate) fn shrink(&mut self, live: impl Fn(NodeId) -> bool) -> u64 {
        let before = self.bytes;
        let (mut present, mut bytes) = (0, 0);
        self.map.retain(|name, known| {
            let keep = matches!(known, Known::Present(id) if live(*id));
            if keep {
                present += 1;
                bytes += name_cost(name);
            }
            keep
        });
        self.map.shrink_to_fit();
        (self.present, self.bytes) = (present, bytes);
        before - bytes
    }
}

/// What a known name takes in memory, in bytes.
fn name_cost(name: &[u8]) -> u64 {
    name.len() as u64 + 64
}

impl Node {
    /// A node of something found in the store. `sum`: of the deltas above it.
    pub(crate) fn new(id: NodeId, place: Place, inode: Inode, sum: u64, lsn: Lsn) -> Arc<Self> {
        Self::with_role(id, place, inode, sum, lsn, Role::Tree)
    }

    /// The node of an area, which is a directory without a name.
    pub(crate) fn area(id: NodeId, parent: &Arc<Self>, role: Role) -> Arc<Self> {
        let place = Place { parent: Some(parent.clone()), name: [].into() };
        let sum = parent.directory.as_ref().map_or(0, |d| d.area_sum);
        Self::with_role(id, place, Inode::new(FileKind::Directory, 0, 0, 0, 0, 0), sum, Lsn(0), role)
    }

    fn with_role(id: NodeId, place: Place, inode: Inode, sum: u64, lsn: Lsn, role: Role) -> Arc<Self> {
        let sum = sum.wrapping_add(inode.delta);
        let directory = inode.is_dir().then(|| {
            Box::new(Directory {
                role,
                has_area: AtomicBool::new(inode.area),
                area: Mutex::default(),
                counts: Mutex::default(),
                owned_alone: AtomicBool::new(inode.owned_alone),
                notes: Mutex::default(),
                area_sum: sum.wrapping_add(inode.area_delta),
                sum,
                names: Mutex::default(),
                evictions: AtomicU64::new(0),
                name_bytes: AtomicU64::new(0),
                used: AtomicBool::new(true),
                prefix: Mutex::default(),
            })
        });
        let changes = place.parent.as_ref().map_or_else(Arc::default, |parent| parent.changes.clone());
        Arc::new(Self {
            id,
            kind: inode.kind,
            ino: inode.number.wrapping_add(sum),
            place: RwLock::new(place),
            state: Mutex::new(State {
                inode,
                lsn,
                atime_dirty: false,
                orphan: Orphan::No,
                linkable: false,
                blocks: None,
                changes: 0,
                mtime_hold: MtimeHold::default(),
                caught_up: changes.newest(),
            }),
            changes,
            version: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            pending: AtomicBool::new(false),
            directory,
        })
    }

    pub(crate) fn place(&self) -> Place {
        self.place.read().clone()
    }

    /// True if its data and attributes lie at this entry.
    pub(crate) fn is_at(&self, parent: &Node, name: &[u8]) -> bool {
        let place = self.place.read();
        place.parent.as_ref().is_some_and(|p| p.id == parent.id) && *place.name == *name
    }

    /// Moves it in memory; returns where it was. The caller moves the reference on the parent too,
    /// and holds the state, or has looked at it since it took the exclusive tree lock.
    pub(crate) fn set_place(self: &Arc<Self>, place: Place) -> Place {
        self.take_notes_along(|| std::mem::replace(&mut *self.place.write(), place))
    }

    /// What changes about the node, up to date.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let newest = self.changes.newest();
        if state.caught_up < newest {
            self.catch_up(&mut state, newest);
        }
        state
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.directory.is_some()
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
    pub(crate) fn area_directory(self: &Arc<Self>) -> Option<Arc<Self>> {
        let mut at = self.clone();
        loop {
            match at.directory.as_ref().map(|d| (d.role, d.has_area())) {
                Some((Role::Orphans, _)) => return None,
                Some((Role::Tree, true)) => return Some(at),
                _ => {}
            }
            let parent = at.place.read().parent.clone()?;
            at = parent;
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
pub(crate) struct States<'a>(Vec<(NodeId, MutexGuard<'a, State>)>);

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

const SHARDS: usize = 64;

/// Hashes node ids, which we give out ourselves: nobody can choose them so that they collide.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, n: u64) {
        // Fibonacci hashing; the table takes its bits from both ends.
        let product = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

type Shard = HashMap<NodeId, Slot, BuildHasherDefault<IdHasher>>;

/// All nodes in memory, with the number of references to each.
pub(crate) struct NodeTable {
    shards: Vec<Mutex<Shard>>,
    next: AtomicU64,
    count: AtomicU64,
}

struct Slot {
    node: Arc<Node>,
    references: u64,
}

/// What is left to do when references were given back.
pub(crate) enum Released {
    /// Nothing.
    Done,
    /// The last reference went, and the node has left the table.
    Gone(Arc<Node>),
    /// The last reference would have gone, but there is work first; the caller holds one reference.
    Pending(Arc<Node>),
}

impl NodeTable {
    /// A table whose ids begin at `first`.
    pub(crate) fn new(first: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, next: AtomicU64::new(first), count: AtomicU64::new(0) }
    }

    fn shard(&self, id: NodeId) -> &Mutex<Shard> {
        &self.shards[id.0 as usize % SHARDS]
    }

    /// An id that was never used.
    pub(crate) fn fresh_id(&self) -> NodeId {
        NodeId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a node with one reference.
    pub(crate) fn add(&self, node: &Arc<Node>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.shard(node.id).lock().insert(node.id, Slot { node: node.clone(), references: 1 });
    }

    /// The node, without a reference.
    pub(crate) fn get(&self, id: NodeId) -> Option<Arc<Node>> {
        self.shard(id).lock().get(&id).map(|slot| slot.node.clone())
    }

    /// True if the node is in memory.
    pub(crate) fn is_live(&self, id: NodeId) -> bool {
        self.shard(id).lock().contains_key(&id)
    }

    /// The node with one reference more.
    pub(crate) fn acquire(&self, id: NodeId) -> Option<Arc<Node>> {
        let mut shard = self.shard(id).lock();
        let slot = shard.get_mut(&id)?;
        slot.references += 1;
        Some(slot.node.clone())
    }

    /// How many references there are.
    pub(crate) fn references(&self, id: NodeId) -> u64 {
        self.shard(id).lock().get(&id).map_or(0, |slot| slot.references)
    }

    /// Gives back `count` references. `retire` runs while the node leaves, before anybody can miss
    /// it.
    pub(crate) fn release(&self, id: NodeId, count: u64, retire: impl FnOnce(&Node)) -> Released {
        let mut shard = self.shard(id).lock();
        let Some(slot) = shard.get_mut(&id) else { return Released::Done };
        slot.references = slot.references.saturating_sub(count);
        if slot.references > 0 {
            return Released::Done;
        }
        if slot.node.pending.swap(false, Ordering::AcqRel) {
            slot.references = 1;
            return Released::Pending(slot.node.clone());
        }
        retire(&slot.node);
        let gone = shard.remove(&id).map(|slot| slot.node);
        self.count.fetch_sub(1, Ordering::Relaxed);
        gone.map_or(Released::Done, Released::Gone)
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The directories of one of the [`NodeTable::shard_count`] shards.
    pub(crate) fn directories(&self, shard: usize) -> Vec<Arc<Node>> {
        let shard = self.shards[shard % SHARDS].lock();
        shard.values().filter(|slot| slot.node.is_dir()).map(|slot| slot.node.clone()).collect()
    }

    /// The nodes in one of the shards.
    pub(crate) fn in_shard(&self, shard: usize) -> Vec<Arc<Node>> {
        self.shards[shard % SHARDS].lock().values().map(|slot| slot.node.clone()).collect()
    }

    /// Number of shards.
    pub(crate) fn shard_count(&self) -> usize {
        SHARDS
    }
}
