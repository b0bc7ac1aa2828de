//! Snapshots of directories: made, and put back.
//!
//! Such a snapshot is a volume whose root is the directory. To make one, an *image* of that volume
//! is put together behind a prefix in the orphan area, with one batch: a clone of what is below,
//! the directory's attributes as those of a root, a volume's state. Then the engine makes a volume
//! of what lies behind the prefix, and the image goes. To put one back, the engine puts the volume
//! behind such a prefix, and one batch gives the place of the directory to it. The record of a
//! removed tree names the image in between: so of a crash nothing is left but what recovery
//! empties.
//!
//! In the volume the root has the sum of the directory's deltas as its own: mounted alone all has
//! the numbers that it had.

use crate::file_system::{Deferred, FileSystem, Held};
use crate::inode::node::{Node, Orphan};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, LINK_COUNTS_RIGHT, LINK_COUNTS_STALE, Record, VolumeState};
use crate::model::types::*;
use crate::namespace::lookup::no_entry;
use crate::orphan::orphan_area::record_key;
use crate::snapshot::volume::{SnapshotInfo, find_snapshot_of, new_volume_name};
use espalier_engine::{Batch, KeyRange, READ_ONLY_VOLUME};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What takes the place of a directory: the image of a volume, in the orphan area.
pub(crate) struct Image {
    /// The key of the record that names it.
    record: Vec<u8>,
    /// The prefix that stands for its root.
    pub(crate) prefix: Vec<u8>,
}

impl Image {
    /// The attributes of the root of the volume.
    fn root_key(&self) -> Vec<u8> {
        [&self.prefix, layout::ROOT_KEY].concat()
    }
}

impl FileSystem {
    /// Makes a snapshot of directory `dir` with everything below. What every call that returned has
    /// done is in it. Durable when it returns. The cost does not depend on the size.
    ///
    /// # Errors
    /// As for [`create_snapshot`](crate::create_snapshot) and [`FileSystem::clone_tree`].
    pub fn snapshot_tree(&self, dir: NodeId, name: &str, writable: bool, caller: &Caller) -> Result<()> {
        let node = self.dir(dir)?;
        self.volume.check_writable()?;
        if node.id == NodeId::ROOT {
            return self.snapshot(name, writable);
        }
        let _one = self.snapshotting.lock();
        let volume =
            new_volume_name(&self.volume.store, Some(node.ino), name, self.volume.env.now().as_secs())?;
        if let Some(parent) = &node.place().parent {
            self.drain_below(parent, &node.place().name);
        }
        self.write_atimes()?;
        let image = self.make_image(&node, caller)?;
        let flags = if writable { 0 } else { READ_ONLY_VOLUME };
        let wanted = || self.volume.caller_stays();
        let made =
            self.volume.store.snapshot_prefix_if(self.volume.id, &image.prefix, &volume, flags, &wanted);
        self.drop_image(&image)?;
        made?;
        Ok(())
    }

    /// The snapshots of directory `dir`, oldest first; of the root those of the whole volume.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`], [`FsErrorKind::NotDirectory`].
    pub fn snapshots_of(&self, dir: NodeId) -> Result<Vec<SnapshotInfo>> {
        let node = self.dir(dir)?;
        let directory = (node.id != NodeId::ROOT).then_some(node.ino);
        Ok(self.snapshots().into_iter().filter(|snapshot| snapshot.directory == directory).collect())
    }

    /// The snapshot `name` of directory `dir`, as [`FileSystem::snapshots_of`] lists them;
    /// `NUMBER/NAME` names one of any directory.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`]; as for [`FileSystem::snapshots_of`].
    pub fn snapshot_of(&self, dir: NodeId, name: &str) -> Result<SnapshotInfo> {
        let node = self.dir(dir)?;
        if name.contains('/') {
            return crate::snapshot::volume::find_snapshot(&self.volume.store, name);
        }
        find_snapshot_of(&self.volume.store, (node.id != NodeId::ROOT).then_some(node.ino), name)
    }

    /// Directory and name of a directory.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`]; [`FsErrorKind::NotDirectory`]; [`FsErrorKind::Invalid`] for the
    /// root.
    pub fn place_of(&self, dir: NodeId) -> Result<(NodeId, Vec<u8>)> {
        let place = self.dir(dir)?.place();
        match place.parent {
            Some(parent) => Ok((parent.id, place.name.to_vec())),
            None => fail(FsErrorKind::Invalid, "the root of the volume lies in no directory"),
        }
    }

