//! The activity of a queue: its serving threads, how many requests they get, and whether they run.

use super::class::{SchedulingClass, keep_io_priority};
use crate::metrics::add_alone;
use espalier_sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// A queue asks for the load monitor after so many requests.
const REQUESTS_PER_WAKE_UP: u64 = 64;

/// The threads of a queue, and what they do.
#[derive(Debug, Default)]
pub(in crate::transport) struct QueueActivity {
    /// Requests so far.
    requests: AtomicU64,
    /// Its threads are in `SCHED_IDLE`.
    idle: AtomicBool,
    /// The thread that served last. Of the threads that want the CPU it is the one to look at:
    /// requests go to the thread that became free last, so others work only while it waits for
    /// something else.
    last_server: AtomicI32,
    /// The thread that made the last request; 0 if this process cannot see it.
    last_client: AtomicI32,
    /// How often a request came from another thread than the one before it.
    client_changes: AtomicU64,
    threads: Mutex<QueueThreads>,
}

#[derive(Debug, Default)]
struct QueueThreads {
    ids: Vec<libc::pid_t>,
    class: SchedulingClass,
}

impl QueueActivity {
    /// The calling thread serves this queue until the result is dropped.
    pub(in crate::transport) fn join(&self) -> QueueMember<'_> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let mut threads = self.threads.lock();
        threads.ids.push(thread);
        threads.class.apply(0);
        keep_io_priority();
        QueueMember { activity: self, thread }
    }

    /// Whether the threads are in `SCHED_IDLE`, so that a client takes the CPU from them as soon as
    /// it is answered.
    pub(in crate::transport) fn is_idle_class(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    /// Requests that the queue was given so far.
    pub(in crate::transport) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How often a request came from another thread than the one before it, so far.
    pub(in crate::transport) fn client_changes(&self) -> u64 {
        self.client_changes.load(Ordering::Relaxed)
    }

    /// The CPU on which the thread that made the last request runs, or ran last.
    pub(in crate::transport) fn client_cpu(&self) -> Option<usize> {
        match self.last_client.load(Ordering::Relaxed) {
            client if client > 0 => cpu_of(&format!("/proc/{client}/stat")),
            _ => None,
        }
    }

    /// True if no thread serves the queue.
    #[cfg(test)]
    pub(super) fn is_without_threads(&self) -> bool {
        self.threads.lock().ids.is_empty()
    }

    /// Puts all threads of the queue into `class`.
    pub(super) fn set_class(&self, class: SchedulingClass) {
        let mut threads = self.threads.lock();
        threads.class = class;
        self.idle.store(class == SchedulingClass::Idle, Ordering::Relaxed);
        for &thread in &threads.ids {
            // Under the lock no thread ends, so no number means another thread.
            class.apply(thread);
        }
    }

    /// The thread that served last sleeps.
    pub(in crate::transport) fn is_server_asleep(&self) -> bool {
        self.is_server_runnable() == Some(false)
    }

    /// The thread that served last runs or waits for the CPU, and its client does not.
    pub(super) fn wants_cpu(&self) -> bool {
        // Without /proc this is unknown: an ordinary thread is better than one that starves unseen.
        self.is_server_runnable().unwrap_or(true) && !self.is_client_runnable()
    }

    /// The thread that served last waits for the CPU because its client computes.
    pub(super) fn is_preempted_by_client(&self) -> bool {
        self.is_server_runnable().unwrap_or(false) && self.is_client_runnable()
    }

    fn is_server_runnable(&self) -> Option<bool> {
        is_runnable(&format!("/proc/self/task/{}/stat", self.last_server.load(Ordering::Relaxed)))
    }

    fn is_client_runnable(&self) -> bool {
        match self.last_client.load(Ordering::Relaxed) {
            client if client > 0 => is_runnable(&format!("/proc/{client}/stat")).unwrap_or(false),
            _ => false,
        }
    }
}

