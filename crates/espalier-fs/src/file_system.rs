//! A mounted volume: what all calls share.

use crate::inode::key_lengths::Lengths;
use crate::inode::node::{Counts, Node, NodeTable, Place, Released, Role};
use crate::inode::tree_lock::TreeLock;
use crate::model::error::{FsError, FsErrorKind, Result, fail};
use crate::model::layout::{self, INDEXES, METADATA};
use crate::model::record::{Inode, LINK_COUNTS_STALE, Record, VolumeState};
use crate::model::types::*;
use crate::namespace::listing::Listings;
use crate::orphan::deferred_unlink::Forgotten;
use crate::volume_context::{VolumeContext, encode_parameters};
use espalier_engine::{Batch, IndexId, KeyRange, Lsn, Store};
use espalier_storage::Environment;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How many inode numbers are set aside at a time.
const NUMBERS_RESERVED: u64 = 1 << 16;
/// The first number that is given out; the ones before are the root's and reserved.
const FIRST_NUMBER: u64 = 16;
/// The node of the link area.
const LINKS_NODE: NodeId = NodeId(2);
/// The node of the orphan area.
const ORPHANS_NODE: NodeId = NodeId(3);
/// The first node id that is given out.
const FIRST_NODE: u64 = 16;

/// A mounted volume. All calls may come from many threads at once.
pub struct FileSystem {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    /// Held by renames across directories.
    pub(crate) renames: Mutex<()>,
    pub(crate) nodes: NodeTable,
    pub(crate) orphans: Arc<Node>,
    /// Unlinked files whose data still lies where it was, by place.
    pub(crate) detached: Mutex<BTreeMap<Arc<[u8]>, NodeId>>,
    /// Unlinked files that nobody holds any more, whose data is still to go.
    pub(crate) forgotten: Mutex<Forgotten>,
    /// The rule for the time of the last read.
    pub(crate) atime: AtimeRule,
    pub(crate) listings: Mutex<Listings>,
    /// Nodes whose time of the last read is to be written.
    pub(crate) atimes: Mutex<Vec<NodeId>>,
    /// Bytes of known names, of all directories.
    pub(crate) name_bytes: AtomicU64,
    /// The links index may have keys.
    pub(crate) any_links: AtomicBool,
    pub(crate) sweep: AtomicUsize,
    numbers: Mutex<Numbers>,
    /// Areas, with a reference on each, in which counts of names are to be corrected.
    pub(crate) unsettled: Mutex<Vec<NodeId>>,
    pub(crate) lengths: Lengths,
    /// Trees that were removed and are in use.
    pub(crate) lost_trees: AtomicU64,
    /// Held while a snapshot is made: so that there are no two of one name.
    pub(crate) snapshotting: Mutex<()>,
}

/// Inode numbers: `next` is given out next; those below `limit` are set aside durably before
/// anything durable can carry them.
struct Numbers {
    next: u64,
    limit: u64,
}

/// References that are given back on drop. Declared before the locks of an operation, so that it is
/// dropped after them: giving back a reference can mean work.
pub(crate) struct Deferred<'a> {
    fs: &'a FileSystem,
    ids: Vec<NodeId>,
}

impl<'a> Deferred<'a> {
    pub(crate) fn new(fs: &'a FileSystem) -> Self {
        Self { fs, ids: Vec::new() }
    }

    pub(crate) fn release(&mut self, id: NodeId) {
        self.ids.push(id);
    }
}

impl Drop for Deferred<'_> {
    fn drop(&mut self) {
        self.ids.iter().for_each(|id| self.fs.release(*id, 1));
    }
}

/// A reference on a node that is given back on drop.
pub(crate) struct Held<'a> {
    fs: &'a FileSystem,
    node: Option<Arc<Node>>,
}

impl<'a> Held<'a> {
    /// Takes over a reference that was counted already.
    pub(crate) fn adopt(fs: &'a FileSystem, node: Arc<Node>) -> Self {
        Self { fs, node: Some(node) }
    }

    /// Leaves the reference to the caller.
    pub(crate) fn keep(mut self) -> Arc<Node> {
        self.node.take().expect("a held node is taken once")
    }
}

impl std::ops::Deref for Held<'_> {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        self.node.as_ref().expect("a held node is taken once")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            self.fs.release(node.id, 1);
        }
    }
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem").field("volume", &self.volume.id).finish_non_exhaustive()
    }
}

