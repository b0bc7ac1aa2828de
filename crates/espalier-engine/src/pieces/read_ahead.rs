//! Reading ahead: what is read from the device before a reader asks for it.
//!
//! Two ways beside each other, with memory from one pool: [`DeviceReadahead`] finds sequential
//! reads of the device by itself, and the [`PrefetchQueue`] is told what scans will want.

use super::buffers::Buffers;
use super::device_readahead::DeviceReadahead;
use super::prefetch_queue::{PrefetchPlace, PrefetchQueue};
use crate::device::GuardedDevice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most memory for device readahead, and for the prefetch queue, in bytes each; with little
/// memory an eighth of what there is, and a sixteenth.
pub(super) const MAX_READ_AHEAD_BYTES: u64 = 32 << 20;

/// The names of scans that a cursor makes for itself begin here; others count from 1.
const FIRST_CURSOR_SCAN: u64 = 1 << 63;

/// See the [module](self).
pub(crate) struct PieceReadahead {
    pub(super) device: DeviceReadahead,
    pub(super) queue: PrefetchQueue,
    /// The next name of a cursor's scan.
    next_cursor_scan: AtomicU64,
    /// Memory that is read into.
    pub(super) buffers: Arc<Buffers>,
}

impl PieceReadahead {
    /// Reads ahead from `device`, into so many bytes for device readahead and for the queue.
    pub(super) fn new(device: &Arc<GuardedDevice>, (for_device, for_queue): (u64, u64)) -> Self {
        let buffers = Buffers::new(for_device + for_queue);
        Self {
            device: DeviceReadahead::new(device.clone(), buffers.clone(), for_device),
            queue: PrefetchQueue::new(device.clone(), buffers.clone(), for_queue),
            next_cursor_scan: AtomicU64::new(FIRST_CURSOR_SCAN),
            buffers,
        }
    }

    /// Changes how much memory there is, in bytes.
    pub(super) fn set_limits(&self, (for_device, for_queue): (u64, u64)) {
        self.device.set_limit(for_device);
        self.queue.set_limit(for_queue);
        self.buffers.keep(for_device + for_queue);
    }

    /// Bytes read ahead and not used yet, or just used.
    pub(super) fn bytes(&self) -> u64 {
        self.device.bytes() + self.queue.bytes()
    }

    /// What was read of this range of the device is not what is there any more, or was wrong.
    pub(super) fn invalidate(&self, range: &Range<u64>) {
        self.queue.invalidate(range);
        self.device.invalidate(range);
    }

    /// Calls `wake` when there is work for [`Self::step`]. Without it, readers read ahead
    /// themselves.
    pub(crate) fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.device.set_wake(Box::new(wake));
    }

    /// True if [`Self::step`] has something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.buffers.is_wanted() || self.queue.has_queued() || self.device.has_queued()
    }

    /// Much will be read. True if [`Self::step`] has something to do for that.
    pub(crate) fn expect_reads(&self) -> bool {
        self.buffers.want()
    }

    /// Reads one window or prefetch extent ahead of some reader; false if there is none to read.
    /// Before it reads it wakes another thread if there is more to do: so there are as many reads
    /// under way as there is work for, up to the number of threads.
    pub(crate) fn step(&self) -> bool {
        let claimed = || {
            if self.has_work() {
                self.device.wake();
            }
        };
        // That is over soon, and what is read afterwards finds the memory.
        self.buffers.provide(claimed) || self.queue.step(claimed) || self.device.step(claimed)
    }

    /// A name for a scan of which no table of scans knows.
    pub(crate) fn name_cursor_scan(&self) -> u64 {
        self.next_cursor_scan.fetch_add(1, Ordering::Relaxed)
    }

    /// The memory in bytes that [`Self::prefetch`] still has, and that it has if nothing is queued.
    pub(crate) fn prefetch_room(&self) -> (u64, u64) {
        self.queue.room()
    }

    /// Enqueues what the scan `scan` will want. A hint.
    pub(crate) fn prefetch(&self, scan: u64, places: Vec<PrefetchPlace>) {
        self.queue.enqueue(scan, places);
        if self.queue.has_queued() {
            self.device.wake();
        }
    }

    /// The scan `scan` wants nothing any more that had its turn before `turn`.
    pub(crate) fn passed(&self, scan: u64, turn: u64) {
        self.queue.passed(scan, turn);
    }
}
