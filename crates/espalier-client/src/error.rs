//! What goes wrong with a call to a server.

use crate::wire::Malformed;
use std::io;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused the call, with the error number of the system call; nothing was changed
    /// by what failed.
    #[error("{message}")]
    Refused {
        /// The error number of Linux.
        errno: i32,
        /// What happened, and to what.
        message: String,
    },
    /// The place does not lie in a mount of Espalier, or its server takes no clients, or not this
    /// one.
    #[error("no server takes this client: {0}")]
    NoServer(#[source] io::Error),
    /// The server went away before it answered. The next call looks for the server again, and finds
    /// the one that has replaced it.
    #[error("the server went away{}", if *.may_have_changed { "; what was asked for may have been done or not" } else { "" })]
    Lost {
        /// What was asked for may have been done, or a part of it, or nothing.
        may_have_changed: bool,
        /// How the connection ended.
        #[source]
        source: io::Error,
    },
    /// The server sent what is no answer.
    #[error("the server does not keep to the protocol")]
    Malformed(#[from] Malformed),
    /// The call does not fit into the memory that is shared with the server.
    #[error("a path or a list of arguments is too long for one call")]
    TooLong,
}

impl Error {
    /// The error number of Linux that says it best.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused { errno, .. } => *errno,
            Self::NoServer(source) => source.raw_os_error().unwrap_or(libc::ENOTCONN),
            Self::Lost { .. } => libc::ECONNRESET,
            Self::Malformed(_) => libc::EPROTO,
            Self::TooLong => libc::ENAMETOOLONG,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}
