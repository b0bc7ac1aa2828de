//! A condition variable that takes a guard by reference.

use crate::MutexGuard;
use std::sync::{self, PoisonError};
use std::time::{Duration, Instant};

/// Threads wait here, without a lock, until another thread notifies them.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: sync::Condvar,
}

/// How a wait with a limit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult {
    timed_out: bool,
}

impl WaitTimeoutResult {
    /// True if the limit came before a notification.
    pub fn timed_out(self) -> bool {
        self.timed_out
    }
}

impl Condvar {
    /// One that no thread waits for.
    pub const fn new() -> Self {
        Self { inner: sync::Condvar::new() }
    }

    /// Waits without the lock until it is notified. It may return without that: the caller looks
    /// again at what it waits for.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.without(|inner| (self.inner.wait(inner).unwrap_or_else(PoisonError::into_inner), ()));
    }

    /// As [`Self::wait`], for `limit` at most.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> WaitTimeoutResult {
        guard.without(|inner| {
            let (inner, result) =
                self.inner.wait_timeout(inner, limit).unwrap_or_else(PoisonError::into_inner);
            (inner, WaitTimeoutResult { timed_out: result.timed_out() })
        })
    }

    /// As [`Self::wait`], until `end` at most.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, end.saturating_duration_since(Instant::now()))
    }

    /// Waits without the lock as long as `holds` says so of the value.
    pub fn wait_while<T>(&self, guard: &mut MutexGuard<'_, T>, mut holds: impl FnMut(&mut T) -> bool) {
        while holds(guard) {
            self.wait(guard);
        }
    }

    /// As [`Self::wait_while`], for `limit` at most.
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut holds: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> WaitTimeoutResult {
        let end = Instant::now() + limit;
        let mut result = WaitTimeoutResult { timed_out: false };
        while !result.timed_out && holds(guard) {
            result = self.wait_until(guard, end);
        }
        result
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.inner.notify_all();
    }
}
