//! Unlinked files and removed trees that are still in use.

pub(crate) mod deferred_unlink;
pub(crate) mod detached;
pub(crate) mod orphan_area;
pub(crate) mod unlink;
