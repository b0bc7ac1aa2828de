//! A mounted volume: the components and their wiring.
//!
//! [`FileSystem`] is a facade: the public calls are in the modules below, by subject, and delegate
//! to the components. They are methods of one type because a mount makes all of them on one volume.

mod contents;
mod durability;
mod handover;
mod names;
mod trees;

use crate::data::data_reader::DataReader;
use crate::data::reservation;
use crate::file::attr_reader::AttrReader;
use crate::file::attributes::Attributes;
use crate::file::copied_beginnings::CopiedBeginnings;
use crate::file::data::FileData;
use crate::file::xattr::ExtendedAttributes;
use crate::inode::access_times::AccessTimes;
use crate::inode::inode_store::InodeStore;
use crate::inode::node::{LinkCounts, Node, Place, Role};
use crate::inode::node_id::Identity;
use crate::inode::node_table::{NodeTable, TableMemory};
use crate::inode::ownership::{ActiveWalks, OwnershipMarks};
use crate::inode::saved_locations::SavedLocations;
use crate::links::link_area::LinkAreas;
use crate::lock_order::{Rank, RankedMutex};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout::{self, INDEXES, METADATA};
use crate::model::record::{Inode, Record, VolumeState};
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::listing::Listings;
use crate::namespace::lookup::Lookup;
use crate::namespace::prefix_cache::PrefixCache;
use crate::namespace::rename::RenameLock;
use crate::orphan::orphan_area::Orphans;
use crate::quota::Quotas;
use crate::references::References;
use crate::snapshot::tree::Snapshots;
use crate::volume::context::{VolumeContext, encode_parameters};
use crate::volume::link_index::LinkIndex;
use crate::volume::state_record::{FIRST_INODE_NUMBER, VolumeStateRecord};
use crate::volume::tree_lock::TreeLock;
use espalier_engine::{Batch, IndexId, Lsn, Store};
use espalier_storage::Environment;
use std::collections::HashSet;
use std::sync::Arc;

/// The node of the root.
const ROOT: Identity = Identity { id: NodeId::ROOT, serial: 1 };
/// The node of the root's link area.
const LINKS: Identity = Identity { id: NodeId(2), serial: 2 };
/// The node of the orphan area.
const ORPHANS: Identity = Identity { id: NodeId(3), serial: 3 };
/// The first serial number that is given to another node.
const FIRST_SERIAL: u64 = 16;

/// A mounted volume. All calls may come from many threads at once.
pub struct FileSystem {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) names: Arc<Namespace>,
    renames: RenameLock,
    listings: Listings,
    attributes: Attributes,
    xattrs: ExtendedAttributes,
    data: FileData,
    access_times: Arc<AccessTimes>,
    snapshots: Snapshots,
    quotas: Quotas,
    /// Directories that calls by path have found.
    pub(crate) prefixes: PrefixCache,
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
        root.has_link_area = true;
        let metadata = IndexId { volume, index: METADATA };
        let mut batch = Batch::new();
        batch.insert(metadata, layout::ROOT_KEY, root.encode());
        let state = VolumeState {
            next_number: FIRST_INODE_NUMBER,
            longest_key: Some(0),
            flags_used: FileFlags::default(),
        };
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
        let fs = Self::assemble(store, env, options)?;
        if !fs.volume.options.read_only {
            fs.names.orphans.empty_area()?;
            reservation::open(&fs.volume, &HashSet::new())?;
        }
        Ok(fs)
    }

    /// The components of a volume, with nothing in memory but the root and its areas.
    fn assemble(store: Arc<Store>, env: Arc<dyn Environment>, options: OpenOptions) -> Result<Arc<Self>> {
        let volume = Arc::new(VolumeContext::open(store, env, options)?);
        let root = read_root(&volume)?;
        let tree: Arc<TreeLock> = Arc::default();
        let state_record = Arc::new(VolumeStateRecord::open(volume.clone(), tree.clone())?);
        let links = Arc::new(LinkIndex::open(volume.clone())?);
        let (nodes, area) = first_nodes(&volume, &links, root)?;
        let orphans = Orphans::new(volume.clone(), nodes.clone(), links.clone(), area);
        let inodes = Arc::new(InodeStore { volume: volume.clone() });
        let access_times = AccessTimes::new(volume.clone(), tree.clone(), nodes.clone(), inodes.clone());
        let names = namespace(
            Parts { volume, tree, nodes, state_record, links, inodes },
            Arc::new(orphans),
            access_times.clone(),
        );
        Ok(Arc::new(Self::with_names(names, access_times)))
    }

    /// Makes the components of calls on one file and on whole trees.
    fn with_names(names: Arc<Namespace>, access_times: Arc<AccessTimes>) -> Self {
        let volume = names.volume.clone();
        let detached = names.orphans.detached.clone();
        let attributes = Attributes {
            volume: volume.clone(),
            tree: names.tree.clone(),
            nodes: names.nodes.clone(),
            inodes: names.inodes.clone(),
            reader: names.lookup.attrs.clone(),
            ownership: names.ownership.clone(),
            access_times: access_times.clone(),
            state_record: names.state_record.clone(),
        };
        let xattrs = ExtendedAttributes {
            volume: volume.clone(),
            tree: names.tree.clone(),
            nodes: names.nodes.clone(),
            inodes: names.inodes.clone(),
            ownership: names.ownership.clone(),
            detached: detached.clone(),
        };
        let data = FileData {
            volume: volume.clone(),
            tree: names.tree.clone(),
            nodes: names.nodes.clone(),
            inodes: names.inodes.clone(),
            reader: names.lookup.attrs.data.clone(),
            detached,
            access_times: access_times.clone(),
            beginnings: CopiedBeginnings::default(),
        };
        let listings = Listings::new(names.clone(), access_times.clone());
        let snapshots = Snapshots::new(names.clone(), access_times.clone());
        let (renames, quotas) = (RenameLock::default(), Quotas { namespace: names.clone() });
        let prefixes = PrefixCache::new(names.references.clone());
        Self {
            volume,
            names,
            renames,
            listings,
            attributes,
            xattrs,
            data,
            access_times,
            snapshots,
            quotas,
            prefixes,
        }
    }

    /// Writes as a call does that was charged before.
    #[cfg(test)]
    pub(crate) fn write_charged(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<usize> {
        self.data.write(node, offset, data, crate::file::data::Privileges::Keep)
    }

    #[cfg(test)]
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    #[cfg(test)]
    pub(crate) fn state_record(&self) -> &VolumeStateRecord {
        &self.names.state_record
    }
}

