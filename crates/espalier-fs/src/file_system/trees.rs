//! Public calls on whole trees and snapshots.

use crate::file_system::FileSystem;
use crate::inode::tree_check::{TreeCheck, TreeUse};
use crate::model::access::Judge;
use crate::model::error::Result;
use crate::model::layout;
use crate::model::types::*;
use crate::namespace::create::Maker;
use crate::quota::growth;
use crate::snapshot::volume::{SnapshotInfo, open_options, snapshots};
use crate::tree_ops::changes::{self, ChangedPaths};
use crate::tree_ops::diff::{Recall, TreeDiff};
use crate::tree_ops::list::TreeEntry;
use crate::tree_ops::remove::{self, Remains};
use crate::tree_ops::{change, clone, diff, list, nodes_below, space};
use crate::volume::change_journal::{ChangeWaiter, Knowledge};
use std::sync::Arc;

/// Memory for names while the owner of a snapshot is checked.
const SNAPSHOT_CHECK_NAME_BYTES: u64 = 1 << 20;

impl FileSystem {
    /// Makes entry `name` in `parent` a clone of `source`, with everything below it: the same
    /// content, times, owners, modes and extended attributes, numbers of its own. Files with
    /// several names in the source have those names in the clone, and no others. The cost does not
    /// depend on the size.
    ///
    /// # Errors
    /// As for [`FileSystem::mkdir`]; [`FsErrorKind::NotFound`](crate::FsErrorKind::NotFound) if
    /// `source` was removed; [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the
    /// caller is not root, and something in the source is not the caller's own or has set-id bits
    /// or capabilities.
    pub fn clone_tree(&self, source: NodeId, parent: NodeId, name: &[u8], caller: &Caller) -> Result<Entry> {
        self.clone_tree_judged(source, parent, name, Maker { caller, judge: Judge::Kernel })
    }

    /// As [`FileSystem::clone_tree`].
    pub(crate) fn clone_tree_judged(
        &self,
        source: NodeId,
        parent: NodeId,
        name: &[u8],
        maker: Maker<'_>,
    ) -> Result<Entry> {
        let charge = self.quotas.charge_clone(source, parent)?;
        let call = clone::clone_tree(&self.names, &self.access_times, source, (parent, name), maker);
        self.names_settled(charge.end(call)?, &[parent])
    }

    /// Removes directory `name` of `parent` and everything below it. Files and directories in
    /// use there stay usable until their last reference goes. The cost does not depend on what is
    /// below, but for names of files with several names.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`](crate::FsErrorKind::NotFound),
    /// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory);
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the caller is not root, and
    /// something there is not the caller's own or has set-id bits or capabilities; of the store.
    pub fn remove_tree(&self, parent: NodeId, name: &[u8], caller: &Caller) -> Result<()> {
        self.remove_tree_judged(parent, name, caller, Judge::Kernel).map(drop)
    }

    /// As [`FileSystem::remove_tree`]; returns the node of the directory.
    pub(crate) fn remove_tree_judged(
        &self,
        parent: NodeId,
        name: &[u8],
        caller: &Caller,
        judge: Judge<'_>,
    ) -> Result<NodeId> {
        self.take_tree_away((parent, name), Remains::Nothing, (caller, judge))
    }

    /// As [`FileSystem::remove_tree`], but an empty directory with the same attributes is in the
    /// place afterwards, so that the caller can remove that in the ordinary way, of which the
    /// kernel tells watchers. Returns the node that was there.
    ///
    /// # Errors
    /// As for [`FileSystem::remove_tree`].
    pub fn empty_tree(&self, parent: NodeId, name: &[u8], caller: &Caller) -> Result<NodeId> {
        self.take_tree_away((parent, name), Remains::EmptyDirectory, (caller, Judge::Kernel))
    }

