//! Public calls for durability, space and statistics.

use crate::file_system::FileSystem;
use crate::model::error::Result;
use crate::model::types::*;
use crate::tree_ops::correct_areas::correct_areas;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The unit of [`FileSystem::statfs`], in bytes.
const STATFS_UNIT_BYTES: u32 = 4096;

/// [`FileSystem::statfs`] waits no longer for what was removed to be free.
const STATFS_COLLECTS_FOR: Duration = Duration::from_millis(500);

impl FileSystem {
    /// Makes what was done to `node` before this call durable; for a directory, everything that was
    /// done. `datasync`: a delayed time of the last read need not be.
    ///
    /// # Errors
    /// [`FsErrorKind::Io`](crate::FsErrorKind::Io), and the same to every change for ever, if the
    /// device fails.
    pub fn fsync(&self, node: NodeId, datasync: bool) -> Result<()> {
        let node = self.names.nodes.node(node)?;
        if node.is_dir() {
            return self.syncfs();
        }
        if !datasync && !self.volume.options.read_only {
            self.access_times.write(&self.names.tree.shared(), &node)?;
        }
        let mut lsn = node.state().lsn;
        if self.volume.options.handles == HandleLifetime::Stored {
            self.names.locations.write_all()?;
            lsn = self.volume.last_lsn();
        }
        Ok(self.volume.store.sync(lsn)?)
    }

    /// Passes a result on, once what was done to some nodes is durable, if one of them has one of
    /// the `flags` that ask for it.
    pub(crate) fn settled<T>(&self, done: T, nodes: &[NodeId], flags: FileFlags) -> Result<T> {
        if !self.names.state_record.may_have(flags) {
            return Ok(done);
        }
        for node in nodes {
            if self.attributes.flags(*node)?.has(flags) {
                self.fsync(*node, true)?;
            }
        }
        Ok(done)
    }

    /// The same for a change of names in directories.
    pub(crate) fn names_settled<T>(&self, done: T, dirs: &[NodeId]) -> Result<T> {
        self.settled(done, dirs, FileFlags(FileFlags::SYNC.0 | FileFlags::DIRSYNC.0))
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// As for [`FileSystem::fsync`].
    pub fn syncfs(&self) -> Result<()> {
        self.names.orphans.deferred.remove_all();
        if !self.volume.options.read_only {
            self.access_times.write_all()?;
            self.names.locations.write_all()?;
        }
        Ok(self.volume.store.sync_all()?)
    }

    /// What the mount calls every few seconds (default 5): writes delayed times, makes everything
    /// durable, gives up memory for names beyond the budget.
    ///
    /// # Errors
    /// As for [`FileSystem::fsync`].
    pub fn background_tick(&self) -> Result<()> {
        self.names.nodes.sweep_names();
        self.names.nodes.catch_up_all();
        if !self.volume.options.read_only {
            correct_areas(&self.names)?;
            self.names.state_record.measure_key_lengths()?;
            self.quotas.count_some()?;
            if self.volume.options.handles == HandleLifetime::Stored {
                self.names.locations.write_all()?;
                self.names.locations.sweep()?;
            }
        }
        self.syncfs()
    }

    /// The last call: empties the orphan area and makes everything durable. The store is the
    /// caller's to close.
    ///
    /// # Errors
    /// As for [`FileSystem::fsync`].
    pub fn close(&self) -> Result<()> {
        self.prefixes.release_below(b"");
        if !self.volume.options.read_only {
            self.names.orphans.deferred.remove_all();
            self.access_times.write_all()?;
            self.names.orphans.empty_area()?;
            self.names.locations.write_all()?;
        }
        Ok(self.volume.store.sync_all()?)
    }

    /// Has the mount give back its references to unlinked files, if there are such files; true if
    /// there were. When a call finds no space it is worth another try then: what was unlinked a
    /// moment ago holds its blocks until the kernel has let go of it. Called without locks.
    pub fn release_unlinked(&self) -> bool {
        self.names.orphans.release_unlinked()
    }

    /// Room and limits. What was removed counts as free, if making it free takes no longer than a
    /// moment; otherwise the next call may know more.
    ///
    /// # Errors
    /// None today.
    pub fn statfs(&self) -> Result<StatFs> {
        if !self.volume.options.read_only {
            self.names.orphans.release_unlinked();
            self.names.orphans.deferred.remove_all();
            if let Err(error) = self.volume.store.collect_deleted(STATFS_COLLECTS_FOR) {
                tracing::debug!(%error, "what was removed is not free yet");
            }
        }
        let space = self.volume.space();
        let unit = |bytes: u64| bytes / u64::from(STATFS_UNIT_BYTES);
        Ok(StatFs {
            block_size: STATFS_UNIT_BYTES,
            blocks: unit(space.total),
            free: unit(space.free),
            available: unit(space.free),
            files: 0,
            max_name: MAX_NAME as u32,
        })
    }

    /// As [`FileSystem::statfs`], inside directory `node` or at a file: within a limited tree the
    /// limit is all that there is.
    ///
    /// # Errors
    /// Of the store.
    pub fn statfs_at(&self, node: NodeId) -> Result<StatFs> {
        let mut stat = self.statfs()?;
        if let Some((limit, free)) = self.quotas.room(node)? {
            let unit = |bytes: u64| bytes / u64::from(STATFS_UNIT_BYTES);
            stat.blocks = stat.blocks.min(unit(limit));
            stat.free = stat.free.min(unit(free));
            stat.available = stat.free;
        }
        Ok(stat)
    }

    /// The bytes that are free, and all bytes for data, at once: what was removed may not be free
    /// yet.
    pub fn room(&self) -> (u64, u64) {
        let space = self.volume.space();
        (space.free, space.total)
    }

    /// Tells the device about free space, in runs of at least `least` bytes; returns the bytes.
    ///
    /// # Errors
    /// Of the store, if it takes no changes.
    pub fn trim(&self, least: u64) -> Result<u64> {
        Ok(self.volume.store.trim(least)?)
    }

    /// The label of the store.
    pub fn label(&self) -> String {
        self.volume.store.statistics().label
    }

    /// Gives the store another label, durably.
    ///
    /// # Errors
    /// [`FsErrorKind::Invalid`](crate::FsErrorKind::Invalid) if it has more than 64 bytes, or a
    /// NUL; of the store.
    pub fn set_label(&self, label: &str) -> Result<()> {
        self.volume.check_writable()?;
        Ok(self.volume.store.set_label(label)?)
    }

    /// Lets nothing more be written, as after a failure of the device: what is durable stays, all
    /// else is lost.
    pub fn shut_down(&self) {
        self.volume.store.shut_down("the file system was shut down (FS_IOC_SHUTDOWN)");
    }

    /// Counters and memory.
    pub fn statistics(&self) -> FsStatistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.volume.counters;
        FsStatistics {
            nodes: self.names.nodes.len(),
            name_bytes: self.names.nodes.name_bytes(),
            lookup_hits: get(&counters.lookup_hits),
            lookup_misses: get(&counters.lookup_misses),
            creates: get(&counters.creates),
            create_queries: get(&counters.create_queries),
            orphans: get(&counters.orphans),
            ownership_walks: get(&counters.ownership_walks),
            bytes_read: get(&counters.bytes_read),
            bytes_written: get(&counters.bytes_written),
        }
    }
}
