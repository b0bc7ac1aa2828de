//! The prefix cache: directories in memory by their content prefix, so that a path is resolved by
//! one probe; and beside them for how many directories upwards a caller may search.
//!
//! The cache holds a reference on each directory. An entry is a hint: it counts if its node has the
//! prefix now and was not removed ([`PrefixCache::find`]), so moves and removals need not tell the
//! cache. A number of searchable directories counts as long as its [`Generation`] does.
//! `docs/design/paths.md` has the argument.

use crate::inode::node::{Node, Role};
use crate::lock_order::{Rank, RankedMutex};
use crate::model::access::{Credentials, Granted, SEARCH};
use crate::model::layout;
use crate::model::types::NodeId;
use crate::references::{DeferredReleases, HeldNode, References};
use crate::volume::tree_lock::TreeGuard;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SHARDS: usize = 16;
/// Directories that a shard holds at most.
const SHARD_MAX_DIRECTORIES: usize = 1024;
/// A directory with a longer content prefix is looked up name by name, so that deep trees do not
/// take memory quadratic in their depth. In bytes.
const PREFIX_MAX_BYTES: usize = 4096;
/// Sets of credentials that an entry has numbers for.
const CREDENTIALS_PER_DIRECTORY: usize = 4;

/// A caller's credentials, with the number that stands for them in the cache.
#[derive(Debug, Clone)]
pub(crate) struct KnownCredentials {
    pub(crate) credentials: Arc<Credentials>,
    /// Never 0, and never that of others.
    pub(crate) number: u64,
}

/// What rights on the directories of a path depend on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Generation {
    rights: (u64, u64),
    epoch: u64,
}

impl Generation {
    /// That of the volume of `node` in this epoch of moves.
    pub(crate) fn of(node: &Node, epoch: u64) -> Self {
        Self { rights: node.changes.rights(), epoch }
    }
}

/// Directories in memory by content prefix.
pub(crate) struct PrefixCache {
    references: Arc<References>,
    hasher: foldhash::quality::RandomState,
    shards: Vec<RankedMutex<Shard>>,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<Arc<[u8]>, Cached, foldhash::quality::RandomState>,
    /// In the order in which they came, for eviction.
    order: VecDeque<Arc<[u8]>>,
}

struct Cached {
    /// With a reference.
    node: Arc<Node>,
    /// It was used since eviction last passed it.
    is_used: bool,
    searchable: [Searchable; CREDENTIALS_PER_DIRECTORY],
    /// The number that is replaced next.
    oldest: usize,
}

/// For how many directories upwards, itself included, a caller may search.
#[derive(Clone, Copy, Default)]
struct Searchable {
    credentials: u64,
    generation: Generation,
    directories: usize,
}

impl Cached {
    fn searchable(&self, credentials: u64, generation: Generation) -> Option<usize> {
        let known = self.searchable.iter();
        known
            .clone()
            .find(|known| known.credentials == credentials && known.generation == generation)
            .map(|known| known.directories)
    }

    fn set_searchable(&mut self, new: Searchable) {
        let same = self.searchable.iter().position(|known| known.credentials == new.credentials);
        let at = same.unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % CREDENTIALS_PER_DIRECTORY;
            self.oldest
        });
        self.searchable[at] = new;
    }
}

impl PrefixCache {
    pub(crate) fn new(references: Arc<References>) -> Self {
        let shards = (0..SHARDS).map(|_| RankedMutex::new(Rank::Table, Shard::default())).collect();
        Self { references, hasher: foldhash::quality::RandomState::default(), shards }
    }

    fn shard(&self, prefix: &[u8]) -> &RankedMutex<Shard> {
        // The table of the shard hashes all of it.
        let end = &prefix[prefix.len().saturating_sub(8)..];
        &self.shards[self.hasher.hash_one((prefix.len(), end)) as usize % SHARDS]
    }

