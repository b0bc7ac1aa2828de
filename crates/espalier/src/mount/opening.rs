//! Opening the file system that a mount shows.

use super::plan::Plan;
use crate::image;
use anyhow::{Context, Result};
use espalier_engine::Store;
use espalier_fs::{FileSystem, OpenOptions};
use espalier_fuse::ForgetHook;
use std::sync::Arc;

/// Opens the file system of a store; `forgets` has what the kernel forgot of it, if it has a queue
/// of its own for that.
///
/// # Errors
/// If there is none, or it cannot be read.
pub(super) fn open_file_system(
    plan: &Plan,
    volume: String,
    read_only: bool,
    store: &Arc<Store>,
    forgets: Option<&ForgetHook>,
    handed: Option<&[u8]>,
) -> Result<Arc<FileSystem>> {
    let options = OpenOptions {
        volume,
        name_memory: plan.settings.name_memory(),
        node_memory: plan.settings.node_memory(),
        read_only,
        atime: plan.settings.atime,
        narrow_numbers: plan.settings.narrow_numbers,
        handles: plan.settings.handles,
        forget_drain: forgets.map(ForgetHook::drain),
        waiter: Some(Arc::new(espalier_fuse::Requester)),
        ..Default::default()
    };
    let (store, environment) = (Arc::clone(store), image::environment());
    let opened = match handed {
        Some(state) => FileSystem::open_handed_over(store, environment, options, state),
        None => FileSystem::open(store, environment, options),
    };
    opened.with_context(|| format!("{} cannot be opened", plan.source.display()))
}
