//! Keeping clients on their CPU: the scheduling class of the threads that serve.
//!
//! A request is served on the CPU on which it is made. But while the reply wakes the client, the
//! thread that sends it still runs there, so Linux looks for an idle CPU, finds one on most
//! machines, and moves the client with every single request: caches grow cold, and a CPU has to be
//! woken by an interrupt, which costs several times what the request does. A CPU that runs nothing
//! but `SCHED_IDLE` threads counts as idle, so a client whose server is one stays where it is.
//!
//! `SCHED_IDLE` threads, though, get next to no time from a CPU that others want. Therefore
//! [`Watch`] looks at every queue each [`WATCH_INTERVAL`], and a queue's threads are in that class
//! only while it is hot (many requests come) and not starved (no thread of it wants its CPU in
//! vain); starving, they are ordinary threads again, for a time that doubles whenever it happens
//! again. A queue at rest is ordinary, so that nothing has to be watched then, and so is one that
//! becomes hot while every CPU has something to do: then there is none to which a client would be
//! moved.
//!
//! In that class a thread need not sleep to leave the CPU to its client: as soon as the kernel has
//! its reply the client takes the CPU, and gives it back when it waits for the next one. A thread
//! that is only pushed aside has not to be put to sleep and woken with each request; so threads of
//! that class return from the kernel between reply and wait ([`Pulse::is_idle`]). While their
//! client computes they want the CPU and do not get it, which is no starvation: that is when the
//! client waits as well.
//!
//! Where a thread has no I/O priority of its own, Linux derives one from its scheduling class, and
//! what a `SCHED_IDLE` thread asks of a disk waits there until no other thread wants anything: an
//! fsync for as long as a background flush goes on writing. So serving threads get the priority of
//! ordinary threads explicitly, in whichever class they are.
//!
//! Leaving `SCHED_IDLE` takes CAP_SYS_NICE or an RLIMIT_NICE of 20: without, all this is off.

use super::Threads;
use super::affinity::{Affinity, Joined};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often queues are looked at while one of them is hot.
const WATCH_INTERVAL: Duration = Duration::from_millis(4);
/// Requests within a tick that make a queue hot. At fewer, moving costs little.
const HOT_REQUESTS_PER_TICK: u64 = 8;
/// Requests within a tick that leave their CPU little time for anything else: 16,000 a second.
const BUSY_REQUESTS_PER_TICK: u64 = 64;
/// So many ticks after such a one it still counts as that, lest background threads wander to and
/// fro.
const BUSY_TICKS: u32 = 4;
/// Fewer requests within a tick, while a thread wants the CPU, may mean that it does not get it.
const SLOW_REQUESTS_PER_TICK: u64 = 4;
/// So many such ticks in sequence are starvation.
const STARVED_TICKS: u32 = 2;
/// So many ticks that are not hot end the class.
const COOL_TICKS: u32 = 2;
/// Ticks as an ordinary thread after starvation: at first, and at most (32 ms, and 16 s). The first
/// time it was most likely a piece of background work, gone by then, and clients move with every
/// request as long as it lasts.
const FIRST_PENALTY_TICKS: u32 = 8;
const MAX_PENALTY_TICKS: u32 = 4096;
/// So many ticks in the class without starvation, and the next penalty is the first again.
const FORGIVEN_TICKS: u32 = 512;
/// A queue asks for the watch after so many requests.
const ASK_EVERY_REQUESTS: u64 = 64;

/// The class of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Class {
    /// `SCHED_OTHER`.
    #[default]
    Ordinary,
    /// `SCHED_IDLE`.
    Idle,
}

impl Class {
    /// Puts a thread (0: the calling one) into this class; false if that is not permitted, or the
    /// thread is gone.
    fn apply(self, thread: libc::pid_t) -> bool {
        let policy = match self {
            Self::Ordinary => libc::SCHED_OTHER,
            Self::Idle => libc::SCHED_IDLE,
        };
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: `parameters` is initialized and lives for the length of the call, which changes
        // no memory.
        unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) == 0 }
    }
}

