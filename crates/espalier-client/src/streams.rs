//! What comes in pieces: everything below a directory, and what differs between two.

use crate::client::Client;
use crate::error::{Error, Result};
use crate::idle::IdleSessions;
use crate::session::{REPLACED_LIMIT, Session};
use crate::wire::{Call, Change, DiffItem, Listing, Malformed, Reader, Stat, WalkItem};
use std::time::Instant;

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
pub struct Walk(Stream);

/// What differs between two directories: how, and the path below both. Dropping it ends the
/// comparison.
pub struct Diff(Stream);

/// Elements that come in pieces. A stream has a session to itself until its end. The next piece is
/// asked for before the last one is taken apart, so that the server and its client work side by
/// side.
struct Stream {
    /// `None` at the end.
    session: Option<Session>,
    /// Where the session is put then.
    idle: IdleSessions,
    /// Where in the body of the last answer the next element begins.
    at: usize,
    /// The next piece was asked for.
    more: bool,
    /// A piece was none: the session ends.
    is_malformed: bool,
}

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
        let call = Call::Walk { path: path.as_ref(), listing: listing.clone() };
        Stream::begin(self, &call).map(Walk)
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
        let call = Call::Diff { old: old.as_ref(), new: new.as_ref() };
        Stream::begin(self, &call).map(Diff)
    }
}

impl Walk {
    /// Gives the entries that are left to `each`, until it returns false: as the iterator does, but
    /// paths are not copied.
    ///
    /// # Errors
    /// As of an entry; see [`Client::walk`].
    pub fn visit(&mut self, mut each: impl FnMut(WalkItem<'_>) -> bool) -> Result<()> {
        while self.0.advance()? && self.0.visit_piece(WalkItem::decode, &mut each)? {}
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next(|from| {
            let WalkItem { path, stat, is_closed } = WalkItem::decode(from)?;
            Ok(Entry { path: path.to_vec(), stat, is_closed })
        })
    }
}

impl Iterator for Diff {
    type Item = Result<(Change, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next(|from| {
            let DiffItem { change, path } = DiffItem::decode(from)?;
            Ok((change, path.to_vec()))
        })
    }
}

impl Stream {
    /// Begins the stream of a call, with another session if the server of an idle one went away.
    fn begin(client: &Client, call: &Call<'_>) -> Result<Self> {
        let deadline = Instant::now() + REPLACED_LIMIT;
        loop {
            let mut session = client.session()?;
            match session.call(call).map(|reply| reply.more).and_then(|more| ask_for(&mut session, more)) {
                Ok(more) => {
                    let idle = client.idle.clone();
                    return Ok(Self { session: Some(session), idle, at: 0, more, is_malformed: false });
                }
                Err(error) => {
                    client.idle.give_after(session, Some(&error));
                    if !matches!(error, Error::Lost { .. }) || Instant::now() >= deadline {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Goes on to the next element; false at the end.
    fn advance(&mut self) -> Result<bool> {
        while let Some(session) = &mut self.session {
            if self.at < session.last_body().len() {
                return Ok(true);
            }
            if self.is_malformed {
                self.session = None;
                break;
            }
            if !self.more {
                self.session.take().into_iter().for_each(|session| self.idle.give(session));
                break;
            }
            let came = session.receive().map(|reply| reply.more).and_then(|more| ask_for(session, more));
            self.at = 0;
            match came {
                Ok(more) => self.more = more,
                Err(error) => {
                    // The server has ended the stream, or the session too.
                    let ended = self.session.take();
                    ended.into_iter().for_each(|session| self.idle.give_after(session, Some(&error)));
                    return Err(error);
                }
            }
        }
        Ok(false)
    }

    /// Gives the elements that are left of the piece, which `read` takes from it, to `each` until
    /// that returns false; returns whether to go on.
    fn visit_piece<'s, T>(
        &'s mut self,
        read: impl Fn(&mut Reader<'s>) -> std::result::Result<T, Malformed>,
        mut each: impl FnMut(T) -> bool,
    ) -> Result<bool> {
        let Some(session) = &self.session else { return Ok(false) };
        let body = session.last_body();
        let mut from = Reader::new(&body[self.at..]);
        while !from.is_empty() {
            let goes_on = read(&mut from).map(&mut each);
            self.at = body.len() - from.left();
            match goes_on {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    (self.at, self.is_malformed) = (body.len(), true);
                    return Err(error.into());
                }
            }
        }
        Ok(true)
    }

    /// The next element.
    fn next<T>(
        &mut self,
        read: impl Fn(&mut Reader<'_>) -> std::result::Result<T, Malformed>,
    ) -> Option<Result<T>> {
        let mut found = None;
        let take = |element| {
            found = Some(element);
            false
        };
        match self.advance().and_then(|more| if more { self.visit_piece(read, take) } else { Ok(false) }) {
            Ok(_) => found.map(Ok),
            Err(error) => Some(Err(error)),
        }
    }
}

/// Asks for the next piece if there is `more`, which is returned.
fn ask_for(session: &mut Session, more: bool) -> Result<bool> {
    if more {
        session.begin_call(&Call::More)?;
    }
    Ok(more)
}
