//! Files of an Espalier file system without the kernel, mounted or not: one set of calls.
//!
//! A [`Tree`] is what lies below a directory. If that directory is in a mount, the calls go to the
//! server of the mount ([`espalier_client`]); if it is in an image that is not mounted, they are
//! carried out here ([`espalier_fs`]). Results, errors and rights are the same: those of the
//! process on a mount. The bindings for C and Python stand on it; `docs/bindings.md` describes all
//! three.
//!
//! Paths are bytes. They begin at the directory of the tree, which `..` and links do not leave,
//! with or without a slash in front.
//!
//! ```
//! use espalier_tree::{ImageOptions, Links, Tree, Write};
//! # let image = tempfile::NamedTempFile::new()?;
//! # espalier_tree::format_image(image.path(), 64 << 20)?;
//! # let place = image.path();
//! let tree = Tree::open(place, &ImageOptions::default())?;
//! let files = [Write::file("a/one", "1"), Write::file("a/two", "22")];
//! for result in tree.write_many(&files, Default::default()) {
//!     result?;
//! }
//! assert_eq!(tree.stat("a/two", Links::Follow)?.size, 2);
//! let names: Vec<_> = tree.list("a")?.into_iter().map(|entry| entry.path).collect();
//! assert_eq!(names, [b"one", b"two"]);
//! tree.clone_tree("a", "b")?;
//! assert_eq!(tree.read("b/one")?, b"1");
//! tree.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod calls;
mod error;
mod file;
mod image;
mod located;
mod mounted;
mod processes;
mod tree;
mod walk;
mod watch;

pub use error::{Error, Result};
pub use espalier_client::{
    Change, Changes, Entry, Links, Listing, Piece, Rename, SetXattr, Stat, Time, Write, WriteFlags, Xattrs,
};
pub use file::{File, OpenHow};
pub use image::{ImageOptions, Owner, format_image};
pub use tree::{ModeBits, Tree};
pub use walk::{Diff, Walk};
pub use watch::Watch;
