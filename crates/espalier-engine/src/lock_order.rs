//! Lock hierarchy of the engine: mutexes and read-write locks with a rank.
//!
//! Protocol: a thread that holds a lock may wait only for locks of a higher rank. Ranks are listed
//! in [`rank`], outermost first. A `try_lock` may be of any rank, as it does not wait; but what the
//! thread takes afterwards must rank above everything that it holds.
//!
//! Invariant: if all threads keep to this, no circle of threads waits for one another's locks.
//! Debug builds check each lock when it is asked for, before the thread waits, and panic with the
//! names of both locks. Release builds check nothing and keep nothing: the types have the size and
//! the cost of the locks inside them.
//!
//! A [`Condvar`] gives back one lock only, so a thread that waits for one may hold others, of lower
//! ranks, whose holder the thread that wakes it must not need.

use espalier_sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Declares ranks in ascending order, with the name of each for messages.
macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident = $rank:literal;)*) => {
        /// The ranks, outermost first.
        pub(crate) mod rank {
            $($(#[$doc])* pub(crate) const $name: u8 = $rank;)*
        }

        fn name(rank: u8) -> &'static str {
            match rank {
                $(rank::$name => stringify!($name),)*
                _ => "a lock without a name",
            }
        }
    };
}

ranks! {
    /// `GarbageCollector`: what it is at. Held while it pushes deletions down.
    GARBAGE_COLLECTOR = 5;
    /// `SparseValues`: the search for value parts that are worth emptying.
    SPARSE_SEARCH = 10;
    /// `Checkpointer`: held for a whole checkpoint, and by whatever must not run beside one.
    CHECKPOINTER = 15;
    /// `Index::structure`: held while a new tree is made of the current one. A thread waits for one
    /// at a time; it may hold several that it took with `try_lock`.
    INDEX_STRUCTURE = 20;
    /// The commit lock of `CommitPipeline`: the order of batches.
    COMMIT = 25;
    /// `ApplyQueue`: held by the thread that applies batches.
    APPLYING = 30;
    /// `VolumeCatalog`: the volume table in memory.
    VOLUME_CATALOG = 35;
    /// `SpaceAccounting`: held while what is unwritten is counted.
    UNWRITTEN_COUNT = 38;
    /// `IndexTable`: the indexes that take messages. Shared while a batch is applied.
    INDEX_TABLE = 40;
    /// `ApplyQueue`: the batches that wait. Also taken under the index table, when memtables have a
    /// batch.
    APPLY_QUEUE = 45;
    /// `PinTable`: what snapshots see.
    PIN_TABLE = 50;
    /// `DeletedRanges`: where something was deleted.
    DELETED_RANGES = 55;
    /// `Index`: its current version. Held while a pin is renewed for it.
    INDEX_VERSION = 60;
    /// `ReclaimProgress`: where the search for leaves goes on. Held for a few instructions.
    SWEPT_LEAVES = 65;
    /// `CountedRoots`: held for a few instructions.
    COUNTED_ROOTS = 70;
    /// `RangeDeleteReserve`: held for a few instructions.
    RANGE_DELETE_RESERVE = 75;
    /// `WorkSignal`: held for a few instructions, and while a readahead thread looks for work.
    WORK_SIGNAL = 80;
    /// `ScanTable`: sequential scans.
    SCAN_TABLE = 85;
    /// `Memtable`: its messages.
    MEMTABLE = 90;
    /// `RedoLog`: batches and groups that are not durable. Released for calls of the device.
    LOG = 95;
    /// `KeepApart`: prefixes. Held for a few instructions.
    KEEP_APART = 97;
    /// `UnflushableEdges`: edges that wait for the next checkpoint.
    UNFLUSHABLE_EDGES = 100;
    /// `Trees`: value parts that are being emptied.
    SPARSE_PARTS = 105;
    /// `NodeSlot`: where a node is.
    NODE_SLOT = 110;
    /// `PartSlot`: where a part is.
    PART_SLOT = 115;
    /// `LargeValue`: where a value is.
    LARGE_VALUE = 120;
    /// `Tables`: held while tables are changed and written.
    SPACE_WRITER = 125;
    /// `Space`: the newest superblock.
    SUPERBLOCK = 130;
    /// `DeferredFree`: fresh and dead pieces, and pins.
    UNCOUNTED_PIECES = 135;
    /// `HandleCounts`: counts of handles, in shards.
    PIECE_HANDLES = 140;
    /// `ExtentLists`: pieces in several extents.
    EXTENT_LISTS = 145;
    /// `FreeBlocks`: the map of used blocks.
    FREE_BLOCKS = 150;
    /// `Reservations`: held for a few instructions.
    RESERVATIONS = 153;
    /// `Table`: the pages of a space table.
    SPACE_TABLE = 155;
    /// `PrefetchQueue`: extents that will be read. Released for every call of the device.
    PREFETCH_QUEUE = 160;
    /// `DeviceReadahead`: sequential reads of the device. Released for every call of the device.
    DEVICE_READAHEAD = 165;
    /// `Buffers`: memory that is provided before it is read into.
    BUFFER_PROVISION = 170;
    /// `Buffers`: the pool.
    BUFFER_POOL = 175;
    /// `GuardedDevice`: held during a sync.
    DEVICE_SYNC = 180;
}

