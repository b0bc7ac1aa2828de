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
pub mod linux_ioctl;
mod message;
mod moment;
pub mod notify;
mod reader;
pub mod reply;
pub mod request;

#[cfg(test)]
mod tests;

pub use init::{Dialect, InitRequest};
pub use message::{ARGUMENT_BYTES, DecodeError, HEADER_BYTES, REPLY_HEADER_BYTES, ROOT};
pub use moment::Moment;
pub use request::{Header, Operation, decode, decode_parts};
