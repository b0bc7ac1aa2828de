//! The ownership mark: a directory that bears it owns everything below alone, so that its owner may
//! clone, change or remove the tree without a walk over its entries.
//!
//! Everything below a marked directory belongs to its owner
//! ([`belongs_alone`](crate::model::privileges::belongs_alone)). So a directory above one without
//! the mark bears none either, and marks are cleared upwards until one is found that is cleared
//! already: in the usual case one look at one inode in memory. They are cleared before an entry
//! that contradicts them is stored.
//!
//! *Files with several names.* A name may lie below a marked directory if its file belongs to the
//! directory's owner when the name is made. Later the file may be given away through another name,
//! and where its names are is not known. Then its link area *doubts* the marks of the file's owner
//! until then: below a directory of that owner the files behind names that lead to this area are
//! looked at one by one.
//!
//! *Walks.* The absence of the mark says nothing: a walk over the entries decides
//! ([`OwnershipMarks::verify`]). It runs without locks on a snapshot of the store that was taken
//! while no operation was under way. Every operation that stores an entry which contradicts the
//! mark of its directory, or would if the directory had one, passes [`OwnershipMarks::clear`] or
//! [`OwnershipMarks::doubt`] first, and spoils the walks whose tree it concerns. So a walk that
//! found nothing foreign and is not spoiled when the exclusive tree lock is held says what is true
//! under that lock; it gives the tree its marks back by one range message.

//! *Root* needs no mark, but must not change what is immutable or append-only. Where the volume may
//! have such objects, a tree that bears the mark has none, and others are walked.

use crate::inode::inode_store::InodeStore;
use crate::inode::node::{Node, Orphan, Role, State};
use crate::inode::node_table::NodeTable;
use crate::inode::ownership_walk::{OwnershipWalk, WalkResult, check_holder};
use crate::lock_order::RankedGuard;
use crate::model::error::{FsError, Result};
use crate::model::layout;
use crate::model::merge::MARK_OWNED;
use crate::model::privileges::agrees_with_mark;
use crate::model::record::Inode;
use crate::model::types::*;
use crate::volume::context::VolumeContext;
use crate::volume::link_index::LinkIndex;
use crate::volume::state_record::VolumeStateRecord;
use crate::volume::tree_lock::{TreeGuard, TreeLock};
use espalier_engine::Batch;
use espalier_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Walks of one tree that are begun anew when an operation spoils them.
const WALKS_MAX: usize = 3;

pub(crate) struct OwnershipMarks {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) inodes: Arc<InodeStore>,
    pub(crate) links: Arc<LinkIndex>,
    pub(crate) state_record: Arc<VolumeStateRecord>,
    pub(crate) walks: ActiveWalks,
}

/// What a caller is about to do with a whole tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeUse {
    /// To copy it or to compare it, which root may do with all.
    Read,
    /// To change or to remove it, which root may do where no flag forbids it.
    Change,
}

/// The walks under way or done, whose conclusions operations may spoil.
#[derive(Default)]
pub(crate) struct ActiveWalks {
    all: Mutex<Vec<Arc<ActiveWalk>>>,
    count: AtomicUsize,
}

struct ActiveWalk {
    top: Arc<Node>,
    uid: u32,
    spoiled: AtomicBool,
}

/// What a walk found out without locks.
pub(crate) struct VerifiedTree<'a> {
    walks: &'a ActiveWalks,
    walk: Arc<ActiveWalk>,
    found: Result<WalkResult>,
}

impl ActiveWalks {
    fn add(&self, top: &Arc<Node>, uid: u32) -> Arc<ActiveWalk> {
        let walk = Arc::new(ActiveWalk { top: top.clone(), uid, spoiled: AtomicBool::new(false) });
        let mut all = self.all.lock();
        all.push(walk.clone());
        self.count.store(all.len(), Ordering::Release);
        walk
    }

    fn remove(&self, walk: &Arc<ActiveWalk>) {
        let mut all = self.all.lock();
        all.retain(|other| !Arc::ptr_eq(other, walk));
        self.count.store(all.len(), Ordering::Release);
    }

    /// Spoils the walks that `concerns` names. The caller holds the tree lock, and a walk is added
    /// under the exclusive tree lock: so the count is not stale.
    fn spoil(&self, concerns: impl Fn(&ActiveWalk) -> bool) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        for walk in self.all.lock().iter().filter(|walk| concerns(walk)) {
            walk.spoiled.store(true, Ordering::Release);
        }
    }
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
        let ActiveWalk { top, uid, spoiled } = &*self.walk;
        let is_right = self.found.is_err() || !spoiled.load(Ordering::Acquire);
        (top.id == node.id && *uid == caller.uid && is_right).then_some(&self.found)
    }
}

