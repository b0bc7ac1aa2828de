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
//! - a put of a publishing whose outcome is not known latches the device before the lock is given
//!   back: the map is ahead of the line then, and a caller may have been told that its sync failed;
//! - of a renewal whose outcome is not known the nonce is kept (`Line::unsettled`), and before the
//!   next put the root is read. Nothing is ever built on a root that may not be there.
//!
//! What is read before the next put, or found by it:
//!
//! | the root has | then |
//! |---|---|
//! | the nonce of the line's root | no renewal took effect yet: on from it, by the version read |
//! | the nonce of an unsettled renewal | it took effect: it is the line's root, and on from it |
//! | another nonce | another writer was faster: this one is fenced |
//!
//! Why no two puts of one writer both count, and none of two writers: an unsettled renewal has the
//! condition that the line's root is there in a version that was read or put. If it arrives first,
//! the next put fails its condition, finds the renewal's nonce, and is made again from it. If the
//! next put arrives first, the line's root is gone, the renewal's condition never holds again, and
//! it is forgotten. The same holds if another renewal of the same root arrived. A renewal changes
//! nothing that the map, the object table or the journal depend on, so neither what is deleted nor
//! what a sync promised depends on whether it took effect.

use super::error;
use super::inner::{Attempt, Inner, Line};
use crate::bucket::{Condition, Failure};
use crate::format::Root;
use crate::requests::{Replaced, Requests};
use espalier_storage::{Error, JoinHandle, Operation, Result};
use std::sync::Arc;
use std::time::Duration;

/// How often in the time of a lease it is renewed.
const RENEWALS_PER_LEASE: u32 = 3;

/// The shortest pause of the thread that renews.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// What a root is put for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The lease: nothing but the time of the root and its nonce differ.
    Renewal,
    /// What was written, or moved.
    Publishing,
}

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
            if let Err(error) = self.renew_if_due()
                && !*self.ended.lock()
            {
                tracing::warn!(device = self.name, %error, "the lease cannot be renewed");
            }
        }
    }

    /// Renews the lease, unless a root was put just now. A failure that passes latches nothing: the
    /// next put finds out what became of this one.
    ///
    /// # Errors
    /// As for [`Inner::put_root`].
    pub(super) fn renew_if_due(&self) -> Result<()> {
        let age = |line: &Line| self.elapsed().saturating_sub(line.put_at);
        let is_due = |line: &Line| age(line) >= self.options.lease / RENEWALS_PER_LEASE;
        self.put_root(Purpose::Renewal, is_due, |_| ())
    }

    /// Puts the next root: the last one as `change` makes it, if `is_wanted` then.
    ///
    /// # Errors
    /// If the device takes no writes any more, or does not from now on; if a renewal fails.
    pub(super) fn put_root(
        &self,
        purpose: Purpose,
        is_wanted: impl FnOnce(&Line) -> bool,
        change: impl Fn(&mut Root),
    ) -> Result<()> {
        let mut line = self.line.lock();
        // Another put may have failed while this one waited for its turn.
        self.writable(Operation::Sync)?;
        if !is_wanted(&line) {
            return Ok(());
        }
        let attempt = Attempt::begin(self);
        let outcome = self.put_next(&mut line, purpose, change);
        attempt.ended();
        outcome
    }

    fn put_next(&self, line: &mut Line, purpose: Purpose, change: impl Fn(&mut Root)) -> Result<()> {
        loop {
            self.settle(line, purpose)?;
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
            match self.requests_for(purpose).replace_root(&next, &condition) {
                Ok(Replaced::Done(version)) => {
                    *line = Line::new(next, version, put_at);
                    return Ok(());
                }
                // A renewal has arrived after all: the next root is made from it.
                Ok(Replaced::Lost(found)) if line.unsettled.contains(&found.nonce) => {}
                Ok(Replaced::Lost(found)) => return Err(self.fenced(whose(&found))),
                Err(failure) => {
                    line.unsettled.push(next.nonce);
                    return Err(self.put_failed(purpose, &failure));
                }
            }
        }
    }

    /// A renewal is given up when the device ends: what it would do the last root does.
    fn requests_for(&self, purpose: Purpose) -> &Requests {
        match purpose {
            Purpose::Renewal => &self.behind,
            Purpose::Publishing => &self.requests,
        }
    }

    /// Finds out which root is there, if that is not known.
    fn settle(&self, line: &mut Line, purpose: Purpose) -> Result<()> {
        if line.unsettled.is_empty() {
            return Ok(());
        }
        match self.requests_for(purpose).read_root_for(true) {
            Ok(Some((found, _, version))) if line.unsettled.contains(&found.nonce) => {
                // Nothing else differs, but what was deleted since is not named again. When its put
                // began is not known: the next renewal comes the sooner.
                let Root { generation, nonce, previous, holder, .. } = found;
                let root = Root { generation, nonce, previous, holder, ..line.root.clone() };
                *line = Line::new(root, version, line.put_at);
                Ok(())
            }
            Ok(Some((found, _, version))) if found.nonce == line.root.nonce => {
                line.version = version;
                Ok(())
            }
            Ok(Some((found, ..))) => Err(self.fenced(whose(&found))),
            Ok(None) => Err(self.put_failed(purpose, &Requests::root_is_gone())),
            Err(failure) => Err(self.put_failed(purpose, &failure)),
        }
    }

    /// The error of a put of the root that failed, or may have: it latches the device, but for a
    /// renewal whose failure may pass.
    fn put_failed(&self, purpose: Purpose, failure: &Failure) -> Error {
        match purpose {
            Purpose::Renewal if failure.may_pass() => error::of_failure(failure, Operation::Sync, &self.name),
            _ => self.latch(failure, Operation::Sync),
        }
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
