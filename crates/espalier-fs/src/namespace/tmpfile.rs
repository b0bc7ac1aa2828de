//! Files that never had a name (`O_TMPFILE`), and how one gets its first.
//!
//! Such a file is what an unlinked one is: it lives in the orphan area, with a record there as soon
//! as it has data, and goes with its last reference or with a crash. That it may be given a name is
//! noted in memory only ([`State::linkable`]); [`FileSystem::link`] then moves its keys to the
//! place of the entry and takes the record away, in one batch.

use crate::file_system::{Deferred, FileSystem, Held};
use crate::inode::node::{Known, Names, Node, Orphan, Place, State, States};
use crate::inode::tree_lock::TreeGuard;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::types::*;
use crate::namespace::create::{New, count_entry};
use crate::orphan::orphan_area::record_key;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl FileSystem {
    /// Makes a regular file without a name. It takes owner, group and access control list as a file
    /// made in `parent` would, and [`FileSystem::link`] can give it a name while it is in use.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`], [`FsErrorKind::NotFound`] if the directory was removed; of
    /// the store.
    pub fn tmpfile(&self, parent: NodeId, mode: u32, caller: &Caller) -> Result<Entry> {
        let dir = self.dir(parent)?;
        self.volume.check_writable()?;
        let held = self.tmpfile_in(&dir, mode, caller)?;
        self.entry(held)
    }

    fn tmpfile_in(&self, dir: &Arc<Node>, mode: u32, caller: &Caller) -> Result<Held<'_>> {
        let tree = self.tree.shared();
        let names = dir.dir().names.lock();
        if names.dead || self.is_lost(dir) {
            return fail(FsErrorKind::NotFound, "the directory was removed");
        }
        let number = self.fresh_number()?.wrapping_sub(self.orphans.dir().sum);
        let id = self.nodes.fresh_id();
        let name = layout::area_name(id.0);
        let base: Arc<[u8]> = record_key(id).into();
        let new = New { kind: FileKind::Regular, mode, rdev: 0, target: None };
        let now = self.volume.now();
        let mut batch = Batch::new();
        let state = dir.state();
        let mut inode = self.new_inode(&tree, dir, &state, &base, &new, caller, number, now, &mut batch)?;
        drop(state);
        inode.links = 0;
        let place = Place { parent: Some(self.orphans.clone()), name: name[..].into() };
        let has_data = inode.has_data();
        let node = Node::new(id, place, inode, self.orphans.dir().sum, self.volume.last_lsn());
        {
            let mut state = node.state();
            state.linkable = true;
            state.orphan = Orphan::Empty;
            if has_data {
                let orphan = self.detach(&node, base, &mut batch);
                state.lsn = self.volume.commit_internal(batch)?;
                state.orphan = orphan;
                self.volume.counters.orphans.fetch_add(1, Ordering::Relaxed);
            }
        }
        node.changed.store(true, Ordering::Release);
        self.nodes.acquire(self.orphans.id);
        self.nodes.add(&node);
        self.volume.counters.creates.fetch_add(1, Ordering::Relaxed);
        Ok(Held::adopt(self, node))
    }

    /// Gives the file `node`, which never had a name, the name `name` in `dir`, where there is no
    /// such entry yet and the names are locked.
    #[allow(clippy::too_many_arguments, reason = "one step of linking, split off for its length")]
    pub(crate) fn link_first(
        &self,
        tree: &TreeGuard<'_>,
        node: &Arc<Node>,
        dir: &Arc<Node>,
        name: &[u8],
        names: &mut Names,
        states: &mut States<'_>,
        deferred: &mut Deferred<'_>,
    ) -> Result<()> {
        let now = self.volume.now();
        let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
        let mut inode = states.of(node).inode.clone();
        inode.links = 1;
        inode.set_ctime(now);
        inode.number = node.ino.wrapping_sub(dir.dir().sum);
        let mut batch = Batch::new();
        let had_data = match &states.of(node).orphan {
            Orphan::Data(base) => {
                let base = base.clone();
                node.version.fetch_add(1, Ordering::AcqRel);
                self.move_file(&inode, &base, &key, &mut batch)?;
                batch.delete(self.volume.metadata(), &base);
                true
            }
            _ => false,
        };
        batch.insert(self.volume.metadata(), &key, inode.encode());
        let mut above = states.of(dir).inode.clone();
        count_entry(&mut above, &inode, now)?;
        self.put(tree, dir, states.of(dir), &above, &mut batch);
        let lsn = self.volume.commit(batch)?;
        self.take_over(dir, states.of(dir), above, lsn);
        let state: &mut State = states.of(node);
        self.take_over(node, state, inode, lsn);
        (state.orphan, state.linkable) = (Orphan::No, false);
        if had_data {
            self.volume.counters.orphans.fetch_sub(1, Ordering::Relaxed);
        }
        self.nodes.acquire(dir.id);
        let old = node.set_place(Place { parent: Some(dir.clone()), name: name.into() });
        if let Some(parent) = old.parent {
            deferred.release(parent.id);
        }
        names.version += 1;
        self.set_name(dir, names, name, Known::Present(node.id));
        Ok(())
    }
}
