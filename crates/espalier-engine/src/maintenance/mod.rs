//! Background work: the scheduler, garbage collection, making room when space is low.

pub(crate) mod garbage_collection;
pub(crate) mod low_space;
pub(crate) mod scheduler;
