//! A client of a running Espalier mount.
//!
//! [`Client`] talks to the server of a mount past the kernel and asks for many things at once. What
//! it does is seen through the mount when a call returns, and the other way round. [`wire`] has the
//! protocol, `docs/protocol.md` its description: rights, coherence, limits.

mod client;
mod error;
mod session;
mod streams;
pub mod wire;
mod writes;

pub use client::{Client, Links, Rename};
pub use error::{Error, Result};
pub use streams::{Changes, Entry, Walk, Watch};
pub use wire::{Listing, Piece, Stat, Time, WelcomeFlags, WriteFlags};
pub use writes::Write;