/// Whether the thread whose proc(5) `stat` file this is runs or waits for a CPU.
fn is_runnable(stat: &str) -> Option<bool> {
    let stat = std::fs::read_to_string(stat).ok()?;
    // The name before the state may contain anything, parentheses too.
    stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('R'))
}

/// The CPU of the thread whose proc(5) `stat` file this is.
fn cpu_of(stat: &str) -> Option<usize> {
    const FIELDS_BEFORE: usize = 36;
    let stat = std::fs::read_to_string(stat).ok()?;
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(FIELDS_BEFORE)?.parse().ok()
}

/// A serving thread of a queue, until this is dropped.
pub(in crate::transport) struct QueueMember<'a> {
    activity: &'a QueueActivity,
    thread: libc::pid_t,
}

impl QueueMember<'_> {
    /// Its thread id.
    #[cfg(test)]
    pub(super) fn id(&self) -> libc::pid_t {
        self.thread
    }

    /// Counts a request of thread `client` that this thread is about to serve; true for every
    /// [`REQUESTS_PER_WAKE_UP`]th request of the queue, to wake the load monitor.
    pub(in crate::transport) fn count_request(&self, client: u32) -> bool {
        self.activity.last_server.store(self.thread, Ordering::Relaxed);
        let client = client.cast_signed();
        if client != 0 && self.activity.last_client.load(Ordering::Relaxed) != client {
            self.activity.last_client.store(client, Ordering::Relaxed);
            add_alone(&self.activity.client_changes, 1);
        }
        self.activity.requests.fetch_add(1, Ordering::Relaxed) % REQUESTS_PER_WAKE_UP
            == REQUESTS_PER_WAKE_UP - 1
    }
}

impl Drop for QueueMember<'_> {
    fn drop(&mut self) {
        self.activity.threads.lock().ids.retain(|&thread| thread != self.thread);
    }
}

/// True if more threads run, or wait to run, than there are CPUs. The calling thread does not
/// count, and neither do threads of `queues` that wait only because their clients compute.
pub(super) fn are_all_cpus_busy(queues: &[&QueueActivity]) -> bool {
    // Finding out reads a dozen files.
    static CPUS: OnceLock<usize> = OnceLock::new();
    let cpus = *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    let Ok(load) = std::fs::read_to_string("/proc/loadavg") else { return false };
    let Some(threads) = runnable_threads(&load).map(|threads| threads.saturating_sub(1)) else {
        return false;
    };
    let preempted =
        || queues.iter().filter(|queue| queue.is_idle_class() && queue.is_preempted_by_client()).count();
    threads > cpus && threads.saturating_sub(preempted()) > cpus
}

/// How many threads of the system run or wait to run, by /proc/loadavg.
fn runnable_threads(load: &str) -> Option<usize> {
    load.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_whose_client_computes_is_preempted_and_does_not_want_the_cpu() {
        let activity = QueueActivity::default();
        let member = activity.join();
        let itself = member.thread.cast_unsigned();
        member.count_request(itself);
        assert!(activity.is_preempted_by_client() && !activity.wants_cpu(), "the caller runs");
        let (ready, wait) = std::sync::mpsc::channel::<()>();
        let (send, sent) = std::sync::mpsc::channel();
        let asleep = std::thread::spawn(move || {
            let _ = send.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
            let _ = wait.recv();
        });
        let client = sent.recv().unwrap_or(0);
        // It may be on its way to sleep still.
        while is_runnable(&format!("/proc/{client}/stat")) == Some(true) {
            std::thread::yield_now();
        }
        member.count_request(client);
        assert!(activity.wants_cpu() && !activity.is_preempted_by_client(), "the caller waits");
        member.count_request(0);
        assert!(activity.wants_cpu() && !activity.is_preempted_by_client(), "this is unknown");
        drop(ready);
        let _ = asleep.join();
    }

    #[test]
    fn runnable_threads_are_read_from_the_load() {
        assert_eq!(runnable_threads("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(runnable_threads("0.20"), None);
    }
}