impl FileSystem {
    /// Makes a volume with an empty root directory. Durable when it returns.
    ///
    /// # Errors
    /// [`FsErrorKind::Exists`] if the store has a volume of that name, [`FsErrorKind::Invalid`] for
    /// a block size that is not allowed; of the store.
    pub fn format(store: &Store, options: &FormatOptions) -> Result<()> {
        let parameters = encode_parameters(options.block_size)?;
        let volume = store.create_volume(&options.volume, INDEXES, 0, &parameters)?;
        let mut root =
            Inode::new(FileKind::Directory, options.mode, options.uid, options.gid, 1, options.now);
        root.area = true;
        let metadata = IndexId { volume, index: METADATA };
        let mut batch = Batch::new();
        batch.insert(metadata, layout::ROOT_KEY, root.encode());
        let state = VolumeState { next_number: FIRST_NUMBER, longest_key: Some(0) };
        batch.insert(metadata, layout::STATE_KEY, state.encode());
        let lsn = store.commit(batch)?;
        Ok(store.sync(lsn)?)
    }

    /// Opens a volume of a store that was opened with [`merge_functions`](crate::merge_functions),
    /// and empties its orphan area.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`] if there is no such volume; [`FsErrorKind::Io`] if it is damaged;
    /// of the store.
    pub fn open(store: Arc<Store>, env: Arc<dyn Environment>, options: OpenOptions) -> Result<Arc<Self>> {
        let volume = Arc::new(VolumeContext::open(store, env, options)?);
        let (store, metadata, link_index) = (&volume.store, volume.metadata(), volume.links());
        let damaged =
            |what: &str| FsError::new(FsErrorKind::Io, format!("volume {:?} {what}", volume.options.volume));
        let mut inode =
            match store.get(metadata, layout::ROOT_KEY)?.map(|v| Record::decode(&v)).transpose()? {
                Some(Record::Inode(inode)) if inode.is_dir() => inode,
                _ => return Err(damaged("has no root directory")),
            };
        let state = store.get(metadata, layout::STATE_KEY)?.ok_or_else(|| damaged("has no state record"))?;
        let state = VolumeState::decode(&state)?;
        let next = state.next_number;
        let any_links = store.cursor(link_index, KeyRange::all())?.next()?.is_some();
        // The root always has a link area.
        inode.area = true;
        let root = Node::new(
            NodeId::ROOT,
            Place { parent: None, name: [].into() },
            inode,
            volume.options.number_delta,
            Lsn(0),
        );
        let links = Node::area(LINKS_NODE, &root, Role::LinkArea);
        let orphans = Node::area(ORPHANS_NODE, &links, Role::Orphans);
        *root.dir().area.lock() = Some(LINKS_NODE);
        // The root of what was a directory may have a copy of an area.
        let mark = store.get(link_index, b"")?;
        if mark.as_deref() != Some(LINK_COUNTS_STALE) {
            *links.dir().counts.lock() = Counts::Settled;
        }
        let nodes = NodeTable::new(FIRST_NODE);
        [&root, &links, &orphans].into_iter().for_each(|node| nodes.add(node));
        let atime = AtimeRule::new(volume.options.atime);
        let fs = Self {
            volume,
            tree: Arc::default(),
            renames: Mutex::new(()),
            nodes,
            orphans,
            detached: Mutex::default(),
            forgotten: Mutex::default(),
            atime,
            listings: Mutex::default(),
            atimes: Mutex::default(),
            name_bytes: AtomicU64::new(0),
            any_links: AtomicBool::new(any_links),
            sweep: AtomicUsize::new(0),
            numbers: Mutex::new(Numbers { next, limit: next }),
            unsettled: Mutex::default(),
            lost_trees: AtomicU64::new(0),
            snapshotting: Mutex::default(),
            lengths: Lengths::new(state.longest_key),
        };
        if !fs.volume.options.read_only {
            fs.empty_orphan_area()?;
        }
        Ok(Arc::new(fs))
    }

