//! Operations and batches as the log records them, and as they are applied.

use crate::model::ids::{IndexId, Lsn, Msn};
use crate::model::key::{Key, KeyRange};
use crate::model::op::{Op, RangeOp};
use crate::model::value::LargeValue;
use std::sync::Arc;

/// One operation of a batch, as it is logged.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LoggedOp {
    /// An operation on one key.
    Point {
        /// The index it concerns.
        index: IndexId,
        /// The key.
        key: Key,
        /// What happens to it.
        op: Op,
    },
    /// An operation on every existing key of a range.
    Range {
        /// The index it concerns.
        index: IndexId,
        /// The range.
        range: KeyRange,
        /// What happens to each of its keys.
        op: RangeOp,
    },
    /// What begins with `source` appears below `destination`, instead of what was there.
    Clone {
        /// The index it concerns.
        index: IndexId,
        /// A prefix.
        source: Key,
        /// A prefix.
        destination: Key,
    },
    /// Only seen by replay: an operation without effect, because a later one of the same group
    /// wipes its effect out. It takes an MSN like every other.
    Superseded,
}

impl LoggedOp {
    /// The index it concerns, if it has an effect.
    pub(crate) fn index(&self) -> Option<IndexId> {
        match self {
            Self::Point { index, .. } | Self::Range { index, .. } | Self::Clone { index, .. } => Some(*index),
            Self::Superseded => None,
        }
    }

    /// True if it deletes keys.
    pub(crate) fn deletes(&self) -> bool {
        matches!(self, Self::Point { op: Op::Delete, .. } | Self::Range { op: RangeOp::Delete, .. })
    }

    /// The large values that it brings.
    pub(crate) fn large_values(&self) -> &[Arc<LargeValue>] {
        match self {
            Self::Point { op, .. } => op.large_values(),
            Self::Range { .. } | Self::Clone { .. } | Self::Superseded => &[],
        }
    }
}

/// Operations that take effect together. Operation `i` has MSN `first_msn + i`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LoggedBatch {
    /// Its number; each batch has that of the one before plus 1.
    pub(crate) lsn: Lsn,
    /// MSN of its first operation.
    pub(crate) first_msn: Msn,
    /// Its operations.
    pub(crate) ops: Vec<LoggedOp>,
}
