//! The client: calls on many files, and on one.

use crate::beneath::{by_kernel, open_regular};
use crate::error::{Error, Result};
use crate::idle::IdleSessions;
use crate::session::{REPLACED_INTERVAL, REPLACED_LIMIT, Reply, Session};
use crate::wire::{Call, MAX_ITEMS, Malformed, Reader, Stat, Time, WelcomeFlags};
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// It is followed.
    Follow,
    /// The call is on the link.
    Stay,
}

/// How a rename treats what has the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// It is replaced.
    Replace,
    /// The rename fails.
    NoReplace,
    /// The two change places.
    Exchange,
}

/// A client of a running mount. Calls of several threads come one after the other; each thread may
/// have a client of its own.
///
/// Paths begin at the directory with which the client began, which `..` and links do not leave.
///
/// If the server is replaced (`espalier mount --replace`), the client goes on with the other one: a
/// call that changes nothing is made again, and of one that does [`Error::Lost`] says that it may
/// have been carried out.
pub struct Client {
    /// Shared with its watches, which may outlive it.
    pub(crate) directory: Arc<File>,
    /// Held for a call: those of several threads come one after the other.
    turn: Mutex<()>,
    /// Sessions that no call and no stream uses. A call takes one, and gives it back.
    pub(crate) idle: IdleSessions,
}