/// Gives the calling thread the I/O priority that ordinary threads have, whatever its scheduling
/// class will be.
fn keep_io_priority() {
    const IOPRIO_OF_THREAD: libc::c_int = 1;
    // See `linux/ioprio.h`: the class "best effort", and what a nice value of 0 stands for in it.
    const IOPRIO_ORDINARY: libc::c_int = 2 << 13 | 4;
    // SAFETY: the call takes numbers only and changes no memory.
    if unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_OF_THREAD, 0, IOPRIO_ORDINARY) } != 0 {
        // Where a sandbox forbids it, fsync is slower beside background work.
        tracing::debug!("no I/O priority of its own: {}", std::io::Error::last_os_error());
    }
}

/// What is known of a queue: its threads, and how much they have served.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    served: AtomicU64,
    /// Its threads are in `SCHED_IDLE`.
    idle: AtomicBool,
    /// The thread that served last. Of the threads that want the CPU it is the one to look at:
    /// requests go to the thread that became free last, so others work only while it waits for
    /// something else.
    last: AtomicI32,
    /// The thread that asked last; 0 if this process cannot see it.
    asker: AtomicI32,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    threads: Vec<libc::pid_t>,
    class: Class,
}

impl Pulse {
    /// The calling thread serves this queue until the result is dropped.
    pub(super) fn join(&self) -> Membership<'_> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let mut members = self.members.lock();
        members.threads.push(thread);
        members.class.apply(0);
        keep_io_priority();
        Membership { pulse: self, thread }
    }

    /// Whether clients take the CPU from threads of this queue as soon as they are answered.
    pub(super) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    fn set(&self, class: Class) {
        let mut members = self.members.lock();
        members.class = class;
        self.idle.store(class == Class::Idle, Ordering::Relaxed);
        for &thread in &members.threads {
            // Under the lock no thread ends, so no number means another thread.
            class.apply(thread);
        }
    }

    /// The thread that served last runs or waits for the CPU, and its client does not.
    fn wants_cpu(&self) -> bool {
        // Without /proc this is unknown: better an ordinary thread than one that starves unseen.
        self.is_ready().unwrap_or(true) && !self.is_asker_ready()
    }

    /// The thread that served last wants the CPU, and so does its client.
    fn is_aside(&self) -> bool {
        self.is_ready().unwrap_or(false) && self.is_asker_ready()
    }

    fn is_ready(&self) -> Option<bool> {
        is_ready(&format!("/proc/self/task/{}/stat", self.last.load(Ordering::Relaxed)))
    }

    fn is_asker_ready(&self) -> bool {
        match self.asker.load(Ordering::Relaxed) {
            asker if asker > 0 => is_ready(&format!("/proc/{asker}/stat")).unwrap_or(false),
            _ => false,
        }
    }
}

/// Whether the thread of which this file tells runs or waits for a CPU.
fn is_ready(stat: &str) -> Option<bool> {
    let stat = std::fs::read_to_string(stat).ok()?;
    // The name before the state may contain anything, parentheses too.
    stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('R'))
}

/// A thread's place in a [`Pulse`].
pub(super) struct Membership<'a> {
    pulse: &'a Pulse,
    thread: libc::pid_t,
}

impl Membership<'_> {
    /// Counts a request of thread `asker` that this thread is about to serve; true every now and
    /// then, when the watch should be asked.
    pub(super) fn beat(&self, asker: u32) -> bool {
        self.pulse.last.store(self.thread, Ordering::Relaxed);
        self.pulse.asker.store(asker.cast_signed(), Ordering::Relaxed);
        self.pulse.served.fetch_add(1, Ordering::Relaxed) % ASK_EVERY_REQUESTS == ASK_EVERY_REQUESTS - 1
    }
}

impl Drop for Membership<'_> {
    fn drop(&mut self) {
        self.pulse.members.lock().threads.retain(|&thread| thread != self.thread);
    }
}

/// Chooses the class of each queue's threads, and tells background threads where they are in the
/// way.
#[derive(Debug, Default)]
pub(super) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
    affinity: Affinity,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is hot.
    #[default]
    Asleep,
    Awake,
    Ended,
}

impl Watch {
    /// `background` tells threads that keep off CPUs on which many requests come.
    pub(super) fn new(background: Option<Threads>) -> Self {
        Self { affinity: Affinity::new(background), ..Self::default() }
    }

