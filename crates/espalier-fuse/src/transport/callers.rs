//! Callers that are killed while the file system serves them.
//!
//! The kernel lets nobody leave a request that is being served before there is an answer, so whoever is killed
//! meanwhile stays until then: for good, if the device is silent. But a server may answer early. Here it does so for
//! those who were killed, and for nobody else: a program that merely catches a signal must not see `EINTR` from calls
//! that no other file system interrupts.
//!
//! The invariant: a request is answered once. What it takes to answer one lies in the [`Pending`] of who serves it,
//! and whoever takes it from there answers. The server of a request that somebody else has answered finds the place
//! empty when it is done, gives back what its answer would have handed out ([`Handler::unanswered`]) and keeps silent.
//! What the request was to do may be done all the same, as with every call that a signal ends.
//!
//! The kernel sends an INTERRUPT when a caller gets a signal. That is not enough: only the first signal is told, which
//! need not be a deadly one; nothing is told of who waits for direct I/O; and all who might hear may be busy. So while
//! anything is served, somebody looks every now and then whether its callers live, and INTERRUPTs are passed over.
//!
//! [`Handler::unanswered`]: super::Handler::unanswered

use super::Shared;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often somebody looks. Who is still served after one to two of these is asked about.
const TICK: Duration = Duration::from_millis(100);
/// So many threads may serve what was answered in their place; each has a stack and a buffer.
const MOST_ABANDONED: usize = 256;

/// A request and who made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) unique: u64,
    /// The thread that waits for the answer; 0 if that is the kernel, or cannot be seen from here.
    pub(super) thread: u32,
}

/// The request that a thread serves, if any, and what it takes to answer it.
#[derive(Debug)]
pub(super) struct Pending<A>(Mutex<Option<(Asked, A)>>);

impl<A> Pending<A> {
    /// Nothing is served.
    pub(super) fn none() -> Self {
        Self(Mutex::new(None))
    }

    /// From now on `asked` is served, and can be answered by others with `answer`.
    pub(super) fn begin(&self, asked: Asked, answer: A) {
        *self.0.lock() = Some((asked, answer));
    }

    /// It is served. `None`: somebody else has answered.
    pub(super) fn finish(&self) -> Option<A> {
        self.0.lock().take().map(|(_, answer)| answer)
    }

    /// What is served.
    pub(super) fn asked(&self) -> Option<Asked> {
        self.0.lock().as_ref().map(|(asked, _)| *asked)
    }

    /// Takes what it takes to answer request `unique` away from who serves it, unless that is done. `prepare` comes
    /// first; if it fails nothing is taken.
    pub(super) fn take<T>(
        &self,
        unique: u64,
        prepare: impl FnOnce(&mut A) -> io::Result<T>,
    ) -> io::Result<Option<(A, T)>> {
        let mut place = self.0.lock();
        let Some((_, answer)) = place.as_mut().filter(|(asked, _)| asked.unique == unique) else {
            return Ok(None);
        };
        let prepared = prepare(answer)?;
        Ok(place.take().map(|(_, answer)| (answer, prepared)))
    }
}

/// A place where requests are served.
pub(super) trait Seat: Send + Sync {
    /// What is served there now.
    fn asked(&self) -> Option<Asked>;

    /// Answers request `unique` with `EINTR` if it is still served.
    fn interrupt(self: Arc<Self>, shared: &Arc<Shared>, unique: u64) -> io::Result<()>;
}