impl OwnershipMarks {
    /// Clears the marks of `dir` and of all directories above, before an entry of `dir` that
    /// contradicts them is stored. The caller holds the tree lock and no states.
    pub(crate) fn clear(&self, dir: &Arc<Node>) -> Result<()> {
        self.walks.spoil(|walk| walk.top.contains(dir));
        let mut at = Some(dir.clone());
        let mut chain = Vec::new();
        while let Some(node) = at {
            // The word may be older than marks that came back; the state applies what is pending.
            if !node.dir().owned_alone.load(Ordering::Acquire) && !node.state().inode.owned_alone {
                break;
            }
            at = node.place().parent;
            chain.push(node);
        }
        // From the top, so that no mark above is ever contradicted by what is stored below.
        let epoch = self.tree.epoch();
        for node in chain.into_iter().rev() {
            let mut state = node.state();
            let mut inode = state.inode.clone();
            if !std::mem::replace(&mut inode.owned_alone, false) {
                continue;
            }
            let mut batch = Batch::new();
            if state.orphan == Orphan::No && node.dir().role == Role::Tree {
                batch.insert(self.volume.metadata(), &node.entry_key(epoch), inode.encode());
            }
            self.inodes.commit_inode_internal(&node, &mut state, inode, batch)?;
        }
        Ok(())
    }

    /// Clears or doubts the marks that a change of a whole tree may contradict, above `node`, its
    /// top. The caller holds the exclusive tree lock.
    pub(crate) fn clear_above_tree(&self, node: &Arc<Node>) -> Result<()> {
        self.walks.spoil(|walk| node.contains(&walk.top));
        let owner = node.state().inode.uid;
        match node.place().parent {
            Some(parent) => self.clear_around(&parent, owner),
            None => Ok(()),
        }
    }

    /// Clears the marks of directory `parent` and those above, or, if it is a link area, doubts
    /// those of `owner` above all names that lead there.
    fn clear_around(&self, parent: &Arc<Node>, owner: u32) -> Result<()> {
        if parent.dir().role != Role::LinkArea {
            return self.clear(parent);
        }
        // A file of an area that is no more has no name, nor has one in a removed tree.
        let is_alive = |top: &Arc<Node>| top.dir().has_link_area() && !top.is_removed();
        match parent.place().parent.filter(is_alive) {
            Some(top) => self.doubt(&top, [owner]),
            None => Ok(()),
        }
    }