    /// The calling thread, which serves no queue, keeps off such CPUs as well until the result is
    /// dropped.
    pub(super) fn join_affinity(&self) -> Joined<'_> {
        self.affinity.join()
    }

    /// A queue may be hot.
    pub(super) fn wake(&self) {
        // The lock is free but for moments; if it is not, there will be a next time.
        if let Some(mut state) = self.state.try_lock()
            && *state == State::Asleep
        {
            *state = State::Awake;
            self.changed.notify_one();
        }
    }

    /// Ends [`Watch::run`].
    pub(super) fn end(&self) {
        *self.state.lock() = State::Ended;
        self.changed.notify_one();
    }

    /// Watches until the end `pulses`, one for each CPU, in their order. Returns at once where
    /// threads cannot come back from `SCHED_IDLE`.
    pub(super) fn run<'a>(&self, pulses: impl Iterator<Item = &'a Pulse>) {
        if !may_come_back() {
            tracing::debug!("no right to leave SCHED_IDLE: clients may move between CPUs with every request");
            return;
        }
        let _affinity = self.join_affinity();
        let pulses: Vec<_> = pulses.collect();
        let mut queues: Vec<_> = pulses.iter().map(|pulse| (*pulse, Pace::default())).collect();
        let mut crowded = Vec::new();
        loop {
            let mut state = self.state.lock();
            while *state == State::Asleep {
                self.changed.wait(&mut state);
                // What came meanwhile did not come within a tick.
                queues
                    .iter_mut()
                    .for_each(|(pulse, pace)| pace.served = pulse.served.load(Ordering::Relaxed));
            }
            if *state == State::Awake {
                self.changed.wait_for(&mut state, WATCH_INTERVAL);
            }
            if *state == State::Ended {
                break;
            }
            let mut at_rest = true;
            drop(state);
            for (pulse, pace) in &mut queues {
                let (class, barred) = (pace.class, pace.barred);
                pace.tick(
                    pulse.served.load(Ordering::Relaxed),
                    || all_cpus_work(&pulses),
                    || pulse.wants_cpu(),
                );
                if pace.class != class {
                    pulse.set(pace.class);
                }
                if pace.barred > barred {
                    tracing::debug!(ticks = pace.barred, "a queue starved: its threads are ordinary ones");
                }
                at_rest &= pace.at_rest();
            }
            let before = std::mem::take(&mut crowded);
            crowded.extend((0..queues.len()).filter(|cpu| queues[*cpu].1.crowded > 0));
            if crowded != before {
                self.affinity.keep_off(&crowded);
            }
            if at_rest {
                let mut state = self.state.lock();
                if *state == State::Awake {
                    *state = State::Asleep;
                }
            }
        }
        self.affinity.keep_off(&[]);
        for (pulse, _) in queues {
            pulse.set(Class::Ordinary);
        }
    }
}

/// Whether this process may put threads into `SCHED_IDLE` and back; tried on a thread that ends
/// then.
fn may_come_back() -> bool {
    let there_and_back = || Class::Idle.apply(0) && Class::Ordinary.apply(0);
    let probe = std::thread::Builder::new().name("fuse-probe".into()).spawn(there_and_back);
    probe.is_ok_and(|probe| probe.join().unwrap_or(false))
}

/// True if more threads run, or wait to run, than there are CPUs, the calling one and those left
/// out that were pushed aside by their clients.
fn all_cpus_work(pulses: &[&Pulse]) -> bool {
    // Finding out takes a dozen files.
    static CPUS: OnceLock<usize> = OnceLock::new();
    let cpus = *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    let Ok(load) = std::fs::read_to_string("/proc/loadavg") else { return false };
    let Some(threads) = runnable(&load).map(|threads| threads.saturating_sub(1)) else { return false };
    let aside = || pulses.iter().filter(|pulse| pulse.is_idle() && pulse.is_aside()).count();
    threads > cpus && threads.saturating_sub(aside()) > cpus
}

