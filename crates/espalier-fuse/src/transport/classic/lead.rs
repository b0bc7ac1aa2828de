//! One thread leads: it alone reads requests, on the CPU on which its client runs.
//!
//! The kernel gives a request to the thread that has waited longest. With a waiting thread on each
//! CPU most requests of one client wake another CPU, which costs several times what the request
//! does. So while many requests come, mostly of one client after the other, one thread reads them,
//! and the others rest. Which one that is does not matter: whichever is left. Its scheduling class
//! is chosen as for a queue of io_uring (`scheduling_class`).
//!
//! The kernel moves the client to another CPU now and then, always when a thread in the background
//! was woken; from there each of its requests takes several times as long. On one CPU with its
//! client the leader never waits for a request: the client, which took the CPU from it, makes the
//! next one before it has come back to read. So a leader that sleeps between requests has the load
//! monitor look where its client is, and follows it there; the monitor looks each tick as well.
//!
//! While the leader serves, no thread reads. So none leads when clients take turns, or when the
//! leader sleeps in its requests: then a thread of every CPU reads, and a spare one if all are
//! busy. A request that waits because the leader sleeps waits for two ticks of the load monitor at
//! most.

use crate::transport::scheduling_class::QueueActivity;
use espalier_sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// If more than one request of so many comes from another client than the one before it, clients
/// take turns.
const REQUESTS_PER_CLIENT: u64 = 4;
/// Ticks in sequence in which the leader was found asleep in a request; it waits for storage.
const ASLEEP_TICKS: u32 = 2;
/// So many ticks no thread leads after one should not have.
const PENALTY_TICKS: u32 = 16;

/// No CPU.
const NONE: usize = usize::MAX;

/// How often the leader is asked whether it sleeps between requests, and how many of so many
/// requests it must have slept before.
const REQUESTS_PER_LOOK: u32 = 4;
const SLEEPS_PER_LOOK: i64 = 3;

/// Whether a thread leads, and on which CPU.
#[derive(Debug)]
pub(super) struct Lead {
    leads: AtomicBool,
    /// Where the client was seen last.
    cpu: AtomicUsize,
    policy: Mutex<LeadPolicy>,
}

/// Decides tick by tick whether one thread may not lead. Pure: no clock, no system call.
#[derive(Debug, Default)]
struct LeadPolicy {
    requests: u64,
    client_changes: u64,
    asleep_ticks: u32,
    penalty_ticks_left: u32,
}

impl Lead {
    /// No thread leads.
    pub(super) fn none() -> Self {
        Self { leads: AtomicBool::new(false), cpu: AtomicUsize::new(NONE), policy: Mutex::default() }
    }

    /// Whether a thread leads.
    pub(super) fn is_on(&self) -> bool {
        // Against the count of waiting threads: see `ThreadPool::adapted`.
        self.leads.load(Ordering::SeqCst)
    }

    /// From now on a thread leads, or none does; true if that ends a lead.
    pub(super) fn set(&self, on: bool) -> bool {
        self.leads.swap(on, Ordering::SeqCst) && !on
    }

    /// Where the client was seen last, if it was.
    pub(super) fn cpu(&self) -> Option<usize> {
        Some(self.cpu.load(Ordering::Relaxed)).filter(|cpu| *cpu != NONE)
    }

    /// Looks where the client of `activity` runs.
    pub(super) fn look(&self, activity: &QueueActivity) {
        if let Some(cpu) = activity.client_cpu() {
            self.cpu.store(cpu, Ordering::Relaxed);
        }
    }

    /// A tick has passed: whether no thread may lead. `in_request` says whether all threads that
    /// read serve requests.
    pub(super) fn is_unsuited(&self, activity: &QueueActivity, in_request: impl Fn() -> bool) -> bool {
        let asleep = || self.is_on() && sleeps_in_a_request(activity, in_request);
        self.policy.lock().tick(activity.requests(), activity.client_changes(), asleep)
    }
}

/// Whether the thread that served last sleeps in its request. To find its state takes longer than
/// most requests, so it counts only if it has not begun another one, or waited for one, meanwhile.
fn sleeps_in_a_request(activity: &QueueActivity, in_request: impl Fn() -> bool) -> bool {
    let requests = activity.requests();
    in_request() && activity.is_server_asleep() && in_request() && activity.requests() == requests
}

/// Counts how often the calling thread sleeps between requests.
#[derive(Debug, Default)]
pub(super) struct Sleeps {
    requests: u32,
    before: i64,
}

impl Sleeps {
    /// The calling thread has got a request: whether it has slept before most of the last ones.
    pub(super) fn are_frequent(&mut self) -> bool {
        self.requests += 1;
        if self.requests < REQUESTS_PER_LOOK {
            return false;
        }
        let sleeps = voluntary_switches();
        let new = sleeps - self.before;
        *self = Self { requests: 0, before: sleeps };
        new >= SLEEPS_PER_LOOK
    }
}

