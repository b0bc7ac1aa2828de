//! Answers requests early when their caller was killed while the file system serves them.
//!
//! The kernel does not let a caller leave a request that is being served before there is an answer,
//! so a caller that is killed meanwhile stays until then: for ever, if the device does not respond.
//! But a server may answer early. Here it does so for callers that were killed, and for no others:
//! a program that merely catches a signal must not see `EINTR` from calls that no other file system
//! interrupts.
//!
//! The invariant: a request is answered once. What is needed to answer it lies in the [`Pending`]
//! of the thread that serves it, and the thread that takes it from there answers. A serving thread
//! whose request another thread has answered finds the place empty when it is done, gives back what
//! its answer would have handed out ([`Handler::unanswered`]) and sends nothing.
//!
//! Nothing is changed for a caller that has been answered early: the change would take effect late,
//! perhaps after newer changes that were acknowledged, for the kernel keeps other callers from the
//! same file only until there is an answer. So the file system asks right before a change takes its
//! place in the order of changes, when it waits for nothing any more ([`is_wanted`]). And once it
//! was told to go on, the request gets its true answer and no other, because the kernel remembers
//! that ([`tells_of_changes`]); the file system waits for nothing after the change.
//!
//! The kernel sends an INTERRUPT when a caller gets a signal. That is not enough: it sends one for
//! the first signal only, which need not be a deadly one; it sends none for a caller that waits for
//! direct I/O; and all threads that might read it may be busy. So while requests are served, a
//! thread checks every [`CHECK_INTERVAL`] whether their callers live, and INTERRUPTs are ignored.
//!
//! [`Handler::unanswered`]: super::Handler::unanswered
//! [`tells_of_changes`]: crate::protocol::request::tells_of_changes

use super::Shared;
use parking_lot::{Condvar, Mutex};
use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often callers are checked: those of requests that are still served after one to two of
/// these.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// So many threads may serve what was answered in their place; each has a stack and a buffer.
const MAX_ABANDONED_REQUESTS: usize = 1024;

/// A request and its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) unique: u64,
    /// The thread that waits for the answer; 0 if that is the kernel, or no thread does.
    pub(super) thread: u32,
    /// Once something was changed the kernel must have the true answer.
    pub(super) tells: bool,
    /// The answer to a killed caller; only the kernel sees it.
    pub(super) errno: i32,
}

/// The request that a thread serves, if any, and what it takes to answer it.
#[derive(Debug)]
pub(super) struct Pending<A>(Mutex<Place<A>>);

#[derive(Debug)]
enum Place<A> {
    /// Nothing is served.
    Idle,
    /// A request is served, and other threads can answer it.
    Open(Asked, A),
    /// A request is served, and gets the answer of the thread that serves it.
    Decided(A),
    /// A request is served that another thread has answered.
    Taken,
}

impl<A> Pending<A> {
    /// Nothing is served.
    pub(super) fn none() -> Self {
        Self(Mutex::new(Place::Idle))
    }

    /// From now on `asked` is served, and can be answered by others with `answer`.
    pub(super) fn begin(&self, asked: Asked, answer: A) {
        *self.0.lock() = Place::Open(asked, answer);
    }

    /// It is served. `None`: another thread has answered.
    pub(super) fn finish(&self) -> Option<A> {
        match std::mem::replace(&mut *self.0.lock(), Place::Idle) {
            Place::Open(_, answer) | Place::Decided(answer) => Some(answer),
            Place::Idle | Place::Taken => None,
        }
    }

    /// What is served, if others may answer it.
    pub(super) fn asked(&self) -> Option<Asked> {
        match &*self.0.lock() {
            Place::Open(asked, _) => Some(*asked),
            _ => None,
        }
    }

    /// Something is about to be changed for the request that is served: false if that was given up.
    pub(super) fn decide(&self) -> bool {
        let mut place = self.0.lock();
        *place = match std::mem::replace(&mut *place, Place::Idle) {
            Place::Open(asked, answer) if asked.tells => Place::Decided(answer),
            same => same,
        };
        !matches!(*place, Place::Taken)
    }

    /// False if what is served was given up.
    pub(super) fn is_open(&self) -> bool {
        !matches!(*self.0.lock(), Place::Taken)
    }

