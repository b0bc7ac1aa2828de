//! The interrupt table: answers requests early if their caller is killed while they are served.
//!
//! The kernel does not let a caller leave a request that is being served before there is an answer,
//! so a killed caller stays until then: for ever, if the device does not respond. But a server may
//! answer early. This one does so for callers that were killed, and for no others: a program that
//! merely catches a signal must not see `EINTR` from calls that no other file system interrupts.
//!
//! 1. *A request is answered once* ([`reply_slot`](super::reply_slot)). A worker whose request
//!    another thread has answered takes back what its reply would have handed out
//!    ([`Handler::unanswered`](super::Handler::unanswered)), and sends nothing.
//! 2. *Nothing is changed for a caller that has been answered early.* The change would take effect
//!    late, perhaps after newer changes that were acknowledged, for the kernel keeps other callers
//!    from the same file only until there is an answer. So the file system asks right before a
//!    change takes its place in the order of changes, when it waits for nothing any more
//!    ([`may_commit`](super::may_commit)).
//! 3. *Once it was told to go on, the request gets its true answer and no other*, because the
//!    kernel remembers what the answer says
//!    ([`reports_changes`](crate::protocol::request::reports_changes)); the file system waits for
//!    nothing after the change.
//!
//! The kernel sends an INTERRUPT when a caller gets a signal. That is not enough: it sends one for
//! the first signal only, which need not be a deadly one; it sends none for a caller that waits for
//! direct I/O; and all threads that might read it may be busy. So while requests are served, a
//! thread checks every [`CHECK_INTERVAL`] whether their callers live, and INTERRUPTs are ignored.

use super::caller_liveness::{is_dying, sees_callers};
use super::reply_slot::InFlight;
use super::worker::Worker;
use espalier_sync::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often callers are checked: those of requests that are still served after one to two of
/// these.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// So many threads may serve requests that are answered already; each has a stack and a buffer.
const MAX_ABANDONED_REQUESTS: usize = 1024;

/// All workers of a connection, and what is known of the callers that wait for them.
#[derive(Default)]
pub(super) struct InterruptTable {
    workers: Mutex<Vec<Weak<dyn Worker>>>,
    /// A check is due at the next tick.
    awake: AtomicBool,
    stopped: Mutex<bool>,
    changed: Condvar,
    /// Requests that are still served, and were answered.
    abandoned: AtomicUsize,
    /// Requests that could not be answered when that was tried.
    failed: Mutex<Vec<u64>>,
}

/// A request that was served at a check, and whether it was interrupted.
type Checked = (u64, bool);

impl InterruptTable {
    /// From now on the requests of `worker` are checked, until it is dropped.
    pub(super) fn register<W: Worker + 'static>(&self, worker: &Arc<W>) {
        let mut workers = self.workers.lock();
        workers.retain(|worker| worker.strong_count() > 0);
        let worker: Weak<W> = Arc::downgrade(worker);
        workers.push(worker);
    }

    /// A worker has begun to serve a request.
    pub(super) fn request_began(&self) {
        // Against the fence in `check_all`: either the check sees the request, or this thread sees
        // that no check is due.
        fence(Ordering::SeqCst);
        if !self.awake.load(Ordering::Relaxed) {
            self.awake.store(true, Ordering::Relaxed);
            // The lock orders this after a thread that is about to wait.
            drop(self.stopped.lock());
            self.changed.notify_all();
        }
    }

    /// Counts a request that is to be interrupted; false if there are too many.
    fn try_abandon(&self) -> bool {
        let more = |count| (count < MAX_ABANDONED_REQUESTS).then_some(count + 1);
        self.abandoned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// An interrupted request is served at last, or was served before it could be interrupted.
    pub(super) fn abandoned_ended(&self) {
        self.abandoned.fetch_sub(1, Ordering::Relaxed);
    }

    /// Interrupting request `unique` failed: the next check tries again.
    pub(super) fn interrupt_failed(&self, unique: u64) {
        self.failed.lock().push(unique);
        self.abandoned_ended();
    }

    /// True if no worker serves a request, one that was interrupted included.
    pub(super) fn is_idle(&self) -> bool {
        let workers: Vec<_> = self.workers.lock().iter().filter_map(Weak::upgrade).collect();
        // In this order: a worker takes back what its reply would have handed out after its slot is
        // idle, and before it is counted.
        workers.iter().all(|worker| worker.slot().is_idle()) && self.abandoned.load(Ordering::SeqCst) == 0
    }

    /// Ends [`InterruptTable::run`].
    pub(super) fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Checks callers until it is stopped.
    pub(super) fn run(&self) {
        if !sees_callers() {
            tracing::info!(
                "/proc shows other processes than the mount: a caller that is killed waits until its call is served"
            );
            return;
        }
        let mut before = Vec::new();
        let mut stopped = self.stopped.lock();
        while !*stopped {
            if self.awake.load(Ordering::Relaxed) {
                drop(stopped);
                before = self.check_all(&before);
                stopped = self.stopped.lock();
                // A request that begins now is checked at the next tick.
                self.changed.wait_while_for(&mut stopped, |stopped| !*stopped, CHECK_INTERVAL);
            } else {
                self.changed.wait(&mut stopped);
            }
        }
    }

    /// Interrupts the requests that are served now and were served `before`, and whose callers were
    /// killed; returns the requests that are served now.
    fn check_all(&self, before: &[Checked]) -> Vec<Checked> {
        self.awake.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let workers: Vec<_> = self.workers.lock().iter().filter_map(Weak::upgrade).collect();
        let failed = std::mem::take(&mut *self.failed.lock());
        let before: Vec<_> =
            before.iter().map(|(unique, done)| (*unique, *done && !failed.contains(unique))).collect();
        let served = workers.iter().filter_map(|worker| Some((worker, worker.slot().interruptible()?)));
        let now: Vec<_> =
            served.map(|(worker, request)| (request.unique, self.check(worker, request, &before))).collect();
        if !now.is_empty() {
            self.awake.store(true, Ordering::Relaxed);
        }
        now
    }

    /// Interrupts a request if it was served `before` and its caller was killed since; true if it
    /// is interrupted, now or before.
    fn check(&self, worker: &Arc<dyn Worker>, request: InFlight, before: &[Checked]) -> bool {
        let InFlight { unique, caller, .. } = request;
        let Some((_, done)) = before.iter().find(|(known, _)| *known == unique) else { return false };
        if *done || !is_dying(caller) {
            return *done;
        }
        if !self.try_abandon() {
            tracing::debug!("too many calls of programs that were killed are being served");
            return false;
        }
        tracing::debug!(unique, thread = caller, "was killed while it waited");
        let interrupted = Arc::clone(worker).interrupt(request);
        interrupted
            .inspect_err(|error| tracing::debug!(%error, "a program that was killed has to wait for a while"))
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_more_is_abandoned_than_threads_can_be_spared() {
        let table = InterruptTable::default();
        for _ in 0..MAX_ABANDONED_REQUESTS {
            assert!(table.try_abandon());
        }
        assert!(!table.try_abandon());
        table.abandoned_ended();
        assert!(table.try_abandon());
    }
}
