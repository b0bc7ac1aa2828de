//! Background work: absorbing, flushing, writing the log ahead, checkpointing.
//!
//! All of it is done in steps, by worker threads where the environment has some, and otherwise by
//! whoever needs room or asks: so a simulation decides what happens when. Writers wait only when
//! too much is in memory or in the log, and are slowed down smoothly before that. Some more threads
//! read ahead of readers, who must not wait for a checkpoint to end.

use crate::index::Version;
use crate::log::{LoggedOp, Progress};
use crate::maintenance::low_space::Share;
use crate::model::batch::Batch;
use crate::model::ids::IndexId;
use crate::space::Purpose;
use crate::store::Shared;
use crate::tree::Root;
use crate::{Error, ErrorKind, Result};
use espalier_storage::JoinHandle;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of batches in memory from which on the log is written ahead.
pub(crate) const PUSH: u64 = 4 << 20;

/// What may stay behind then: too little to bind early.
const LEAVE: u64 = 1 << 20;

/// A writer who finds a thirty-second part of memory not yet in the log, but at least and at most
/// so much, waits for a part of it to be written, or writes it. He should not have to wait while
/// the device is told to make safe what was written: that takes as long as a hundred MiB do on
/// some.
const MUST_PUSH: (u64, u64) = (16 << 20, 64 << 20);

/// Bytes of batches after which a writer who was not slowed down looks again whether there is room.
/// Who clones looks each time: each clone is a layer that has to be absorbed for itself, whatever
/// its batch weighs.
const LOOK: u64 = 64 << 10;

/// A store that changes is checkpointed at least this often.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);

/// How often an idle worker looks for work.
const IDLE: Duration = Duration::from_millis(500);

/// Threads that read ahead: so many reads at a time.
const AHEAD: usize = 3;

/// Memtables and clones that may wait for being absorbed, of one index: a look-up passes them all.
const MOST_LAYERS: f64 = 128.0;

/// The longest a writer is slowed down per commit before it has to wait.
const MAX_DELAY: Duration = Duration::from_millis(2);

/// What writers paid for background work that did not keep up.
#[derive(Default)]
pub(crate) struct Stalls {
    pushed: AtomicU64,
    slowed: AtomicU64,
    waited: AtomicU64,
    /// Background work has found no room on the device: writers must not wait for it.
    starved: AtomicBool,
    /// Bytes of batches since a writer last found that there is plenty of room.
    unseen: AtomicU64,
}

/// Time that calls of [`Store::commit`](crate::Store::commit) spent because too much was in memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StallTimes {
    /// Writing the log on behalf of everybody.
    pub pushing: Duration,
    /// Slowed down, as a warning.
    pub slowed: Duration,
    /// Waiting for room.
    pub waiting: Duration,
}

impl Stalls {
    /// What writers have spent so far.
    pub(crate) fn times(&self) -> StallTimes {
        let time = |nanoseconds: &AtomicU64| Duration::from_nanos(nanoseconds.load(Ordering::Relaxed));
        StallTimes { pushing: time(&self.pushed), slowed: time(&self.slowed), waiting: time(&self.waited) }
    }

    /// Counts `bytes`; true if not yet `enough` came since there was plenty of room.
    fn is_early(&self, bytes: u64, enough: u64) -> bool {
        self.unseen.fetch_add(bytes, Ordering::Relaxed) + bytes < enough
    }
}

/// The worker threads of an open store.
pub(crate) struct Workers {
    stop: Arc<AtomicBool>,
    signal: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle>>,
}