    /// Takes what is needed to answer request `unique` from the thread that serves it, unless that
    /// is done or no other thread may answer any more. `prepare` comes first; if it fails nothing
    /// is taken.
    pub(super) fn take<T>(
        &self,
        unique: u64,
        prepare: impl FnOnce(&mut A) -> io::Result<T>,
    ) -> io::Result<Option<(A, T)>> {
        let mut place = self.0.lock();
        let prepared = match &mut *place {
            Place::Open(asked, answer) if asked.unique == unique => prepare(answer)?,
            _ => return Ok(None),
        };
        match std::mem::replace(&mut *place, Place::Taken) {
            Place::Open(_, answer) => Ok(Some((answer, prepared))),
            _ => unreachable!("it was open a moment ago, under the same lock"),
        }
    }
}

/// A place where requests are served.
pub(super) trait Seat: Send + Sync {
    /// What is served there now, if others may answer it.
    fn asked(&self) -> Option<Asked>;

    /// As [`Pending::decide`].
    fn decide(&self) -> bool;

    /// As [`Pending::is_open`].
    fn is_open(&self) -> bool;

    /// How many threads serve the same requests: those of a CPU, or of the device.
    fn threads(&self) -> usize;

    /// Answers `asked` with an error if it is still served, and otherwise calls
    /// [`Callers::settle`]. It need not have happened when this returns.
    fn interrupt(self: Arc<Self>, shared: &Arc<Shared>, asked: Asked) -> io::Result<()>;
}

thread_local! {
    /// Where the calling thread serves.
    static SEAT: RefCell<Option<Arc<dyn Seat>>> = const { RefCell::new(None) };
}

/// While it lives the calling thread serves at a seat; afterwards where it did before.
pub(super) struct Sitting(Option<Arc<dyn Seat>>);

impl Sitting {
    /// The calling thread serves at `seat`.
    pub(super) fn at<S: Seat + 'static>(seat: &Arc<S>) -> Self {
        let seat: Arc<S> = Arc::clone(seat);
        Self(SEAT.replace(Some(seat)))
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        SEAT.set(self.0.take());
    }
}

/// Whether the request that the calling thread serves, if it serves one, is still waited for. To be
/// asked right before something is changed for it: what comes after a yes must not wait for
/// anything before it is answered.
pub fn is_wanted() -> bool {
    SEAT.with_borrow(|seat| seat.as_ref().is_none_or(|seat| seat.decide()))
}

/// The same without a change that the caller must hear of: the caller may give up afterwards.
pub fn is_waited_for() -> bool {
    SEAT.with_borrow(|seat| seat.as_ref().is_none_or(|seat| seat.is_open()))
}

/// How many threads serve the requests that the calling thread could be given; 0 if it serves none.
pub(crate) fn serving_threads() -> usize {
    SEAT.with_borrow(|seat| seat.as_ref().map_or(0, |seat| seat.threads()))
}

/// The callers that wait, and the thread that checks whether they live.
#[derive(Default)]
pub(super) struct Callers {
    seats: Mutex<Vec<Weak<dyn Seat>>>,
    /// Callers are checked every tick.
    awake: AtomicBool,
    ended: Mutex<bool>,
    changed: Condvar,
    /// Requests that are served still, and were answered.
    abandoned: AtomicUsize,
    /// Requests that could not be answered when that was tried.
    failed: Mutex<Vec<u64>>,
}

/// A request that was served at a check, and whether an early answer was requested.
type Seen = (u64, bool);

