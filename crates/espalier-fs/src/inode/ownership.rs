//! The ownership mark: a directory that bears it owns everything below alone, so that its owner may
//! clone, change or remove the tree without a walk over its entries.
//!
//! Everything below a marked directory belongs to its owner, has no set-id bits (directories may),
//! no capabilities, and no second names. So a directory above one without the mark bears none
//! either, and marks are cleared upwards until one is found that is cleared already: in the usual
//! case one look at a word of memory. They are cleared before an entry that contradicts them is
//! stored, and never come back: the absence of the mark says nothing, and a walk over the entries
//! decides.

use crate::inode::inode_store::InodeStore;
use crate::inode::node::{Node, Orphan, Role};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::{SET_ID, agrees_with_mark};
use crate::model::record::{Inode, Record};
use crate::model::types::*;
use crate::volume::context::VolumeContext;
use crate::volume::link_index::LinkIndex;
use crate::volume::tree_lock::TreeLock;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) struct OwnershipMarks {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) inodes: Arc<InodeStore>,
    pub(crate) links: Arc<LinkIndex>,
}

impl OwnershipMarks {
    /// Clears the marks of `dir` and of all directories above. The caller holds the tree lock and
    /// no states.
    pub(crate) fn clear(&self, dir: &Arc<Node>) -> Result<()> {
        let mut at = Some(dir.clone());
        let mut chain = Vec::new();
        while let Some(node) = at {
            if !node.dir().owned_alone.load(Ordering::Acquire) {
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

    /// Clears the marks that a change of attributes is about to contradict.
    pub(crate) fn clear_before_setattr(&self, node: &Arc<Node>, set: &SetAttr) -> Result<()> {
        let Some(parent) = node.place().parent else { return Ok(()) };
        let special = !node.is_dir() && set.mode.is_some_and(|mode| mode & SET_ID != 0);
        if special || set.uid.is_some_and(|uid| uid != node.state().inode.uid) {
            self.clear(&parent)?;
        }
        Ok(())
    }

    /// Clears the marks that an entry with `inode` in `dir` contradicts.
    pub(crate) fn clear_before_entry(&self, dir: &Arc<Node>, inode: &Inode) -> Result<()> {
        let uid = dir.state().inode.uid;
        if agrees_with_mark(inode, uid) { Ok(()) } else { self.clear(dir) }
    }

    /// Refuses unless everything in and below `node` belongs to the caller and has no set-id bits
    /// and capabilities, or the caller is root. The caller holds the exclusive tree lock.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`], with the first path that is not the caller's.
    pub(crate) fn check_owned_alone(&self, node: &Arc<Node>, epoch: u64, caller: &Caller) -> Result<()> {
        if caller.uid == 0 {
            return Ok(());
        }
        {
            let state = node.state();
            let mut own = state.inode.clone();
            let is_marked = std::mem::replace(&mut own.owned_alone, true);
            if !agrees_with_mark(&own, caller.uid) {
                return not_owned(&layout::show(&node.path()));
            }
            if is_marked || !node.is_dir() {
                return Ok(());
            }
        }
        let prefix = node.content_prefix(epoch);
        let mut cursor = self.volume.store.cursor(self.volume.metadata(), layout::content_range(&prefix))?;
        // Content prefixes of the directories whose areas serve what is below; the last that fits
        // is the nearest.
        let top = node.link_area_directory().map(|top| top.content_prefix(epoch).to_vec());
        let mut areas: Vec<Vec<u8>> = top.into_iter().collect();
        while let Some(entry) = cursor.next()? {
            let Some(parsed) = layout::parse(&entry.key) else { continue };
            // Files in areas are checked by the names that lead there.
            if parsed.name.is_empty() || parsed.directory.iter().any(Vec::is_empty) {
                continue;
            }
            let inode = match Record::decode(&cursor.read(&entry.value)?)? {
                Record::Inode(inode) => inode,
                Record::Link(link) => {
                    let area = areas.iter().rfind(|p| entry.key.starts_with(p));
                    let area = layout::area_prefix(area.map_or(&[], |p| &p[..]));
                    self.links.inode_in_area(&area, link.id)?
                }
            };
            if !agrees_with_mark(&Inode { owned_alone: inode.is_dir(), ..inode.clone() }, caller.uid) {
                return not_owned(&parsed.path());
            }
            if inode.has_link_area {
                areas.push(layout::content_prefix(parsed.prefix, &parsed.name));
            }
        }
        Ok(())
    }
}

fn not_owned<T>(path: &str) -> Result<T> {
    fail(
        FsErrorKind::Permission,
        format!("{path} belongs to another user, or may run with another user's rights"),
    )
}
