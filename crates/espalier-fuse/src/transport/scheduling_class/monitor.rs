//! The load monitor: looks at every queue each tick.

use super::activity::{QueueActivity, are_all_cpus_busy};
use super::class::{SchedulingClass, may_leave_idle_class};
use super::class_policy::ClassPolicy;
use crate::transport::affinity::{BackgroundAffinity, BackgroundMember};
use crate::transport::config::ThreadLister;
use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// How often queues are looked at while one of them is hot.
const TICK: Duration = Duration::from_millis(4);

/// Chooses the scheduling class of each queue's threads, and keeps background threads off busy
/// CPUs.
#[derive(Debug, Default)]
pub(in crate::transport) struct LoadMonitor {
    state: Mutex<MonitorState>,
    changed: Condvar,
    background: BackgroundAffinity,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum MonitorState {
    /// Nothing is hot.
    #[default]
    Asleep,
    Awake,
    Ended,
}

impl LoadMonitor {
    /// `background` lists background threads, beside those that join.
    pub(in crate::transport) fn new(background: Option<ThreadLister>) -> Self {
        Self { background: BackgroundAffinity::new(background), ..Self::default() }
    }

    /// The calling thread, which serves no queue, is a background thread until the result is
    /// dropped.
    pub(in crate::transport) fn join_background(&self) -> BackgroundMember<'_> {
        self.background.join()
    }

    /// A queue may be hot.
    pub(in crate::transport) fn wake(&self) {
        // The lock is free but for moments; if it is not, there will be a next time.
        if let Some(mut state) = self.state.try_lock()
            && *state == MonitorState::Asleep
        {
            *state = MonitorState::Awake;
            self.changed.notify_one();
        }
    }

    /// Ends [`LoadMonitor::run`].
    pub(in crate::transport) fn end(&self) {
        *self.state.lock() = MonitorState::Ended;
        self.changed.notify_one();
    }

    /// Monitors `queues`, one for each CPU in their order, until it is ended. Returns at once where
    /// threads may not leave `SCHED_IDLE`.
    pub(in crate::transport) fn run<'a>(&self, queues: impl Iterator<Item = &'a QueueActivity>) {
        if !may_leave_idle_class() {
            tracing::debug!("no right to leave SCHED_IDLE: clients may move between CPUs with every request");
            return;
        }
        let _background = self.join_background();
        let queues: Vec<_> = queues.collect();
        let mut policies: Vec<_> = queues.iter().map(|_| ClassPolicy::default()).collect();
        let mut busy = Vec::new();
        while self.wait_for_tick(&queues, &mut policies) {
            for (queue, policy) in queues.iter().zip(&mut policies) {
                adapt(queue, policy, || are_all_cpus_busy(&queues));
            }
            let before = std::mem::take(&mut busy);
            busy.extend((0..policies.len()).filter(|cpu| policies[*cpu].is_busy()));
            if busy != before {
                self.background.keep_off(&busy);
            }
            if policies.iter().all(ClassPolicy::is_at_rest) {
                let mut state = self.state.lock();
                if *state == MonitorState::Awake {
                    *state = MonitorState::Asleep;
                }
            }
        }
        self.background.keep_off(&[]);
        for queue in queues {
            queue.set_class(SchedulingClass::Ordinary);
        }
    }

    /// Returns when a tick has passed in which some queue may be hot; false at the end.
    fn wait_for_tick(&self, queues: &[&QueueActivity], policies: &mut [ClassPolicy]) -> bool {
        let mut state = self.state.lock();
        while *state == MonitorState::Asleep {
            self.changed.wait(&mut state);
            // What came meanwhile did not come within a tick.
            queues.iter().zip(&mut *policies).for_each(|(queue, policy)| policy.skip(queue.requests()));
        }
        if *state == MonitorState::Awake {
            self.changed.wait_for(&mut state, TICK);
        }
        *state != MonitorState::Ended
    }
}

/// Puts the threads of a queue into the class that its policy chooses after a tick.
fn adapt(queue: &QueueActivity, policy: &mut ClassPolicy, all_busy: impl FnOnce() -> bool) {
    let (class, penalty) = (policy.class(), policy.penalty_ticks_left());
    policy.tick(queue.requests(), all_busy, || queue.wants_cpu());
    if policy.class() != class {
        queue.set_class(policy.class());
    }
    let ticks = policy.penalty_ticks_left();
    if ticks > penalty {
        tracing::debug!(ticks, "a queue starved: its threads are ordinary ones");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_serving_threads_changes_and_none_stays_behind() {
        let policy = |thread| {
            // SAFETY: the call only reads, and takes no pointer.
            unsafe { libc::sched_getscheduler(thread) }
        };
        let io_class = |thread: libc::pid_t| {
            // SAFETY: the call only reads, and takes no pointer.
            unsafe { libc::syscall(libc::SYS_ioprio_get, 1, thread) >> 13 }
        };
        let activity = QueueActivity::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if !may_leave_idle_class() {
                    return;
                }
                let member = activity.join();
                activity.set_class(SchedulingClass::Idle);
                assert_eq!(policy(member.id()), libc::SCHED_IDLE);
                assert_eq!(io_class(member.id()), 2, "what it asks of a disk is no less urgent");
                // A new member takes the class of the queue.
                scope
                    .spawn(|| {
                        SchedulingClass::Ordinary.apply(0);
                        assert_eq!(policy(0), libc::SCHED_OTHER);
                        drop(activity.join());
                        assert_eq!(policy(0), libc::SCHED_IDLE);
                    })
                    .join()
                    .unwrap_or_else(|_| unreachable!("it asserts only"));
                activity.set_class(SchedulingClass::Ordinary);
                assert_eq!(policy(member.id()), libc::SCHED_OTHER);
                member.count_request(0);
                assert!(activity.wants_cpu(), "it runs just now");
            });
        });
        assert!(activity.is_without_threads());
        let monitor = LoadMonitor::default();
        std::thread::scope(|scope| {
            scope.spawn(|| monitor.run(std::iter::once(&activity)));
            monitor.wake();
            monitor.end();
        });
    }
}
