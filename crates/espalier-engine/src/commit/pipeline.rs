//! The way of a batch: accepted, carried out.
//!
//! Protocol: wait for room, then under the commit lock take a place in the order of all batches. A
//! small batch joins the open one ([`crate::commit::coalescing`]); any other closes that, gets its numbers,
//! and waits to be carried out ([`crate::commit::apply_queue`]): applied to the memtables and handed to the
//! log, one after the other. So LSN order, MSN order and the order of the log are one.
//!
//! Whoever looks at numbers, at memtables or at the log takes the commit lock by
//! [`Shared::settled`], or calls [`Shared::settle`] before: then everything that was accepted has
//! been carried out. For who looks at some keys only it is enough that nothing that is left
//! concerns them ([`Shared::settle_range`]).

use crate::commit::admission::{Promised, purpose_of};
use crate::commit::apply_queue::{Backlog, Carrying};
use crate::commit::coalescing::{Closed, OpenBatch};
use crate::index::Index;
use crate::index::catalog::no_such_index;
use crate::log::{LoggedBatch, LoggedOp};
use crate::maintenance::scheduler::latch_if_it_panics;
use crate::message::pending_clone::PendingClone;
use crate::model::batch::Batch;
use crate::model::ids::{IndexId, Lsn, Msn};
use crate::model::key::KeyRange;
use crate::model::op::{Op, RangeOp};
use crate::model::value::MAX_VALUE;
use crate::space::Reservation;
use crate::store::{MAX_KEY, Shared};
use crate::tree::MAX_HEIGHT;
use crate::{Error, ErrorKind, Result};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What batches take on the device that wait for a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) reserved: Option<Reservation>,
    /// Bytes of the batches, without what has found its place on the device.
    pub(crate) bytes: u64,
    /// Blocks for the clones in them.
    pub(crate) clones: u64,
    /// Blocks that were promised so that their ranges can be deleted when they are absorbed.
    pub(crate) clears: u64,
}

impl Waiting {
    /// Adds what others take.
    pub(crate) fn append(&mut self, other: Waiting) {
        let Waiting { reserved, bytes, clones, clears } = other;
        self.bytes += bytes;
        self.clones += clones;
        self.clears += clears;
        if let Some(reserved) = reserved {
            self.reserve(reserved);
        }
    }

    /// Adds blocks that are reserved.
    pub(crate) fn reserve(&mut self, more: Reservation) {
        match &mut self.reserved {
            Some(reserved) => reserved.absorb(more),
            none => *none = Some(more),
        }
    }
}

/// What the commit lock guards.
pub(crate) struct Order {
    pub(crate) last_lsn: Lsn,
    pub(crate) last_msn: Msn,
    /// What the batches take that no checkpoint covers.
    pub(crate) waiting: Waiting,
    /// Bytes at most that the log still has to write for batches which the checkpoint under way
    /// covers.
    pub(crate) covered: u64,
    /// What has been accepted and has no numbers yet. Its batch will be the next one.
    pub(crate) open: OpenBatch,
}

impl Order {
    /// Large values of `bytes` bytes now lie in their place: nothing need be promised for them any
    /// more.
    pub(crate) fn settle(&mut self, bytes: u64) {
        let covered = self.covered.min(bytes);
        self.covered -= covered;
        self.waiting.bytes = self.waiting.bytes.saturating_sub(bytes - covered);
    }
}

impl Shared {
    /// See [`Store::commit_if`](crate::Store::commit_if).
    pub(crate) fn commit_if(&self, batch: Batch, wanted: impl FnOnce() -> bool) -> Result<Lsn> {
        self.writable()?;
        self.check(&batch)?;
        self.limit_height(&batch)?;
        let bytes = self.fit_log(&batch)?;
        let purpose = purpose_of(&batch);
        self.make_room(&batch, purpose)?;
        self.settle_values(&batch)?;
        let Promised { mut order, clears, clones } = self.promise(&batch, purpose)?;
        // A volume deleted since the check must not be named in the log.
        self.check_indexes(&batch)?;
        if !wanted() {
            return Err(Error::given_up());
        }
        order.waiting.bytes += batch.bytes as u64;
        order.waiting.clones += clones;
        order.waiting.clears += clears;
        self.accounting.range_deletes().add(clears);
        if !OpenBatch::may_close_with(bytes) || self.log.is_too_long(order.open.bytes() + bytes) {
            self.close_open(&mut order)?;
        }
        let most = self.options.tuning.joined;
        // What absorbing takes in a store that is short of space is known of what lies in
        // memtables.
        if order.open.takes(&batch, bytes, most) && !self.accounting.is_low() {
            let wiped = order.open.join(batch, bytes);
            order.waiting.bytes -= wiped.min(order.waiting.bytes);
            self.has_open.store(true, Ordering::Release);
            let lsn = Lsn(order.last_lsn.0 + 1);
            if order.open.is_full(most) {
                self.close_open(&mut order)?;
            }
            return Ok(lsn);
        }
        let bytes = order.open.bytes() + bytes;
        let (closed, wiped) = order.open.close_with(batch);
        order.waiting.bytes -= wiped.min(order.waiting.bytes);
        self.accept(&mut order, closed, bytes)
    }