/// The components below names that everything else is made from.
struct Parts {
    volume: Arc<VolumeContext>,
    tree: Arc<TreeLock>,
    nodes: Arc<NodeTable>,
    state_record: Arc<VolumeStateRecord>,
    links: Arc<LinkIndex>,
    inodes: Arc<InodeStore>,
}

/// Makes the components of calls on names, from the bottom up.
fn namespace(parts: Parts, orphans: Arc<Orphans>, access_times: Arc<AccessTimes>) -> Arc<Namespace> {
    let Parts { volume, tree, nodes, state_record, links, inodes } = parts;
    let ownership = Arc::new(OwnershipMarks {
        volume: volume.clone(),
        tree: tree.clone(),
        nodes: nodes.clone(),
        state_record: state_record.clone(),
        walks: ActiveWalks::default(),
        inodes: inodes.clone(),
        links: links.clone(),
    });
    let data = Arc::new(DataReader { volume: volume.clone(), tree: tree.clone() });
    let attrs = Arc::new(AttrReader { volume: volume.clone(), data });
    let references = Arc::new(References {
        tree: tree.clone(),
        nodes: nodes.clone(),
        orphans: orphans.clone(),
        access_times,
    });
    let areas = Arc::new(LinkAreas {
        volume: volume.clone(),
        tree: tree.clone(),
        nodes: nodes.clone(),
        links: links.clone(),
        orphans: orphans.clone(),
        references: references.clone(),
        searched: RankedMutex::new(Rank::Table, espalier_engine::Key::default()),
    });
    let locations = Arc::new(SavedLocations::new(volume.clone(), tree.clone(), nodes.clone()));
    let lookup = Arc::new(Lookup {
        volume: volume.clone(),
        tree: tree.clone(),
        nodes: nodes.clone(),
        orphans: orphans.clone(),
        references: references.clone(),
        areas: areas.clone(),
        attrs,
        locations: locations.clone(),
    });
    Arc::new(Namespace {
        volume,
        tree,
        nodes,
        state_record,
        inodes,
        links,
        ownership,
        orphans,
        references,
        areas,
        locations,
        lookup,
    })
}

/// The inode of the root directory.
fn read_root(volume: &VolumeContext) -> Result<Inode> {
    let stored = volume.store.get(volume.metadata(), layout::ROOT_KEY)?;
    match stored.map(|value| Record::decode(&value)).transpose()? {
        Some(Record::Inode(mut inode)) if inode.is_dir() => {
            // The root always has a link area.
            inode.has_link_area = true;
            Ok(inode)
        }
        _ => fail(FsErrorKind::Io, format!("volume {:?} has no root directory", volume.options.volume)),
    }
}

/// The node table with the nodes that are always in memory: the root, its link area, and the orphan
/// area, which is also returned.
fn first_nodes(
    volume: &VolumeContext,
    links: &LinkIndex,
    root: Inode,
) -> Result<(Arc<NodeTable>, Arc<Node>)> {
    let place = Place { parent: None, name: [].into() };
    let root = Node::new(ROOT, place, root, volume.options.number_delta, Lsn(0));
    let area = Node::new_area(LINKS, &root, Role::LinkArea);
    let orphans = Node::new_area(ORPHANS, &area, Role::Orphans);
    *root.dir().link_area.node.lock() = Some(LINKS.id);
    // The root of a snapshot of a directory may have a copy of an area.
    if !links.has_stale_counts(b"")? {
        *area.dir().link_counts.lock() = LinkCounts::Right;
    }
    let nodes = NodeTable::new(
        FIRST_SERIAL,
        TableMemory { names: volume.options.name_memory, nodes: volume.options.node_memory },
        match volume.options.read_only {
            true => volume.options.handles.min(HandleLifetime::Open),
            false => volume.options.handles,
        },
        root.changes.clone(),
    );
    [&root, &area, &orphans].into_iter().for_each(|node| nodes.add(node));
    Ok((Arc::new(nodes), orphans))
}
