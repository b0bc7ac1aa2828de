//! Scheduler: background work in steps. Applying, writing the log ahead, flushing what lies on one
//! edge nearly whole, absorbing, checkpointing, flushing, garbage collection, in this order of
//! urgency.
//!
//! Steps are taken by [worker threads](super::workers) where the environment has some, and
//! otherwise by the caller that needs room or asks: so a simulation decides what happens when.

use super::flusher::Flusher;
use super::garbage_collection::GarbageCollector;
use crate::checkpoint::Checkpointer;
use crate::commit::back_pressure::BackPressure;
use crate::commit::pipeline::CommitPipeline;
use crate::commit::{LOG_WRITE_AHEAD_BYTES, LOG_WRITE_BEHIND_BYTES};
use crate::index::Index;
use crate::index::absorb::Absorber;
use crate::index::memory::UnwrittenMemory;
use crate::index::table::IndexTable;
use crate::log::{Log, LogProgress};
use crate::space::Space;
use crate::{ErrorKind, Result};
use espalier_storage::Environment;
use std::sync::Arc;
use std::time::Duration;

/// A store that changes is checkpointed at least this often.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);

/// See the [module](self).
pub(crate) struct Scheduler {
    pub(crate) env: Arc<dyn Environment>,
    pub(crate) space: Arc<Space>,
    pub(crate) log: Arc<Log>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) memory: Arc<UnwrittenMemory>,
    pub(crate) absorber: Arc<Absorber>,
    pub(crate) pipeline: Arc<CommitPipeline>,
    pub(crate) back_pressure: Arc<BackPressure>,
    pub(crate) checkpointer: Arc<Checkpointer>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) collector: Arc<GarbageCollector>,
    /// Bytes of nodes, parts and values that may be unwritten before a checkpoint is made.
    pub(crate) unwritten_limit: u64,
}

impl Scheduler {
    /// Does one piece of background work; false if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`]; of the device.
    pub(crate) fn step(&self) -> Result<bool> {
        self.pipeline.device.writable()?;
        let result = self.take_step();
        match &result {
            Ok(_) => self.back_pressure.set_starved(false),
            Err(error) if error.kind() == ErrorKind::NoSpace => self.back_pressure.set_starved(true),
            Err(_) => {}
        }
        result
    }

    /// A step on behalf of a writer: that the store is full is then the writer's answer, in time.
    ///
    /// # Errors
    /// As for [`Self::step`].
    pub(crate) fn step_for_writer(&self) -> Result<bool> {
        match self.step() {
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
            other => other,
        }
    }

    fn take_step(&self) -> Result<bool> {
        if self.pipeline.has_backlog() {
            self.pipeline.apply_queued()?;
            return Ok(true);
        }
        let signal = &self.pipeline.signal;
        if self.log.pending_bytes() >= LOG_WRITE_AHEAD_BYTES && self.log.has_turn() {
            self.write_log_ahead()?;
            signal.note_progress();
            return Ok(true);
        }
        if self.flusher.flush_dense()?
            || self.absorb_one()?
            || self.checkpoint_if_due()?
            || self.flusher.flush_heaviest()?
            || self.collector.step()?
        {
            signal.note_progress();
            return Ok(true);
        }
        Ok(false)
    }

    fn write_log_ahead(&self) -> Result<()> {
        match self.log.push(LOG_WRITE_BEHIND_BYTES)? {
            LogProgress::Full => self.checkpointer.checkpoint(),
            LogProgress::Done => Ok(()),
        }
    }

    /// For how long there is nothing to absorb because clones rest; `None` if none does.
    pub(super) fn rest(&self) -> Option<Duration> {
        self.indexes.all().iter().filter_map(|index| self.rest_of(index)).min()
    }

    /// How long the oldest layer of an index rests. Without threads, and where space is low,
    /// nothing does.
    fn rest_of(&self, index: &Index) -> Option<Duration> {
        let may_rest = self.env.threads() > 0 && !self.pipeline.accounting.is_low();
        if may_rest { index.version().rest(self.env.monotonic()) } else { None }
    }

    /// Absorbs the oldest layer of an index that no thread works on.
    fn absorb_one(&self) -> Result<bool> {
        for index in self.indexes.all() {
            let Some(upto) = self.absorber.due(&index) else { continue };
            if self.rest_of(&index).is_some() {
                continue;
            }
            // First into the log: what it has bound to its place the tree need not write.
            if self.log.written_lsn() < upto {
                self.write_log_ahead()?;
            }
            let Some(_structure) = index.structure.try_lock() else { continue };
            if self.absorber.due(&index).is_some() {
                self.absorber.absorb_oldest(&index)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn checkpoint_if_due(&self) -> Result<bool> {
        if self.checkpointer.is_busy() {
            return Ok(false);
        }
        let unwritten = self.memory.bytes();
        let due = self.log.used_bytes() > self.log.capacity() / 2
            || unwritten > self.unwritten_limit
            || (self.is_checkpoint_old() && self.has_changed()?)
            || self.checkpointer.has_reclaim();
        if due {
            self.checkpointer.checkpoint()?;
        }
        Ok(due)
    }

    fn is_checkpoint_old(&self) -> bool {
        self.env.threads() > 0 && self.checkpointer.age(self.env.monotonic()) > CHECKPOINT_INTERVAL
    }

    fn has_changed(&self) -> Result<bool> {
        Ok(self.pipeline.lock_applied()?.last_lsn > self.space.superblock().checkpoint_lsn)
    }
}

#[cfg(test)]
mod tests;
