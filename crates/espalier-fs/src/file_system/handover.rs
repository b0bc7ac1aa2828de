//! Handing a mounted file system over to another server.
//!
//! The kernel goes on with what the server before has told it. So everything of that is handed
//! over: ids, references and places of nodes, what has become of files without a name, and times
//! that are not written yet. What memory holds of the store besides, the new server reads anew.
//!
//! Invariant: the state and the store are of one instant. [`FileSystem::hand_over`] makes durable
//! what was done, and no call is made afterwards, unless the handover is given up. A state belongs
//! to one volume: another one refuses it. Its encoding has no version of its own, the mount's has
//! one for all that is handed over.
//!
//! References: of those on a node, one is held by each node below, and areas have one from the
//! start. What is left is the kernel's. A file without a name that waits for its data to be
//! deleted has none of the kernel's, and waits again.

use crate::data::reservation;
use crate::file_system::{FileSystem, LINKS, ORPHANS, ROOT};
use crate::inode::forgotten::Location;
use crate::inode::names::Known;
use crate::inode::node::{Node, Orphan, Place, Role, State};
use crate::inode::node_id::Identity;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::record::{Inode, Record};
use crate::model::types::*;
use crate::model::wire::{WireReader, WireWriter};
use crate::volume::mtime_hold::MtimeHold;
use espalier_engine::Store;
use espalier_storage::Environment;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An encoded node has at least so many bytes.
const NODE_MIN_BYTES: usize = 64;
/// An encoded location has at least so many bytes.
const LOCATION_MIN_BYTES: usize = 25;

/// A limited tree that a node without a name counts for.
const CHARGED_BYTES: usize = 24;

/// A node as it is handed over.
struct HandedNode<'a> {
    id: NodeId,
    serial: u64,
    parent: NodeId,
    name: &'a [u8],
    /// References of the kernel.
    references: u64,
    ino: u64,
    inode: Inode,
    orphan: Orphan,
    is_linkable: bool,
    is_time_unwritten: bool,
    held_time: Option<(u64, Duration)>,
    /// Numbers and limits of the trees for which it counts while it has no name.
    charged: Vec<(u64, TreeLimits)>,
    directory: Option<HandedDirectory>,
}

/// What only a directory has.
struct HandedDirectory {
    role: Role,
    sums: [u64; 2],
    has_link_area: bool,
    is_removed: bool,
    is_dead: bool,
}

impl FileSystem {
    /// Makes durable what was done, and says in bytes what another server needs to go on in place
    /// of this one ([`FileSystem::open_handed_over`]). No other call may be under way, and none be
    /// made afterwards unless the handover is given up.
    ///
    /// # Errors
    /// As for [`FileSystem::fsync`]; if a call is under way.
    pub fn hand_over(&self) -> Result<Vec<u8>> {
        self.prefixes.release_below(b"");
        self.names.nodes.catch_up_all();
        if !self.volume.options.read_only {
            self.names.orphans.deferred.remove_all();
            self.access_times.write_all()?;
            self.names.locations.write_all()?;
            self.volume.store.sync_all()?;
        }
        let mut out = WireWriter::default();
        out.u64(self.volume.identity);
        out.u64(self.names.nodes.next_serial());
        out.u64(self.volume.copied() as u64);
        out.u8(self.access_times.rule.get() as u8);
        self.encode_nodes(&mut out)?;
        let forgotten = self.names.nodes.forgotten();
        out.len(forgotten.len());
        for (id, location) in forgotten {
            out.u64(id.0);
            out.u64(location.parent.0);
            out.bool(location.in_link_area);
            out.bytes(&location.name);
        }
        Ok(out.finish())
    }

