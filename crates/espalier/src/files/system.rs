//! Files of the system, and so of any mount, by ordinary system calls with the rights of the user.
//!
//! No path leads out of the top: the directory of each file is opened from that of the top in a way
//! that follows no links (`RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS`), and the file by its name in
//! that.

use crate::files::tree::{
    Access, Attributes, Data, Files, FilesResult, NewContent, NewFile, OpenFile, TreeEntry, Xattr, fail,
    join, split,
};
use anyhow::{Result, bail};
use espalier_fs::{Attr, FileKind, Filter, FsError, FsErrorKind, NewNode};
use espalier_sync::Mutex;
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, StatxFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Where a file lies until it is complete.
const PART_NAME: &[u8] = b".espalier-part";
/// The longest value of an extended attribute, and the longest list of names, in bytes.
const MAX_XATTR_BYTES: usize = 64 << 10;
const NANOSECONDS: i64 = 1_000_000_000;

/// A tree of the system.
pub(crate) struct SystemFiles {
    /// The directory of the top, or the top if it is no directory.
    top: OwnedFd,
    is_directory: bool,
    /// The directory that was used last, which the next file may share.
    last: Mutex<Option<(Vec<u8>, Arc<OwnedFd>)>>,
}

impl SystemFiles {
    /// The tree at a path.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Self> {
        if access == Access::Make {
            std::fs::create_dir_all(path)?;
        }
        let top = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::fstat(&top)?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if access != Access::Read && !is_directory {
            bail!("a directory is needed");
        }
        Ok(Self { top, is_directory, last: Mutex::new(None) })
    }

    /// Directory and name of a file; the top is `.` in itself.
    fn place<'p>(&self, path: &'p [u8]) -> FilesResult<(Arc<OwnedFd>, &'p [u8])> {
        let (above, name) = split(path);
        let name = if path.is_empty() { b"." } else { name };
        let mut last = self.last.lock();
        if let Some((known, dir)) = &*last
            && known == above
        {
            return Ok((Arc::clone(dir), name));
        }
        let below = if above.is_empty() { b"." } else { above };
        let dir = Arc::new(self.open_below(below, OFlags::PATH | OFlags::DIRECTORY)?);
        *last = Some((above.to_vec(), Arc::clone(&dir)));
        Ok((dir, name))
    }

    fn open_below(&self, path: &[u8], flags: OFlags) -> FilesResult<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat2(&self.top, path, flags, Mode::empty(), resolve).map_err(|error| match error {
            Errno::LOOP | Errno::XDEV => {
                FsError::new(FsErrorKind::Loop, "the path leads through a symbolic link")
            }
            error => failed(error),
        })
    }

    /// A path to a file for calls that take no directory.
    fn by_descriptor(&self, path: &[u8]) -> FilesResult<Vec<u8>> {
        if path.is_empty() {
            return Ok(format!("/proc/self/fd/{}", self.top.as_raw_fd()).into_bytes());
        }
        let (dir, name) = self.place(path)?;
        // It stays open as the last one.
        Ok([format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat())
    }

    /// Opens the top to list it; an error if it is no directory.
    pub(super) fn open_to_list(&self) -> FilesResult<File> {
        self.open_below(b".", OFlags::RDONLY | OFlags::DIRECTORY).map(File::from)
    }

    /// True if a directory may be listed, and what is in it looked at.
    fn may_enter(&self, path: &[u8]) -> bool {
        self.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY)
            .is_ok_and(|dir| rustix::fs::statat(dir, ".", AtFlags::empty()).is_ok())
    }

    /// Gives what is in a directory, and then what is below, until `each` returns false; returns
    /// whether to go on. That is the order in which a store has it.
    fn walk_below(&self, path: &[u8], each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> FilesResult<bool> {
        let mut directories = Vec::new();
        for (name, attr) in self.list(path)? {
            let below = join(path, &name);
            let is_directory = attr.kind == FileKind::Directory;
            let is_closed = is_directory && !self.may_enter(&below);
            if !each(TreeEntry { path: &below, attr, is_closed }) {
                return Ok(false);
            }
            if is_directory && !is_closed {
                directories.push(below);
            }
        }
        for below in directories {
            match self.walk_below(&below, each) {
                Ok(true) => {}
                // It was removed meanwhile.
                Err(error) if error.kind() == FsErrorKind::NotFound => {}
                done => return done,
            }
        }
        Ok(true)
    }

    /// Makes a file under `name`, without attributes.
    fn make(&self, dir: &OwnedFd, name: &[u8], file: &NewFile) -> FilesResult<()> {
        let mode = Mode::from_raw_mode(0o600);
        match &file.content {
            NewContent::Regular(size, pieces) => {
                let open = create(dir, name)?;
                for (offset, data) in pieces {
                    open.write_all_at(data, *offset).map_err(io_failed)?;
                }
                open.set_len(*size).map_err(io_failed)
            }
            NewContent::Symlink(target) => rustix::fs::symlinkat(&target[..], dir, name).map_err(failed),
            NewContent::Node(node) => {
                let (kind, rdev) = match *node {
                    NewNode::Regular => (FileType::RegularFile, 0),
                    NewNode::Fifo => (FileType::Fifo, 0),
                    NewNode::Socket => (FileType::Socket, 0),
                    NewNode::CharDevice(rdev) => (FileType::CharacterDevice, rdev),
                    NewNode::BlockDevice(rdev) => (FileType::BlockDevice, rdev),
                };
                rustix::fs::mknodat(dir, name, kind, mode, rdev).map_err(failed)
            }
        }
    }

    /// Makes a file beside its place with `make`, gives it its attributes, and then its name.
    fn write_aside(&self, file: &NewFile, make: &mut dyn FnMut(&OwnedFd, &[u8]) -> Result<()>) -> Result<()> {
        let (dir, name) = self.place(&file.path)?;
        let is_link = matches!(file.content, NewContent::Symlink(_));
        let mut made = make(&dir, PART_NAME);
        if made.as_ref().err().and_then(|error| error.downcast_ref()).map(FsError::kind)
            == Some(FsErrorKind::Exists)
        {
            // One that was killed has left it.
            remove(&dir, PART_NAME)?;
            made = make(&dir, PART_NAME);
        }
        let written = made.and_then(|()| {
            let (above, _) = split(&file.path);
            self.set_all(&join(above, PART_NAME), &file.attributes, is_link)?;
            Ok(rustix::fs::renameat(&dir, PART_NAME, &dir, name).map_err(failed)?)
        });
        if written.is_err() {
            remove(&dir, PART_NAME)?;
        }
        written
    }

    fn set_all(&self, path: &[u8], attributes: &Attributes, is_link: bool) -> FilesResult<()> {
        let (dir, name) = self.place(path)?;
        let by_descriptor = self.by_descriptor(path)?;
        if let Some((uid, gid)) = attributes.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::chownat(&dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed)?;
        }
        let is_list = |name: &[u8]| name.starts_with(b"system.");
        let set = |(name, value): &Xattr| {
            let set = match path.is_empty() {
                true => rustix::fs::setxattr(&by_descriptor[..], &name[..], value, XattrFlags::empty()),
                false => rustix::fs::lsetxattr(&by_descriptor[..], &name[..], value, XattrFlags::empty()),
            };
            set.map_err(|error| failed(error).context(String::from_utf8_lossy(name)))
        };
        attributes.xattrs.iter().filter(|(name, _)| !is_list(name)).try_for_each(set)?;
        if !is_link {
            let mode = Mode::from_raw_mode(attributes.mode & 0o7777);
            rustix::fs::chmodat(&dir, name, mode, AtFlags::empty()).map_err(failed)?;
        }
        attributes.xattrs.iter().filter(|(name, _)| is_list(name)).try_for_each(set)?;
        let time = |time: Option<i64>| match time {
            Some(at) => Timespec { tv_sec: at.div_euclid(NANOSECONDS), tv_nsec: at.rem_euclid(NANOSECONDS) },
            None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        };
        let times =
            Timestamps { last_access: time(attributes.atime), last_modification: time(attributes.mtime) };
        rustix::fs::utimensat(&dir, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)
    }
}

