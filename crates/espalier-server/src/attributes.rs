//! Attributes as answers have them.

use espalier_client::wire::Stat;
use espalier_fs::{Attr, FileKind};

/// The file type bits of a mode.
pub(crate) fn kind_bits(kind: FileKind) -> u32 {
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

/// Attributes of a file.
pub(crate) fn stat_of(attr: &Attr) -> Stat {
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
