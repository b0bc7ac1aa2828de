//! What C programs see: structs, constants and opaque handles; and how their pointers are read.

use crate::outcome::invalid;
use espalier_tree::{
    Changes, Diff as TreeDiff, File, Links, Result, Stat as TreeStat, Tree as InnerTree, Walk as TreeWalk,
    Watch as TreeWatch,
};
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::slice;

/// Of options: the image is opened to read only.
pub const ESPALIER_READ_ONLY: u32 = 1;
/// Of options: with the rights of root in the image, instead of those of the process.
pub const ESPALIER_AS_ROOT: u32 = 2;
/// Of a file to be written: it is a symbolic link, and its content the target.
pub const ESPALIER_SYMLINK: u32 = 1;
/// Of writing many: what has the name of a file is left, and the file fails with EEXIST.
pub const ESPALIER_NO_REPLACE: u32 = 1;
/// Of writing many: a missing directory is an error, ENOENT.
pub const ESPALIER_NO_DIRECTORIES: u32 = 2;
/// A mode, user or group that is not given.
pub const ESPALIER_NONE: u32 = 0xffffffff;
/// A time that stays as it is; of a file to be written: the time of the call.
pub const ESPALIER_KEEP: i64 = i64::MIN;
/// The time of the call.
pub const ESPALIER_NOW: i64 = i64::MIN + 1;
/// Of a rename: what has the new name is replaced.
pub const ESPALIER_RENAME_REPLACE: u32 = 0;
/// Of a rename: it fails with EEXIST if something has the new name.
pub const ESPALIER_RENAME_NO_REPLACE: u32 = 1;
/// Of a rename: the two change places.
pub const ESPALIER_RENAME_EXCHANGE: u32 = 2;
/// Of an extended attribute that is set: it is made or replaced.
pub const ESPALIER_XATTR_SET: u32 = 0;
/// Of an extended attribute that is set: it fails with EEXIST if it is there.
pub const ESPALIER_XATTR_CREATE: u32 = 1;
/// Of an extended attribute that is set: it fails with ENODATA if it is not there.
pub const ESPALIER_XATTR_REPLACE: u32 = 2;
/// Of a filter: the range of sizes counts.
pub const ESPALIER_FILTER_SIZE: u32 = 1;
/// Of a filter: the range of times counts.
pub const ESPALIER_FILTER_MTIME: u32 = 2;
/// Of a filter: named pipes.
pub const ESPALIER_KIND_FIFO: u32 = 0x2;
/// Of a filter: character devices.
pub const ESPALIER_KIND_CHARACTER: u32 = 0x4;
/// Of a filter: directories.
pub const ESPALIER_KIND_DIRECTORY: u32 = 0x10;
/// Of a filter: block devices.
pub const ESPALIER_KIND_BLOCK: u32 = 0x40;
/// Of a filter: regular files.
pub const ESPALIER_KIND_FILE: u32 = 0x100;
/// Of a filter: symbolic links.
pub const ESPALIER_KIND_LINK: u32 = 0x400;
/// Of a filter: sockets.
pub const ESPALIER_KIND_SOCKET: u32 = 0x1000;
/// Of a difference: only the newer directory has it.
pub const ESPALIER_ADDED: u32 = 1;
/// Of a difference: only the older directory has it.
pub const ESPALIER_REMOVED: u32 = 2;
/// Of a difference: both have it, with different content or attributes.
pub const ESPALIER_CHANGED: u32 = 3;

/// What lies below a directory of a mount or of an image. Several threads may use it; on a mount
/// their calls come one after the other.
pub struct Tree(pub(crate) InnerTree);

/// A listing or a walk that goes on.
pub struct Walk {
    pub(crate) walk: TreeWalk,
    /// The path of the entry that was given last.
    pub(crate) path: CString,
}

/// A comparison of two directories that goes on.
pub struct Diff {
    pub(crate) diff: TreeDiff,
    /// The path of the difference that was given last.
    pub(crate) path: CString,
}

/// An open file.
pub struct OpenFile(pub(crate) File);

/// A watch of a directory.
pub struct Watch(pub(crate) TreeWatch);

/// What was changed below a directory.
pub struct ChangeList {
    pub(crate) changes: Changes,
    pub(crate) paths: Vec<CString>,
}

/// How an image that is not mounted is opened. Zeros are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Memory of the store in bytes; 0: 256 MiB.
    pub memory_bytes: u64,
    /// How long another process that has the image open is waited for, in milliseconds; 0: 5000,
    /// less than 0: not at all.
    pub wait_ms: i32,
    /// ESPALIER_READ_ONLY, ESPALIER_AS_ROOT.
    pub flags: u32,
}

/// The attributes of a file.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Stat {
    /// Its number.
    pub ino: u64,
    /// Device number of a device file, as makedev makes it.
    pub rdev: u64,
    /// Bytes; of a directory, entries.
    pub size: u64,
    /// Space that the data takes, in units of 512 bytes.
    pub blocks: u64,
    /// Last read, in nanoseconds since the Unix epoch.
    pub atime_ns: i64,
    /// Last change of the content.
    pub mtime_ns: i64,
    /// Last change of content or attributes.
    pub ctime_ns: i64,
    /// Creation.
    pub btime_ns: i64,
    /// Type and permissions, as st_mode.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The unit of data that is efficient to write, in bytes.
    pub blksize: u32,
    /// 0.
    pub reserved: u32,
}

