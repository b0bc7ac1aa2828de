//! Write path: how a batch gets in, and the one loop that makes room for it.
//!
//! The layers below answer a batch with outcomes: the log is full, memory is full, there are too
//! few blocks. What then has to be done, a checkpoint, a step of background work, or reclaim of
//! space, is done here, and the batch asks again. On a device with plenty of space nothing of that
//! happens.

use crate::checkpoint::Checkpointer;
use crate::commit::admission::{Admission, MAX_ADMISSION_TRIES, Outcome, Request};
use crate::commit::back_pressure::{BackPressure, Verdict};
use crate::commit::batch_checks::BatchChecks;
use crate::commit::order::Admitted;
use crate::commit::pipeline::CommitPipeline;
use crate::index::accounting::WantedRoom;
use crate::log::LogProgress;
use crate::maintenance::low_space::LowSpaceReclaim;
use crate::maintenance::scheduler::Scheduler;
use crate::model::batch::Batch;
use crate::model::ids::Lsn;
use crate::space::Purpose;
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;

/// See the [module](self).
pub(crate) struct WritePath {
    pub(crate) checks: BatchChecks,
    pub(crate) back_pressure: Arc<BackPressure>,
    pub(crate) admission: Admission,
    pub(crate) pipeline: Arc<CommitPipeline>,
    pub(crate) checkpointer: Arc<Checkpointer>,
    pub(crate) reclaim: LowSpaceReclaim,
    pub(crate) scheduler: Arc<Scheduler>,
}

impl WritePath {
    /// See [`Store::commit_if`](crate::Store::commit_if).
    pub(super) fn commit_if(&self, batch: Batch, wanted: impl FnOnce() -> bool) -> Result<Lsn> {
        self.pipeline.writable()?;
        let bytes = self.checks.check(&batch)?;
        let mut request = Request::new(&batch);
        self.wait_for_memory(&batch, &request)?;
        self.checks.charge_values(&batch)?;
        let admitted = self.admit(&batch, &mut request)?;
        self.checks.check_indexes(&batch)?;
        if !wanted() {
            return Err(Error::given_up());
        }
        self.pipeline.enter(admitted, batch, bytes)
    }

    /// Waits until there is room for `batch` in memory and in the log.
    fn wait_for_memory(&self, batch: &Batch, request: &Request<'_>) -> Result<()> {
        let begun = self.back_pressure.env.monotonic();
        self.back_pressure.pace(batch.bytes);
        loop {
            if self.back_pressure.must_write_log(batch.bytes)? {
                self.back_pressure.time_log_write(|| match self.back_pressure.write_log(batch.bytes)? {
                    LogProgress::Full => self.checkpointer.checkpoint(),
                    LogProgress::Done => Ok(()),
                })?;
            }
            match self.back_pressure.look(batch, request.purpose(), begun)? {
                Verdict::Accept => return Ok(()),
                Verdict::StepAndAccept => return self.scheduler.step_for_writer().map(drop),
                Verdict::StepAndLook if self.scheduler.step_for_writer()? => {}
                Verdict::StepAndLook => return Ok(()),
                Verdict::Look => {}
            }
        }
    }

    /// Reserves what the batch takes, and makes room as long as that helps.
    fn admit(&self, batch: &Batch, request: &mut Request<'_>) -> Result<Admitted<'_>> {
        loop {
            let wanted = match self.admission.admit(request)? {
                Outcome::Admitted(admitted) => return Ok(admitted),
                Outcome::NeedsSpace(wanted) => wanted,
            };
            let more = self.reclaim.make_space(&wanted)?;
            let is_last = request.note_try(more);
            request.set_range_deletes(if is_last { self.reclaim.gives_back(batch)? } else { None });
        }
    }

    /// See [`Store::keep`](crate::Store::keep).
    pub(super) fn keep(&self, blocks: u64) -> Result<()> {
        self.pipeline.writable()?;
        let accounting = &self.pipeline.accounting;
        let wanted = WantedRoom { blocks, purpose: Purpose::Growth, drawn: 0 };
        for tries in 0.. {
            match accounting.reserve(blocks, Purpose::Growth) {
                Ok(reservation) => {
                    accounting.keep(reservation);
                    return Ok(());
                }
                Err(error) if error.kind() != ErrorKind::NoSpace => return Err(error),
                // No reclaim could make so much.
                Err(error) if blocks > accounting.data_blocks() || tries == MAX_ADMISSION_TRIES => {
                    return Err(error);
                }
                Err(error) if !self.reclaim.make_space(&wanted)? && !accounting.has_room(&wanted) => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// See [`Store::sync`](crate::Store::sync).
    pub(super) fn sync(&self, upto: Lsn) -> Result<()> {
        if self.pipeline.device.failure().is_some() {
            return self.pipeline.device.writable();
        }
        self.pipeline.drain();
        loop {
            match self.pipeline.log.sync(upto)? {
                LogProgress::Done => return Ok(()),
                // What a checkpoint covers is durable without the log.
                LogProgress::Full => self.checkpointer.checkpoint()?,
            }
        }
    }
}
