//! The public face of the engine: open, commit, look, sync.

pub(crate) mod diff;
pub(crate) mod recovery;
pub(crate) mod repair;
pub(crate) mod scrub;
#[cfg(test)]
mod unreadable;
mod volumes;

use crate::checkpoint::Checkpointer;
use crate::commit::apply_queue::Accepted;
use crate::commit::pipeline::Order;
use crate::device::{DeviceStats, GuardedDevice};
use crate::index::Index;
use crate::index::absorb::Absorber;
use crate::index::accounting::SpaceAccounting;
use crate::index::backlog::FlushBacklog;
use crate::index::catalog::{VolumeCatalog, no_such_index};
use crate::index::deleted_ranges::DeletedRanges;
use crate::index::memory::UnwrittenMemory;
use crate::index::table::IndexTable;
use crate::log::{Log, LogCounters, Progress as LogProgress};
use crate::maintenance::scheduler::{StallTimes, Workers};
use crate::model::batch::Batch;
use crate::model::ids::{IndexId, Lsn, PieceId};
use crate::model::key::KeyRange;
use crate::model::options::{Compression, FormatOptions, OpenOptions};
use crate::read::context::ReadContext;
use crate::read::cursor::Cursor;
use crate::read::pins::PinTable;
use crate::read::snapshot::{Slice, Snapshot, SnapshotIndex};
use crate::readahead::Readahead;
use crate::signal::WorkSignal;
use crate::space::Locator;
use crate::space::{Census, RunHistogram, Space, SpaceStats, VolumeTable};
use crate::tree::source::MessageSet;
use crate::tree::{Problem, Progress, SpaceUse, Trees, Usage, Verifier, VerifyReport};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use espalier_storage::{BLOCK, Device, Environment};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest key, in bytes, with room to spare over the mebibyte that layers above promise.
pub const MAX_KEY: usize = (1 << 20) + (64 << 10);

/// Blocks that a clone is reckoned at while there is plenty of space: the headers along the borders
/// of source and destination. Otherwise it is found out what they are ([`Shared::clone_blocks`]).
pub(crate) const CLONE_BLOCKS: u64 = 8;

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
    /// Space, in blocks of [`BLOCK`] bytes.
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

/// An open store.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    workers: Workers,
}

/// What the rooms of an open store share.
pub(crate) struct Shared {
    pub(crate) env: Arc<dyn Environment>,
    pub(crate) device: Arc<GuardedDevice>,
    pub(crate) options: OpenOptions,
    pub(crate) space: Arc<Space>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) log: Log,
    pub(crate) order: Mutex<Order>,
    /// Something has been accepted that may not have been carried out: changes under the commit
    /// lock.
    pub(crate) has_open: AtomicBool,
    pub(crate) accepted: Accepted,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) catalog: Arc<VolumeCatalog>,
    pub(crate) read: Arc<ReadContext>,
    pub(crate) checkpointer: Checkpointer,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) backlog: Arc<FlushBacklog>,
    pub(crate) memory: Arc<UnwrittenMemory>,
    pub(crate) absorber: Arc<Absorber>,
    pub(crate) deleted: Arc<DeletedRanges>,
    pub(crate) pins: Arc<PinTable>,
    pub(crate) signal: Arc<WorkSignal>,
    pub(crate) stalls: crate::maintenance::scheduler::Stalls,
    pub(crate) readahead: Readahead,
    pub(crate) shortage: crate::maintenance::low_space::Shortage,
    pub(crate) tidy: crate::maintenance::garbage_collection::Tidy,
    pub(crate) closed: AtomicBool,
}

impl Store {
    /// Writes an empty store over whatever `device` holds.
    ///
    /// # Errors
    /// Of the device; [`ErrorKind::InvalidArgument`] if it is too small.
    pub fn format(device: Arc<dyn Device>, env: Arc<dyn Environment>, options: &FormatOptions) -> Result<()> {
        crate::store::recovery::format(device, &*env, options)
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
        Self::start(crate::store::recovery::open(device, env, options)?)
    }

    /// A store, with its workers, of rooms that are put together.
    ///
    /// # Errors
    /// If the system has no threads for them.
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Arc<Self>> {
        let workers = Workers::start(&shared)?;
        Ok(Arc::new(Self { shared, workers }))
    }

