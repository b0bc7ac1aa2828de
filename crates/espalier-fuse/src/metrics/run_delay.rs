//! How long a thread has waited for a CPU while it was ready to run.
//!
//! The kernel counts it for each thread (`/proc/thread-self/schedstat`). The difference over a wait
//! for a request is the time in which the thread had been given the request and did not run yet.

use std::time::Duration;

/// The time at which a wait for a request began.
pub(super) struct RunDelay(u64);

impl RunDelay {
    /// Begins; `None` where the kernel does not count it.
    pub(super) fn begin() -> Option<Self> {
        read().map(Self)
    }

    /// How long the thread has waited for a CPU since.
    pub(super) fn elapsed(self) -> Option<Duration> {
        Some(Duration::from_nanos(read()?.saturating_sub(self.0)))
    }
}

/// The calling thread's sum in nanoseconds: the second number of the file.
fn read() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').nth(1)?.parse().ok()
}
