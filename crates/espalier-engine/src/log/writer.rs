//! The running log: pending batches, group commit, the ring.

use super::codec::op_bound;
use super::format::{LogPosition, PAYLOAD, StoreTag};
use super::group::UnderWay;
use super::reader::{self, Recovered};
use super::{Binder, LogConfig, LoggedBatch, LoggedOp, Progress};
use crate::device::GuardedDevice;
use crate::model::error::Context;
use crate::model::piece::PieceHandle;
use crate::{Error, ErrorKind, Extent, Lsn, Result};
use espalier_storage::{AlignedBuf, BLOCK};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// The smallest region, in blocks: two groups of a few operations.
const MIN_BLOCKS: u32 = 8;
/// Upper bound of what a batch costs beyond its operations.
const BATCH_OVERHEAD: u64 = 32;

/// The redo log. See the [module](super).
pub(crate) struct Log {
    pub(super) device: Arc<GuardedDevice>,
    pub(super) region: Extent,
    pub(super) tag: StoreTag,
    pub(super) session: u64,
    pub(super) binder: Arc<dyn Binder>,
    pub(super) config: LogConfig,
    state: Mutex<State>,
    /// Something in `state` changed that somebody may wait for.
    pub(super) changed: Condvar,
}

/// What the log has done since it was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LogCounters {
    /// Groups written.
    pub groups: u64,
    /// Batches in them.
    pub batches: u64,
    /// Bytes written to the region.
    pub bytes: u64,
    /// Bytes of large values that were written into value parts for a group.
    pub bound_bytes: u64,
    /// Operations not written because a later one of their group wiped them out.
    pub superseded: u64,
    /// Device syncs.
    pub syncs: u64,
}

pub(super) struct State {
    pub(super) pending: VecDeque<Pending>,
    /// Sum of the bounds of the pending batches.
    pub(super) pending_bytes: u64,
    /// Last batch appended, written and synced. What a trim covers counts as all three.
    appended: Lsn,
    pub(super) written: Lsn,
    durable: Lsn,
    /// Number of the next block to write.
    pub(super) head: u64,
    /// Number of the first block that must stay.
    pub(super) tail: u64,
    /// Blocks with smaller numbers are durable.
    pub(super) synced: u64,
    /// Checksum of the first block of the last group.
    pub(super) chain: u64,
    /// Bytes of value parts named since the last sync.
    pub(super) unsynced_values: u64,
    /// The groups that have been begun and have not ended.
    pub(super) under_way: UnderWay,
    /// Somebody syncs the device, with the lock released.
    pub(super) syncing: bool,
    /// The LSNs that callers of `sync` wait for, with how many do.
    waiting: BTreeMap<Lsn, usize>,
    /// The groups in the region that are not trimmed, in order.
    pub(super) groups: VecDeque<Written>,
    /// The first failure.
    failed: Option<Error>,
    pub(super) counters: LogCounters,
}

pub(super) struct Pending {
    pub(super) batch: LoggedBatch,
    /// Upper bound of its bytes in the log.
    pub(super) bound: u64,
}

/// A group in the region.
pub(super) struct Written {
    /// Number of its first block.
    pub(super) start: u64,
    /// Its last batch.
    pub(super) last: Lsn,
    /// The predecessor it names.
    pub(super) previous: u64,
    /// Holds the value parts it names.
    pub(super) parts: Vec<Arc<PieceHandle>>,
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

    /// Recovers the log behind `from`, handing each batch of it to `replay` in order, and continues
    /// it.
    ///
    /// `session` must be unpredictable: it tells the blocks of this session from those that an
    /// earlier one wrote behind a torn group. What was replayed is durable when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if batches that were synced cannot be read; whatever the device, the
    /// binder or `replay` says.
    #[allow(clippy::too_many_arguments, reason = "each is a different thing; called once")]
    pub(crate) fn open(
        device: Arc<GuardedDevice>,
        region: Extent,
        uuid: &[u8; 16],
        session: u64,
        from: LogPosition,
        binder: Arc<dyn Binder>,
        config: LogConfig,
        replay: &mut dyn FnMut(LoggedBatch) -> Result<()>,
    ) -> Result<Self> {
        Self::open_as(device, region, uuid, session, from, binder, config, false, replay).map(|(log, _)| log)
    }

