//! System calls as values: chosen at random, made on either side, with results that can be
//! compared.

use crate::random::Random;
use crate::trees::TreeCall;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A path in the tree: few names, so that calls meet.
type Name = String;

/// How many files are held open at most.
const HANDLES: u64 = 6;
/// Files reach about this far.
const REACH: u64 = 3 << 20;

#[derive(Debug, Clone)]
pub(crate) enum Call {
    Open { handle: usize, path: Name, flags: OFlags, mode: u32 },
    Close { handle: usize },
    Read { handle: usize, offset: u64, length: usize },
    Write { handle: usize, offset: u64, length: usize, byte: u8 },
    Append { path: Name, length: usize, byte: u8 },
    MapWrite { handle: usize, offset: u64, length: usize, byte: u8 },
    Direct { path: Name, offset: u64, length: usize, byte: Option<u8> },
    SetSize { handle: usize, size: u64 },
    Truncate { path: Name, size: u64 },
    Allocate { handle: usize, offset: u64, length: u64, how: FallocateFlags },
    Copy { from: usize, from_offset: u64, to: usize, to_offset: u64, length: usize },
    Sync { handle: usize },
    StatHandle { handle: usize },
    Stat { path: Name, follow: bool },
    MakeDirectory { path: Name, mode: u32 },
    RemoveDirectory { path: Name },
    Unlink { path: Name },
    Rename { from: Name, to: Name, flags: RenameFlags },
    Link { from: Name, to: Name },
    Symlink { target: Name, path: Name },
    ReadLink { path: Name },
    MakeNode { path: Name, kind: FileType, mode: u32 },
    ChangeMode { path: Name, mode: u32 },
    ChangeOwner { path: Name, uid: u32, gid: u32 },
    SetTimes { path: Name, atime: i64, mtime: i64 },
    List { path: Name },
    SetXattr { path: Name, name: &'static str, length: usize, byte: u8, flags: XattrFlags },
    GetXattr { path: Name, name: &'static str },
    RemoveXattr { path: Name, name: &'static str },
    Tree(TreeCall),
}

fn path(random: &mut Random) -> Name {
    let mut path = String::new();
    for depth in 0..3 {
        if depth > 0 {
            path.push('/');
        }
        path.push_str(random.of(&["a", "b", "c", "d", "e\u{1}", "\u{2}f"]));
        if random.one_in(2) {
            break;
        }
    }
    // A name that is too long, now and then.
    if random.one_in(200) {
        path.push_str(&"x".repeat(255));
    }
    path
}

fn offset(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(100),
        1 => random.below(REACH),
        2 => random.below(REACH) & !0xfff,
        _ => random.below(70_000),
    }
}

fn length(random: &mut Random) -> usize {
    (match random.below(5) {
        0 => random.below(16),
        1 => random.below(300_000),
        2 => 4096 * (1 + random.below(40)),
        _ => random.below(9000),
    }) as usize
}

impl Call {
    pub(crate) fn choose(r: &mut Random) -> Self {
        let handle = r.below(HANDLES) as usize;
        let byte = 1 + r.below(255) as u8;
        let mode = r.of(&[0o644, 0o600, 0o755, 0o4755, 0o2755, 0o1777, 0o000]);
        let xattr = r.of(&["user.a", "user.b", "user.longer-name", "user."]);
        if r.one_in(25) {
            return Self::Tree(TreeCall::choose(r, path));
        }
        match r.below(64) {
            0..8 => {
                let extra = [
                    OFlags::CREATE,
                    OFlags::CREATE | OFlags::EXCL,
                    OFlags::CREATE | OFlags::TRUNC,
                    OFlags::empty(),
                    OFlags::TRUNC,
                    OFlags::DIRECTORY,
                    OFlags::NOFOLLOW,
                ];
                let access =
                    r.of(&[OFlags::RDWR, OFlags::RDWR, OFlags::RDWR, OFlags::RDONLY, OFlags::WRONLY]);
                Self::Open { handle, path: path(r), flags: access | r.of(&extra), mode }
            }
            8 => Self::Close { handle },
            9..13 => Self::Read { handle, offset: offset(r), length: length(r) },
            13..20 => Self::Write { handle, offset: offset(r), length: length(r), byte },
            20 => Self::Append { path: path(r), length: length(r), byte },
            21..23 => {
                Self::MapWrite { handle, offset: offset(r), length: 1 + r.below(20_000) as usize, byte }
            }
            23 => {
                let byte = r.one_in(2).then_some(byte);
                Self::Direct {
                    path: path(r),
                    offset: offset(r) & !0xfff,
                    length: length(r).next_multiple_of(4096),
                    byte,
                }
            }
            24..26 => Self::SetSize { handle, size: offset(r) },
            26 => Self::Truncate { path: path(r), size: offset(r) },
            27..30 => {
                let how = [
                    FallocateFlags::empty(),
                    FallocateFlags::KEEP_SIZE,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                    FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                ];
                Self::Allocate { handle, offset: offset(r), length: r.below(200_000), how: r.of(&how) }
            }
            30..32 => {
                let to = r.below(HANDLES) as usize;
                let (from_offset, to_offset) = (offset(r), offset(r));
                Self::Copy { from: handle, from_offset, to, to_offset, length: length(r) }
            }
            32 => Self::Sync { handle },
            33..36 => Self::StatHandle { handle },
            36..39 => Self::Stat { path: path(r), follow: r.one_in(2) },
            39..43 => Self::MakeDirectory { path: path(r), mode },
            43 => Self::RemoveDirectory { path: path(r) },
            44..47 => Self::Unlink { path: path(r) },
            47..51 => {
                let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
                Self::Rename { from: path(r), to: path(r), flags: r.of(&flags) }
            }
            51..53 => Self::Link { from: path(r), to: path(r) },
            53 => Self::Symlink { target: path(r), path: path(r) },
            54 => Self::ReadLink { path: path(r) },
            55 => {
                let kind = r.of(&[
                    FileType::Fifo,
                    FileType::Socket,
                    FileType::CharacterDevice,
                    FileType::RegularFile,
                ]);
                Self::MakeNode { path: path(r), kind, mode }
            }
            56 => Self::ChangeMode { path: path(r), mode },
            57 => Self::ChangeOwner { path: path(r), uid: r.below(3) as u32, gid: r.below(3) as u32 },
            58 => Self::SetTimes {
                path: path(r),
                atime: r.below(1 << 33) as i64 - (1 << 30),
                mtime: r.below(1 << 33) as i64,
            },
            59 => Self::List { path: path(r) },
            60..62 => {
                let flags = r.of(&[XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE]);
                Self::SetXattr { path: path(r), name: xattr, length: r.below(600) as usize, byte, flags }
            }
            62 => Self::GetXattr { path: path(r), name: xattr },
            _ => Self::RemoveXattr { path: path(r), name: xattr },
        }
    }
}

/// What a call gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nothing,
    Count(u64),
    Bytes(String),
    Names(Vec<Vec<u8>>),
    Attributes { mode: u32, nlink: u64, uid: u32, gid: u32, size: i64, rdev: u64 },
    Times { atime: i64, mtime: i64 },
}

type Outcome = Result<Value, Errno>;

/// One of the two directories, with its open files.
pub(crate) struct Side {
    root: PathBuf,
    handles: Vec<Option<OwnedFd>>,
    /// It is the mount.
    mounted: bool,
    /// Handles of what was removed with a tree while it was open.
    removed: HashSet<usize>,
}

impl Side {
    pub(crate) fn new(root: &Path, mounted: bool) -> Self {
        // Modes are to be what is asked for.
        rustix::process::umask(Mode::empty());
        rustix::fs::chmod(root, Mode::from_raw_mode(0o755)).unwrap();
        Self {
            root: root.to_owned(),
            handles: (0..HANDLES).map(|_| None).collect(),
            mounted,
            removed: HashSet::new(),
        }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Takes note which open files go with a tree that is about to be removed.
    pub(crate) fn note_removed(&mut self, below: &HashSet<u64>) {
        for (handle, file) in self.handles.iter().enumerate() {
            let number = file.as_ref().and_then(|file| rustix::fs::fstat(file).ok()).map(|stat| stat.st_ino);
            if number.is_some_and(|number| below.contains(&number)) {
                self.removed.insert(handle);
            }
        }
    }

    fn handle(&self, handle: usize) -> Result<&OwnedFd, Errno> {
        self.handles[handle].as_ref().ok_or(Errno::BADF)
    }

    pub(crate) fn apply(&mut self, call: &Call) -> Outcome {
        match call {
            Call::Open { handle, path, flags, mode } => {
                // A FIFO would wait for its other end, and device files are not ours to touch.
                let found = rustix::fs::stat(self.at(path)).map(|s| FileType::from_raw_mode(s.st_mode));
                if !matches!(found, Err(_) | Ok(FileType::RegularFile | FileType::Directory)) {
                    return Ok(Value::Nothing);
                }
                let mode = Mode::from_raw_mode(*mode);
                self.handles[*handle] = None;
                self.removed.remove(handle);
                self.handles[*handle] =
                    Some(rustix::fs::open(self.at(path), *flags | OFlags::CLOEXEC, mode)?);
                Ok(Value::Nothing)
            }
            Call::Close { handle } => {
                self.removed.remove(handle);
                self.handles[*handle] = None;
                Ok(Value::Nothing)
            }
            Call::StatHandle { handle } => {
                let mut stat = rustix::fs::fstat(self.handle(*handle)?)?;
                if self.removed.contains(handle) {
                    stat.st_nlink = 0;
                }
                Ok(attributes(&stat))
            }
            Call::Tree(call) => {
                let mounted = self.mounted;
                call.apply(self, mounted)
            }
            Call::Sync { handle } => done(rustix::fs::fsync(self.handle(*handle)?)),
            Call::SetSize { handle, size } => done(rustix::fs::ftruncate(self.handle(*handle)?, *size)),
            Call::Allocate { handle, offset, length, how } => {
                done(rustix::fs::fallocate(self.handle(*handle)?, *how, *offset, *length))
            }
            Call::List { path } => self.list(path),
            _ => self.apply_data(call),
        }
    }

    fn apply_data(&self, call: &Call) -> Outcome {
        match call {
            Call::Read { handle, offset, length } => {
                let mut bytes = vec![0; *length];
                let count = rustix::io::pread(self.handle(*handle)?, &mut bytes, *offset)?;
                Ok(Value::Bytes(digest(&bytes[..count])))
            }
            Call::Write { handle, offset, length, byte } => {
                let bytes = pattern(*byte, *length);
                Ok(Value::Count(rustix::io::pwrite(self.handle(*handle)?, &bytes, *offset)? as u64))
            }
            Call::Append { path, length, byte } => {
                if !self.is_regular(path) {
                    return Ok(Value::Nothing);
                }
                let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
                let file = rustix::fs::open(self.at(path), flags, Mode::empty())?;
                Ok(Value::Count(rustix::io::write(file, &pattern(*byte, *length))? as u64))
            }
            Call::MapWrite { handle, offset, length, byte } => {
                self.map_write(*handle, *offset, *length, *byte)
            }
            Call::Direct { path, offset, length, byte } => self.direct(path, *offset, *length, *byte),
            Call::Copy { from, from_offset, to, to_offset, length } => {
                let (mut from_at, mut to_at) = (*from_offset, *to_offset);
                let (from, to) = (self.handle(*from)?, self.handle(*to)?);
                let mut total = 0;
                // Short copies are allowed; together they are not short.
                while total < *length {
                    let rest = length - total;
                    let count =
                        rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), rest)?;
                    if count == 0 {
                        break;
                    }
                    total += count;
                }
                Ok(Value::Count(total as u64))
            }
            _ => self.apply_names(call),
        }
    }