    /// Deletes a snapshot of directory `dir`. Durable when it returns; the space comes back soon
    /// afterwards.
    ///
    /// # Errors
    /// As for [`FileSystem::snapshot_of`]; [`FsErrorKind::Permission`] unless the caller is root or
    /// the directory's owner.
    pub fn snapshot_tree_delete(&self, dir: NodeId, name: &str, caller: &Caller) -> Result<SnapshotInfo> {
        self.volume.check_writable()?;
        let snapshot = self.snapshot_of(dir, name)?;
        let node = self.dir(dir)?;
        let own = snapshot.directory == Some(node.ino) && node.state().inode.uid == caller.uid;
        if caller.uid != 0 && !own {
            return fail(FsErrorKind::Permission, "the directory belongs to somebody else");
        }
        self.volume.store.delete_volume_if(snapshot.id, &|| self.volume.caller_stays())?;
        Ok(snapshot)
    }

    /// Makes directory `name` of `parent` what a snapshot of it (or of another directory) holds, in
    /// one step: what it was until then goes, as if removed ([`FileSystem::remove_tree`]). It keeps
    /// its number; what is below has new ones, as in a clone, because what was moved away since has
    /// the old ones. Durable when it returns.
    ///
    /// # Errors
    /// As for [`FileSystem::remove_tree`] and [`FileSystem::clone_tree`]; [`FsErrorKind::NotFound`]
    /// without the snapshot; [`FsErrorKind::Invalid`] for one of the whole volume.
    pub fn restore_tree(
        &self,
        parent: NodeId,
        name: &[u8],
        snapshot: &str,
        caller: &Caller,
    ) -> Result<Entry> {
        let dir = self.dir(parent)?;
        self.volume.check_writable()?;
        let current = self.find(&dir, name)?.ok_or_else(|| no_entry(name))?;
        let snapshot = self.snapshot_of(current.id, snapshot)?;
        if snapshot.directory.is_none() {
            return fail(
                FsErrorKind::Invalid,
                "a snapshot of the whole volume is restored on the unmounted image",
            );
        }
        if caller.uid != 0 {
            let inner = self.open_snapshot(&snapshot, 1 << 20)?;
            let root = inner.dir(NodeId::ROOT)?;
            let tree = inner.tree.shared();
            inner.check_owned_alone(&root, tree.epoch, caller)?;
        }
        let number = current.ino;
        // Not to count as somebody who uses it.
        drop(current);
        self.drain_below(&dir, name);
        let image = self.place_for_image()?;
        let restored = (|| {
            self.volume.store.graft_volume(self.volume.id, &image.prefix, snapshot.id)?;
            self.exchange_for_image(&dir, name, number, &image, caller)
        })();
        // What is left is the record, or all of it.
        let dropped = self.drop_image(&image);
        let held = restored?;
        dropped?;
        self.trim_names();
        self.syncfs()?;
        self.entry(held)
    }

    /// A place for an image.
    fn place_for_image(&self) -> Result<Image> {
        let mut batch = Batch::new();
        let image = self.free_image();
        self.record_image(&image, &mut batch);
        self.volume.commit_internal(batch)?;
        Ok(image)
    }

    fn free_image(&self) -> Image {
        let id = self.nodes.fresh_id();
        let prefix = layout::content_prefix(layout::ORPHAN_AREA, &layout::area_name(id.0));
        Image { record: record_key(id).to_vec(), prefix }
    }

    fn record_image(&self, image: &Image, batch: &mut Batch) {
        let tree = Inode::new(FileKind::Directory, 0, 0, 0, 0, self.volume.now());
        batch.insert(self.volume.metadata(), &image.record, tree.encode());
    }

    fn drop_image(&self, image: &Image) -> Result<()> {
        let mut batch = Batch::new();
        self.delete_tree_record(&image.record, &mut batch);
        self.volume.commit_internal(batch).map(drop)
    }

    /// Puts together the image of a volume whose root is `source` as it is now.
    fn make_image(&self, source: &Arc<Node>, caller: &Caller) -> Result<Image> {
        let tree = self.tree.exclusive();
        let epoch = tree.epoch;
        let from = source.content_prefix(epoch);
        if source.is_removed() || source.state().orphan != Orphan::No {
            return fail(FsErrorKind::NotFound, "the directory was removed");
        }
        let image = self.free_image();
        self.check_lengths(&from, &image.prefix)?;
        self.check_owned_alone(source, epoch, caller)?;
        self.evacuate(&layout::content_range(&from))?;
        let mut batch = Batch::new();
        self.record_image(&image, &mut batch);
        let mut root = source.state().inode.clone();
        self.clone_content(source, &from, &image.prefix, &mut root, &mut batch)?;
        if root.has_large_xattrs() {
            let (old, new) = (source.entry_key(epoch), image.root_key());
            self.read_file(&root, &old, |xattr, value| {
                batch.insert(self.volume.data(), &layout::rebase(xattr, &old, &new), value);
            })?;
        }
        root.delta = source.dir().sum;
        batch.insert(self.volume.metadata(), &image.root_key(), root.encode());
        let state = VolumeState { next_number: self.next_numbers(), longest_key: self.lengths.stored() };
        batch.insert(self.volume.metadata(), &[&image.prefix, layout::STATE_KEY].concat(), state.encode());
        self.volume.commit_internal(batch)?;
        self.volume.copied_now();
        Ok(image)
    }

