//! The commit path: admission, coalescing of small batches, the apply queue.

pub(crate) mod admission;
pub(crate) mod apply_queue;
pub(crate) mod coalescing;
pub(crate) mod pipeline;
