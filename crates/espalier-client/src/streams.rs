//! What comes in pieces: everything below a directory, and what was changed there.

use crate::client::{Client, Links};
use crate::error::{Error, Result};
use crate::session::{Reply, Session};
use crate::wire::{Call, ChangesHead, Listing, Malformed, Reader, Stat, WalkItem};
use std::collections::VecDeque;
use std::time::Duration;

/// How long a watch waits between two questions at least,
const WATCH_MIN_INTERVAL: Duration = Duration::from_millis(5);
/// and at most.
const WATCH_MAX_INTERVAL: Duration = Duration::from_millis(250);

/// An entry of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The path below the directory of the walk.
    pub path: Vec<u8>,
    /// The attributes. The blocks of sparse files are taken for full.
    pub stat: Stat,
    /// A directory that the caller may not list or not search: nothing below it is given.
    pub is_closed: bool,
}

/// Everything below a directory, of one instant, in the order of keys: each directory's files, then
/// its subdirectories, each by name. Dropping it ends the walk.
pub struct Walk {
    /// A session of its own; `None` at the end.
    session: Option<Session>,
    entries: VecDeque<Entry>,
}

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

/// A watch of a directory; see [`Client::watch`].
pub struct Watch<'c> {
    client: &'c Client,
    path: Vec<u8>,
    position: Vec<u8>,
}

impl Client {
    /// Begins to give everything below a directory that `listing` lets through. Links are not
    /// followed, and snapshots not shown. Directories that are closed to the caller are given
    /// whatever `listing` says.
    ///
    /// # Errors
    /// ENOTDIR, EACCES and those of paths; [`Error::NoServer`]. Of an entry: [`Error::Lost`] if the
    /// server went away in the middle, ETIMEDOUT if the walk was left alone for a minute.
    pub fn walk(&self, path: impl AsRef<[u8]>, listing: &Listing) -> Result<Walk> {
        let mut session = Session::begin(&self.directory)?;
        let call = Call::Walk { path: path.as_ref(), listing: listing.clone() };
        let (entries, more) = session.call(&call).and_then(walk_items)?;
        Ok(Walk { session: more.then_some(session), entries })
    }

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
                let (mut changes, mut more) =
                    session.call(&Call::Changes { path, position }).and_then(first_changes)?;
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

    /// Watches a directory with everything below, from `position` on, however long ago that was.
    ///
    /// # Errors
    /// Those of paths.
    pub fn watch(&self, path: impl AsRef<[u8]>, position: &[u8]) -> Result<Watch<'_>> {
        let path = path.as_ref().to_vec();
        self.stat(&path, Links::Follow)?;
        Ok(Watch { client: self, path, position: position.to_vec() })
    }
}

impl Watch<'_> {
    /// Where the watch has come to.
    pub fn position(&self) -> &[u8] {
        &self.position
    }

    /// Waits until something is changed, and says what; an empty answer after `limit`.
    ///
    /// # Errors
    /// As for [`Client::changes`].
    pub fn wait(&mut self, limit: Duration) -> Result<Changes> {
        let mut waited = Duration::ZERO;
        let mut interval = WATCH_MIN_INTERVAL;
        loop {
            let changes = self.client.changes(&self.path, &self.position)?;
            self.position.clone_from(&changes.position);
            if changes.everything || !changes.paths.is_empty() || waited >= limit {
                return Ok(changes);
            }
            let pause = interval.min(limit - waited);
            std::thread::sleep(pause);
            waited += pause;
            interval = (interval * 2).min(WATCH_MAX_INTERVAL);
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Some(Ok(entry));
            }
            let session = self.session.as_mut()?;
            match session.call(&Call::More).and_then(walk_items) {
                Ok((entries, more)) => {
                    self.entries = entries;
                    if !more {
                        self.session = None;
                    }
                }
                Err(error) => {
                    self.session = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

fn walk_items(reply: Reply<'_>) -> Result<(VecDeque<Entry>, bool)> {
    let mut from = Reader::new(reply.body);
    let mut entries = VecDeque::new();
    while !from.is_empty() {
        let WalkItem { path, stat, is_closed } = WalkItem::decode(&mut from)?;
        entries.push_back(Entry { path: path.to_vec(), stat, is_closed });
    }
    Ok((entries, reply.more))
}

fn first_changes(reply: Reply<'_>) -> Result<(Changes, bool)> {
    let mut from = Reader::new(reply.body);
    let ChangesHead { position, everything } = ChangesHead::decode(&mut from)?;
    let mut changes = Changes { position: position.to_vec(), everything, paths: Vec::new() };
    add_paths(&mut from, &mut changes.paths)?;
    Ok((changes, reply.more))
}

fn add_paths(from: &mut Reader<'_>, paths: &mut Vec<Vec<u8>>) -> std::result::Result<(), Malformed> {
    while !from.is_empty() {
        paths.push(from.bytes()?.to_vec());
    }
    Ok(())
}
