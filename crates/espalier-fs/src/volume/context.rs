//! The volume that a file system is mounted from: store, indexes, options, commits, counters.

use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout::{DATA, LINKS, METADATA};
use crate::model::record::later_than;
use crate::model::types::*;
use crate::volume::change_journal::{ChangeJournal, PlannedNotes};
use crate::volume::comparison_cache::{ComparisonCache, Concern};
use crate::volume::mtime_hold::PromptFlushes;
use espalier_engine::{Batch, IndexId, Lsn, MAX_VALUE, Store, VolumeInfo};
use espalier_storage::Environment;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Version of the volume's parameters.
const PARAMETERS_VERSION: u16 = 1;

/// What every component needs of the mounted volume.
pub(crate) struct VolumeContext {
    pub(crate) store: Arc<Store>,
    pub(crate) env: Arc<dyn Environment>,
    pub(crate) options: OpenOptions,
    pub(crate) id: u32,
    /// No other volume of this store or another has it (but for a chance of one in 2^64).
    pub(crate) identity: u64,
    pub(crate) block_size: u32,
    pub(crate) counters: Counters,
    last_lsn: AtomicU64,
    /// The time of the last clone or snapshot.
    copied: AtomicI64,
    /// See [`FileSystem::set_kernel_keeps_times`](crate::FileSystem::set_kernel_keeps_times).
    pub(crate) kernel_keeps_times: AtomicBool,
    pub(crate) prompt_flushes: PromptFlushes,
    /// What changed below directories that callers ask about.
    pub(crate) changes: ChangeJournal,
    pub(crate) comparisons: Arc<ComparisonCache>,
    /// Blocks of some file may be reserved.
    has_reservations: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) lookup_hits: AtomicU64,
    pub(crate) lookup_misses: AtomicU64,
    pub(crate) creates: AtomicU64,
    pub(crate) create_queries: AtomicU64,
    pub(crate) orphans: AtomicU64,
    pub(crate) ownership_walks: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

/// Space of the store, in bytes.
pub(crate) struct Space {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

impl VolumeContext {
    /// The volume that `options` name.
    pub(crate) fn open(store: Arc<Store>, env: Arc<dyn Environment>, options: OpenOptions) -> Result<Self> {
        let volume = find_volume(&store, &options.volume)?;
        let block_size = decode_parameters(&volume.parameters)?;
        let identity = [&store.statistics().uuid[..], &volume.id.to_le_bytes()].concat();
        Ok(Self {
            identity: xxhash_rust::xxh3::xxh3_64(&identity),
            store,
            env,
            options,
            id: volume.id,
            block_size,
            counters: Counters::default(),
            last_lsn: AtomicU64::new(0),
            copied: AtomicI64::new(i64::MIN),
            kernel_keeps_times: AtomicBool::new(false),
            prompt_flushes: PromptFlushes::default(),
            changes: ChangeJournal::new(),
            comparisons: Arc::new(ComparisonCache::new()),
            has_reservations: AtomicBool::new(false),
        })
    }

    pub(crate) fn metadata(&self) -> IndexId {
        IndexId { volume: self.id, index: METADATA }
    }

    pub(crate) fn data(&self) -> IndexId {
        IndexId { volume: self.id, index: DATA }
    }

    pub(crate) fn links(&self) -> IndexId {
        IndexId { volume: self.id, index: LINKS }
    }

    /// The time that a change gets: nanoseconds since the Unix epoch. It is the time of the clock's
    /// last tick, as the kernel uses it, so that all times of files can be compared. Comparisons of
    /// trees find changed files by it, so after a clone within one tick it is a nanosecond later.
    pub(crate) fn now(&self) -> i64 {
        later_than(self.copied.load(Ordering::Acquire), self.clock())
    }

    /// A clone or snapshot was made: changes from now on get later times than those in it.
    pub(crate) fn copied_now(&self) {
        let now = self.clock();
        let later = |copied| Some(later_than(copied, now));
        // It has no case in which it changes nothing.
        let _ = self.copied.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// The time of the last clone or snapshot; see [`VolumeContext::now`].
    pub(crate) fn copied(&self) -> i64 {
        self.copied.load(Ordering::Acquire)
    }

    /// The last clone or snapshot was made at this time, by a server before this one.
    pub(crate) fn set_copied(&self, copied: i64) {
        self.copied.store(copied, Ordering::Release);
    }

    /// The clock's last tick: the time of a read.
    pub(crate) fn clock(&self) -> i64 {
        i64::try_from(self.env.now().as_nanos()).unwrap_or(i64::MAX)
    }

    /// Refuses changes to a file system that is mounted read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            fail(FsErrorKind::ReadOnly, "the file system is mounted read-only")
        } else {
            Ok(())
        }
    }