    /// As [`Log::open`] for a log that may be damaged: it ends where it can no longer be read, and
    /// the error says why.
    ///
    /// # Errors
    /// As for [`Log::open`], but for what is wrong with the log.
    #[allow(clippy::too_many_arguments, reason = "each is a different thing; called once")]
    pub(crate) fn open_damaged(
        device: Arc<GuardedDevice>,
        region: Extent,
        uuid: &[u8; 16],
        session: u64,
        from: LogPosition,
        binder: Arc<dyn Binder>,
        config: LogConfig,
        replay: &mut dyn FnMut(LoggedBatch) -> Result<()>,
    ) -> Result<(Self, Option<Error>)> {
        Self::open_as(device, region, uuid, session, from, binder, config, true, replay)
    }

    #[allow(clippy::too_many_arguments, reason = "each is a different thing; called twice")]
    fn open_as(
        device: Arc<GuardedDevice>,
        region: Extent,
        uuid: &[u8; 16],
        session: u64,
        from: LogPosition,
        binder: Arc<dyn Binder>,
        config: LogConfig,
        tolerant: bool,
        replay: &mut dyn FnMut(LoggedBatch) -> Result<()>,
    ) -> Result<(Self, Option<Error>)> {
        let memory = config.recovery_memory;
        let mut recovered = Self::recover(&device, region, uuid, from, &*binder, memory, tolerant, replay)?;
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
            // number that is in the ring now is due.
            recovered.end = from.block.saturating_add(2 * u64::from(region.blocks));
            tail = recovered.end;
            recovered.groups.clear();
        }
        let tag = StoreTag::new(uuid);
        let state = State {
            pending: VecDeque::new(),
            pending_bytes: 0,
            appended: recovered.last,
            written: recovered.last,
            durable: recovered.last,
            head: recovered.end,
            tail,
            synced: recovered.end,
            chain: recovered.chain,
            unsynced_values: 0,
            under_way: UnderWay::default(),
            syncing: false,
            waiting: BTreeMap::new(),
            groups: recovered.groups.into(),
            failed: None,
            counters: LogCounters::default(),
        };
        let config = clamp(config, region);
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Ok((Self { device, region, tag, session, binder, config, state, changed }, broken))
    }

    /// The reading half of [`Log::open`]: writes nothing.
    #[cfg(test)]
    pub(crate) fn inspect(
        device: &GuardedDevice,
        region: Extent,
        uuid: &[u8; 16],
        from: LogPosition,
        binder: &dyn Binder,
        replay: &mut dyn FnMut(LoggedBatch) -> Result<()>,
    ) -> Result<Recovered> {
        let memory = LogConfig::default().recovery_memory;
        Self::recover(device, region, uuid, from, binder, memory, false, replay)
    }

    #[allow(clippy::too_many_arguments, reason = "each is a different thing; handed on")]
    fn recover(
        device: &GuardedDevice,
        region: Extent,
        uuid: &[u8; 16],
        from: LogPosition,
        binder: &dyn Binder,
        memory: u64,
        tolerant: bool,
        replay: &mut dyn FnMut(LoggedBatch) -> Result<()>,
    ) -> Result<Recovered> {
        check_region(region)?;
        let place = reader::Place { device, region, tag: StoreTag::new(uuid) };
        let bounds = reader::Bounds { batch: max_batch(region), memory };
        reader::recover(place, from, bounds, binder, tolerant, replay)
            .context(|| format!("recovering the log in {region}"))
    }

    /// Accepts the next batch into memory. Cheap; called in LSN order. Returns
    /// [`Self::pending_bytes`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the batch is larger than the log takes (nothing is
    /// accepted then) or out of order; the first failure of the log, if there was one.
    pub(crate) fn append(&self, batch: LoggedBatch) -> Result<u64> {
        let bound = self.check(&batch.ops)?;
        let mut state = self.state.lock();
        state.alive()?;
        if batch.lsn.0 != state.appended.0 + 1 {
            let message =
                format!("batch {} was logged after {}; this is a bug", batch.lsn.0, state.appended.0);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        state.appended = batch.lsn;
        if self.config.unlogged {
            return Ok(0);
        }
        state.pending_bytes += bound;
        state.pending.push_back(Pending { batch, bound });
        Ok(state.pending_bytes)
    }

    /// True if a batch of `bytes` bytes, by the bound of [`Log::check`], is too long.
    pub(crate) fn is_too_long(&self, bytes: u64) -> bool {
        bytes > max_batch(self.region)
    }

    /// Upper bound of the bytes that a batch of `ops` takes in the log.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if that is more than one batch may have.
    pub(crate) fn check(&self, ops: &[LoggedOp]) -> Result<u64> {
        let bound = BATCH_OVERHEAD + ops.iter().map(op_bound).sum::<u64>();
        let max = max_batch(self.region);
        if bound > max {
            let message =
                format!("a batch of {bound} bytes does not fit the log, which takes up to {max}: split it");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(bound)
    }

    /// Writes batches appended before this call until at most `leave` bytes of them are pending,
    /// without making them durable. A rest left behind grows until it is worth a group of its own.
    ///
    /// # Errors
    /// The first failure of the log, which is final.
    pub(crate) fn push(&self, leave: u64) -> Result<Progress> {
        let mut state = self.state.lock();
        let target = state.appended;
        loop {
            state.alive()?;
            let enough = state.written >= target || (leave > 0 && state.pending_bytes <= leave);
            if enough || self.config.unlogged {
                return Ok(Progress::Done);
            }
            if state.must_sync() {
                self.sync_step(&mut state)?;
            } else if !state.may_begin(target, self.config.groups) {
                self.changed.wait(&mut state);
            } else if self.write_step(&mut state, target)? == Progress::Full {
                return Ok(Progress::Full);
            }
        }
    }

    /// Makes every batch up to `upto` durable.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no such batch was appended; the first failure of the log,
    /// which is final.
    pub(crate) fn sync(&self, upto: Lsn) -> Result<Progress> {
        let mut state = self.state.lock();
        if upto > state.appended {
            state.alive()?;
            let message = format!("sync of batch {} before it was logged; this is a bug", upto.0);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if state.durable >= upto {
            return Ok(Progress::Done);
        }
        *state.waiting.entry(upto).or_default() += 1;
        let result = self.sync_registered(&mut state, upto);
        if let Some(count) = state.waiting.get_mut(&upto) {
            *count -= 1;
            if *count == 0 {
                state.waiting.remove(&upto);
            }
        }
        result
    }

    fn sync_registered(&self, state: &mut MutexGuard<'_, State>, upto: Lsn) -> Result<Progress> {
        loop {
            if state.durable >= upto {
                return Ok(Progress::Done);
            }
            state.alive()?;
            if self.config.unlogged {
                return Ok(Progress::Full);
            }
            if state.must_sync() {
                self.sync_step(state)?;
                continue;
            }
            // Who comes during a sync shares the next; and what others have begun may be what is
            // asked for.
            if state.syncing || !state.under_way.is_empty() {
                self.changed.wait(state);
                continue;
            }
            let target = state.waiting.keys().next_back().copied().unwrap_or(upto);
            if self.write_step(state, target)? == Progress::Full {
                return Ok(Progress::Full);
            }
        }
    }

    /// Makes what has been written durable, with the lock released meanwhile. Groups may be written
    /// at the same time; those that end before this does are not covered.
    pub(super) fn sync_step(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        let (written, head, values) = (state.written, state.head, state.unsynced_values);
        state.syncing = true;
        let result = self.unlocked(state, || self.device.sync());
        state.syncing = false;
        self.changed.notify_all();
        result.context(|| "syncing the log".into()).map_err(|error| state.fail(error))?;
        state.durable = state.durable.max(written);
        state.synced = head;
        state.unsynced_values -= values;
        state.counters.syncs += 1;
        Ok(())
    }

    /// Does `work` with the lock released. If it panics the log is over, for others wait for the
    /// end of it.
    pub(super) fn unlocked<T>(&self, state: &mut MutexGuard<'_, State>, work: impl FnOnce() -> T) -> T {
        MutexGuard::unlocked(state, || catch_unwind(AssertUnwindSafe(work))).unwrap_or_else(|panic| {
            state.fail(Error::damaged("writing the log panicked: this is a bug, please report it"));
            self.changed.notify_all();
            resume_unwind(panic)
        })
    }

    /// Bytes of batches (an upper bound) that no group has taken yet.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.state.lock().pending_bytes
    }

    /// The same with those of groups that are being written.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.pending_bytes + state.under_way.bytes
    }

    /// True if one more could write a group now.
    pub(crate) fn has_turn(&self) -> bool {
        self.state.lock().under_way.len() < self.config.groups
    }

    /// The last batch that was written, durably or not.
    pub(crate) fn written_lsn(&self) -> Lsn {
        self.state.lock().written
    }

    /// Bytes of the region that hold groups which are not trimmed.
    pub(crate) fn used_bytes(&self) -> u64 {
        let state = self.state.lock();
        (state.head - state.tail) * BLOCK as u64
    }

    /// Bytes of the region.
    pub(crate) fn capacity(&self) -> u64 {
        self.region.byte_len() as u64
    }

    /// The last batch that is durable.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        self.state.lock().durable
    }

    /// The last batch that was appended.
    #[cfg(test)]
    pub(crate) fn appended_lsn(&self) -> Lsn {
        self.state.lock().appended
    }

    /// How many calls of `sync` wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting.values().sum()
    }

    /// What has been done so far.
    pub(crate) fn counters(&self) -> LogCounters {
        self.state.lock().counters
    }

    /// Where replay must start if batches up to `lsn` need none.
    ///
    /// Whoever keeps the position syncs the device first: it says that everything written so far is
    /// durable, so that damage to it is never taken for a torn tail.
    pub(crate) fn position_after(&self, lsn: Lsn) -> LogPosition {
        let state = self.state.lock();
        let first = state.groups.partition_point(|group| group.last <= lsn);
        let (block, chain) = match state.groups.get(first) {
            Some(group) => (group.start, group.previous),
            None => (state.head, state.chain),
        };
        LogPosition { block, lsn, chain, synced: state.head }
    }

    /// Gives up everything before `position`: a superblock that is durable starts replay there.
    /// Batches that it covers and that were never written need not be any more.
    pub(crate) fn trim(&self, position: LogPosition) {
        let mut gone = (Vec::new(), Vec::new());
        let mut state = self.state.lock();
        debug_assert!(position.block <= state.head && position.lsn <= state.appended, "trim behind the end");
        state.tail = state.tail.max(position.block.min(state.head));
        while state.groups.front().is_some_and(|group| group.start < state.tail) {
            gone.0.extend(state.groups.pop_front());
        }
        while state.pending.front().is_some_and(|next| next.batch.lsn <= position.lsn) {
            gone.1.extend(state.pending.pop_front());
        }
        state.pending_bytes -= gone.1.iter().map(|pending| pending.bound).sum::<u64>();
        state.written = state.written.max(position.lsn);
        state.durable = state.durable.max(position.lsn);
        drop(state);
        self.changed.notify_all();
        // Dropping handles may free parts, which takes other locks than ours.
        drop(gone);
    }
}