impl Client {
    /// Begins at `directory`, which lies in a mount of Espalier and which the process may list.
    ///
    /// # Errors
    /// [`Error::NoServer`].
    pub fn connect(directory: impl AsRef<Path>) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open(directory.as_ref(), flags, Mode::empty());
        Self::at(File::from(opened.map_err(|error| Error::NoServer(error.into()))?))
    }

    /// Begins at an open directory.
    ///
    /// # Errors
    /// [`Error::NoServer`].
    pub fn at(directory: File) -> Result<Self> {
        let idle = IdleSessions::default();
        idle.give(Session::begin(&directory)?);
        Ok(Self { directory: Arc::new(directory), turn: Mutex::default(), idle })
    }

    /// What the server says of the session.
    ///
    /// # Errors
    /// [`Error::NoServer`].
    pub fn flags(&self) -> Result<WelcomeFlags> {
        self.with_session(|session| Ok(session.flags))
    }

    /// A session that nothing uses; it is begun if there is none.
    ///
    /// # Errors
    /// [`Error::NoServer`].
    pub(crate) fn session(&self) -> Result<Session> {
        self.idle.take().map_or_else(|| Session::begin(&self.directory), Ok)
    }

    /// Calls `work` with a session, which is given up unless the server answered.
    pub(crate) fn with_session<T>(&self, work: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        // Nothing is guarded that a panic could leave half done.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut session = self.session()?;
        let result = work(&mut session);
        self.idle.give_after(session, result.as_ref().err());
        result
    }

    /// Makes a call, and again if the server went away, as it does when it is replaced, and the
    /// call changes nothing.
    pub(crate) fn ask<T>(&self, call: &Call<'_>, read: impl Fn(Reply<'_>) -> Result<T>) -> Result<T> {
        self.again(|session| session.call(call).and_then(&read))
    }

    /// Does `work`, and again if the server went away and the work changes nothing.
    pub(crate) fn again<T>(&self, work: impl Fn(&mut Session) -> Result<T>) -> Result<T> {
        let once = || self.with_session(&work);
        let deadline = Instant::now() + REPLACED_LIMIT;
        loop {
            match once() {
                Err(Error::Lost { may_have_changed: false, .. }) if Instant::now() < deadline => {
                    std::thread::sleep(REPLACED_INTERVAL);
                }
                result => return result,
            }
        }
    }

    pub(crate) fn change(&self, call: &Call<'_>) -> Result<()> {
        self.ask(call, |_| Ok(()))
    }

    /// The attributes of a file.
    ///
    /// # Errors
    /// As for [`Client::stat_many`]; the result of the one file.
    pub fn stat(&self, path: impl AsRef<[u8]>, links: Links) -> Result<Stat> {
        let mut all = self.stat_many(&[path.as_ref()], links)?;
        all.pop().unwrap_or(Err(Malformed("an answer for no file").into()))
    }

    /// The attributes of many files, in the order in which they were asked for. Each is of an
    /// instant of its own, and has a result of its own.
    ///
    /// # Errors
    /// [`Error::Lost`] if the server went away and another one did too; [`Error::NoServer`]. Of
    /// each file: those of `stat`; [`Error::TooLong`] for a path that no call takes.
    pub fn stat_many<P: AsRef<[u8]>>(&self, paths: &[P], links: Links) -> Result<Vec<Result<Stat>>> {
        // An answer has room for so many.
        let most = MAX_ITEMS.min(Session::REQUEST_MAX_BYTES / (Stat::BYTES + 8));
        let mut results = Vec::with_capacity(paths.len());
        let mut left = paths;
        while !left.is_empty() {
            let count = fitting(left.iter().map(|path| path.as_ref().len() + 4), most);
            let (now, later) = left.split_at(count);
            let paths = now.iter().map(AsRef::as_ref).collect();
            let call = Call::Stat { follow: links == Links::Follow, paths };
            let found = self.ask(&call, |reply| stats(reply.body, count));
            results.extend(too_long_alone(found)?);
            left = later;
        }
        Ok(results)
    }

    /// Writes `data` at byte `offset` of a file, as `pwrite` does. With `create` the file is made
    /// with this mode if it is missing; with `truncate` it is emptied before. What does not fit
    /// into one call is written through the mount, so that all of it goes to one file.
    ///
    /// # Errors
    /// The errors of `open` and `write`; what was written before an error of a longer write stays.
    pub fn write_at(
        &self,
        path: impl AsRef<[u8]>,
        data: &[u8],
        offset: u64,
        create: Option<u32>,
        truncate: bool,
    ) -> Result<()> {
        let path = path.as_ref();
        let most = Session::REQUEST_MAX_BYTES.checked_sub(path.len() + 64).ok_or(Error::TooLong)?;
        if data.len() <= most {
            return self.change(&Call::WriteAt { path, create, truncate, offset, data });
        }
        let mut flags = OFlags::WRONLY;
        flags.set(OFlags::CREATE, create.is_some());
        flags.set(OFlags::TRUNC, truncate);
        let mode = Mode::from_raw_mode(create.unwrap_or(0) & 0o7777);
        let file = open_regular(&self.directory, path, flags, mode).map_err(by_kernel)?;
        file.write_all_at(data, offset).map_err(by_kernel)
    }

    /// Makes a directory, with `parents` also those above that are missing, and then without an
    /// error if it is there.
    ///
    /// # Errors
    /// Those of `mkdir`.
    pub fn make_directory(&self, path: impl AsRef<[u8]>, mode: u32, parents: bool) -> Result<()> {
        self.change(&Call::MakeDirectory { path: path.as_ref(), mode, parents })
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// Those of `symlink`.
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        self.change(&Call::Symlink { target: target.as_ref(), path: path.as_ref() })
    }

    /// Gives the file at `old` another name.
    ///
    /// # Errors
    /// Those of `link`.
    pub fn link(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<()> {
        self.change(&Call::Link { old: old.as_ref(), new: new.as_ref() })
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// Those of `unlink`.
    pub fn unlink(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.change(&Call::Unlink { path: path.as_ref() })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of `rmdir`.
    pub fn remove_directory(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.change(&Call::RemoveDirectory { path: path.as_ref() })
    }

    /// Moves what is at `old` to `new`.
    ///
    /// # Errors
    /// Those of `renameat2`.
    pub fn rename(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>, how: Rename) -> Result<()> {
        let how = match how {
            Rename::Replace => 0,
            Rename::NoReplace => 1,
            Rename::Exchange => 2,
        };
        self.change(&Call::Rename { old: old.as_ref(), new: new.as_ref(), how })
    }

    /// Sets the mode: the low 12 bits.
    ///
    /// # Errors
    /// Those of `chmod`.
    pub fn set_mode(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        self.change(&Call::SetMode { path: path.as_ref(), mode })
    }

    /// Sets owner and group; `None` leaves as it is.
    ///
    /// # Errors
    /// Those of `chown`.
    pub fn set_owner(
        &self,
        path: impl AsRef<[u8]>,
        uid: Option<u32>,
        gid: Option<u32>,
        links: Links,
    ) -> Result<()> {
        let (uid, gid) = (uid.unwrap_or(u32::MAX), gid.unwrap_or(u32::MAX));
        self.change(&Call::SetOwner { path: path.as_ref(), uid, gid, follow: links == Links::Follow })
    }

    /// Sets the times of the last read and of the last change of the content.
    ///
    /// # Errors
    /// Those of `utimensat`.
    pub fn set_times(
        &self,
        path: impl AsRef<[u8]>,
        (atime, mtime): (Time, Time),
        links: Links,
    ) -> Result<()> {
        self.change(&Call::SetTimes { path: path.as_ref(), atime, mtime, follow: links == Links::Follow })
    }

    /// Gives a file `size` bytes.
    ///
    /// # Errors
    /// Those of `truncate`.
    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        self.change(&Call::Truncate { path: path.as_ref(), size })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Those of `readlink`.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.ask(&Call::ReadLink { path: path.as_ref() }, |reply| Ok(reply.body.to_vec()))
    }

    /// Removes a directory with everything below, in one step.
    ///
    /// # Errors
    /// Those of `rmdir`; EPERM if the caller is not root, and something there is not its own.
    pub fn remove_tree(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.change(&Call::RemoveTree { path: path.as_ref() })
    }

    /// Makes `new` a clone of what is at `old` with everything below, in one step.
    ///
    /// # Errors
    /// Those of `mkdir` for `new`; EPERM if the caller is not root, and not all of `old` is its
    /// own.
    pub fn clone_tree(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<()> {
        self.change(&Call::CloneTree { old: old.as_ref(), new: new.as_ref() })
    }

    /// Sets owner and group of what is at a path and of everything below, in one step; `None`
    /// leaves as it is.
    ///
    /// # Errors
    /// EPERM unless the caller is root.
    pub fn own_tree(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let (uid, gid) = (uid.unwrap_or(u32::MAX), gid.unwrap_or(u32::MAX));
        self.change(&Call::OwnTree { path: path.as_ref(), uid, gid })
    }

    /// Changes the modes of what is at a path and of everything below but links, in one step. The
    /// bits are those of directories that stay, those that are added, the same two of files, and
    /// those added to files that are executable.
    ///
    /// # Errors
    /// EPERM if the caller is not root, and something there is not its own.
    pub fn mode_tree(&self, path: impl AsRef<[u8]>, bits: [u32; 5]) -> Result<()> {
        self.change(&Call::ModeTree { path: path.as_ref(), bits })
    }

    /// Makes everything durable that was done so far, by any program.
    ///
    /// # Errors
    /// EIO if the device fails.
    pub fn sync(&self) -> Result<()> {
        self.change(&Call::Sync)
    }
}

/// How many of the first elements with these lengths fit into a call: one at least, at most `most`.
pub(crate) fn fitting(lengths: impl Iterator<Item = usize>, most: usize) -> usize {
    const HEAD_BYTES: usize = 16;
    let mut total = HEAD_BYTES;
    let fits = |length: &usize| {
        total += length;
        total <= Session::REQUEST_MAX_BYTES
    };
    lengths.take(most).take_while(fits).count().max(1)
}

/// The results of a call on the first of many files. A path that does not fit into a call was asked
/// for alone ([`fitting`]), and no other file fails because of it.
pub(crate) fn too_long_alone<T>(found: Result<Vec<Result<T>>>) -> Result<Vec<Result<T>>> {
    match found {
        Err(Error::TooLong) => Ok(vec![Err(Error::TooLong)]),
        found => found,
    }
}

fn stats(body: &[u8], count: usize) -> Result<Vec<Result<Stat>>> {
    let mut from = Reader::new(body);
    let mut results = Vec::with_capacity(count);
    for _ in 0..count {
        results.push(match from.u32()? {
            0 => Ok(Stat::decode(&mut from)?),
            errno => Err(refused(errno, &[])),
        });
    }
    from.finish()?;
    Ok(results)
}

/// The error of one file among many; without a message of the server that of the system.
pub(crate) fn refused(errno: u32, message: &[u8]) -> Error {
    let errno = errno.cast_signed();
    let message = match message {
        [] => io::Error::from_raw_os_error(errno).to_string(),
        message => String::from_utf8_lossy(message).into_owned(),
    };
    Error::Refused { errno, message }
}
