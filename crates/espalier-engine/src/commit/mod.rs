//! Commit: from a batch to its place in the order of all batches, its space, and its application to
//! memtables and log.
//!
//! A batch passes [`batch_checks`] (documented rules), [`back_pressure`] (memory and log),
//! [`admission`] (reservations, which end with the commit lock taken) and [`pipeline`] (numbers).
//! Small batches are [coalesced](coalescing); numbered ones wait in the [apply queue](apply_queue).
//!
//! Nothing here makes a checkpoint or moves data in the trees. A full log ([`LogFull`]), a step
//! of background work that a writer has to wait for, and a lack of space are outcomes; the store
//! holds the loop that acts on them ([`crate::store::write_path`]).
//!
//! [`LogFull`]: crate::log::LogProgress::Full

pub(crate) mod admission;
pub(crate) mod applier;
pub(crate) mod apply_queue;
pub(crate) mod back_pressure;
pub(crate) mod batch_checks;
pub(crate) mod coalescing;
pub(crate) mod order;
pub(crate) mod panic_latch;
pub(crate) mod pipeline;

/// Bytes of batches in memory from which on the log is written ahead of syncs.
pub(crate) const LOG_WRITE_AHEAD_BYTES: u64 = 4 << 20;

/// What may stay in memory then: too little to bind early.
pub(crate) const LOG_WRITE_BEHIND_BYTES: u64 = 1 << 20;
