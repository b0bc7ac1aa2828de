//! Errors of the file system as errno: the only place where a kind becomes a number.

use espalier_fs::{FileSystem, FsErrorKind, NodeId};

/// A positive errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Errno(pub(super) i32);

/// The result of a call, with an errno for the error. EIO, which means that something is broken, is
/// logged; `path` names what the call was about.
pub(super) fn or_errno<T>(result: espalier_fs::Result<T>, path: impl FnOnce() -> String) -> Result<T, Errno> {
    result.map_err(|error| {
        let number = errno(error.kind());
        if number == libc::EIO {
            let cause = std::error::Error::source(&error).map(tracing::field::display);
            tracing::error!(path = path(), cause, "{error}");
        }
        Errno(number)
    })
}

/// The path of a node, for messages.
pub(super) fn shown_path(fs: &FileSystem, node: NodeId) -> String {
    match fs.path(node) {
        Ok(path) => String::from_utf8_lossy(&path).into_owned(),
        Err(_) => format!("node {}", node.0),
    }
}

/// The error of a file that has no extended attribute `name`. A kernel with SELinux gives labels
/// itself, so a question for one comes from a kernel that has none. `ls -l` puts it for each file,
/// unless it has learned from one that the file system has no labels (coreutils and others
/// remember EOPNOTSUPP for each device, but not ENODATA).
pub(super) fn no_xattr(name: &[u8]) -> Errno {
    Errno(if name == b"security.selinux" { libc::EOPNOTSUPP } else { libc::ENODATA })
}

/// The number of an error, as system calls have it.
pub fn errno(kind: FsErrorKind) -> i32 {
    use FsErrorKind as Kind;
    match kind {
        Kind::NotFound => libc::ENOENT,
        Kind::Stale | Kind::Gone => libc::ESTALE,
        Kind::Exists => libc::EEXIST,
        Kind::NotDirectory => libc::ENOTDIR,
        Kind::IsDirectory => libc::EISDIR,
        Kind::NotEmpty => libc::ENOTEMPTY,
        Kind::NameTooLong => libc::ENAMETOOLONG,
        Kind::NoSpace => libc::ENOSPC,
        Kind::QuotaExceeded => libc::EDQUOT,
        Kind::CrossesLimit | Kind::CrossesVolumes => libc::EXDEV,
        Kind::ReadOnly => libc::EROFS,
        Kind::AccessDenied => libc::EACCES,
        Kind::Permission => libc::EPERM,
        Kind::Invalid => libc::EINVAL,
        Kind::TooManyLinks => libc::EMLINK,
        Kind::FileTooLarge => libc::EFBIG,
        Kind::NoData => libc::ENODATA,
        Kind::Range => libc::ERANGE,
        Kind::TooBig => libc::E2BIG,
        Kind::NoSuchOffset => libc::ENXIO,
        Kind::Loop => libc::ELOOP,
        Kind::Unsupported => libc::EOPNOTSUPP,
        Kind::Busy => libc::EBUSY,
        Kind::Interrupted => libc::EINTR,
        Kind::Io => libc::EIO,
        // A kind that the file system layer has and this table does not.
        _ => libc::EIO,
    }
}
