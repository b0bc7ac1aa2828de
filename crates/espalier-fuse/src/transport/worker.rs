//! Workers: the places where requests are served, one at a time each, and which of them the calling
//! thread is.

use super::reply_slot::{InFlight, Slot};
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

/// A place where requests are served. Its thread serves; other threads look at it.
pub(super) trait Worker: Send + Sync {
    /// What is known of the request that is served now.
    fn slot(&self) -> &dyn Slot;

    /// How many threads serve the same requests: those of a CPU, or of the device.
    fn threads(&self) -> usize;

    /// Answers `request` with an error if it is still served, and otherwise tells the interrupt
    /// table that it is done. It need not have happened when this returns.
    fn interrupt(self: Arc<Self>, request: InFlight) -> io::Result<()>;
}

thread_local! {
    /// The worker that the calling thread is.
    static CURRENT: RefCell<Option<Arc<dyn Worker>>> = const { RefCell::new(None) };
}

/// While it lives the calling thread is a worker; afterwards what it was before.
pub(super) struct CurrentWorker(Option<Arc<dyn Worker>>);

impl CurrentWorker {
    /// Makes the calling thread `worker`.
    pub(super) fn enter<W: Worker + 'static>(worker: &Arc<W>) -> Self {
        let worker: Arc<W> = Arc::clone(worker);
        Self(CURRENT.replace(Some(worker)))
    }
}

impl Drop for CurrentWorker {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Whether the request that the calling thread serves, if it serves one, may change something. To
/// be asked right before the change takes its place in the order of all changes. After a yes the
/// request is not interrupted any more, so the thread must wait for nothing before it replies.
pub fn may_commit() -> bool {
    CURRENT.with_borrow(|worker| worker.as_ref().is_none_or(|worker| worker.slot().may_commit()))
}

/// Whether the caller of the request that the calling thread serves still waits for the answer. The
/// caller may be interrupted afterwards.
pub fn is_caller_waiting() -> bool {
    CURRENT.with_borrow(|worker| worker.as_ref().is_none_or(|worker| worker.slot().is_unanswered()))
}

/// How many threads serve the requests that the calling thread could be given; 0 if it serves none.
pub(crate) fn serving_threads() -> usize {
    CURRENT.with_borrow(|worker| worker.as_ref().map_or(0, |worker| worker.threads()))
}