    /// Carries out `batch`: visible when this returns, durable after a [`Store::sync`]. Small
    /// batches that come one after the other may become one, with one number.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`], [`ErrorKind::ReadOnly`], [`ErrorKind::InvalidArgument`]; nothing was
    /// done then.
    pub fn commit(&self, batch: Batch) -> Result<Lsn> {
        self.commit_if(batch, || true)
    }

    /// As [`Store::commit`], if whoever asks for it still wants it: `wanted` is asked once, when
    /// nothing is waited for any more and before the batch takes its place among the others. So
    /// what is given up until then never happens, and what comes afterwards is never overtaken by
    /// it. `wanted` must not wait and not call the store.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] if it is not wanted; as for [`Store::commit`].
    pub fn commit_if(&self, batch: Batch, wanted: impl FnOnce() -> bool) -> Result<Lsn> {
        self.shared.commit_if(batch, wanted)
    }

    /// Makes all batches up to `upto` durable.
    ///
    /// # Errors
    /// Of the device; the store is read-only afterwards, and every later call fails, also about
    /// what was durable before.
    pub fn sync(&self, upto: Lsn) -> Result<()> {
        if self.shared.device.failure().is_some() {
            return self.shared.device.writable();
        }
        self.shared.settle();
        loop {
            match self.shared.log.sync(upto)? {
                LogProgress::Done => return Ok(()),
                // What a checkpoint covers is durable without the log.
                LogProgress::Full => self.shared.checkpoint()?,
            }
        }
    }

    /// Makes all batches durable whose commit has returned.
    ///
    /// # Errors
    /// As for [`Store::sync`].
    pub fn sync_all(&self) -> Result<()> {
        let upto = self.shared.settled()?.last_lsn;
        self.shared.tidy.hurry();
        self.shared.signal.request_work();
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
        let row = || {
            let keys = || slices.iter().map(|slice| slice.key);
            KeyRange::through(keys().min().unwrap_or_default(), keys().max().unwrap_or_default())
        };
        let newest = self.newest(index, row)?;
        self.shared.readahead.read_slices(index, &newest, slices, out)
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
        self.shared.open()?;
        let mut order = self.shared.order.lock();
        let upto = self.shared.settle_what(&mut order, what);
        self.shared.pins.pin(upto);
        let versions = self.shared.indexes.read().iter().map(|(id, index)| (*id, index.version())).collect();
        drop(order);
        Ok(Snapshot::new(self.shared.read.clone(), versions, upto))
    }

