//! Line of roots: each root replaces the one before it, and renews the lease.
//!
//! Protocol: the lock of the line is held from making a root until the answer to its put is known,
//! and for nothing else. What publishes does everything else before: it holds the chain, but not
//! the line, while segments and maps are uploaded. A thread renews the lease, which takes the line
//! alone; so no upload, compaction or deletion holds it up.
//!
//! Invariants:
//! - a root is made from the last one that is known to be there, under one lock with its put: of a
//!   renewal and a publishing that come together the second builds on what the first has made;
//! - a put whose outcome is not known latches the device before the lock is given back, so that
//!   nothing is ever built on a root that may not be there.

use super::inner::{Attempt, Inner, Line};
use crate::bucket::Condition;
use crate::format::Root;
use crate::requests::Replaced;
use espalier_storage::{JoinHandle, Operation, Result};
use std::sync::Arc;
use std::time::Duration;

/// How often in the time of a lease it is renewed.
const RENEWALS_PER_LEASE: u32 = 3;

/// The shortest pause of the thread that renews.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

impl Inner {
    /// Starts the thread that renews the lease, if there may be one.
    pub(super) fn start_renewals(inner: &Arc<Self>) -> std::io::Result<Option<JoinHandle>> {
        if inner.environment.threads() == 0 {
            return Ok(None);
        }
        let shared = Arc::clone(inner);
        let body = Box::new(move || shared.renew_until_the_end());
        inner.environment.spawn("object lease", body).map(Some)
    }

    fn renew_until_the_end(&self) {
        while self.latch.get().is_none() {
            let age = self.elapsed().saturating_sub(self.line.lock().put_at);
            let pause = (self.options.lease / RENEWALS_PER_LEASE).saturating_sub(age);
            if !self.rests(pause.max(SHORTEST_PAUSE)) {
                return;
            }
            if let Err(error) = self.renew_if_due() {
                tracing::warn!(device = self.name, %error, "the lease cannot be renewed");
            }
        }
    }

    /// Renews the lease, unless a root was put just now.
    ///
    /// # Errors
    /// As for [`Inner::put_root`].
    pub(super) fn renew_if_due(&self) -> Result<()> {
        let age = |line: &Line| self.elapsed().saturating_sub(line.put_at);
        let is_due = |line: &Line| age(line) >= self.options.lease / RENEWALS_PER_LEASE;
        self.put_root(is_due, |_| ())
    }

    /// Puts the next root: the last one as `change` makes it, if `is_wanted` then.
    ///
    /// # Errors
    /// If the device takes no writes any more, or does not from now on.
    pub(super) fn put_root(
        &self,
        is_wanted: impl FnOnce(&Line) -> bool,
        change: impl FnOnce(&mut Root),
    ) -> Result<()> {
        let mut line = self.line.lock();
        // Another put may have failed while this one waited for its turn.
        self.writable(Operation::Sync)?;
        if !is_wanted(&line) {
            return Ok(());
        }
        let attempt = Attempt::begin(self);
        let mut next = Root {
            generation: line.root.generation + 1,
            nonce: self.nonce(),
            previous: line.root.nonce,
            holder: self.options.holder(),
            ..line.root.clone()
        };
        change(&mut next);
        let put_at = self.elapsed();
        let condition = Condition::Matches(line.version.clone());
        let outcome = match self.requests.replace_root(&next, &condition) {
            Ok(Replaced::Done(version)) => {
                *line = Line { root: next, version, put_at };
                Ok(())
            }
            Ok(Replaced::Lost(found)) => Err(self.fenced(whose(&found))),
            Err(failure) => Err(self.latch(&failure, Operation::Sync)),
        };
        attempt.ended();
        outcome
    }
}

/// Says that another writer has the store.
fn whose(found: &Root) -> String {
    let holder = &found.holder;
    let whom = match holder.host.as_str() {
        "" => "another writer, which has closed it since,".to_owned(),
        host => format!("process {} on {host}", holder.process),
    };
    format!(
        "{whom} took the store over (epoch {}); nothing that was written here since the last sync is kept. Unmount, and \
         mount again if the other one has ended",
        found.epoch
    )
}