impl Workers {
    /// Starts as many as the environment has.
    ///
    /// # Errors
    /// If the system has not so many left; none is running then.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let workers = Self { stop, signal: shared.clone(), threads: Mutex::default() };
        workers.start_all().inspect_err(|_| workers.stop())?;
        Ok(workers)
    }

    fn start_all(&self) -> Result<()> {
        let shared = &self.signal;
        let count = if shared.options.read_only { 0 } else { shared.env.threads() };
        for n in 0..count {
            let body =
                |shared: &Arc<Shared>, stop: &AtomicBool| latch_if_it_panics(shared, || work(shared, stop));
            self.spawn(&format!("espalier-{n}"), body)?;
        }
        if shared.env.threads() > 0 {
            let signal = Arc::downgrade(shared);
            shared.trees.pieces.set_read_ahead_wake(move || {
                if let Some(shared) = signal.upgrade() {
                    shared.signal.wake_readahead();
                }
            });
            for n in 0..AHEAD {
                self.spawn(&format!("espalier-ahead-{n}"), read_ahead)?;
            }
        }
        Ok(())
    }

    fn spawn(&self, name: &str, body: fn(&Arc<Shared>, &AtomicBool)) -> Result<()> {
        let (shared, stop) = (self.signal.clone(), self.stop.clone());
        let thread = self.signal.env.spawn(name, Box::new(move || body(&shared, &stop)));
        let thread = thread.map_err(|error| {
            let message =
                format!("the system starts no thread for background work: {error}; allow more of them");
            Error::new(ErrorKind::Io, message)
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Waits until all of them have ended.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.signal.signal.wake_threads();
        for thread in self.threads.lock().drain(..) {
            thread.join();
        }
    }
}

/// Makes the store read-only if `work` panics: writers must get an error then, and not wait for
/// progress that never comes.
pub(crate) fn latch_if_it_panics<T>(shared: &Shared, work: impl FnOnce() -> T) -> T {
    struct Latch<'a>(&'a Shared);
    impl Drop for Latch<'_> {
        fn drop(&mut self) {
            let what =
                "work on the store panicked: this is a bug, of a merge function perhaps; please report it";
            self.0.device.latch(Error::damaged(what));
            self.0.signal.note_progress();
        }
    }
    let latch = Latch(shared);
    let done = work();
    std::mem::forget(latch);
    done
}

fn work(shared: &Arc<Shared>, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        match shared.step() {
            Ok(true) => {}
            Ok(false) => {
                // Also when nobody writes any more: what joined the open batch must not wait for
                // others for ever, and the cache gets what has become free.
                shared.settle();
                shared.pressure();
                shared.signal.wait_for_work(IDLE);
            }
            Err(error) => {
                // Errors of the device have latched it; others must not make this a busy loop.
                tracing::error!(%error, "background work failed");
                shared.signal.note_progress();
                shared.signal.wait_for_work(IDLE);
            }
        }
    }
}

fn read_ahead(shared: &Arc<Shared>, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        if !shared.readahead.step() {
            shared.signal.wait_for_readahead(|| shared.readahead.has_work(), IDLE);
        }
    }
}

/// How urgent it is to have less in memory or in the log.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pressure {
    None,
    /// Between 0 and 1.
    Some(f64),
    Full,
}

