//! A client of a running Espalier mount.
//!
//! [`Client`] talks to the server of a mount past the kernel and asks for many things at once. What
//! it does is seen through the mount when a call returns, and the other way round. [`wire`] has the
//! protocol, `docs/protocol.md` its description: rights, coherence, limits.

mod client;
mod details;
mod error;
mod session;
mod streams;
mod watch;
pub mod wire;
mod writes;

pub use client::{Client, Links, Rename};
pub use details::{Details, SetXattr};
pub use error::{Error, Result};
pub use streams::{Diff, Entry, Walk};
pub use watch::{Changes, Watch};
pub use wire::{Aspects, Change, Listing, Piece, Stat, Time, WelcomeFlags, WriteFlags, Xattrs};
pub use writes::{Ranges, Write};
