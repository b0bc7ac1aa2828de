//! The node table: all nodes in memory, the references to each, and the memory that their names
//! take.
//!
//! Ids are given out here ([`crate::inode::node_id`]), and nodes that leave memory are remembered
//! ([`crate::inode::forgotten`]).
//!
//! A node stays in the table while it has references: one for each entry that the kernel knows, one
//! for each node below it, and those that calls hold. Known names have a budget of memory: a sweep
//! over the directories drops the names of those that were not used lately. Nodes have one, too:
//! beyond it the mount is told that there is a *surplus*, and asks the kernel to give up its
//! references on the nodes that have been in memory for longest.

use crate::inode::forgotten::{ForgottenNodes, Location};
use crate::inode::growth_gate::GrowthGate;
use crate::inode::names::{Known, Names};
use crate::inode::node::{Node, Place};
use crate::inode::node_id::{Identity, id_of, temporary_id};
use crate::inode::pending_changes::PendingChanges;
use crate::lock_order::{Rank, RankedMutex};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::record::Inode;
use crate::model::types::{HandleLifetime, NodeId, SurplusNode, SurplusWatch};
use espalier_engine::Lsn;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

const SHARDS: usize = 64;

/// Bytes that a node of a file takes, with its name and its places in tables.
const NODE_BYTES: u64 = size_of::<Node>() as u64 + 192;

/// Of the nodes that there may be, so many 16ths are left when the kernel is asked to give some up.
const KEPT_NODES: u64 = 12;

/// Hashes node ids. The file system gives them out itself, so no user can choose ids that collide.
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
    shards: Vec<RankedMutex<Shard>>,
    next_serial: AtomicU64,
    /// Where nodes are that left memory, if that is remembered.
    forgotten: Option<ForgottenNodes>,
    /// Nodes that came into memory or moved since they were last taken, if that is noted. Its lock
    /// is taken last.
    noted: Option<RankedMutex<HashMap<NodeId, Noted>>>,
    count: AtomicU64,
    changes: Arc<PendingChanges>,
    /// Bytes of known names, of all directories.
    name_bytes: AtomicU64,
    /// How many bytes of known names there may be, and when a sweep drops some.
    name_gate: GrowthGate,
    /// The shard where the sweep goes on.
    sweep: AtomicUsize,
    /// How many nodes there may be, and when the kernel is asked to give some up.
    node_gate: GrowthGate,
    surplus_watch: OnceLock<SurplusWatch>,
}

/// How much memory a table may take, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableMemory {
    /// For known names.
    pub(crate) names: u64,
    /// For nodes.
    pub(crate) nodes: u64,
}

struct Slot {
    node: Arc<Node>,
    references: u64,
}

/// What has become of a node that was noted.
pub(crate) enum Noted {
    InMemory,
    /// It was there when it left memory; `None`: nowhere, because it had no name.
    Left(Option<Location>),
}

/// What is left to do when references were given back.
enum Released {
    /// Nothing.
    Done,
    /// The last reference went, and the node has left the table.
    Gone(Arc<Node>),
    /// The last reference would have gone, but there is work first; the caller holds one reference.
    Pending(Arc<Node>),
}

impl NodeTable {
    /// A table whose serial numbers begin at `first`. `changes`: of all its nodes.
    /// `handles`: how long files are found by their ids.
    pub(crate) fn new(
        first: u64,
        memory: TableMemory,
        handles: HandleLifetime,
        changes: Arc<PendingChanges>,
    ) -> Self {
        let shards = (0..SHARDS).map(|_| RankedMutex::new(Rank::NodeShard, Shard::default())).collect();
        Self {
            shards,
            next_serial: AtomicU64::new(first),
            forgotten: (handles > HandleLifetime::Reference).then(|| ForgottenNodes::new(memory.names / 2)),
            noted: (handles == HandleLifetime::Stored)
                .then(|| RankedMutex::with_key(Rank::NodeShard, 2, HashMap::new())),
            count: AtomicU64::new(0),
            changes,
            name_bytes: AtomicU64::new(0),
            name_gate: GrowthGate::new(memory.names),
            sweep: AtomicUsize::new(0),
            node_gate: GrowthGate::new(memory.nodes / NODE_BYTES),
            surplus_watch: OnceLock::new(),
        }
    }

    fn shard(&self, id: NodeId) -> &RankedMutex<Shard> {
        &self.shards[id.0 as usize % SHARDS]
    }

    /// A serial number that was never used.
    pub(crate) fn fresh_serial(&self) -> u64 {
        self.next_serial.fetch_add(1, Ordering::Relaxed)
    }

