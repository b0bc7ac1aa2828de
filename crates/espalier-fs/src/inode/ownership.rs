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
//! ([`crate::inode::tree_check`]). It runs without locks on a snapshot of the store that was taken
//! while no operation was under way. Every operation that stores an entry which contradicts the
//! mark of its directory, or would if the directory had one, passes [`OwnershipMarks::clear`] or
//! [`OwnershipMarks::doubt`] first, and spoils the walks whose tree it concerns. So a walk that
//! found nothing foreign and is not spoiled when the tree lock is held says what is true under that
//! lock; under the exclusive lock it gives the tree its marks back by one range message. No walk is
//! made while a lock is held.
//!
//! *Root* needs no mark, but must not change what is immutable or append-only. Where the volume may
//! have such objects, a tree that bears the mark has none, and others are walked.

use crate::inode::inode_store::InodeStore;
use crate::inode::node::{Node, Orphan, Role, State};
use crate::inode::node_table::NodeTable;
use crate::inode::ownership_walk::{WalkResult, check_holder};
use crate::lock_order::RankedGuard;
use crate::model::error::Result;
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

pub(crate) struct OwnershipMarks {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) inodes: Arc<InodeStore>,
    pub(crate) links: Arc<LinkIndex>,
    pub(crate) state_record: Arc<VolumeStateRecord>,
    pub(crate) walks: ActiveWalks,
}

/// How an operation contradicts marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contradiction {
    /// By another owner, or by rights that the owner could not lend. Walks for root do not look at
    /// that.
    Rights,
    /// Perhaps also by a flag that forbids changes.
    Any,
}

/// The walks under way or done, whose conclusions operations may spoil.
#[derive(Default)]
pub(crate) struct ActiveWalks {
    all: Mutex<Vec<Arc<ActiveWalk>>>,
    count: AtomicUsize,
}

pub(crate) struct ActiveWalk {
    pub(crate) top: Arc<Node>,
    pub(crate) uid: u32,
    spoiled: AtomicBool,
}

impl ActiveWalk {
    /// An operation contradicts, or may contradict, what the walk says.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Acquire)
    }
}

impl ActiveWalks {
    /// Notes a walk that is about to begin. The caller holds the exclusive tree lock.
    pub(crate) fn add(&self, top: &Arc<Node>, uid: u32) -> Arc<ActiveWalk> {
        let walk = Arc::new(ActiveWalk { top: top.clone(), uid, spoiled: AtomicBool::new(false) });
        let mut all = self.all.lock();
        all.push(walk.clone());
        self.count.store(all.len(), Ordering::Release);
        walk
    }

    /// Forgets a walk.
    pub(crate) fn remove(&self, walk: &Arc<ActiveWalk>) {
        let mut all = self.all.lock();
        all.retain(|other| !Arc::ptr_eq(other, walk));
        self.count.store(all.len(), Ordering::Release);
    }

    /// True if there are none. The caller holds the tree lock, and a walk is added under the
    /// exclusive tree lock: so the count is not stale.
    fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Spoils the walks that `concerns` names, if `how` contradicts what they look for. The caller
    /// holds the tree lock.
    fn spoil(&self, how: Contradiction, concerns: impl Fn(&ActiveWalk) -> bool) {
        if self.are_none() {
            return;
        }
        let looks = |walk: &ActiveWalk| walk.uid != 0 || how == Contradiction::Any;
        for walk in self.all.lock().iter().filter(|walk| looks(walk) && concerns(walk)) {
            walk.spoiled.store(true, Ordering::Release);
        }
    }
}

impl OwnershipMarks {
    /// Clears the marks of `dir` and of all directories above, before an entry of `dir` that
    /// contradicts them is stored. The caller holds the tree lock and no states.
    pub(crate) fn clear(&self, dir: &Arc<Node>, how: Contradiction) -> Result<()> {
        self.walks.spoil(how, |walk| walk.top.contains(dir));
        self.clear_marks(dir)
    }

