//! Store: the API of the engine. Open, commit, read, sync, checkpoint, close.

mod batch_replay;
pub(crate) mod components;
pub(crate) mod diff;
mod format;
mod inspection;
mod losses;
pub(crate) mod opening;
mod recovery;
pub(crate) mod repair;
pub(crate) mod scrub;
pub(crate) mod statistics;
#[cfg(test)]
mod unreadable;
mod value_part_binder;
mod volumes;
pub(crate) mod write_path;

use crate::checkpoint::CheckpointPause;
use crate::device::GuardedDevice;
use crate::maintenance::workers::Workers;
use crate::model::batch::Batch;
use crate::model::ids::{IndexId, Lsn};
use crate::model::key::KeyRange;
use crate::model::options::{FormatOptions, OpenOptions};
use crate::model::value_reader::Retention;
use crate::read::cursor::Cursor;
use crate::read::snapshot::Snapshot;
use crate::read::snapshot_index::{Slice, SnapshotIndex};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use components::Components;
use espalier_storage::{BLOCK, Device, Environment};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that the key of a large value and the reference to it take in a part.
const VALUE_ENTRY_BYTES: u64 = 256;
/// Its share of table pages, which name few pieces each where those are of very different ages.
const VALUE_TABLE_BYTES: u64 = 1024;

/// An open store.
pub struct Store {
    pub(crate) components: Components,
    workers: Workers,
}

impl Store {
    /// Writes an empty store over whatever `device` holds.
    ///
    /// # Errors
    /// Of the device; [`ErrorKind::InvalidArgument`] if it is too small.
    pub fn format(device: Arc<dyn Device>, env: Arc<dyn Environment>, options: &FormatOptions) -> Result<()> {
        format::format(device, &*env, options)
    }

    /// Opens the store on `device`, recovering what was durable.
    ///
    /// # Errors
    /// Of the device; [`ErrorKind::NotAStore`], [`ErrorKind::NewerFormat`], [`ErrorKind::Damaged`].
    pub fn open(
        device: Arc<dyn Device>,
        env: Arc<dyn Environment>,
        options: OpenOptions,
    ) -> Result<Arc<Self>> {
        Self::start(recovery::open(device, env, options)?)
    }

    /// A store of these components, with its worker threads.
    ///
    /// # Errors
    /// If the system has no threads for them.
    pub(crate) fn start(components: Components) -> Result<Arc<Self>> {
        let scheduler = &components.write.scheduler;
        let (env, signal) = (scheduler.env.clone(), components.write.pipeline.signal.clone());
        let scheduler = Some(scheduler).filter(|_| !components.options.read_only);
        let workers = Workers::start(env, signal, scheduler, &components.readahead)?;
        Ok(Arc::new(Self { components, workers }))
    }

    /// Commits `batch`: visible when this returns, durable after a [`Store::sync`]. Small
    /// batches that come one after the other may become one, with one number.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`], [`ErrorKind::ReadOnly`], [`ErrorKind::InvalidArgument`]; nothing was
    /// done then.
    pub fn commit(&self, batch: Batch) -> Result<Lsn> {
        self.commit_if(batch, || true)
    }

    /// As [`Store::commit`], if the caller still wants it: `wanted` is asked once, when nothing
    /// is waited for any more and before the batch takes its place among the others. So
    /// what is given up until then never happens, and what comes afterwards is never overtaken by
    /// it. `wanted` must not wait and not call the store.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] if it is not wanted; as for [`Store::commit`].
    pub fn commit_if(&self, batch: Batch, wanted: impl FnOnce() -> bool) -> Result<Lsn> {
        self.components.write.commit_if(batch, wanted)
    }

