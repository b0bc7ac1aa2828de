//! The protocol between the server of a mount and its clients, as bytes: pure functions.
//!
//! `docs/protocol.md` has the frames, the calls and the limits. Nothing that a length in a message
//! says is believed before so many bytes are there, and nothing is allocated because of one.

mod answer;
mod call;
mod codec;
mod constants;
mod details;
mod frame;
mod lists;
mod new_item;

pub use answer::{Change, ChangesHead, DiffItem, ReadItem, Stat, WaitHead, WalkItem, WelcomeFlags};
pub use call::{Call, Hello, Listing, Piece, Time, WriteFlags};
pub use codec::{Malformed, Reader, Writer};
pub use constants::{
    AREA_BYTES, FRAME_MAX_BYTES, IOC_CLIENT, MAGIC, MAX_ITEMS, SOCKET_NAME_BYTES, TOKEN_BYTES, VERSIONS,
};
pub use details::{Aspects, DetailItem};
pub use frame::{ReplyHead, RequestHead};
pub use lists::{RangeList, XattrList, Xattrs};
pub use new_item::{NewItem, WriteItem};

/// The most bytes that one part of a read brings if the area of replies has `area` bytes: a part
/// that brings so many may have more.
pub const fn longest_read(area: u32) -> u64 {
    (area as u64) - ReadItem::HEAD_BYTES as u64
}

#[cfg(test)]
mod tests;
