//! Tracer: gives a line for each request to programs that ask for it.
//!
//! A trace is begun with a filter, read in parts, and ended; one that is not read for
//! [`TRACE_ABANDONED_AFTER`] ends by itself. Its events wait in a queue of bounded size. What comes
//! when the queue is full is lost, and the next part tells how much that was.
//!
//! While no trace is on, all that a request pays is one load.

use espalier_sync::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Traces at a time.
const MAX_TRACES: usize = 8;
/// Events that wait for one reader.
const MAX_EVENTS: usize = 1 << 14;
/// Bytes of paths that wait for one reader.
const MAX_PATH_BYTES: usize = 4 << 20;
/// A trace that was not read for so long is ended.
pub const TRACE_ABANDONED_AFTER: Duration = Duration::from_secs(10);
/// Threads of which a trace remembers whether they belong to the process that it is about.
const MAX_KNOWN_THREADS: usize = 1024;

/// Which requests a trace is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Those that took at least so long, in the queue and at work together.
    pub slow: Duration,
    /// Those of this process.
    pub pid: Option<u32>,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// When the server began with it, since the Unix epoch.
    pub begun: Duration,
    /// The kernel's name of its kind, in lower case.
    pub kind: &'static str,
    /// The thread that asked; 0 is the kernel.
    pub thread: u32,
    /// What it was about: a path, or for renames two.
    pub path: String,
    /// How long the serving thread had the request and waited for a CPU; `None`: unknown.
    pub queue: Option<Duration>,
    /// How long the server worked, waits for storage and for locks included.
    pub work: Duration,
    /// Bytes of data in request and answer.
    pub bytes: u64,
    /// The errno of the answer; 0: success.
    pub errno: i32,
}

/// Some events of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TracePart {
    /// In the order in which they ended.
    pub events: Vec<TraceEvent>,
    /// Events after these that found the queue full, since the last part.
    pub lost: u64,
    /// More events wait.
    pub more: bool,
}

/// The traces of a mount that are on, and what they have recorded.
#[derive(Default)]
pub struct Tracer {
    is_on: AtomicBool,
    traces: Mutex<Traces>,
}

struct Traces {
    last: u64,
    all: Vec<Trace>,
}

struct Trace {
    number: u64,
    filter: TraceFilter,
    events: VecDeque<TraceEvent>,
    path_bytes: usize,
    lost: u64,
    read: Instant,
    /// Whether these threads belong to the process that the filter names.
    threads: HashMap<u32, bool>,
}

impl Tracer {
    /// True while a trace is on.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Begins a trace; the result is its number. `None`: too many are on.
    pub fn begin(&self, filter: TraceFilter) -> Option<u64> {
        let mut traces = self.traces.lock();
        traces.drop_abandoned();
        if traces.all.len() >= MAX_TRACES {
            return None;
        }
        traces.last += 1;
        let number = traces.last;
        traces.all.push(Trace {
            number,
            filter,
            events: VecDeque::new(),
            path_bytes: 0,
            lost: 0,
            read: Instant::now(),
            threads: HashMap::new(),
        });
        self.is_on.store(true, Ordering::Relaxed);
        Some(number)
    }

    /// The oldest events of trace `number`: at least one if there is one, then as many as `fits`
    /// says yes to. `None`: there is no such trace.
    pub fn read(&self, number: u64, mut fits: impl FnMut(&TraceEvent) -> bool) -> Option<TracePart> {
        let mut traces = self.traces.lock();
        let trace = traces.all.iter_mut().find(|trace| trace.number == number)?;
        trace.read = Instant::now();
        let mut part = TracePart::default();
        while let Some(event) = trace.events.front() {
            let fit = fits(event);
            if !fit && !part.events.is_empty() {
                part.more = true;
                return Some(part);
            }
            trace.path_bytes -= event.path.len();
            part.events.extend(trace.events.pop_front());
        }
        part.lost = std::mem::take(&mut trace.lost);
        Some(part)
    }

    /// Ends trace `number`, if there is one.
    pub fn end(&self, number: u64) {
        let mut traces = self.traces.lock();
        traces.all.retain(|trace| trace.number != number);
        self.is_on.store(!traces.all.is_empty(), Ordering::Relaxed);
    }

    /// A request of `thread` has been served that took `total`; `event` describes it, if a trace
    /// wants it.
    pub(crate) fn add(&self, thread: u32, total: Duration, event: impl FnOnce() -> TraceEvent) {
        let mut traces = self.traces.lock();
        traces.drop_abandoned();
        self.is_on.store(!traces.all.is_empty(), Ordering::Relaxed);
        let wanted: Vec<usize> =
            (0..traces.all.len()).filter(|at| traces.all[*at].wants(thread, total)).collect();
        if wanted.is_empty() {
            return;
        }
        // Finding the path takes locks of the file system, and no other thread is to wait for that.
        drop(traces);
        let event = event();
        let mut traces = self.traces.lock();
        for trace in &mut traces.all {
            if trace.wants(thread, total) {
                trace.push(event.clone());
            }
        }
    }
}

impl Default for Traces {
    /// Numbers begin at random: a reader that asks a new server of the mount for a trace of the old
    /// one must not get another reader's.
    fn default() -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self { last: random >> 1, all: Vec::new() }
    }
}

