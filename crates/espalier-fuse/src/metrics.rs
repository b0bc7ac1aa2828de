//! Metrics: what a mount counts and measures of the requests that it serves.
//!
//! Each worker of a transport has a [`Recorder`] of its own, into which one thread at a time writes
//! with plain loads and stores: nothing is shared between threads while requests are served, and no
//! lock is taken. [`Metrics::snapshot`] adds up all recorders; what it reads may be some requests
//! apart from counter to counter.
//!
//! Counts are exact. Times are those of a sample, because reading the clock and counting a time
//! takes several times what the counts do: of requests that take long, and of the first ones of a
//! kind, all are timed.
//!
//! Which callers ask is recorded only for [`WATCHED_FOR`] after [`Metrics::callers`] was called,
//! and single requests only while a trace is on: neither costs anything otherwise.

mod callers;
mod cells;
mod clock;
mod histogram;
mod kinds;
mod recorder;
mod registry;
mod run_delay;
mod trace;

pub use callers::{CallerSnapshot, WATCHED_FOR};
pub use cells::KindSnapshot;
pub use clock::Stamp;
pub(crate) use histogram::add_alone;
pub use histogram::{BUCKETS, Histogram, SharedHistogram, bucket_bounds};
pub(crate) use kinds::kind_name;
pub use recorder::{Arrival, Recorder};
pub(crate) use recorder::{Begun, Served};
pub use registry::Metrics;
pub use trace::{TRACE_ABANDONED_AFTER, TraceEvent, TraceFilter, TracePart, Tracer};

#[cfg(test)]
mod tests;
