//! Maintenance: what only the journal has is published, what is dead is deleted, what is sparse is
//! compacted. Without threads the lease is renewed too.
//!
//! Protocol: with threads, a background thread takes a [step](Inner::maintain) now and then; in a
//! simulation the caller does.
//!
//! A server that refuses deletes, as a policy without them does, holds up nothing else: the refusal
//! is logged, and the objects are tried again after a while.
//!
//! Invariant: an object is deleted only if it was dead in a root that is known to be there, at a
//! time of the server's clock that lies at least the grace time before that of the root now. The
//! object table says whether a segment is dead, and the map is asked whether it names the segment
//! ([`super::recount`]).

use super::error;
use super::inner::Inner;
use super::publish::Scope;
use crate::bucket::Failure;
use crate::format::{NewObject, ObjectId};
use espalier_storage::{JoinHandle, Operation, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Between two steps: this part of the lease.
const STEPS_PER_LEASE: u32 = 6;

/// Most objects that one step deletes.
const MAX_DELETES: usize = 1000;

/// After a delete was refused, or it could not be known whether one may be made, none is tried for
/// so long.
pub(super) const PAUSE_OF_DELETES: Duration = Duration::from_secs(600);

impl Inner {
    /// Starts the background thread, if there may be one.
    pub(super) fn start_maintenance(inner: &Arc<Self>) -> std::io::Result<Option<JoinHandle>> {
        if inner.environment.threads() == 0 {
            return Ok(None);
        }
        let shared = Arc::clone(inner);
        let body = Box::new(move || shared.maintain_until_the_end());
        inner.environment.spawn("object maintenance", body).map(Some)
    }

    fn maintain_until_the_end(&self) {
        let pause = (self.options.lease / STEPS_PER_LEASE).max(Duration::from_millis(10));
        let mut next = self.elapsed() + pause;
        let rest = if self.journal.is_some() { pause.min(self.options.journal_delay) } else { pause };
        while self.rests(rest) && self.latch.get().is_none() {
            let behind = self.is_journal_ahead();
            if self.elapsed() < next && !behind {
                continue;
            }
            let outcome = if self.elapsed() < next { self.publish(Scope::Sync) } else { self.maintain_all() };
            if self.elapsed() >= next {
                next = self.elapsed() + pause;
            }
            if let Err(error) = outcome
                && !*self.ended.lock()
            {
                tracing::warn!(device = self.name, %error, "maintenance");
            }
        }
    }

    /// Waits until something may have to be done; false if the device is closed.
    pub(super) fn rests(&self, pause: Duration) -> bool {
        let mut ended = self.ended.lock();
        if !*ended {
            self.end.wait_for(&mut ended, pause);
        }
        !*ended
    }

    fn maintain_all(&self) -> Result<()> {
        while self.maintain()? && !*self.ended.lock() {}
        Ok(())
    }

    pub(super) fn maintain(&self) -> Result<bool> {
        self.writable(Operation::Sync)?;
        if self.is_journal_ahead() {
            self.publish(Scope::Sync)?;
        }
        // Where there are threads, one of its own has done that in time.
        self.renew_if_due()?;
        let deleted = self.delete_dead();
        // What cannot be deleted keeps nothing from being moved.
        let compacted = self.compact();
        let deleted = deleted?;
        Ok(compacted? || deleted)
    }

    /// Deletes what has been dead for the grace time.
    fn delete_dead(&self) -> Result<bool> {
        let failed = |failure: Failure| error::of_failure(&failure, Operation::Discard, &self.name);
        if self.elapsed() < *self.deletes_from.lock() {
            return Ok(false);
        }
        let due = self.due().and_then(|due| self.unnamed(due)).map_err(failed)?;
        if due.is_empty() {
            return Ok(false);
        }
        let names: Vec<String> = due.iter().map(NewObject::name).collect();
        let deletes = self.behind.delete_all(&names);
        let deleted = due.iter().zip(&deletes.done).filter(|(_, done)| **done).map(|(object, _)| object.id);
        let deleted: BTreeSet<ObjectId> = deleted.collect();
        self.forget(&deleted);
        if let Some(failure) = deletes.refused {
            *self.deletes_from.lock() = self.elapsed() + PAUSE_OF_DELETES;
            let (device, objects) = (&self.name, due.len());
            tracing::warn!(device, objects, %failure, "the server refuses deletes; dead objects stay there");
        }
        deletes.failed.map_or(Ok(!deleted.is_empty()), |failure| Err(failed(failure)))
    }

    /// Takes objects that were deleted from all tables.
    fn forget(&self, deleted: &BTreeSet<ObjectId>) {
        let mut chain = self.chain.lock();
        // A renewal, too, does not name what is gone.
        let mut line = self.line.lock();
        let mut state = self.state.write();
        deleted.iter().for_each(|id| state.objects.remove(*id));
        self.unmovable.lock().retain(|id, _| !deleted.contains(id));
        chain.objects.retain(|object| !deleted.contains(&object.id));
        line.root.objects.retain(|object| !deleted.contains(&object.id));
    }

    /// The objects that may be deleted, if the table is right. Notes for the others since when they
    /// are dead.
    ///
    /// The root is read before the chain is taken, which callers wait for. That is enough: a nonce
    /// is of one root alone, so if the line's root has the one that was read, nothing was published
    /// since, and with the chain in hand nothing is meanwhile. The map is that of this root then.
    fn due(&self) -> std::result::Result<Vec<NewObject>, Failure> {
        if self.is_latched() || !self.state.read().objects.iter().any(|entry| entry.is_dead()) {
            return Ok(Vec::new());
        }
        let found = self.behind.read_root()?;
        let _chain = self.chain.lock();
        let now = match found {
            Some((root, facts, _)) if !self.is_latched() && root.nonce == self.line.lock().root.nonce => {
                facts.modified
            }
            // The next put of a root finds out what happened; after a renewal the next step does.
            _ => return Ok(Vec::new()),
        };
        let grace = u64::try_from(self.options.grace.as_millis()).unwrap_or(u64::MAX);
        let mut state = self.state.write();
        let mut due = Vec::new();
        for entry in state.objects.iter_mut().filter(|entry| entry.is_dead()) {
            let died = *entry.died.get_or_insert(now);
            // Strictly later: the root of that time has been replaced since.
            if now > died && now - died >= grace && due.len() < MAX_DELETES {
                due.push(entry.object);
            }
        }
        Ok(due)
    }
}
