//! Checkpoints: one durable image of all indexes at one batch.
//!
//! Protocol, by one thread at a time, beside readers, committers and workers:
//! 1. *cut*: under the commit lock, seal the memtables of all indexes after the same batch
//!    ([`cut`]);
//! 2. absorb what is sealed up to there and nothing newer, and take the roots;
//! 3. write what is dirty below the roots, children first;
//! 4. count: what new headers and roots refer to gains, what dead ones referred to loses
//!    ([`references`]);
//! 5. write the tables, sync, switch the superblock, sync (`space::commit`);
//! 6. let the log forget, and give every index a version with a younger pin.
//!
//! A crash before the switch leaves the older checkpoint and the log behind it; after it, the newer
//! one and the rest of the log. Failure before counting changes nothing that lasts: what was
//! written stays fresh, and the next checkpoint counts it if it is still reached.

pub(crate) mod cut;
mod pinned;
mod references;
pub(crate) mod state;
pub(crate) mod volume_changes;

use crate::commit::pipeline::CommitPipeline;
use crate::device::GuardedDevice;
use crate::index::accounting::SpaceAccounting;
use crate::index::catalog::StoredRoot;
use crate::index::memory::UnwrittenMemory;
use crate::index::table::IndexTable;
use crate::lock_order::{RankedMutex, RankedMutexGuard, rank};
use crate::log::Log;
use crate::model::ids::IndexId;
use crate::model::piece::PieceHandle;
use crate::signal::WorkSignal;
use crate::space::{Space, Superblock, VolumeTable};
use crate::tree::{Root, Trees, Written};
use crate::{Lsn, Result};
use cut::{Cut, CutTaker};
use espalier_storage::Environment;
use references::{LeftToReclaim, count_references};
use state::{CheckpointState, CountedRoots};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use volume_changes::{VolumeChange, enter_roots};

/// See the [module](self).
pub(crate) struct Checkpointer {
    pub(crate) env: Arc<dyn Environment>,
    pub(crate) device: Arc<GuardedDevice>,
    pub(crate) space: Arc<Space>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) log: Arc<Log>,
    pub(crate) pipeline: Arc<CommitPipeline>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) memory: Arc<UnwrittenMemory>,
    pub(crate) signal: Arc<WorkSignal>,
    pub(crate) cutter: CutTaker,
    pub(crate) progress: CheckpointProgress,
}

/// What checkpoints hand on to each other.
pub(crate) struct CheckpointProgress {
    /// Held while a checkpoint is made.
    state: RankedMutex<CheckpointState, { rank::CHECKPOINTER }>,
    counted: CountedRoots,
    /// When the last one ended, in milliseconds of the monotonic clock.
    last: AtomicU64,
}

type StateGuard<'a> = RankedMutexGuard<'a, CheckpointState, { rank::CHECKPOINTER }>;

/// While this lives no checkpoint is made; see [`Store::pause_checkpoints`].
///
/// [`Store::pause_checkpoints`]: crate::Store::pause_checkpoints
pub struct CheckpointPause<'a> {
    _state: StateGuard<'a>,
}

/// What has been written and counted.
struct Counted {
    /// Held until the checkpoint ends: newer roots may have replaced them already.
    roots: Vec<(IndexId, Root)>,
    stored: Vec<(IndexId, StoredRoot)>,
    left: LeftToReclaim,
}

impl CheckpointProgress {
    /// The next checkpoint follows `state`.
    pub(crate) fn new(state: CheckpointState) -> Self {
        let counted = CountedRoots::new(&state);
        Self { state: RankedMutex::new(state), counted, last: AtomicU64::new(0) }
    }
}

impl Checkpointer {
    /// The roots that the last checkpoint has counted.
    pub(crate) fn counted_roots(&self) -> &CountedRoots {
        &self.progress.counted
    }