/// Who waits, as far as somebody must know.
#[derive(Default)]
pub(super) struct Callers {
    seats: Mutex<Vec<Weak<dyn Seat>>>,
    /// Somebody looks every tick.
    awake: AtomicBool,
    ended: Mutex<bool>,
    changed: Condvar,
    /// Requests that are served still, and were answered.
    abandoned: AtomicUsize,
}

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
        // Against the fence in `look`: either the request is seen there, or here that nobody looks.
        fence(Ordering::SeqCst);
        if !self.awake.load(Ordering::Relaxed) {
            self.awake.store(true, Ordering::Relaxed);
            // The lock orders this after who is about to wait.
            drop(self.ended.lock());
            self.changed.notify_all();
        }
    }

    /// Counts a request that was answered before it was served; false if there are too many.
    pub(super) fn abandon(&self) -> bool {
        let more = |count| (count < MOST_ABANDONED).then_some(count + 1);
        self.abandoned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Such a request is served at last, or could not be answered after all.
    pub(super) fn settle(&self) {
        self.abandoned.fetch_sub(1, Ordering::Relaxed);
    }

    /// The connection has ended.
    pub(super) fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
    }

    /// Looks after callers until the end.
    pub(super) fn run(&self, shared: &Arc<Shared>) {
        let mut before = Vec::new();
        let mut ended = self.ended.lock();
        while !*ended {
            if self.awake.load(Ordering::Relaxed) {
                drop(ended);
                before = self.look(shared, &before);
                ended = self.ended.lock();
                if !*ended {
                    self.changed.wait_for(&mut ended, TICK);
                }
            } else {
                self.changed.wait(&mut ended);
            }
        }
    }

    /// Answers those who were killed among who is served now and was so `before`, and returns who is served now.
    fn look(&self, shared: &Arc<Shared>, before: &[u64]) -> Vec<u64> {
        self.awake.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seats: Vec<_> = self.seats.lock().iter().filter_map(Weak::upgrade).collect();
        let served: Vec<_> = seats.iter().filter_map(|seat| Some((seat, seat.asked()?))).collect();
        if !served.is_empty() {
            self.awake.store(true, Ordering::Relaxed);
        }
        for (seat, asked) in &served {
            if !before.contains(&asked.unique) || !is_killed(asked.thread) {
                continue;
            }
            tracing::debug!(unique = asked.unique, thread = asked.thread, "was killed while it waited");
            if let Err(error) = Arc::clone(seat).interrupt(shared, asked.unique) {
                tracing::warn!(%error, "a program that was killed has to wait until its call is served");
            }
        }
        served.into_iter().map(|(_, asked)| asked.unique).collect()
    }
}

/// What [`Seat::interrupt`] says when [`Callers::abandon`] says no.
pub(super) fn too_many() -> io::Error {
    io::Error::other(format!("{MOST_ABANDONED} calls whose programs were killed are being served already"))
}

/// True if a thread is about to die of a signal, as the kernel sees it: every deadly signal becomes a SIGKILL to each
/// thread of the process.
fn is_killed(thread: u32) -> bool {
    if thread == 0 {
        return false;
    }
    // Who cannot be looked at waits.
    std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| pends_kill(&status))
}

/// Whether a SIGKILL is pending for the thread whose `status` this is.
fn pends_kill(status: &str) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & KILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked = Asked { unique: 7, thread: 1 };

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
    fn a_deadly_signal_is_told_from_others() {
        let status =
            |set: &str| format!("Name:\tSigPnd:\nSigQ:\t0/1\nSigPnd:\t{set}\nShdPnd:\tffffffffffffffff\n");
        assert!(pends_kill(&status("0000000000000100")));
        assert!(pends_kill(&status("0000000000002104")));
        assert!(!pends_kill(&status("0000000000002000")));
        assert!(!pends_kill(&status("0000000000000000")));
        assert!(!pends_kill("State:\tR (running)\n"));
        assert!(!is_killed(0));
        assert!(!is_killed(std::process::id()));
    }

    #[test]
    fn not_more_is_abandoned_than_threads_can_be_spared() {
        let callers = Callers::default();
        for _ in 0..MOST_ABANDONED {
            assert!(callers.abandon());
        }
        assert!(!callers.abandon());
        callers.settle();
        assert!(callers.abandon());
    }
}