    /// Locks the state of `node` for a change of its attributes. Before, if the change
    /// `contradicts` marks, clears those above the one name of the object, or doubts those above
    /// all its names. The caller holds the tree lock and no states.
    pub(crate) fn lock_for_change<'n>(
        &self,
        node: &'n Arc<Node>,
        contradicts: impl Fn(&Inode) -> bool,
    ) -> Result<RankedGuard<'n, State>> {
        let mut cleared: Option<(NodeId, u32)> = None;
        loop {
            let state = node.state();
            let owner = state.inode.uid;
            // What has no name lies below no directory.
            let concerned = state.orphan == Orphan::No && contradicts(&state.inode);
            let Some(parent) = node.place().parent.filter(|_| concerned) else {
                return Ok(state);
            };
            // The file may have moved, got a further name or another owner since.
            if cleared == Some((parent.id, owner)) {
                return Ok(state);
            }
            drop(state);
            self.clear_around(&parent, owner)?;
            cleared = Some((parent.id, owner));
        }
    }

    /// Has the link area of `top` doubt the marks of `owners`, before a file in it that belongs to
    /// one of them comes to contradict those marks. The caller holds the tree lock and no states.
    pub(crate) fn doubt(&self, top: &Arc<Node>, owners: impl IntoIterator<Item = u32>) -> Result<()> {
        let owners: Vec<u32> = owners.into_iter().collect();
        if owners.is_empty() {
            return Ok(());
        }
        self.walks.spoil(|walk| walk.uid == 0 || owners.contains(&walk.uid));
        // Directories above the top do not ask its area.
        self.clear(top)?;
        let prefix = top.content_prefix(self.tree.epoch());
        let old = self.links.area_mark(&prefix)?;
        let mut mark = old.clone();
        mark.doubt(owners);
        if mark != old {
            let mut batch = Batch::new();
            batch.insert(self.volume.links(), &prefix, mark.encode());
            self.volume.commit_times(batch)?;
        }
        Ok(())
    }

    /// Clears the marks that an entry with `inode` in `dir` contradicts; true if it does.
    pub(crate) fn clear_before_entry(&self, dir: &Arc<Node>, inode: &Inode) -> Result<bool> {
        let uid = dir.state().inode.uid;
        let agrees = agrees_with_mark(inode, uid);
        if !agrees {
            self.clear(dir)?;
        }
        Ok(!agrees)
    }

    /// True if the caller is root, and no flag can forbid the use of any tree.
    fn is_free(&self, caller: &Caller, usage: TreeUse) -> bool {
        caller.uid == 0 && (usage == TreeUse::Read || !self.state_record.may_have(FileFlags::PROTECTION))
    }

    /// Finds out, without holding up other operations, whether everything in and below `node` is
    /// the caller's to use. `None` if [`OwnershipMarks::check_use`] will need no answer,
    /// or operations in the tree kept spoiling it. Called without locks.
    ///
    /// # Errors
    /// Of the store.
    pub(crate) fn verify(
        &self,
        node: &Arc<Node>,
        caller: &Caller,
        usage: TreeUse,
    ) -> Result<Option<VerifiedTree<'_>>> {
        if self.is_free(caller, usage) || !node.is_dir() {
            return Ok(None);
        }
        for _ in 0..WALKS_MAX {
            let (walk, mut verified) = {
                let tree = self.tree.exclusive();
                // What the object itself contradicts is found again under the lock.
                if node.is_removed() || self.is_known_owned(node, &tree, caller).unwrap_or(true) {
                    return Ok(None);
                }
                let walk = OwnershipWalk::new(&self.volume, node, &tree, caller)?;
                (walk, VerifiedTree::begin(&self.walks, node, caller))
            };
            verified.found = walk.run();
            if verified.answer(node, caller).is_some() {
                return Ok(Some(verified));
            }
        }
        Ok(None)
    }

    /// Refuses unless everything in and below `node` is the caller's to use: it belongs to the
    /// caller, or the caller is root, and no flag forbids it. The caller holds the exclusive tree
    /// lock; `verified` is what a walk found out before.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission), with the first path that is not
    /// the caller's to use.
    pub(crate) fn check_use(
        &self,
        node: &Arc<Node>,
        tree: &TreeGuard<'_>,
        (caller, usage): (&Caller, TreeUse),
        verified: Option<&VerifiedTree<'_>>,
    ) -> Result<()> {
        if self.is_free(caller, usage) || self.is_known_owned(node, tree, caller)? {
            return Ok(());
        }
        match verified.and_then(|verified| verified.answer(node, caller)) {
            Some(found) => found.as_ref().map(|_| ()).map_err(FsError::clone),
            None => OwnershipWalk::new(&self.volume, node, tree, caller)?.run().map(|_| ()),
        }
    }

    /// True if no walk is needed to know that everything in and below `node` is the caller's, or,
    /// if the caller is root, that no flag there forbids changes.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the object itself is not, or
    /// one does.
    fn is_known_owned(&self, node: &Arc<Node>, tree: &TreeGuard<'_>, caller: &Caller) -> Result<bool> {
        let (is_marked, owner) = {
            let state = node.state();
            check_holder(&state.inode, caller, || layout::show(&node.path()))?;
            (state.inode.owned_alone, state.inode.uid)
        };
        if !node.is_dir() {
            return Ok(true);
        }
        if !is_marked || !self.links.is_in_use() {
            return Ok(is_marked);
        }
        let Some(top) = node.link_area_directory() else { return Ok(false) };
        let prefix = top.content_prefix(tree.epoch);
        Ok(!self.links.area_mark(&prefix)?.doubts(owner))
    }

    /// Gives a tree its marks back that a walk has verified. The caller holds the exclusive tree
    /// lock and no states.
    pub(crate) fn restore_marks(
        &self,
        node: &Arc<Node>,
        tree: &TreeGuard<'_>,
        caller: &Caller,
        verified: Option<&VerifiedTree<'_>>,
    ) -> Result<()> {
        let answer = verified.and_then(|verified| verified.answer(node, caller));
        let Some(Ok(found)) = answer.filter(|_| node.is_dir()) else { return Ok(()) };
        let has_mark = node.state().inode.owned_alone;
        if !found.is_markable || (has_mark && found.areas_below.is_empty()) {
            return Ok(());
        }
        let content = node.content_prefix(tree.epoch);
        let mut batch = Batch::new();
        for area in &found.areas_below {
            let prefix = [&content[..], &area[..]].concat();
            let mut mark = self.links.area_mark(&prefix)?;
            if mark.doubted_owners.remove(&caller.uid) {
                batch.insert(self.volume.links(), &prefix, mark.encode());
            }
        }
        let argument = caller.uid.to_le_bytes();
        for range in layout::entries_below(&content) {
            batch.update_range(self.volume.metadata(), range, MARK_OWNED, argument.to_vec());
        }
        let mut inode = node.state().inode.clone();
        inode.owned_alone = true;
        batch.insert(self.volume.metadata(), &node.entry_key(tree.epoch), inode.encode());
        let lsn = self.volume.commit_times(batch)?;
        self.nodes.note_change(node, MARK_OWNED, &argument, lsn);
        let mut state = node.state();
        let dirty = state.atime_dirty;
        node.take_over(&mut state, inode, lsn);
        state.atime_dirty = dirty;
        Ok(())
    }
}
