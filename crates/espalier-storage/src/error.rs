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
    /// Another process holds the lock on it.
    Busy,
    /// It was opened read-only, or the medium is write-protected.
    ReadOnly,
    /// The medium below has no room left.
    NoSpace,
    /// It is neither a regular file nor a block device, or cannot do what was asked.
    Unsupported,
    /// What was to be made is there already.
    AlreadyExists,
    /// The state that the device shows was replaced by a newer one, and part of it was deleted in
    /// order: open the device again.
    Gone,
}

/// The device call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Opening or creating the file or device.
    Open,
    /// [`Device::read_at`](crate::Device::read_at).
    Read,
    /// [`Device::write_at`](crate::Device::write_at).
    Write,
    /// [`Device::sync`](crate::Device::sync).
    Sync,
    /// [`Device::discard`](crate::Device::discard).
    Discard,
    /// Asking for the size of the file or device, or changing it.
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

impl Error {
    /// An error without a range; `message` says what happened and what to do.
    pub fn new(
        kind: ErrorKind,
        operation: Operation,
        device: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            operation,
            device: device.into(),
            offset: 0,
            length: 0,
            message: message.into(),
            source: None,
        }
    }

    /// An error of the operating system, its kind chosen by what the caller must do about it.
    pub fn system(
        operation: Operation,
        device: impl Into<String>,
        source: impl Into<std::io::Error>,
    ) -> Self {
        let source = source.into();
        let (kind, hint) = classify(&source);
        let message = match hint {
            Some(hint) => format!("{source}; {hint}"),
            None => source.to_string(),
        };
        Self { source: Some(source), ..Self::new(kind, operation, device, message) }
    }

    /// Says which bytes were concerned.
    #[must_use]
    pub fn at(mut self, offset: u64, length: u64) -> Self {
        (self.offset, self.length) = (offset, length);
        self
    }
}

/// What the caller must do about an error of the operating system, and a word of advice.
fn classify(error: &std::io::Error) -> (ErrorKind, Option<&'static str>) {
    use std::io::ErrorKind as System;
    match error.kind() {
        System::NotFound => (ErrorKind::NotFound, None),
        System::PermissionDenied => (ErrorKind::PermissionDenied, None),
        System::AlreadyExists => (ErrorKind::AlreadyExists, None),
        System::WouldBlock | System::ResourceBusy => (ErrorKind::Busy, None),
        System::ReadOnlyFilesystem => (ErrorKind::ReadOnly, Some("open it read-only")),
        System::StorageFull | System::QuotaExceeded => {
            (ErrorKind::NoSpace, Some("free space on the file system that holds the image"))
        }
        System::FileTooLarge => {
            (ErrorKind::NoSpace, Some("the file system that holds the image allows no larger file"))
        }
        System::IsADirectory | System::Unsupported | System::InvalidInput => (ErrorKind::Unsupported, None),
        _ => (ErrorKind::Io, None),
    }
}
