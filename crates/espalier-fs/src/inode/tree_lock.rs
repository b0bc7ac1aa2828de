//! The tree lock: keys stay what they are while it is held.
//!
//! Operations that use keys hold it shared. Operations that move directories, or need one instant of
//! a whole tree, hold it exclusively. Each move of a directory counts the *epoch* up before and after
//! the move: a read that took keys without the lock compares epochs, and a content prefix that a node
//! remembers is good for one epoch only.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(crate) struct TreeLock {
    lock: RwLock<()>,
    epoch: AtomicU64,
}

/// Proof that the tree lock is held.
pub(crate) struct TreeGuard<'a> {
    /// Counts moves of directories; names the set of keys that holds while the guard lives.
    pub(crate) epoch: u64,
    /// Counted up when a move ends.
    moving: Option<&'a AtomicU64>,
    _mode: Mode<'a>,
}

#[allow(dead_code, reason = "the guards are held, not read")]
enum Mode<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Exclusive(RwLockWriteGuard<'a, ()>),
}

impl TreeLock {
    /// Counts moves of directories.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Keeps keys as they are.
    pub(crate) fn shared(&self) -> TreeGuard<'_> {
        let mode = Mode::Shared(self.lock.read());
        TreeGuard { epoch: self.epoch(), moving: None, _mode: mode }
    }

    /// As [`TreeLock::shared`], for code that may run inside an operation that holds the lock.
    pub(crate) fn shared_again(&self) -> TreeGuard<'_> {
        let mode = Mode::Shared(self.lock.read_recursive());
        TreeGuard { epoch: self.epoch(), moving: None, _mode: mode }
    }

    /// Excludes all other operations; directories stay where they are.
    pub(crate) fn exclusive(&self) -> TreeGuard<'_> {
        let mode = Mode::Exclusive(self.lock.write());
        TreeGuard { epoch: self.epoch(), moving: None, _mode: mode }
    }

    /// Excludes all other operations while directories move. Reads without lock see the first step
    /// of the epoch; the second one, when the guard is dropped, keeps what is computed during the
    /// move from being taken for what holds afterwards.
    pub(crate) fn exclusive_for_move(&self) -> TreeGuard<'_> {
        let mode = Mode::Exclusive(self.lock.write());
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        TreeGuard { epoch, moving: Some(&self.epoch), _mode: mode }
    }
}

impl Drop for TreeGuard<'_> {
    fn drop(&mut self) {
        if let Some(epoch) = self.moving {
            epoch.fetch_add(1, Ordering::AcqRel);
        }
    }
}