    fn apply_names(&self, call: &Call) -> Outcome {
        use rustix::fs;
        match call {
            Call::Truncate { path, size } if !self.is_regular(path) => {
                let _ = size;
                Ok(Value::Nothing)
            }
            Call::Truncate { path, size } => {
                let path =
                    std::ffi::CString::new(self.at(path).into_os_string().into_encoded_bytes()).unwrap();
                // SAFETY: the path is a NUL-terminated string.
                match unsafe { libc::truncate(path.as_ptr(), *size as i64) } {
                    0 => Ok(Value::Nothing),
                    _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
                }
            }
            Call::Stat { path, follow: true } => Ok(attributes(&fs::stat(self.at(path))?)),
            Call::Stat { path, .. } => Ok(attributes(&fs::lstat(self.at(path))?)),
            Call::MakeDirectory { path, mode } => done(fs::mkdir(self.at(path), Mode::from_raw_mode(*mode))),
            Call::RemoveDirectory { path } => done(fs::rmdir(self.at(path))),
            Call::Unlink { path } => done(fs::unlink(self.at(path))),
            Call::Rename { from, to, flags } => {
                done(fs::renameat_with(CWD, self.at(from), CWD, self.at(to), *flags))
            }
            Call::Link { from, to } => done(fs::link(self.at(from), self.at(to))),
            Call::Symlink { target, path } => done(fs::symlink(&**target, self.at(path))),
            Call::ReadLink { path } => {
                Ok(Value::Bytes(fs::readlink(self.at(path), Vec::new())?.to_string_lossy().into_owned()))
            }
            Call::MakeNode { path, kind, mode } => {
                let device = if *kind == FileType::CharacterDevice { fs::makedev(1, 3) } else { 0 };
                done(fs::mknodat(CWD, self.at(path), *kind, Mode::from_raw_mode(*mode), device))
            }
            _ => self.apply_attributes(call),
        }
    }

