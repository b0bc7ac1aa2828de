//! The FUSE wire protocol, versions 7.31 to 7.45: what the kernel sends and what it may be told.
//!
//! A message is a header, the fixed argument of its operation and a payload. The classic device
//! delivers the three in a row, io_uring in three places, so decoding takes them apart from the
//! start. Everything here is a pure function of bytes: a length found inside a message is checked
//! against the bytes that are there before it is used, and nothing is allocated because of it.
//! Numbers are in the machine's own byte order, as the kernel interface (`linux/fuse.h`) has them.

pub mod control;
pub mod flags;
pub mod init;
mod moment;
pub mod notify;
mod reader;
pub mod reply;
pub mod request;

#[cfg(test)]
mod tests;

pub use init::{Dialect, InitRequest};
pub use moment::Moment;
pub use request::{Header, Operation, decode, decode_parts};

/// Length of the header of a request, bytes.
pub const HEADER_BYTES: usize = 40;

/// Length of the header of a reply, bytes.
pub const REPLY_HEADER_BYTES: usize = 16;

/// The longest fixed argument of any operation, bytes: what io_uring sets aside for it.
pub const ARGUMENT_BYTES: usize = 128;

/// Node id of the root of the mount.
pub const ROOT: u64 = 1;

/// Why bytes are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends before something that it must hold.
    #[error("the message ends {missing} bytes short of its {what}")]
    Short {
        /// What was being read.
        what: &'static str,
        /// How many bytes are missing at least.
        missing: usize,
    },
    /// A name without its terminator, or an empty one.
    #[error("a name in the message is not terminated, or empty")]
    Name,
    /// A number that contradicts the rest of the message.
    #[error("the message contradicts itself in {0}")]
    Contradiction(&'static str),
}
