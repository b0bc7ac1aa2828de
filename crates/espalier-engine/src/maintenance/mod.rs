//! Maintenance: background work in steps, flush policy, garbage collection, reclaim when space is
//! low.
//!
//! All of it calls checkpoints and what is below them; the store and the worker threads call it.

pub(crate) mod flusher;
pub(crate) mod garbage_collection;
pub(crate) mod low_space;
pub(crate) mod scheduler;
pub(crate) mod sparse_values;
pub(crate) mod workers;
