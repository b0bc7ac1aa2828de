//! Offline check and repair of a volume.

pub(crate) mod volume_check;
pub(crate) mod volume_repair;
