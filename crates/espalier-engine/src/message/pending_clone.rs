//! Pending clones: clones that are layers of a version and not yet part of its tree.

use crate::model::ids::Msn;
use crate::model::key::Key;
use crate::model::logged_op::LoggedOp;
use std::sync::OnceLock;
use std::time::Duration;

/// How many operations around a clone are looked at for clones into it, or that it goes into.
const LOOKED_AT: usize = 16;

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
    /// It is such a clone itself.
    pub(crate) is_inside: bool,
    /// When background work first saw it, on the monotonic clock.
    pub(crate) seen: OnceLock<Duration>,
}

impl PendingClone {
    /// The clone that operation `number` of a batch is; `None` if it is none, or changes nothing.
    pub(crate) fn of(ops: &[LoggedOp], number: usize, msn: Msn) -> Option<Self> {
        let LoggedOp::Clone { index, source, destination } = ops.get(number)? else { return None };
        if source == destination {
            return None;
        }
        let places = |ops: &[LoggedOp]| -> Vec<Key> {
            let place = |op: &LoggedOp| match op {
                LoggedOp::Clone { index: of, destination, .. } if of == index => Some(destination.clone()),
                _ => None,
            };
            ops.iter().filter_map(place).collect()
        };
        let within =
            |place: &Key, other: &Key| place.strip_prefix(&**other).filter(|r| !r.is_empty()).map(Key::from);
        let (before, after) = (number.saturating_sub(LOOKED_AT), ops.len().min(number + 1 + LOOKED_AT));
        let replaced =
            places(&ops[number + 1..after]).iter().filter_map(|p| within(p, destination)).collect();
        let is_inside = places(&ops[before..number]).iter().any(|other| within(destination, other).is_some());
        Some(Self {
            msn,
            source: source.clone(),
            destination: destination.clone(),
            replaced,
            is_inside,
            seen: OnceLock::new(),
        })
    }

    /// The older key that `key` stands for; `None` if it is that key itself.
    pub(crate) fn redirect(&self, key: &[u8]) -> Option<Key> {
        let rest = key.strip_prefix(&*self.destination)?;
        Some([&*self.source, rest].concat().into())
    }
}
