//! Decides the scheduling class of a queue, tick by tick. Pure: no clock, no system call.

use super::class::SchedulingClass;

/// Requests within a tick that make a queue hot. With fewer, moving a client costs little.
const HOT_REQUESTS_PER_TICK: u64 = 8;
/// Requests within a tick that leave their CPU little time for anything else: 16,000 a second.
const BUSY_REQUESTS_PER_TICK: u64 = 64;
/// So many ticks after such a tick the CPU still counts as busy, so that background threads do not
/// move to and fro.
const BUSY_TICKS: u32 = 4;
/// With fewer requests within a tick a thread that wants the CPU may not get it.
const SLOW_REQUESTS_PER_TICK: u64 = 4;
/// So many such ticks in sequence are starvation.
const STARVED_TICKS: u32 = 2;
/// After so many ticks that are not hot the threads are ordinary again.
const COOL_TICKS: u32 = 2;
/// Ticks as an ordinary queue after starvation: at first, and at most (32 ms, and 16 s). The first
/// time the cause is most likely a piece of background work, which is over by then. While the
/// penalty lasts, clients move with every request.
const FIRST_PENALTY_TICKS: u32 = 8;
const MAX_PENALTY_TICKS: u32 = 4096;
/// After so many ticks in `SCHED_IDLE` without starvation the next penalty is as short as the
/// first.
const PENALTY_RESET_TICKS: u32 = 512;

/// The class of a queue, and its history as far as it matters for the next decision.
#[derive(Debug)]
pub(super) struct ClassPolicy {
    class: SchedulingClass,
    /// Requests so far, at the last tick.
    requests: u64,
    /// Ticks to go in which its CPU counts as busy: with little time for anything but requests.
    busy_ticks_left: u32,
    /// Ticks in `SCHED_IDLE` since the last starvation.
    idle_class_ticks: u32,
    /// Ticks in sequence that were not hot.
    cool_ticks: u32,
    /// Ticks in sequence that looked like starvation.
    starved_ticks: u32,
    /// Ticks to go as an ordinary queue after starvation.
    penalty_ticks_left: u32,
    /// Length of the next penalty.
    next_penalty_ticks: u32,
}

impl Default for ClassPolicy {
    fn default() -> Self {
        let class = SchedulingClass::Ordinary;
        let next_penalty_ticks = FIRST_PENALTY_TICKS;
        Self {
            class,
            requests: 0,
            busy_ticks_left: 0,
            idle_class_ticks: 0,
            cool_ticks: 0,
            starved_ticks: 0,
            penalty_ticks_left: 0,
            next_penalty_ticks,
        }
    }
}

impl ClassPolicy {
    /// The class that its threads should be in.
    pub(super) fn class(&self) -> SchedulingClass {
        self.class
    }

    /// Whether its CPU has little time for anything but requests.
    pub(super) fn is_busy(&self) -> bool {
        self.busy_ticks_left > 0
    }

    /// Ticks to go as an ordinary queue after starvation.
    pub(super) fn penalty_ticks_left(&self) -> u32 {
        self.penalty_ticks_left
    }

    /// Requests that came before now do not count for the next tick; `requests` have come in all.
    pub(super) fn skip(&mut self, requests: u64) {
        self.requests = requests;
    }

    /// A tick has passed, and `requests` have come in all. `unsuited` says whether its threads
    /// should be ordinary for another reason, `all_busy` whether every CPU has something to do,
    /// `wants_cpu` whether the thread that served last runs or waits for its CPU while its client
    /// does not.
    pub(super) fn tick(
        &mut self,
        requests: u64,
        unsuited: bool,
        all_busy: impl FnOnce() -> bool,
        wants_cpu: impl FnOnce() -> bool,
    ) {
        let new = requests.wrapping_sub(self.requests);
        self.requests = requests;
        self.busy_ticks_left =
            if new >= BUSY_REQUESTS_PER_TICK { BUSY_TICKS } else { self.busy_ticks_left.saturating_sub(1) };
        self.cool_ticks = if new >= HOT_REQUESTS_PER_TICK { 0 } else { self.cool_ticks.saturating_add(1) };
        self.penalty_ticks_left = self.penalty_ticks_left.saturating_sub(1);
        match self.class {
            SchedulingClass::Ordinary
                if self.cool_ticks == 0 && self.penalty_ticks_left == 0 && !unsuited && !all_busy() =>
            {
                self.class = SchedulingClass::Idle
            }
            SchedulingClass::Ordinary => {}
            SchedulingClass::Idle => {
                let slow = new < SLOW_REQUESTS_PER_TICK && wants_cpu();
                self.starved_ticks = if slow { self.starved_ticks + 1 } else { 0 };
                self.idle_class_ticks = self.idle_class_ticks.saturating_add(1);
                if self.idle_class_ticks >= PENALTY_RESET_TICKS {
                    self.next_penalty_ticks = FIRST_PENALTY_TICKS;
                }
                if unsuited {
                    self.class = SchedulingClass::Ordinary;
                    self.starved_ticks = 0;
                } else if self.starved_ticks >= STARVED_TICKS {
                    self.class = SchedulingClass::Ordinary;
                    self.penalty_ticks_left = self.next_penalty_ticks;
                    self.next_penalty_ticks = (self.next_penalty_ticks * 2).min(MAX_PENALTY_TICKS);
                    (self.idle_class_ticks, self.starved_ticks) = (0, 0);
                } else if self.cool_ticks >= COOL_TICKS {
                    self.class = SchedulingClass::Ordinary;
                    self.starved_ticks = 0;
                }
            }
        }
    }

