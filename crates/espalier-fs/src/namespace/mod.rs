//! Names: lookup, creation, removal, rename and listing of directory entries.

pub(crate) mod by_id;
pub(crate) mod context;
pub(crate) mod create;
pub(crate) mod create_many;
pub(crate) mod link;
pub(crate) mod listing;
pub(crate) mod listing_cache;
pub(crate) mod lookup;
pub(crate) mod move_entry;
pub(crate) mod prefix_cache;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod rename_all;
pub(crate) mod tmpfile;