    /// Makes the whole state durable in the tree, so that the log can forget it.
    ///
    /// # Errors
    /// Of the device.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.writable()?;
        self.shared.checkpoint()
    }

    /// Does one piece of background work, if there is any; for environments without threads.
    ///
    /// # Errors
    /// Of the device.
    pub fn step(&self) -> Result<bool> {
        self.shared.step()
    }

    /// Much will be read, by many: has memory to read into provided in the background, and what
    /// tells where everything lies read, before anybody waits for them. For once.
    pub fn expect_reads(&self) {
        self.shared.readahead.expect_reads();
    }

    /// Reads one piece ahead of somebody who reads in the order of keys; false if there is none.
    /// For environments without threads; what cannot be read is left to who needs it.
    pub fn read_ahead(&self) -> bool {
        self.shared.readahead.step()
    }

    /// Tells the device about free space, in runs of at least `least` bytes; returns the bytes.
    /// What is free only after the next checkpoint is not among it.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`].
    pub fn trim(&self, least: u64) -> Result<u64> {
        self.shared.writable()?;
        let least = u32::try_from(least.div_ceil(BLOCK as u64)).unwrap_or(u32::MAX).max(1);
        Ok(self.shared.space.trim(least)? * BLOCK as u64)
    }

    /// Makes the store on `device`, which nobody has open, as large as `bytes`; returns its new
    /// size in bytes. A crash leaves it as large as before or as large as wanted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is larger already or the device smaller;
    /// [`ErrorKind::NotAStore`], [`ErrorKind::NewerFormat`], [`ErrorKind::Damaged`]; of the device.
    pub fn grow(device: Arc<dyn Device>, bytes: u64) -> Result<u64> {
        let blocks = bytes / BLOCK as u64;
        crate::space::grow(&GuardedDevice::new(device, false), blocks)?;
        Ok(blocks * BLOCK as u64)
    }

    /// Makes this store as large as `bytes`, durably; returns its new size in bytes. The device
    /// must be as long already. A crash leaves it as large as before or as large as wanted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is larger already or the device smaller;
    /// [`ErrorKind::ReadOnly`]; of the device.
    pub fn enlarge(&self, bytes: u64) -> Result<u64> {
        let shared = &self.shared;
        shared.writable()?;
        let blocks = bytes / BLOCK as u64;
        shared.checkpointer.hold(|_| shared.space.enlarge(blocks))?;
        shared.forget_shortage();
        Ok(blocks * BLOCK as u64)
    }

    /// Figures.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// Counts the pieces of the last checkpoint by kind. Reads the whole node translation table.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`].
    pub fn census(&self) -> Result<Census> {
        self.shared.space.census()
    }

    /// How the free space is divided into runs. Looks at the whole map of blocks in memory.
    pub fn free_runs(&self) -> RunHistogram {
        self.shared.space.free_runs()
    }

    /// How much space some ranges take together, and how much of it is theirs alone. Counts whole
    /// pieces as of a checkpoint that is made first, unless the store is read-only; reads headers,
    /// no parts. The ranges must not overlap.
    ///
    /// # Errors
    /// Of that checkpoint; [`ErrorKind::NotFound`] if there is no such index.
    pub fn space_of(&self, ranges: &[(IndexId, KeyRange)]) -> Result<SpaceUse> {
        let shared = &self.shared;
        if !shared.options.read_only {
            shared.checkpoint()?;
        }
        shared.checkpointer.hold(|state| {
            let look = |id| {
                let count = u64::from(shared.space.references(id)?.unwrap_or(0));
                Ok((count, Locator::locate(&*shared.space, id)?.extent.byte_len() as u64))
            };
            let mut usage = Usage::new(&shared.trees, &look);
            let mut of: BTreeMap<IndexId, Vec<KeyRange>> = BTreeMap::new();
            for (index, range) in ranges.iter().filter(|(_, range)| !range.is_empty()) {
                of.entry(*index).or_default().push(range.clone());
            }
            for (index, ranges) in of {
                let root = state.roots.get(&index).ok_or_else(|| no_such_index(index))?;
                usage.add(&root.as_root(&*shared.space), ranges.into());
            }
            usage.finish()
        })
    }

    /// Checks every invariant of the store, reading all of it. The state checked is that of the
    /// last checkpoint, and the large values that newer messages name; one is made first unless the
    /// store is read-only.
    ///
    /// # Errors
    /// Of that checkpoint; what is wrong with the store is in the report.
    pub fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        if !self.shared.options.read_only {
            self.shared.checkpoint()?;
        }
        Ok(self.shared.verify(progress))
    }

    /// Writes the trees as text: all of them, or the part below one node.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`].
    pub fn dump(&self, out: &mut dyn std::fmt::Write, node: Option<PieceId>) -> Result<()> {
        if let Some(id) = node {
            let node = self.shared.trees.node(id)?;
            return self.shared.trees.dump_node(&node, 0, out);
        }
        self.shared.settle();
        for index in self.shared.indexes.all() {
            let version = index.version();
            let _ = writeln!(out, "index {}: {} bytes in memtables", index.id, version.memtable_bytes());
            self.shared.trees.dump(&version.root, out)?;
        }
        Ok(())
    }

    /// Checkpoints and stops; every later call fails.
    ///
    /// # Errors
    /// Of the device; the store is closed all the same, and opening it recovers.
    pub fn close(&self) -> Result<()> {
        if self.shared.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.shared.trees.closing.store(true, Ordering::Relaxed);
        self.workers.stop();
        if self.shared.options.read_only {
            return Ok(());
        }
        self.shared.checkpoint_to_close()
    }

    fn newest(&self, index: IndexId, keys: impl FnOnce() -> KeyRange) -> Result<SnapshotIndex> {
        self.shared.open()?;
        self.shared.settle_range(index, keys);
        Ok(SnapshotIndex::newest(self.shared.read.clone(), self.shared.read.version(index)?))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.workers.stop();
        // What dies now in memory lives on the device: the log may name it.
        self.shared.device.retire();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("volumes", &self.volumes()).finish_non_exhaustive()
    }
}

