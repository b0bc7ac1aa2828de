//! Trees of files, wherever they lie: what `import`, `export`, `ls`, `find`, `cat` and `cp` ask of
//! them.
//!
//! [`Files`](tree::Files) is the seam between a command and where its calls go: an image that is
//! not mounted ([`image`]), the server of a mount of ours ([`client`]), or the system and with it
//! anything else ([`system`]). A command knows nothing else of the place of a tree, so a further
//! one is one more implementation, and one more line in [`with_tree`](located::with_tree).

pub(crate) mod client;
mod image;
pub(crate) mod located;
mod system;
pub(crate) mod transfer;
pub(crate) mod tree;
pub(crate) mod tree_sink;
pub(crate) mod tree_source;