    /// Bytes that `values` large values of up to `longest` bytes, together `bytes` bytes, take with
    /// what leads to them, also where space is short and parts and node headers are far from full:
    /// a measure for [`Store::keep`]. It is the same as long as the store is open, and never more
    /// for fewer values or bytes.
    pub fn room_for(&self, values: u64, longest: u64, bytes: u64) -> u64 {
        let leaf = self.components.options.tuning.leaf as u64;
        let length = longest.max(1);
        let in_part = (leaf / 8 / length).max(1);
        let in_leaf = (leaf / 2 / length).max(1);
        let each = VALUE_ENTRY_BYTES + VALUE_TABLE_BYTES + BLOCK as u64 / in_part + BLOCK as u64 / in_leaf;
        let all = bytes.saturating_add(values.saturating_mul(each));
        all.div_ceil(BLOCK as u64).saturating_mul(BLOCK as u64)
    }

    /// Keeps room for `bytes` bytes, rounded up to whole blocks, for batches that draw on it
    /// ([`Batch::draw`]); no other batch gets it. It is kept in memory only: after the store was
    /// opened the caller asks again ([`Store::keep_again`]). Returns what is kept.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if there is not so much, and no more can be made;
    /// [`ErrorKind::ReadOnly`]; of the device.
    pub fn keep(&self, bytes: u64) -> Result<u64> {
        let blocks = bytes.div_ceil(BLOCK as u64);
        self.components.write.keep(blocks)?;
        Ok(blocks * BLOCK as u64)
    }

    /// Keeps room for `bytes` bytes in place of all that was kept before, whether there is room or
    /// not: it was kept when the store was last open.
    pub fn keep_again(&self, bytes: u64) {
        self.components.space.reservations.keep_again(bytes.div_ceil(BLOCK as u64));
    }

    /// Room for `bytes` bytes is no longer kept.
    pub fn stop_keeping(&self, bytes: u64) {
        self.components.accounting.stop_keeping(bytes / BLOCK as u64);
    }

    /// Makes all batches up to `upto` durable.
    ///
    /// # Errors
    /// Of the device; the store is read-only afterwards, and every later call fails, also about
    /// what was durable before.
    pub fn sync(&self, upto: Lsn) -> Result<()> {
        self.components.write.sync(upto)
    }

