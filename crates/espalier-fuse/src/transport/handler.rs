//! The interface between a transport and the server behind it.

use crate::metrics::{Arrival, Recorder};
use crate::protocol::{Dialect, Header};

/// A request: everything but its payload.
#[derive(Debug)]
pub struct Request<'a> {
    /// The header.
    pub header: Header,
    /// The fixed argument; it may be longer than the operation's argument.
    pub argument: &'a [u8],
    /// What INIT agreed on.
    pub dialect: &'a Dialect,
    /// Where the worker counts what it serves.
    pub recorder: &'a Recorder,
    /// When it came.
    pub arrival: Arrival,
}

/// What a handler answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success; the body of the reply, of this length in bytes, is at the start of the buffer.
    Reply(usize),
    /// A positive errno.
    Error(i32),
    /// No reply is expected.
    Silent,
}

/// Serves requests.
pub trait Handler: Send + Sync {
    /// Serves one request. `buffer` holds its payload, `received` bytes of it, and takes the body
    /// of the reply. Called from many threads at a time; may block. The caller of the request may
    /// be killed and answered meanwhile, so the handler must ask
    /// [`may_commit`](super::may_commit) before it changes anything.
    fn handle(&self, request: &Request<'_>, buffer: &mut [u8], received: usize) -> Outcome;

    /// The reply `reply` to the request with this header is not sent: its caller was killed, and
    /// has been answered. The handler takes back the references to nodes that the reply would have
    /// handed out.
    fn unanswered(&self, header: &Header, reply: &[u8]);
}