impl Traces {
    fn drop_abandoned(&mut self) {
        if self.all.iter().any(|trace| trace.read.elapsed() > TRACE_ABANDONED_AFTER) {
            self.all.retain(|trace| trace.read.elapsed() <= TRACE_ABANDONED_AFTER);
        }
    }
}

impl Trace {
    fn wants(&mut self, thread: u32, total: Duration) -> bool {
        if total < self.filter.slow {
            return false;
        }
        let Some(pid) = self.filter.pid else { return true };
        if self.threads.len() >= MAX_KNOWN_THREADS {
            self.threads.clear();
        }
        let is_thread_of = || Path::new(&format!("/proc/{pid}/task/{thread}")).exists();
        thread == pid || *self.threads.entry(thread).or_insert_with(is_thread_of)
    }

    fn push(&mut self, event: TraceEvent) {
        let full = self.events.len() >= MAX_EVENTS || self.path_bytes + event.path.len() > MAX_PATH_BYTES;
        // What is lost comes after all that waits, so the reader can be told where it is missing.
        if full || self.lost > 0 {
            self.lost += 1;
        } else {
            self.path_bytes += event.path.len();
            self.events.push_back(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(thread: u32, path: &str) -> TraceEvent {
        TraceEvent {
            begun: Duration::ZERO,
            kind: "read",
            thread,
            path: path.into(),
            queue: None,
            work: Duration::from_millis(1),
            bytes: 0,
            errno: 0,
        }
    }

    fn paths(part: &TracePart) -> Vec<&str> {
        part.events.iter().map(|event| event.path.as_str()).collect()
    }

    #[test]
    fn a_trace_gets_what_it_asked_for() {
        let tracer = Tracer::default();
        assert!(!tracer.is_on());
        let all = tracer.begin(TraceFilter::default()).unwrap();
        let slow = tracer.begin(TraceFilter { slow: Duration::from_millis(9), pid: None }).unwrap();
        let own = std::process::id();
        let of_own = TraceFilter { slow: Duration::ZERO, pid: Some(own) };
        let of_own = tracer.begin(of_own).unwrap();
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(tracer.is_on());
        tracer.add(1 << 30, Duration::from_millis(8), || event(1 << 30, "/a"));
        tracer.add(thread, Duration::from_millis(10), || event(thread, "/b"));
        let first = tracer.read(all, |_| false).unwrap();
        assert_eq!((paths(&first), first.more), (vec!["/a"], true), "one at least");
        assert_eq!(paths(&tracer.read(all, |_| true).unwrap()), ["/b"]);
        assert_eq!(tracer.read(all, |_| true).unwrap(), TracePart::default());
        assert_eq!(paths(&tracer.read(slow, |_| true).unwrap()), ["/b"]);
        assert_eq!(paths(&tracer.read(of_own, |_| true).unwrap()), ["/b"]);
        [all, slow, of_own].into_iter().for_each(|trace| tracer.end(trace));
        assert!(!tracer.is_on());
        assert_eq!(tracer.read(all, |_| true), None);
    }

    #[test]
    fn what_finds_no_room_is_counted_and_told_after_what_was_there() {
        let tracer = Tracer::default();
        let trace = tracer.begin(TraceFilter::default()).unwrap();
        for at in 0..MAX_EVENTS + 5 {
            tracer.add(1, Duration::ZERO, || event(1, &at.to_string()));
        }
        let mut room = 10;
        let part = tracer
            .read(trace, |_| {
                room -= 1;
                room >= 0
            })
            .unwrap();
        assert_eq!((part.events.len(), part.lost, part.more), (10, 0, true));
        tracer.add(1, Duration::ZERO, || event(1, "after"));
        let rest = tracer.read(trace, |_| true).unwrap();
        assert_eq!((rest.events.len(), rest.lost, rest.more), (MAX_EVENTS - 10, 6, false));
        tracer.add(1, Duration::ZERO, || event(1, "again"));
        assert_eq!(paths(&tracer.read(trace, |_| true).unwrap()), ["again"]);
        // Long paths count by their bytes.
        let long = "x".repeat(MAX_PATH_BYTES / 2);
        (0..3).for_each(|_| tracer.add(1, Duration::ZERO, || event(1, &long)));
        assert_eq!(tracer.read(trace, |_| true).unwrap().lost, 1);
    }

    #[test]
    fn no_server_knows_a_trace_of_another_one() {
        let [old, new] = [Tracer::default(), Tracer::default()];
        let begin = |tracer: &Tracer| tracer.begin(TraceFilter::default()).unwrap();
        let (of_old, of_new) = (begin(&old), begin(&new));
        assert_ne!(of_old, of_new);
        assert_eq!(new.read(of_old, |_| true), None);
    }

    #[test]
    fn traces_are_few() {
        let tracer = Tracer::default();
        let begin = || tracer.begin(TraceFilter::default());
        let all: Vec<_> = (0..MAX_TRACES).filter_map(|_| begin()).collect();
        assert_eq!((all.len(), begin()), (MAX_TRACES, None));
        tracer.end(all[0]);
        assert!(begin().is_some());
    }
}
