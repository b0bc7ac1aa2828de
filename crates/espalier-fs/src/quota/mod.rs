//! Limits on the space of trees: charging of calls, counting, and setting.
//!
//! `docs/design/quota.md` has the argument. A call that adds something passes [`Quotas`] before it
//! takes a lock; a count makes a checkpoint, so it cannot be made under the locks of a call.

mod count;
pub(crate) mod growth;
mod set;

use crate::inode::limits::{Charge, Growth, KeptApart, LastCount, LimitedTree, Limits, WriteKind};
use crate::inode::node::Node;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::types::*;
use crate::namespace::context::Namespace;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// After a tree was found to be full, and nothing of it was given up, it is not counted again for
/// so many times the time that counting took.
const REST_PER_COUNT: u32 = 10;
/// That time is no less, and no more.
const REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Before a call is refused what was removed is made to count no longer, for no more than this.
const SETTLES_FOR: Duration = Duration::from_millis(500);
/// What is shown of a tree is no older.
const SHOWN_AGE: Duration = Duration::from_secs(1);

/// In the background trees are counted for so long at a time,
const COUNTS_FOR: Duration = Duration::from_millis(100);
/// and again if the last count is as old.
const COUNTED_AGE: Duration = Duration::from_secs(60);

/// See the [module](self).
pub(crate) struct Quotas {
    pub(crate) namespace: Arc<Namespace>,
}

impl Quotas {
    /// The limited trees that a node lies in, if there are some.
    #[inline]
    pub(crate) fn limits_of(&self, node: NodeId) -> Option<Limits> {
        if self.namespace.nodes_are_limited() { self.find_limits_of(node) } else { None }
    }

    fn find_limits_of(&self, node: NodeId) -> Option<Limits> {
        self.namespace.nodes.get(node)?.limits(self.namespace.tree.epoch())
    }

    /// Carries out a call that makes a node hold more, unless a limit forbids it.
    ///
    /// # Errors
    /// [`FsErrorKind::QuotaExceeded`]; of the call.
    #[inline]
    pub(crate) fn grow<T>(
        &self,
        node: NodeId,
        growth: impl FnOnce() -> Growth,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !self.namespace.nodes_are_limited() {
            return call();
        }
        self.write(node, growth, || WriteKind::Add, call)
    }

    /// The same for a call that writes, `what` being asked when the tree is full.
    #[inline]
    pub(crate) fn write<T>(
        &self,
        node: NodeId,
        growth: impl FnOnce() -> Growth,
        what: impl Fn() -> WriteKind,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !self.namespace.nodes_are_limited() {
            return call();
        }
        let epoch = self.namespace.tree.epoch();
        let limits = self.find_limits_of(node);
        let charge = match &limits {
            None => Charge::default(),
            Some(limits) => match growth() {
                // It was charged before.
                growth if growth == Growth::default() => Charge::default(),
                growth => self.check(charge_of(limits, growth), &what)?,
            },
        };
        let done = charge.end(call())?;
        if self.namespace.tree.epoch() != epoch {
            self.note_moved(node, limits.as_ref());
        }
        Ok(done)
    }

    /// Carries out a call that makes `target` share what `source` has, if it can (else `None`),
    /// unless a limit forbids it.
    ///
    /// # Errors
    /// [`FsErrorKind::QuotaExceeded`]; of the call.
    pub(crate) fn copy<T>(
        &self,
        source: NodeId,
        target: NodeId,
        call: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if !self.namespace.nodes_are_limited() {
            return call();
        }
        let epoch = self.namespace.tree.epoch();
        let limits = self.find_limits_of(target);
        let charge = match &limits {
            None => Charge::default(),
            Some(limits) => self.charge_file_copy(source, limits)?,
        };
        let Some(result) = call().transpose() else { return Ok(None) };
        let done = charge.end(result)?;
        if self.namespace.tree.epoch() != epoch {
            self.note_moved(target, limits.as_ref());
        }
        Ok(Some(done))
    }