    /// The commit lock, when everything that was accepted has been carried out.
    ///
    /// # Errors
    /// Of the log, which has failed then for good.
    pub(crate) fn settled(&self) -> Result<MutexGuard<'_, Order>> {
        let mut order = self.order.lock();
        self.settle_all(&mut order)?;
        Ok(order)
    }

    /// Sees to it that everything that was accepted until now has been carried out. If the log
    /// fails, it can be read all the same, and whoever syncs or commits hears of it.
    pub(crate) fn settle(&self) {
        if self.has_open.load(Ordering::Acquire) {
            drop(self.settled());
        }
    }

    /// Sees to it that everything that was accepted until now and may concern keys in `range` has
    /// been carried out.
    pub(crate) fn settle_range(&self, index: IndexId, range: impl FnOnce() -> KeyRange) {
        if self.has_open.load(Ordering::Acquire) {
            self.settle_what(&mut self.order.lock(), Some((index, &range())));
        }
    }

    /// Carries out what may concern some keys, or any; returns the last message that has been
    /// carried out then: who looks at these keys sees all up to it, and what follows does not
    /// change them as long as he holds the commit lock. If the log fails, it can be read all the
    /// same.
    pub(crate) fn settle_what(&self, order: &mut Order, what: Option<(IndexId, &KeyRange)>) -> Msn {
        let concerns =
            |(index, range)| order.open.concerns(index, range) || self.accepted.concerns(index, range);
        if what.is_none_or(concerns)
            && let Err(error) = self.settle_all(order)
        {
            tracing::debug!(%error, "what was accepted cannot be logged any more");
        }
        self.accepted.carried()
    }

    fn settle_all(&self, order: &mut Order) -> Result<()> {
        if !self.has_open.load(Ordering::Relaxed) {
            return Ok(());
        }
        let closed = self.close_open(order);
        let carried = self.catch_up();
        // Not before the log has it, as who syncs looks here; but also if the log has failed.
        self.has_open.store(false, Ordering::Release);
        closed.and(carried)
    }

    fn close_open(&self, order: &mut Order) -> Result<()> {
        if order.open.is_empty() {
            return Ok(());
        }
        let bytes = order.open.bytes();
        let closed = order.open.close();
        self.accept(order, closed, bytes).map(drop)
    }

    /// Gives the next batch, of up to `bytes` bytes in the log, its numbers, and has it carried
    /// out: by others, if it has time. Under the commit lock.
    fn accept(&self, order: &mut Order, closed: Closed, bytes: u64) -> Result<Lsn> {
        let Closed { ops, sorted } = closed;
        let first_msn = Msn(order.last_msn.0 + 1);
        order.last_msn.0 += ops.len() as u64;
        order.last_lsn.0 += 1;
        let lsn = order.last_lsn;
        // How many clones wait is limited, and what a store needs that is short of space is known
        // of what lies in memtables.
        let at_once = self.accounting.is_low() || ops.iter().any(|op| matches!(op, LoggedOp::Clone { .. }));
        self.has_open.store(true, Ordering::Release);
        match self.accepted.push(LoggedBatch { lsn, first_msn, ops }, sorted, bytes) {
            Backlog::Short | Backlog::Worthwhile if at_once => self.catch_up()?,
            Backlog::Long => self.catch_up()?,
            Backlog::Worthwhile => self.signal.request_work(),
            Backlog::Short => {}
        }
        Ok(lsn)
    }

    /// Carries out what has been accepted, to the end; also beyond failures of the log, which are
    /// final.
    pub(crate) fn catch_up(&self) -> Result<()> {
        let mut result = Ok(());
        while let Some(carrying) = self.accepted.next() {
            // Half a batch cannot be undone, and is no state to write down.
            let carried = latch_if_it_panics(self, || self.carry_out(carrying));
            result = result.and(carried.map_err(|error| self.device.latch(error)));
        }
        result
    }

    /// Gives a batch to memtables and log, in the order of batches.
    fn carry_out(&self, carrying: Carrying<'_>) -> Result<()> {
        let LoggedBatch { lsn: upto, first_msn, ops } = carrying.batch();
        let (upto, first_msn) = (*upto, *first_msn);
        let indexes = self.indexes.read();
        let pinned = self.pins.newest();
        self.deleted.note(ops);
        let mut full: Vec<Arc<Index>> = Vec::new();
        let most_values = self.accounting.memtable_value_limit();
        let mut work = false;
        for (msn, op) in (first_msn.0..).map(Msn).zip(ops) {
            let Some(index) = op.index().and_then(|id| indexes.get(&id)) else { continue };
            if let LoggedOp::Clone { source, destination, .. } = op {
                if source != destination {
                    let (source, destination) = (source.clone(), destination.clone());
                    index.push_goto(PendingClone { msn, source, destination }, upto);
                    work = true;
                }
                continue;
            }
            let table = index.active();
            match op {
                LoggedOp::Point { key, op, .. } => {
                    table.apply(key, msn, op, pinned, &self.options.merge);
                }
                LoggedOp::Range { range, op, .. } => table.apply_range(range, msn, op, pinned),
                LoggedOp::Clone { .. } | LoggedOp::Superseded => {}
            }
            let large =
                table.bytes() >= self.options.tuning.memtable || table.value_bytes() as u64 >= most_values;
            if large && !full.iter().any(|i| i.id == index.id) {
                full.push(index.clone());
            }
        }
        let (batch, ending) = carrying.in_memtables();
        let pending = self.log.append(batch)?;
        for index in &full {
            index.seal(upto);
        }
        if work || !full.is_empty() || pending >= crate::maintenance::scheduler::PUSH {
            self.signal.request_work();
        }
        drop(ending);
        Ok(())
    }

    /// Refuses a batch that breaks a documented rule, before anything is done.
    fn check(&self, batch: &Batch) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        if batch.nested {
            return invalid("a range cannot be moved into itself, nor over what it lies in".into());
        }
        if let Some(id) = batch.indexes().find(|id| !self.indexes.contains(*id)) {
            return Err(self.catalog.unchangeable(id));
        }
        for op in &batch.ops {
            let (key, update) = match op {
                LoggedOp::Point { key, op, .. } => {
                    (key, if let Op::Update(update) = op { Some(update) } else { None })
                }
                LoggedOp::Range { range, op, .. } => {
                    (&range.start, if let RangeOp::Update(update) = op { Some(update) } else { None })
                }
                LoggedOp::Clone { source, destination, .. } => {
                    (if source.len() > destination.len() { source } else { destination }, None)
                }
                LoggedOp::Superseded => continue,
            };
            if key.len() > MAX_KEY {
                return invalid(format!("a key of {} bytes is longer than {MAX_KEY}", key.len()));
            }
            if let Some(update) = update.filter(|u| !self.options.merge.knows(u.function)) {
                return invalid(format!("merge function {} is not registered", update.function));
            }
            let end = match op {
                LoggedOp::Point { op: Op::Insert(value), .. } => value.len(),
                LoggedOp::Point { op: Op::Patch { offset, bytes }, .. } => *offset as usize + bytes.len(),
                _ => 0,
            };
            if end > MAX_VALUE {
                return invalid(format!("a value of {end} bytes is longer than {MAX_VALUE}"));
            }
        }
        Ok(())
    }

    fn check_indexes(&self, batch: &Batch) -> Result<()> {
        let indexes = self.indexes.read();
        match batch.ops.iter().filter_map(LoggedOp::index).find(|id| !indexes.contains_key(id)) {
            Some(id) => Err(no_such_index(id)),
            None => Ok(()),
        }
    }

    /// Refuses clones in a tree that is too high already. How many can wait to be bound is limited,
    /// too, so the height stays far below what a byte holds.
    fn limit_height(&self, batch: &Batch) -> Result<()> {
        for op in &batch.ops {
            if let LoggedOp::Clone { index, .. } = op
                && self.catalog.version(*index)?.root.height >= MAX_HEIGHT
            {
                let message = "a range has been cloned into itself too many times";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        }
        Ok(())
    }

    /// The bytes that a batch takes at most in the log; refuses one that is too long for it. Large
    /// values of a batch that is too long only because of them are written to their place first, so
    /// that the log need only refer to them: the rename of a directory names all of its data.
    fn fit_log(&self, batch: &Batch) -> Result<u64> {
        if let Ok(bytes) = self.log.check(&batch.ops) {
            return Ok(bytes);
        }
        self.trees.pieces.write_values(&batch.large_values(), None)?;
        self.log.check(&batch.ops)
    }

    /// Counts the memory of a batch's large values. The log takes composed ones by reference only.
    fn settle_values(&self, batch: &Batch) -> Result<()> {
        for op in &batch.ops {
            let values = op.large_values();
            if values.len() > 1 && !values.iter().all(|value| value.is_stored()) {
                self.trees.pieces.write_values(values, None)?;
            }
            values.iter().for_each(|value| value.charge(&self.trees.memory.value_bytes));
        }
        Ok(())
    }
}