    /// Makes all batches durable whose commit has returned.
    ///
    /// # Errors
    /// As for [`Store::sync`].
    pub fn sync_all(&self) -> Result<()> {
        let write = &self.components.write;
        let upto = write.pipeline.lock_applied()?.last_lsn;
        write.scheduler.collector.request_now();
        write.pipeline.signal.request_work();
        self.sync(upto)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`]; [`ErrorKind::NotFound`] if there is no such index.
    pub fn get(&self, index: IndexId, key: &[u8]) -> Result<Option<Bytes>> {
        self.newest(index, || KeyRange::through(key, key))?.get(key)
    }

    /// Fills `out` from byte `offset` of the value of `key` as far as it reaches, reading no more
    /// pages than that takes; returns the length of the value, `None` if there is none.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn get_slice(
        &self,
        index: IndexId,
        key: &[u8],
        offset: usize,
        out: &mut [u8],
    ) -> Result<Option<usize>> {
        let len = out.len();
        Ok(self.get_slices(index, &[Slice { key, offset, len }], out)?.pop().flatten())
    }

    /// Fills `out` from one value after the other, each as far as it reaches; returns their
    /// lengths, `None` for a key without value. What lies together on the device is read together:
    /// so this is how to read a row of values.
    ///
    /// # Errors
    /// As for [`Store::get`]; [`ErrorKind::InvalidArgument`] if `out` is not as long as all slices.
    pub fn get_slices(
        &self,
        index: IndexId,
        slices: &[Slice<'_>],
        out: &mut [u8],
    ) -> Result<Vec<Option<usize>>> {
        self.read_slices(index, slices, Retention::Pass, out)
    }

    /// As [`Store::get_slices`], for a reader without a cache of its own that may read the same
    /// values again: those that are read whole stay in memory, as long as there is room, unless
    /// they are long.
    ///
    /// # Errors
    /// As for [`Store::get_slices`].
    pub fn get_slices_kept(
        &self,
        index: IndexId,
        slices: &[Slice<'_>],
        out: &mut [u8],
    ) -> Result<Vec<Option<usize>>> {
        self.read_slices(index, slices, Retention::Keep, out)
    }

    fn read_slices(
        &self,
        index: IndexId,
        slices: &[Slice<'_>],
        retention: Retention,
        out: &mut [u8],
    ) -> Result<Vec<Option<usize>>> {
        let row = || {
            let keys = || slices.iter().map(|slice| slice.key);
            KeyRange::through(keys().min().unwrap_or_default(), keys().max().unwrap_or_default())
        };
        let newest = self.newest(index, row)?;
        self.components.readahead.read_slices(index, &newest, slices, retention, out)
    }

    /// These keys will be looked up soon, one after the other. A device where each read takes long
    /// is told of all of them now, so that they are read side by side. A hint, which nothing waits
    /// for but what says where the keys lie.
    pub fn expect_keys(&self, index: IndexId, keys: &[&[u8]]) {
        self.components.read.expect_keys(index, keys);
    }

    /// True if [`Store::expect_keys`] changes anything on this device.
    pub fn wants_expected_keys(&self) -> bool {
        self.components.trees.pieces.wanted_ahead() > 0
    }

    /// True if `key` has a value.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn contains(&self, index: IndexId, key: &[u8]) -> Result<bool> {
        Ok(self.get_slice(index, key, 0, &mut [])?.is_some())
    }

    /// A walk over `range` as it is now.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn cursor(&self, index: IndexId, range: KeyRange) -> Result<Cursor> {
        self.snapshot_of(Some((index, &range)))?.cursor(index, range)
    }

    /// The state of all indexes as it is now.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] after [`Store::close`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_of(None)
    }

    /// The state of all indexes; where not all is wanted, as far as these keys are concerned.
    fn snapshot_of(&self, what: Option<(IndexId, &KeyRange)>) -> Result<Snapshot> {
        let Components { read, indexes, write, .. } = &self.components;
        write.pipeline.open()?;
        let mut order = write.pipeline.lock();
        let upto = write.pipeline.drain_locked(&mut order, what);
        read.pins.pin(upto);
        let versions = indexes.read().iter().map(|(id, index)| (*id, index.version())).collect();
        drop(order);
        Ok(Snapshot::new(read.clone(), versions, upto))
    }

    /// Has what was deleted free, as far as that takes no longer than `limit`; without this it is
    /// after some seconds. What a clone, a snapshot or a reader needs does not become free.
    ///
    /// # Errors
    /// Of the device.
    pub fn collect_deleted(&self, limit: Duration) -> Result<()> {
        self.components.write.pipeline.writable()?;
        self.components.write.scheduler.collector.collect_for(limit)
    }

    /// Makes the whole state durable in the tree, so that the log can forget it.
    ///
    /// # Errors
    /// Of the device.
    pub fn checkpoint(&self) -> Result<()> {
        self.components.write.pipeline.writable()?;
        self.components.write.checkpointer.checkpoint()
    }

    /// Waits for a checkpoint under way, but no longer than `limit`, and keeps others from
    /// beginning as long as the result lives; `None` if that takes longer. Meanwhile the
    /// superblocks on the device agree, so another process can open the store without changing it.
    /// The thread that has the result must not commit: a commit may need a checkpoint to find room.
    pub fn pause_checkpoints(&self, limit: Duration) -> Option<CheckpointPause<'_>> {
        self.components.write.checkpointer.pause(limit)
    }

    /// Does one piece of background work, if there is any; for environments without threads.
    ///
    /// # Errors
    /// Of the device.
    pub fn step(&self) -> Result<bool> {
        if self.components.options.read_only {
            return Ok(false);
        }
        self.components.write.scheduler.step()
    }

    /// Much will be read, by many: has memory to read into provided in the background, and what
    /// tells where everything lies read, before a reader waits for them. For once.
    pub fn expect_reads(&self) {
        self.components.readahead.expect_reads();
    }

    /// Reads one piece ahead of a reader that goes through keys in order; false if there is none.
    /// For environments without threads; what cannot be read is left to the reader that needs it.
    pub fn read_ahead(&self) -> bool {
        self.components.readahead.step()
    }

    /// Tells the device about free space, in runs of at least `least` bytes; returns the bytes.
    /// What is free only after the next checkpoint is not among it.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`].
    pub fn trim(&self, least: u64) -> Result<u64> {
        self.components.write.pipeline.writable()?;
        let least = u32::try_from(least.div_ceil(BLOCK as u64)).unwrap_or(u32::MAX).max(1);
        Ok(self.components.space.trim(least)? * BLOCK as u64)
    }

