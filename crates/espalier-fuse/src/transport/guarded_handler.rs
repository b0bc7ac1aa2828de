//! A handler that has stopped serving if it ever panicked.
//!
//! What a panic leaves half done in memory cannot be trusted. So after the first one every request
//! is answered with EIO, and the mount's owner leaves the store as after a crash.

use super::handler::{Handler, Outcome, Request};
use crate::protocol::Header;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A [`Handler`] and whether it panicked.
pub(super) struct GuardedHandler {
    handler: Arc<dyn Handler>,
    poisoned: AtomicBool,
}

impl GuardedHandler {
    /// Guards `handler`.
    pub(super) fn new(handler: Arc<dyn Handler>) -> Self {
        Self { handler, poisoned: AtomicBool::new(false) }
    }

    /// True if the handler panicked.
    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Has a request served; a panic becomes EIO, now and for every later request.
    pub(super) fn handle(&self, request: &Request<'_>, buffer: &mut [u8], received: usize) -> Outcome {
        self.call(request.header, || self.handler.handle(request, buffer, received))
            .unwrap_or(Outcome::Error(libc::EIO))
    }

    /// The reply that `outcome` says is in `buffer` is not sent.
    pub(super) fn unanswered(&self, header: &Header, outcome: Outcome, buffer: &[u8]) {
        if let Outcome::Reply(body) = outcome {
            let reply = &buffer[..body.min(buffer.len())];
            self.call(header, || self.handler.unanswered(header, reply));
        }
    }

    /// Calls what stands behind the handler, for `what`; `None` after a panic, or if it panics now.
    pub(super) fn call<T>(&self, what: impl fmt::Debug, call: impl FnOnce() -> T) -> Option<T> {
        if self.poisoned.load(Ordering::Relaxed) {
            return None;
        }
        let result = catch_unwind(AssertUnwindSafe(call));
        if result.is_err() {
            self.poisoned.store(true, Ordering::Relaxed);
            tracing::error!(
                ?what,
                "a request made the file system panic; from now on the mount answers with errors only"
            );
        }
        result.ok()
    }
}
