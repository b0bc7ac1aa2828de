//! Making and replacing many files.

use crate::client::{Client, Links, Rename, fitting, refused};
use crate::details::SetXattr;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::wire::{
    Call, MAX_ITEMS, Malformed, NewItem, RangeList, Reader, Time, WriteFlags, WriteItem, Xattrs,
};

/// A file that is to be made, or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a>(NewItem<'a>);

/// Ranges of a file that are no holes, for [`Write::sparse`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranges(Vec<u8>);

impl Ranges {
    /// From ranges in order, none of which is empty.
    pub fn new(ranges: impl IntoIterator<Item = std::ops::Range<u64>>) -> Self {
        Self(RangeList::put_together(ranges))
    }
}

impl<'a> Write<'a> {
    /// A regular file with this content.
    pub fn file<P: AsRef<[u8]> + ?Sized, C: AsRef<[u8]> + ?Sized>(path: &'a P, content: &'a C) -> Self {
        Self(NewItem::plain(WriteItem {
            path: path.as_ref(),
            content: content.as_ref(),
            is_symlink: false,
            mode: None,
            uid: None,
            gid: None,
            mtime: None,
        }))
    }

    /// A regular file of `size` bytes with holes: only what lies in the ranges is no hole, and
    /// `content` is that, one range after the other. [`Ranges`] puts ranges together.
    pub fn sparse<P: AsRef<[u8]> + ?Sized>(
        path: &'a P,
        size: u64,
        ranges: &'a Ranges,
        content: &'a [u8],
    ) -> Self {
        let mut file = Self::file(path, content);
        file.0.sparse = Some((size, RangeList::of(&ranges.0)));
        file
    }

    /// A named pipe, a socket or a device: `kind` has the file type bits of `st_mode`, and `device`
    /// is as `makedev` makes it, 0 for pipes and sockets.
    pub fn node<P: AsRef<[u8]> + ?Sized>(path: &'a P, kind: u32, device: u64) -> Self {
        let mut node = Self::file(path, b"");
        node.0.node = Some((kind & libc::S_IFMT, device));
        node
    }

    /// A symbolic link to `target`.
    pub fn symlink<P: AsRef<[u8]> + ?Sized, T: AsRef<[u8]> + ?Sized>(path: &'a P, target: &'a T) -> Self {
        let mut link = Self::file(path, target);
        link.0.file.is_symlink = true;
        link
    }

    /// The same with these low 12 bits as its mode, whatever the umask.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.0.file.mode = Some(mode & 0o7777);
        self
    }

    /// The same with this owner and group; `None`: as it would be made without.
    #[must_use]
    pub fn with_owner(mut self, uid: Option<u32>, gid: Option<u32>) -> Self {
        (self.0.file.uid, self.0.file.gid) = (uid, gid);
        self
    }

    /// The same with this time of the last change, nanoseconds since the Unix epoch.
    #[must_use]
    pub fn with_mtime(mut self, mtime: i64) -> Self {
        self.0.file.mtime = Some(mtime);
        self
    }

    /// The same with this time of the last read, nanoseconds since the Unix epoch.
    #[must_use]
    pub fn with_atime(mut self, atime: i64) -> Self {
        self.0.atime = Some(atime);
        self
    }

    /// The same with these extended attributes, access control lists among them.
    #[must_use]
    pub fn with_xattrs(mut self, xattrs: &'a Xattrs) -> Self {
        self.0.xattrs = xattrs.list();
        self
    }

    /// What is to be written.
    pub fn item(&self) -> &NewItem<'a> {
        &self.0
    }

    fn bytes(&self) -> usize {
        let ranges = self.0.sparse.map_or(0, |(_, ranges)| ranges.bytes());
        self.0.file.path.len() + self.0.file.content.len() + self.0.xattrs.bytes() + ranges + 68
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
            let call = match now.iter().all(|file| file.0.is_plain()) {
                true => Call::WriteMany { how, files: now.iter().map(|file| file.0.file).collect() },
                false => Call::MakeMany { how, files: now.iter().map(|file| file.0).collect() },
            };
            match self.ask(&call, |reply| write_results(reply.body, now.len())) {
                Ok(all) => results.extend(all),
                Err(error) => results.extend(of_each(error, now.len())),
            }
        }
        results
    }

    /// Writes a file that does not fit into one call.
    fn write_large(&self, new: NewItem<'_>, how: WriteFlags) -> Result<()> {
        let file = new.file;
        let is_data = !file.is_symlink && new.node.is_none();
        if !is_data || file.path.len() > Session::REQUEST_MAX_BYTES / 4 {
            return Err(Error::TooLong);
        }
        let end = file.path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let mut random = [0; 8];
        // Where there is no random number the name is that of another attempt, which it replaces.
        let _ = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
        let name = format!(".espalier-{:016x}", u64::from_ne_bytes(random));
        let beside = [&file.path[..end], name.as_bytes()].concat();
        let empty = Write(NewItem::plain(WriteItem { path: &beside, content: b"", ..file }));
        for result in self.write_many(&[empty], WriteFlags { replace: true, ..how }) {
            result?;
        }
        let written = self.fill(&beside, &new).and_then(|()| {
            let rename = if how.replace { Rename::Replace } else { Rename::NoReplace };
            self.rename(&beside, file.path, rename)
        });
        if written.is_err() {
            // The error that matters is the first one. A server that is gone leaves the file.
            let _ = self.unlink(&beside);
        }
        written
    }

    /// Gives an empty file its content, and what it has besides.
    fn fill(&self, path: &[u8], new: &NewItem<'_>) -> Result<()> {
        match new.sparse {
            None => self.write_at(path, new.file.content, 0, None, false)?,
            Some((size, _)) => {
                for (at, piece) in new.pieces() {
                    self.write_at(path, piece, at, None, false)?;
                }
                self.truncate(path, size)?;
            }
        }
        // As the server does it: lists follow the mode, of which they change a part.
        let is_list = |name: &[u8]| name.starts_with(b"system.");
        let set = |xattr: (&[u8], &[u8])| self.set_xattr(path, xattr, SetXattr::Set, Links::Stay);
        new.xattrs.iter().filter(|(name, _)| !is_list(name)).try_for_each(set)?;
        if let Some(mode) = new.file.mode {
            // Writing has taken set-id bits away.
            self.set_mode(path, mode)?;
        }
        new.xattrs.iter().filter(|(name, _)| is_list(name)).try_for_each(set)?;
        let time = |time: Option<i64>| time.map_or(Time::Keep, Time::At);
        match (new.atime, new.file.mtime) {
            (None, None) => Ok(()),
            (atime, mtime) => self.set_times(path, (time(atime), time(mtime)), Links::Stay),
        }
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
