//! What clients of a mount say, in the terms of the file system layer, and the other way round.
//!
//! The server of a mount and a library that opens an image itself both carry out the calls of
//! [`espalier_client`] by those of [`espalier_fs`]; neither of these crates knows the other.
//! Nothing here can fail, and nothing is decided here.

#![forbid(unsafe_code)]

mod attributes;
mod capabilities;
mod new_file;

pub use attributes::{attr_of, change_of, filter_of, listing_of, mode_change, set_time, stat_of};
pub use capabilities::{CAPABILITY, is_capability};
pub use new_file::NewFile;
