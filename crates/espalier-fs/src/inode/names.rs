//! The names in a directory, as far as memory knows them.
//!
//! A directory knows all its names when as many are known to be present as its inode counts; then a
//! name that is not known is absent, and no lookup asks the store.

use crate::model::types::NodeId;
use std::collections::HashMap;
use std::sync::Arc;

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
    /// There is one. Its node may have left memory; node id 0: it had no node yet.
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
    /// Nothing is known. `serial`: of the node, so that no version is one that an earlier node of
    /// the directory had.
    pub(crate) fn of_node(serial: u64) -> Self {
        Self { version: serial << 32, ..Self::default() }
    }

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

    /// The known names that lead to something, with its node, which may have left memory.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Arc<[u8]>, NodeId)> + '_ {
        self.map.iter().filter_map(|(name, known)| known.node().map(|node| (name, node)))
    }

    /// Number of names known to be present.
    pub(crate) fn present(&self) -> u64 {
        self.present
    }

    /// Prepares for `names` known names in all.
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

    /// Drops the names that do not lead to a node for which `live` is true; returns the bytes
    /// freed.
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

/// Bytes of memory that a known name takes.
fn name_cost(name: &[u8]) -> u64 {
    name.len() as u64 + 64
}