impl Callers {
    /// Requests are served at `seat` from now on, until it is dropped.
    pub(super) fn enter<S: Seat + 'static>(&self, seat: &Arc<S>) {
        let mut seats = self.seats.lock();
        seats.retain(|seat| seat.strong_count() > 0);
        let seat: Weak<S> = Arc::downgrade(seat);
        seats.push(seat);
    }

    /// To be called after [`Pending::begin`].
    pub(super) fn begun(&self) {
        // Against the fence in `look`: either the request is seen there, or here that no check is
        // due.
        fence(Ordering::SeqCst);
        if !self.awake.load(Ordering::Relaxed) {
            self.awake.store(true, Ordering::Relaxed);
            // The lock orders this after a thread that is about to wait.
            drop(self.ended.lock());
            self.changed.notify_all();
        }
    }

    /// Counts a request that is to be answered before it is served; false if there are too many.
    fn count(&self) -> bool {
        let more = |count| (count < MAX_ABANDONED_REQUESTS).then_some(count + 1);
        self.abandoned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Such a request is served at last, or was served before it could be answered.
    pub(super) fn settle(&self) {
        self.abandoned.fetch_sub(1, Ordering::Relaxed);
    }

    /// Answering request `unique` failed: it is to be tried again.
    pub(super) fn failed(&self, unique: u64) {
        self.failed.lock().push(unique);
        self.settle();
    }

    /// The connection has ended.
    pub(super) fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
    }

    /// Checks callers until the end.
    pub(super) fn run(&self, shared: &Arc<Shared>) {
        if !sees_callers() {
            tracing::info!(
                "/proc shows other processes than the mount: a caller that is killed waits until its call is served"
            );
            return;
        }
        let mut before = Vec::new();
        let mut ended = self.ended.lock();
        while !*ended {
            if self.awake.load(Ordering::Relaxed) {
                drop(ended);
                before = self.look(shared, &before);
                ended = self.ended.lock();
                // A request that begins now is seen at the next tick.
                self.changed.wait_while_for(&mut ended, |ended| !*ended, CHECK_INTERVAL);
            } else {
                self.changed.wait(&mut ended);
            }
        }
    }

    /// Answers the killed callers among those that are served now and were served `before`, and
    /// returns what is served now.
    fn look(&self, shared: &Arc<Shared>, before: &[Seen]) -> Vec<Seen> {
        self.awake.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seats: Vec<_> = self.seats.lock().iter().filter_map(Weak::upgrade).collect();
        let failed = std::mem::take(&mut *self.failed.lock());
        let before: Vec<_> =
            before.iter().map(|(unique, done)| (*unique, *done && !failed.contains(unique))).collect();
        let served = seats.iter().filter_map(|seat| Some((seat, seat.asked()?)));
        let now: Vec<_> =
            served.map(|(seat, asked)| (asked.unique, self.attend(shared, seat, asked, &before))).collect();
        if !now.is_empty() {
            self.awake.store(true, Ordering::Relaxed);
        }
        now
    }

    /// Has a request answered if it was served `before` and its caller was killed since; true if it
    /// once has.
    fn attend(&self, shared: &Arc<Shared>, seat: &Arc<dyn Seat>, asked: Asked, before: &[Seen]) -> bool {
        let Some((_, done)) = before.iter().find(|(unique, _)| *unique == asked.unique) else { return false };
        if *done || !is_dying(asked.thread) {
            return *done;
        }
        if !self.count() {
            tracing::debug!("too many calls of programs that were killed are being served");
            return false;
        }
        tracing::debug!(unique = asked.unique, thread = asked.thread, "was killed while it waited");
        let asked = Arc::clone(seat).interrupt(shared, asked);
        asked
            .inspect_err(|error| tracing::debug!(%error, "a program that was killed has to wait for a while"))
            .is_ok()
    }
}

/// True if the numbers of threads in requests are those that /proc has.
fn sees_callers() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|own| *own == *std::process::id().to_string())
}

/// True if a thread does not come back from the call in which it is.
fn is_dying(thread: u32) -> bool {
    // A caller that cannot be checked waits.
    thread != 0
        && std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| will_die(&status))
}

