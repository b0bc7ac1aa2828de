//! Appending batches, and group commit: callers that want batches written or durable.

use super::codec::op_bound;
use super::held_memory::HeldMemory;
use super::redo_log::{Log, max_batch};
use super::state::{LogGuard, PendingBatch};
use super::{LogProgress, LoggedBatch, LoggedOp};
use crate::{Error, ErrorKind, Lsn, Result};
use std::time::Duration;

/// Upper bound of what a batch costs beyond its operations.
const BATCH_OVERHEAD_BYTES: u64 = 32;

impl Log {
    /// Accepts the next batch into memory. Cheap; called in LSN order. Returns
    /// [`Self::pending_bytes`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the batch is larger than the log takes (nothing is
    /// accepted then) or out of order; the first failure of the log, if there was one.
    pub(crate) fn append(&self, batch: LoggedBatch) -> Result<u64> {
        let bound = self.check(&batch.ops)?;
        let mut state = self.state.lock();
        state.alive()?;
        if batch.lsn.0 != state.progress.appended.0 + 1 {
            let message = format!(
                "batch {} was logged after {}; this is a bug",
                batch.lsn.0, state.progress.appended.0
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        state.progress.appended = batch.lsn;
        if self.config.unlogged {
            return Ok(0);
        }
        state.pending.bytes += bound;
        let held = HeldMemory::of(&self.memory, &batch.ops);
        state.pending.batches.push_back(PendingBatch { batch, bound, held });
        Ok(state.pending.bytes)
    }

    /// True if a batch of `bytes` bytes, by the bound of [`Log::check`], is too long.
    pub(crate) fn is_too_long(&self, bytes: u64) -> bool {
        bytes > max_batch(self.region)
    }

    /// Upper bound of the bytes that a batch of `ops` takes in the log.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if that is more than one batch may have.
    pub(crate) fn check(&self, ops: &[LoggedOp]) -> Result<u64> {
        let bound = BATCH_OVERHEAD_BYTES + ops.iter().map(op_bound).sum::<u64>();
        let max = max_batch(self.region);
        if bound > max {
            let message =
                format!("a batch of {bound} bytes does not fit the log, which takes up to {max}: split it");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(bound)
    }

    /// Writes batches appended before this call until at most `leave` bytes of them are pending,
    /// without making them durable. A rest left behind grows until it is worth a group of its own.
    ///
    /// # Errors
    /// The first failure of the log, which is final.
    pub(crate) fn push(&self, leave: u64) -> Result<LogProgress> {
        let mut state = self.state.lock();
        let target = state.progress.appended;
        loop {
            state.alive()?;
            let enough = state.progress.written >= target || (leave > 0 && state.pending.bytes <= leave);
            if enough || self.config.unlogged {
                return Ok(LogProgress::Done);
            }
            if state.must_sync() {
                self.sync_step(&mut state)?;
            } else if !state.may_begin(target, self.config.groups) {
                state.wait(&self.changed);
            } else if self.write_step(&mut state, target, self.config.group_bytes)? == LogProgress::Full {
                return Ok(LogProgress::Full);
            }
        }
    }

    /// Sees to it that at most `most` bytes are pending, for a writer that adds to them. While
    /// other threads write, the writer waits until they have taken enough, and not for what they
    /// took to be written; otherwise it writes a group itself, and that a short one.
    ///
    /// # Errors
    /// The first failure of the log, which is final.
    pub(crate) fn make_room(&self, most: u64) -> Result<LogProgress> {
        let mut state = self.state.lock();
        while state.pending.bytes > most && !self.config.unlogged {
            state.alive()?;
            let target = state.progress.appended;
            if state.must_sync() {
                self.sync_step(&mut state)?;
            } else if !state.under_way.is_empty() {
                state.wait(&self.changed);
            } else if self.write_step(&mut state, target, self.writer_group_bytes())? == LogProgress::Full {
                return Ok(LogProgress::Full);
            }
        }
        state.alive().map(|()| LogProgress::Done)
    }

    /// Waits until at most `most` bytes are pending, or something else has happened that may lead
    /// to it, or for `limit`.
    pub(crate) fn wait_for_room(&self, most: u64, limit: Duration) {
        let mut state = self.state.lock();
        if state.pending.bytes > most && state.alive().is_ok() {
            state.wait_for(&self.changed, limit);
        }
    }

    /// What a writer writes of the log in one piece: enough to bind values early.
    fn writer_group_bytes(&self) -> u64 {
        self.config.early_binding.saturating_mul(2).min(self.config.group_bytes)
    }

    /// Makes every batch up to `upto` durable.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no such batch was appended; the first failure of the log,
    /// which is final.
    pub(crate) fn sync(&self, upto: Lsn) -> Result<LogProgress> {
        let mut state = self.state.lock();
        if upto > state.progress.appended {
            state.alive()?;
            let message = format!("sync of batch {} before it was logged; this is a bug", upto.0);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if state.progress.durable >= upto {
            return Ok(LogProgress::Done);
        }
        *state.waiting.entry(upto).or_default() += 1;
        let result = self.sync_registered(&mut state, upto);
        if let Some(count) = state.waiting.get_mut(&upto) {
            *count -= 1;
            if *count == 0 {
                state.waiting.remove(&upto);
            }
        }
        result
    }

    fn sync_registered(&self, state: &mut LogGuard<'_>, upto: Lsn) -> Result<LogProgress> {
        loop {
            if state.progress.durable >= upto {
                return Ok(LogProgress::Done);
            }
            state.alive()?;
            if self.config.unlogged {
                return Ok(LogProgress::Full);
            }
            if state.must_sync() {
                self.sync_step(state)?;
                continue;
            }
            // A caller that comes during a sync shares the next one; and a group that another
            // thread has begun may hold what is asked for.
            if state.syncing || !state.under_way.is_empty() {
                state.wait(&self.changed);
                continue;
            }
            let target = state.waiting.keys().next_back().copied().unwrap_or(upto);
            if self.write_step(state, target, self.config.group_bytes)? == LogProgress::Full {
                return Ok(LogProgress::Full);
            }
        }
    }
}
