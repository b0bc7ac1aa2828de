//! Pending clones: clones that are layers of a version and not yet part of its tree.

use crate::model::ids::Msn;
use crate::model::key::Key;
use crate::model::logged_op::LoggedOp;

/// How many operations behind a clone are looked at for what they replace in it.
const REPLACED_WITHIN: usize = 16;

/// A clone as a layer between memtables; it is bound to the tree when it is absorbed.
///
/// Denotes the function that takes a map to the map in which `destination ++ x` has the value of
/// `source ++ x`, and which is as before where keys do not begin with `destination`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingClone {
    pub(crate) msn: Msn,
    pub(crate) source: Key,
    pub(crate) destination: Key,
    /// What clones of the same batch replace right after it inside of the destination, without
    /// that prefix. A measure to make fewer headers.
    pub(crate) replaced: Vec<Key>,
}

impl PendingClone {
    /// The clone that `op` is, and the operations of its batch that follow; `None` if it is none,
    /// or changes nothing.
    pub(crate) fn of(op: &LoggedOp, msn: Msn, rest: &[LoggedOp]) -> Option<Self> {
        let LoggedOp::Clone { index, source, destination } = op else { return None };
        if source == destination {
            return None;
        }
        let inside = |next: &LoggedOp| match next {
            LoggedOp::Clone { index: same, destination: inner, .. } if same == index => {
                inner.strip_prefix(&**destination).filter(|rest| !rest.is_empty()).map(Key::from)
            }
            _ => None,
        };
        let replaced = rest.iter().take(REPLACED_WITHIN).filter_map(inside).collect();
        Some(Self { msn, source: source.clone(), destination: destination.clone(), replaced })
    }

    /// The older key that `key` stands for; `None` if it is that key itself.
    pub(crate) fn redirect(&self, key: &[u8]) -> Option<Key> {
        let rest = key.strip_prefix(&*self.destination)?;
        Some([&*self.source, rest].concat().into())
    }
}
