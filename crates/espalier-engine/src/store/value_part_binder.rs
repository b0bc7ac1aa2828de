//! The log's way to value parts: it writes large values there, and finds them again.

use crate::index::table::IndexTable;
use crate::log::Binder;
use crate::model::ids::{IndexId, Location, Msn, PieceId};
use crate::model::piece::PieceHandle;
use crate::model::value::LargeValue;
use crate::pieces::Pieces;
use crate::space::{Locator, Space};
use crate::tree::Trees;
use crate::{Op, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// See the [module](self).
pub(super) struct ValuePartBinder {
    pieces: Arc<Pieces>,
    space: Arc<Space>,
    indexes: Arc<IndexTable>,
    resident: Arc<AtomicUsize>,
    bound: Arc<AtomicU64>,
    /// Of a part that only groups name which no sync is known to cover not all was what was
    /// written.
    torn: AtomicBool,
}

impl ValuePartBinder {
    pub(super) fn new(trees: &Trees, space: &Arc<Space>, indexes: &Arc<IndexTable>) -> Self {
        let (pieces, resident) = (trees.pieces.clone(), trees.memory.value_bytes.clone());
        let (space, indexes, bound) =
            (space.clone(), indexes.clone(), trees.memory.placed_value_bytes.clone());
        Self { pieces, space, indexes, resident, bound, torn: AtomicBool::new(false) }
    }

    /// True if of some part not all reached the device.
    pub(super) fn found_torn(&self) -> bool {
        self.torn.load(Ordering::Relaxed)
    }
}

impl Binder for ValuePartBinder {
    fn bind(&self, values: &[Arc<LargeValue>]) -> Result<()> {
        self.pieces.writer.write_values(values, None)?;
        self.bound.fetch_add(values.iter().map(|value| value.len() as u64).sum(), Ordering::AcqRel);
        values.iter().for_each(|value| value.forget_bytes());
        Ok(())
    }

    fn outcome(&self, index: IndexId, key: &[u8], msn: Msn) -> Option<Op> {
        self.indexes.get(index)?.outcome(key, msn, &self.resident)
    }

    fn location(&self, part: PieceId) -> Result<Location> {
        self.space.locate(part)
    }

    fn adopt(&self, part: PieceId, location: Location) -> Result<Arc<PieceHandle>> {
        self.space.adopt(part, location)
    }

    fn accept_unsynced(&self, part: PieceId) -> Result<()> {
        let Some(found) = self.pieces.torn_checksum(part)? else { return Ok(()) };
        // What lies there now stays, and nothing refers to what was cut off.
        if self.space.deferred.amend(part, found) {
            tracing::info!("a power cut left value part {part} incomplete; every value in it is right");
            self.torn.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
