//! Snapshots of directories: made, and put back.
//!
//! Such a snapshot is a volume whose root is the directory. To make one, an *image* of that volume
//! is put together behind a prefix in the orphan area, with one batch: a clone of what is below,
//! the directory's attributes as those of a root, a volume's state record. Then the engine makes a
//! volume of the keys behind the prefix, and the image is deleted. To put a snapshot back, the
//! engine puts the volume behind such a prefix, and one batch gives the place of the directory to
//! it. The record of a removed tree names the image meanwhile, so after a crash recovery deletes
//! it.
//!
//! In the volume the root has the sum of the directory's deltas as its own: mounted alone
//! everything has the numbers that it had.

use crate::data::blocks;
use crate::inode::access_times::AccessTimes;
use crate::inode::node::{Node, Orphan};
use crate::inode::tree_check::{TreeCheck, TreeUse};
use crate::lock_order::{Rank, RankedMutex};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, Record, VolumeState};
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::lookup::no_entry;
use crate::references::HeldNode;
use crate::snapshot::volume::{self, SnapshotInfo, find_snapshot, find_snapshot_of, new_volume_name};
use crate::tree_ops::clone::clone_content;
use crate::tree_ops::copy_numbers::delta_of_copy;
use crate::tree_ops::list::Level;
use crate::tree_ops::remove::{LockedEntry, Replacement, take_away};
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::{Batch, KeyRange};
use std::sync::Arc;

/// The image of a volume, in the orphan area.
struct Image {
    /// The key of the record that names it.
    record: Vec<u8>,
    /// The prefix that stands for its root.
    prefix: Vec<u8>,
}

impl Image {
    /// A new place in the orphan area.
    fn new(namespace: &Namespace) -> Self {
        let serial = namespace.nodes.fresh_serial();
        let prefix = layout::content_prefix(layout::ORPHAN_AREA, &layout::area_name(serial));
        Self { record: layout::orphan_key(serial).to_vec(), prefix }
    }

    /// The key of the attributes of the root of the volume.
    fn root_key(&self) -> Vec<u8> {
        [&self.prefix, layout::ROOT_KEY].concat()
    }

    /// The key of the state record of the volume.
    fn state_key(&self) -> Vec<u8> {
        [&self.prefix, layout::STATE_KEY].concat()
    }

    /// Adds to a batch the record that names it.
    fn put_record(&self, namespace: &Namespace, batch: &mut Batch) {
        let tree = Inode::new(FileKind::Directory, 0, 0, 0, 0, namespace.volume.now());
        batch.insert(namespace.volume.metadata(), &self.record, tree.encode());
    }

    /// Deletes it with its record.
    fn delete(&self, namespace: &Namespace) -> Result<()> {
        let mut batch = Batch::new();
        namespace.orphans.delete_tree_record(&self.record, &mut batch)?;
        namespace.volume.commit_internal(batch).map(drop)
    }
}

pub(crate) struct Snapshots {
    namespace: Arc<Namespace>,
    access_times: Arc<AccessTimes>,
    /// Held while a snapshot is made, so that no two get one name.
    making: RankedMutex<()>,
}

impl Snapshots {
    pub(crate) fn new(namespace: Arc<Namespace>, access_times: Arc<AccessTimes>) -> Self {
        Self { namespace, access_times, making: RankedMutex::new(Rank::Snapshot, ()) }
    }

    /// Makes a snapshot of this volume.
    pub(crate) fn create(&self, name: &str, writable: bool) -> Result<()> {
        let volume = &self.namespace.volume;
        volume.check_writable()?;
        let _one = self.making.lock();
        self.access_times.write_all()?;
        let (of, now) = (&volume.options.volume, volume.env.now().as_secs());
        volume::create_if(&volume.store, of, name, writable, now, &|| volume.caller_stays())?;
        volume.copied_now();
        Ok(())
    }

