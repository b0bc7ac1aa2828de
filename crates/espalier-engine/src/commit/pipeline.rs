//! Commit pipeline: the order of all batches, and their way into memtables and log.
//!
//! Protocol: under the commit lock a batch takes its place in the order of all batches. A small one
//! joins the coalesced batch ([`super::coalescing`]); any other closes that, gets its numbers, and
//! waits in the apply queue ([`super::apply_queue`]) to be applied to memtables and log, one batch
//! after the other. So LSN order, MSN order and the order of the log are one.
//!
//! A caller that looks at numbers, at memtables or at the log takes the commit lock by
//! [`CommitPipeline::lock_applied`], or calls [`CommitPipeline::drain`] before: then everything
//! that was accepted has been applied. A reader of some keys only needs no more than that nothing
//! that is left concerns them ([`CommitPipeline::drain_range`]).

use super::applier::Applier;
use super::apply_queue::{ApplyQueue, Backlog};
use super::coalescing::{ClosedBatch, CoalescedBatch};
use super::order::{Admitted, CommitOrder, OrderGuard};
use crate::device::GuardedDevice;
use crate::index::absorb::Absorber;
use crate::index::accounting::SpaceAccounting;
use crate::index::table::IndexTable;
use crate::lock_order::{RankedMutex, rank};
use crate::log::{Log, LoggedBatch, LoggedOp};
use crate::model::batch::Batch;
use crate::model::ids::{IndexId, Lsn, Msn};
use crate::model::key::KeyRange;
use crate::signal::WorkSignal;
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the [module](self).
pub(crate) struct CommitPipeline {
    pub(crate) device: Arc<GuardedDevice>,
    pub(crate) log: Arc<Log>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) absorber: Arc<Absorber>,
    pub(crate) signal: Arc<WorkSignal>,
    pub(crate) applier: Applier,
    pub(crate) queue: ApplyQueue,
    pub(crate) progress: CommitProgress,
    /// So many operations make a coalesced batch full.
    pub(crate) coalesced_operations: usize,
}

/// What has been accepted.
pub(crate) struct CommitProgress {
    order: RankedMutex<CommitOrder, { rank::COMMIT }>,
    /// Something has been accepted that may not have been applied: changes under the commit lock.
    has_unapplied: AtomicBool,
    /// The store is closed.
    is_closed: AtomicBool,
}

