//! Kinds of requests as they are counted: by operation code.

use crate::protocol::flags::opcode;

/// Operation codes that are counted; higher ones count as the last.
pub(super) const KINDS: usize = 64;

/// Where requests with operation code `code` are counted.
pub(super) fn kind_of(code: u32) -> usize {
    (code as usize).min(KINDS - 1)
}

/// The name of the kind with operation code `code`.
pub(crate) fn kind_name(code: u32) -> &'static str {
    name(kind_of(code))
}

/// The name of a kind: the kernel's, in lower case.
pub(super) fn name(kind: usize) -> &'static str {
    match kind as u32 {
        opcode::LOOKUP => "lookup",
        opcode::FORGET => "forget",
        opcode::GETATTR => "getattr",
        opcode::SETATTR => "setattr",
        opcode::READLINK => "readlink",
        opcode::SYMLINK => "symlink",
        opcode::MKNOD => "mknod",
        opcode::MKDIR => "mkdir",
        opcode::UNLINK => "unlink",
        opcode::RMDIR => "rmdir",
        opcode::RENAME => "rename",
        opcode::RENAME2 => "rename2",
        opcode::LINK => "link",
        opcode::OPEN => "open",
        opcode::READ => "read",
        opcode::WRITE => "write",
        opcode::STATFS => "statfs",
        opcode::RELEASE => "release",
        opcode::FSYNC => "fsync",
        opcode::SETXATTR => "setxattr",
        opcode::GETXATTR => "getxattr",
        opcode::LISTXATTR => "listxattr",
        opcode::REMOVEXATTR => "removexattr",
        opcode::FLUSH => "flush",
        opcode::OPENDIR => "opendir",
        opcode::READDIR => "readdir",
        opcode::RELEASEDIR => "releasedir",
        opcode::FSYNCDIR => "fsyncdir",
        opcode::ACCESS => "access",
        opcode::CREATE => "create",
        opcode::IOCTL => "ioctl",
        opcode::BATCH_FORGET => "batch_forget",
        opcode::FALLOCATE => "fallocate",
        opcode::READDIRPLUS => "readdirplus",
        opcode::LSEEK => "lseek",
        opcode::COPY_FILE_RANGE => "copy_file_range",
        opcode::COPY_FILE_RANGE_64 => "copy_file_range_64",
        opcode::SYNCFS => "syncfs",
        opcode::TMPFILE => "tmpfile",
        opcode::STATX => "statx",
        _ => "other",
    }
}