    /// Waits for a checkpoint under way, and keeps the next one from beginning.
    pub(crate) fn lock_out_checkpoints(&self) -> impl Sized + use<'_> {
        self.progress.state.lock()
    }

    /// Time since the last one ended, or since the store was opened.
    pub(crate) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_millis(self.progress.last.load(Ordering::Relaxed)))
    }

    /// Looks at the state while no checkpoint is under way.
    pub(crate) fn hold<T>(&self, look: impl FnOnce(&CheckpointState) -> T) -> T {
        look(&self.progress.state.lock())
    }

    /// True if a checkpoint is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.progress.state.is_locked()
    }

    /// True if deleted nodes wait to be taken apart.
    pub(crate) fn has_reclaim(&self) -> bool {
        let state = self.progress.state.try_lock();
        state.is_some_and(|state| state.reclaim.len() > state.unreadable.len())
    }

    /// Makes a checkpoint of everything committed before this call.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.run(self.progress.state.lock(), false, &VolumeChange::None, &|| true).map(drop)
    }

    /// Waits for a checkpoint under way, but no longer than `limit`, and keeps others from
    /// beginning.
    pub(crate) fn pause(&self, limit: Duration) -> Option<CheckpointPause<'_>> {
        Some(CheckpointPause { _state: self.progress.state.lock_within(limit)? })
    }

    /// Makes a checkpoint unless the last one covers all batches up to `last`, or was made since
    /// the store was opened and less than `max_age` ago.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn checkpoint_if_older(&self, last: Lsn, max_age: Duration) -> Result<()> {
        let is_enough = || {
            let was_made = self.accounting.checkpoints() > 0;
            let is_young = was_made && self.age(self.env.monotonic()) < max_age;
            is_young || self.space.superblock().checkpoint_lsn >= last
        };
        if is_enough() {
            return Ok(());
        }
        let state = self.progress.state.lock();
        // Of several callers that waited for each other one is enough.
        if is_enough() {
            return Ok(());
        }
        self.run(state, false, &VolumeChange::None, &|| true).map(drop)
    }

    /// Makes a checkpoint in which the volumes have changed, if that is `wanted` when they are
    /// about to be; returns the number of one that was made.
    ///
    /// # Errors
    /// If the change is not possible or not wanted; of the device.
    pub(crate) fn change_volumes(
        &self,
        change: &VolumeChange<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<u32>> {
        self.run(self.progress.state.lock(), false, change, wanted)
    }

    /// The last checkpoint: says that the log holds nothing behind it.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn checkpoint_to_close(&self) -> Result<()> {
        self.run(self.progress.state.lock(), true, &VolumeChange::None, &|| true).map(drop)
    }

    fn run(
        &self,
        mut state: StateGuard<'_>,
        clean: bool,
        change: &VolumeChange<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<u32>> {
        self.device.writable()?;
        self.accounting.refresh();
        let mut cut = self.cutter.cut(change, wanted)?;
        let taken = self.cutter.take_roots(&cut, &state);
        self.cutter.absorber.lift_barrier();
        // What came since the cut has waited for this.
        self.signal.request_work();
        let counted = taken.and_then(|roots| self.write_and_count(roots, &cut.volumes, &mut state));
        let Counted { roots, stored, left } = counted.inspect_err(|_| self.cutter.undo(&mut cut))?;
        // What was to be deleted when it is absorbed has been, or waits.
        self.accounting.range_deletes().finish_cut();
        // From here on the counts are those of the new roots, whether or not the switch succeeds.
        // So `cut.pending` is no longer needed either: what it was reserved for is written and in
        // use.
        state.roots.retain(|id, _| cut.volumes.volumes.contains_key(&id.volume));
        state.roots.extend(stored);
        self.progress.counted.end_change(&state);
        state.reclaim = left.waiting;
        state.unreadable = left.unreadable;
        state.uncounted.clear();
        self.switch(&cut, &state, clean)?;
        self.accounting.note_written();
        for index in &cut.indexes {
            index.publish_pinned(&self.space, |_| ());
        }
        self.space.note_checkpoint();
        let made = cut.changed.made;
        drop(cut.pending);
        // What could not be read is tried again.
        self.trees.unflushable.clear();
        self.accounting.note_checkpoint();
        self.progress.last.store(self.env.monotonic().as_millis() as u64, Ordering::Relaxed);
        drop(state);
        self.note_pinned(&roots);
        self.signal.note_progress();
        Ok(made)
    }

    /// Steps 3 and 4.
    fn write_and_count(
        &self,
        roots: Vec<(IndexId, Root)>,
        volumes: &VolumeTable,
        state: &mut CheckpointState,
    ) -> Result<Counted> {
        // From here on headers are stored that no count knows; after a failure that remains so.
        self.progress.counted.begin_change();
        let stored = self.write_roots(&roots, state)?;
        let counted = count_references(&self.space, &self.trees, &stored, volumes, state);
        let left = counted.inspect_err(|_| state.changed.forget())?;
        state.changed.note(left.changed.iter().copied());
        Ok(Counted { roots, stored, left })
    }

    /// Step 3.
    fn write_roots(
        &self,
        roots: &[(IndexId, Root)],
        state: &mut CheckpointState,
    ) -> Result<Vec<(IndexId, StoredRoot)>> {
        let mut stored = Vec::new();
        for (id, root) in roots {
            let mut written: Vec<Written> = Vec::new();
            let handle: Result<Option<Arc<PieceHandle>>> =
                root.slot.as_ref().map(|slot| self.trees.write(slot, &mut written)).transpose();
            // Also after a failure: what was written may be reached by the next checkpoint.
            state.uncounted.extend(written.into_iter().map(|w| (w.id, w.refers)));
            stored.push((*id, StoredRoot { node: handle?.map(|h| h.id()), height: root.height }));
        }
        Ok(stored)
    }

    /// Step 5, and lets the log forget.
    fn switch(&self, cut: &Cut, state: &CheckpointState, clean: bool) -> Result<()> {
        let mut volumes = cut.volumes.clone();
        enter_roots(&mut volumes, &state.roots);
        self.cutter.volumes.publish(cut.changed.made, &volumes);
        let tables = self.space.write_tables(&volumes, &state.reclaim)?;
        let position = self.log.position_after(cut.lsn);
        self.space.commit_superblock(Superblock {
            checkpoint_lsn: cut.lsn,
            next_msn: cut.next_msn,
            log_position: position.encode(),
            checkpointed: self.env.now(),
            clean,
            untidy: cut.untidy,
            roots: tables,
            ..self.space.superblock()
        })?;
        self.log.trim(position);
        Ok(())
    }
}
