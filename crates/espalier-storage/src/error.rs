//! Storage errors: what failed, where, and the cause.

use std::fmt;

/// The result of a storage call.
pub type Result<T> = std::result::Result<T, Error>;

/// What the caller must do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device failed the request; retrying may or may not help, trusting it does not.
    Io,
    /// The range lies outside the device.
    OutOfRange,
    /// The file or device does not exist.
    NotFound,
    /// The caller may not open it.
    PermissionDenied,
    /// Somebody else holds the lock on it.
    Busy,
    /// It was opened read-only, or the medium is write-protected.
    ReadOnly,
    /// The medium below has no room left.
    NoSpace,
    /// It is neither a regular file nor a block device.
    Unsupported,
}

/// The device call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the calls")]
pub enum Operation {
    Open,
    Read,
    Write,
    Sync,
    Discard,
    Resize,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Discard => "discard",
            Self::Resize => "resize",
        })
    }
}

/// A failed storage call: kind, operation, place and source.
#[derive(Debug, thiserror::Error)]
#[error("{operation} of {device} failed{}: {message}", place(*.offset, *.length))]
pub struct Error {
    /// What the caller must do about it.
    pub kind: ErrorKind,
    /// Which call failed.
    pub operation: Operation,
    /// The device, as the user named it.
    pub device: String,
    /// First byte concerned.
    pub offset: u64,
    /// Number of bytes concerned; 0 if the call has no range.
    pub length: u64,
    /// What happened, in words.
    pub message: String,
    /// The operating system's error, if there is one.
    #[source]
    pub source: Option<std::io::Error>,
}

fn place(offset: u64, length: u64) -> String {
    if length == 0 { String::new() } else { format!(" at byte {offset}, {length} bytes") }
}