    fn apply_attributes(&self, call: &Call) -> Outcome {
        use rustix::fs;
        match call {
            Call::ChangeMode { path, mode } => done(fs::chmod(self.at(path), Mode::from_raw_mode(*mode))),
            Call::ChangeOwner { path, uid, gid } => {
                let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                done(fs::chownat(CWD, self.at(path), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW))
            }
            Call::SetTimes { path, atime, mtime } => {
                let time = |seconds| Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
                let times = Timestamps { last_access: time(*atime), last_modification: time(*mtime) };
                fs::utimensat(CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW)?;
                let now = fs::lstat(self.at(path))?;
                Ok(Value::Times { atime: now.st_atime as i64, mtime: now.st_mtime as i64 })
            }
            Call::SetXattr { path, name, length, byte, flags } => {
                done(fs::lsetxattr(self.at(path), *name, &pattern(*byte, *length), *flags))
            }
            Call::GetXattr { path, name } => {
                let mut value = vec![0; 65536];
                let length = fs::lgetxattr(self.at(path), *name, &mut value[..])?;
                Ok(Value::Bytes(digest(&value[..length])))
            }
            Call::RemoveXattr { path, name } => done(fs::lremovexattr(self.at(path), *name)),
            _ => unreachable!("every call is made somewhere"),
        }
    }

