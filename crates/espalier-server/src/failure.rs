//! Calls that failed, as an answer has them.

use espalier_client::wire::Malformed;
use espalier_fs::FsError;
use std::fmt;

/// The longest message of an answer, bytes.
const MESSAGE_MAX_BYTES: usize = 1000;

/// Why a call failed: the error number of Linux and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) errno: i32,
    pub(crate) message: String,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(errno: i32, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    /// The message, not longer than one may be.
    pub(crate) fn shown(&self) -> &[u8] {
        let bytes = self.message.as_bytes();
        &bytes[..bytes.len().min(MESSAGE_MAX_BYTES)]
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        let errno = espalier_fuse::errno(error.kind());
        if errno == libc::EIO {
            tracing::error!(%error, "a client's call failed");
        }
        Self { errno, message: error.to_string() }
    }
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Self {
        Self::new(libc::EPROTO, error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.raw_os_error().unwrap_or(libc::EIO), error.to_string())
    }
}
