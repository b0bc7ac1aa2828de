//! Forgotten nodes: where files lie whose nodes have left memory, for calls that name them by id
//! alone.
//!
//! Such calls come from file handles that the kernel gave out while it knew the file. What is
//! remembered is only a hint where to look: the caller looks the entry up, and takes it only if it
//! has the id that was asked for. So nothing is changed here when a file is renamed or removed;
//! both need its node, which is remembered anew, or not at all, when it leaves memory again.
//!
//! Two generations bound the memory: when the younger is full, the older is dropped. A directory
//! leaves memory after everything in it, so it is remembered at least as long.

use crate::inode::node::{Directory, Node, Place, Role};
use crate::lock_order::{Rank, RankedMutex};
use crate::model::types::NodeId;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of memory that a forgotten node takes, besides its name.
const FORGOTTEN_BYTES: u64 = 96;

/// Where a file lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    /// The directory, or the one whose link area holds the file.
    pub(crate) parent: NodeId,
    pub(crate) in_link_area: bool,
    /// Its name in the directory or area.
    pub(crate) name: Arc<[u8]>,
}

impl Location {
    /// Where a node lies; `None` for the root, areas, and what has no name.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        let is_nameless =
            |directory: &Directory| directory.role != Role::Tree || directory.removed.load(Ordering::Acquire);
        if node.directory.as_deref().is_some_and(is_nameless) {
            return None;
        }
        let Place { parent, name } = node.place();
        let parent = parent?;
        let (parent, in_link_area) = match parent.directory.as_ref()?.role {
            Role::Tree => (parent.id, false),
            Role::LinkArea => (parent.place().parent?.id, true),
            Role::Orphans => return None,
        };
        Some(Self { parent, in_link_area, name })
    }
}

/// The lock is the last of all, taken while a shard of the node table is locked.
pub(crate) struct ForgottenNodes {
    generations: RankedMutex<Generations>,
    /// Bytes of memory for one generation.
    budget: u64,
}

#[derive(Default)]
struct Generations {
    young: HashMap<NodeId, Location, foldhash::fast::RandomState>,
    old: HashMap<NodeId, Location, foldhash::fast::RandomState>,
    /// Bytes that the younger takes.
    bytes: u64,
}

impl ForgottenNodes {
    /// Remembers nodes within `budget` bytes.
    pub(crate) fn new(budget: u64) -> Self {
        Self {
            generations: RankedMutex::with_key(Rank::NodeShard, 1, Generations::default()),
            budget: budget / 2,
        }
    }

    /// A node leaves memory; `location`: where it is, if it has a name.
    pub(crate) fn remember(&self, id: NodeId, location: Option<Location>) {
        let mut generations = self.generations.lock();
        let Some(location) = location else {
            generations.young.remove(&id);
            generations.old.remove(&id);
            return;
        };
        let bytes = FORGOTTEN_BYTES + location.name.len() as u64;
        if generations.young.get(&id) == Some(&location) {
            return;
        }
        if generations.bytes + bytes > self.budget {
            generations.old = std::mem::take(&mut generations.young);
            generations.bytes = 0;
        }
        if bytes <= self.budget && generations.young.insert(id, location).is_none() {
            generations.bytes += bytes;
        }
    }

    /// What is remembered lies in another place now.
    pub(crate) fn relocate(&self, id: NodeId, location: Location) {
        let mut generations = self.generations.lock();
        let Generations { young, old, .. } = &mut *generations;
        if let Some(known) = [young, old].into_iter().find_map(|nodes| nodes.get_mut(&id)) {
            *known = location;
        }
    }

    /// All that is remembered, the older first.
    pub(crate) fn all(&self) -> Vec<(NodeId, Location)> {
        let generations = self.generations.lock();
        let both = generations.old.iter().chain(&generations.young);
        both.map(|(id, location)| (*id, location.clone())).collect()
    }

    /// Where the node with this id was when it left memory.
    pub(crate) fn location(&self, id: NodeId) -> Option<Location> {
        let generations = self.generations.lock();
        generations.young.get(&id).or_else(|| generations.old.get(&id)).cloned()
    }
}
