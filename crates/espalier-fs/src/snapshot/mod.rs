//! Snapshots of volumes and of directories.

pub(crate) mod tree;
pub(crate) mod volume;