    /// Appends all nodes, each after its parent.
    fn encode_nodes(&self, out: &mut WireWriter) -> Result<()> {
        let all = self.names.nodes.all();
        let now = self.volume.env.monotonic();
        let mut below: HashMap<NodeId, Vec<(Arc<Node>, u64)>> = HashMap::new();
        let mut roots = Vec::new();
        for (node, references) in &all {
            match node.place().parent.filter(|_| !is_first(node.id)) {
                Some(parent) => below.entry(parent.id).or_default().push((node.clone(), *references)),
                None => roots.push((node.clone(), *references)),
            }
        }
        out.len(all.len());
        let mut next = roots;
        let mut encoded = 0;
        while let Some((node, references)) = next.pop() {
            let children = below.remove(&node.id).unwrap_or_default();
            let own = children.len() as u64 + u64::from(is_first(node.id));
            let Some(references) = references.checked_sub(own) else {
                return fail(FsErrorKind::Io, format!("node {} is held less often than used", node.id.0));
            };
            let place = node.place();
            HandedNode::of(&node, &place, references, now).encode(out);
            next.extend(children);
            encoded += 1;
        }
        if encoded != all.len() {
            return fail(FsErrorKind::Io, "nodes come and go: a call is under way");
        }
        Ok(())
    }

    /// Opens a volume that another server had open until now and handed over by `state`
    /// ([`FileSystem::hand_over`]). Nothing is written before the first call that changes
    /// something, but records of reserved blocks that a crash has left.
    ///
    /// # Errors
    /// As for [`FileSystem::open`]; [`FsErrorKind::Io`] for a state that cannot be understood or is
    /// of another volume.
    pub fn open_handed_over(
        store: Arc<Store>,
        env: Arc<dyn Environment>,
        options: OpenOptions,
        state: &[u8],
    ) -> Result<Arc<Self>> {
        let fs = Self::assemble(store, env, options)?;
        let mut state = WireReader::new(state);
        if state.u64()? != fs.volume.identity {
            return fail(FsErrorKind::Io, "the state that was handed over is of another volume");
        }
        fs.names.nodes.skip_serials(state.u64()?);
        fs.volume.set_copied(state.u64()? as i64);
        let rule = state.u8()?;
        let Some(rule) =
            [Atime::Relative, Atime::Strict, Atime::Never].into_iter().find(|r| *r as u8 == rule)
        else {
            return fail(FsErrorKind::Io, format!("{rule} is no rule for times of the last read"));
        };
        fs.set_atime(rule);
        let in_use = fs.restore_nodes(&mut state)?;
        for _ in 0..state.len(LOCATION_MIN_BYTES)? {
            let (id, parent) = (NodeId(state.u64()?), NodeId(state.u64()?));
            let location = Location { parent, in_link_area: state.bool()?, name: state.bytes()?.into() };
            fs.names.nodes.remember_forgotten(id, location);
        }
        state.finish()?;
        if !fs.volume.options.read_only {
            reservation::open(&fs.volume, &in_use)?;
        }
        Ok(fs)
    }

    /// Restores all nodes; the result is where data of files without a name lies.
    fn restore_nodes(&self, state: &mut WireReader<'_>) -> Result<HashSet<Arc<[u8]>>> {
        let nodes = &self.names.nodes;
        let (mut in_use, mut areas, mut unused) = (HashSet::new(), Vec::new(), Vec::new());
        let now = self.volume.env.monotonic();
        for _ in 0..state.len(NODE_MIN_BYTES)? {
            let handed = HandedNode::decode(state)?;
            if let Orphan::Data(base) = &handed.orphan {
                in_use.insert(base.clone());
            }
            let references = handed.references;
            let node = self.restore_node(handed, now)?;
            match &node.directory {
                Some(directory) if directory.role == Role::LinkArea => areas.push(node),
                None if references == 0 => unused.push(node),
                _ => {}
            }
        }
        for area in areas {
            self.names.areas.load_link_counts(&area)?;
        }
        for node in unused {
            nodes.add_references(node.id, 1);
            if !self.names.orphans.deferred.retry_later(&node) {
                return fail(FsErrorKind::Io, format!("node {} is not in use", node.id.0));
            }
        }
        Ok(in_use)
    }