    /// True while many requests come, unless the queue is ordinary because it starved.
    pub(super) fn is_hot(&self) -> bool {
        self.cool_ticks < COOL_TICKS && self.penalty_ticks_left == 0
    }

    /// True if nothing needs to be decided until requests come.
    pub(super) fn is_at_rest(&self) -> bool {
        self.class == SchedulingClass::Ordinary
            && self.cool_ticks >= COOL_TICKS
            && self.penalty_ticks_left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `ticks` pass with `each` requests in every one.
    fn pass(policy: &mut ClassPolicy, ticks: u32, each: u64, wants_cpu: bool) {
        for _ in 0..ticks {
            policy.tick(policy.requests + each, false, || false, || wants_cpu);
        }
    }

    #[test]
    fn hot_queues_are_idle_class_until_they_cool() {
        let mut policy = ClassPolicy::default();
        pass(&mut policy, 10, HOT_REQUESTS_PER_TICK - 1, true);
        assert_eq!(policy.class, SchedulingClass::Ordinary);
        assert!(policy.is_at_rest());
        pass(&mut policy, 1, HOT_REQUESTS_PER_TICK, true);
        assert_eq!(policy.class, SchedulingClass::Idle);
        // Busy with few long requests is no starvation as long as no thread wants the CPU.
        pass(&mut policy, COOL_TICKS - 1, 0, false);
        assert_eq!(policy.class, SchedulingClass::Idle);
        pass(&mut policy, 1, 0, false);
        assert_eq!(
            (policy.class, policy.is_at_rest(), policy.penalty_ticks_left),
            (SchedulingClass::Ordinary, true, 0)
        );
    }

    #[test]
    fn no_queue_enters_the_class_while_all_cpus_work() {
        let mut policy = ClassPolicy::default();
        for _ in 0..10 {
            policy.tick(policy.requests + HOT_REQUESTS_PER_TICK, false, || true, || true);
        }
        assert_eq!((policy.class, policy.is_at_rest()), (SchedulingClass::Ordinary, false));
        pass(&mut policy, 1, HOT_REQUESTS_PER_TICK, true);
        assert_eq!(policy.class, SchedulingClass::Idle);
    }

    #[test]
    fn starvation_ends_the_class_for_longer_each_time() {
        let mut policy = ClassPolicy::default();
        let mut penalty = FIRST_PENALTY_TICKS;
        for _ in 0..12 {
            pass(&mut policy, 1, HOT_REQUESTS_PER_TICK, true);
            assert_eq!(policy.class, SchedulingClass::Idle);
            pass(&mut policy, STARVED_TICKS - 1, SLOW_REQUESTS_PER_TICK - 1, true);
            assert_eq!(policy.class, SchedulingClass::Idle);
            pass(&mut policy, 1, 0, true);
            assert_eq!((policy.class, policy.penalty_ticks_left), (SchedulingClass::Ordinary, penalty));
            pass(&mut policy, penalty - 1, 1000, true);
            assert_eq!((policy.class, policy.is_at_rest()), (SchedulingClass::Ordinary, false));
            penalty = (penalty * 2).min(MAX_PENALTY_TICKS);
        }
        assert_eq!(penalty, MAX_PENALTY_TICKS);
        // After a while in the class the penalty is short again.
        pass(&mut policy, 1 + PENALTY_RESET_TICKS, HOT_REQUESTS_PER_TICK, true);
        pass(&mut policy, STARVED_TICKS, 0, true);
        assert_eq!(
            (policy.class, policy.penalty_ticks_left),
            (SchedulingClass::Ordinary, FIRST_PENALTY_TICKS)
        );
    }

    #[test]
    fn a_queue_whose_client_computes_does_not_starve() {
        let mut policy = ClassPolicy::default();
        for silent in [0, 1, SLOW_REQUESTS_PER_TICK - 1] {
            pass(&mut policy, 1, HOT_REQUESTS_PER_TICK, true);
            assert_eq!(policy.class, SchedulingClass::Idle);
            pass(&mut policy, COOL_TICKS, silent, false);
            assert_eq!(
                (policy.class, policy.penalty_ticks_left, policy.next_penalty_ticks),
                (SchedulingClass::Ordinary, 0, FIRST_PENALTY_TICKS)
            );
            pass(&mut policy, COOL_TICKS, silent, false);
            assert!(policy.is_at_rest());
        }
    }
}
