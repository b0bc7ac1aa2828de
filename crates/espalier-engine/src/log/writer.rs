//! The running log: pending batches, group commit, the ring.

use super::codec::{Encoder, op_bound, put_varint};
use super::format::{
    BuiltGroup, GroupBuilder, GroupHeader, GroupPlace, LogPosition, PAYLOAD, StoreTag, blocks_for,
};
use super::plan::{self, Placement, Plan};
use super::reader::{self, Recovered};
use super::{Binder, LogConfig, LoggedBatch, LoggedOp, Progress};
use crate::device::GuardedDevice;
use crate::error::Context;
use crate::piece::PieceHandle;
use crate::{Error, ErrorKind, Extent, Lsn, Result};
use espalier_storage::{AlignedBuf, BLOCK};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The smallest region, in blocks: two groups of a few operations.
const MIN_BLOCKS: u32 = 8;
/// Upper bound of what a batch costs beyond its operations.
const BATCH_OVERHEAD: u64 = 32;

/// The redo log. See the [module](super).
pub(crate) struct Log {
    device: Arc<GuardedDevice>,
    region: Extent,
    tag: StoreTag,
    session: u64,
    binder: Arc<dyn Binder>,
    config: LogConfig,
    state: Mutex<State>,
    /// Something in `state` changed that somebody may wait for.
    changed: Condvar,
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

struct State {
    pending: VecDeque<Pending>,
    /// Sum of the bounds of the pending batches.
    pending_bytes: u64,
    /// Last batch appended, written and synced. What a trim covers counts as all three.
    appended: Lsn,
    written: Lsn,
    durable: Lsn,
    /// Number of the next block to write.
    head: u64,
    /// Number of the first block that must stay.
    tail: u64,
    /// Blocks with smaller numbers are durable.
    synced: u64,
    /// Checksum of the first block of the last group.
    chain: u64,
    /// Bytes of value parts named since the last sync.
    unsynced_values: u64,
    /// A leader is at work, with the lock released.
    busy: bool,
    /// The LSNs that callers of `sync` wait for, with how many do.
    waiting: BTreeMap<Lsn, usize>,
    /// The groups in the region that are not trimmed, in order.
    groups: VecDeque<Written>,
    /// The first failure.
    failed: Option<Error>,
    counters: LogCounters,
}

struct Pending {
    batch: LoggedBatch,
    /// Upper bound of its bytes in the log.
    bound: u64,
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

/// What a leader does next.
enum Step {
    Write,
    Sync,
}

/// What a leader has to write, taken out of the state.
struct Taken {
    batches: Vec<LoggedBatch>,
    bound: u64,
    place: GroupPlace,
    previous: u64,
}

/// A group that has been written.
struct Outcome {
    group: BuiltGroup,
    parts: Vec<Arc<PieceHandle>>,
    stored_bytes: u64,
    bound_bytes: u64,
    superseded: u64,
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

    /// Recovers the log behind `from`, handing each batch of it to `replay` in order, and continues it.
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

    /// As [`Log::open`] for a log that may be damaged: it ends where it can no longer be read, and the error says why.
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
        // A kill loses nothing that was written, so more may have been replayed than was ever synced.
        // The next group will claim that everything before it is durable.
        match device.sync() {
            // Opened for reading only: there will be no next group.
            Err(e) if e.kind() == ErrorKind::ReadOnly => {}
            synced => synced.context(|| "syncing what the log had written".into())?,
        }
        let mut tail = from.block;
        if broken.is_some() {
            // Blocks behind the damage must never be taken for what comes next: two laps on no number that
            // is in the ring now is due.
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
            busy: false,
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

    /// Accepts the next batch into memory. Cheap; called in LSN order. Returns [`Self::pending_bytes`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the batch is larger than the log takes (nothing is accepted
    /// then) or out of order; the first failure of the log, if there was one.
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
            if state.busy {
                self.changed.wait(&mut state);
                continue;
            }
            let step = if state.is_sync_awaited() { Step::Sync } else { Step::Write };
            if self.lead(&mut state, step, target)? == Progress::Full {
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
            if state.busy {
                self.changed.wait(state);
                continue;
            }
            let step = if state.is_sync_awaited() { Step::Sync } else { Step::Write };
            let target = state.waiting.keys().next_back().copied().unwrap_or(upto);
            if self.lead(state, step, target)? == Progress::Full {
                return Ok(Progress::Full);
            }
        }
    }

