//! Engine errors: a kind chosen by what the caller must do, a context, and a source.

use std::fmt;

/// The result of an engine call.
pub type Result<T> = std::result::Result<T, Error>;

/// What the caller must do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device failed. For a write or sync the store is read-only from then on.
    Io,
    /// Stored bytes are not what was written: restore them from a copy, or repair.
    Damaged,
    /// There is no Espalier store here.
    NotAStore,
    /// The store was written by a newer version of this program.
    NewerFormat,
    /// The store has no room for the operation; free some and try again.
    NoSpace,
    /// The store or volume takes no changes: by choice, or since an earlier failure
    /// ([`Error::is_after_failure`]).
    ReadOnly,
    /// Another process has the store open.
    Busy,
    /// The arguments break a documented rule; nothing was done.
    InvalidArgument,
    /// What was named does not exist.
    NotFound,
    /// What was to be made exists already.
    AlreadyExists,
    /// The caller no longer wants it; nothing was done.
    Interrupted,
    /// The state that is read was replaced, and part of it was deleted in order: open the store
    /// again.
    Gone,
}

/// A failed engine call.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    context: Vec<String>,
    source: Option<std::sync::Arc<espalier_storage::Error>>,
    after_failure: bool,
}

impl Error {
    /// True if something could not be read; or written, after which nothing else is.
    pub(crate) fn is_of_reading(&self) -> bool {
        matches!(self.kind, ErrorKind::Io | ErrorKind::Damaged | ErrorKind::Gone)
    }

    /// An error of `kind`; `message` says what happened and where.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), context: Vec::new(), source: None, after_failure: false }
    }

    /// Stored bytes that fail a check.
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Damaged, message)
    }

    /// The caller has given up the change before it was made.
    pub(crate) fn given_up() -> Self {
        Self::new(ErrorKind::Interrupted, "the caller has given up the change")
    }

    /// What the caller must do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// True if an earlier failed write or sync is the reason, not a choice: nothing can be changed
    /// any more.
    pub fn is_after_failure(&self) -> bool {
        self.after_failure
    }

    /// The same as an answer to all that comes after a failure.
    pub(crate) fn after_failure(mut self) -> Self {
        self.after_failure = true;
        self
    }

    /// A write or sync that failed: a device that has no room is one that fails, and has nothing to
    /// do with the room in the store.
    pub(crate) fn failed(source: espalier_storage::Error) -> Self {
        Self { kind: ErrorKind::Io, ..source.into() }
    }

    /// Adds what was being done, from the inside out.
    #[must_use]
    pub fn context(mut self, doing: impl Into<String>) -> Self {
        self.context.push(doing.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for doing in self.context.iter().rev() {
            write!(f, "{doing}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}

impl From<espalier_storage::Error> for Error {
    fn from(source: espalier_storage::Error) -> Self {
        use espalier_storage::ErrorKind as Storage;
        let kind = match source.kind {
            Storage::NotFound => ErrorKind::NotFound,
            Storage::AlreadyExists => ErrorKind::AlreadyExists,
            Storage::Busy => ErrorKind::Busy,
            Storage::ReadOnly => ErrorKind::ReadOnly,
            Storage::NoSpace => ErrorKind::NoSpace,
            Storage::Gone => ErrorKind::Gone,
            Storage::PermissionDenied | Storage::Unsupported => ErrorKind::InvalidArgument,
            _ => ErrorKind::Io,
        };
        let message = source.to_string();
        Self { source: Some(source.into()), ..Self::new(kind, message) }
    }
}

/// Adds context to a result's error.
pub(crate) trait Context<T> {
    /// Says what was being done when the error came.
    fn context(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for Result<T> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| e.context(doing()))
    }
}
