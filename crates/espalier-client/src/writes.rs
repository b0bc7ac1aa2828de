//! Making and replacing many files.

use crate::client::{Client, Links, Rename, fitting, refused};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::wire::{Call, MAX_ITEMS, Malformed, Reader, Time, WriteFlags, WriteItem};

/// A file that is to be made, or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a>(WriteItem<'a>);

impl<'a> Write<'a> {
    /// A regular file with this content.
    pub fn file<P: AsRef<[u8]> + ?Sized, C: AsRef<[u8]> + ?Sized>(path: &'a P, content: &'a C) -> Self {
        Self(WriteItem {
            path: path.as_ref(),
            content: content.as_ref(),
            is_symlink: false,
            mode: None,
            uid: None,
            gid: None,
            mtime: None,
        })
    }

    /// A symbolic link to `target`.
    pub fn symlink<P: AsRef<[u8]> + ?Sized, T: AsRef<[u8]> + ?Sized>(path: &'a P, target: &'a T) -> Self {
        let mut link = Self::file(path, target);
        link.0.is_symlink = true;
        link
    }

    /// The same with these low 12 bits as its mode, whatever the umask.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.0.mode = Some(mode & 0o7777);
        self
    }

    /// The same with this owner and group; `None`: as it would be made without.
    #[must_use]
    pub fn with_owner(mut self, uid: Option<u32>, gid: Option<u32>) -> Self {
        (self.0.uid, self.0.gid) = (uid, gid);
        self
    }

    /// The same with this time of the last change, nanoseconds since the Unix epoch.
    #[must_use]
    pub fn with_mtime(mut self, mtime: i64) -> Self {
        self.0.mtime = Some(mtime);
        self
    }

    /// What is to be written.
    pub fn item(&self) -> &WriteItem<'a> {
        &self.0
    }

    fn bytes(&self) -> usize {
        self.0.path.len() + self.0.content.len() + 30
    }

    fn is_large(&self) -> bool {
        self.bytes() > Session::REQUEST_MAX_BYTES - 64
    }
}

impl Client {
    /// Makes many files, or replaces what has their names; each has a result of its own, in the
    /// order in which they were given. Files of one directory are written together, in batches of
    /// which each takes effect as a whole: each file is seen with all of its content and attributes
    /// or not at all, also after a crash. Missing directories are made.
    ///
    /// A file that does not fit into one call is written beside its place, under a name that begins
    /// with `.espalier-`, and renamed to it.
    ///
    /// # Errors
    /// Of each file: those of `open`, `write` and `rename`. [`Error::Lost`] for files of which it
    /// is not known whether they are there, because the server went away; the later ones were
    /// written with the server that came after it, or have [`Error::NoServer`].
    pub fn write_many(&self, files: &[Write<'_>], how: WriteFlags) -> Vec<Result<()>> {
        let mut results = Vec::with_capacity(files.len());
        let mut left = files;
        while let Some(first) = left.first() {
            if first.is_large() {
                results.push(self.write_large(first.0, how));
                left = &left[1..];
                continue;
            }
            let lengths = left.iter().take_while(|file| !file.is_large()).map(Write::bytes);
            let (now, later) = left.split_at(fitting(lengths, MAX_ITEMS));
            left = later;
            let call = Call::WriteMany { how, files: now.iter().map(|file| file.0).collect() };
            match self.ask(&call, |reply| write_results(reply.body, now.len())) {
                Ok(all) => results.extend(all),
                Err(error) => results.extend(of_each(error, now.len())),
            }
        }
        results
    }

    /// Writes a file that does not fit into one call.
    fn write_large(&self, file: WriteItem<'_>, how: WriteFlags) -> Result<()> {
        if file.is_symlink || file.path.len() > Session::REQUEST_MAX_BYTES / 4 {
            return Err(Error::TooLong);
        }
        let end = file.path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let mut random = [0; 8];
        // Where there is no random number the name is that of another attempt, which it replaces.
        let _ = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
        let name = format!(".espalier-{:016x}", u64::from_ne_bytes(random));
        let beside = [&file.path[..end], name.as_bytes()].concat();
        let empty = Write(WriteItem { path: &beside, content: b"", ..file });
        for result in self.write_many(&[empty], WriteFlags { replace: true, ..how }) {
            result?;
        }
        let written = self.write_at(&beside, file.content, 0, None, false).and_then(|()| {
            if let Some(mode) = file.mode {
                // Writing has taken set-id bits away.
                self.set_mode(&beside, mode)?;
            }
            if let Some(mtime) = file.mtime {
                self.set_times(&beside, (Time::Keep, Time::At(mtime)), Links::Stay)?;
            }
            let rename = if how.replace { Rename::Replace } else { Rename::NoReplace };
            self.rename(&beside, file.path, rename)
        });
        if written.is_err() {
            // The error that matters is the first one. A server that is gone leaves the file.
            let _ = self.unlink(&beside);
        }
        written
    }
}

fn write_results(body: &[u8], count: usize) -> Result<Vec<Result<()>>> {
    let mut from = Reader::new(body);
    let mut results = Vec::with_capacity(count);
    while !from.is_empty() {
        results.push(match (from.u32()?, from.bytes()?) {
            (0, _) => Ok(()),
            (errno, message) => Err(refused(errno, message)),
        });
    }
    match results.len() == count {
        true => Ok(results),
        false => Err(Malformed("an answer for more or fewer files than were asked for").into()),
    }
}

/// The error of a call on `count` files, for each of them.
fn of_each(error: Error, count: usize) -> impl Iterator<Item = Result<()>> {
    let again = move |error: &Error| match error {
        Error::Refused { errno, message } => Error::Refused { errno: *errno, message: message.clone() },
        Error::Lost { may_have_changed, source } => {
            let source = std::io::Error::new(source.kind(), source.to_string());
            Error::Lost { may_have_changed: *may_have_changed, source }
        }
        Error::NoServer(source) => Error::NoServer(std::io::Error::new(source.kind(), source.to_string())),
        Error::Malformed(error) => Error::Malformed(*error),
        Error::TooLong => Error::TooLong,
    };
    (0..count).map(move |_| Err(again(&error)))
}
