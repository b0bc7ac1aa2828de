//! Statistics: figures about an open store.

use super::Store;
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::commit::back_pressure::StallTimes;
use crate::device::DeviceStats;
use crate::index::Index;
use crate::log::LogCounters;
use crate::model::ids::IndexId;
use crate::model::options::Compression;
use crate::space::{Census, RunHistogram, SpaceStats};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Figures about an open store. Counters begin when it is opened.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    /// The store's identity.
    pub uuid: [u8; 16],
    /// The user's name for it.
    pub label: String,
    /// When it was made, since the Unix epoch.
    pub created: std::time::Duration,
    /// How its parts are compressed.
    pub compression: Compression,
    /// Space.
    pub space: SpaceStats,
    /// The device.
    pub device: DeviceStats,
    /// Bytes of the log region, and how many of them hold batches no checkpoint covers.
    pub log_capacity: u64,
    /// See [`Statistics::log_capacity`].
    pub log_used: u64,
    /// What the log has done.
    pub log: LogCounters,
    /// What writers have waited for.
    pub stalls: StallTimes,
    /// The memory budget in bytes.
    pub memory_budget: u64,
    /// Messages that have left the memtables for the trees.
    pub absorbed: u64,
    /// Bytes of messages in memtables.
    pub memtable_bytes: u64,
    /// Bytes of nodes and parts that the device does not have.
    pub dirty_bytes: u64,
    /// Bytes of batches in memory that the log has not written, without large values.
    pub log_bytes: u64,
    /// Bytes of cached pieces.
    pub cache_bytes: u64,
    /// Look-ups in the cache that found something, and that did not.
    pub cache_hits: u64,
    /// See [`Statistics::cache_hits`].
    pub cache_misses: u64,
    /// Checkpoints since the store was opened.
    pub checkpoints: u64,
    /// Number of the newest superblock.
    pub generation: u64,
    /// The last batch that a checkpoint covers, that is durable, and that was accepted.
    pub checkpoint_lsn: u64,
    /// See [`Statistics::checkpoint_lsn`].
    pub durable_lsn: u64,
    /// See [`Statistics::checkpoint_lsn`].
    pub last_lsn: u64,
    /// Height of each index's tree.
    pub heights: Vec<(IndexId, u8)>,
}

impl Store {
    /// Figures.
    pub fn statistics(&self) -> Statistics {
        let components = &self.components;
        components.write.pipeline.drain();
        let last_lsn = components.write.pipeline.lock().last_lsn;
        let superblock = components.space.superblock();
        let indexes: Vec<Arc<Index>> = components.indexes.all();
        let cache = components.trees.pieces.stats();
        Statistics {
            uuid: superblock.uuid,
            label: superblock.label,
            created: superblock.created,
            compression: components.trees.compression,
            space: components.space.stats(components.accounting.unwritten_blocks_now()),
            device: components.device.stats(),
            log_capacity: components.log.capacity(),
            log_used: components.log.used_bytes(),
            log: components.log.counters(),
            stalls: components.write.back_pressure.stall_times(),
            memory_budget: components.options.memory,
            absorbed: components.trees.absorbed.load(Ordering::Relaxed),
            memtable_bytes: indexes.iter().map(|i| i.version().memtable_bytes() as u64).sum(),
            dirty_bytes: components.memory.bytes(),
            log_bytes: components.log.held_bytes(),
            cache_bytes: cache.bytes + cache.read_ahead,
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            checkpoints: components.accounting.checkpoints(),
            generation: superblock.generation,
            checkpoint_lsn: superblock.checkpoint_lsn.0,
            durable_lsn: components.log.durable_lsn().0,
            last_lsn: last_lsn.0,
            heights: indexes.iter().map(|i| (i.id, i.version().root.height)).collect(),
        }
    }

    /// Counts the pieces of the last checkpoint by kind. Reads the whole node translation table.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`].
    pub fn census(&self) -> Result<Census> {
        self.components.space.tables.census()
    }

    /// How the free space is divided into runs. Looks at the whole map of blocks in memory.
    pub fn free_runs(&self) -> RunHistogram {
        self.components.space.free_runs()
    }
}
