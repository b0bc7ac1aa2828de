//! File system errors: what the caller must do, what was being done, and the cause.
//!
//! The kinds are the distinctions that POSIX makes; the numbers (errno) exist only in the mount.

use std::fmt;

/// The result of a file system call.
pub type Result<T> = std::result::Result<T, FsError>;

/// What went wrong, in the distinctions that POSIX makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FsErrorKind {
    /// No such file or directory (ENOENT).
    NotFound,
    /// The node id is not, or no longer, known (ESTALE).
    Stale,
    /// The name is taken (EEXIST).
    Exists,
    /// A directory was needed (ENOTDIR).
    NotDirectory,
    /// A directory is not allowed here (EISDIR).
    IsDirectory,
    /// The directory still has entries (ENOTEMPTY).
    NotEmpty,
    /// A name is longer than 255 bytes, or a path longer than a key may be (ENAMETOOLONG).
    NameTooLong,
    /// The store has no room for the operation (ENOSPC).
    NoSpace,
    /// A limit on the space of a tree is reached (EDQUOT).
    QuotaExceeded,
    /// A file with several names cannot cross the border of a limited tree (EXDEV).
    CrossesLimit,
    /// The two paths of the call lie in different volumes (EXDEV).
    CrossesVolumes,
    /// The store is read-only by choice (EROFS).
    ReadOnly,
    /// The caller may not do this (EACCES).
    AccessDenied,
    /// The operation is not permitted on this kind of object (EPERM).
    Permission,
    /// An argument makes no sense (EINVAL).
    Invalid,
    /// A file has as many links as it can have, or a directory as many subdirectories (EMLINK).
    TooManyLinks,
    /// The offset or size is beyond the largest file (EFBIG).
    FileTooLarge,
    /// There is no such extended attribute (ENODATA).
    NoData,
    /// The buffer is too small for the extended attribute (ERANGE).
    Range,
    /// An extended attribute is larger than allowed (E2BIG).
    TooBig,
    /// No data, or no hole, at or after the offset (ENXIO).
    NoSuchOffset,
    /// Too many symbolic links were followed (ELOOP).
    Loop,
    /// The operation is not supported (EOPNOTSUPP).
    Unsupported,
    /// Another user holds the store, or it is in use (EBUSY).
    Busy,
    /// The caller no longer waits; nothing was changed (EINTR).
    Interrupted,
    /// The state that is shown was replaced, and part of it was deleted in order: it has to be
    /// mounted again (ESTALE).
    Gone,
    /// The device fails or has failed, or stored bytes are damaged (EIO).
    Io,
}

/// A failed file system call.
#[derive(Debug, Clone)]
pub struct FsError {
    kind: FsErrorKind,
    message: String,
    source: Option<Box<espalier_engine::Error>>,
}

impl FsError {
    /// An error of `kind`; `message` says what happened and to what.
    pub fn new(kind: FsErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// What kind of error it is.
    pub fn kind(&self) -> FsErrorKind {
        self.kind
    }

    /// Says what was being done, in front of what is there already.
    #[must_use]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}

impl From<espalier_engine::Error> for FsError {
    fn from(source: espalier_engine::Error) -> Self {
        use espalier_engine::ErrorKind as Engine;
        let kind = match source.kind() {
            Engine::NoSpace => FsErrorKind::NoSpace,
            Engine::ReadOnly if source.is_after_failure() => FsErrorKind::Io,
            Engine::ReadOnly => FsErrorKind::ReadOnly,
            Engine::Busy => FsErrorKind::Busy,
            Engine::InvalidArgument => FsErrorKind::Invalid,
            Engine::NotFound => FsErrorKind::NotFound,
            Engine::AlreadyExists => FsErrorKind::Exists,
            Engine::Interrupted => FsErrorKind::Interrupted,
            Engine::Gone => FsErrorKind::Gone,
            _ => FsErrorKind::Io,
        };
        Self { kind, message: source.to_string(), source: Some(Box::new(source)) }
    }
}

/// Shorthand for a failure of `kind` with a message.
pub(crate) fn fail<T>(kind: FsErrorKind, message: impl Into<String>) -> Result<T> {
    Err(FsError::new(kind, message))
}
