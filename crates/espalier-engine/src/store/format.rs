//! Format: writing an empty store.

use super::opening::space_options;
use crate::Result;
use crate::device::GuardedDevice;
use crate::log::Log;
use crate::model::options::{FormatOptions, OpenOptions};
use crate::space::{Geometry, Space, Superblock, VolumeTable, erase_superblocks};
use espalier_storage::{Device, Environment};
use std::sync::Arc;

/// Writes an empty store.
pub(super) fn format(device: Arc<dyn Device>, env: &dyn Environment, options: &FormatOptions) -> Result<()> {
    let device = GuardedDevice::new(device, false);
    let geometry = Geometry::new(device.len(), options.log_bytes)?;
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&env.random().to_le_bytes());
    uuid[8..].copy_from_slice(&env.random().to_le_bytes());
    // Before anything else is touched: half of an older store must not open as an older state of
    // it.
    erase_superblocks(&device)?;
    let position = Log::format(&device, geometry.log, &uuid)?;
    let first = Superblock {
        log_position: position.encode(),
        compression: options.compression.code(),
        ..Superblock::initial(geometry, uuid, &options.label, env.now())
    };
    Space::create(device, first, &VolumeTable::default(), &space_options(&OpenOptions::default()))?;
    Ok(())
}
