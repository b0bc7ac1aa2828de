//! Kinds of errors to numbers: the only place where they meet.

use espalier_fs::FsErrorKind;

/// A positive errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Errno(pub(super) i32);

/// The result of a call, with the error as a number. Errors that mean that something is broken are
/// logged; `what` names what the call was about.
pub(super) fn of<T>(result: espalier_fs::Result<T>, what: impl FnOnce() -> String) -> Result<T, Errno> {
    result.map_err(|error| {
        let number = number(error.kind());
        if number == libc::EIO {
            let cause = std::error::Error::source(&error).map(tracing::field::display);
            tracing::error!(path = what(), cause, "{error}");
        }
        Errno(number)
    })
}

fn number(kind: FsErrorKind) -> i32 {
    use FsErrorKind as Kind;
    match kind {
        Kind::NotFound => libc::ENOENT,
        Kind::Stale => libc::ESTALE,
        Kind::Exists => libc::EEXIST,
        Kind::NotDirectory => libc::ENOTDIR,
        Kind::IsDirectory => libc::EISDIR,
        Kind::NotEmpty => libc::ENOTEMPTY,
        Kind::NameTooLong => libc::ENAMETOOLONG,
        Kind::NoSpace => libc::ENOSPC,
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
        // A kind that is new to the layer below and unknown here.
        _ => libc::EIO,
    }
}
