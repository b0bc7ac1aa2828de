//! Applier: gives a numbered batch to memtables and log.
//!
//! Invariant: batches are applied one at a time and in the order of their numbers, as the apply
//! queue hands them out.

use super::LOG_WRITE_AHEAD_BYTES;
use super::apply_queue::Applying;
use super::panic_latch::latch_on_panic;
use crate::Result;
use crate::device::GuardedDevice;
use crate::index::Index;
use crate::index::accounting::SpaceAccounting;
use crate::index::deleted_ranges::DeletedRanges;
use crate::index::table::{IndexTable, Indexes};
use crate::log::{Log, LoggedBatch, LoggedOp};
use crate::message::pending_clone::PendingClone;
use crate::model::ids::Msn;
use crate::model::op::MergeFunctions;
use crate::read::pins::PinTable;
use crate::signal::WorkSignal;
use std::sync::Arc;

/// See the [module](self).
pub(crate) struct Applier {
    pub(crate) device: Arc<GuardedDevice>,
    pub(crate) log: Arc<Log>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) pins: Arc<PinTable>,
    pub(crate) deleted: Arc<DeletedRanges>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) signal: Arc<WorkSignal>,
    pub(crate) merge: MergeFunctions,
    /// A memtable of so many bytes is sealed.
    pub(crate) memtable_bytes: usize,
}

/// What applying a batch to memtables leads to.
#[derive(Default)]
struct Applied {
    /// Indexes whose memtable is full.
    full: Vec<Arc<Index>>,
    /// A clone waits to be absorbed.
    has_clone: bool,
}

impl Applier {
    /// Applies a batch.
    ///
    /// # Errors
    /// Of the log, which has failed then for good: the device is latched.
    pub(super) fn apply(&self, applying: Applying<'_>) -> Result<()> {
        // Half a batch cannot be undone, and is no state to write down.
        let applied = latch_on_panic(&self.device, &self.signal, || self.apply_unguarded(applying));
        applied.map_err(|error| self.device.latch(error))
    }

    fn apply_unguarded(&self, applying: Applying<'_>) -> Result<()> {
        let upto = applying.batch().lsn;
        let indexes = self.indexes.read();
        let Applied { full, has_clone } = self.apply_to_memtables(applying.batch(), &indexes);
        let (batch, ending) = applying.in_memtables();
        let pending = self.log.append(batch)?;
        for index in &full {
            index.seal(upto);
        }
        if has_clone || !full.is_empty() || pending >= LOG_WRITE_AHEAD_BYTES {
            self.signal.request_work();
        }
        drop(ending);
        Ok(())
    }

    fn apply_to_memtables(&self, batch: &LoggedBatch, indexes: &Indexes) -> Applied {
        let LoggedBatch { lsn, first_msn, ops } = batch;
        let pinned = self.pins.newest();
        self.deleted.note(ops);
        let value_limit = self.accounting.memtable_value_limit();
        let mut applied = Applied::default();
        for (i, (msn, op)) in (first_msn.0..).map(Msn).zip(ops).enumerate() {
            let Some(index) = op.index().and_then(|id| indexes.get(&id)) else { continue };
            if let LoggedOp::Clone { .. } = op {
                if let Some(clone) = PendingClone::of(ops, i, msn) {
                    index.push_clone(clone, *lsn);
                    applied.has_clone = true;
                }
                continue;
            }
            let table = index.active();
            match op {
                LoggedOp::Point { key, op, .. } => table.apply(key, msn, op, pinned, &self.merge),
                LoggedOp::Range { range, op, .. } => table.apply_range(range, msn, op, pinned),
                LoggedOp::Clone { .. } | LoggedOp::Superseded => {}
            }
            let is_full = table.bytes() >= self.memtable_bytes || table.value_bytes() as u64 >= value_limit;
            if is_full && !applied.full.iter().any(|i| i.id == index.id) {
                applied.full.push(index.clone());
            }
        }
        applied
    }
}
