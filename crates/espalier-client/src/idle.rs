//! Sessions that wait for the next call or stream of a client.
//!
//! To begin a session takes longer than to list a thousand files: the server looks at the process,
//! and at all that is mounted. So what a stream used to its end serves the next one, and the calls.

use crate::error::Error;
use crate::session::Session;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sessions that are kept: one for calls, and one for a stream beside them.
const MAX_IDLE_SESSIONS: usize = 2;

/// The idle sessions of a client, which its streams know too.
#[derive(Clone, Default)]
pub(crate) struct IdleSessions(Arc<Mutex<Vec<Session>>>);

impl IdleSessions {
    fn lock(&self) -> MutexGuard<'_, Vec<Session>> {
        // Whole sessions are put in and taken out.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session that was given last.
    pub(crate) fn take(&self) -> Option<Session> {
        self.lock().pop()
    }

    /// Keeps a session of which no answer is outstanding, and that has no stream open; it ends if
    /// there are enough.
    pub(crate) fn give(&self, session: Session) {
        let mut idle = self.lock();
        if idle.len() < MAX_IDLE_SESSIONS {
            idle.push(session);
        }
    }

    /// Keeps a session after a call, unless that failed with an error that ends it. If the server
    /// went away the others have ended too.
    pub(crate) fn give_after(&self, session: Session, error: Option<&Error>) {
        match error {
            Some(Error::Lost { .. }) => {
                let ended = std::mem::take(&mut *self.lock());
                drop(ended);
            }
            Some(Error::Malformed(_)) => {}
            _ => self.give(session),
        }
    }

    /// Gives the body of an answer back to a session, for later answers.
    pub(crate) fn reuse(&self, body: Vec<u8>) {
        if let Some(session) = self.lock().last_mut() {
            session.reuse(body);
        }
    }
}