/// How many threads of the system run or wait to run, by what /proc/loadavg says.
fn runnable(load: &str) -> Option<usize> {
    load.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// How a queue fared, tick by tick.
#[derive(Debug)]
struct Pace {
    class: Class,
    served: u64,
    /// Ticks to go in which its CPU counts as one that has little time for anything but requests.
    crowded: u32,
    /// Ticks in the class since the last starvation.
    well: u32,
    /// Ticks in sequence that were not hot.
    cool: u32,
    /// Ticks in sequence that looked like starvation.
    starved: u32,
    /// Ticks to go until the class is possible again.
    barred: u32,
    penalty: u32,
}

impl Default for Pace {
    fn default() -> Self {
        let class = Class::Ordinary;
        let penalty = FIRST_PENALTY_TICKS;
        Self { class, served: 0, crowded: 0, well: 0, cool: 0, starved: 0, barred: 0, penalty }
    }
}

impl Pace {
    /// A tick has passed, and `served` requests in all; `busy` tells whether every CPU has
    /// something to do, `wants_cpu` whether a thread runs or waits to.
    fn tick(&mut self, served: u64, busy: impl FnOnce() -> bool, wants_cpu: impl FnOnce() -> bool) {
        let new = served.wrapping_sub(self.served);
        self.served = served;
        self.crowded =
            if new >= BUSY_REQUESTS_PER_TICK { BUSY_TICKS } else { self.crowded.saturating_sub(1) };
        self.cool = if new >= HOT_REQUESTS_PER_TICK { 0 } else { self.cool.saturating_add(1) };
        self.barred = self.barred.saturating_sub(1);
        match self.class {
            Class::Ordinary if self.cool == 0 && self.barred == 0 && !busy() => self.class = Class::Idle,
            Class::Ordinary => {}
            Class::Idle => {
                let slow = new < SLOW_REQUESTS_PER_TICK && wants_cpu();
                self.starved = if slow { self.starved + 1 } else { 0 };
                self.well = self.well.saturating_add(1);
                if self.well >= FORGIVEN_TICKS {
                    self.penalty = FIRST_PENALTY_TICKS;
                }
                if self.starved >= STARVED_TICKS {
                    self.class = Class::Ordinary;
                    self.barred = self.penalty;
                    self.penalty = (self.penalty * 2).min(MAX_PENALTY_TICKS);
                    (self.well, self.starved) = (0, 0);
                } else if self.cool >= COOL_TICKS {
                    self.class = Class::Ordinary;
                    self.starved = 0;
                }
            }
        }
    }

    /// Nothing needs to be watched here until requests come.
    fn at_rest(&self) -> bool {
        self.class == Class::Ordinary && self.cool >= COOL_TICKS && self.barred == 0
    }
}

/// Starts a watch over `pulses`, ended by [`Watch::end`].
pub(super) fn spawn<Q: AsRef<Pulse> + Send + Sync + 'static>(
    shared: &Arc<super::Shared>,
    watch: &Arc<Watch>,
    queues: Vec<Arc<Q>>,
) -> std::io::Result<()> {
    let watch = Arc::clone(watch);
    shared.spawn("fuse-watch".into(), move |_| watch.run(queues.iter().map(|queue| (**queue).as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `ticks` pass with `each` requests in every one.
    fn pass(pace: &mut Pace, ticks: u32, each: u64, wants_cpu: bool) {
        for _ in 0..ticks {
            pace.tick(pace.served + each, || false, || wants_cpu);
        }
    }

    #[test]
    fn hot_queues_are_idle_class_until_they_cool() {
        let mut pace = Pace::default();
        pass(&mut pace, 10, HOT_REQUESTS_PER_TICK - 1, true);
        assert_eq!(pace.class, Class::Ordinary);
        assert!(pace.at_rest());
        pass(&mut pace, 1, HOT_REQUESTS_PER_TICK, true);
        assert_eq!(pace.class, Class::Idle);
        // Busy with few long requests is no starvation as long as no thread wants the CPU.
        pass(&mut pace, COOL_TICKS - 1, 0, false);
        assert_eq!(pace.class, Class::Idle);
        pass(&mut pace, 1, 0, false);
        assert_eq!((pace.class, pace.at_rest(), pace.barred), (Class::Ordinary, true, 0));
    }

    #[test]
    fn nobody_enters_the_class_while_all_cpus_work() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.tick(pace.served + HOT_REQUESTS_PER_TICK, || true, || true);
        }
        assert_eq!((pace.class, pace.at_rest()), (Class::Ordinary, false));
        pass(&mut pace, 1, HOT_REQUESTS_PER_TICK, true);
        assert_eq!(pace.class, Class::Idle);
        assert_eq!(runnable("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(runnable("0.20"), None);
    }

    #[test]
    fn starvation_ends_the_class_for_longer_each_time() {
        let mut pace = Pace::default();
        let mut penalty = FIRST_PENALTY_TICKS;
        for _ in 0..12 {
            pass(&mut pace, 1, HOT_REQUESTS_PER_TICK, true);
            assert_eq!(pace.class, Class::Idle);
            pass(&mut pace, STARVED_TICKS - 1, SLOW_REQUESTS_PER_TICK - 1, true);
            assert_eq!(pace.class, Class::Idle);
            pass(&mut pace, 1, 0, true);
            assert_eq!((pace.class, pace.barred), (Class::Ordinary, penalty));
            pass(&mut pace, penalty - 1, 1000, true);
            assert_eq!((pace.class, pace.at_rest()), (Class::Ordinary, false));
            penalty = (penalty * 2).min(MAX_PENALTY_TICKS);
        }
        assert_eq!(penalty, MAX_PENALTY_TICKS);
        // A good while in the class, and it is forgiven.
        pass(&mut pace, 1 + FORGIVEN_TICKS, HOT_REQUESTS_PER_TICK, true);
        pass(&mut pace, STARVED_TICKS, 0, true);
        assert_eq!((pace.class, pace.barred), (Class::Ordinary, FIRST_PENALTY_TICKS));
    }

    #[test]
    fn who_is_pushed_aside_by_a_client_that_computes_does_not_starve() {
        let mut pace = Pace::default();
        for silent in [0, 1, SLOW_REQUESTS_PER_TICK - 1] {
            pass(&mut pace, 1, HOT_REQUESTS_PER_TICK, true);
            assert_eq!(pace.class, Class::Idle);
            pass(&mut pace, COOL_TICKS, silent, false);
            assert_eq!((pace.class, pace.barred, pace.penalty), (Class::Ordinary, 0, FIRST_PENALTY_TICKS));
            pass(&mut pace, COOL_TICKS, silent, false);
            assert!(pace.at_rest());
        }
        let pulse = Pulse::default();
        let member = pulse.join();
        let itself = member.thread.cast_unsigned();
        member.beat(itself);
        assert!(pulse.is_aside() && !pulse.wants_cpu(), "the caller runs");
        let (ready, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let asleep = std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
            let _ = wait.recv();
        });
        let asker = told.recv().unwrap_or(0);
        // It may be on its way to sleep still.
        while is_ready(&format!("/proc/{asker}/stat")) == Some(true) {
            std::thread::yield_now();
        }
        member.beat(asker);
        assert!(pulse.wants_cpu() && !pulse.is_aside(), "the caller waits");
        member.beat(0);
        assert!(pulse.wants_cpu() && !pulse.is_aside(), "this is unknown");
        drop(ready);
        let _ = asleep.join();
    }

    #[test]
    fn a_watch_changes_the_class_of_those_who_serve_and_leaves_none_behind() {
        let policy = |thread| {
            // SAFETY: the call only reads, and takes no pointer.
            unsafe { libc::sched_getscheduler(thread) }
        };
        let io_class = |thread: libc::pid_t| {
            // SAFETY: the call only reads, and takes no pointer.
            unsafe { libc::syscall(libc::SYS_ioprio_get, 1, thread) >> 13 }
        };
        let pulse = Pulse::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if !may_come_back() {
                    return;
                }
                let member = pulse.join();
                pulse.set(Class::Idle);
                assert_eq!(policy(member.thread), libc::SCHED_IDLE);
                assert_eq!(io_class(member.thread), 2, "what it asks of a disk is no less urgent");
                // A new member takes the class of the queue.
                scope
                    .spawn(|| {
                        Class::Ordinary.apply(0);
                        assert_eq!(policy(0), libc::SCHED_OTHER);
                        drop(pulse.join());
                        assert_eq!(policy(0), libc::SCHED_IDLE);
                    })
                    .join()
                    .unwrap_or_else(|_| unreachable!("it asserts only"));
                pulse.set(Class::Ordinary);
                assert_eq!(policy(member.thread), libc::SCHED_OTHER);
                member.beat(0);
                assert!(pulse.wants_cpu(), "it runs just now");
            });
        });
        assert!(pulse.members.lock().threads.is_empty());
        let watch = Watch::default();
        std::thread::scope(|scope| {
            scope.spawn(|| watch.run(std::iter::once(&pulse)));
            watch.wake();
            watch.end();
        });
    }
}
