//! Errors of calls on trees: a number of Linux, what happened, and to which path.

use std::fmt;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    errno: i32,
    message: String,
    path: Option<Vec<u8>>,
    is_uncertain: bool,
}

impl Error {
    /// An error with a number of Linux (`errno`); `message` says what happened.
    pub fn new(errno: i32, message: impl Into<String>) -> Self {
        Self { errno, message: message.into(), path: None, is_uncertain: false }
    }

    /// The same error of a call on `path`; the path that was named first stays.
    #[must_use]
    pub fn of(mut self, path: &[u8]) -> Self {
        self.path.get_or_insert_with(|| path.to_vec());
        self
    }

    /// The number that the system call would have failed with.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// What happened, without the path.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The path that the call was about, as it was given.
    pub fn path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    /// The server went away in the middle: what was asked for may have been done, or a part of it,
    /// or nothing.
    pub fn is_uncertain(&self) -> bool {
        self.is_uncertain
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}: {}", String::from_utf8_lossy(path), self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {}

impl From<espalier_client::Error> for Error {
    fn from(error: espalier_client::Error) -> Self {
        use espalier_client::Error as Client;
        let is_uncertain = matches!(error, Client::Lost { may_have_changed: true, .. });
        let errno = match &error {
            // Of a server that refuses the client the kind of error is known, and not its number.
            Client::NoServer(source) if source.kind() == std::io::ErrorKind::PermissionDenied => libc::EACCES,
            error => error.errno(),
        };
        Self { is_uncertain, ..Self::new(errno, error.to_string()) }
    }
}

impl From<espalier_fs::FsError> for Error {
    fn from(error: espalier_fs::FsError) -> Self {
        Self::new(espalier_fuse::errno(error.kind()), error.to_string())
    }
}

impl From<espalier_engine::Error> for Error {
    fn from(error: espalier_engine::Error) -> Self {
        espalier_fs::FsError::from(error).into()
    }
}

impl From<espalier_storage::Error> for Error {
    fn from(error: espalier_storage::Error) -> Self {
        use espalier_storage::ErrorKind as Kind;
        let errno = match error.kind {
            Kind::NotFound => libc::ENOENT,
            Kind::PermissionDenied => libc::EACCES,
            Kind::ReadOnly => libc::EROFS,
            Kind::Busy => libc::EBUSY,
            Kind::Unsupported => libc::EOPNOTSUPP,
            _ => libc::EIO,
        };
        Self::new(errno, error.to_string())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.raw_os_error().unwrap_or(libc::EIO), error.to_string())
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::new(Self::from_raw_os_error(error.errno).kind(), error)
    }
}
