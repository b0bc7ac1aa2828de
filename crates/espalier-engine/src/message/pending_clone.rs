//! Pending clones: clones that are layers of a version and not yet part of its tree.

use crate::model::ids::Msn;
use crate::model::key::Key;

/// A clone as a layer between memtables; it is bound to the tree when it is absorbed.
///
/// Denotes the function that takes a map to the map in which `destination ++ x` has the value of
/// `source ++ x`, and which is as before where keys do not begin with `destination`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingClone {
    pub(crate) msn: Msn,
    pub(crate) source: Key,
    pub(crate) destination: Key,
}

impl PendingClone {
    /// The older key that `key` stands for; `None` if it is that key itself.
    pub(crate) fn redirect(&self, key: &[u8]) -> Option<Key> {
        let rest = key.strip_prefix(&*self.destination)?;
        Some([&*self.source, rest].concat().into())
    }
}