    /// A node that was charged to the trees `before` may have come to others during the call: what
    /// these were charged then did not include it.
    #[cold]
    fn note_moved(&self, node: NodeId, before: Option<&Limits>) {
        let is_new =
            |tree: &&Arc<LimitedTree>| !before.into_iter().flat_map(|l| l.iter()).any(|b| b.ino == tree.ino);
        let now = self.find_limits_of(node);
        now.iter().flat_map(|limits| limits.iter()).filter(is_new).for_each(|tree| tree.count_next());
    }

    /// Carries out a call that changes something of a node and is never refused. What it may make
    /// the node hold counts for the next call that adds something.
    #[inline]
    pub(crate) fn change<T>(
        &self,
        node: NodeId,
        growth: impl FnOnce() -> Growth,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match self.limits_of(node) {
            None => call(),
            Some(limits) => charge_of(&limits, growth()).end(call()),
        }
    }

    /// Carries out a call that gives up something of a node, at the cost of what it changes.
    #[inline]
    pub(crate) fn shrink<T>(
        &self,
        node: NodeId,
        growth: impl FnOnce() -> Growth,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(limits) = self.limits_of(node) else { return call() };
        let result = charge_of(&limits, growth()).end(call());
        limits.iter().for_each(|tree| tree.note_freed());
        result
    }

    /// Charges all trees that a node lies in.
    fn charge_all(&self, limits: &Limits, growth: Growth) -> Result<Charge> {
        self.check_added(charge_of(limits, growth))
    }

    /// Refuses a charge of a call that adds something, if there is no room for it.
    fn check_added(&self, charge: Charge) -> Result<Charge> {
        self.check(charge, &|| WriteKind::Add)
    }

    /// Refuses a charge for which there is no room.
    fn check(&self, charge: Charge, what: &dyn Fn() -> WriteKind) -> Result<Charge> {
        let epoch = self.namespace.tree.epoch();
        for tree in charge.trees() {
            self.keep_apart(tree, epoch);
            if !tree.has_room(WriteKind::Add) {
                let what = what();
                if what == WriteKind::Add || !tree.has_room(what) {
                    self.find_room(tree, what)?;
                }
            }
        }
        Ok(charge)
    }

    /// Counts a tree that may be full.
    fn find_room(&self, tree: &LimitedTree, what: WriteKind) -> Result<()> {
        let mut last = tree.counting.lock();
        if tree.has_room(what) {
            // Another call has counted it meanwhile.
            return Ok(());
        }
        let env = &self.namespace.volume.env;
        let has_freed = tree.take_freed();
        let (least, most) = REST;
        let rest = (last.took * REST_PER_COUNT).clamp(least, most);
        let kept = tree.kept.load(Ordering::Acquire);
        let is_same = last.is_full && !has_freed && last.kept == kept && !tree.fits(what);
        let begun = env.monotonic();
        if is_same && begun.saturating_sub(last.ended) < rest {
            return full(tree);
        }
        let is_unsettled = self.count(tree)?;
        if !tree.fits(what) && (has_freed || is_unsettled) {
            self.settle(tree)?;
            self.count(tree)?;
        }
        let (ended, is_full) = (env.monotonic(), !tree.fits(WriteKind::Add));
        *last = LastCount { ended, took: ended.saturating_sub(begun), is_full, kept };
        if tree.fits(what) { Ok(()) } else { full(tree) }
    }

    /// What a tree holds, not older than a moment.
    fn look(&self, tree: &LimitedTree) -> Result<TreeQuota> {
        let mut last = tree.counting.lock();
        let env = &self.namespace.volume.env;
        let now = env.monotonic();
        let has_freed = tree.take_freed();
        if !tree.is_known() || has_freed || now.saturating_sub(last.ended) >= SHOWN_AGE {
            if self.count(tree)? || has_freed {
                self.settle(tree)?;
                self.count(tree)?;
            }
            let ended = env.monotonic();
            let took = ended.saturating_sub(now);
            *last = LastCount { ended, took, is_full: false, kept: last.kept };
        }
        let limits = tree.limits();
        let total = limits.total.map(|_| tree.total.bound());
        Ok(TreeQuota { limits, exclusive: tree.exclusive.bound(), total })
    }