    fn restore_node(&self, handed: HandedNode<'_>, now: Duration) -> Result<Arc<Node>> {
        let nodes = &self.names.nodes;
        if is_first(handed.id) {
            nodes.add_references(handed.id, handed.references);
            let node = nodes.node(handed.id)?;
            if handed.id == ROOT.id {
                handed.restore_state(&mut node.state(), now);
                self.restore_time(&node);
            }
            return Ok(node);
        }
        let parent = nodes.dir(handed.parent)?;
        let place = Place { parent: Some(parent.clone()), name: handed.name.into() };
        let identity = Identity { id: handed.id, serial: handed.serial };
        let directory = handed.directory.as_ref().map(|directory| (directory.role, directory.sums));
        let node = Node::restored(identity, place, handed.inode.clone(), handed.ino, directory)?;
        if !nodes.add_restored(&node, handed.references) {
            return fail(FsErrorKind::Io, format!("there are two nodes {}", node.id.0));
        }
        if !handed.charged.is_empty() {
            let tree = |(ino, limits): &(u64, TreeLimits)| node.limit_table.tree(*ino, *limits);
            node.charge_to(Some(handed.charged.iter().map(tree).collect()));
        }
        let mut is_found_by_name = parent.dir().role != Role::Orphans;
        if let (Some(handed), Some(directory)) = (&handed.directory, &node.directory) {
            directory.link_area.exists.store(handed.has_link_area, Ordering::Release);
            directory.removed.store(handed.is_removed, Ordering::Release);
            directory.names.lock().dead = handed.is_dead;
            if handed.role == Role::LinkArea {
                *parent.dir().link_area.node.lock() = Some(node.id);
            }
            is_found_by_name &= handed.role == Role::Tree && !handed.is_removed && !handed.is_dead;
        }
        handed.restore_state(&mut node.state(), now);
        // What memory has may be newer than what a lookup is just reading.
        node.changed.store(true, Ordering::Release);
        self.names.orphans.restored(&node, &handed.orphan);
        self.restore_time(&node);
        if is_found_by_name {
            let mut names = parent.dir().names.lock();
            nodes.set_name(&parent, &mut names, handed.name, Known::Present(node.id));
        }
        Ok(node)
    }

    fn restore_time(&self, node: &Node) {
        if node.state().atime_dirty {
            self.access_times.restored(node);
        }
    }
}

/// True for a node that is in memory from the start.
fn is_first(id: NodeId) -> bool {
    [ROOT, LINKS, ORPHANS].iter().any(|first| first.id == id)
}

impl<'a> HandedNode<'a> {
    fn of(node: &Node, place: &'a Place, references: u64, now: Duration) -> Self {
        let directory = node.directory.as_deref().map(|directory| HandedDirectory {
            role: directory.role,
            sums: [directory.sum, directory.link_area.sum],
            has_link_area: directory.has_link_area(),
            is_removed: directory.removed.load(Ordering::Acquire),
            // Before the state, as the lock order wants it.
            is_dead: directory.names.lock().dead,
        });
        let state = node.state();
        Self {
            id: node.id,
            serial: node.serial,
            parent: place.parent.as_ref().map_or(NodeId(0), |parent| parent.id),
            name: &place.name,
            references,
            ino: node.ino,
            inode: state.inode.clone(),
            orphan: state.orphan.clone(),
            is_linkable: state.linkable,
            is_time_unwritten: state.atime_dirty,
            held_time: state.mtime_hold.rest(now),
            charged: node.charged_trees().iter().map(|tree| (tree.ino, tree.limits())).collect(),
            directory,
        }
    }