impl CommitProgress {
    /// The next batches follow `order`.
    pub(crate) fn new(order: CommitOrder) -> Self {
        Self {
            order: RankedMutex::new(order),
            has_unapplied: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }
}

impl CommitPipeline {
    /// Fails once the store is closed.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`].
    pub(crate) fn open(&self) -> Result<()> {
        match self.progress.is_closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::ReadOnly, "the store is closed")),
            false => Ok(()),
        }
    }

    /// Closes the store for every later call; false if it was closed.
    pub(crate) fn close(&self) -> bool {
        !self.progress.is_closed.swap(true, Ordering::AcqRel)
    }

    /// Fails if nothing can be changed any more.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`].
    pub(crate) fn writable(&self) -> Result<()> {
        self.open()?;
        self.device.writable()
    }

    /// Gives an admitted batch, which takes up to `bytes` bytes in the log, its place among the
    /// others.
    ///
    /// # Errors
    /// Of the log, which has failed then for good.
    pub(crate) fn enter(&self, admitted: Admitted<'_>, batch: Batch, bytes: u64) -> Result<Lsn> {
        let Admitted { mut order, range_delete_blocks, clone_blocks } = admitted;
        order.pending.bytes += batch.bytes as u64;
        order.pending.clone_blocks += clone_blocks;
        order.pending.range_delete_blocks += range_delete_blocks;
        self.accounting.range_deletes().add(range_delete_blocks);
        self.accounting.stop_keeping(batch.drawn);
        let together = order.coalesced.bytes() + bytes;
        if !CoalescedBatch::may_close_with(bytes) || self.log.is_too_long(together) {
            self.close_coalesced(&mut order)?;
        }
        let most = self.coalesced_operations;
        // What absorbing takes when space is low is known of what lies in memtables.
        if order.coalesced.takes(&batch, bytes, most) && !self.accounting.is_low() {
            let wiped = order.coalesced.join(batch, bytes);
            order.note_superseded(wiped);
            self.progress.has_unapplied.store(true, Ordering::Release);
            let lsn = Lsn(order.last_lsn.0 + 1);
            if order.coalesced.is_full(most) {
                self.close_coalesced(&mut order)?;
            }
            return Ok(lsn);
        }
        let bytes = order.coalesced.bytes() + bytes;
        let (closed, wiped) = order.coalesced.close_with(batch);
        order.note_superseded(wiped);
        self.accept(&mut order, closed, bytes)
    }

    /// The commit lock.
    pub(crate) fn lock(&self) -> OrderGuard<'_> {
        self.progress.order.lock()
    }

    /// The commit lock, when everything that was accepted has been applied.
    ///
    /// # Errors
    /// Of the log, which has failed then for good.
    pub(crate) fn lock_applied(&self) -> Result<OrderGuard<'_>> {
        let mut order = self.lock();
        self.drain_all(&mut order)?;
        Ok(order)
    }

    /// Sees to it that everything that was accepted until now has been applied. If the log fails,
    /// memtables can be read all the same, and the caller that syncs or commits gets the error.
    pub(crate) fn drain(&self) {
        if self.progress.has_unapplied.load(Ordering::Acquire) {
            drop(self.lock_applied());
        }
    }

    /// Sees to it that everything that was accepted until now and may concern keys in `range` has
    /// been applied.
    pub(crate) fn drain_range(&self, index: IndexId, range: impl FnOnce() -> KeyRange) {
        if self.progress.has_unapplied.load(Ordering::Acquire) {
            self.drain_locked(&mut self.lock(), Some((index, &range())));
        }
    }

    /// Applies what may concern some keys, or any; returns the last message that has been applied
    /// then. A reader of these keys sees all messages up to it, and what follows does not change
    /// them as long as the reader holds the commit lock. If the log fails, memtables can be read
    /// all the same.
    pub(crate) fn drain_locked(&self, order: &mut CommitOrder, what: Option<(IndexId, &KeyRange)>) -> Msn {
        let concerns =
            |(index, range)| order.coalesced.concerns(index, range) || self.queue.concerns(index, range);
        if what.is_none_or(concerns)
            && let Err(error) = self.drain_all(order)
        {
            tracing::debug!(%error, "what was accepted cannot be logged any more");
        }
        self.queue.applied()
    }

    fn drain_all(&self, order: &mut CommitOrder) -> Result<()> {
        if !self.progress.has_unapplied.load(Ordering::Relaxed) {
            return Ok(());
        }
        let closed = self.close_coalesced(order);
        let applied = self.apply_queued();
        // Not before the log has it, as a caller that syncs looks here; but also if the log has
        // failed.
        self.progress.has_unapplied.store(false, Ordering::Release);
        closed.and(applied)
    }

    fn close_coalesced(&self, order: &mut CommitOrder) -> Result<()> {
        if order.coalesced.is_empty() {
            return Ok(());
        }
        let bytes = order.coalesced.bytes();
        let closed = order.coalesced.close();
        self.accept(order, closed, bytes).map(drop)
    }

    /// Gives the next batch, of up to `bytes` bytes in the log, its numbers, and has it applied: by
    /// a worker, if there is time. Under the commit lock.
    fn accept(&self, order: &mut CommitOrder, closed: ClosedBatch, bytes: u64) -> Result<Lsn> {
        let ClosedBatch { ops, sorted } = closed;
        let first_msn = Msn(order.last_msn.0 + 1);
        order.last_msn.0 += ops.len() as u64;
        order.last_lsn.0 += 1;
        let lsn = order.last_lsn;
        // How many clones wait is limited, and what absorbing needs when space is low is known of
        // what lies in memtables.
        let at_once = self.accounting.is_low() || ops.iter().any(|op| matches!(op, LoggedOp::Clone { .. }));
        self.progress.has_unapplied.store(true, Ordering::Release);
        match self.queue.push(LoggedBatch { lsn, first_msn, ops }, sorted, bytes) {
            Backlog::Short | Backlog::Worthwhile if at_once => self.apply_queued()?,
            Backlog::Long => self.apply_queued()?,
            Backlog::Worthwhile => self.signal.request_work(),
            Backlog::Short => {}
        }
        Ok(lsn)
    }

    /// True if so much waits in the apply queue that it is worth a worker.
    pub(crate) fn has_backlog(&self) -> bool {
        self.queue.is_worthwhile()
    }

    /// Applies what has been accepted, to the end; also beyond failures of the log, which are
    /// final.
    ///
    /// # Errors
    /// Of the log.
    pub(crate) fn apply_queued(&self) -> Result<()> {
        let mut result = Ok(());
        while let Some(applying) = self.queue.next() {
            result = result.and(self.applier.apply(applying));
        }
        result
    }

    /// Absorbs what there is in memory of some indexes, unless a checkpoint wants something older
    /// first.
    ///
    /// # Errors
    /// Of the log and the device.
    pub(crate) fn absorb_now(&self, ids: &[IndexId]) -> Result<()> {
        if self.writable().is_err() {
            return Ok(());
        }
        for id in ids {
            let Some(index) = self.indexes.get(*id) else { continue };
            let order = self.lock_applied()?;
            index.seal(order.last_lsn);
            drop(order);
            let _structure = index.structure.lock();
            while self.absorber.due(&index).is_some() {
                self.absorber.absorb_oldest(&index)?;
            }
        }
        Ok(())
    }
}
