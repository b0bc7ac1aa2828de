//! What all messages have in common: lengths of their parts, and how decoding fails.

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
