//! The lock hierarchy, asserted in debug builds.
//!
//! Each lock has a rank. A thread takes locks in the order of their ranks; those of one rank in the
//! order of their keys, where they have one. Debug builds keep the ranks that a thread holds in a
//! thread-local list, and assert the order whenever a lock is taken. Release builds do nothing.

use espalier_sync::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// The ranks, in the order in which the locks are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// A snapshot is being made.
    Snapshot,
    /// The tree lock: shared by operations that use keys, exclusive for those that move
    /// directories.
    Tree,
    /// Renames across directories.
    Renames,
    /// The names of a directory: ancestors first, the link area last.
    Names,
    /// The state of a node, by ascending id.
    State,
    /// Inode numbers.
    Numbers,
    /// The key length bound.
    KeyLengths,
    /// Tables that are held for a moment, while a shard of the node table may be locked.
    Table,
    /// A shard of the node table.
    NodeShard,
}

/// A lock that is held, until it is dropped.
#[must_use]
pub(crate) struct Held(#[cfg(debug_assertions)] (Rank, u64));

impl Held {
    /// A lock of `rank` is about to be taken; in debug builds asserts that no lock is held that has
    /// to be taken later. `key`: its place among locks of its rank, or 0.
    #[inline]
    pub(crate) fn acquire(rank: Rank, key: u64) -> Self {
        #[cfg(debug_assertions)]
        return debug::acquire(rank, key);
        #[cfg(not(debug_assertions))]
        {
            let _ = (rank, key);
            Self()
        }
    }

    /// A lock is about to be taken in a way that cannot wait for another holder.
    #[inline]
    pub(crate) fn acquire_without_waiting(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        return debug::push(rank, 0);
        #[cfg(not(debug_assertions))]
        {
            let _ = rank;
            Self()
        }
    }
}

#[cfg(debug_assertions)]
mod debug {
    use super::{Held, Rank};
    use std::cell::RefCell;

    thread_local! {
        static HELD: RefCell<Vec<(Rank, u64)>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn acquire(rank: Rank, key: u64) -> Held {
        HELD.with_borrow(|held| {
            for &(other, other_key) in held {
                let in_order = other < rank || (other == rank && (other_key < key || key == 0));
                assert!(
                    in_order,
                    "lock {rank:?} {key} is taken while {other:?} {other_key} is held; all held: {held:?}"
                );
            }
        });
        push(rank, key)
    }

    pub(super) fn push(rank: Rank, key: u64) -> Held {
        HELD.with_borrow_mut(|held| held.push((rank, key)));
        Held((rank, key))
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // A guard may be dropped while the thread's locals are destroyed.
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|other| *other == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

/// A mutex with a rank.
pub(crate) struct RankedMutex<T> {
    rank: Rank,
    key: u64,
    inner: Mutex<T>,
}

impl<T> RankedMutex<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self::with_key(rank, 0, value)
    }

    /// `key`: the place of the lock among those of its rank.
    pub(crate) fn with_key(rank: Rank, key: u64, value: T) -> Self {
        Self { rank, key, inner: Mutex::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        let held = Held::acquire(self.rank, self.key);
        RankedGuard { guard: self.inner.lock(), _held: held }
    }

    pub(crate) fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        let guard = self.inner.try_lock()?;
        Some(RankedGuard { guard, _held: Held::acquire_without_waiting(self.rank) })
    }
}

/// A locked [`RankedMutex`].
pub(crate) struct RankedGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions))]
mod tests;
