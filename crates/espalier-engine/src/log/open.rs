//! Opening a log: preparing the region of a new one, recovering an old one.

use super::format::{LogPosition, StoreTag};
use super::recovery::{self, RecoveredLog};
use super::redo_log::{Log, max_batch};
use super::state::{LogState, Ring};
use super::{Binder, LogConfig, LoggedBatch};
use crate::device::GuardedDevice;
use crate::lock_order::RankedMutex;
use crate::model::error::Context;
use crate::{Error, ErrorKind, Extent, Lsn, Result};
use espalier_storage::{AlignedBuf, BLOCK};
use espalier_sync::Condvar;
use std::sync::Arc;

/// The smallest region, in blocks: two groups of a few operations.
const MIN_REGION_BLOCKS: u32 = 8;

/// No log comes to blocks with larger numbers: at a million blocks in a second that takes a hundred
/// thousand years.
const MAX_BLOCK: u64 = 1 << 62;

/// What a log is opened with.
pub(crate) struct LogOpening<'a> {
    /// The device of the store.
    pub(crate) device: Arc<GuardedDevice>,
    /// Where the log lies on it.
    pub(crate) region: Extent,
    /// Tells the store from others.
    pub(crate) uuid: &'a [u8; 16],
    /// Unpredictable: it tells the blocks of this session from those that an earlier one wrote
    /// behind a torn group.
    pub(crate) session: u64,
    /// Where replay starts.
    pub(crate) from: LogPosition,
    /// Writes and finds value parts.
    pub(crate) binder: Arc<dyn Binder>,
    /// Sizes.
    pub(crate) config: LogConfig,
}

/// Takes the batches that are replayed, in order.
pub(crate) type ReplayBatch<'a> = &'a mut dyn FnMut(LoggedBatch) -> Result<()>;

impl LogOpening<'_> {
    /// Recovers the log behind [`LogOpening::from`], handing each batch of it to `replay`, and
    /// continues it. What was replayed is durable when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if batches that were synced cannot be read; errors of the device, the
    /// binder and `replay`.
    pub(crate) fn open(self, replay: ReplayBatch<'_>) -> Result<Log> {
        self.open_as(false, replay).map(|(log, _)| log)
    }

    /// As [`LogOpening::open`] for a log that may be damaged: it ends where it can no longer be
    /// read, and the error says why.
    ///
    /// # Errors
    /// As for [`LogOpening::open`], but for what is wrong with the log.
    pub(crate) fn open_damaged(self, replay: ReplayBatch<'_>) -> Result<(Log, Option<Error>)> {
        self.open_as(true, replay)
    }

    fn open_as(self, tolerant: bool, replay: ReplayBatch<'_>) -> Result<(Log, Option<Error>)> {
        let mut recovered = self.recover(tolerant, replay)?;
        let Self { device, region, uuid, session, from, binder, config } = self;
        let broken = recovered.broken.take();
        // A kill loses nothing that was written, so more may have been replayed than was ever
        // synced. The next group will claim that everything before it is durable.
        match device.sync() {
            // Opened for reading only: there will be no next group.
            Err(e) if e.kind() == ErrorKind::ReadOnly => {}
            synced => synced.context(|| "syncing what the log had written".into())?,
        }
        let mut tail = from.block;
        if broken.is_some() {
            // Blocks behind the damage must never be taken for what comes next: two laps on no
            // number that is in the ring now is due. What makes no sense is far behind all of them.
            recovered.end = from.block.min(MAX_BLOCK / 2) + 2 * u64::from(region.blocks);
            tail = recovered.end;
            recovered.groups.clear();
        }
        let tag = StoreTag::new(uuid);
        let ring = Ring {
            head: recovered.end,
            tail,
            synced: recovered.end,
            chain: recovered.chain,
            unsynced_values: 0,
            groups: recovered.groups.into(),
        };
        let state = LogState::new(recovered.last, ring);
        let config = clamp(config, region, device.keeps_order());
        let (state, changed) = (RankedMutex::new(state), Condvar::new());
        let apart = Arc::default();
        let memory = Arc::default();
        Ok((Log { device, region, tag, session, binder, config, apart, memory, state, changed }, broken))
    }

    /// The reading half of [`LogOpening::open`]: writes nothing.
    #[cfg(test)]
    pub(crate) fn inspect(&self, replay: ReplayBatch<'_>) -> Result<RecoveredLog> {
        self.recover(false, replay)
    }

    fn recover(&self, tolerant: bool, replay: ReplayBatch<'_>) -> Result<RecoveredLog> {
        let region = self.region;
        check_region(region)?;
        if self.from.block > MAX_BLOCK {
            let message = format!("the log is to go on at block {}, where none can be", self.from.block);
            let broken = Error::damaged(message);
            return if tolerant { Ok(RecoveredLog::broken_at(self.from, broken)) } else { Err(broken) };
        }
        let place = recovery::LogPlace { device: &self.device, region, tag: StoreTag::new(self.uuid) };
        let limits =
            recovery::RecoveryLimits { batch: max_batch(region), memory: self.config.recovery_memory };
        recovery::recover(place, self.from, limits, &*self.binder, tolerant, replay)
            .context(|| format!("recovering the log in {region}"))
    }
}

impl Log {
    /// Prepares `region` for a new store; returns where its log starts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the region is too small; whatever the device says.
    pub(crate) fn format(device: &GuardedDevice, region: Extent, uuid: &[u8; 16]) -> Result<LogPosition> {
        check_region(region)?;
        // Blocks of an earlier log have another tag. This guards against one with the same uuid.
        let blank = AlignedBuf::zeroed(BLOCK);
        device.write_at(region.byte_offset(), &[&blank])?;
        Ok(LogPosition { block: 0, lsn: Lsn(0), chain: StoreTag::new(uuid).first_chain(), synced: 0 })
    }
}

fn check_region(region: Extent) -> Result<()> {
    if region.blocks < MIN_REGION_BLOCKS {
        let message = format!("the log needs {MIN_REGION_BLOCKS} blocks or more, not {}", region.blocks);
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(())
}

fn clamp(config: LogConfig, region: Extent, keeps_order: bool) -> LogConfig {
    let most = LogConfig::default();
    let group_bytes = config.group_bytes.min(most.group_bytes).min(max_batch(region));
    LogConfig {
        early_binding: match config.early_binding {
            u64::MAX => u64::MAX,
            // A small region makes small groups; they must be able to reach it.
            bytes => bytes.min(group_bytes / 2),
        },
        group_bytes,
        unsynced_blocks: config.unsynced_blocks.min(most.unsynced_blocks).max(1),
        // Recovery checks no values of a device that keeps the order of writes.
        unsynced_values: match keeps_order {
            true => u64::MAX,
            false => config.unsynced_values.min(most.unsynced_values).max(1),
        },
        groups: config.groups.max(1),
        unlogged: config.unlogged,
        recovery_memory: config.recovery_memory,
    }
}
