//! Whose a tree is: what lets an owner clone, change or remove it without a look at all that is
//! below.
//!
//! A directory marked *uniform* promises that everything below belongs to its owner, has no set-id
//! bits (directories may), no capabilities, and no second names. So a directory above one that is
//! not uniform is not either, and marks are taken away upwards until one is found that is gone
//! already: a word of memory to look at in the usual case. They are taken away before what
//! contradicts them is stored, and never come back: not to be marked says nothing, and a walk over
//! the entries decides.

use crate::file_system::{FileSystem, path_of};
use crate::inode::node::Node;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::{SET_ID, agrees_with_mark};
use crate::model::record::{Inode, Record};
use crate::model::types::*;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl FileSystem {
    /// Takes the marks of `dir` and all above away. The caller holds the tree lock and no states.
    pub(crate) fn clear_marks(&self, dir: &Arc<Node>) -> Result<()> {
        let mut at = Some(dir.clone());
        let mut chain = Vec::new();
        while let Some(node) = at {
            if !node.dir().owned_alone.load(Ordering::Acquire) {
                break;
            }
            at = node.place().parent;
            chain.push(node);
        }
        // From the top, so that the promise above is never broken by what is stored below.
        let epoch = self.tree.epoch();
        for node in chain.into_iter().rev() {
            let mut state = node.state();
            let mut inode = state.inode.clone();
            if !std::mem::replace(&mut inode.owned_alone, false) {
                continue;
            }
            let mut batch = Batch::new();
            if state.orphan == crate::inode::node::Orphan::No
                && node.dir().role == crate::inode::node::Role::Tree
            {
                batch.insert(self.volume.metadata(), &node.entry_key(epoch), inode.encode());
            }
            self.store_unseen(&node, &mut state, inode, batch)?;
        }
        Ok(())
    }

    /// Takes marks away that a change of attributes is about to contradict.
    pub(crate) fn clear_marks_before(&self, node: &Arc<Node>, set: &SetAttr) -> Result<()> {
        let Some(parent) = node.place().parent else { return Ok(()) };
        let special = !node.is_dir() && set.mode.is_some_and(|mode| mode & SET_ID != 0);
        if special || set.uid.is_some_and(|uid| uid != node.state().inode.uid) {
            self.clear_marks(&parent)?;
        }
        Ok(())
    }

    /// Takes marks away that an entry with `inode` in `dir` contradicts.
    pub(crate) fn clear_marks_unless(&self, dir: &Arc<Node>, inode: &Inode) -> Result<()> {
        let uid = dir.state().inode.uid;
        if agrees_with_mark(inode, uid) { Ok(()) } else { self.clear_marks(dir) }
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
            let is_uniform = std::mem::replace(&mut own.owned_alone, true);
            if !agrees_with_mark(&own, caller.uid) {
                return foreign(&layout::show(&path_of(node)));
            }
            if is_uniform || !node.is_dir() {
                return Ok(());
            }
        }
        let prefix = node.content_prefix(epoch);
        let mut cursor = self.volume.store.cursor(self.volume.metadata(), layout::content_range(&prefix))?;
        // Content prefixes of the directories whose areas serve what is below; the last that fits
        // is the nearest.
        let top = node.area_directory().map(|top| top.content_prefix(epoch).to_vec());
        let mut areas: Vec<Vec<u8>> = top.into_iter().collect();
        while let Some(entry) = cursor.next()? {
            let Some(parsed) = layout::parse(&entry.key) else { continue };
            // Areas are looked at by the names that lead there.
            if parsed.name.is_empty() || parsed.directory.iter().any(Vec::is_empty) {
                continue;
            }
            let inode = match Record::decode(&cursor.read(&entry.value)?)? {
                Record::Inode(inode) => inode,
                Record::Link(link) => {
                    let area = areas.iter().rfind(|p| entry.key.starts_with(p));
                    self.inode_in_area(&layout::area_prefix(area.map_or(&[], |p| &p[..])), link.id)?
                }
            };
            if !agrees_with_mark(&Inode { owned_alone: inode.is_dir(), ..inode.clone() }, caller.uid) {
                return foreign(&parsed.path());
            }
            if inode.area {
                areas.push(layout::content_prefix(parsed.prefix, &parsed.name));
            }
        }
        Ok(())
    }
}

fn foreign<T>(path: &str) -> Result<T> {
    fail(FsErrorKind::Permission, format!("{path} belongs to somebody else, or may run as somebody else"))
}
