//! The load monitor: looks at every queue each tick.

use super::activity::{QueueActivity, are_all_cpus_busy};
use super::class::{SchedulingClass, may_leave_idle_class};
use super::class_policy::ClassPolicy;
use crate::transport::affinity::{BackgroundAffinity, BackgroundMember};
use crate::transport::config::ThreadLister;
use espalier_sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How often queues are looked at while one of them is hot.
const TICK: Duration = Duration::from_millis(4);

/// A queue as the load monitor sees it.
pub(in crate::transport) trait MonitoredQueue: Sync {
    /// Its threads and what they do.
    fn activity(&self) -> &QueueActivity;

    /// The CPU on which its threads serve, if it is one.
    fn cpu(&self) -> Option<usize>;

    /// Between two ticks: its thread asks for a look at where its client is.
    fn look(&self) {}

    /// A tick has passed: whether its threads should be ordinary, whatever its load.
    fn is_unsuited(&self) -> bool {
        false
    }

    /// Its threads are in the class that was chosen for them after a tick. `is_hot`: many requests
    /// come, and there was no reason against that class but that every CPU has something to do.
    fn adapted(&self, _is_hot: bool) {}
}

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

    /// Has the monitor look where clients are, before the next tick. A serving thread does not look
    /// itself: proc(5) may keep it waiting for its client, which waits for its answer.
    pub(in crate::transport) fn look_soon(&self) {
        if let Some(state) = self.state.try_lock()
            && *state == MonitorState::Awake
        {
            self.changed.notify_one();
        }
    }

    /// Ends [`LoadMonitor::run`].
    pub(in crate::transport) fn end(&self) {
        *self.state.lock() = MonitorState::Ended;
        self.changed.notify_one();
    }

    /// Monitors `queues` until it is ended. Returns at once where threads may not leave
    /// `SCHED_IDLE`.
    pub(in crate::transport) fn run(&self, queues: &[&dyn MonitoredQueue]) {
        if !may_leave_idle_class() {
            tracing::debug!("no right to leave SCHED_IDLE: clients may move between CPUs with every request");
            return;
        }
        let _background = self.join_background();
        let activities: Vec<_> = queues.iter().map(|queue| queue.activity()).collect();
        let mut policies: Vec<_> = queues.iter().map(|_| ClassPolicy::default()).collect();
        let mut busy = Vec::new();
        while self.wait_for_tick(queues, &activities, &mut policies) {
            for (queue, policy) in queues.iter().zip(&mut policies) {
                adapt(*queue, policy, || are_all_cpus_busy(&activities));
            }
            let before = std::mem::take(&mut busy);
            let are_busy = queues.iter().zip(&policies).filter(|(_, policy)| policy.is_busy());
            busy.extend(are_busy.filter_map(|(queue, _)| queue.cpu()));
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
        for activity in activities {
            activity.set_class(SchedulingClass::Ordinary);
        }
    }

    /// Returns when a tick has passed in which some queue may be hot; false at the end.
    fn wait_for_tick(
        &self,
        queues: &[&dyn MonitoredQueue],
        activities: &[&QueueActivity],
        policies: &mut [ClassPolicy],
    ) -> bool {
        let mut state = self.state.lock();
        while *state == MonitorState::Asleep {
            self.changed.wait(&mut state);
            // What came meanwhile did not come within a tick.
            activities.iter().zip(&mut *policies).for_each(|(queue, policy)| policy.skip(queue.requests()));
        }
        let tick = Instant::now() + TICK;
        while *state == MonitorState::Awake && !self.changed.wait_until(&mut state, tick).timed_out() {
            MutexGuard::unlocked(&mut state, || queues.iter().for_each(|queue| queue.look()));
        }
        *state != MonitorState::Ended
    }
}

/// Puts the threads of a queue into the class that its policy chooses after a tick.
fn adapt(queue: &dyn MonitoredQueue, policy: &mut ClassPolicy, all_busy: impl FnOnce() -> bool) {
    let (class, penalty) = (policy.class(), policy.penalty_ticks_left());
    let activity = queue.activity();
    let unsuited = queue.is_unsuited();
    policy.tick(activity.requests(), unsuited, all_busy, || activity.wants_cpu());
    if policy.class() != class {
        activity.set_class(policy.class());
    }
    queue.adapted(policy.is_hot() && !unsuited);
    let ticks = policy.penalty_ticks_left();
    if ticks > penalty {
        tracing::debug!(ticks, "a queue starved: its threads are ordinary ones");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Alone<'a>(&'a QueueActivity);

    impl MonitoredQueue for Alone<'_> {
        fn activity(&self) -> &QueueActivity {
            self.0
        }

        fn cpu(&self) -> Option<usize> {
            Some(0)
        }
    }

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
            scope.spawn(|| monitor.run(&[&Alone(&activity)]));
            monitor.wake();
            monitor.end();
        });
    }
}
