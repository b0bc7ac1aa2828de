//! The tree lock: keys stay what they are while it is held.
//!
//! Operations that use keys hold it shared. Operations that move directories, or need one instant
//! of a whole tree, hold it exclusively. Each move of a directory counts the *epoch* up before and
//! after the move: a read that took keys without the lock compares epochs, and a content prefix
//! that a node remembers is good for one epoch only.
//!
//! The kernel keeps attributes, and derives from most calls how they change. An operation that
//! changes attributes in another way leaves a [`Notice`] in its guard: set-id bits that a write
//! takes away, the time of the last read of a file that is copied from, link counts of names
//! outside a tree that is removed. Invariant: the mount gets the notice after the operation has
//! released its locks, and before the operation returns. So the kernel does not use the old
//! attributes once a caller has its answer.

use crate::lock_order::{self, Rank};
use crate::model::types::{NodeId, Notice, NoticeWatch};
use espalier_sync::{OwnedGuard, RwLock, SharedGuard, SharedLock};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(crate) struct TreeLock {
    lock: SharedLock,
    epoch: AtomicU64,
    watch: RwLock<Option<NoticeWatch>>,
}

/// Proof that the tree lock is held.
pub(crate) struct TreeGuard<'a> {
    /// Counts moves of directories; names the set of keys that holds while the guard lives.
    pub(crate) epoch: u64,
    /// Counted up when a move ends.
    moving: Option<&'a AtomicU64>,
    _mode: Mode<'a>,
    _order: lock_order::Held,
    /// Declared after the lock, which is released first.
    notices: Notices<'a>,
}

/// What the kernel is to be told of an operation; the mount gets it on drop.
struct Notices<'a> {
    all: RefCell<Vec<Notice>>,
    watch: &'a RwLock<Option<NoticeWatch>>,
}

#[allow(dead_code, reason = "the guards are held, not read")]
enum Mode<'a> {
    Shared(SharedGuard<'a>),
    Exclusive(OwnedGuard<'a>),
}

impl TreeLock {
    /// Counts moves of directories.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Keeps keys as they are.
    pub(crate) fn shared(&self) -> TreeGuard<'_> {
        let order = lock_order::Held::acquire(Rank::Tree, 1);
        let mode = Mode::Shared(self.lock.share());
        self.guard(self.epoch(), None, mode, order)
    }

    /// As [`TreeLock::shared`], for code that may run inside an operation that holds the lock.
    pub(crate) fn shared_again(&self) -> TreeGuard<'_> {
        // Waits for no thread if the operation holds the lock.
        let order = lock_order::Held::acquire_without_waiting(Rank::Tree);
        let mode = Mode::Shared(self.lock.share_again());
        self.guard(self.epoch(), None, mode, order)
    }

    /// Excludes all other operations; directories stay where they are.
    pub(crate) fn exclusive(&self) -> TreeGuard<'_> {
        let order = lock_order::Held::acquire(Rank::Tree, 1);
        let mode = Mode::Exclusive(self.lock.own());
        self.guard(self.epoch(), None, mode, order)
    }

    /// Excludes all other operations while directories move. Reads without lock see the first step
    /// of the epoch; the second one, when the guard is dropped, keeps what is computed during the
    /// move from being taken for what holds afterwards.
    pub(crate) fn exclusive_for_move(&self) -> TreeGuard<'_> {
        let order = lock_order::Held::acquire(Rank::Tree, 1);
        let mode = Mode::Exclusive(self.lock.own());
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        self.guard(epoch, Some(&self.epoch), mode, order)
    }

    fn guard<'a>(
        &'a self,
        epoch: u64,
        moving: Option<&'a AtomicU64>,
        mode: Mode<'a>,
        order: lock_order::Held,
    ) -> TreeGuard<'a> {
        let notices = Notices { all: RefCell::default(), watch: &self.watch };
        TreeGuard { epoch, moving, _mode: mode, _order: order, notices }
    }

    /// From now on `watch` gets the notices of all operations.
    pub(crate) fn watch_notices(&self, watch: NoticeWatch) {
        *self.watch.write() = Some(watch);
    }
}

impl TreeGuard<'_> {
    /// The operation changed attributes of `node`, and the kernel does not derive that from the
    /// call. For the outermost guard of an operation.
    pub(crate) fn changed_unasked(&self, node: NodeId) {
        self.notice(Notice::Attributes(node));
    }

    /// The mount gets `notice` when the guard is dropped. For the outermost guard of an operation.
    pub(crate) fn notice(&self, notice: Notice) {
        self.notices.all.borrow_mut().push(notice);
    }
}

impl Notices<'_> {
    fn deliver(&mut self) {
        if let Some(watch) = self.watch.read().clone() {
            self.all.take().into_iter().for_each(|notice| watch(notice));
        }
    }
}

impl Drop for Notices<'_> {
    fn drop(&mut self) {
        if !self.all.get_mut().is_empty() {
            self.deliver();
        }
    }
}

impl Drop for TreeGuard<'_> {
    fn drop(&mut self) {
        if let Some(epoch) = self.moving {
            epoch.fetch_add(1, Ordering::AcqRel);
        }
    }
}
