//! Sparse value parts: those of which so little is live that they are to be emptied.
//!
//! A value part takes its space as long as one value in it is referred to. Emptying one means that
//! what is live in it is written elsewhere, leaf by leaf; when all of it is, the part is free. So
//! only as many are chosen at a time as there is room for.

use super::flusher::FlushShare;
use crate::Result;
use crate::commit::pipeline::CommitPipeline;
use crate::index::accounting::SpaceAccounting;
use crate::lock_order::{RankedMutex, rank};
use crate::model::ids::PieceId;
use crate::space::Space;
use crate::tree::Trees;
use espalier_storage::BLOCK;
use std::collections::HashSet;
use std::sync::Arc;

/// See the [module](self).
pub(crate) struct SparseValues {
    pub(crate) space: Arc<Space>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) pipeline: Arc<CommitPipeline>,
    pub(crate) search: RankedMutex<SparseSearch, { rank::SPARSE_SEARCH }>,
}

/// How much may be written again for what is dead beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// As much as is worth it.
    Usual,
    /// All that gives anything.
    Utmost,
}

/// What the search for sparse parts has found out.
#[derive(Debug, Default)]
pub(crate) struct SparseSearch {
    /// The last batch when the search began.
    since: u64,
    /// Those that are still there after all leaves were looked through: a clone or a snapshot
    /// shares them.
    in_vain: HashSet<PieceId>,
}

impl SparseValues {
    /// True if none are being emptied.
    pub(crate) fn is_empty(&self) -> bool {
        self.trees.sparse.lock().is_empty()
    }

    /// Chooses the value parts that are emptied next, those of which least is live; false if there
    /// are none. All leaves have been looked through for the ones before.
    ///
    /// # Errors
    /// Of the device, and of the log.
    pub(crate) fn choose(&self, effort: Effort) -> Result<bool> {
        let space = self.space.block_counts();
        let taken = self.accounting.unwritten_blocks() + space.reserved;
        let taken = taken + FlushShare::Sweep.floor_blocks(space.pool);
        // Half of it, for the leaves are written anew as well.
        let mut room = space.free.saturating_sub(taken) / 2;
        let most_live = match effort {
            Effort::Utmost => (127, 128),
            Effort::Usual if self.accounting.is_low() => (3, 4),
            Effort::Usual => (1, 2),
        };
        let mut found = self.space.tables.sparse_values(most_live)?;
        let mut search = self.search.lock();
        let last = self.pipeline.lock_applied()?.last_lsn.0;
        if std::mem::replace(&mut search.since, last) != last {
            search.in_vain.clear();
        }
        let mut chosen = self.trees.sparse.lock();
        search.in_vain.extend(chosen.drain());
        found.retain(|(_, id)| !search.in_vain.contains(id));
        found.sort_unstable();
        for (live, id) in found {
            let blocks = live.div_ceil(BLOCK as u64) + 1;
            if blocks > room {
                break;
            }
            room -= blocks;
            chosen.insert(id);
        }
        Ok(!chosen.is_empty())
    }
}
