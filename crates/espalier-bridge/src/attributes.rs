//! Attributes, changes of them, and what is asked of them.

use espalier_client::{Change, Listing, Stat, Time};
use espalier_fs::{Attr, FileKind, Filter, ModeChange, SetTime};

/// Every kind of file, with its type bits of a mode.
const KINDS: [(FileKind, u32); 7] = [
    (FileKind::Regular, libc::S_IFREG),
    (FileKind::Directory, libc::S_IFDIR),
    (FileKind::Symlink, libc::S_IFLNK),
    (FileKind::Fifo, libc::S_IFIFO),
    (FileKind::Socket, libc::S_IFSOCK),
    (FileKind::CharDevice, libc::S_IFCHR),
    (FileKind::BlockDevice, libc::S_IFBLK),
];

/// The file type bits of a mode.
fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

/// Attributes as answers have them.
pub fn stat_of(attr: &Attr) -> Stat {
    Stat {
        ino: attr.ino,
        mode: kind_bits(attr.kind) | attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        blocks: attr.blocks,
        blksize: attr.blksize,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
    }
}

/// Which entries of a walk are wanted.
pub fn filter_of(listing: &Listing) -> Filter {
    let is_wanted = |bits: u32| u32::from(listing.kinds) >> (bits >> 12) & 1 != 0;
    let kinds = KINDS.iter().filter(|(_, bits)| is_wanted(*bits)).map(|(kind, _)| *kind).collect();
    Filter {
        pattern: listing.pattern.clone(),
        kinds: (listing.kinds != 0).then_some(kinds),
        size: listing.size.clone(),
        modified: listing.modified.clone(),
    }
}

/// A time that is to be set; `None` if it stays.
pub fn set_time(time: Time) -> Option<SetTime> {
    match time {
        Time::Keep => None,
        Time::Now => Some(SetTime::Now),
        Time::At(at) => Some(SetTime::At(at)),
    }
}

/// A change of modes: bits of directories that stay, those that are added, the same two of files,
/// and those added to files that are executable.
pub fn mode_change(bits: [u32; 5]) -> ModeChange {
    let [keep_directories, add_directories, keep_files, add_files, add_executables] = bits;
    ModeChange { keep_directories, add_directories, keep_files, add_files, add_executables }
}

/// How a path differs between two trees.
pub fn change_of(change: espalier_fs::Change) -> Change {
    match change {
        espalier_fs::Change::Added => Change::Added,
        espalier_fs::Change::Removed => Change::Removed,
        espalier_fs::Change::Changed => Change::Changed,
    }
}

#[cfg(test)]
mod tests;