    /// Gives the place of directory `name` to what an image holds.
    fn exchange_for_image(
        &self,
        dir: &Arc<Node>,
        name: &[u8],
        number: u64,
        image: &Image,
        caller: &Caller,
    ) -> Result<Held<'_>> {
        let mut deferred = Deferred::new(self);
        let held: Held<'_>;
        let tree = self.tree.exclusive_for_move();
        let result = (|| {
            let mut names = dir.dir().names.lock();
            let held = self.resolve(&tree, dir, &mut names, name)?.ok_or_else(|| no_entry(name))?;
            if held.ino != number || !held.is_dir() {
                return fail(FsErrorKind::NotFound, "the directory was moved or removed meanwhile");
            }
            self.check_owned_alone(&held, tree.epoch, caller)?;
            let content = held.content_prefix(tree.epoch);
            let (inode, batch) = self.unpack_image(image, dir, &held, &content, tree.epoch)?;
            self.clear_marks_unless(dir, &inode)?;
            let lsn = self.take_tree(&tree, dir, &held, Some((&inode, batch)), &mut deferred)?;
            let has_area = inode.area;
            let new = self.add_entry(dir, &mut names, name, inode, lsn);
            names.version += 1;
            if has_area {
                self.any_links.store(true, Ordering::Relaxed);
                let area = self.area_of(&new)?;
                self.plan_settling(&area);
            }
            Ok((held, new))
        })();
        let new;
        (held, new) = result?;
        drop(tree);
        drop(held);
        Ok(new)
    }

    /// The entry of a directory that is to hold what an image does, and what puts the content
    /// behind `content`.
    fn unpack_image(
        &self,
        image: &Image,
        dir: &Arc<Node>,
        old: &Arc<Node>,
        content: &[u8],
        epoch: u64,
    ) -> Result<(Inode, Batch)> {
        let read = |key: &[u8]| self.volume.store.get(self.volume.metadata(), key);
        let root = read(&image.root_key())?.map(|value| Record::decode(&value)).transpose()?;
        let state = read(&[&image.prefix, layout::STATE_KEY].concat())?;
        let (Some(Record::Inode(mut inode)), Some(state)) = (root, state) else {
            return fail(FsErrorKind::Io, "the snapshot holds no file system");
        };
        let longest = VolumeState::decode(&state)?.longest_key.unwrap_or(layout::MAX_KEY as u64);
        self.note_length((longest as usize).min(layout::MAX_KEY) + image.prefix.len())?;
        self.check_lengths(&image.prefix, content)?;
        let mut batch = Batch::new();
        for index in [self.volume.metadata(), self.volume.data(), self.volume.links()] {
            batch.move_range(index, &image.prefix, content);
        }
        // What is of the root alone, and what nobody had given up.
        let own = [content, layout::ROOT_KEY].concat();
        batch.delete(self.volume.metadata(), &own);
        let orphans = KeyRange::prefix(&[content, layout::ORPHAN_AREA].concat());
        for index in [self.volume.metadata(), self.volume.data()] {
            batch.delete_range(index, orphans.clone());
        }
        if inode.has_large_xattrs() {
            let (from, to) = (image.root_key(), old.entry_key(epoch));
            self.read_file(&inode, &from, |xattr, value| {
                batch.insert(self.volume.data(), &layout::rebase(xattr, &from, &to), value);
            })?;
        }
        batch.delete_range(self.volume.data(), layout::file_range(&own));
        let mut links = self.volume.store.cursor(self.volume.links(), KeyRange::prefix(&image.prefix))?;
        let mut mark = None;
        inode.area = false;
        while let Some(entry) = links.next()? {
            match *entry.key == *image.prefix {
                true => mark = Some(links.read(&entry.value)?),
                false => {
                    inode.area = true;
                    break;
                }
            }
        }
        if inode.area {
            let unsettled = mark.is_some_and(|mark| *mark == *LINK_COUNTS_STALE);
            batch.insert(
                self.volume.links(),
                content,
                if unsettled { LINK_COUNTS_STALE } else { LINK_COUNTS_RIGHT },
            );
        } else {
            batch.delete(self.volume.links(), content);
            for index in [self.volume.metadata(), self.volume.data()] {
                batch.delete_range(index, KeyRange::prefix(&layout::area_files(content)));
            }
        }
        inode.delta = self.volume.env.random();
        inode.number = old.ino.wrapping_sub(dir.dir().sum).wrapping_sub(inode.delta);
        Ok((inode, batch))
    }
}