/// Whether the thread whose `status` this is has a signal of which it will die: a SIGKILL of its
/// own, which the kernel makes of most others, or one that it neither blocks nor ignores nor
/// catches.
fn will_die(status: &str) -> bool {
    use libc::{SIGCHLD, SIGCONT, SIGKILL, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};
    const HARMLESS: [i32; 8] = [SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH];
    let bit = |signal: i32| 1u64 << (signal - 1);
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let set = |name: &str| field(name).and_then(|set| u64::from_str_radix(set, 16).ok());
    let (Some(own), Some(shared)) = (set("SigPnd"), set("ShdPnd")) else { return false };
    if own & bit(SIGKILL) != 0 {
        return true;
    }
    // A debugger may take a signal away.
    let (Some("0"), Some(blocked), Some(ignored), Some(caught)) =
        (field("TracerPid"), set("SigBlk"), set("SigIgn"), set("SigCgt"))
    else {
        return false;
    };
    let harmless = HARMLESS.into_iter().fold(0, |all, signal| all | bit(signal));
    (own | shared) & !(blocked | ignored | caught | harmless) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked = Asked { unique: 7, thread: 1, tells: true, errno: 4 };

    #[test]
    fn one_of_two_answers() {
        let pending = Pending::none();
        assert_eq!(pending.finish(), None);
        pending.begin(ASKED, "answer");
        assert_eq!(pending.take(8, |_| Ok(())).unwrap(), None, "of another request");
        assert!(pending.take(7, |_| Err::<(), _>(io::ErrorKind::OutOfMemory.into())).is_err());
        assert_eq!(pending.asked(), Some(ASKED), "what could not be prepared is not taken");
        assert_eq!(pending.take(7, |_| Ok(1)).unwrap(), Some(("answer", 1)));
        assert_eq!(pending.finish(), None, "it is answered");
        pending.begin(ASKED, "answer");
        assert_eq!(pending.finish(), Some("answer"));
        assert_eq!(pending.take(7, |_| Ok(())).unwrap(), None, "it is answered");
    }

    #[test]
    fn what_was_given_up_changes_nothing_and_what_was_changed_is_not_given_up() {
        let pending = Pending::none();
        assert!(pending.decide(), "nothing has asked for it, so nothing has given up");
        pending.begin(ASKED, "answer");
        assert!(pending.decide());
        assert_eq!(pending.asked(), None);
        assert_eq!(pending.take(7, |_| Ok(())).unwrap(), None, "it is being done");
        assert!(pending.decide(), "all of it");
        assert_eq!(pending.finish(), Some("answer"));

        pending.begin(ASKED, "answer");
        assert!(pending.take(7, |_| Ok(())).unwrap().is_some());
        assert!(!pending.decide() && !pending.is_open());
        assert_eq!(pending.finish(), None);
        assert!(pending.decide(), "the next one was not given up");

        pending.begin(Asked { tells: false, ..ASKED }, "answer");
        assert!(pending.decide());
        assert!(pending.take(7, |_| Ok(())).unwrap().is_some(), "the kernel learns of it in another way");
        assert!(!pending.decide(), "and nothing more is changed");
    }

    #[test]
    fn who_will_die_is_told_from_who_will_not() {
        let status = |tracer: u32, sets: [u64; 5]| {
            let [own, shared, blocked, ignored, caught] = sets;
            format!(
                "Name:\tSigPnd:\nTracerPid:\t{tracer}\nSigQ:\t0/1\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
                 SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            )
        };
        let (kill, term, quit, winch) = (1 << 8, 1 << 14, 1 << 2, 1 << 27);
        assert!(!will_die(&status(0, [0, 0, 0, 0, 0])));
        assert!(will_die(&status(0, [kill, 0, 0, 0, 0])));
        assert!(will_die(&status(9, [kill, term, 0, 0, 0])), "a SIGKILL cannot be taken away");
        assert!(will_die(&status(0, [0, term, 0, 0, 0])));
        assert!(will_die(&status(0, [quit, 0, 0, 0, term])));
        assert!(!will_die(&status(9, [0, term, 0, 0, 0])), "a debugger may take it away");
        for set in 2..5 {
            let mut sets = [0, term, 0, 0, 0];
            sets[set] = term;
            assert!(!will_die(&status(0, sets)));
        }
        assert!(!will_die(&status(0, [0, winch, 0, 0, 0])));
        assert!(!will_die("State:\tR (running)\n"));
        assert!(!is_dying(0));
        assert!(sees_callers() && !is_dying(std::process::id()));
    }

    #[test]
    fn not_more_is_abandoned_than_threads_can_be_spared() {
        let callers = Callers::default();
        for _ in 0..MAX_ABANDONED_REQUESTS {
            assert!(callers.count());
        }
        assert!(!callers.count());
        callers.settle();
        assert!(callers.count());
    }
}
