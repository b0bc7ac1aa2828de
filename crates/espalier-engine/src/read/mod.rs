//! Reading: snapshots of the store and cursors over them.

pub(crate) mod cursor;
pub(crate) mod snapshot;
