//! The FUSE mount of Espalier, over io_uring or the classic device.
//!
//! [`protocol`] turns bytes into requests and replies into bytes, [`transport`] moves them between the kernel and
//! a handler on the CPU on which they are asked for.

pub mod protocol;
pub mod transport;
