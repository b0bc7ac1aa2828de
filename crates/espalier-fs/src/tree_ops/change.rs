//! Owners and modes of whole trees: one range message for everything below, whatever that is.
//!
//! The message names a merge function (see [`crate::model::merge`]) that rewrites each entry when it is
//! next read or comes to rest. What is in memory is changed by the same function when it is next
//! looked at ([`crate::inode::pending_changes`]). Files with several names, whose entries lie in a link area
//! outside, are changed one by one.

use crate::file_system::FileSystem;
use crate::inode::node::{Node, Orphan};
use crate::inode::pending_changes::changed_inode;
use crate::inode::tree_lock::TreeGuard;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::merge;
use crate::model::privileges::SET_ID;
use crate::model::types::*;
use espalier_engine::Batch;
use std::sync::Arc;

impl FileSystem {
    /// Changes owner and group of `node` and everything below, as `chown -R -h` does: set-id bits
    /// and capabilities of files go. The cost does not depend on what is below, but for names of
    /// files with several names. [`FileSystem::changed_nodes`] tells which nodes that concerned.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] if the caller is not root; of the store.
    pub fn chown_tree(&self, node: NodeId, change: OwnerChange, caller: &Caller) -> Result<()> {
        if caller.uid != 0 {
            return fail(FsErrorKind::Permission, "only root gives files away");
        }
        let argument = merge::owner_argument(change.uid, change.gid, self.volume.now());
        self.change_tree(node, merge::CHANGE_OWNER, argument, caller, change.uid.is_some())
    }

    /// Changes the modes of `node` and everything below but symbolic links, as `chmod -R` does.
    /// [`FileSystem::changed_nodes`] tells which nodes that concerned.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] if the caller is not root, and something there is not the
    /// caller's own or has set-id bits or capabilities; of the store.
    pub fn chmod_tree(&self, node: NodeId, change: ModeChange, caller: &Caller) -> Result<()> {
        let special = (change.add_files | change.add_executables) & SET_ID != 0;
        let argument = merge::mode_argument(&change, self.volume.now());
        self.change_tree(node, merge::CHANGE_MODE, argument, caller, special)
    }

    fn change_tree(
        &self,
        node: NodeId,
        function: u16,
        argument: Vec<u8>,
        caller: &Caller,
        breaks_promises: bool,
    ) -> Result<()> {
        let node = self.node(node)?;
        self.volume.check_writable()?;
        let tree = self.tree.exclusive();
        let removed = node.is_removed() || node.state().orphan != Orphan::No;
        if removed {
            return fail(FsErrorKind::NotFound, "the file or directory was removed");
        }
        self.check_owned_alone(&node, tree.epoch, caller)?;
        if breaks_promises && let Some(parent) = node.place().parent {
            self.clear_marks(&parent)?;
        }
        let mut batch = Batch::new();
        // Nodes of the area that serves the directory, which lies above.
        let mut apart: Vec<Arc<Node>> = vec![node.clone()];
        if node.is_dir() {
            let content = node.content_prefix(tree.epoch);
            for range in self.entries_below(&content) {
                batch.update_range(self.volume.metadata(), range, function, argument.clone());
            }
            if !node.dir().has_area() {
                self.change_links(&tree, &node, &content, function, &argument, &mut batch, &mut apart)?;
            }
        }
        let own = changed_inode(&node.state().inode, function, &argument);
        batch.insert(self.volume.metadata(), &node.entry_key(tree.epoch), own.encode());
        let lsn = self.volume.commit(batch)?;
        if node.is_dir() {
            self.note_change(&node, function, &argument, lsn);
        }
        for node in apart {
            let mut state = node.state();
            if state.orphan == Orphan::No {
                let inode = changed_inode(&state.inode, function, &argument);
                let dirty = state.atime_dirty;
                self.take_over(&node, &mut state, inode, lsn);
                state.atime_dirty = dirty;
                node.tell_changed();
            }
        }
        Ok(())
    }

    /// What a change of a tree reaches below a content prefix: all but the volume's own records.
    fn entries_below(&self, content: &[u8]) -> Vec<espalier_engine::KeyRange> {
        let whole = layout::content_range(content);
        if !content.is_empty() {
            return vec![whole];
        }
        let area = layout::area_files(content);
        let files = espalier_engine::KeyRange::prefix(&area);
        let behind = espalier_engine::KeyRange { start: vec![2].into(), end: None };
        vec![layout::entries_range(content), files, behind]
    }

    /// Adds to a batch the change of files in the link area that serves `node`, as far as they have
    /// names below.
    #[allow(clippy::too_many_arguments, reason = "one step of one operation, split off for its length")]
    fn change_links(
        &self,
        tree: &TreeGuard<'_>,
        node: &Arc<Node>,
        content: &[u8],
        function: u16,
        argument: &[u8],
        batch: &mut Batch,
        apart: &mut Vec<Arc<Node>>,
    ) -> Result<()> {
        let counts = self.count_below(content)?;
        if counts.is_empty() {
            return Ok(());
        }
        let area = self.area_of(node)?;
        let prefix = area.content_prefix(tree.epoch);
        let names = area.dir().names.lock();
        for id in counts.keys() {
            let name = layout::area_name(*id);
            batch.update(
                self.volume.metadata(),
                &layout::entry_key(&prefix, &name),
                function,
                argument.to_vec(),
            );
            if let Some(crate::inode::node::Known::Present(id)) = names.get(&name) {
                apart.extend(self.nodes.get(id));
            }
        }
        Ok(())
    }
}