impl State {
    pub(super) fn alive(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// The log is over; returns why.
    pub(super) fn fail(&mut self, error: Error) -> Error {
        self.failed.get_or_insert(error).clone()
    }

    /// True if a group of batches up to `target` can be begun beside those under way.
    fn may_begin(&self, target: Lsn, groups: usize) -> bool {
        self.under_way.len() < groups && self.pending.front().is_some_and(|next| next.batch.lsn <= target)
    }

    /// True if somebody waits for a sync and for nothing else, and nobody is at it. He must not
    /// wait for what others have to write: who would write the next group syncs before.
    fn must_sync(&self) -> bool {
        let mut unsynced = self.waiting.range((Bound::Excluded(self.durable), Bound::Unbounded));
        !self.syncing && unsynced.next().is_some_and(|(lsn, _)| *lsn <= self.written)
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Log")
            .field("region", &self.region)
            .field("blocks", &(state.tail..state.head))
            .field("synced", &state.synced)
            .field("lsn", &[state.appended.0, state.written.0, state.durable.0])
            .finish()
    }
}

fn check_region(region: Extent) -> Result<()> {
    if region.blocks < MIN_BLOCKS {
        let message = format!("the log needs {MIN_BLOCKS} blocks or more, not {}", region.blocks);
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(())
}

/// The largest batch that a region takes: half of it, so that one can be written while another
/// waits for its checkpoint.
fn max_batch(region: Extent) -> u64 {
    u64::from(region.blocks / 2) * PAYLOAD as u64 - super::format::GROUP_HEADER as u64
}

fn clamp(config: LogConfig, region: Extent) -> LogConfig {
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
        unsynced_values: config.unsynced_values.min(most.unsynced_values).max(1),
        groups: config.groups.max(1),
        unlogged: config.unlogged,
        recovery_memory: config.recovery_memory,
    }
}
