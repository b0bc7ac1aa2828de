//! The redo log: every batch, in order, as logical operations, in a circular region.
//!
//! Protocol: `append` takes batches in LSN order and keeps them in memory. `push` writes what is
//! there, in *groups*, several at a time; `sync` makes it durable. A caller that finds no group and
//! no sync under way writes what all callers asked for as one group and syncs the device for all of
//! them (group commit). A checkpoint asks for `position_after` its LSN, writes that into the
//! superblock, and when the superblock is durable calls `trim`.
//!
//! Invariants:
//! - a group counts as a whole or not at all; the groups that count are a row without a gap;
//! - a block before the position last trimmed to is the only one ever overwritten;
//! - the log holds a handle on every value part that a group names, from before the group is
//!   written until it is trimmed: such a part is neither freed nor reused;
//! - groups are written in the order in which their batches were taken, one after the other; only
//!   their value parts are written in any order. If one cannot be written, none behind it is;
//! - a value part is written before the group that names it, and one device sync covers both; of
//!   groups that no sync is known to cover, recovery checks the values as well as the blocks, if
//!   the device does not keep the order of writes;
//! - after the first failed write or sync every call fails.
//!
//! Large values of a large group are bound early (design: [BetrFS 0.2, section 3] turned around):
//! they go into value parts first and the group only refers to them, so that data is written once.

mod codec;
mod format;
mod group;
mod held_memory;
pub(crate) mod keep_apart;
mod open;
mod plan;
mod recovery;
mod redo_log;
mod state;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use format::LogPosition;
pub(crate) use open::LogOpening;
pub(crate) use redo_log::Log;
pub use state::LogCounters;

pub(crate) use crate::model::logged_op::{LoggedBatch, LoggedOp};

use crate::model::ids::Location;
use crate::model::piece::PieceHandle;
use crate::model::value::LargeValue;
use crate::{IndexId, Msn, Op, PieceId, Result};
use std::sync::Arc;

/// What the log needs of the modules that know value parts.
pub(crate) trait Binder: Send + Sync {
    /// Writes `values` into fresh value parts and sets their places. The writes have returned (not
    /// necessarily synced) when this does.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) makes the log take the values inline; any
    /// other makes it fail for good.
    fn bind(&self, values: &[Arc<LargeValue>]) -> Result<()>;

    /// What message `msn` and those before it have come to for `key`, as one operation that the
    /// tree will get as well; `None` if there are newer messages by now, or if that is not known.
    fn outcome(&self, index: IndexId, key: &[u8], msn: Msn) -> Option<Op>;

    /// Where a value part lies that a value's place names.
    ///
    /// # Errors
    /// If there is no such part, which is a bug.
    fn location(&self, part: PieceId) -> Result<Location>;

    /// Recovery: the log names this value part. If no checkpoint counts it, its blocks and its id
    /// are taken, until the last handle is dropped. Called once per part and group, before any
    /// replay.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if the blocks belong to something else.
    fn adopt(&self, part: PieceId, location: Location) -> Result<Arc<PieceHandle>>;

    /// Recovery: this part is adopted, and no sync is known to cover any group that names it. The
    /// values that groups name in it are right, but of what else lies there, be it zeros behind the
    /// last one, some may never have reached the device. Called before any replay.
    ///
    /// # Errors
    /// What the device says.
    fn accept_unsynced(&self, _part: PieceId) -> Result<()> {
        Ok(())
    }
}

/// How a request to write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum LogProgress {
    /// What was asked for is done.
    Done,
    /// The region has no room until a checkpoint has trimmed it. The batches are still pending; a
    /// checkpoint that covers them makes them durable without the log. Then ask again.
    Full,
}

/// Sizes that tests make small. The defaults are also the largest that are honoured, but for
/// memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogConfig {
    /// Bytes of large values without a place from which on a group binds them early; `u64::MAX`
    /// for never.
    pub(crate) early_binding: u64,
    /// Bytes of batches above which a group takes no further batch.
    pub(crate) group_bytes: u64,
    /// Blocks that may be written and not synced before the next group begins. Bounds how far
    /// recovery looks behind the end for signs of damage.
    pub(crate) unsynced_blocks: u64,
    /// Bytes of value parts that may be named and not synced before the next group begins. Bounds
    /// how much data recovery has to check; without bound where it has to check none.
    pub(crate) unsynced_values: u64,
    /// Groups that are under way at a time.
    pub(crate) groups: usize,
    /// Nothing is written: only checkpoints make batches durable.
    pub(crate) unlogged: bool,
    /// Bytes of groups that recovery may hold in memory from the first pass for the second, which
    /// reads the others again.
    pub(crate) recovery_memory: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            early_binding: 1 << 20,
            group_bytes: 8 << 20,
            unsynced_blocks: 4096,
            unsynced_values: 64 << 20,
            groups: 4,
            unlogged: false,
            recovery_memory: 1 << 20,
        }
    }
}
