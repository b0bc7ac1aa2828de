//! Copied beginnings: files that have nothing but what another file has in the same place.
//!
//! A program may copy a large file in pieces. A file that was cloned up to its end, but not up to
//! the end of its source, is noted here with the versions of the data of both.
//!
//! Invariant: as long as both files have these versions, all that the target has is what the source
//! has there. Nothing is stored: what is not known here is copied in another way.

use crate::inode::node::{Node, State};
use crate::lock_order::{Rank, RankedMutex};
use std::collections::VecDeque;

/// Files that are copied in pieces at a time; beyond that the oldest is forgotten.
const BEGINNINGS_MAX: usize = 64;

/// A state of the data of a file in use: no other file and no other state has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataVersion {
    serial: u64,
    changes: u64,
}

impl DataVersion {
    /// The one that `node` has in `state`.
    pub(crate) fn of(node: &Node, state: &State) -> Self {
        Self { serial: node.serial, changes: state.changes }
    }
}

/// See the [module](self).
pub(crate) struct CopiedBeginnings(RankedMutex<VecDeque<CopiedBeginning>>);

struct CopiedBeginning {
    source: DataVersion,
    target: DataVersion,
}

impl Default for CopiedBeginnings {
    fn default() -> Self {
        Self(RankedMutex::new(Rank::Table, VecDeque::new()))
    }
}

impl CopiedBeginnings {
    /// The target was cloned from the source up to its end. The caller holds both states.
    pub(crate) fn add(&self, source: DataVersion, target: DataVersion) {
        let mut known = self.0.lock();
        if known.len() == BEGINNINGS_MAX {
            known.pop_front();
        }
        known.push_back(CopiedBeginning { source, target });
    }

    /// True if all that the target has is what the source has there. What is known of the target is
    /// forgotten. The caller holds both states.
    pub(crate) fn take(&self, source: DataVersion, target: DataVersion) -> bool {
        let mut known = self.0.lock();
        let Some(at) = known.iter().position(|known| known.target.serial == target.serial) else {
            return false;
        };
        known.remove(at).is_some_and(|known| known.source == source && known.target == target)
    }
}