impl Shared {
    #[allow(clippy::too_many_arguments, reason = "the rooms of a store, put together in one place")]
    pub(crate) fn new(
        env: Arc<dyn Environment>,
        device: Arc<GuardedDevice>,
        options: OpenOptions,
        space: Arc<Space>,
        trees: Arc<Trees>,
        log: Log,
        order: Order,
        indexes: Arc<IndexTable>,
        volumes: VolumeTable,
        checkpointer: Checkpointer,
        deleted: Arc<DeletedRanges>,
    ) -> Arc<Self> {
        let signal: Arc<WorkSignal> = Arc::default();
        let accounting = SpaceAccounting::new(space.clone(), trees.clone(), indexes.clone(), options.tuning);
        let accounting = Arc::new(accounting);
        let (heavy, owed) = (options.tuning.edge, accounting.clone());
        let backlog = Arc::new(FlushBacklog::new(space.clone(), owed, signal.clone(), heavy));
        let memory = Arc::new(UnwrittenMemory::new(trees.clone()));
        let absorber =
            Absorber::new(space.clone(), trees.clone(), accounting.clone(), backlog.clone(), signal.clone());
        let absorber = Arc::new(absorber);
        let pins = Arc::new(PinTable::default());
        let catalog = Arc::new(VolumeCatalog::new(space.clone(), indexes.clone(), volumes));
        let (context, catalog_of) = (trees.clone(), catalog.clone());
        let read = Arc::new(ReadContext {
            trees: context,
            indexes: indexes.clone(),
            catalog: catalog_of,
            pins: pins.clone(),
        });
        let readahead = Readahead::new(read.clone(), space.clone(), signal.clone());
        let accepted = Accepted::behind(order.last_msn, options.tuning.accepted, options.memory);
        Arc::new(Self {
            env,
            device,
            options,
            space,
            trees,
            log,
            accepted,
            order: Mutex::new(order),
            has_open: AtomicBool::new(false),
            indexes,
            catalog,
            read,
            checkpointer,
            accounting,
            backlog,
            memory,
            absorber,
            deleted,
            pins,
            signal,
            stalls: Default::default(),
            readahead,
            shortage: Default::default(),
            tidy: Default::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// Fails once the store is closed.
    fn open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::ReadOnly, "the store is closed")),
            false => Ok(()),
        }
    }

    /// Fails if nothing can be changed any more.
    pub(crate) fn writable(&self) -> Result<()> {
        self.open()?;
        self.device.writable()
    }

    fn statistics(&self) -> Statistics {
        self.settle();
        let last_lsn = self.order.lock().last_lsn;
        let superblock = self.space.superblock();
        let indexes: Vec<Arc<Index>> = self.indexes.all();
        let cache = self.trees.pieces.stats();
        Statistics {
            uuid: superblock.uuid,
            label: superblock.label,
            created: superblock.created,
            compression: self.trees.compression,
            space: SpaceStats { owed: self.accounting.unwritten_blocks(), ..self.space.stats() },
            device: self.device.stats(),
            log_capacity: self.log.capacity(),
            log_used: self.log.used_bytes(),
            log: self.log.counters(),
            stalls: self.stalls.times(),
            memory_budget: self.options.memory,
            absorbed: self.trees.absorbed.load(Ordering::Relaxed),
            memtable_bytes: indexes.iter().map(|i| i.version().memtable_bytes() as u64).sum(),
            dirty_bytes: self.memory.bytes(),
            cache_bytes: cache.bytes + cache.read_ahead,
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            checkpoints: self.accounting.checkpoints(),
            generation: superblock.generation,
            checkpoint_lsn: superblock.checkpoint_lsn.0,
            durable_lsn: self.log.durable_lsn().0,
            last_lsn: last_lsn.0,
            heights: indexes.iter().map(|i| (i.id, i.version().root.height)).collect(),
        }
    }

    /// Checks what the last checkpoint left.
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> VerifyReport {
        self.checkpointer.hold(|state| {
            let stats = self.space.stats();
            let total = stats.total.saturating_sub(stats.free + stats.fixed) * BLOCK as u64;
            let mut tell = |done: u64| progress(Progress { done: done.min(total), total });
            let mut verifier = Verifier::new(&self.trees, &mut tell);
            for (index, root) in &state.roots {
                verifier.index(*index, &root.as_root(&*self.space));
            }
            for index in self.indexes.all() {
                verifier.pending(index.id, index.version().memtables().map(|table| table as &dyn MessageSet));
            }
            for id in &state.reclaim {
                verifier.dying(*id);
            }
            let (mut report, references) = verifier.finish();
            let problems = self.space.check(&references, &state.reclaim, &mut |_| {});
            report.problems.extend(problems.into_iter().map(|message| Problem {
                index: None,
                range: None,
                message,
            }));
            report
        })
    }
}