    /// The same, where walks are spoiled already as far as they have to be.
    fn clear_marks(&self, dir: &Arc<Node>) -> Result<()> {
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

    /// Clears or doubts the marks that a change of owners or modes of a whole tree may contradict,
    /// above `node`, its top. The caller holds the exclusive tree lock.
    pub(crate) fn clear_above_tree(&self, node: &Arc<Node>) -> Result<()> {
        let how = Contradiction::Rights;
        self.walks.spoil(how, |walk| node.contains(&walk.top));
        let owner = node.state().inode.uid;
        match node.place().parent {
            Some(parent) => self.clear_around(&parent, owner, how),
            None => Ok(()),
        }
    }

    /// Clears the marks of directory `parent` and those above, or, if it is a link area, doubts
    /// those of `owner` above all names that lead there.
    fn clear_around(&self, parent: &Arc<Node>, owner: u32, how: Contradiction) -> Result<()> {
        if parent.dir().role != Role::LinkArea {
            return self.clear(parent, how);
        }
        // A file of an area that is no more has no name, nor has one in a removed tree.
        let is_alive = |top: &Arc<Node>| top.dir().has_link_area() && !top.is_removed();
        match parent.place().parent.filter(is_alive) {
            Some(top) => self.doubt(&top, [owner], how),
            None => Ok(()),
        }
    }

    /// Locks the state of `node` for a change of its attributes. Before, if the change
    /// `contradicts` marks, in the way that `how` says, clears those above the one name of the
    /// object, or doubts those above all its names. The caller holds the tree lock and no states.
    pub(crate) fn lock_for_change<'n>(
        &self,
        node: &'n Arc<Node>,
        how: Contradiction,
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
            self.clear_around(&parent, owner, how)?;
            cleared = Some((parent.id, owner));
        }
    }

    /// Has the link area of `top` doubt the marks of `owners`, before a file in it that belongs to
    /// one of them comes to contradict those marks. The caller holds the tree lock and no states.
    pub(crate) fn doubt(
        &self,
        top: &Arc<Node>,
        owners: impl IntoIterator<Item = u32>,
        how: Contradiction,
    ) -> Result<()> {
        let owners: Vec<u32> = owners.into_iter().collect();
        if owners.is_empty() {
            return Ok(());
        }
        self.walks.spoil(how, |walk| walk.uid == 0 || owners.contains(&walk.uid));
        // Directories above the top do not ask its area.
        self.clear(top, how)?;
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
        self.clear_before(dir, inode, |walk| walk.top.contains(dir))
    }

    /// The same, of an entry that spoils the walks that `concerns` names.
    fn clear_before(
        &self,
        dir: &Arc<Node>,
        inode: &Inode,
        concerns: impl Fn(&ActiveWalk) -> bool,
    ) -> Result<bool> {
        let uid = dir.state().inode.uid;
        let agrees = agrees_with_mark(inode, uid);
        if !agrees {
            let may_be_protected = inode.is_dir() || inode.flags.protect();
            let how = if may_be_protected { Contradiction::Any } else { Contradiction::Rights };
            self.walks.spoil(how, concerns);
            self.clear_marks(dir)?;
        }
        Ok(!agrees)
    }

    /// As [`OwnershipMarks::clear_before_entry`], of an entry that is there and moves to `dir`;
    /// `inode` is its own. A directory that agrees with the mark may lead to foreign files all the
    /// same, where its link area doubts its owner. The area that serves `dir` doubts that owner
    /// then, but a walk under way may have passed.
    ///
    /// What moves within the top of a walk spoils it not: the walk looks at a state in which the
    /// entry is at its place before, or the entry came in since and agreed, or spoiled it then.
    pub(crate) fn clear_before_move(&self, node: &Arc<Node>, dir: &Arc<Node>) -> Result<bool> {
        let inode = node.state().inode.clone();
        let comes_in = |walk: &ActiveWalk| walk.top.contains(dir) && !walk.top.contains(node);
        if node.is_dir() && !self.walks.are_none() && self.links.is_in_use() {
            let top = node.link_area_directory();
            let prefix = top.map(|top| top.content_prefix(self.tree.epoch()));
            let mark = prefix.map(|prefix| self.links.area_mark(&prefix)).transpose()?;
            if mark.is_none_or(|mark| mark.doubts(inode.uid)) {
                self.walks.spoil(Contradiction::Any, comes_in);
            }
        }
        self.clear_before(dir, &inode, comes_in)
    }

    /// True if no walk is needed to know that everything in and below `node` is the caller's, or,
    /// if the caller is root, that no flag there forbids changes.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the object itself is not, or
    /// one does.
    pub(crate) fn is_known_owned(
        &self,
        node: &Arc<Node>,
        tree: &TreeGuard<'_>,
        caller: &Caller,
    ) -> Result<bool> {
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

    /// Gives a tree its marks back of which a walk has `found` what it says, and nothing has
    /// spoiled it. The caller holds the exclusive tree lock and no states.
    pub(crate) fn restore(
        &self,
        node: &Arc<Node>,
        tree: &TreeGuard<'_>,
        caller: &Caller,
        found: &WalkResult,
    ) -> Result<()> {
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