impl Files for SystemFiles {
    fn stat(&self, path: &[u8]) -> FilesResult<Attr> {
        if path.is_empty() {
            return stat(&self.top, b"", AtFlags::EMPTY_PATH);
        }
        let (dir, name) = self.place(path)?;
        stat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn list(&self, path: &[u8]) -> FilesResult<Vec<(Vec<u8>, Attr)>> {
        if !self.is_directory {
            return fail(FsErrorKind::NotDirectory, "not a directory");
        }
        let below = if path.is_empty() { b"." } else { path };
        let dir = self.open_below(below, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort_unstable();
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            match stat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
                // It was removed meanwhile.
                Err(error) if error.kind() == FsErrorKind::NotFound => {}
                attr => all.push((name, attr?)),
            }
        }
        Ok(all)
    }

    fn walk(&self, filter: &Filter, each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> FilesResult<()> {
        let mut each = |entry: TreeEntry<'_>| {
            let is_wanted = entry.is_closed || filter.matches(entry.path, &entry.attr);
            !is_wanted || each(entry)
        };
        self.walk_below(b"", &mut each).map(drop)
    }

    fn read_link(&self, path: &[u8]) -> FilesResult<Vec<u8>> {
        let (dir, name) = self.place(path)?;
        Ok(rustix::fs::readlinkat(&dir, name, Vec::new()).map_err(failed)?.into_bytes())
    }

