//! What was changed below a directory: asked for, or waited for.
//!
//! A *position* names an instant for readers of any kind, and is good for as long as the server
//! runs; it is a second older than the answer with which it comes, because the kernel may show the
//! state before a change for a moment. A watch that goes on needs no such second: what a client
//! reads is never older than what it was told.

use crate::client::{Client, Links};
use crate::error::{Error, Result};
use crate::session::{Patience, Session};
use crate::wire::{Call, Change, ChangesHead, Malformed, Reader, WaitHead};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was changed below a directory since a position.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The position of this answer, for the next question.
    pub position: Vec<u8>,
    /// Anything may have changed; no paths are given.
    pub everything: bool,
    /// Paths below the directory. One that ends with a slash stands for a directory with everything
    /// below.
    pub paths: Vec<Vec<u8>>,
}

/// A watch of a directory; see [`Client::watch`]. It has a session of its own, and goes on without
/// its client.
pub struct Watch {
    /// Where its paths begin.
    directory: Arc<File>,
    /// `None` after the server went away.
    session: Option<Session>,
    path: Vec<u8>,
    position: Vec<u8>,
    /// Names the instant of the last answer exactly; empty before the first one.
    exact: Vec<u8>,
    /// What is to be told before anything else.
    first: Option<Vec<Vec<u8>>>,
}

impl Client {
    /// What was changed below a directory since `position`, which is that of an earlier answer, or
    /// empty. The answer may tell too much, never too little: changes of the last second may be
    /// told again, and a position that the server does not know any more (as after a remount) is
    /// answered with "everything", like the first two questions about a directory.
    ///
    /// # Errors
    /// EPERM if the caller is not root, and not everything below is its own; EROFS.
    pub fn changes(&self, path: impl AsRef<[u8]>, position: &[u8]) -> Result<Changes> {
        let path = path.as_ref();
        let once = || {
            self.with_session(|session| {
                let reply = session.call(&Call::Changes { path, position })?;
                let (mut more, mut from) = (reply.more, Reader::new(reply.body));
                let mut changes = changes_of(ChangesHead::decode(&mut from)?);
                add_paths(&mut from, &mut changes.paths)?;
                while more {
                    let reply = session.call(&Call::More)?;
                    more = reply.more;
                    add_paths(&mut Reader::new(reply.body), &mut changes.paths)?;
                }
                Ok(changes)
            })
        };
        match once() {
            Err(Error::Lost { .. }) => once(),
            result => result,
        }
    }

    /// Watches a directory with everything below, from `position` on, however long ago that was; an
    /// empty one stands for now, and is answered with "everything" first. The server tells of a
    /// change when it is visible to clients. A program that looks through the mount instead may be
    /// shown the state before for a moment, until the call that made the change has returned:
    /// [`Client::changes`] with [`Watch::position`] tells the last second again.
    ///
    /// # Errors
    /// Those of paths; [`Error::NoServer`].
    pub fn watch(&self, path: impl AsRef<[u8]>, position: &[u8]) -> Result<Watch> {
        let path = path.as_ref().to_vec();
        self.stat(&path, Links::Follow)?;
        let session = Some(Session::begin(&self.directory)?);
        let (directory, position) = (Arc::clone(&self.directory), position.to_vec());
        Ok(Watch { directory, session, path, position, exact: Vec::new(), first: None })
    }

    /// Watches a directory with everything below, from a snapshot on that was made of it (the path
    /// `.snapshots/NAME` in the directory, or below that of one above): what differs is told first,
    /// and then what is changed, with nothing left out in between.
    ///
    /// # Errors
    /// As for [`Client::watch`] and [`Client::diff`].
    pub fn watch_since(&self, path: impl AsRef<[u8]>, snapshot: impl AsRef<[u8]>) -> Result<Watch> {
        let mut watch = self.watch(path, b"")?;
        // The watch begins before the comparison, so that a change in between is told twice.
        watch.ask(&mut Patience { deadline: Some(Instant::now()), goes_on: None })?;
        let differences = self.diff(snapshot, &watch.path)?;
        let path = |found: Result<(Change, Vec<u8>)>| found.map(|(_, path)| path);
        watch.first = Some(differences.map(path).collect::<Result<_>>()?);
        Ok(watch)
    }
}

impl Watch {
    /// Where the watch has come to, for a later watch or [`Client::changes`].
    pub fn position(&self) -> &[u8] {
        &self.position
    }

    /// Waits until something is changed, and says what; an empty answer after `limit`. If the
    /// server is replaced meanwhile the answer is "everything".
    ///
    /// # Errors
    /// As for [`Client::changes`]; [`Error::NoServer`] if the server is gone.
    pub fn wait(&mut self, limit: Duration) -> Result<Changes> {
        self.wait_with(limit, None)
    }

    /// As [`Watch::wait`], but ends sooner, with what there is to tell, if `goes_on` returns false:
    /// it is asked after each signal that the thread gets, and five times a second.
    ///
    /// # Errors
    /// As for [`Watch::wait`].
    pub fn wait_while(&mut self, limit: Duration, goes_on: &mut dyn FnMut() -> bool) -> Result<Changes> {
        self.wait_with(limit, Some(goes_on))
    }

    fn wait_with(&mut self, limit: Duration, goes_on: Option<&mut dyn FnMut() -> bool>) -> Result<Changes> {
        if let Some(paths) = self.first.take().filter(|paths| !paths.is_empty()) {
            return Ok(Changes { position: self.position.clone(), everything: false, paths });
        }
        let mut patience = Patience { deadline: Instant::now().checked_add(limit), goes_on };
        match self.ask(&mut patience) {
            Err(Error::Lost { .. }) => self.ask(&mut patience),
            told => told,
        }
    }

    fn ask(&mut self, patience: &mut Patience<'_>) -> Result<Changes> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => Session::begin(&self.directory)?,
        };
        let position = if self.exact.is_empty() { &self.position } else { &self.exact };
        let mut told: Option<(Vec<u8>, Changes)> = None;
        let waited = session.wait(&Call::Wait { path: &self.path, position }, patience, |body| {
            let mut from = Reader::new(body);
            if told.is_none() {
                let WaitHead { exact, changes } = WaitHead::decode(&mut from)?;
                told = Some((exact.to_vec(), changes_of(changes)));
            }
            if let Some((_, changes)) = &mut told {
                add_paths(&mut from, &mut changes.paths)?;
            }
            Ok(())
        });
        if !matches!(waited, Err(Error::Lost { .. } | Error::Malformed(_))) {
            self.session = Some(session);
        }
        waited?;
        let (exact, changes) = told.ok_or(Malformed("an answer with nothing in it"))?;
        self.position.clone_from(&changes.position);
        self.exact = exact;
        Ok(changes)
    }
}

fn changes_of(head: ChangesHead<'_>) -> Changes {
    Changes { position: head.position.to_vec(), everything: head.everything, paths: Vec::new() }
}

fn add_paths(from: &mut Reader<'_>, paths: &mut Vec<Vec<u8>>) -> Result<()> {
    while !from.is_empty() {
        paths.push(from.bytes()?.to_vec());
    }
    Ok(())
}