    /// Makes the store on `device`, which must not be open, as large as `bytes`; returns its new
    /// size in bytes. A crash leaves it as large as before or as large as wanted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is larger already or the device smaller;
    /// [`ErrorKind::NotAStore`], [`ErrorKind::NewerFormat`], [`ErrorKind::Damaged`]; of the device.
    pub fn resize_offline(device: Arc<dyn Device>, bytes: u64) -> Result<u64> {
        let blocks = bytes / BLOCK as u64;
        crate::space::resize_offline(&GuardedDevice::new(device, false), blocks)?;
        Ok(blocks * BLOCK as u64)
    }

    /// Makes this store as large as `bytes`, durably; returns its new size in bytes. The device
    /// must be as long already. A crash leaves it as large as before or as large as wanted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is larger already or the device smaller;
    /// [`ErrorKind::ReadOnly`]; of the device.
    pub fn resize_online(&self, bytes: u64) -> Result<u64> {
        let components = &self.components;
        components.write.pipeline.writable()?;
        let blocks = bytes / BLOCK as u64;
        components.write.checkpointer.hold(|_| components.space.resize_online(blocks))?;
        components.write.reclaim.note_more_room();
        Ok(blocks * BLOCK as u64)
    }

    /// Gives the store another label, durably. A crash leaves the old one or the new.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it has more than 64 bytes, or a NUL;
    /// [`ErrorKind::ReadOnly`]; of the device.
    pub fn set_label(&self, label: &str) -> Result<()> {
        self.components.write.pipeline.writable()?;
        self.components.write.checkpointer.hold(|_| self.components.space.set_label(label))
    }

    /// Lets nothing more be written, as after a failure of the device: what is durable stays, all
    /// else is lost. `reason` is part of the errors that changes get from now on.
    pub fn shut_down(&self, reason: &str) {
        self.components.device.latch(Error::new(ErrorKind::Io, reason));
    }

    /// Checkpoints and stops; every later call fails.
    ///
    /// # Errors
    /// Of the device; the store is closed all the same, and opening it recovers.
    pub fn close(&self) -> Result<()> {
        if !self.components.write.pipeline.close() {
            return Ok(());
        }
        self.components.accounting.note_closing();
        self.workers.stop();
        if self.components.options.read_only {
            return Ok(());
        }
        self.components.write.checkpointer.checkpoint_to_close()
    }

    /// What no sync covers is lost if the store is dropped without [`Store::close`].
    fn warn_of_loss(&self) {
        let Components { write, log, device, space, .. } = &self.components;
        if write.pipeline.open().is_err() || device.failure().is_some() {
            return;
        }
        let durable = log.durable_lsn().max(space.superblock().checkpoint_lsn);
        let order = write.pipeline.lock();
        let batches = order.last_lsn.0.saturating_sub(durable.0) + u64::from(!order.coalesced.is_empty());
        drop(order);
        if batches > 0 {
            tracing::warn!(batches, "a store was dropped without close: what no sync covers is lost");
        }
    }

    fn newest(&self, index: IndexId, keys: impl FnOnce() -> KeyRange) -> Result<SnapshotIndex> {
        self.components.write.pipeline.open()?;
        self.components.write.pipeline.drain_range(index, keys);
        Ok(SnapshotIndex::newest(self.components.read.clone(), self.components.read.version(index)?))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.warn_of_loss();
        self.workers.stop();
        // What dies now in memory lives on the device: the log may name it.
        self.components.device.retire();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("volumes", &self.volumes()).finish_non_exhaustive()
    }
}
