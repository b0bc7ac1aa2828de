//! Recovery: opening a store as it was when it was last durable.
//!
//! Opening reads the newest superblock and the tables, then replays the log into memtables: first
//! every value part that the log names is taken out of the free space, then the batches follow in
//! order. Replaying writes nothing but what absorbing writes, all of it fresh; so a crash during
//! recovery leaves the store as it was.

use super::batch_replay::BatchReplay;
use super::components::{Components, Recovered};
use super::losses::Losses;
use super::opening::{Opening, choose_memtable, space_options};
use super::value_part_binder::ValuePartBinder;
use crate::checkpoint::state::CheckpointState;
use crate::device::GuardedDevice;
use crate::index::Index;
use crate::index::catalog::{READ_ONLY_VOLUME, StoredRoot};
use crate::index::deleted_ranges::DeletedRanges;
use crate::index::table::{IndexTable, Indexes};
use crate::log::{LogConfig, LogPosition};
use crate::model::error::Context;
use crate::model::ids::IndexId;
use crate::model::options::{Compression, OpenOptions};
use crate::space::{OpenedSpace, Space, Superblock, VolumeTable, heal, read_superblocks};
use crate::{Error, Extent, Result};
use espalier_storage::{Device, Environment};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks of the log that are announced when a store is opened: 1 MiB, as its reader reads at once.
const ANNOUNCED_LOG_BLOCKS: u64 = 256;
/// Roots of indexes that are expected to be read: those of the first volumes.
const MAX_EXPECTED_ROOTS: usize = 12;

/// Opens the store on `device`.
pub(super) fn open(
    device: Arc<dyn Device>,
    env: Arc<dyn Environment>,
    mut options: OpenOptions,
) -> Result<Components> {
    choose_memtable(&mut options);
    let device = GuardedDevice::new(device, options.read_only);
    // What was deleted in order may look like damage.
    recover(device.clone(), env, options).or_else(|error| device.still_there().and(Err(error)))
}

fn recover(
    device: Arc<GuardedDevice>,
    env: Arc<dyn Environment>,
    options: OpenOptions,
) -> Result<Components> {
    let OpenedSpace { space, volumes, reclaim, .. } = open_space(&device, &options)?;
    let opening = Opening::new(env, device, options, space.clone(), compression_of(&space)?)?;
    let Opening { trees, options, superblock, .. } = &opening;
    let (indexes, roots) = indexes_of(&space, &volumes);
    if opening.device.wants_announcements() {
        // They arrive while the log is read.
        trees.pieces.expect(roots.values().filter_map(|root| root.node).take(MAX_EXPECTED_ROOTS));
    }
    let deleted: Arc<DeletedRanges> = Arc::default();
    if superblock.untidy {
        indexes.keys().for_each(|id| deleted.note_all(*id));
    }
    let table = Arc::new(IndexTable::new(indexes.clone()));
    let binder = Arc::new(ValuePartBinder::new(trees, &space, &table));
    let config = LogConfig {
        unlogged: options.tuning.unlogged,
        // The cache is empty as yet.
        recovery_memory: options.memory / 4,
        ..opening.log_config()
    };
    let mut replay =
        BatchReplay::new(trees, &space, options, &indexes, &deleted, opening.order(), Losses::default());
    replay.unmerged_bytes = (options.memory / 2) as usize;
    let log = opening
        .log(binder.clone(), config)
        .open(&mut |batch| replay.batch(batch))
        .context(|| format!("replaying the log of {}", opening.device.name()))?;
    let (order, checkpoint) = (replay.order, CheckpointState::new(roots, reclaim));
    let read_only = options.read_only;
    let components =
        Components::open(Recovered { opening, log, indexes: table, volumes, deleted, order, checkpoint })?;
    if binder.found_torn() && !read_only {
        // Before a later group says that those were synced which name the torn parts by another
        // checksum.
        components.write.checkpointer.checkpoint()?;
    }
    Ok(components)
}

/// How new parts are compressed.
fn compression_of(space: &Space) -> Result<Compression> {
    let code = space.superblock().compression;
    Compression::from_code(code).ok_or_else(|| Error::damaged(format!("compression code {code} is unknown")))
}

/// Opens the space on `device`, and mends superblocks that are damaged.
fn open_space(device: &Arc<GuardedDevice>, options: &OpenOptions) -> Result<OpenedSpace> {
    let healed = if options.read_only { Vec::new() } else { heal(device)? };
    announce_opening(device);
    let mut opened = Space::open(device.clone(), &space_options(options))?;
    for error in healed.into_iter().chain(opened.damaged.drain(..)) {
        tracing::warn!(%error, "a superblock of {} is damaged; another is good", device.name());
    }
    Ok(opened)
}

/// Has the device begin with what is read next, where that makes it faster: the roots of the
/// tables, and the log behind the checkpoint. A hint: what is wrong is met by its reader.
fn announce_opening(device: &GuardedDevice) {
    if !device.wants_announcements() {
        return;
    }
    let Ok(found) = read_superblocks(device) else { return };
    let Superblock { roots, geometry, log_position, .. } = found.newest;
    let tables = [roots.ntt, roots.space_map, roots.volumes, roots.reclaim];
    let mut places: Vec<Extent> = tables.iter().map(|root| Extent { start: root.block, blocks: 1 }).collect();
    places.retain(|place| geometry.holds(*place));
    let (region, from) = (geometry.log, LogPosition::decode(&log_position));
    if let Some(at) = from.block.checked_rem(u64::from(region.blocks)) {
        let blocks = ANNOUNCED_LOG_BLOCKS.min(u64::from(region.blocks) - at) as u32;
        places.push(Extent { start: region.start + at, blocks });
    }
    let bytes = |place: &Extent| place.byte_offset()..place.byte_offset() + place.byte_len() as u64;
    device.announce(&places.iter().map(bytes).collect::<Vec<_>>());
}

/// The indexes that take messages, and the roots of all indexes.
fn indexes_of(space: &Arc<Space>, volumes: &VolumeTable) -> (Indexes, BTreeMap<IndexId, StoredRoot>) {
    let pin = Arc::new(space.deferred.pin_version());
    let (mut indexes, mut roots) = (BTreeMap::new(), BTreeMap::new());
    for (volume, entry) in &volumes.volumes {
        for (index, root) in entry.indexes.iter().enumerate() {
            let id = IndexId { volume: *volume, index: index as u8 };
            let root = StoredRoot::from(root);
            if entry.flags & READ_ONLY_VOLUME == 0 {
                indexes.insert(id, Arc::new(Index::new(id, root.as_root(&**space), pin.clone())));
            }
            roots.insert(id, root);
        }
    }
    (indexes, roots)
}
