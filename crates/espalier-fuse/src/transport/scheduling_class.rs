//! Keeping clients on their CPU: the scheduling class of the threads that serve.
//!
//! A request is served on the CPU on which it is made. But while the reply wakes the client, the
//! thread that sends it still runs there, so Linux looks for an idle CPU, finds one on most
//! machines, and moves the client with every single request: caches grow cold, and a CPU has to be
//! woken by an interrupt, which costs several times what the request does. A CPU that runs nothing
//! but `SCHED_IDLE` threads counts as idle, so a client whose server is one stays where it is.
//!
//! `SCHED_IDLE` threads, though, get next to no time from a CPU that other threads want. Therefore
//! the load monitor (`monitor`) looks at every queue each tick of 4 ms. The threads of a queue are
//! in that class only while it is hot (many requests come) and not starved (none of its threads
//! wants its CPU in vain). After starvation they are ordinary threads, for a time that doubles
//! whenever it happens again (`class_policy`). A queue at rest is ordinary, so that nothing has to
//! be monitored, and so is a queue that becomes hot while every CPU has something to do: then there
//! is no CPU to which a client would be moved.
//!
//! In that class a thread need not sleep to leave the CPU to its client: as soon as the kernel has
//! its reply the client takes the CPU, and gives it back when it waits for the next one. A
//! preempted thread need not be put to sleep and woken with each request; so threads of that class
//! return from the kernel between reply and wait ([`QueueActivity::is_idle_class`]). While their
//! client computes they want the CPU and do not get it. That is no starvation, which begins when
//! the client waits as well.
//!
//! Where a thread has no I/O priority of its own, Linux derives one from its scheduling class, and
//! what a `SCHED_IDLE` thread asks of a disk waits there until no other thread wants anything: an
//! fsync for as long as a background flush goes on writing. So serving threads get the priority of
//! ordinary threads explicitly, in whichever class they are.
//!
//! Leaving `SCHED_IDLE` takes CAP_SYS_NICE or an RLIMIT_NICE of 20: without, the load
//! monitor does nothing.

mod activity;
mod class;
mod class_policy;
mod monitor;

use super::cpu;
pub(super) use activity::QueueActivity;
use class::SchedulingClass;
pub(super) use monitor::{LoadMonitor, MonitoredQueue};

/// Makes the calling thread an ordinary one that may run on all CPUs of this process. A thread that
/// a serving thread starts inherits its scheduling class and its CPU, so a thread with other work
/// begins with this.
pub fn leave_serving() {
    if !SchedulingClass::Ordinary.apply(0) {
        tracing::debug!("a thread stays in its class: {}", std::io::Error::last_os_error());
    }
    cpu::run_anywhere();
}

#[cfg(test)]
mod tests;