thread_local! {
    /// The ranks of the locks that the thread holds.
    static HELD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Notes that the thread takes a lock of this rank.
///
/// # Panics
/// In debug builds, if the thread may have to wait for it and holds one that ranks as high.
fn enter(rank: u8, may_wait: bool) {
    if !cfg!(debug_assertions) {
        return;
    }
    // A thread that ends has no list any more, and takes locks in destructors only.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        let highest = held.iter().max().copied().filter(|highest| may_wait && *highest >= rank);
        held.push(rank);
        if let Some(highest) = highest
            && !std::thread::panicking()
        {
            held.pop();
            drop(held);
            panic!("lock order: {} is taken while {} is held", name(rank), name(highest));
        }
    });
}

/// Notes that the thread gives a lock of this rank back.
fn leave(rank: u8) {
    if !cfg!(debug_assertions) {
        return;
    }
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if let Some(at) = held.iter().rposition(|other| *other == rank) {
            held.remove(at);
        }
    });
}

/// A lock of this rank that the thread holds.
struct Held<const RANK: u8> {
    /// Stays with its thread.
    _thread: PhantomData<*const ()>,
}

impl<const RANK: u8> Held<RANK> {
    /// The thread is about to wait for the lock.
    fn wait() -> Self {
        enter(RANK, true);
        Self { _thread: PhantomData }
    }

    /// The thread has got the lock without waiting.
    fn taken() -> Self {
        enter(RANK, false);
        Self { _thread: PhantomData }
    }
}

impl<const RANK: u8> Drop for Held<RANK> {
    fn drop(&mut self) {
        leave(RANK);
    }
}

/// A mutex with a rank.
#[derive(Default)]
pub(crate) struct RankedMutex<T, const RANK: u8> {
    inner: Mutex<T>,
}

/// A [`RankedMutex`] that the thread holds.
pub(crate) struct RankedMutexGuard<'a, T, const RANK: u8> {
    inner: MutexGuard<'a, T>,
    _held: Held<RANK>,
}

impl<T, const RANK: u8> RankedMutex<T, RANK> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Mutex::new(value) }
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> RankedMutexGuard<'_, T, RANK> {
        let held = Held::wait();
        RankedMutexGuard { inner: self.inner.lock(), _held: held }
    }

    /// Takes the lock if no thread holds it.
    pub(crate) fn try_lock(&self) -> Option<RankedMutexGuard<'_, T, RANK>> {
        let inner = self.inner.try_lock()?;
        Some(RankedMutexGuard { inner, _held: Held::taken() })
    }

    /// Waits for the lock, but no longer than `limit`.
    pub(crate) fn lock_within(&self, limit: Duration) -> Option<RankedMutexGuard<'_, T, RANK>> {
        let held = Held::wait();
        Some(RankedMutexGuard { inner: self.inner.try_lock_for(limit)?, _held: held })
    }

    /// True if some thread holds the lock now.
    pub(crate) fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }
}

impl<T, const RANK: u8> RankedMutexGuard<'_, T, RANK> {
    /// Runs `work` without the lock.
    pub(crate) fn unlocked<R>(&mut self, work: impl FnOnce() -> R) -> R {
        /// Enters the rank again even if `work` panics.
        struct Reentry(u8);
        impl Drop for Reentry {
            fn drop(&mut self) {
                enter(self.0, true);
            }
        }
        MutexGuard::unlocked(&mut self.inner, || {
            leave(RANK);
            let _reentry = Reentry(RANK);
            work()
        })
    }

    /// Waits until `changed` is notified, without the lock.
    pub(crate) fn wait(&mut self, changed: &Condvar) {
        changed.wait(&mut self.inner);
    }

    /// As [`Self::wait`], for `limit` at most.
    pub(crate) fn wait_for(&mut self, changed: &Condvar, limit: Duration) {
        changed.wait_for(&mut self.inner, limit);
    }
}

impl<T, const RANK: u8> Deref for RankedMutexGuard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, const RANK: u8> DerefMut for RankedMutexGuard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: std::fmt::Debug, const RANK: u8> std::fmt::Debug for RankedMutex<T, RANK> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

/// A read-write lock with a rank. A thread that holds it shared must not take it again: a writer
/// that waits would come in between.
#[derive(Default)]
pub(crate) struct RankedRwLock<T, const RANK: u8> {
    inner: RwLock<T>,
}

/// A [`RankedRwLock`] that the thread shares.
pub(crate) struct RankedReadGuard<'a, T, const RANK: u8> {
    inner: RwLockReadGuard<'a, T>,
    _held: Held<RANK>,
}

/// A [`RankedRwLock`] that the thread holds alone.
pub(crate) struct RankedWriteGuard<'a, T, const RANK: u8> {
    inner: RwLockWriteGuard<'a, T>,
    _held: Held<RANK>,
}

impl<T, const RANK: u8> RankedRwLock<T, RANK> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: RwLock::new(value) }
    }

    /// Waits until no thread holds the lock alone.
    pub(crate) fn read(&self) -> RankedReadGuard<'_, T, RANK> {
        let held = Held::wait();
        RankedReadGuard { inner: self.inner.read(), _held: held }
    }

    /// Waits until no thread holds the lock.
    pub(crate) fn write(&self) -> RankedWriteGuard<'_, T, RANK> {
        let held = Held::wait();
        RankedWriteGuard { inner: self.inner.write(), _held: held }
    }

    /// What it guards, where no other thread can reach it.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T, const RANK: u8> Deref for RankedReadGuard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, const RANK: u8> Deref for RankedWriteGuard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, const RANK: u8> DerefMut for RankedWriteGuard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(test)]
mod tests;
