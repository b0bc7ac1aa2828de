//! Bucket: the few requests that a device makes of an object store.
//!
//! Protocol: [`Bucket::submit`] begins a request and returns at once; [`Ticket::wait`] gives its
//! outcome. Requests that are under way together may take effect in any order. A request whose
//! outcome is [`FailureKind::Unknown`] may have taken effect, may still do so later, or never.
//!
//! Invariants:
//! - names are relative to the prefix of the store;
//! - nothing secret is in a name, a failure or the name of the bucket.

mod directory;
mod event_loop;
mod failures;
mod remote;
mod services;
mod uploads;
mod url;

pub use remote::RemoteBucket;
pub use url::{Location, LocationError};

use bytes::Bytes;
use std::fmt::{self, Debug};
use std::ops::Range;

/// The object that names everything else.
pub(crate) const ROOT_NAME: &str = "root";

/// Most bytes of an object that is got as a whole: a root, which has some hundred KiB, or an object
/// of the probe.
const MAX_WHOLE_BYTES: u64 = 64 << 20;

/// What a server says about one state of an object: different for other bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

/// What must hold for a put to take effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    None,
    /// There is no object of that name.
    Absent,
    /// The object is there, in this version.
    Matches(Version),
}

/// For what a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errand {
    /// A caller waits for it.
    Caller,
    /// Compaction and renewals: no caller waits for it.
    Maintenance,
}

/// One request.
#[derive(Debug, Clone)]
pub enum Request {
    /// Puts an object whose bytes are the concatenation of `body`.
    Put {
        /// The object.
        name: String,
        /// Its bytes.
        body: Vec<Bytes>,
        /// What must hold.
        condition: Condition,
    },
    /// Gets an object, or a range of its bytes.
    Get {
        /// The object.
        name: String,
        /// Which bytes; all if there is no range.
        range: Option<Range<u64>>,
    },
    /// Asks for length, version and time of an object.
    Head {
        /// The object.
        name: String,
    },
    /// Deletes an object; one that is not there is no failure.
    Delete {
        /// The object.
        name: String,
    },
    /// Lists the objects whose names begin with a folder.
    List {
        /// The folder, without a slash at its end; all objects if it is empty.
        folder: String,
    },
}

impl Request {
    /// The object or folder concerned.
    pub fn name(&self) -> &str {
        match self {
            Self::Put { name, .. } | Self::Get { name, .. } | Self::Head { name } | Self::Delete { name } => {
                name
            }
            Self::List { folder } => folder,
        }
    }

    /// True for requests that may change something.
    pub fn changes(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Delete { .. })
    }

    /// The word for it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Get { .. } => "get",
            Self::Head { .. } => "head",
            Self::Delete { .. } => "delete",
            Self::List { .. } => "list",
        }
    }
}

/// What is known of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its version, where the server tells it.
    pub version: Option<Version>,
    /// When it was put, by the server's clock, in milliseconds since the Unix epoch.
    pub modified: u64,
}

/// What a request gave.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The object is there, in this version.
    Put(Option<Version>),
    /// The bytes, and what is known of the object.
    Got(Bytes, ObjectFacts),
    /// What is known of the object.
    Facts(ObjectFacts),
    /// The object is not there.
    Deleted,
    /// What a list has; it may be old, or lack something.
    Listed(Vec<ObjectFacts>),
}

/// What the caller must do about a [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// There is no such object, or no such bucket.
    NotFound,
    /// The condition did not hold, or the server could not decide it.
    Condition,
    /// The request is not allowed.
    Denied,
    /// The server cannot do that.
    Unsupported,
    /// The server has too much to do: try again, later than usual.
    Throttled,
    /// The request may or may not have taken effect, or may still: try again.
    Unknown,
}

/// Why a request failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What to do about it.
    pub kind: FailureKind,
    /// What happened.
    pub message: String,
    /// The object that a request found to be missing.
    pub missing: Option<String>,
}

impl Failure {
    /// A failure; `message` says what happened.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), missing: None }
    }

    /// Whether an object was found to be missing: also by a server that says so of a condition.
    pub(crate) fn is_of_a_missing_object(&self) -> bool {
        self.kind == FailureKind::NotFound || self.missing.is_some()
    }

    /// True unless no later attempt can succeed: also for conditions, and for refusals, since a
    /// credential may be on its way.
    pub fn may_pass(&self) -> bool {
        !matches!(self.kind, FailureKind::NotFound | FailureKind::Unsupported)
    }

    /// True if the same request may succeed when it is made again.
    pub fn is_passing(&self) -> bool {
        matches!(self.kind, FailureKind::Throttled | FailureKind::Unknown)
    }
}

/// The failure of a get that has more bytes than there should be: no memory is spent on them.
fn too_large(name: &str, bytes: u64, most: u64) -> Failure {
    let message = format!(
        "{name} is not what Espalier has put there: it has {bytes} bytes or more, and {most} are expected at most; check \
         the location, and that nothing else writes there"
    );
    Failure::new(FailureKind::Unsupported, message)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A request that is under way. Dropping it does not take the request back.
pub trait Ticket: Send {
    /// Waits for the outcome.
    ///
    /// # Errors
    /// Why it failed.
    fn wait(self: Box<Self>) -> Result<Reply, Failure>;

    /// The same; `None` if `is_wanted` says meanwhile that nothing wants the outcome any more. It
    /// is asked now and then, by tickets that can be given up.
    ///
    /// # Errors
    /// Why the request failed.
    fn wait_while(self: Box<Self>, is_wanted: &dyn Fn() -> bool) -> Option<Result<Reply, Failure>> {
        let _ = is_wanted;
        Some(self.wait())
    }
}

/// An object store, or one prefix of it.
pub trait Bucket: Send + Sync + Debug {
    /// What a user calls it: a URL without secrets.
    fn name(&self) -> &str;

    /// Begins a request.
    fn submit(&self, request: Request) -> Box<dyn Ticket>;

    /// Begins a request for which no caller waits: those of [`Bucket::submit`] pass it where they
    /// wait for each other.
    fn submit_behind(&self, request: Request) -> Box<dyn Ticket> {
        self.submit(request)
    }

    /// Makes one request and waits for it.
    ///
    /// # Errors
    /// Why it failed.
    fn call(&self, request: Request) -> Result<Reply, Failure> {
        self.submit(request).wait()
    }
}
