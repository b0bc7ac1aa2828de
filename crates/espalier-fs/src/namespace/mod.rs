//! Names: lookup, creation, removal, rename and listing of directory entries.

pub(crate) mod create;
pub(crate) mod listing;
pub(crate) mod lookup;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod tmpfile;
