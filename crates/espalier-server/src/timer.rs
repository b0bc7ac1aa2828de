//! A timer: a descriptor that becomes readable at an instant.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Instant;

/// Expires once each time that it was set.
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the call takes numbers.
        let made = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if made == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it, and nothing else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(made) }))
    }

    /// Has the timer expire at an instant, or never; what was set before does not count any more.
    pub(crate) fn set(&self, at: Option<Instant>) {
        // A time of nothing would mean never.
        let wait = at.map(|at| at.saturating_duration_since(Instant::now()).as_nanos().max(1) as u64);
        let nanoseconds = wait.unwrap_or(0);
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            // The name of the type is deprecated for musl, and it has enough bits for these.
            tv_sec: (nanoseconds / 1_000_000_000) as _,
            tv_nsec: (nanoseconds % 1_000_000_000) as libc::c_long,
        };
        let times = libc::itimerspec { it_interval: none, it_value: value };
        // SAFETY: the kernel reads one value, which is there, and writes none.
        let set =
            unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const times, std::ptr::null_mut()) };
        debug_assert_eq!(set, 0, "the numbers are in range");
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