    /// The node behind an id.
    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        match self.nodes.get(id) {
            Some(node) => Ok(node),
            None => fail(FsErrorKind::Stale, format!("there is no node {}", id.0)),
        }
    }

    /// The directory behind an id.
    pub(crate) fn dir(&self, id: NodeId) -> Result<Arc<Node>> {
        let node = self.node(id)?;
        if node.is_dir() { Ok(node) } else { fail(FsErrorKind::NotDirectory, "not a directory") }
    }

    /// Stores the volume's state with what no key is longer than: what `choose` makes of what is
    /// stored. Returns it.
    pub(crate) fn store_longest_key(&self, choose: impl FnOnce(Option<u64>) -> u64) -> Result<u64> {
        let numbers = self.numbers.lock();
        let longest = choose(self.lengths.stored());
        let mut batch = Batch::new();
        let state = VolumeState { next_number: numbers.limit, longest_key: Some(longest) };
        batch.insert(self.volume.metadata(), layout::STATE_KEY, state.encode());
        self.volume.commit_internal(batch)?;
        self.lengths.set_stored(longest);
        Ok(longest)
    }

    /// A number that no inode of the volume has or had.
    pub(crate) fn fresh_number(&self) -> Result<u64> {
        let mut numbers = self.numbers.lock();
        if numbers.next == numbers.limit {
            let limit = numbers.limit + NUMBERS_RESERVED;
            let mut batch = Batch::new();
            let longest_key = self.lengths.stored();
            let state = VolumeState { next_number: limit, longest_key };
            batch.insert(self.volume.metadata(), layout::STATE_KEY, state.encode());
            self.volume.commit_internal(batch)?;
            numbers.limit = limit;
        }
        numbers.next += 1;
        Ok(numbers.next - 1)
    }

    /// No number from here on was given out.
    pub(crate) fn next_numbers(&self) -> u64 {
        self.numbers.lock().limit
    }

    /// Gives back references; what that leaves unused goes, with work that was put off.
    pub(crate) fn release(&self, id: NodeId, count: u64) {
        let (mut id, mut count) = (id, count);
        let mut below: Option<Arc<Node>> = None;
        loop {
            let retire = |node: &Node| {
                if node.changed.load(Ordering::Acquire)
                    && let Some(parent) = &node.place().parent
                    && let Some(directory) = &parent.directory
                {
                    directory.evictions.fetch_add(1, Ordering::AcqRel);
                }
            };
            match self.nodes.release(id, count, retire) {
                Released::Done => return,
                Released::Pending(node) => {
                    if self.put_off(&node) {
                        return;
                    }
                    if !self.finish(&node) {
                        return;
                    }
                    count = 1;
                }
                Released::Gone(node) => {
                    if let Some(directory) = &node.directory {
                        let bytes = directory.name_bytes.swap(0, Ordering::Relaxed);
                        self.name_bytes.fetch_sub(bytes, Ordering::Relaxed);
                    }
                    let parent = node.place().parent;
                    drop(below.replace(node));
                    match parent {
                        Some(parent) => (id, count) = (parent.id, 1),
                        None => return,
                    }
                }
            }
        }
    }

    /// Does what was put off until the last reference on `node` goes. Nobody waits for the answer:
    /// what fails here is tried again later, and then the reference is kept, or is found by
    /// recovery, or is the time of a read. False if it is kept.
    fn finish(&self, node: &Arc<Node>) -> bool {
        let tree = self.tree.shared_again();
        let result = if self.is_orphan(node) {
            self.remove_orphan(&tree, node)
        } else {
            self.write_atime(&tree, node)
        };
        if let Err(error) = result {
            tracing::warn!(%error, node = node.id.0, "work on a node that is no longer used failed");
            return !self.try_later(node);
        }
        true
    }

    /// The unit of data that is efficient to write, in bytes.
    pub fn block_size(&self) -> u32 {
        self.volume.block_size
    }

    /// The path of `node` in the volume, for messages; of an unlinked file its place in the orphan
    /// area.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`] if the node is not known.
    pub fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        let node = self.node(node)?;
        let _tree = self.tree.shared();
        Ok(path_of(&node))
    }
}

/// The path of a node in the volume. The caller holds the tree lock.
pub(crate) fn path_of(node: &Arc<Node>) -> Vec<u8> {
    let mut at = node.clone();
    let mut names = Vec::new();
    while let Place { parent: Some(parent), name } = at.place() {
        names.push(name);
        at = parent;
    }
    let mut path: Vec<u8> = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}

/// Refuses what cannot be the name of an entry.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        return fail(
            FsErrorKind::NameTooLong,
            format!("a name of {} bytes; {MAX_NAME} are allowed", name.len()),
        );
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return fail(FsErrorKind::Invalid, format!("{:?} is no name", String::from_utf8_lossy(name)));
    }
    Ok(())
}