/// What a listing or a walk gives: entries that are all of this. Zeros let everything through.
/// Directories that are closed to the caller are given in any case.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Filter {
    /// One for names, or with a slash for paths below the directory: `*`, `?`, `[a-z]`, `**`; NULL:
    /// all names.
    pub pattern: *const c_char,
    /// With ESPALIER_FILTER_SIZE: so many bytes at least (of a directory, entries),
    pub size_min: u64,
    /// and at most.
    pub size_max: u64,
    /// With ESPALIER_FILTER_MTIME: the content was last changed then, in nanoseconds since the Unix
    /// epoch, or later,
    pub mtime_min_ns: i64,
    /// and then or sooner.
    pub mtime_max_ns: i64,
    /// ESPALIER_KIND_FILE and others, together; 0: all kinds.
    pub kinds: u32,
    /// ESPALIER_FILTER_SIZE, ESPALIER_FILTER_MTIME.
    pub flags: u32,
}

/// An entry of a listing or a walk.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The name, or the path below the directory of the walk; NULL: there are no more. It stays
    /// until the next call with the walk.
    pub path: *const c_char,
    /// Its attributes. Of a walk, blocks of sparse files are taken for full.
    pub stat: Stat,
    /// 1: a directory that the caller may not list or search; nothing below it is given.
    pub is_closed: u32,
    /// 0.
    pub reserved: u32,
}

/// A part of a file that is to be read.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// The file.
    pub path: *const c_char,
    /// The first byte.
    pub offset: u64,
    /// How many bytes at most; UINT64_MAX: all.
    pub length: u64,
}

/// An extended attribute of a file that is to be made.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Xattr {
    /// The whole name (`user.comment`).
    pub name: *const c_char,
    /// The value; NULL if it has no bytes.
    pub value: *const u8,
    /// Bytes of the value.
    pub length: usize,
}

/// A file that is to be made or replaced.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// Its path.
    pub path: *const c_char,
    /// Its content; NULL if it has no bytes.
    pub content: *const u8,
    /// Bytes of content.
    pub length: usize,
    /// When it was changed last, in nanoseconds since the Unix epoch; ESPALIER_KEEP: now.
    pub mtime_ns: i64,
    /// The low 12 bits of its mode, or ESPALIER_NONE.
    pub mode: u32,
    /// Its owner, or ESPALIER_NONE.
    pub uid: u32,
    /// Its group, or ESPALIER_NONE.
    pub gid: u32,
    /// ESPALIER_SYMLINK.
    pub flags: u32,
    /// Extended attributes, access control lists among them; NULL if there are none.
    pub xattrs: *const Xattr,
    /// How many there are.
    pub xattr_count: usize,
}

impl From<&TreeStat> for Stat {
    fn from(stat: &TreeStat) -> Self {
        Self {
            ino: stat.ino,
            rdev: stat.rdev,
            size: stat.size,
            blocks: stat.blocks,
            atime_ns: stat.atime,
            mtime_ns: stat.mtime,
            ctime_ns: stat.ctime,
            btime_ns: stat.btime,
            mode: stat.mode,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            blksize: stat.blksize,
            reserved: 0,
        }
    }
}

/// The bytes of a string of C.
///
/// # Errors
/// EINVAL for NULL.
///
/// # Safety
/// It is NULL, or a string of C that stays for `'a`.
pub(crate) unsafe fn string<'a>(string: *const c_char) -> Result<&'a [u8]> {
    if string.is_null() {
        return Err(invalid("a string is missing (NULL)"));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(string) }.to_bytes())
}

/// The elements of an array of C.
///
/// # Errors
/// EINVAL for NULL with a length, and for more elements than memory can hold.
///
/// # Safety
/// It has `count` elements that stay, unchanged, for `'a`, or `count` is 0.
pub(crate) unsafe fn array<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid("an array is missing (NULL)")),
        (false, _) => {
            check_count::<T>(count)?;
            // SAFETY: the caller's promise; the length is that of a slice.
            Ok(unsafe { slice::from_raw_parts(first, count) })
        }
    }
}

/// The elements of an array of C that are to be written.
///
/// # Errors
/// EINVAL for NULL with a length, and for more elements than memory can hold.
///
/// # Safety
/// It has `count` elements that nothing else uses for `'a`, or `count` is 0.
pub(crate) unsafe fn array_out<'a, T>(first: *mut T, count: usize) -> Result<&'a mut [MaybeUninit<T>]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(invalid("an array for results is missing (NULL)")),
        (false, _) => {
            check_count::<T>(count)?;
            // SAFETY: the caller's promise; the length is that of a slice, and nothing is said of
            // what is in it.
            Ok(unsafe { slice::from_raw_parts_mut(first.cast(), count) })
        }
    }
}

/// Refuses a number of elements that no array has: nothing is longer than `isize::MAX` bytes.
///
/// # Errors
/// EINVAL.
pub(crate) fn check_count<T>(count: usize) -> Result<()> {
    let bytes = count.checked_mul(size_of::<T>());
    match bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok()) {
        true => Ok(()),
        false => Err(invalid("an array is longer than memory can be")),
    }
}

/// What a handle, or another pointer to one thing, leads to.
///
/// # Errors
/// EINVAL for NULL.
///
/// # Safety
/// It is NULL or leads to a `T` that stays for `'a`.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid("a handle is missing (NULL)"))
}

/// Stores a result where C wants it.
///
/// # Errors
/// EINVAL for NULL.
///
/// # Safety
/// It is NULL or there is room for a `T`.
pub(crate) unsafe fn store<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(invalid("the place for a result is missing (NULL)"));
    }
    // SAFETY: the caller's promise; what was there is not looked at.
    unsafe { place.write(value) };
    Ok(())
}

/// Whether links are followed.
pub(crate) fn links(follow: c_int) -> Links {
    if follow == 0 { Links::Stay } else { Links::Follow }
}

/// An id, or none.
pub(crate) fn id(id: u32) -> Option<u32> {
    (id != ESPALIER_NONE).then_some(id)
}