impl Shared {
    /// Does one piece of background work; false if there is none.
    pub(crate) fn step(&self) -> Result<bool> {
        if self.options.read_only {
            return Ok(false);
        }
        self.device.writable()?;
        let result = self.step_somehow();
        match &result {
            Ok(_) => self.stalls.starved.store(false, Ordering::Release),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.stalls.starved.store(true, Ordering::Release)
            }
            Err(_) => {}
        }
        result
    }

    fn step_somehow(&self) -> Result<bool> {
        if self.accepted.is_worthwhile() {
            self.catch_up()?;
            return Ok(true);
        }
        if self.log.pending_bytes() >= PUSH && self.log.has_turn() {
            if self.log.push(LEAVE)? == Progress::Full {
                self.checkpoint()?;
            }
            self.signal.note_progress();
            return Ok(true);
        }
        if self.absorb_some()? || self.checkpoint_if_due()? || self.flush_some()? || self.tidy_some()? {
            self.signal.note_progress();
            return Ok(true);
        }
        Ok(false)
    }

    /// Absorbs the oldest sealed memtable of an index that nobody works on.
    fn absorb_some(&self) -> Result<bool> {
        for index in self.indexes.all() {
            let Some(upto) = self.absorber.due(&index) else { continue };
            // First into the log: what it has bound to its place the tree need not write.
            if self.log.written_lsn() < upto && self.log.push(LEAVE)? == Progress::Full {
                self.checkpoint()?;
            }
            let Some(_structure) = index.structure.try_lock() else { continue };
            if self.absorber.due(&index).is_some() {
                self.absorber.absorb_oldest(&index)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Absorbs what there is in memory of some indexes, unless a checkpoint wants something older
    /// first.
    pub(crate) fn absorb_at_once(&self, ids: &[IndexId]) -> Result<()> {
        if self.writable().is_err() || self.options.read_only {
            return Ok(());
        }
        for id in ids {
            let Some(index) = self.indexes.get(*id) else { continue };
            let order = self.settled()?;
            index.seal(order.last_lsn);
            drop(order);
            let _structure = index.structure.lock();
            while self.absorber.due(&index).is_some() {
                self.absorber.absorb_oldest(&index)?;
            }
        }
        Ok(())
    }

    /// Flushes the heaviest edge of the root that needs it most.
    fn flush_some(&self) -> Result<bool> {
        if self.backlog.is_refused() {
            // Without anything to write, a checkpoint gives no room.
            let helps = self.memory.node_bytes() > 0;
            if helps {
                self.checkpoint()?;
            }
            return Ok(helps);
        }
        self.accounting.refresh();
        let mut candidates = Vec::new();
        let mut values = 0;
        for index in self.indexes.all() {
            let root = &index.version().root;
            if let Some(bytes) = self.trees.edit(self.trees.policy()).pending_work(root)? {
                values += self.trees.edit(self.trees.policy()).values_waiting(root);
                candidates.push((bytes, index));
            }
        }
        self.backlog.note_values(values);
        candidates.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        self.backlog.note_edge(candidates.first().map_or(0, |(bytes, _)| *bytes));
        for (_, index) in candidates {
            let Some(_structure) = index.structure.try_lock() else { continue };
            if self.publish_flushed(
                &index,
                self.trees.edit(self.trees.policy()).flush(&index.version().root),
                Share::Growth,
            )? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn checkpoint_if_due(&self) -> Result<bool> {
        if self.checkpointer.is_busy() {
            return Ok(false);
        }
        let dirty = self.memory.bytes();
        let changed = || Ok::<_, Error>(self.settled()?.last_lsn > self.space.superblock().checkpoint_lsn);
        let old =
            || self.env.threads() > 0 && self.checkpointer.age(self.env.monotonic()) > CHECKPOINT_INTERVAL;
        let due = self.log.used_bytes() > self.log.capacity() / 2
            || dirty > self.dirty_limit()
            || (old() && changed()?)
            || self.checkpointer.has_reclaim();
        if due {
            self.checkpoint()?;
        }
        Ok(due)
    }

    /// At the end of a checkpoint that wrote `roots`: while nothing newer has been published, what
    /// is in memory and not on the device is large values of batches that came since, and what
    /// newer nodes and values have replaced and some snapshot still holds. No work brings the
    /// latter to the device, so nobody may wait for that.
    pub(crate) fn note_held(&self, roots: &[(IndexId, Root)]) {
        let indexes = self.indexes.all();
        // Nobody is at work on a tree while all these are held; where somebody is, the next
        // checkpoint will tell.
        let structures: Vec<_> = indexes.iter().map_while(|index| index.structure.try_lock()).collect();
        if structures.len() < indexes.len() {
            return;
        }
        // In this order: what is accepted meanwhile is counted as newer only, once it lies in
        // memtables.
        let resident = self.trees.memory.value_bytes.load(Ordering::Acquire);
        self.settle();
        let versions: Vec<_> = indexes.iter().map(|index| (index.id, index.version())).collect();
        let is_written = |(id, version): &(IndexId, Arc<Version>)| {
            let slot = |root: &Root| root.slot.as_ref().map(Arc::as_ptr);
            roots.iter().any(|(of, root)| of == id && slot(root) == slot(&version.root))
        };
        if versions.iter().all(is_written) {
            let tables = versions.iter().flat_map(|(_, version)| version.memtables());
            let newer: usize = tables.map(|table| table.value_bytes()).sum();
            let nodes = self.trees.memory.dirty_bytes.load(Ordering::Acquire);
            self.memory.set_pinned(nodes, resident.saturating_sub(newer));
        }
    }

    /// Bytes of nodes and parts that may be dirty before a checkpoint is made.
    fn dirty_limit(&self) -> u64 {
        self.options.memory / 4
    }

    /// Waits until `batch` may be accepted.
    pub(crate) fn make_room(&self, batch: &Batch, purpose: Purpose) -> Result<()> {
        let bytes = batch.bytes;
        let clones = batch.ops.iter().any(|op| matches!(op, LoggedOp::Clone { .. }));
        loop {
            self.device.writable()?;
            let must_push = (self.options.memory / 32).clamp(MUST_PUSH.0, MUST_PUSH.1);
            if self.log.pending_bytes() + bytes as u64 > must_push {
                self.timed(&self.stalls.pushed, || match self.log.push(must_push - PUSH)? {
                    Progress::Full => self.checkpoint(),
                    Progress::Done => Ok(()),
                })?;
            }
            // Looking takes locks, and what a few small batches add does not count. Without threads
            // every batch does its share of the work.
            let look = LOOK.min(self.options.memory / 1024);
            if self.env.threads() > 0 && !clones && self.stalls.is_early(bytes as u64, look) {
                return Ok(());
            }
            let epoch = self.signal.epoch();
            match self.pressure() {
                Pressure::None => {
                    self.stalls.unseen.store(0, Ordering::Relaxed);
                    return Ok(());
                }
                Pressure::Some(fraction) => {
                    self.signal.request_work();
                    if self.env.threads() == 0 {
                        self.step_for_room()?;
                    } else {
                        let delay = MAX_DELAY.mul_f64(fraction * fraction);
                        self.timed(&self.stalls.slowed, || self.env.sleep(delay));
                    }
                    return Ok(());
                }
                // What frees space in the end must get in, for nothing else helps.
                Pressure::Full if self.stalls.starved.load(Ordering::Acquire) => {
                    if purpose == Purpose::Essential {
                        return Ok(());
                    }
                    let message = "the device has no room to write what is in memory; delete something";
                    return Err(Error::new(ErrorKind::NoSpace, message));
                }
                Pressure::Full => {
                    self.signal.request_work();
                    if self.env.threads() == 0 {
                        if !self.step_for_room()? {
                            return Ok(());
                        }
                    } else {
                        self.timed(&self.stalls.waited, || self.signal.wait_for_progress(epoch, IDLE));
                    }
                }
            }
        }
    }

    /// Adds the time that `work` takes to `sum`, in nanoseconds.
    fn timed<T>(&self, sum: &AtomicU64, work: impl FnOnce() -> T) -> T {
        let start = self.env.monotonic();
        let done = work();
        let took = self.env.monotonic().saturating_sub(start);
        sum.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        done
    }

    /// A step on behalf of a writer: that the store is full is then the writer's answer, in time.
    fn step_for_room(&self) -> Result<bool> {
        match self.step() {
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
            other => other,
        }
    }

    /// What memtables and dirty nodes do not take is for the cache. A sixteenth is for the tables
    /// of space, the log's buffers and requests under way.
    fn share_memory(&self, unclean: u64) {
        let memory = self.options.memory;
        let clean = (memory - memory / 16).saturating_sub(unclean).max(memory / 8);
        self.trees.pieces.set_capacity(clean);
    }

    /// Memtables may take a quarter of the budget, dirty nodes another, and the log nearly all of
    /// itself; and flushing must keep up.
    fn pressure(&self) -> Pressure {
        let (mut tables, mut layers) = (0, 0);
        for index in self.indexes.read().values() {
            let version = index.version();
            tables += version.memtable_bytes();
            layers = layers.max(version.sealed.len());
        }
        let dirty = self.memory.bytes();
        let log = self.log.used_bytes() as f64 / self.log.capacity() as f64;
        let quarter = (self.options.memory / 4).max(1) as f64;
        self.share_memory(tables as u64 + dirty + self.memory.pinned_bytes());
        let worst = (tables as f64 / quarter)
            .max(layers as f64 / MOST_LAYERS)
            .max(dirty as f64 / (1.5 * quarter))
            .max(log / 0.9)
            .max(self.backlog.fullness());
        match worst {
            w if w >= 1.0 => Pressure::Full,
            w if w > 0.75 => Pressure::Some((w - 0.75) * 4.0),
            _ => Pressure::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FormatOptions, OpenOptions, Store};
    use espalier_storage::{MemoryDevice, SimulatedEnvironment, SystemEnvironment};

    #[test]
    fn nobody_waits_for_what_only_snapshots_hold() {
        let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
        Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
        let options = OpenOptions { memory: 64 << 10, ..OpenOptions::default() };
        let store = Store::open(device, env, options).unwrap();
        let id = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
        let mut snapshots = Vec::new();
        for n in 0..100u8 {
            let mut batch = Batch::new();
            batch.insert(id, b"key", vec![n; 8 << 10]);
            store.commit(batch).unwrap();
            snapshots.push(store.snapshot().unwrap());
        }
        for (n, snapshot) in snapshots.iter().enumerate() {
            assert_eq!(snapshot.get(id, b"key").unwrap().unwrap(), vec![n as u8; 8 << 10]);
        }
        let shared = &store.shared;
        assert!(shared.memory.bytes() <= shared.options.memory);
        drop(snapshots);
        assert!(shared.memory.bytes() <= shared.options.memory);
        assert!(shared.memory.pinned_bytes() <= 8 << 10);
    }

    #[test]
    fn nobody_waits_for_nodes_that_only_snapshots_hold() {
        let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
        Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
        let options = OpenOptions { memory: 1 << 20, ..OpenOptions::default() };
        let store = Store::open(device, env, options).unwrap();
        let id = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
        let shared = &store.shared;
        let mut snapshots = Vec::new();
        for n in 0..200u8 {
            let mut batch = Batch::new();
            (0..100u8).for_each(|key| batch.insert(id, &[key], vec![n; 100]));
            store.commit(batch).unwrap();
            // What is in the tree now has not been written, and will be replaced before it is.
            shared.absorb_at_once(&[id]).unwrap();
            snapshots.push(store.snapshot().unwrap());
        }
        assert!(shared.trees.memory.dirty_bytes.load(Ordering::Relaxed) as u64 > shared.dirty_limit());
        store.checkpoint().unwrap();
        assert_eq!(shared.memory.bytes(), 0);
        for (n, snapshot) in snapshots.iter().enumerate() {
            assert_eq!(snapshot.get(id, &[7]).unwrap().unwrap(), vec![n as u8; 100]);
        }
        drop(snapshots);
        assert_eq!((shared.memory.bytes(), shared.memory.pinned_bytes()), (0, 0));
    }

    #[test]
    fn who_clones_waits_until_older_clones_are_absorbed() {
        let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SystemEnvironment::new(1)));
        Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
        let store = Store::open(device, env, OpenOptions::default()).unwrap();
        let id = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
        let mut batch = Batch::new();
        (0..4000u32).for_each(|n| batch.insert(id, format!("a/{n:05}").as_bytes(), vec![n as u8; 100]));
        store.commit(batch).unwrap();
        let index = store.shared.indexes.read()[&id].clone();
        let names = [&b"a/"[..], &b"b/"[..]];
        for round in 0..1500 {
            let mut batch = Batch::new();
            batch.move_range(id, names[round % 2], names[(round + 1) % 2]);
            store.commit(batch).unwrap();
            // The clone and what was above the one before; and a checkpoint may seal once more.
            assert!(index.version().sealed.len() <= MOST_LAYERS as usize + 2, "round {round}");
        }
        let mut cursor = store.cursor(id, crate::KeyRange::prefix(names[0])).unwrap();
        let mut keys = 0;
        while cursor.next().unwrap().is_some() {
            keys += 1;
        }
        assert_eq!(keys, 4000);
    }
}