    /// Performs one step as the leader, with the lock released meanwhile.
    fn lead(&self, state: &mut MutexGuard<'_, State>, step: Step, target: Lsn) -> Result<Progress> {
        let too_much = state.head - state.synced >= self.config.unsynced_blocks
            || state.unsynced_values >= self.config.unsynced_values;
        let result = match step {
            Step::Write if !too_much => self.write_step(state, target),
            _ => self.sync_step(state).map(|()| Progress::Done),
        };
        if let Err(e) = &result
            && state.failed.is_none()
        {
            state.failed = Some(e.clone());
        }
        self.changed.notify_all();
        result
    }

    fn sync_step(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        let (written, head) = (state.written, state.head);
        state.busy = true;
        let result = MutexGuard::unlocked(state, || self.device.sync());
        state.busy = false;
        result.context(|| "syncing the log".into())?;
        state.durable = state.durable.max(written);
        state.synced = head;
        state.unsynced_values = 0;
        state.counters.syncs += 1;
        Ok(())
    }

    fn write_step(&self, state: &mut MutexGuard<'_, State>, target: Lsn) -> Result<Progress> {
        let free = u64::from(self.region.blocks) - (state.head - state.tail);
        let bound = state.next_bound();
        // An oversized group is written alone between two syncs, which keeps the bound on how far
        // behind a damaged block its evidence can lie.
        if bound > self.config.group_bytes && state.synced < state.head {
            return self.sync_step(state).map(|()| Progress::Done);
        }
        let Some(taken) = self.take(state, target, free) else {
            // Nothing pending means that a trim has covered it meanwhile.
            return Ok(if state.pending.is_empty() { Progress::Done } else { Progress::Full });
        };
        state.busy = true;
        let result = MutexGuard::unlocked(state, || self.write_group(&taken));
        state.busy = false;
        let outcome = result.context(|| "writing to the log".into())?;
        let last = taken.batches.last().map_or(Lsn(0), |batch| batch.lsn);
        let bytes = (outcome.group.blocks * BLOCK) as u64;
        state.groups.push_back(Written {
            start: taken.place.number,
            last,
            previous: taken.previous,
            parts: outcome.parts,
        });
        state.head += outcome.group.blocks as u64;
        state.chain = outcome.group.chain;
        state.written = state.written.max(last);
        state.unsynced_values += outcome.stored_bytes;
        let counters = &mut state.counters;
        counters.groups += 1;
        counters.batches += taken.batches.len() as u64;
        counters.bytes += bytes;
        counters.bound_bytes += outcome.bound_bytes;
        counters.superseded += outcome.superseded;
        // The batches may hold the last handles on values; drop them without the lock.
        MutexGuard::unlocked(state, || drop(taken));
        Ok(Progress::Done)
    }

    /// Takes the batches for the next group: up to `target`, up to the size of a group, and no more
    /// than fit `free` blocks even if all their values stay inline. `None` if not one fits.
    fn take(&self, state: &mut State, target: Lsn, free: u64) -> Option<Taken> {
        let mut batches = Vec::new();
        let mut bound = 0;
        // Groups of one size, so that the last is not too small to bind its values early.
        let groups = state.pending_bytes.div_ceil(self.config.group_bytes).max(1);
        let limit = state.pending_bytes.div_ceil(groups);
        while let Some(next) = state.pending.front() {
            let sum = bound + next.bound;
            let enough = !batches.is_empty() && (next.batch.lsn > target || sum > limit);
            if enough || blocks_for(sum) > free {
                break;
            }
            bound = sum;
            batches.extend(state.pending.pop_front().map(|pending| pending.batch));
        }
        state.pending_bytes -= bound;
        let place =
            GroupPlace { tag: self.tag, number: state.head, synced: state.synced, session: self.session };
        (!batches.is_empty()).then_some(Taken { batches, bound, place, previous: state.chain })
    }