    fn xattrs(&self, path: &[u8]) -> FilesResult<Vec<Xattr>> {
        let place = self.by_descriptor(path)?;
        let mut buffer = vec![0; MAX_XATTR_BYTES];
        let listed = match path.is_empty() {
            true => rustix::fs::listxattr(&place[..], &mut buffer[..]),
            false => rustix::fs::llistxattr(&place[..], &mut buffer[..]),
        };
        let length = match listed {
            Err(Errno::OPNOTSUPP) => 0,
            length => length.map_err(failed)?,
        };
        let names: Vec<Vec<u8>> = buffer[..length]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            let read = match path.is_empty() {
                true => rustix::fs::getxattr(&place[..], &name[..], &mut buffer[..]),
                false => rustix::fs::lgetxattr(&place[..], &name[..], &mut buffer[..]),
            };
            let length = read.map_err(failed)?;
            all.push((name, buffer[..length].to_vec()));
        }
        Ok(all)
    }

    fn open<'f>(&'f self, path: &[u8]) -> FilesResult<Box<dyn OpenFile + 'f>> {
        // A pipe must not keep this waiting.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = match path.is_empty() {
            true => rustix::fs::open(self.by_descriptor(path)?, flags, Mode::empty()).map_err(failed)?,
            false => self.open_below(path, flags)?,
        };
        let file = File::from(opened);
        let metadata = file.metadata().map_err(io_failed)?;
        if metadata.is_dir() {
            return fail(FsErrorKind::IsDirectory, "is a directory");
        }
        if !metadata.is_file() {
            return fail(FsErrorKind::Unsupported, "only a file has content");
        }
        Ok(Box::new(SystemFile { file, size: metadata.len() }))
    }

    fn write_many(&self, files: &[NewFile], told: &mut dyn FnMut(usize, FilesResult<()>)) {
        for (at, file) in files.iter().enumerate() {
            let mut make = |dir: &OwnedFd, name: &[u8]| Ok(self.make(dir, name, file)?);
            let written =
                self.write_aside(file, &mut make).map_err(|error| match error.downcast::<FsError>() {
                    Ok(error) => error,
                    Err(error) => FsError::new(FsErrorKind::Io, format!("{error:#}")),
                });
            told(at, written);
        }
    }

    fn write_large(&self, file: &NewFile, size: u64, data: &mut dyn Data) -> Result<()> {
        self.write_aside(file, &mut |dir, name| {
            let open = create(dir, name)?;
            let mut buffer = Vec::new();
            while let Some(offset) = data.next(&mut buffer)? {
                open.write_all_at(&buffer, offset).map_err(io_failed)?;
            }
            Ok(open.set_len(size).map_err(io_failed)?)
        })
    }

    fn make_directory(&self, path: &[u8], mode: u32) -> FilesResult<()> {
        let (dir, name) = self.place(path)?;
        rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode)).map_err(failed)
    }

    fn set_attributes(&self, path: &[u8], attributes: &Attributes) -> FilesResult<()> {
        self.set_all(path, attributes, false)
    }

    fn link(&self, old: &[u8], new: &[u8]) -> FilesResult<()> {
        let (from, name) = self.place(old)?;
        let (to, new_name) = self.place(new)?;
        match rustix::fs::linkat(&from, name, &to, new_name, AtFlags::empty()) {
            Err(Errno::EXIST) => {}
            done => return done.map_err(failed),
        }
        remove(&to, PART_NAME)?;
        rustix::fs::linkat(&from, name, &to, PART_NAME, AtFlags::empty()).map_err(failed)?;
        let renamed = rustix::fs::renameat(&to, PART_NAME, &to, new_name).map_err(failed);
        // A rename between two names of one file leaves both.
        remove(&to, PART_NAME)?;
        renamed
    }

    fn sync(&self) -> FilesResult<()> {
        let dir = self.open_below(b".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        rustix::fs::syncfs(dir).map_err(failed)
    }
}

