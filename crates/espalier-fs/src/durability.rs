//! Durability, room, statistics.

use crate::file_system::FileSystem;
use crate::model::error::Result;
use crate::model::types::*;
use std::sync::atomic::{AtomicU64, Ordering};

impl FileSystem {
    /// Makes what was done to `node` before this call durable; for a directory, everything that was
    /// done. `datasync`: a delayed time of the last read need not be.
    ///
    /// # Errors
    /// [`FsErrorKind::Io`](crate::FsErrorKind::Io), and the same to every change for ever, if the
    /// device fails.
    pub fn fsync(&self, node: NodeId, datasync: bool) -> Result<()> {
        let node = self.node(node)?;
        if node.is_dir() {
            return self.syncfs();
        }
        if !datasync && !self.volume.options.read_only {
            self.write_atime(&self.tree.shared(), &node)?;
        }
        let lsn = node.state().lsn;
        Ok(self.volume.store.sync(lsn)?)
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// As for [`FileSystem::fsync`].
    pub fn syncfs(&self) -> Result<()> {
        self.remove_forgotten();
        if !self.volume.options.read_only {
            self.write_atimes()?;
        }
        Ok(self.volume.store.sync_all()?)
    }

    /// What the mount calls every few seconds (default 5): writes delayed times, makes everything
    /// durable, gives up memory for names beyond the budget.
    ///
    /// # Errors
    /// As for [`FileSystem::fsync`].
    pub fn background_tick(&self) -> Result<()> {
        self.trim_names();
        self.catch_up_all();
        if !self.volume.options.read_only {
            self.settle_all()?;
            self.measure_lengths()?;
        }
        self.syncfs()
    }

    /// The last call: empties the orphan area and makes everything durable. The store is the
    /// caller's to close.
    ///
    /// # Errors
    /// As for [`FileSystem::fsync`].
    pub fn close(&self) -> Result<()> {
        if !self.volume.options.read_only {
            self.remove_forgotten();
            self.write_atimes()?;
            self.settle_all()?;
            self.empty_orphan_area()?;
        }
        Ok(self.volume.store.sync_all()?)
    }

    /// Room and limits.
    ///
    /// # Errors
    /// None today.
    pub fn statfs(&self) -> Result<StatFs> {
        self.remove_forgotten();
        let space = self.volume.space();
        let unit = |bytes: u64| bytes / u64::from(STATFS_UNIT);
        Ok(StatFs {
            block_size: STATFS_UNIT,
            blocks: unit(space.total),
            free: unit(space.free),
            available: unit(space.free),
            files: 0,
            max_name: MAX_NAME as u32,
        })
    }

    /// Counters and memory.
    pub fn statistics(&self) -> FsStatistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.volume.counters;
        FsStatistics {
            nodes: self.nodes.len(),
            name_bytes: get(&self.name_bytes),
            lookup_hits: get(&counters.lookup_hits),
            lookup_misses: get(&counters.lookup_misses),
            creates: get(&counters.creates),
            create_queries: get(&counters.create_queries),
            orphans: get(&counters.orphans),
            bytes_read: get(&counters.bytes_read),
            bytes_written: get(&counters.bytes_written),
        }
    }
}

/// The unit of [`FileSystem::statfs`], in bytes.
const STATFS_UNIT: u32 = 4096;
