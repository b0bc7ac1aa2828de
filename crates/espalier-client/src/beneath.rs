//! Files of the mount by the kernel: what one call of the protocol cannot do as a whole.
//!
//! A path is looked up once, and the file that it leads to stays the file, whatever its names do
//! meanwhile. So a long read is of one file, a long write goes to one, and what is written beside
//! its place is not reached by a link that another user puts there.

use crate::error::{Error, Result};
use crate::wire::Piece;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// How often a path is looked up again that renames got in the way of.
const MAX_RACES: u32 = 100;

/// Opens a path with `directory` as the root of all paths, as the server looks it up. What is
/// mounted below does not belong to the mount. Unlike the server's, paths have 4,095 bytes at most.
///
/// # Errors
/// Those of `openat2`: EXDEV for what lies in something else that is mounted there.
pub fn open_beneath(
    directory: impl AsFd,
    path: impl AsRef<[u8]>,
    flags: OFlags,
    mode: Mode,
) -> io::Result<File> {
    let mut flags = flags | OFlags::CLOEXEC;
    // With a path alone the kernel takes no further flag.
    flags.set(OFlags::NOCTTY, !flags.contains(OFlags::PATH));
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV;
    for _ in 0..MAX_RACES {
        match openat2(&directory, path.as_ref(), flags, mode, resolve) {
            // Something was renamed while the kernel looked at a `..`.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Linux before 5.6, or a container that knows no such call.
            Err(Errno::NOSYS | Errno::PERM) => return open_plainly(directory, path.as_ref(), flags, mode),
            opened => return Ok(opened?.into()),
        }
    }
    Err(Errno::AGAIN.into())
}

/// The same without `openat2`: where a path leads out of the mount, it is refused.
fn open_plainly(directory: impl AsFd, path: &[u8], mut flags: OFlags, mode: Mode) -> io::Result<File> {
    let rest = path.iter().position(|byte| *byte != b'/').map_or(&b"."[..], |begin| &path[begin..]);
    let path = if path.is_empty() { path } else { rest };
    if flags.contains(OFlags::CREATE) {
        // Not where a link leads out.
        flags |= OFlags::NOFOLLOW;
    }
    let device = |file: &rustix::fd::BorrowedFd<'_>| rustix::fs::fstat(file).map(|stat| stat.st_dev);
    let file = File::from(openat(&directory, path, flags, mode)?);
    match device(&file.as_fd())? == device(&directory.as_fd())? {
        true => Ok(file),
        false => Err(Errno::XDEV.into()),
    }
}

/// Opens a regular file to read or write it. A device or a pipe has an error, and is not opened.
///
/// # Errors
/// Those of [`open_beneath`]; EISDIR, and ENXIO for what is no regular file.
pub(crate) fn open_regular(directory: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> io::Result<File> {
    let check = |file: &File| match FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::NXIO),
    };
    match open_beneath(&directory, path, OFlags::PATH, Mode::empty()) {
        Ok(there) => check(&there)?,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) && flags.contains(OFlags::CREATE) => {}
        Err(error) => return Err(error),
    }
    // What comes there meanwhile must not keep this waiting.
    let file = open_beneath(&directory, path, flags | OFlags::NONBLOCK, mode)?;
    check(&file)?;
    Ok(file)
}

/// All of a part of a file, which is one file.
pub(crate) fn read_whole(directory: impl AsFd, piece: &Piece<'_>) -> Result<Vec<u8>> {
    let file = open_regular(directory, piece.path, OFlags::RDONLY, Mode::empty()).map_err(by_kernel)?;
    let size = file.metadata().map_err(by_kernel)?.len();
    let length = piece.length.min(size.saturating_sub(piece.offset));
    let no_memory = || by_kernel(Errno::NOMEM);
    let length = usize::try_from(length).map_err(|_| no_memory())?;
    let mut all = Vec::new();
    all.try_reserve_exact(length).map_err(|_| no_memory())?;
    all.resize(length, 0);
    let mut done = 0;
    while done < all.len() {
        match file.read_at(&mut all[done..], piece.offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(by_kernel(error)),
        }
    }
    all.truncate(done);
    Ok(all)
}

/// What the kernel said, as the server would say it.
pub(crate) fn by_kernel(error: impl Into<io::Error>) -> Error {
    let error = error.into();
    Error::Refused { errno: error.raw_os_error().unwrap_or(libc::EIO), message: error.to_string() }
}
