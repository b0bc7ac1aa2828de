//! A lock that many threads share or one has alone, and that a thread which shares it may share
//! again.
//!
//! It is phase-fair (Brandenburg and Anderson, "Spin-based reader-writer synchronization for
//! multiprocessor real-time systems", Real-Time Systems 46, 2010): a thread that comes to share the
//! lock waits for one owner at most. Invariants:
//! - `state` counts the threads that share the lock, and says whether a thread waits to own it
//!   (`WANTED`) or owns it (`OWNED`). The count is zero while the lock is owned.
//! - One thread at a time has the `turn` to want the lock and to own it.
//! - What a thread waits for changes under `waiting`, or the change is announced under it; so no
//!   wake-up falls between a look and the rest that follows.

use crate::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicU32, Ordering};

/// A thread waits until no other shares the lock: none comes to share it but those that share it
/// already.
const WANTED: u32 = 1 << 31;
/// A thread has the lock alone.
const OWNED: u32 = 1 << 30;

/// A lock that many threads share or one has alone. It is phase-fair: a thread that comes to share
/// it waits for one owner at most. One that shares it may share it again ([`Self::share_again`]).
#[derive(Debug, Default)]
pub struct SharedLock {
    state: AtomicU32,
    turn: Mutex<()>,
    waiting: Mutex<Waiting>,
    /// The lock is shared no more; or all that waited now share it.
    changed: Condvar,
}

/// Threads that wait to share the lock.
#[derive(Debug, Default)]
struct Waiting {
    count: u32,
    /// Counts the times that all of them got it.
    phase: u64,
}

/// A [`SharedLock`] that this thread shares.
#[derive(Debug)]
pub struct SharedGuard<'a> {
    lock: &'a SharedLock,
}

/// A [`SharedLock`] that this thread owns.
#[derive(Debug)]
pub struct OwnedGuard<'a> {
    lock: &'a SharedLock,
    _turn: MutexGuard<'a, ()>,
}

impl SharedLock {
    /// Shares the lock; waits while a thread owns it or waits to own it.
    #[inline]
    pub fn share(&self) -> SharedGuard<'_> {
        self.share_unless(WANTED | OWNED)
    }

    /// Shares the lock; waits while a thread owns it. For a thread that may share it already: it
    /// does not wait for one that waits for itself.
    #[inline]
    pub fn share_again(&self) -> SharedGuard<'_> {
        self.share_unless(OWNED)
    }

    /// Owns the lock; waits until no other thread shares or owns it.
    pub fn own(&self) -> OwnedGuard<'_> {
        let turn = self.turn.lock();
        if self.state.compare_exchange(0, OWNED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            let mut waiting = self.waiting.lock();
            self.state.fetch_or(WANTED, Ordering::Relaxed);
            while self.state.compare_exchange(WANTED, OWNED, Ordering::Acquire, Ordering::Relaxed).is_err() {
                self.changed.wait(&mut waiting);
            }
        }
        OwnedGuard { lock: self, _turn: turn }
    }

    /// True if a thread waits to own the lock.
    #[cfg(test)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.state.load(Ordering::Relaxed) & WANTED != 0
    }

    #[inline]
    fn share_unless(&self, closed: u32) -> SharedGuard<'_> {
        if !self.try_share_unless(closed) {
            self.wait_to_share(closed);
        }
        SharedGuard { lock: self }
    }

    #[inline]
    fn try_share_unless(&self, closed: u32) -> bool {
        let more = |state| (state & closed == 0).then(|| state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    #[cold]
    fn wait_to_share(&self, closed: u32) {
        let mut waiting = self.waiting.lock();
        if self.try_share_unless(closed) {
            return;
        }
        waiting.count += 1;
        let phase = waiting.phase;
        // The owner counts this thread as one that shares the lock.
        self.changed.wait_while(&mut waiting, |waiting| waiting.phase == phase);
    }
}

impl Drop for SharedGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.state.fetch_sub(1, Ordering::Release) == WANTED | 1 {
            let _waiting = self.lock.waiting.lock();
            self.lock.changed.notify_all();
        }
    }
}

impl Drop for OwnedGuard<'_> {
    fn drop(&mut self) {
        let mut waiting = self.lock.waiting.lock();
        let admitted = std::mem::take(&mut waiting.count);
        self.lock.state.store(admitted, Ordering::Release);
        if admitted > 0 {
            waiting.phase += 1;
            self.lock.changed.notify_all();
        }
    }
}
