//! The limit on nice values, on which the scheduling of a user's server depends.

use rustix::process::{Resource, getrlimit};

/// The least RLIMIT_NICE by which a thread may leave `SCHED_IDLE` for the nice value 0.
pub(crate) const NICE_LIMIT: u64 = 20;

/// RLIMIT_NICE of this process: 20 less the lowest nice value that it may take.
pub(crate) fn nice_limit() -> u64 {
    getrlimit(Resource::Nice).current.unwrap_or(u64::MAX)
}