    /// Deletes a snapshot.
    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        let volume = &self.namespace.volume;
        volume.check_writable()?;
        let snapshot = find_snapshot(&volume.store, name)?;
        Ok(volume.store.delete_volume_if(snapshot.id, &|| volume.caller_stays())?)
    }

    /// Makes a snapshot of directory `dir` with everything below.
    pub(crate) fn create_of_tree(
        &self,
        dir: NodeId,
        name: &str,
        writable: bool,
        caller: &Caller,
    ) -> Result<()> {
        let (namespace, volume) = (&*self.namespace, &self.namespace.volume);
        let node = namespace.nodes.dir(dir)?;
        volume.check_writable()?;
        if node.id == NodeId::ROOT {
            return self.create(name, writable);
        }
        let _one = self.making.lock();
        let now = volume.env.now().as_secs();
        let volume_name = new_volume_name(&volume.store, Some(node.ino), name, now)?;
        if let Some(parent) = &node.place().parent {
            namespace.orphans.drain_below(&namespace.tree, parent, &node.place().name);
        }
        self.access_times.write_all()?;
        let image = make_image(namespace, &node, caller)?;
        let (flags, wanted) = (volume::volume_flags(writable), || volume.caller_stays());
        let made = volume.store.snapshot_prefix_if(volume.id, &image.prefix, &volume_name, flags, &wanted);
        image.delete(namespace)?;
        made?;
        Ok(())
    }

    /// The snapshots of directory `dir`, oldest first; of the root those of the whole volume.
    pub(crate) fn of_tree(&self, dir: NodeId) -> Result<Vec<SnapshotInfo>> {
        let directory = number_of(&*self.namespace.nodes.dir(dir)?);
        let all = volume::snapshots(&self.namespace.volume.store);
        Ok(all.into_iter().filter(|snapshot| snapshot.directory == directory).collect())
    }

    /// The snapshot `name` of directory `dir`; `NUMBER/NAME` names one of any directory.
    pub(crate) fn find(&self, dir: NodeId, name: &str) -> Result<SnapshotInfo> {
        let node = self.namespace.nodes.dir(dir)?;
        let store = &self.namespace.volume.store;
        if name.contains('/') {
            return find_snapshot(store, name);
        }
        find_snapshot_of(store, number_of(&node), name)
    }

    /// Deletes a snapshot of directory `dir`.
    pub(crate) fn delete_of_tree(&self, dir: NodeId, name: &str, caller: &Caller) -> Result<SnapshotInfo> {
        let volume = &self.namespace.volume;
        volume.check_writable()?;
        let snapshot = self.find(dir, name)?;
        let node = self.namespace.nodes.dir(dir)?;
        let own = snapshot.directory == Some(node.ino) && node.state().inode.uid == caller.uid;
        if caller.uid != 0 && !own {
            return fail(FsErrorKind::Permission, "the directory belongs to another user");
        }
        volume.store.delete_volume_if(snapshot.id, &|| volume.caller_stays())?;
        Ok(snapshot)
    }

    /// Makes directory `name` of `parent` what a snapshot of it (or of another directory) holds, in
    /// one step. `check_owner` refuses a snapshot that does not belong to the caller alone.
    pub(crate) fn restore_tree(
        &self,
        parent: NodeId,
        name: &[u8],
        snapshot: &str,
        caller: &Caller,
        check_owner: impl FnOnce(&SnapshotInfo) -> Result<()>,
    ) -> Result<HeldNode<'_>> {
        let (namespace, volume) = (&*self.namespace, &self.namespace.volume);
        let dir = namespace.nodes.dir(parent)?;
        volume.check_writable()?;
        let (snapshot, number) = {
            let current = namespace.lookup.find(&dir, name)?.ok_or_else(|| no_entry(name))?;
            // The reference is given back here: with it the directory would count as in use.
            (self.find(current.id, snapshot)?, current.ino)
        };
        if snapshot.directory.is_none() {
            return fail(
                FsErrorKind::Invalid,
                "a snapshot of the whole volume is restored on the unmounted image",
            );
        }
        check_owner(&snapshot)?;
        namespace.orphans.drain_below(&namespace.tree, &dir, name);
        let image = Image::new(namespace);
        let mut batch = Batch::new();
        image.put_record(namespace, &mut batch);
        volume.commit_internal(batch)?;
        let restored = (|| {
            volume.store.graft_volume(volume.id, &image.prefix, snapshot.id)?;
            exchange_for_image(namespace, (&dir, name), number, &image, caller)
        })();
        // Only the record is left of it, or all of it.
        let deleted = image.delete(namespace);
        let held = restored?;
        deleted?;
        Ok(held)
    }
}

/// The number by which snapshots name a directory; `None` for the root.
fn number_of(node: &Node) -> Option<u64> {
    (node.id != NodeId::ROOT).then_some(node.ino)
}

/// Puts together the image of a volume whose root is `source` as it is now.
fn make_image(namespace: &Namespace, source: &Arc<Node>, caller: &Caller) -> Result<Image> {
    let volume = &namespace.volume;
    let mut check = TreeCheck::new(&namespace.ownership, caller, TreeUse::Read);
    let tree = check.lock_for(source, || namespace.tree.exclusive())?;
    let from = source.content_prefix(tree.epoch);
    if source.is_removed() || source.state().orphan != Orphan::No {
        return fail(FsErrorKind::NotFound, "the directory was removed");
    }
    let image = Image::new(namespace);
    namespace.state_record.check_move(&from, &image.prefix)?;
    check.check(source, &tree)?;
    check.restore_marks(source, &tree)?;
    namespace.orphans.move_away(&layout::content_range(&from))?;
    let mut batch = Batch::new();
    image.put_record(namespace, &mut batch);
    let mut root = source.state().inode.clone();
    clone_content(namespace, &tree, source, &image.prefix, &mut root, &mut batch)?;
    if root.has_large_xattrs() {
        let (old, new) = (source.entry_key(tree.epoch), image.root_key());
        blocks::for_each_value(volume, &root, &old, |xattr, value| {
            batch.insert(volume.data(), &layout::rebase(xattr, &old, &new), value);
        })?;
    }
    root.delta = source.dir().sum;
    batch.insert(volume.metadata(), &image.root_key(), root.encode());
    batch.insert(volume.metadata(), &image.state_key(), namespace.state_record.current().encode());
    volume.commit_internal(batch)?;
    volume.copied_now();
    Ok(image)
}

