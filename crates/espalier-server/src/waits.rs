//! Waits: sessions that are answered when something changes below a directory.
//!
//! A session that waits takes no thread. The file system wakes its waiter with the next change
//! there; its number then lies in a row, and an event has one thread of the server look again: at
//! what was changed since the instant up to which the session knows. If that is nothing after all,
//! it goes on waiting from there.

use crate::failure::Outcome;
use espalier_fs::ChangeWaiter;
use espalier_sync::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The row of sessions whose waiters were woken.
pub(crate) struct Waits {
    woken: Mutex<Vec<u64>>,
    event: OwnedFd,
}

/// A wait of a session.
pub(crate) struct Waiting {
    /// Of the call.
    pub(crate) id: u32,
    /// The directory. It is looked up each time, so that a directory that has moved away, or was
    /// removed, ends the wait.
    pub(crate) path: Vec<u8>,
    /// The instant up to which the session knows what was changed, as clients have it,
    pub(crate) position: Vec<u8>,
    /// and exactly.
    pub(crate) exact: Vec<u8>,
    /// What the file system wakes. Dropping it ends that.
    pub(crate) waiter: Arc<dyn ChangeWaiter>,
}

/// Wakes one session.
struct Waiter {
    waits: Arc<Waits>,
    session: u64,
}

impl Waits {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { woken: Mutex::default(), event }))
    }

    /// Has an event each time that the row is no longer empty.
    pub(crate) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Takes the row.
    pub(crate) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.woken.lock())
    }

    /// A waiter for a session.
    pub(crate) fn waiter(self: &Arc<Self>, session: u64) -> Arc<dyn ChangeWaiter> {
        Arc::new(Waiter { waits: Arc::clone(self), session })
    }

    fn add(&self, session: u64) -> Outcome<()> {
        let mut woken = self.woken.lock();
        let is_first = woken.is_empty();
        woken.push(session);
        drop(woken);
        if is_first {
            rustix::io::write(&self.event, &1u64.to_ne_bytes()).map_err(io::Error::from)?;
        }
        Ok(())
    }
}

impl ChangeWaiter for Waiter {
    fn wake(&self) {
        if let Err(error) = self.waits.add(self.session) {
            tracing::error!(%error, "a client that waits for a change is not told");
        }
    }
}
