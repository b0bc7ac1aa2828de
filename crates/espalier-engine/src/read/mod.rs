//! Reading: snapshots of the store and cursors over them.

pub(crate) mod context;
pub(crate) mod cursor;
pub(crate) mod pins;
pub(crate) mod snapshot;
pub(crate) mod snapshot_index;
mod values_ahead;