    /// The serial number that is given out next.
    pub(crate) fn next_serial(&self) -> u64 {
        self.next_serial.load(Ordering::Relaxed)
    }

    /// No serial number below `next` is given out any more.
    pub(crate) fn skip_serials(&self, next: u64) {
        self.next_serial.fetch_max(next, Ordering::Relaxed);
    }

    /// What tells a new node that is no file from all others.
    pub(crate) fn temporary_identity(&self) -> Identity {
        let serial = self.fresh_serial();
        Identity { id: temporary_id(serial), serial }
    }

    /// Adds a node with one reference. No other has its id.
    pub(crate) fn add(&self, node: &Arc<Node>) {
        self.shard(node.id).lock().insert(node.id, Slot { node: node.clone(), references: 1 });
        self.count_one();
    }

    /// Counts one node more; tells the mount if they are too many.
    fn count_one(&self) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(watch) = self.surplus_watch.get()
            && self.node_gate.begin(count)
        {
            watch();
        }
    }

    /// From now on `watch` is called when there are too many nodes: with locks held, so it only
    /// sees to it that [`Self::surplus`] is called. The first caller wins.
    pub(crate) fn watch_surplus(&self, watch: SurplusWatch) {
        // A second mount of the same file system has the same kernel.
        let _ = self.surplus_watch.set(watch);
    }

    /// The nodes that have been in memory for longest, beyond three quarters of what there may be:
    /// those that came last first, as they may lie below others. Called without locks, after the
    /// watch was.
    pub(crate) fn surplus(&self) -> Vec<SurplusNode> {
        let serials = |shard: &RankedMutex<Shard>| -> Vec<(u64, NodeId)> {
            let shard = shard.lock();
            let named = shard.values().map(|slot| &slot.node).filter(|node| node.may_be_surplus());
            named.map(|node| (node.serial, node.id)).collect()
        };
        let mut found: Vec<(u64, NodeId)> = self.shards.iter().flat_map(serials).collect();
        let kept = self.node_gate.budget() / 16 * KEPT_NODES;
        let beyond = found.len().saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX));
        if beyond > 0 && beyond < found.len() {
            found.select_nth_unstable(beyond);
        }
        found.truncate(beyond);
        found.sort_unstable_by_key(|(serial, _)| std::cmp::Reverse(*serial));
        self.node_gate.end(self.len() - (beyond as u64).min(self.len()));
        found.into_iter().filter_map(|(_, id)| self.get(id)).map(|node| node.as_surplus()).collect()
    }

    /// Adds a node that a server before this one had under the same id, with so many references,
    /// and one reference more on its parent; false if the id is taken.
    #[must_use]
    pub(crate) fn add_restored(&self, node: &Arc<Node>, references: u64) -> bool {
        match self.shard(node.id).lock().entry(node.id) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(slot) => {
                slot.insert(Slot { node: node.clone(), references });
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(parent) = node.place().parent {
            self.acquire(parent.id);
        }
        true
    }

    /// Adds so many references to a node in the table.
    pub(crate) fn add_references(&self, id: NodeId, count: u64) {
        if let Some(slot) = self.shard(id).lock().get_mut(&id) {
            slot.references += count;
        }
    }

    /// All nodes, with the references to each.
    pub(crate) fn all(&self) -> Vec<(Arc<Node>, u64)> {
        let of_shard = |shard: &RankedMutex<Shard>| -> Vec<(Arc<Node>, u64)> {
            shard.lock().values().map(|slot| (slot.node.clone(), slot.references)).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Where nodes are that left memory, in an order in which they can be remembered again.
    pub(crate) fn forgotten(&self) -> Vec<(NodeId, Location)> {
        self.forgotten.as_ref().map(ForgottenNodes::all).unwrap_or_default()
    }

    /// Remembers where a node is that left memory in a server before this one.
    pub(crate) fn remember_forgotten(&self, id: NodeId, location: Location) {
        if let Some(forgotten) = &self.forgotten {
            forgotten.remember(id, Some(location));
        }
    }

    /// Makes the node of file `ino` with serial number `serial`, with one reference. It gets the id
    /// of the number, or a temporary one if another node has that: a file that was unlinked or
    /// replaced and is still in use, or one whose number hashes to the same.
    pub(crate) fn add_file(
        &self,
        ino: u64,
        serial: u64,
        make: impl FnOnce(Identity) -> Arc<Node>,
    ) -> Arc<Node> {
        let id = id_of(ino);
        if let Entry::Vacant(slot) = self.shard(id).lock().entry(id) {
            let node = make(Identity { id, serial });
            slot.insert(Slot { node: node.clone(), references: 1 });
            self.note(id);
            self.count_one();
            return node;
        }
        let node = make(Identity { id: temporary_id(serial), serial });
        self.add(&node);
        node
    }

    /// Notes that a node in memory lies in another place, or has lost its name.
    pub(crate) fn note(&self, id: NodeId) {
        if let Some(noted) = &self.noted {
            noted.lock().insert(id, Noted::InMemory);
        }
    }

    /// The nodes that were noted since this was last asked, by ascending id.
    pub(crate) fn take_noted(&self) -> Vec<(NodeId, Noted)> {
        let Some(noted) = &self.noted else { return Vec::new() };
        let mut noted: Vec<_> = std::mem::take(&mut *noted.lock()).into_iter().collect();
        noted.sort_unstable_by_key(|(id, _)| *id);
        noted
    }

    /// A node is about to leave memory: remembers where it is.
    fn remember(&self, node: &Node) {
        let Some(forgotten) = &self.forgotten else { return };
        let location = Location::of(node);
        if let Some(noted) = &self.noted
            && let Some(noted) = noted.lock().get_mut(&node.id)
        {
            *noted = Noted::Left(location.clone());
        }
        forgotten.remember(node.id, location);
    }

    /// The file with this id, which is not in memory, lies in another place now.
    pub(crate) fn relocate(&self, id: NodeId, location: Location) {
        if let Some(noted) = &self.noted {
            noted.lock().insert(id, Noted::Left(Some(location.clone())));
        }
        if let Some(forgotten) = &self.forgotten {
            forgotten.relocate(id, location);
        }
    }

    /// Where the node with this id was when it left memory.
    pub(crate) fn location(&self, id: NodeId) -> Option<Location> {
        let noted = || match self.noted.as_ref()?.lock().get(&id)? {
            Noted::Left(location) => location.clone(),
            Noted::InMemory => None,
        };
        self.forgotten.as_ref()?.location(id).or_else(noted)
    }

    /// The node, without a reference.
    pub(crate) fn get(&self, id: NodeId) -> Option<Arc<Node>> {
        self.shard(id).lock().get(&id).map(|slot| slot.node.clone())
    }

    /// The node behind an id of a call.
    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        match self.get(id) {
            Some(node) => Ok(node),
            None => fail(FsErrorKind::Stale, format!("there is no node {}", id.0)),
        }
    }

    /// The directory behind an id of a call.
    pub(crate) fn dir(&self, id: NodeId) -> Result<Arc<Node>> {
        let node = self.node(id)?;
        if node.is_dir() { Ok(node) } else { fail(FsErrorKind::NotDirectory, "not a directory") }
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

    /// The number of references to a node.
    pub(crate) fn references(&self, id: NodeId) -> u64 {
        self.shard(id).lock().get(&id).map_or(0, |slot| slot.references)
    }

    /// Gives back `count` references; a node that loses its last one leaves the table and gives
    /// back its reference on its parent. `finish` does work that was put off until the last
    /// reference goes; if it returns false the reference is kept.
    pub(crate) fn release(&self, id: NodeId, count: u64, mut finish: impl FnMut(&Arc<Node>) -> bool) {
        let (mut id, mut count) = (id, count);
        let mut below: Option<Arc<Node>> = None;
        loop {
            match self.release_one(id, count) {
                Released::Done => return,
                Released::Pending(node) => {
                    if !finish(&node) {
                        return;
                    }
                    count = 1;
                }
                Released::Gone(node) => {
                    if let Some(directory) = &node.directory {
                        let bytes = directory.name_bytes.swap(0, Ordering::Relaxed);
                        self.name_bytes.fetch_sub(bytes, Ordering::Relaxed);
                    }
                    let parent = node.place().parent;
                    drop(below.replace(node));
                    match parent {
                        Some(parent) => (id, count) = (parent.id, 1),
                        None => return,
                    }
                }
            }
        }
    }

    fn release_one(&self, id: NodeId, count: u64) -> Released {
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
        // Before any lookup can find that the node is missing.
        slot.node.count_eviction();
        slot.node.note_given_up();
        self.remember(&slot.node);
        let gone = shard.remove(&id).map(|slot| slot.node);
        self.count.fetch_sub(1, Ordering::Relaxed);
        gone.map_or(Released::Done, Released::Gone)
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Makes the node of an entry of `dir` that was not in memory, with one reference, and
    /// remembers its name.
    pub(crate) fn add_entry(
        &self,
        dir: &Arc<Node>,
        names: &mut Names,
        name: impl Into<Arc<[u8]>>,
        inode: Inode,
        lsn: Lsn,
    ) -> Arc<Node> {
        let name = name.into();
        let place = Place { parent: Some(dir.clone()), name: name.clone() };
        let sum = dir.dir().sum;
        let ino = inode.number.wrapping_add(inode.delta).wrapping_add(sum);
        self.acquire(dir.id);
        let make = |identity| Node::new(identity, place, inode, sum, lsn);
        let node = self.add_file(ino, self.fresh_serial(), make);
        self.set_name(dir, names, name, Known::Present(node.id));
        node
    }

    /// Moves a node in memory to another place; returns the reference on its old parent, which the
    /// caller gives back when it holds no locks.
    #[must_use]
    pub(crate) fn move_node(&self, node: &Arc<Node>, dir: &Arc<Node>, name: &[u8]) -> Option<NodeId> {
        self.acquire(dir.id);
        let old = node.set_place(Place { parent: Some(dir.clone()), name: name.into() });
        self.note(node.id);
        old.parent.map(|parent| parent.id)
    }

    /// Remembers something about a name, and counts the memory.
    pub(crate) fn set_name(
        &self,
        dir: &Node,
        names: &mut Names,
        name: impl AsRef<[u8]> + Into<Arc<[u8]>>,
        known: Known,
    ) {
        dir.dir().used.store(true, Ordering::Relaxed);
        let grown = names.set(name, known);
        dir.dir().name_bytes.fetch_add(grown, Ordering::Relaxed);
        self.name_bytes.fetch_add(grown, Ordering::Relaxed);
    }

    /// Bytes of known names.
    pub(crate) fn name_bytes(&self) -> u64 {
        self.name_bytes.load(Ordering::Relaxed)
    }

    /// True if more names may become known without a sweep.
    pub(crate) fn has_name_budget(&self) -> bool {
        self.name_bytes() < self.name_gate.budget()
    }

    /// Drops names of directories that were not used lately if names take more memory than the
    /// budget, and a quarter more than the last sweep had to leave. Called without locks.
    pub(crate) fn trim_names(&self) {
        if self.name_gate.begin(self.name_bytes()) {
            self.sweep_names();
        }
    }

    /// Drops names of directories that were not used lately, while names take more memory than the
    /// budget. Called without locks; takes time for all nodes.
    pub(crate) fn sweep_names(&self) {
        let mut steps = 2 * SHARDS;
        while self.name_bytes() > self.name_gate.budget() && steps > 0 {
            steps -= 1;
            let shard = self.sweep.fetch_add(1, Ordering::Relaxed);
            for node in self.directories(shard) {
                let directory = node.dir();
                if directory.used.swap(false, Ordering::Relaxed) && steps > SHARDS / 2 {
                    continue;
                }
                if let Some(mut names) = directory.names.try_lock() {
                    let freed = names.shrink(|id| self.is_live(id));
                    directory.name_bytes.fetch_sub(freed, Ordering::Relaxed);
                    self.name_bytes.fetch_sub(freed, Ordering::Relaxed);
                }
            }
        }
        self.name_gate.end(self.name_bytes());
    }

    fn directories(&self, shard: usize) -> Vec<Arc<Node>> {
        let shard = self.shards[shard % SHARDS].lock();
        shard.values().filter(|slot| slot.node.is_dir()).map(|slot| slot.node.clone()).collect()
    }

    fn in_shard(&self, shard: usize) -> Vec<Arc<Node>> {
        self.shards[shard % SHARDS].lock().values().map(|slot| slot.node.clone()).collect()
    }

    /// Notes a committed change of everything below a directory. The caller holds the exclusive
    /// tree lock.
    pub(crate) fn note_change(&self, top: &Node, function: u16, argument: &[u8], lsn: Lsn) {
        if self.changes.note(top.dir().notes(), function, argument, lsn) {
            self.catch_up_all();
        }
    }

    /// Has all nodes in memory apply pending tree changes, and drops the notes.
    pub(crate) fn catch_up_all(&self) {
        let noted = self.changes.take_noted();
        if noted.is_empty() {
            return;
        }
        let newest = self.changes.newest();
        for node in (0..SHARDS).flat_map(|shard| self.in_shard(shard)) {
            drop(node.state());
        }
        noted.iter().filter_map(Weak::upgrade).for_each(|notes| notes.drop_applied(newest));
        self.changes.retain_changed(|id| self.is_live(id));
    }

    /// The nodes that pending tree changes have changed since this was last asked.
    pub(crate) fn changed_nodes(&self) -> Vec<NodeId> {
        self.catch_up_all();
        self.changes.take_changed()
    }
}