/// An open file of the system.
struct SystemFile {
    file: File,
    size: u64,
}

impl OpenFile for SystemFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn extents(&self) -> FilesResult<Vec<Range<u64>>> {
        let (mut extents, mut at) = (Vec::new(), 0);
        while at < self.size {
            let begin = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break,
                begin => begin.map_err(failed)?,
            };
            let end = rustix::fs::seek(&self.file, SeekFrom::Hole(begin)).map_err(failed)?;
            // A faulty file system could keep this going for ever.
            if begin < at || end < begin {
                return fail(FsErrorKind::Io, "where its content lies is told wrong");
            }
            at = end.min(self.size).max(begin + 1);
            if begin < self.size {
                extents.push(begin..at);
            }
        }
        Ok(extents)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> FilesResult<usize> {
        let mut done = 0;
        while done < out.len() {
            match self.file.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(length) => done += length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_failed(error)),
            }
        }
        Ok(done)
    }
}

/// Makes a new regular file to write.
fn create(dir: &OwnedFd, name: &[u8]) -> FilesResult<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600)).map_err(failed)?))
}

/// Removes a file, if there is one.
fn remove(dir: &OwnedFd, name: &[u8]) -> FilesResult<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed.map_err(failed),
    }
}

fn stat(dir: impl AsFd, name: &[u8], flags: AtFlags) -> FilesResult<Attr> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = rustix::fs::statx(dir, name, flags, wanted).map_err(failed)?;
    let kind = FileKind::of_mode(u32::from(stat.stx_mode)).unwrap_or(FileKind::Regular);
    let time = |time: &rustix::fs::StatxTimestamp| {
        time.tv_sec.saturating_mul(NANOSECONDS).saturating_add(i64::from(time.tv_nsec))
    };
    Ok(Attr {
        ino: stat.stx_ino,
        kind,
        mode: u32::from(stat.stx_mode) & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        blksize: stat.stx_blksize,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
        btime: time(&stat.stx_btime),
    })
}

/// What the system says with an error number, as the library says it.
pub(super) fn failed_with(errno: i32) -> FsError {
    io_failed(std::io::Error::from_raw_os_error(errno))
}

/// What the system says, as the library says it.
fn failed(error: Errno) -> FsError {
    io_failed(std::io::Error::from(error))
}

fn io_failed(error: std::io::Error) -> FsError {
    use std::io::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::NotFound => FsErrorKind::NotFound,
        Kind::AlreadyExists => FsErrorKind::Exists,
        Kind::NotADirectory => FsErrorKind::NotDirectory,
        Kind::IsADirectory => FsErrorKind::IsDirectory,
        Kind::PermissionDenied => FsErrorKind::AccessDenied,
        Kind::StorageFull => FsErrorKind::NoSpace,
        Kind::QuotaExceeded => FsErrorKind::QuotaExceeded,
        Kind::ReadOnlyFilesystem => FsErrorKind::ReadOnly,
        Kind::InvalidInput => FsErrorKind::Invalid,
        Kind::InvalidFilename => FsErrorKind::NameTooLong,
        Kind::Unsupported => FsErrorKind::Unsupported,
        _ => FsErrorKind::Io,
    };
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    FsError::new(kind, text)
}
