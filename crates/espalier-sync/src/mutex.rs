//! A mutex without poisoning, whose guard can let go of the lock for a while.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{self, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long [`Mutex::try_lock_for`] rests between two attempts.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// A value that one thread at a time can reach.
#[derive(Default)]
pub struct Mutex<T> {
    inner: sync::Mutex<T>,
}

/// The value of a [`Mutex`], until it is dropped.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only while [`Self::without`] or [`Self::unlocked`] runs, which have the guard alone.
    inner: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// A mutex that nothing holds.
    pub const fn new(value: T) -> Self {
        Self { inner: sync::Mutex::new(value) }
    }

    /// The value, of a mutex that is used no more.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no thread holds it. A thread that holds it already waits for ever.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes it if no thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(self.guard(inner)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until no thread holds it, but no longer than `limit`. It looks every millisecond: for
    /// calls that are rare.
    pub fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::sleep(left.min(ATTEMPT_INTERVAL));
        }
    }

    /// True if a thread holds it now.
    pub fn is_locked(&self) -> bool {
        self.try_lock().is_none()
    }

    /// The value, which no other thread can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard<'a>(&'a self, inner: sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { mutex: self, inner: Some(inner) }
    }
}

impl<'a, T> MutexGuard<'a, T> {
    /// Runs `work` without the lock, and takes the lock again even if `work` panics.
    pub fn unlocked<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
        struct Relock<'g, 'a, T>(&'g mut MutexGuard<'a, T>);
        impl<T> Drop for Relock<'_, '_, T> {
            fn drop(&mut self) {
                let mutex = self.0.mutex;
                self.0.inner = Some(mutex.inner.lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
        guard.inner = None;
        let _relock = Relock(guard);
        work()
    }

    /// Has `wait` give the lock back and take it again.
    pub(crate) fn without<R>(
        &mut self,
        wait: impl FnOnce(sync::MutexGuard<'a, T>) -> (sync::MutexGuard<'a, T>, R),
    ) -> R {
        let inner = self.inner.take().expect("the caller has the guard, so the lock is held");
        let (inner, result) = wait(inner);
        self.inner = Some(inner);
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        debug_assert!(self.inner.is_some());
        // SAFETY: the caller has the guard, so no method runs that has it alone. Those return, or
        // unwind, only with the lock: a wait does not panic, and `Relock` takes it again.
        unsafe { self.inner.as_ref().unwrap_unchecked() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        debug_assert!(self.inner.is_some());
        // SAFETY: as for `deref`.
        unsafe { self.inner.as_mut().unwrap_unchecked() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