    fn restore_state(&self, state: &mut State, now: Duration) {
        state.inode = self.inode.clone();
        state.orphan = self.orphan.clone();
        state.linkable = self.is_linkable;
        state.atime_dirty = self.is_time_unwritten;
        state.mtime_hold = self.held_time.map(|held| MtimeHold::resume(held, now)).unwrap_or_default();
    }

    fn encode(&self, out: &mut WireWriter) {
        out.u64(self.id.0);
        out.u64(self.serial);
        out.u64(self.parent.0);
        out.bytes(self.name);
        out.u64(self.references);
        out.u64(self.ino);
        out.bytes(&self.inode.encode());
        match &self.orphan {
            Orphan::No => out.u8(0),
            Orphan::Empty => out.u8(1),
            Orphan::Data(base) => {
                out.u8(2);
                out.bytes(base);
            }
            Orphan::Tree => out.u8(3),
        }
        out.bool(self.is_linkable);
        out.bool(self.is_time_unwritten);
        out.bool(self.held_time.is_some());
        if let Some((number, rest)) = self.held_time {
            out.u64(number);
            out.u64(rest.as_nanos() as u64);
        }
        out.len(self.charged.len());
        for (ino, limits) in &self.charged {
            out.u64(*ino);
            out.u64(limits.exclusive.unwrap_or(u64::MAX));
            out.u64(limits.total.unwrap_or(u64::MAX));
        }
        out.bool(self.directory.is_some());
        if let Some(directory) = &self.directory {
            out.u8(match directory.role {
                Role::Tree => 0,
                Role::LinkArea => 1,
                Role::Orphans => 2,
            });
            directory.sums.iter().for_each(|sum| out.u64(*sum));
            out.bool(directory.has_link_area);
            out.bool(directory.is_removed);
            out.bool(directory.is_dead);
        }
    }

    fn decode(state: &mut WireReader<'a>) -> Result<Self> {
        let (id, serial, parent) = (NodeId(state.u64()?), state.u64()?, NodeId(state.u64()?));
        let (name, references, ino) = (state.bytes()?, state.u64()?, state.u64()?);
        let Record::Inode(inode) = Record::decode(state.bytes()?)? else {
            return fail(FsErrorKind::Io, "a node has no inode");
        };
        let orphan = match state.u8()? {
            0 => Orphan::No,
            1 => Orphan::Empty,
            2 => Orphan::Data(state.bytes()?.into()),
            3 => Orphan::Tree,
            other => return fail(FsErrorKind::Io, format!("{other} is no state of a file without a name")),
        };
        let (is_linkable, is_time_unwritten) = (state.bool()?, state.bool()?);
        let held_time = match state.bool()? {
            true => Some((state.u64()?, Duration::from_nanos(state.u64()?))),
            false => None,
        };
        let mut charged = Vec::new();
        for _ in 0..state.len(CHARGED_BYTES)? {
            let [ino, exclusive, total] = [state.u64()?, state.u64()?, state.u64()?];
            let limit = |bytes: u64| Some(bytes).filter(|bytes| *bytes != u64::MAX);
            charged.push((ino, TreeLimits { exclusive: limit(exclusive), total: limit(total) }));
        }
        let directory = if state.bool()? { Some(HandedDirectory::decode(state)?) } else { None };
        Ok(Self {
            id,
            serial,
            parent,
            name,
            references,
            ino,
            inode,
            orphan,
            is_linkable,
            is_time_unwritten,
            held_time,
            charged,
            directory,
        })
    }
}

impl HandedDirectory {
    fn decode(state: &mut WireReader<'_>) -> Result<Self> {
        let role = match state.u8()? {
            0 => Role::Tree,
            1 => Role::LinkArea,
            2 => Role::Orphans,
            other => return fail(FsErrorKind::Io, format!("{other} is no kind of directory")),
        };
        Ok(Self {
            role,
            sums: [state.u64()?, state.u64()?],
            has_link_area: state.bool()?,
            is_removed: state.bool()?,
            is_dead: state.bool()?,
        })
    }
}