    /// Removes a tree; returns the node that its top had.
    fn take_tree_away(
        &self,
        (parent, name): (NodeId, &[u8]),
        remains: Remains,
        by: (&Caller, Judge<'_>),
    ) -> Result<NodeId> {
        let call = || remove::remove_tree(&self.names, (parent, name), remains, by);
        let (old, _) =
            self.without_prefixes(parent, name, || self.quotas.shrink(parent, growth::attributes, call))?;
        self.names_settled(old, &[parent])
    }

    /// Changes owner and group of `node` and everything below, as `chown -R -h` does: set-id bits
    /// and capabilities of files go. The cost does not depend on what is below, but for names of
    /// files with several names. [`FileSystem::changed_nodes`] tells which nodes that concerned.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the caller is not root; of
    /// the store.
    pub fn chown_tree(&self, node: NodeId, change: OwnerChange, caller: &Caller) -> Result<()> {
        let call = || change::chown_tree(&self.names, node, change, caller);
        self.quotas.change(node, growth::attributes_of_tree, call)
    }

    /// Changes the modes of `node` and everything below but symbolic links, as `chmod -R` does.
    /// [`FileSystem::changed_nodes`] tells which nodes that concerned.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the caller is not root, and
    /// something there is not the caller's own or has set-id bits or capabilities; of the store.
    pub fn chmod_tree(&self, node: NodeId, change: ModeChange, caller: &Caller) -> Result<()> {
        let call = || change::chmod_tree(&self.names, node, change, caller);
        self.quotas.change(node, growth::attributes_of_tree, call)
    }

    /// The nodes whose attributes were changed by [`FileSystem::chown_tree`] and
    /// [`FileSystem::chmod_tree`] since this was last asked. Takes time for each node in memory,
    /// without keeping others from their work: the mount has a thread of its own tell the kernel.
    pub fn changed_nodes(&self) -> Vec<NodeId> {
        self.names.nodes.changed_nodes()
    }

    /// Names in removed trees that are still in use, each with its directory, what lies deeper
    /// first; at most `limit` of them. A kernel that keeps such a name for itself keeps the tree.
    pub fn names_in_removed_trees(&self, limit: usize) -> Vec<(NodeId, Arc<[u8]>)> {
        nodes_below::names_in_removed_trees(&self.names, limit)
    }

    /// From now on `watch` is called when more files and directories are in memory than
    /// [`OpenOptions::node_memory`] says: with locks held, so it only sees to it that
    /// [`FileSystem::surplus_nodes`] is called.
    pub fn watch_surplus(&self, watch: SurplusWatch) {
        self.names.nodes.watch_surplus(watch);
    }

    /// The files and directories that have been in memory for longest, beyond three quarters of
    /// those that there is memory for; what lies deeper first. Takes time for each that is in
    /// memory; the watch is not called before this was.
    pub fn surplus_nodes(&self) -> Vec<SurplusNode> {
        self.names.nodes.surplus()
    }

    /// The nodes in memory of a directory (or file) and everything below it, each file by whatever
    /// name it is known; `None` if there are more than `limit`, or it takes a look at many more
    /// names to find them.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`](crate::FsErrorKind::Stale); of the store.
    pub fn nodes_below(&self, node: NodeId, limit: usize) -> Result<Option<Vec<NodeId>>> {
        nodes_below::nodes_below(&self.names, node, limit)
    }

    /// Gives everything below directory `node`, in the order of keys, until `each` returns false.
    /// All of it is of one instant; times of the last read may be a few seconds older.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory); of the store.
    pub fn list_tree(&self, node: NodeId, each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> Result<()> {
        list::list_tree(&self.names, node, each)
    }

    /// Begins to compare directory `old` of `before` (this file system or a snapshot of it) with
    /// directory `node`.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory);
    /// [`FsErrorKind::NotFound`](crate::FsErrorKind::NotFound) if one was removed;
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the caller is not root, and
    /// not all of both is the caller's own; of the store.
    pub fn diff_trees(
        &self,
        before: &FileSystem,
        old: NodeId,
        node: NodeId,
        caller: &Caller,
    ) -> Result<TreeDiff> {
        diff::diff_trees((&before.names, old), (&self.names, node), caller, Recall::Never)
    }

    /// As [`FileSystem::diff_trees`]; but if the same two directories were compared by this call
    /// before, and neither was changed since, the answer may be that of the earlier comparison.
    ///
    /// # Errors
    /// As for [`FileSystem::diff_trees`].
    pub fn diff_trees_again(
        &self,
        before: &FileSystem,
        old: NodeId,
        node: NodeId,
        caller: &Caller,
    ) -> Result<TreeDiff> {
        diff::diff_trees((&before.names, old), (&self.names, node), caller, Recall::Unchanged)
    }

    /// Tells what was changed below directory `node` since `token` was given out with another
    /// answer, in time that grows with what was changed. Files that were changed during the last
    /// second may be told again. Any other token, like an empty one, is answered with "everything";
    /// so is the first question about a directory after the volume was opened, and the second.
    /// A token stays good in a clone of the directory, and when the directory moves, for a reader
    /// that keeps what it knows in the directory, as git its index.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory);
    /// [`FsErrorKind::ReadOnly`](crate::FsErrorKind::ReadOnly);
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the caller is not root, and
    /// not everything in it is the caller's own; of the store.
    pub fn changed_paths(&self, node: NodeId, token: &[u8], caller: &Caller) -> Result<ChangedPaths> {
        changes::changed_paths(&self.names, node, (token, Knowledge::OfTree), caller, None)
    }

    /// As [`FileSystem::changed_paths`], for a reader that knows a place and not a tree: a token is
    /// no longer good when what was there has gone, wherever it is now. If there is nothing to tell
    /// (no paths, and not "everything"), `waiter` is woken once by the next change there, and
    /// perhaps by another one: so the caller asks again then. The file system does not keep the
    /// waiter.
    ///
    /// # Errors
    /// As for [`FileSystem::changed_paths`].
    pub(crate) fn changed_at_place(
        &self,
        node: NodeId,
        token: &[u8],
        caller: &Caller,
        waiter: Option<&Arc<dyn ChangeWaiter>>,
    ) -> Result<ChangedPaths> {
        changes::changed_paths(&self.names, node, (token, Knowledge::OfPlace), caller, waiter)
    }

    /// How much space a tree takes in the store, in bytes, and how much of it nothing else shares.
    /// Counts whole pieces, after compression; what is small is rounded up.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`](crate::FsErrorKind::Stale); of the store.
    pub fn space_of_tree(&self, node: NodeId) -> Result<(u64, u64)> {
        space::space_of_tree(&self.names, node)
    }

    /// How many bytes of the store a tree takes that nothing else shares, as they were at most two
    /// seconds ago. Takes time for what is not shared.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) unless the caller is root or
    /// owns the top of the tree; [`FsErrorKind::Stale`](crate::FsErrorKind::Stale); of the store.
    pub fn exclusive_space_of_tree(&self, node: NodeId, caller: &Caller) -> Result<u64> {
        space::exclusive_space_of_tree(&self.names, node, caller)
    }

    /// The limits of directory `node`; `None` if it has none of its own.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory).
    pub fn tree_limits(&self, node: NodeId) -> Result<Option<TreeLimits>> {
        Ok(self.names.nodes.dir(node)?.limited_tree().map(|tree| tree.limits()))
    }

    /// The limits of directory `node` and what it holds; `None` if it has none of its own. For its
    /// owner and root. What it holds may be a second old.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory);
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) for other callers; of the store.
    pub fn quota(&self, node: NodeId, caller: &Caller) -> Result<Option<TreeQuota>> {
        self.quotas.show(node, caller)
    }

    /// Gives directory `node` limits on what it holds with everything below, in place of those that
    /// it had, or takes them away. Calls that would go beyond a limit fail with
    /// [`FsErrorKind::QuotaExceeded`](crate::FsErrorKind::QuotaExceeded). Clones and snapshots of
    /// the directory have limits of their own. `is_administrator`: the caller is the user of the
    /// mount.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory);
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) unless the caller is root, or an
    /// administrator, or owns the directory and the one above;
    /// [`FsErrorKind::Unsupported`](crate::FsErrorKind::Unsupported) if files with several names
    /// below lie in a link area outside; of the store.
    pub fn set_quota(
        &self,
        node: NodeId,
        limits: Option<TreeLimits>,
        caller: &Caller,
        is_administrator: bool,
    ) -> Result<()> {
        self.quotas.set(node, limits, (caller, is_administrator))
    }

