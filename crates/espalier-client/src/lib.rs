//! A client of a running Espalier mount.
//!
//! [`Client`] talks to the server of a mount past the kernel and asks for many things at once. What
//! it does is seen through the mount when a call returns, and the other way round. [`wire`] has the
//! protocol, `docs/protocol.md` its description: rights, coherence, limits. `espalier-tree` has the
//! same calls on images that are not mounted too.
//!
//! ```no_run
//! use espalier_client::{Client, Links, Listing, Piece, Write};
//!
//! let client = Client::connect("/mnt/work")?;
//! let files = [Write::file("a/one", "1"), Write::file("a/two", "22").with_mode(0o600)];
//! for result in client.write_many(&files, Default::default()) {
//!     result?;
//! }
//! let piece = |path| Piece { path, offset: 0, length: 10 };
//! let pieces = [piece(b"a/two"), piece(b"a/one")];
//! client.read_many(&pieces, &mut |place, data| {
//!     println!("{place}: {data:?}");
//!     true
//! })?;
//! let rust = Listing { pattern: Some(b"*.rs".to_vec()), ..Listing::default() };
//! for entry in client.walk("project", &rust)? {
//!     println!("{}", String::from_utf8_lossy(&entry?.path));
//! }
//! client.clone_tree("a", "b")?;
//! assert_eq!(client.stat("b/two", Links::Follow)?.size, 2);
//! # Ok::<(), espalier_client::Error>(())
//! ```

mod beneath;
mod client;
mod details;
mod error;
mod idle;
mod reads;
mod session;
mod streams;
mod watch;
pub mod wire;
mod writes;

pub use beneath::open_beneath;
pub use client::{Client, Links, Rename};
pub use details::{Details, SetXattr};
pub use error::{Error, Result};
pub use session::current_umask;
pub use streams::{Diff, Entry, Walk};
pub use watch::{Changes, Watch};
pub use wire::{Aspects, Change, Listing, Piece, Stat, Time, WalkItem, WelcomeFlags, WriteFlags, Xattrs};
pub use writes::{Ranges, Write};
