//! Making and replacing many files.

use crate::beneath::{by_kernel, open_beneath};
use crate::client::{Client, fitting, refused};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::wire::{Call, MAX_ITEMS, Malformed, NewItem, RangeList, Reader, WriteFlags, WriteItem, Xattrs};
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags, fchmod, fsetxattr,
    futimens, openat, renameat_with, unlinkat,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const NANOSECONDS: i64 = 1_000_000_000;

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
    /// A file that does not fit into one call is written through the mount, beside its place, under
    /// a name that begins with `.espalier-`, and renamed to it.
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

    /// Writes a file that does not fit into one call, through the mount.
    fn write_large(&self, new: NewItem<'_>, how: WriteFlags) -> Result<()> {
        let file = new.file;
        if file.is_symlink || new.node.is_some() {
            return Err(Error::TooLong);
        }
        let end = file.path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (above, name) = file.path.split_at(end);
        if matches!(name, b"" | b"." | b"..") {
            return Err(by_kernel(rustix::io::Errno::ISDIR));
        }
        if let Some(mode) = how.directories.filter(|_| !above.is_empty()) {
            self.make_directory(above, mode, true)?;
        }
        let above = if above.is_empty() { b"." } else { above };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let above = open_beneath(&self.directory, above, flags, Mode::empty()).map_err(by_kernel)?;
        let mut random = [0; 8];
        // Where there is no random number the name may be taken by another attempt.
        let _ = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
        let beside = format!(".espalier-{:016x}", u64::from_ne_bytes(random));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // With a mode of its own the file gets that at the end, when all of it is there.
        let mode = Mode::from_raw_mode(if file.mode.is_some() { 0o600 } else { 0o666 });
        let made = openat(&above, &*beside, flags, mode).map_err(by_kernel)?;
        let written = fill(File::from(made), &new).and_then(|()| {
            let flags = if how.replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
            Ok(renameat_with(&above, &*beside, &above, name, flags)?)
        });
        if written.is_err() {
            // The error that matters is the first one. A server that is gone leaves the file.
            let _ = unlinkat(&above, &*beside, AtFlags::empty());
        }
        written.map_err(by_kernel)
    }
}

/// Gives an empty file its content, and what it has besides.
fn fill(open: File, new: &NewItem<'_>) -> io::Result<()> {
    let file = &new.file;
    // A new owner takes set-id bits and capabilities away, and so does writing.
    if file.uid.is_some() || file.gid.is_some() {
        std::os::unix::fs::fchown(&open, file.uid, file.gid)?;
    }
    match new.sparse {
        None => open.write_all_at(file.content, 0)?,
        Some((size, _)) => {
            new.pieces().into_iter().try_for_each(|(at, piece)| open.write_all_at(piece, at))?;
            open.set_len(size)?;
        }
    }
    // As the server does it: lists follow the mode, of which they change a part.
    let is_list = |name: &[u8]| name.starts_with(b"system.");
    let set = |(name, value): (&[u8], &[u8])| fsetxattr(&open, name, value, XattrFlags::empty());
    new.xattrs.iter().filter(|(name, _)| !is_list(name)).try_for_each(set)?;
    if let Some(mode) = file.mode {
        fchmod(&open, Mode::from_raw_mode(mode))?;
    }
    new.xattrs.iter().filter(|(name, _)| is_list(name)).try_for_each(set)?;
    let time = |time: Option<i64>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(at) => Timespec { tv_sec: at.div_euclid(NANOSECONDS), tv_nsec: at.rem_euclid(NANOSECONDS) as _ },
    };
    if new.atime.is_some() || file.mtime.is_some() {
        let times = Timestamps { last_access: time(new.atime), last_modification: time(file.mtime) };
        futimens(&open, &times)?;
    }
    Ok(())
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