    /// The room that the limits above a node leave, as a limit and what is free of it, in bytes.
    pub(crate) fn room(&self, node: NodeId) -> Result<Option<(u64, u64)>> {
        if self.namespace.volume.options.read_only {
            return Ok(None);
        }
        let Some(limits) = self.limits_of(node) else { return Ok(None) };
        let mut least: Option<(u64, u64)> = None;
        for tree in limits.iter() {
            let TreeQuota { limits, exclusive, total } = self.look(tree)?;
            let both = [(limits.exclusive, Some(exclusive)), (limits.total, total)];
            for (limit, used) in both.into_iter().filter_map(|(limit, used)| limit.zip(used)) {
                let free = limit.saturating_sub(used);
                least = Some(least.filter(|(_, least)| *least <= free).unwrap_or((limit, free)));
            }
        }
        Ok(least)
    }

    /// Has the store keep the values of a tree apart from others, where the tree is now.
    fn keep_apart(&self, tree: &LimitedTree, epoch: u64) {
        if tree.told.load(Ordering::Acquire) == epoch {
            return;
        }
        let volume = &self.namespace.volume;
        let guard = self.namespace.tree.shared();
        let is_top = |node: &Arc<Node>| node.is_dir() && node.ino == tree.ino && !node.is_removed();
        if let Some(top) = self.members(tree).into_iter().find(is_top) {
            let prefix = top.content_prefix(guard.epoch);
            let mut apart = tree.apart.lock();
            match &*apart {
                Some(apart) => apart.set(volume.data(), &prefix),
                None => *apart = Some(KeptApart::new(&volume.store, tree.ino, volume.data(), &prefix)),
            }
            tree.told.store(guard.epoch, Ordering::Release);
        }
    }

    /// Counts trees of which nothing is known yet, so that no call has to wait for that, and those
    /// that were charged since they were last counted and not counted for a while: what comes to
    /// leaves later may make more their own than calls were charged. Takes a moment at most.
    pub(crate) fn count_some(&self) -> Result<()> {
        if self.namespace.volume.options.read_only || !self.namespace.nodes_are_limited() {
            return Ok(());
        }
        let env = &self.namespace.volume.env;
        let end = env.monotonic() + COUNTS_FOR;
        for tree in self.namespace.orphans.area.limit_table.trees() {
            let now = env.monotonic();
            if now >= end {
                break;
            }
            // One that is held is being counted.
            let Some(mut last) = tree.counting.try_lock() else { continue };
            let kept = tree.kept.load(Ordering::Acquire);
            let is_old = kept != last.kept && now.saturating_sub(last.ended) >= COUNTED_AGE;
            if tree.limits() != TreeLimits::default() && (!tree.is_known() || is_old) {
                self.count(&tree)?;
                let ended = env.monotonic();
                let took = ended.saturating_sub(now);
                *last = LastCount { ended, took, is_full: false, kept };
            }
        }
        Ok(())
    }

    /// The nodes in memory that count for a tree.
    fn members(&self, tree: &LimitedTree) -> Vec<Arc<Node>> {
        let mut nodes = Vec::new();
        for (serial, id) in tree.members() {
            match self.namespace.nodes.get(id).filter(|node| node.serial == serial) {
                Some(node) => nodes.push(node),
                None => tree.remove_member(serial),
            }
        }
        nodes
    }
}

/// What all trees that a node lies in are charged.
fn charge_of(limits: &Limits, growth: Growth) -> Charge {
    let mut charge = Charge::default();
    limits.iter().for_each(|tree| charge.add(tree, growth));
    charge
}

fn full<T>(tree: &LimitedTree) -> Result<T> {
    let TreeLimits { exclusive, total } = tree.limits();
    let limit = exclusive.or(total).unwrap_or(0);
    fail(FsErrorKind::QuotaExceeded, format!("a directory above may hold {limit} bytes and no more"))
}

#[cfg(test)]
mod tests;