    fn is_regular(&self, path: &str) -> bool {
        rustix::fs::stat(self.at(path))
            .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile)
    }

    fn list(&self, path: &str) -> Outcome {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(self.at(path), flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(directory)? {
            let entry = entry?;
            names.push(
                [entry.file_name().to_bytes(), format!(" {:?}", entry.file_type()).as_bytes()].concat(),
            );
        }
        names.sort();
        Ok(Value::Names(names))
    }

    /// Writes through a shared mapping, as far as the file reaches.
    fn map_write(&self, handle: usize, offset: u64, length: usize, byte: u8) -> Outcome {
        let file = self.handle(handle)?;
        let stat = rustix::fs::fstat(file)?;
        let start = offset & !0xfff;
        let reach = (stat.st_size as u64).saturating_sub(start).min(length as u64) as usize;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || reach == 0 {
            return Ok(Value::Nothing);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the mapping lies below the end of the file, which is not changed meanwhile,
        // and is unmapped before any other code can see it.
        unsafe {
            let start =
                rustix::mm::mmap(std::ptr::null_mut(), reach, protection, MapFlags::SHARED, file, start)?;
            std::slice::from_raw_parts_mut(start.cast::<u8>(), reach).copy_from_slice(&pattern(byte, reach));
            rustix::mm::munmap(start, reach)?;
        }
        Ok(Value::Count(reach as u64))
    }

    /// Direct I/O: writes, or reads if there is no byte to write.
    fn direct(&self, path: &str, offset: u64, length: usize, byte: Option<u8>) -> Outcome {
        if !self.is_regular(path) {
            return Ok(Value::Nothing);
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = match rustix::fs::open(self.at(path), flags | OFlags::DIRECT, Mode::empty()) {
            // A plain directory on tmpfs.
            Err(Errno::INVAL) => rustix::fs::open(self.at(path), flags, Mode::empty())?,
            file => file?,
        };
        let mut space = vec![0; length + 4096];
        let start = space.as_ptr().align_offset(4096);
        let bytes = &mut space[start..start + length];
        match byte {
            Some(byte) => {
                bytes.copy_from_slice(&pattern(byte, length));
                Ok(Value::Count(rustix::io::pwrite(file, bytes, offset)? as u64))
            }
            None => {
                let count = rustix::io::pread(file, &mut *bytes, offset)?;
                Ok(Value::Bytes(digest(&bytes[..count])))
            }
        }
    }
}

fn done(result: Result<(), Errno>) -> Outcome {
    result.map(|()| Value::Nothing)
}

/// Bytes that differ from place to place.
fn pattern(byte: u8, length: usize) -> Vec<u8> {
    (0..length).map(|n| byte.wrapping_add((n / 509) as u8)).collect()
}

/// Enough of some bytes to see that they differ.
fn digest(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(7u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    format!("{} bytes {sum:016x}", bytes.len())
}

fn attributes(stat: &rustix::fs::Stat) -> Value {
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Value::Attributes {
        mode: stat.st_mode,
        // Directories count differently from one file system to the next.
        nlink: if directory { 0 } else { stat.st_nlink },
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: if directory { 0 } else { stat.st_size },
        rdev: stat.st_rdev,
    }
}
