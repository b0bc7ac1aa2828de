//! Counts of requests by kind. The cost of a mount is mostly the number of its requests.

use crate::protocol::flags::opcode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operation codes that are counted; higher ones count as the last.
const COUNTED_OPCODES: usize = 64;

/// The requests served since the mount was made, by kind, and the files that were prefetched.
#[derive(Debug)]
pub struct RequestCounts {
    requests: [AtomicU64; COUNTED_OPCODES],
    stored: Arc<AtomicU64>,
}

impl Default for RequestCounts {
    fn default() -> Self {
        Self { requests: std::array::from_fn(|_| AtomicU64::new(0)), stored: Arc::default() }
    }
}

impl RequestCounts {
    pub(super) fn add(&self, code: u32) {
        self.requests[(code as usize).min(COUNTED_OPCODES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// The count of prefetched files.
    pub(crate) fn stored(&self) -> &Arc<AtomicU64> {
        &self.stored
    }

    /// The kinds that came up, in the protocol's order: the kernel's name in lower case, and the
    /// number. Last, as `notify_store`, prefetched files.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let kinds = self.requests.iter().enumerate().map(|(code, count)| (name(code as u32), count));
        let counted = kinds.chain([("notify_store", &*self.stored)]);
        counted.map(|(name, count)| (name, count.load(Ordering::Relaxed))).filter(|(_, count)| *count > 0)
    }
}

fn name(code: u32) -> &'static str {
    match code {
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
