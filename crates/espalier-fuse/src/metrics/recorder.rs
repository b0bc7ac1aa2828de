//! Recorder: what one worker counts. One thread at a time writes to it.

use super::cells::Cells;
use super::clock::Stamp;
use super::histogram::add_alone;
use super::kinds::kind_of;
use super::registry::Metrics;
use super::run_delay::RunDelay;
use crate::protocol::Header;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Of so many requests of a worker one has its time in the queue measured, which takes as long as a
/// request or two.
const QUEUE_SAMPLE: u64 = 4096;

/// What one worker has counted and measured.
pub struct Recorder {
    metrics: Arc<Metrics>,
    /// `None` only while it is dropped.
    cells: Option<Arc<Cells>>,
}

/// The wait of a worker for a request.
pub(crate) struct Wait<'a>(&'a Recorder, Option<RunDelay>);

/// When a request came to its worker, and how long it had waited there.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// When the worker began.
    pub begun: Stamp,
    /// How long the worker had the request and did not run; `None`: it was not measured.
    pub queue: Option<Duration>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Served {
    /// The errno of the answer; 0: success.
    pub(crate) errno: i32,
    /// Bytes of data in the request, beside its fixed argument.
    pub(crate) bytes_in: u64,
    /// Bytes in the answer.
    pub(crate) bytes_out: u64,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(cells) = self.cells.take() {
            self.metrics.give_back(cells);
        }
    }
}

impl Wait<'_> {
    /// The wait has ended: a request is there.
    pub(crate) fn arrived(self) -> Arrival {
        Arrival { queue: self.1.and_then(RunDelay::elapsed), begun: self.0.metrics.clock().now() }
    }
}

impl Recorder {
    /// A recorder for one more worker.
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        Self { metrics: Arc::clone(metrics), cells: Some(metrics.take_cells()) }
    }

    fn cells(&self) -> &Cells {
        match &self.cells {
            Some(cells) => cells,
            None => unreachable!("it is taken away when this is dropped"),
        }
    }

    /// The worker begins to wait for a request.
    pub(crate) fn wait(&self) -> Wait<'_> {
        let cells = self.cells();
        let waits = cells.waits.load(Ordering::Relaxed);
        add_alone(&cells.waits, 1);
        let measured = waits.is_multiple_of(QUEUE_SAMPLE) || self.metrics.tracer().is_on();
        Wait(self, if measured { RunDelay::begin() } else { None })
    }

    /// The request with `header` has been served; the result is how long that took.
    pub(crate) fn served(&self, header: &Header, arrival: &Arrival, served: &Served) -> Duration {
        let cells = self.cells();
        let clock = self.metrics.clock();
        let now = clock.now();
        let work = clock.between(arrival.begun, now);
        let kind = cells.kinds[kind_of(header.opcode)].get_or_init(Box::default);
        kind.work.count_alone(work);
        if let Some(queue) = arrival.queue {
            kind.queue.count_alone(queue);
        }
        if served.errno != 0 {
            add_alone(&kind.errors, 1);
        }
        add_alone(&kind.bytes_in, served.bytes_in);
        add_alone(&kind.bytes_out, served.bytes_out);
        if self.metrics.is_watched(now) {
            cells.callers.lock().count(header.pid, served.bytes_in + served.bytes_out, work);
        }
        work
    }
}