/// Gives the place of directory `name` of `dir` to what an image holds.
fn exchange_for_image<'a>(
    namespace: &'a Namespace,
    (dir, name): (&Arc<Node>, &[u8]),
    number: u64,
    image: &Image,
    caller: &Caller,
) -> Result<HeldNode<'a>> {
    let mut releases = namespace.references.release_later();
    let check = TreeCheck::new(&namespace.ownership, caller, TreeUse::Change);
    let found = LockedEntry::lock(namespace, (dir, name), check, &mut releases)?;
    // In this order, so that the reference goes last.
    let LockedEntry { held, check, tree, mut names } = found;
    if held.ino != number || !held.is_dir() {
        return fail(FsErrorKind::NotFound, "the directory was moved or removed meanwhile");
    }
    check.check(&held, &tree)?;
    let (inode, content) = unpack_image(namespace, &tree, image, dir, &held)?;
    namespace.ownership.clear_before_entry(dir, &inode)?;
    let replacement = Replacement { inode: &inode, content };
    let lsn = take_away(namespace, &tree, dir, &held, Some(replacement), &mut releases)?;
    let has_link_area = inode.has_link_area;
    let new = namespace.lookup.add_entry(dir, &mut names, name, inode, lsn);
    names.version += 1;
    if has_link_area {
        namespace.links.set_in_use();
    }
    Ok(new)
}

/// The inode of directory `old` of `dir` when it holds what an image does, and the batch that gives
/// it its content.
fn unpack_image(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    image: &Image,
    dir: &Arc<Node>,
    old: &Arc<Node>,
) -> Result<(Inode, Batch)> {
    let volume = &namespace.volume;
    let content = &*old.content_prefix(tree.epoch);
    let read = |key: &[u8]| volume.store.get(volume.metadata(), key);
    let root = read(&image.root_key())?.map(|value| Record::decode(&value)).transpose()?;
    let state = read(&image.state_key())?;
    let (Some(Record::Inode(mut inode)), Some(state)) = (root, state) else {
        return fail(FsErrorKind::Io, "the snapshot holds no file system");
    };
    let state = VolumeState::decode(&state)?;
    namespace.state_record.note_flags(state.flags_used)?;
    let longest = state.longest_key.unwrap_or(MAX_KEY as u64);
    let longest = (longest as usize).min(MAX_KEY) + image.prefix.len();
    namespace.state_record.note_key_length(longest)?;
    namespace.state_record.check_move(&image.prefix, content)?;
    let mut batch = Batch::new();
    for index in [volume.metadata(), volume.data(), volume.links()] {
        batch.move_range(index, &image.prefix, content);
    }
    // Keys that only a root has, and files that were in use when the snapshot was made.
    let own = [content, layout::ROOT_KEY].concat();
    batch.delete(volume.metadata(), &own);
    let orphans = KeyRange::prefix(&[content, layout::ORPHAN_AREA].concat());
    for index in [volume.metadata(), volume.data()] {
        batch.delete_range(index, orphans.clone());
    }
    if inode.has_large_xattrs() {
        let (from, to) = (image.root_key(), old.entry_key(tree.epoch));
        blocks::for_each_value(volume, &inode, &from, |xattr, value| {
            batch.insert(volume.data(), &layout::rebase(xattr, &from, &to), value);
        })?;
    }
    batch.delete_range(volume.data(), layout::file_range(&own));
    // A limit belongs to the place, not to what a snapshot holds of it.
    inode.limits = old.state().inode.limits;
    inode.has_link_area = has_links(namespace, image)? || inode.limits.get().is_some();
    if inode.has_link_area {
        batch.insert(volume.links(), content, namespace.links.area_mark(&image.prefix)?.encode());
    } else {
        batch.delete(volume.links(), content);
        for index in [volume.metadata(), volume.data()] {
            batch.delete_range(index, KeyRange::prefix(&layout::area_files(content)));
        }
    }
    let sum = inode.delta;
    let area = (image.prefix.clone(), sum.wrapping_add(inode.link_area_delta));
    let level = Level { prefix: image.prefix.clone(), path: Vec::new(), sum, area };
    inode.delta = delta_of_copy(namespace, &level, None, dir.dir().sum)?;
    inode.number = old.ino.wrapping_sub(dir.dir().sum).wrapping_sub(inode.delta);
    Ok((inode, batch))
}

/// True if the links index of an image has keys besides the mark of its root.
fn has_links(namespace: &Namespace, image: &Image) -> Result<bool> {
    let mut links =
        namespace.volume.store.cursor(namespace.volume.links(), KeyRange::prefix(&image.prefix))?;
    while let Some(entry) = links.next()? {
        if *entry.key != *image.prefix {
            return Ok(true);
        }
    }
    Ok(false)
}
