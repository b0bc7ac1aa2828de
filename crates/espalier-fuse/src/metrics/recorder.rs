//! Recorder: what one worker counts. One thread at a time writes to it.

use super::cells::Cells;
use super::clock::Stamp;
use super::histogram::add_alone;
use super::kinds::kind_of;
use super::registry::Metrics;
use super::run_delay::RunDelay;
use crate::protocol::Header;
use crate::protocol::flags::opcode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Of so many requests of a worker one has its time in the queue measured, which takes as long as a
/// request or two.
const QUEUE_SAMPLE: u64 = 4096;

/// Of so many requests of a worker one is timed, and its time counts for as many: two readings of
/// the clock and the histogram take a fiftieth of what a small request does.
const WORK_SAMPLE: u64 = 16;
/// The first requests of each kind, as many as this for each worker, are all timed.
const ALL_TIMED_AT_FIRST: u64 = 16;

/// What one worker has counted and measured.
pub struct Recorder {
    metrics: Arc<Metrics>,
    /// `None` only while it is dropped.
    cells: Option<Arc<Cells>>,
}

/// The wait of a worker for a request.
pub(crate) struct Wait {
    queue: Option<RunDelay>,
    is_in_sample: bool,
}

/// How a request came to its worker.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// How long the worker had the request and did not run; `None`: it was not measured.
    pub queue: Option<Duration>,
    /// Its work is in the sample.
    is_in_sample: bool,
}

/// The beginning of a request that is timed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    /// When the worker began.
    pub(crate) at: Stamp,
    /// For how many requests its time stands.
    stands_for: u64,
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

impl Wait {
    /// The wait has ended: a request is there.
    pub(crate) fn arrived(self) -> Arrival {
        Arrival { queue: self.queue.and_then(RunDelay::elapsed), is_in_sample: self.is_in_sample }
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
    pub(crate) fn wait(&self) -> Wait {
        let random = self.cells().next_random();
        let measured = random.is_multiple_of(QUEUE_SAMPLE) || self.metrics.tracer().is_on();
        let queue = if measured { RunDelay::begin() } else { None };
        Wait { queue, is_in_sample: (random / QUEUE_SAMPLE).is_multiple_of(WORK_SAMPLE) }
    }

    /// The worker begins to serve the request with `header`. The result is for
    /// [`Recorder::served`]: `None` if the request need not be timed, which it is if it `must_be`.
    pub(crate) fn begin(&self, header: &Header, arrival: &Arrival, must_be: bool) -> Option<Begun> {
        let kind = kind_of(header.opcode);
        let before = self.cells().kind(kind).map_or(0, |cells| cells.requests.load(Ordering::Relaxed));
        let all = before < ALL_TIMED_AT_FIRST || is_long(header.opcode);
        let stands_for = match arrival.is_in_sample {
            _ if all => 1,
            true => WORK_SAMPLE,
            // Its time is not for the histogram.
            false if must_be || self.metrics.is_watched() => 0,
            false => return None,
        };
        Some(Begun { at: self.metrics.clock().now(), stands_for })
    }

    /// The request with `header` has been served, which had `begun`; the result is how long that
    /// took.
    pub(crate) fn served(
        &self,
        header: &Header,
        arrival: &Arrival,
        begun: Option<Begun>,
        served: &Served,
    ) -> Option<Duration> {
        let cells = self.cells();
        let kind = cells.kinds[kind_of(header.opcode)].get_or_init(Box::default);
        add_alone(&kind.requests, 1);
        if served.errno != 0 {
            add_alone(&kind.errors, 1);
        }
        add_alone(&kind.bytes_in, served.bytes_in);
        add_alone(&kind.bytes_out, served.bytes_out);
        if let Some(queue) = arrival.queue {
            kind.queue.count_alone(queue, 1);
        }
        let Begun { at, stands_for } = begun?;
        let now = self.metrics.clock().now();
        let work = self.metrics.clock().between(at, now);
        if stands_for > 0 {
            kind.work.count_alone(work, stands_for);
        }
        if self.metrics.is_watched_at(now) {
            cells.callers.lock().count(header.pid, served.bytes_in + served.bytes_out, work);
        }
        Some(work)
    }
}

/// True for requests that take so long that measuring the time of each costs nothing beside it.
fn is_long(code: u32) -> bool {
    matches!(code, opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS | opcode::IOCTL)
}