    /// The directory whose content prefix is `prefix`, if it is known. What turns out to be stale
    /// is given back with `releases`.
    pub(crate) fn find(
        &self,
        tree: &TreeGuard<'_>,
        prefix: &[u8],
        releases: &mut DeferredReleases<'_>,
    ) -> Option<HeldNode<'_>> {
        let held = {
            let mut shard = self.shard(prefix).lock();
            let cached = shard.entries.get_mut(prefix)?;
            cached.is_used = true;
            self.references.adopt(self.references.nodes.acquire(cached.node.id)?)
        };
        if is_now_at(&held, tree, prefix) {
            return Some(held);
        }
        self.drop_entry(prefix, &held, releases);
        held.keep_until(releases);
        None
    }

    /// Remembers the directory whose content prefix is `prefix`.
    pub(crate) fn insert(&self, prefix: &[u8], node: HeldNode<'_>, releases: &mut DeferredReleases<'_>) {
        if prefix.len() > PREFIX_MAX_BYTES {
            node.keep_until(releases);
            return;
        }
        let node = node.keep();
        let mut shard = self.shard(prefix).lock();
        let shard = &mut *shard;
        if let Some(known) = shard.entries.get_mut(prefix) {
            let old = std::mem::replace(&mut known.node, node);
            if old.id != known.node.id {
                known.searchable = Default::default();
            }
            releases.add([old.id]);
            return;
        }
        while shard.entries.len() >= SHARD_MAX_DIRECTORIES {
            releases.add(shard.evict());
        }
        if shard.order.len() >= 2 * SHARD_MAX_DIRECTORIES {
            shard.order = shard.entries.keys().cloned().collect();
        }
        let key: Arc<[u8]> = prefix.into();
        shard.order.push_back(key.clone());
        let searchable = Default::default();
        shard.entries.insert(key, Cached { node, is_used: true, searchable, oldest: 0 });
    }

    fn drop_entry(&self, prefix: &[u8], node: &Arc<Node>, releases: &mut DeferredReleases<'_>) {
        let mut shard = self.shard(prefix).lock();
        if shard.entries.get(prefix).is_some_and(|cached| cached.node.id == node.id) {
            shard.entries.remove(prefix);
            releases.add([node.id]);
        }
    }

    /// Gives back the directories whose prefix begins with `prefix`. Called without locks.
    pub(crate) fn release_below(&self, prefix: &[u8]) {
        let mut releases = self.references.release_later();
        for shard in &self.shards {
            let below = |key: &Arc<[u8]>, _: &mut Cached| key.starts_with(prefix);
            releases.add(shard.lock().entries.extract_if(below).map(|(_, cached)| cached.node.id));
        }
    }

    /// For how many directories upwards, `node` with prefix `prefix` included, `caller` may search.
    /// The caller of this holds `tree`, and no state.
    pub(crate) fn searchable(
        &self,
        tree: &TreeGuard<'_>,
        (node, prefix): (&Arc<Node>, &[u8]),
        caller: &KnownCredentials,
    ) -> usize {
        // Before any state is looked at.
        let generation = Generation::of(node, tree.epoch);
        let (mut at, mut prefix) = (node.clone(), prefix);
        let mut unknown = Vec::new();
        let mut directories = loop {
            if let Some(known) = self.known_searchable(&at, prefix, caller.number, generation) {
                break known;
            }
            let parent = at.place().parent.filter(|parent| parent.dir().role == Role::Tree);
            unknown.push((at, prefix));
            match parent {
                Some(parent) => (at, prefix) = (parent, layout::prefix_above(prefix)),
                None => break 0,
            }
        };
        for (at, prefix) in unknown.into_iter().rev() {
            let may_search = caller.credentials.has(Granted::by(&at.state().inode), SEARCH);
            directories = if may_search { directories + 1 } else { 0 };
            let new = Searchable { credentials: caller.number, generation, directories };
            if prefix.len() <= PREFIX_MAX_BYTES
                && let Some(cached) = self.shard(prefix).lock().entries.get_mut(prefix)
                && cached.node.id == at.id
            {
                cached.set_searchable(new);
            }
        }
        directories
    }

    fn known_searchable(
        &self,
        node: &Node,
        prefix: &[u8],
        credentials: u64,
        generation: Generation,
    ) -> Option<usize> {
        if prefix.len() > PREFIX_MAX_BYTES {
            return None;
        }
        let shard = self.shard(prefix).lock();
        // Another directory may have had the prefix before.
        let cached = shard.entries.get(prefix).filter(|cached| cached.node.id == node.id)?;
        cached.searchable(credentials, generation)
    }
}

impl Shard {
    /// Takes out a directory that was not used lately; returns its reference.
    fn evict(&mut self) -> Option<NodeId> {
        while let Some(key) = self.order.pop_front() {
            match self.entries.get_mut(&key) {
                Some(cached) if cached.is_used => {
                    cached.is_used = false;
                    self.order.push_back(key);
                }
                Some(_) => return self.entries.remove(&key).map(|cached| cached.node.id),
                // It was taken out before.
                None => {}
            }
        }
        None
    }
}

/// True if a directory has this content prefix and was not removed.
fn is_now_at(node: &Arc<Node>, tree: &TreeGuard<'_>, prefix: &[u8]) -> bool {
    let directory = node.dir();
    directory.role == Role::Tree
        && !directory.removed.load(Ordering::Acquire)
        && *node.content_prefix(tree.epoch) == *prefix
}
