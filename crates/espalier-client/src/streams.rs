//! What comes in pieces: everything below a directory, and what differs between two.

use crate::client::Client;
use crate::error::Result;
use crate::session::{Reply, Session};
use crate::wire::{Call, Change, DiffItem, Listing, Reader, Stat, WalkItem};
use std::collections::VecDeque;

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

/// What differs between two directories: how, and the path below both. Dropping it ends the
/// comparison.
pub struct Diff {
    /// A session of its own; `None` at the end.
    session: Option<Session>,
    found: Differences,
}

/// Differences that have come.
type Differences = VecDeque<(Change, Vec<u8>)>;

impl Client {
    /// Begins to give everything below a directory that `listing` lets through. Links are not
    /// followed, and snapshots not shown. Directories that are closed to the caller are given
    /// whatever `listing` says.
    ///
    /// # Errors
    /// ENOTDIR, EACCES and those of paths; [`Error::NoServer`]. Of an entry: [`Error::Lost`] if the
    /// server went away in the middle, ETIMEDOUT if the walk was left alone for a minute.
    ///
    /// [`Error::NoServer`]: crate::Error::NoServer
    /// [`Error::Lost`]: crate::Error::Lost
    pub fn walk(&self, path: impl AsRef<[u8]>, listing: &Listing) -> Result<Walk> {
        let mut session = Session::begin(&self.directory)?;
        let call = Call::Walk { path: path.as_ref(), listing: listing.clone() };
        let (entries, more) = session.call(&call).and_then(walk_items)?;
        Ok(Walk { session: more.then_some(session), entries })
    }

    /// Begins to give what differs between two directories, of which the older one may lie in a
    /// snapshot (`.snapshots/NAME`): in the order of keys, files with several names last. The time
    /// grows with what differs, not with what there is.
    ///
    /// # Errors
    /// ENOTDIR, EACCES and those of paths; EPERM if the caller is not root, and not everything in
    /// both is its own; [`Error::NoServer`]. Of a difference: [`Error::Lost`] if the server went
    /// away in the middle, ETIMEDOUT if the comparison was left alone for a minute.
    ///
    /// [`Error::NoServer`]: crate::Error::NoServer
    /// [`Error::Lost`]: crate::Error::Lost
    pub fn diff(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<Diff> {
        let mut session = Session::begin(&self.directory)?;
        let call = Call::Diff { old: old.as_ref(), new: new.as_ref() };
        let (found, more) = session.call(&call).and_then(differences)?;
        Ok(Diff { session: more.then_some(session), found })
    }
}

impl Iterator for Diff {
    type Item = Result<(Change, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        next(&mut self.session, &mut self.found, differences)
    }
}

/// The next element of a stream, of which `session` is `None` at the end, and `waiting` is what has
/// come.
fn next<T>(
    session: &mut Option<Session>,
    waiting: &mut VecDeque<T>,
    read: impl Fn(Reply<'_>) -> Result<(VecDeque<T>, bool)>,
) -> Option<Result<T>> {
    loop {
        if let Some(element) = waiting.pop_front() {
            return Some(Ok(element));
        }
        let open = session.as_mut()?;
        match open.call(&Call::More).and_then(&read) {
            Ok((elements, more)) => {
                *waiting = elements;
                if !more {
                    *session = None;
                }
            }
            Err(error) => {
                *session = None;
                return Some(Err(error));
            }
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        next(&mut self.session, &mut self.entries, walk_items)
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

fn differences(reply: Reply<'_>) -> Result<(Differences, bool)> {
    let mut from = Reader::new(reply.body);
    let mut found = VecDeque::new();
    while !from.is_empty() {
        let DiffItem { change, path } = DiffItem::decode(&mut from)?;
        found.push_back((change, path.to_vec()));
    }
    Ok((found, reply.more))
}