    /// Commits the batch that a call was made for, unless the caller has given up: then nothing is
    /// changed. A call has one such batch, so that it is never half done, and waits for nothing
    /// afterwards. The calling function holds the locks of everything that the batch concerns.
    pub(crate) fn commit(&self, batch: Batch) -> Result<Lsn> {
        let planned = self.changes.plan(&batch);
        let lsn = {
            let _change = self.comparisons.begin_change(&batch, Concern::All);
            self.store.commit_if(batch, || self.caller_stays())?
        };
        self.note(planned);
        self.last_lsn.fetch_max(lsn.0, Ordering::AcqRel);
        Ok(lsn)
    }

    /// Commits a batch that users do not see, even if the caller has given up.
    pub(crate) fn commit_internal(&self, batch: Batch) -> Result<Lsn> {
        let planned = self.changes.plan(&batch);
        let lsn = self.commit_unnoted(batch, Concern::All)?;
        self.note(planned);
        Ok(lsn)
    }

    /// As [`VolumeContext::commit_internal`], for what is no change in the eyes of callers that ask
    /// what changed: times of the last read, and ownership marks.
    pub(crate) fn commit_times(&self, batch: Batch) -> Result<Lsn> {
        self.commit_unnoted(batch, Concern::Links)
    }

    fn commit_unnoted(&self, batch: Batch, concern: Concern) -> Result<Lsn> {
        let _change = self.comparisons.begin_change(&batch, concern);
        let lsn = self.store.commit(batch)?;
        self.last_lsn.fetch_max(lsn.0, Ordering::AcqRel);
        Ok(lsn)
    }

    /// A batch is committed, and its call has not returned.
    fn note(&self, planned: Option<PlannedNotes>) {
        if let Some(planned) = planned {
            self.changes.note(planned, self.env.monotonic(), || self.env.random());
        }
    }

    /// Fails if the caller has given up, before a change that is only made in memory.
    pub(crate) fn check_caller_stays(&self) -> Result<()> {
        if self.caller_stays() { Ok(()) } else { fail(FsErrorKind::Interrupted, "the caller has given up") }
    }

    /// See [`Waiter::stays`].
    pub(crate) fn caller_stays(&self) -> bool {
        self.options.waiter.as_ref().is_none_or(|waiter| waiter.stays())
    }

    /// See [`Waiter::waits`].
    pub(crate) fn caller_waits(&self) -> bool {
        self.options.waiter.as_ref().is_none_or(|waiter| waiter.waits())
    }

    /// True if blocks of some file may be reserved.
    pub(crate) fn has_reservations(&self) -> bool {
        self.has_reservations.load(Ordering::Acquire)
    }

    /// Blocks of some file will be reserved.
    pub(crate) fn note_reservations(&self) {
        self.has_reservations.store(true, Ordering::Release);
    }

    /// The newest batch so far.
    pub(crate) fn last_lsn(&self) -> Lsn {
        Lsn(self.last_lsn.load(Ordering::Acquire))
    }

    /// Total and free space. Space that is reserved for files, or set aside for deletions and
    /// checkpoints counts as used; superblocks and log are not part of the total.
    pub(crate) fn space(&self) -> Space {
        let space = self.store.statistics().space;
        let taken = space.reserved + space.unwritten + space.pool + space.kept;
        let free = space.free.saturating_sub(taken);
        Space { total: space.total.saturating_sub(space.fixed), free }
    }
}

/// The volume of that name.
pub(crate) fn find_volume(store: &Store, name: &str) -> Result<VolumeInfo> {
    match store.volume_by_name(name) {
        Some(volume) => Ok(volume),
        None => fail(FsErrorKind::NotFound, format!("the store has no volume {name:?}")),
    }
}

/// The parameters of a new volume.
pub(crate) fn encode_parameters(block_size: u32) -> Result<Vec<u8>> {
    if !is_block_size(block_size) {
        return fail(
            FsErrorKind::Invalid,
            format!("a block size of {block_size} is no power of two from 4096 to 1 MiB"),
        );
    }
    let mut parameters = PARAMETERS_VERSION.to_le_bytes().to_vec();
    parameters.extend_from_slice(&[0, 0]);
    parameters.extend_from_slice(&block_size.to_le_bytes());
    Ok(parameters)
}

/// The block size that a volume was made with.
pub(crate) fn decode_parameters(parameters: &[u8]) -> Result<u32> {
    if let Some((version, rest)) = parameters.split_first_chunk::<2>()
        && let Some(size) = rest.get(2..6).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes)
    {
        let version = u16::from_le_bytes(*version);
        if version > PARAMETERS_VERSION {
            return fail(
                FsErrorKind::Unsupported,
                format!("the volume has format {version}, this program knows 1"),
            );
        }
        if version == PARAMETERS_VERSION && is_block_size(size) {
            return Ok(size);
        }
    }
    fail(FsErrorKind::Io, "the volume's parameters are damaged, or it holds no file system")
}

fn is_block_size(size: u32) -> bool {
    size.is_power_of_two() && (4096..=MAX_VALUE as u32).contains(&size)
}