/// How often the calling thread has left its CPU to wait for something.
fn voluntary_switches() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in a structure of that size; zeros are one, too.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}

impl LeadPolicy {
    /// A tick has passed; `requests` have come in all, with `client_changes` from one client to
    /// another. `asleep` says whether the leader sleeps in a request. True if none may lead.
    fn tick(&mut self, requests: u64, client_changes: u64, asleep: impl FnOnce() -> bool) -> bool {
        let new = requests.wrapping_sub(self.requests);
        let changes = client_changes.wrapping_sub(self.client_changes);
        (self.requests, self.client_changes) = (requests, client_changes);
        if self.penalty_ticks_left > 0 {
            self.penalty_ticks_left -= 1;
            return true;
        }
        self.asleep_ticks = if asleep() { self.asleep_ticks + 1 } else { 0 };
        let sleeps = self.asleep_ticks >= ASLEEP_TICKS || (self.asleep_ticks > 0 && new == 0);
        let unsuited = sleeps || changes * REQUESTS_PER_CLIENT > new;
        if unsuited {
            (self.penalty_ticks_left, self.asleep_ticks) = (PENALTY_TICKS, 0);
        }
        unsuited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_leads_for_clients_that_come_after_each_other() {
        let mut policy = LeadPolicy::default();
        assert!(!policy.tick(100, 1, || false));
        assert!(!policy.tick(200, 1, || false));
        assert!(!policy.tick(300, 26, || false), "a client for four requests");
        assert!(policy.tick(400, 52, || false), "they take turns");
        for tick in 0..PENALTY_TICKS {
            assert!(policy.tick(500 + u64::from(tick), 52, || false));
        }
        assert!(!policy.tick(600, 52, || false));
        assert!(!policy.tick(600, 52, || false), "nothing came");
    }

    #[test]
    fn none_leads_that_sleeps_in_its_requests() {
        let mut policy = LeadPolicy::default();
        assert!(!policy.tick(100, 1, || true), "once is chance");
        assert!(!policy.tick(200, 1, || false));
        assert!(!policy.tick(300, 1, || true));
        assert!(policy.tick(400, 1, || true));
        (0..PENALTY_TICKS).for_each(|_| assert!(policy.tick(400, 1, || true)));
        assert!(policy.tick(400, 1, || true), "it slept through a tick");
    }

    #[test]
    fn a_leader_that_went_on_while_it_was_looked_at_did_not_sleep() {
        let activity = QueueActivity::default();
        let (ready, wait) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let activity = &activity;
            scope.spawn(move || {
                let member = activity.join();
                member.count_request(0);
                let _ = begun.send(());
                let _ = wait.recv();
            });
            let _ = has_begun.recv();
            // It may be on its way to sleep still.
            while !activity.is_server_asleep() {
                std::thread::yield_now();
            }
            let asked = std::cell::Cell::new(0);
            let serves_until = |last: u32| {
                asked.set(0);
                sleeps_in_a_request(activity, || {
                    asked.set(asked.get() + 1);
                    asked.get() <= last
                })
            };
            let found = [serves_until(2), serves_until(1), serves_until(0)];
            let member = activity.join();
            let next = sleeps_in_a_request(activity, || {
                member.count_request(0);
                true
            });
            drop(ready);
            assert_eq!((found, next), ([true, false, false], false));
        });
    }

    #[test]
    fn sleeps_between_requests_are_noticed() {
        // A thread of its own: how often others have slept does not count.
        let count = || {
            let mut sleeps = Sleeps::default();
            let pause = || std::thread::sleep(std::time::Duration::from_micros(1));
            let mut ask = |pauses: u32| {
                let mut last = false;
                for request in 0..REQUESTS_PER_LOOK {
                    (request < pauses).then(pause);
                    last = sleeps.are_frequent();
                    assert!(!last || request == REQUESTS_PER_LOOK - 1);
                }
                last
            };
            ask(0);
            [ask(0), ask(REQUESTS_PER_LOOK), ask(REQUESTS_PER_LOOK - 2)]
        };
        let found = std::thread::spawn(count).join().unwrap_or_else(|_| unreachable!("it asserts only"));
        assert_eq!(found, [false, true, false]);
    }

    #[test]
    fn the_leader_finds_its_client() {
        let (lead, activity) = (Lead::none(), QueueActivity::default());
        let member = activity.join();
        assert_eq!((lead.is_on(), lead.cpu()), (false, None));
        let cpus = crate::transport::cpu::allowed();
        let client = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        member.count_request(client);
        lead.look(&activity);
        assert!(lead.cpu().is_some_and(|cpu| cpus.contains(&cpu)));
        assert!(!lead.set(true) && lead.is_on() && lead.set(false));
        assert!(!lead.is_on() && !lead.set(false));
    }
}
