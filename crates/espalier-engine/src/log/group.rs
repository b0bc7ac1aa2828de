//! Writing one group: its batches are taken, its large values written to value parts, and its
//! blocks written behind those of the group before.
//!
//! Several groups are under way at a time, because a device serves several requests faster than
//! one, and the next group can be encoded while the device is busy. Value parts take long and need
//! no order, so all groups write theirs at once. The blocks of groups need an order: each group
//! names its predecessor by checksum and begins where that one ends. So each group waits for its
//! *turn*, which comes when the group that was begun before it has ended.

use super::codec::{GroupEncoder, put_varint};
use super::format::{BuiltGroup, GroupBuilder, GroupHeader, GroupPlace, blocks_for};
use super::held_memory::HeldMemory;
use super::plan::{self, Placement, Plan};
use super::redo_log::Log;
use super::state::{LogGuard, LogState, WrittenGroup};
use super::{LogProgress, LoggedBatch};
use crate::model::error::Context;
use crate::{Error, ErrorKind, Lsn, Result};
use espalier_storage::BLOCK;

/// What is to be written as one group.
struct Taken {
    batches: Vec<LoggedBatch>,
    bound: u64,
    /// Counts while they are here.
    _held: Vec<HeldMemory>,
}

/// What of a group is written, with its large values in their place.
struct Prepared {
    plan: Plan,
    placement: Placement,
}

impl Log {
    /// Writes one group of pending batches up to `target`, of up to `most` bytes, with the lock
    /// released meanwhile, or waits for other threads that write.
    pub(super) fn write_step(&self, state: &mut LogGuard<'_>, target: Lsn, most: u64) -> Result<LogProgress> {
        let Some(taken) = self.take(state, target, most) else {
            if state.pending.batches.is_empty() {
                // A trim has covered it meanwhile.
                return Ok(LogProgress::Done);
            }
            if state.under_way.is_empty() {
                return Ok(LogProgress::Full);
            }
            // Groups mostly take less than the room that is kept for them.
            state.wait(&self.changed);
            return Ok(LogProgress::Done);
        };
        let turn = state.under_way.begin(taken.bound);
        // A writer may wait for less to be pending.
        self.changed.notify_all();
        let prepared = self.unlocked(state, || self.prepare(&taken));
        while !state.under_way.has_turn(turn) && state.alive().is_ok() {
            state.wait(&self.changed);
        }
        let result = prepared.and_then(|prepared| self.write_prepared(state, &taken, prepared));
        let result = result.context(|| "writing to the log".into()).map_err(|error| state.fail(error));
        state.under_way.end(taken.bound);
        self.changed.notify_all();
        // The batches may hold the last handles on values; drop them without the lock.
        state.unlocked(|| drop(taken));
        result.map(|()| LogProgress::Done)
    }

    /// Takes the batches for the next group: up to `target`, up to `most` bytes, and no more than
    /// fit even if all their values stay inline, and those of groups under way. `None` if not one
    /// fits.
    fn take(&self, state: &mut LogState, target: Lsn, most: u64) -> Option<Taken> {
        let free = u64::from(self.region.blocks)
            .saturating_sub(state.ring.head - state.ring.tail)
            .saturating_sub(state.under_way.blocks);
        let (mut batches, mut held) = (Vec::new(), Vec::new());
        let mut bound = 0;
        // Groups of one size, so that the last is not too small to bind its values early.
        let groups = state.pending.bytes.div_ceil(most.max(1)).max(1);
        let limit = state.pending.bytes.div_ceil(groups);
        while let Some(next) = state.pending.batches.front() {
            let sum = bound + next.bound;
            let enough = !batches.is_empty() && (next.batch.lsn > target || sum > limit);
            if enough || blocks_for(sum) > free {
                break;
            }
            bound = sum;
            if let Some(pending) = state.pending.batches.pop_front() {
                batches.push(pending.batch);
                held.push(pending.held);
            }
        }
        state.pending.bytes -= bound;
        (!batches.is_empty()).then_some(Taken { batches, bound, _held: held })
    }

    /// Gives large values their place, which is what takes long.
    fn prepare(&self, taken: &Taken) -> Result<Prepared> {
        let plan = plan::plan(&taken.batches, &*self.binder);
        let live = plan.ops(&taken.batches).flatten();
        let placement = plan::place(live, (self.config.early_binding, &self.apart.now()), &*self.binder)?;
        Ok(Prepared { plan, placement })
    }

    /// Writes a group that has its turn.
    fn write_prepared(
        &self,
        state: &mut LogGuard<'_>,
        taken: &Taken,
        Prepared { plan, placement }: Prepared,
    ) -> Result<()> {
        state.alive()?;
        self.limit_unsynced(state, taken)?;
        let place = GroupPlace {
            tag: self.tag,
            number: state.ring.head,
            synced: state.ring.synced,
            session: self.session,
        };
        let previous = state.ring.chain;
        let group = self.unlocked(state, || {
            let group = encode(taken, &plan, &placement, &place, previous)?;
            self.write_blocks(place.number, &group).map(|()| group)
        })?;
        let last = taken.batches.last().map_or(Lsn(0), |batch| batch.lsn);
        let parts = placement.parts.parts.into_iter().map(|(handle, _)| handle).collect();
        state.ring.groups.push_back(WrittenGroup { start: place.number, last, previous, parts });
        state.ring.head += group.blocks as u64;
        state.ring.chain = group.chain;
        state.progress.written = state.progress.written.max(last);
        state.ring.unsynced_values += placement.stored_bytes;
        let counters = &mut state.counters;
        counters.groups += 1;
        counters.batches += taken.batches.len() as u64;
        counters.bytes += (group.blocks * BLOCK) as u64;
        counters.bound_bytes += placement.bound_bytes;
        counters.superseded += plan.dead.iter().filter(|dead| **dead).count() as u64;
        Ok(())
    }

    /// Syncs before a group if much is not synced, or if the group is oversized: that is written
    /// alone between two syncs. So there is a bound on how far behind a damaged block its evidence
    /// can lie, and on what recovery has to check.
    fn limit_unsynced(&self, state: &mut LogGuard<'_>, taken: &Taken) -> Result<()> {
        loop {
            let unsynced = state.ring.head - state.ring.synced;
            let oversized = taken.bound > self.config.group_bytes && unsynced > 0;
            let too_much = unsynced >= self.config.unsynced_blocks
                || state.ring.unsynced_values >= self.config.unsynced_values;
            if !oversized && !too_much {
                return Ok(());
            }
            if state.syncing {
                state.wait(&self.changed);
                state.alive()?;
            } else {
                self.sync_step(state)?;
            }
        }
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
}

/// Encodes the batches of a group.
fn encode(
    taken: &Taken,
    plan: &Plan,
    placement: &Placement,
    place: &GroupPlace,
    previous: u64,
) -> Result<BuiltGroup> {
    let expected = if placement.placed.is_empty() { taken.bound } else { taken.bound / 8 };
    let mut out = GroupBuilder::new(expected);
    placement.parts.encode(&mut out);
    let mut encoder = GroupEncoder::default();
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
        previous,
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
    Ok(out.finish(place, header))
}
