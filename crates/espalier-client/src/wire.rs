//! The protocol between the server of a mount and its clients, as bytes: pure functions.
//!
//! `docs/protocol.md` has the frames, the calls and the limits. Nothing that a length in a message
//! says is believed before so many bytes are there, and nothing is allocated because of one.

mod answer;
mod call;
mod codec;
mod frame;

pub use answer::{ChangesHead, ReadItem, Stat, WalkItem, WelcomeFlags};
pub use call::{Call, Hello, Listing, Piece, Time, WriteFlags, WriteItem};
pub use codec::{Malformed, Reader, Writer};
pub use frame::{ReplyHead, RequestHead};

/// The only version of the protocol.
pub const VERSION: u16 = 1;

/// What every session begins with.
pub const MAGIC: [u8; 8] = *b"ESPALIER";

/// The longest packet, bytes.
pub const FRAME_MAX_BYTES: usize = 64 << 10;

/// The least and the most that each of the two areas of the shared memory may have, bytes.
pub const AREA_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=2 << 20;

/// How many paths a call takes at most.
pub const MAX_ITEMS: usize = 4096;

/// Bytes of a token that `ESPALIER_IOC_CLIENT` gives out.
pub const TOKEN_BYTES: usize = 16;

/// Bytes of the name of a socket in the answer of `ESPALIER_IOC_CLIENT`.
pub const SOCKET_NAME_BYTES: usize = 64;

/// `ESPALIER_IOC_CLIENT` of `include/espalier.h`.
pub const IOC_CLIENT: u32 = 2 << 30 | ((TOKEN_BYTES + SOCKET_NAME_BYTES) as u32) << 16 | 0xE5 << 8 | 18;

/// The most bytes that one part of a read brings if the area of replies has `area` bytes: a part
/// that brings so many may have more.
pub const fn longest_read(area: u32) -> u64 {
    (area as u64) - ReadItem::HEAD_BYTES as u64
}

#[cfg(test)]
mod tests;
