//! Offline verification and repair of a volume.

pub(crate) mod data_walk;
pub(crate) mod paths;
pub(crate) mod repair;
pub(crate) mod report;
pub(crate) mod reserved;
pub(crate) mod verify;
