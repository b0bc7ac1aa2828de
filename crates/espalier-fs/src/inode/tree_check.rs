//! Whether a caller may use a whole tree, decided without holding up other operations.
//!
//! Everything in and below the directory has to be the caller's own, or the caller is root, and no
//! flag forbids the change. Marks say so under the lock under which the call is carried out, or a
//! walk before does, which nothing has spoiled since ([`crate::inode::ownership`]).
//!
//! A walk that is spoiled is made again, but never under a lock, and only [`WALKS_MAX`] times. What
//! spoiled it was an entry that is not the caller's alone, or not by its marks; so the call is
//! refused then as if a walk had met it. Removals go on entry by entry then, which ends however
//! often the tree changes.

use crate::inode::node::Node;
use crate::inode::ownership::{ActiveWalk, ActiveWalks, OwnershipMarks};
use crate::inode::ownership_walk::{OwnershipWalk, WalkResult};
use crate::model::error::{FsError, FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::types::*;
use crate::volume::tree_lock::TreeGuard;
use std::sync::Arc;

/// Walks that one call makes at most, the last one included that an operation spoils.
const WALKS_MAX: usize = 3;

/// What a caller is about to do with a whole tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeUse {
    /// To copy it or to compare it, which root may do with all.
    Read,
    /// To change or to remove it, which root may do where no flag forbids it.
    Change,
}

/// The answer to whether a tree is the caller's to use, as far as it is known.
pub(crate) struct TreeCheck<'a> {
    marks: &'a OwnershipMarks,
    caller: &'a Caller,
    usage: TreeUse,
    verified: Option<VerifiedTree<'a>>,
    walks: usize,
}

/// What a walk found out without locks.
struct VerifiedTree<'a> {
    walks: &'a ActiveWalks,
    walk: Arc<ActiveWalk>,
    found: Result<WalkResult>,
}

impl Drop for VerifiedTree<'_> {
    fn drop(&mut self) {
        self.walks.remove(&self.walk);
    }
}

impl<'a> VerifiedTree<'a> {
    /// A walk that is about to begin. The caller holds the exclusive tree lock.
    fn begin(walks: &'a ActiveWalks, top: &Arc<Node>, caller: &Caller) -> Self {
        Self { walks, walk: walks.add(top, caller.uid), found: Ok(WalkResult::default()) }
    }

    /// What the walk says of everything in and below `node`, if it was made for that node, and
    /// nothing spoiled it. A refusal is never spoiled: it was right at a moment of the call.
    fn answer(&self, node: &Node, caller: &Caller) -> Option<&Result<WalkResult>> {
        let is_right = self.found.is_err() || !self.walk.is_spoiled();
        (self.walk.top.id == node.id && self.walk.uid == caller.uid && is_right).then_some(&self.found)
    }
}

impl<'a> TreeCheck<'a> {
    pub(crate) fn new(marks: &'a OwnershipMarks, caller: &'a Caller, usage: TreeUse) -> Self {
        Self { marks, caller, usage, verified: None, walks: 0 }
    }

    /// Takes the tree lock by `lock` when [`TreeCheck::check`] has an answer of `node` under it.
    /// Called without locks.
    ///
    /// # Errors
    /// Of the store.
    pub(crate) fn lock_for<'t>(
        &mut self,
        node: &Arc<Node>,
        lock: impl Fn() -> TreeGuard<'t>,
    ) -> Result<TreeGuard<'t>> {
        loop {
            let tree = lock();
            if self.is_ready(node, &tree) {
                return Ok(tree);
            }
            drop(tree);
            self.walk(node)?;
        }
    }

    /// True if [`TreeCheck::check`] has an answer of `node` under the lock that is held. Otherwise
    /// the caller releases its locks, and has the tree walked.
    pub(crate) fn is_ready(&self, node: &Arc<Node>, tree: &TreeGuard<'_>) -> bool {
        self.walks >= WALKS_MAX
            || self.is_free()
            // What the object itself contradicts is found again.
            || self.marks.is_known_owned(node, tree, self.caller).unwrap_or(true)
            || self.answer(node).is_some()
            || node.is_removed()
    }

    /// Walks over the tree, without holding up other operations. Called without locks.
    ///
    /// # Errors
    /// Of the store.
    pub(crate) fn walk(&mut self, node: &Arc<Node>) -> Result<()> {
        self.walks += 1;
        self.verified = None;
        let (walk, mut verified) = {
            let tree = self.marks.tree.exclusive();
            let walk = OwnershipWalk::new(&self.marks.volume, node, &tree, self.caller)?;
            (walk, VerifiedTree::begin(&self.marks.walks, node, self.caller))
        };
        verified.found = walk.run();
        self.verified = Some(verified);
        Ok(())
    }

    /// True if the caller is root, and no flag can forbid the use of any tree.
    fn is_free(&self) -> bool {
        let may_be_protected = || self.marks.state_record.may_have(FileFlags::PROTECTION);
        self.caller.uid == 0 && (self.usage == TreeUse::Read || !may_be_protected())
    }

    fn answer(&self, node: &Node) -> Option<&Result<WalkResult>> {
        self.verified.as_ref().and_then(|verified| verified.answer(node, self.caller))
    }

    /// Refuses unless everything in and below `node` is the caller's to use. The caller holds the
    /// tree lock.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`], with the first path that is not the caller's to use, or if
    /// operations kept spoiling the walks; [`FsErrorKind::NotFound`] if the directory was removed
    /// empty, or the tree was removed and bears no mark.
    pub(crate) fn check(&self, node: &Arc<Node>, tree: &TreeGuard<'_>) -> Result<()> {
        node.check_has_place()?;
        if self.is_free() || self.marks.is_known_owned(node, tree, self.caller)? {
            return Ok(());
        }
        match self.answer(node) {
            Some(found) => found.as_ref().map(|_| ()).map_err(FsError::clone),
            None if node.is_removed() => fail(FsErrorKind::NotFound, "the directory was removed"),
            None => {
                let path = layout::show(&node.path());
                let reason = "was changed again and again while its owners were looked at";
                fail(FsErrorKind::Permission, format!("{path} {reason}"))
            }
        }
    }

    /// Gives a tree its marks back if a walk has verified it. The caller holds the exclusive tree
    /// lock and no states.
    ///
    /// # Errors
    /// Of the store.
    pub(crate) fn restore_marks(&self, node: &Arc<Node>, tree: &TreeGuard<'_>) -> Result<()> {
        match self.answer(node) {
            Some(Ok(found)) if node.is_dir() => self.marks.restore(node, tree, self.caller, found),
            _ => Ok(()),
        }
    }
}