    fn write_group(&self, taken: &Taken) -> Result<Outcome> {
        let plan = plan::plan(&taken.batches, &*self.binder);
        let live = plan.ops(&taken.batches).flatten();
        let placement = plan::place(live, self.config.early_binding, &*self.binder)?;
        let group = encode(taken, &plan, &placement)?;
        self.write_blocks(taken.place.number, &group)?;
        Ok(Outcome {
            group,
            parts: placement.parts.parts.into_iter().map(|(handle, _)| handle).collect(),
            stored_bytes: placement.stored_bytes,
            bound_bytes: placement.bound_bytes,
            superseded: plan.dead.iter().filter(|dead| **dead).count() as u64,
        })
    }

    /// Writes a group at its place in the ring: in one call, or two where the ring closes.
    fn write_blocks(&self, number: u64, group: &BuiltGroup) -> Result<()> {
        let ring = u64::from(self.region.blocks);
        let place = number % ring;
        let first = (group.blocks as u64).min(ring - place) as usize;
        let offset = |place: u64| (self.region.start + place) * BLOCK as u64;
        self.device.write_at(offset(place), &group.buffers(0, first))?;
        if first < group.blocks {
            self.device.write_at(offset(0), &group.buffers(first, group.blocks))?;
        }
        Ok(())
    }

    /// Bytes of batches (an upper bound) that no group has taken yet.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.state.lock().pending_bytes
    }

    /// The same with those of a group that is being written.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.pending_bytes + if state.busy { self.config.group_bytes } else { 0 }
    }

    /// True if somebody writes or syncs the log.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.lock().busy
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
    fn alive(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// True if somebody waits for a sync and for nothing else. He must not wait for what others have to write: the
    /// leader syncs before the next group.
    fn is_sync_awaited(&self) -> bool {
        let mut unsynced = self.waiting.range((Bound::Excluded(self.durable), Bound::Unbounded));
        unsynced.next().is_some_and(|(lsn, _)| *lsn <= self.written)
    }

    fn next_bound(&self) -> u64 {
        self.pending.front().map_or(0, |pending| pending.bound)
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

/// Encodes the batches of a group.
fn encode(taken: &Taken, plan: &Plan, placement: &Placement) -> Result<BuiltGroup> {
    let expected = if placement.placed.is_empty() { taken.bound } else { taken.bound / 8 };
    let mut out = GroupBuilder::new(expected);
    placement.parts.encode(&mut out);
    let mut encoder = Encoder::default();
    let mut ops = plan.ops(&taken.batches);
    let mut placed = &placement.placed[..];
    let mut next_msn = 0u64;
    for batch in &taken.batches {
        put_varint(&mut out, batch.first_msn.0.wrapping_sub(next_msn));
        put_varint(&mut out, batch.ops.len() as u64);
        next_msn = batch.first_msn.0.wrapping_add(batch.ops.len() as u64);
        for op in ops.by_ref().take(batch.ops.len()) {
            let Some(op) = op else {
                encoder.superseded();
                continue;
            };
            let (own, rest) = placed.split_at(op.large_values().len().min(placed.len()));
            placed = rest;
            encoder.op(op, own, &placement.parts, &mut out)?;
        }
        encoder.end_batch(&mut out);
    }
    let lsn = |batch: Option<&LoggedBatch>| batch.map_or(Lsn(0), |batch| batch.lsn);
    let header = GroupHeader {
        first_lsn: lsn(taken.batches.first()),
        last_lsn: lsn(taken.batches.last()),
        previous: taken.previous,
        rest: 0,
        batches: taken.batches.len() as u32,
        parts: placement.parts.parts.len() as u32,
        length: 0,
    };
    // The room was measured by this bound before anything was written.
    if out.len() > taken.bound {
        let message =
            format!("a log group of {} bytes was expected to take {}; this is a bug", out.len(), taken.bound);
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(out.finish(&taken.place, header))
}

fn check_region(region: Extent) -> Result<()> {
    if region.blocks < MIN_BLOCKS {
        let message = format!("the log needs {MIN_BLOCKS} blocks or more, not {}", region.blocks);
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(())
}

/// The largest batch that a region takes: half of it, so that one can be written while another waits
/// for its checkpoint.
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
        unlogged: config.unlogged,
        recovery_memory: config.recovery_memory,
    }
}
