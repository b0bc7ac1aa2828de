//! Work signal: wakes worker threads, waiting writers and readahead threads.
//!
//! Protocol: a component that makes work calls [`WorkSignal::request_work`]; one that releases
//! memory or space for which writers may wait calls [`WorkSignal::note_progress`]; one that queues
//! reads calls [`WorkSignal::wake_readahead`]. All three may be called under any lock that ranks
//! above the signal's own ([`crate::lock_order`]). A readahead thread looks for work under the
//! signal's lock; so the locks of queues that it looks at rank below.
//!
//! Invariant: a request between a worker's last look for work and its rest is not lost.

use crate::lock_order::{RankedMutex, rank};
use espalier_sync::Condvar;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct WorkSignal {
    /// Counts the calls of [`Self::note_progress`].
    epoch: RankedMutex<u64, { rank::WORK_SIGNAL }>,
    work: Condvar,
    /// There is work that no worker has looked for yet.
    is_work_requested: AtomicBool,
    progress: Condvar,
    readahead: Condvar,
}

impl WorkSignal {
    /// There is work: wakes one worker.
    pub(crate) fn request_work(&self) {
        if !self.is_work_requested.swap(true, Ordering::AcqRel) {
            let _epoch = self.epoch.lock();
            self.work.notify_one();
        }
    }

    /// Something that writers may wait for has happened.
    pub(crate) fn note_progress(&self) {
        *self.epoch.lock() += 1;
        self.progress.notify_all();
    }

    /// There is something to read ahead: wakes one readahead thread, which wakes the next if there
    /// is more than it does.
    pub(crate) fn wake_readahead(&self) {
        // Under the lock, so that the wake-up cannot fall between a look and the rest that follows.
        let _epoch = self.epoch.lock();
        self.readahead.notify_one();
    }

    /// Wakes all workers and readahead threads, which then find that they are to stop.
    pub(crate) fn wake_threads(&self) {
        self.work.notify_all();
        self.readahead.notify_all();
    }

    /// How often there has been progress.
    pub(crate) fn epoch(&self) -> u64 {
        *self.epoch.lock()
    }

    /// Waits until there is progress beyond `epoch`, or for `limit`.
    pub(crate) fn wait_for_progress(&self, epoch: u64, limit: Duration) {
        let mut now = self.epoch.lock();
        if *now == epoch {
            now.wait_for(&self.progress, limit);
        }
    }

    /// Rests until there is work, or for `limit`; returns false at once if work was requested since
    /// a worker last began to rest.
    pub(crate) fn wait_for_work(&self, limit: Duration) -> bool {
        let mut epoch = self.epoch.lock();
        let rests = !self.is_work_requested.swap(false, Ordering::AcqRel);
        if rests {
            epoch.wait_for(&self.work, limit);
            self.is_work_requested.store(false, Ordering::Release);
        }
        rests
    }

    /// Rests until there is something to read ahead, or for `limit`; returns at once if
    /// `has_reads`.
    pub(crate) fn wait_for_readahead(&self, has_reads: impl FnOnce() -> bool, limit: Duration) {
        let mut epoch = self.epoch.lock();
        // A read may have been queued between the caller's look and the lock: then the wake-up has
        // passed too.
        if !has_reads() {
            epoch.wait_for(&self.readahead, limit);
        }
    }
}

#[cfg(test)]
mod tests;
