//! Scheduling classes of threads, as system calls.

/// The scheduling class of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SchedulingClass {
    /// `SCHED_OTHER`.
    #[default]
    Ordinary,
    /// `SCHED_IDLE`.
    Idle,
}

impl SchedulingClass {
    /// Puts a thread (0: the calling one) into this class; false if that is not permitted, or the
    /// thread has ended.
    pub(super) fn apply(self, thread: libc::pid_t) -> bool {
        let policy = match self {
            Self::Ordinary => libc::SCHED_OTHER,
            Self::Idle => libc::SCHED_IDLE,
        };
        // All that the kernel's `sched_param` has. musl's function refuses every call, because
        // POSIX means processes and the kernel means threads.
        let priority: libc::c_int = 0;
        // SAFETY: `priority` lives for the length of the call, which changes no memory.
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const priority) == 0 }
    }
}

/// Gives the calling thread the I/O priority that ordinary threads have, whatever its scheduling
/// class will be.
pub(super) fn keep_io_priority() {
    const IOPRIO_OF_THREAD: libc::c_int = 1;
    // See `linux/ioprio.h`: the class "best effort", and what a nice value of 0 stands for in it.
    const IOPRIO_ORDINARY: libc::c_int = 2 << 13 | 4;
    // SAFETY: the call takes numbers only and changes no memory.
    if unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_OF_THREAD, 0, IOPRIO_ORDINARY) } != 0 {
        // Where a sandbox forbids it, fsync is slower beside background work.
        tracing::debug!("no I/O priority of its own: {}", std::io::Error::last_os_error());
    }
}

/// Whether this process may put threads into `SCHED_IDLE` and back; tried with a thread that ends
/// afterwards.
pub(super) fn may_leave_idle_class() -> bool {
    let there_and_back = || SchedulingClass::Idle.apply(0) && SchedulingClass::Ordinary.apply(0);
    let probe = std::thread::Builder::new().name("fuse-probe".into()).spawn(there_and_back);
    probe.is_ok_and(|probe| probe.join().unwrap_or(false))
}