    /// Makes a snapshot of this volume. What every call that returned has done is in it. Durable
    /// when it returns.
    ///
    /// # Errors
    /// As for [`create_snapshot`](crate::create_snapshot).
    pub fn snapshot(&self, name: &str, writable: bool) -> Result<()> {
        self.snapshots.create(name, writable)
    }

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// As for [`delete_snapshot`](crate::delete_snapshot).
    pub fn snapshot_delete(&self, name: &str) -> Result<()> {
        self.snapshots.delete(name)
    }

    /// The snapshots of the store that this volume lies in.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        snapshots(&self.volume.store)
    }

    /// A snapshot as a file system of its own that cannot be changed. Its numbers differ from those
    /// of all other volumes (with the probability of clones), and are the same whenever it is
    /// opened.
    ///
    /// # Errors
    /// As for [`FileSystem::open`].
    pub fn open_snapshot(&self, snapshot: &SnapshotInfo, name_memory: u64) -> Result<Arc<Self>> {
        let options = open_options(snapshot, name_memory);
        Self::open(self.volume.store.clone(), self.volume.env.clone(), options)
    }

    /// As [`FileSystem::open_snapshot`], of a snapshot that another server had open until now and
    /// handed over by `state`.
    ///
    /// # Errors
    /// As for [`FileSystem::open_handed_over`].
    pub fn open_snapshot_handed_over(
        &self,
        snapshot: &SnapshotInfo,
        name_memory: u64,
        state: &[u8],
    ) -> Result<Arc<Self>> {
        let options = open_options(snapshot, name_memory);
        Self::open_handed_over(self.volume.store.clone(), self.volume.env.clone(), options, state)
    }

    /// Makes a snapshot of directory `dir` with everything below. What every call that returned has
    /// done is in it. Durable when it returns. The cost does not depend on the size.
    ///
    /// # Errors
    /// As for [`create_snapshot`](crate::create_snapshot) and [`FileSystem::clone_tree`].
    pub fn snapshot_tree(&self, dir: NodeId, name: &str, writable: bool, caller: &Caller) -> Result<()> {
        self.snapshots.create_of_tree(dir, name, writable, caller)
    }

    /// The snapshots of directory `dir`, oldest first; of the root those of the whole volume.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`](crate::FsErrorKind::Stale),
    /// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory).
    pub fn snapshots_of(&self, dir: NodeId) -> Result<Vec<SnapshotInfo>> {
        self.snapshots.of_tree(dir)
    }

    /// The snapshot `name` of directory `dir`, as [`FileSystem::snapshots_of`] lists them;
    /// `NUMBER/NAME` names one of any directory.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`](crate::FsErrorKind::NotFound); as for
    /// [`FileSystem::snapshots_of`].
    pub fn snapshot_of(&self, dir: NodeId, name: &str) -> Result<SnapshotInfo> {
        self.snapshots.find(dir, name)
    }

    /// Deletes a snapshot of directory `dir`. Durable when it returns; the space comes back soon
    /// afterwards.
    ///
    /// # Errors
    /// As for [`FileSystem::snapshot_of`];
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) unless the caller is root or the
    /// directory's owner.
    pub fn snapshot_tree_delete(&self, dir: NodeId, name: &str, caller: &Caller) -> Result<SnapshotInfo> {
        self.snapshots.delete_of_tree(dir, name, caller)
    }

    /// Makes directory `name` of `parent` what a snapshot of it (or of another directory) holds, in
    /// one step: what it was until then goes, as if removed ([`FileSystem::remove_tree`]). It keeps
    /// its number; what is below has new ones, as in a clone, because what was moved away since has
    /// the old ones. Durable when it returns.
    ///
    /// # Errors
    /// As for [`FileSystem::remove_tree`] and [`FileSystem::clone_tree`];
    /// [`FsErrorKind::NotFound`](crate::FsErrorKind::NotFound) without the snapshot;
    /// [`FsErrorKind::Invalid`](crate::FsErrorKind::Invalid) for one of the whole volume.
    pub fn restore_tree(
        &self,
        parent: NodeId,
        name: &[u8],
        snapshot: &str,
        caller: &Caller,
    ) -> Result<Entry> {
        let check_owner = |snapshot: &SnapshotInfo| self.check_snapshot_owner(snapshot, caller);
        let charge = self.quotas.charge_restore(parent, name, snapshot)?;
        let call = || charge.end(self.snapshots.restore_tree(parent, name, snapshot, caller, check_owner));
        let held = self.without_prefixes(parent, name, call)?;
        self.names.nodes.trim_names();
        self.syncfs()?;
        self.names.lookup.entry(held)
    }

    /// Makes a call that takes away tree `name` of `parent`. Directories below do not count as in
    /// use because calls by path remember them.
    fn without_prefixes<T>(
        &self,
        parent: NodeId,
        name: &[u8],
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let prefix = {
            let dir = self.names.nodes.dir(parent)?;
            let tree = self.names.tree.shared();
            layout::content_prefix(&dir.content_prefix(tree.epoch), name)
        };
        self.prefixes.release_below(&prefix);
        let done = call();
        // Of those that came in between.
        self.prefixes.release_below(&prefix);
        done
    }

    /// Refuses a snapshot that does not belong to the caller alone.
    fn check_snapshot_owner(&self, snapshot: &SnapshotInfo, caller: &Caller) -> Result<()> {
        if caller.uid == 0 {
            return Ok(());
        }
        let inner = self.open_snapshot(snapshot, SNAPSHOT_CHECK_NAME_BYTES)?;
        let root = inner.names.nodes.dir(NodeId::ROOT)?;
        let mut check = TreeCheck::new(&inner.names.ownership, caller, TreeUse::Read);
        let tree = check.lock_for(&root, || inner.names.tree.shared())?;
        check.check(&root, &tree)
    }
}
