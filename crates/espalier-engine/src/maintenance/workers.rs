//! Worker threads: take steps of background work, and read ahead of readers.
//!
//! Readahead has threads of its own, as readers must not wait for a checkpoint to end.

use super::scheduler::Scheduler;
use crate::commit::panic_latch::latch_on_panic;
use crate::readahead::Readahead;
use crate::signal::WorkSignal;
use crate::{Error, ErrorKind, Result};
use espalier_storage::{Environment, JoinHandle};
use espalier_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often an idle thread looks for work.
const IDLE_WAIT: Duration = Duration::from_millis(500);

/// Threads that read ahead: so many reads at a time. One wakes the next only while there is more to
/// read than those that are awake have begun with.
const READAHEAD_THREADS: usize = 8;

/// The threads of an open store.
pub(crate) struct Workers {
    env: Arc<dyn Environment>,
    signal: Arc<WorkSignal>,
    stop: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle>>,
}

impl Workers {
    /// Starts as many as the environment has; without a scheduler, as for a store that is only
    /// read, no more than those that read ahead.
    ///
    /// # Errors
    /// If the system has not so many left; none is running then.
    pub(crate) fn start(
        env: Arc<dyn Environment>,
        signal: Arc<WorkSignal>,
        scheduler: Option<&Arc<Scheduler>>,
        readahead: &Arc<Readahead>,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let workers = Self { env, signal, stop, threads: Mutex::default() };
        workers.start_all(scheduler, readahead).inspect_err(|_| workers.stop())?;
        Ok(workers)
    }

    fn start_all(&self, scheduler: Option<&Arc<Scheduler>>, readahead: &Arc<Readahead>) -> Result<()> {
        let count = self.env.threads();
        if let Some(scheduler) = scheduler {
            for n in 0..count {
                let (scheduler, stop) = (scheduler.clone(), self.stop.clone());
                let body = move || {
                    let pipeline = &scheduler.pipeline;
                    latch_on_panic(&pipeline.device, &pipeline.signal, || work(&scheduler, &stop));
                };
                self.spawn(&format!("espalier-{n}"), Box::new(body))?;
            }
        }
        if count > 0 {
            let signal = Arc::downgrade(&self.signal);
            readahead.wake_on_prefetch(move || {
                if let Some(signal) = signal.upgrade() {
                    signal.wake_readahead();
                }
            });
            for n in 0..READAHEAD_THREADS {
                let (readahead, stop) = (readahead.clone(), self.stop.clone());
                let signal = self.signal.clone();
                let body = move || read_ahead(&readahead, &signal, &stop);
                self.spawn(&format!("espalier-ahead-{n}"), Box::new(body))?;
            }
        }
        Ok(())
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<()> {
        let thread = self.env.spawn(name, body).map_err(|error| {
            let message =
                format!("the system starts no thread for background work: {error}; allow more of them");
            Error::new(ErrorKind::Io, message)
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Waits until all of them have ended.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.signal.wake_threads();
        for thread in self.threads.lock().drain(..) {
            thread.join();
        }
    }
}

fn work(scheduler: &Scheduler, stop: &AtomicBool) {
    let signal = &scheduler.pipeline.signal;
    while !stop.load(Ordering::Acquire) {
        match scheduler.step() {
            Ok(true) => {}
            Ok(false) => {
                // Also when no writer comes any more: what joined the coalesced batch must not wait
                // for others for ever, and the cache gets what has become free.
                scheduler.pipeline.drain();
                scheduler.back_pressure.share_memory();
                signal.wait_for_work(scheduler.rest().unwrap_or(IDLE_WAIT));
            }
            Err(error) => {
                // Errors of the device have latched it; others must not make this a busy loop.
                tracing::error!(%error, "background work failed");
                signal.note_progress();
                signal.wait_for_work(IDLE_WAIT);
            }
        }
    }
}

fn read_ahead(readahead: &Readahead, signal: &WorkSignal, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        if !readahead.step() {
            signal.wait_for_readahead(|| readahead.has_work(), IDLE_WAIT);
        }
    }
}
