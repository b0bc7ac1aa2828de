//! The dispatcher: where a path has come to, and the way between the volumes of a store.
//!
//! A *place* is a node of a volume, or the directory of snapshots of a directory, which has no
//! node. `.snapshots` leads from the live volume to such a place, a name there into the volume of
//! the snapshot, and `..` from the top of that back. The rules are those of the mount.

use crate::file_system::FileSystem;
use crate::inode::node::{Node, Role};
use crate::model::access::{Credentials, Granted, SEARCH};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::record::Inode;
use crate::model::types::*;
use crate::references::HeldNode;
use crate::snapshot::volume::{SNAPSHOTS_NAME, SnapshotInfo, snapshot_directory_attr};
use espalier_sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Memory for names, in bytes per opened snapshot.
const NAME_MEMORY_BYTES: u64 = 2 << 20;

/// A volume in which paths lie.
pub(crate) struct PathVolume {
    pub(crate) fs: Arc<FileSystem>,
    /// Of a snapshot: the directory that it is a snapshot of, or was found through.
    via: Option<Hold>,
}

/// A node in use.
pub(crate) struct Hold {
    pub(crate) volume: Arc<PathVolume>,
    pub(crate) node: Arc<Node>,
}

/// Where a path has come to.
#[derive(Clone)]
pub(crate) enum PathPlace {
    /// A file or directory.
    Node(Hold),
    /// The directory of snapshots of this directory.
    Snapshots(Hold),
}

/// The snapshots that are open, by the number of their volume.
#[derive(Default)]
pub(crate) struct OpenSnapshots(Mutex<HashMap<u32, Arc<PathVolume>>>);

impl PathVolume {
    pub(crate) fn live(fs: Arc<FileSystem>) -> Arc<Self> {
        Arc::new(Self { fs, via: None })
    }

    pub(crate) fn root(self: &Arc<Self>) -> Result<PathPlace> {
        Hold::held(self, NodeId::ROOT)
    }

    /// The number of the volume in the store.
    pub(crate) fn id(&self) -> u32 {
        self.fs.volume.id
    }

    pub(crate) fn is_live(&self) -> bool {
        self.via.is_none()
    }
}

impl Hold {
    /// Takes over a reference.
    pub(crate) fn from(volume: &Arc<PathVolume>, held: HeldNode<'_>) -> Self {
        Self { volume: volume.clone(), node: held.keep() }
    }

    /// Takes over the reference of an answer.
    pub(crate) fn of_entry(volume: &Arc<PathVolume>, entry: &Entry) -> Result<Self> {
        Ok(Self { node: volume.fs.names.nodes.node(entry.node)?, volume: volume.clone() })
    }

    /// One reference more on the node with this id, as a place.
    pub(crate) fn held(volume: &Arc<PathVolume>, id: NodeId) -> Result<PathPlace> {
        let references = &volume.fs.names.references;
        let held = references.hold(&references.nodes.node(id)?)?;
        Ok(PathPlace::Node(Self::from(volume, held)))
    }

    pub(crate) fn fs(&self) -> &FileSystem {
        &self.volume.fs
    }
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        // It stays in the table as long as this reference is held.
        self.volume.fs.names.nodes.acquire(self.node.id);
        Self { volume: self.volume.clone(), node: self.node.clone() }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.volume.fs.names.references.release(self.node.id, 1);
    }
}

/// Of a place that is in use: whether it is a directory of snapshots, and where its node lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PlaceAddress(bool, usize);

impl PathPlace {
    pub(crate) fn kind(&self) -> FileKind {
        match self {
            Self::Node(hold) => hold.node.kind,
            Self::Snapshots(_) => FileKind::Directory,
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Node(one), Self::Node(other)) | (Self::Snapshots(one), Self::Snapshots(other)) => {
                Arc::ptr_eq(&one.node, &other.node)
            }
            _ => false,
        }
    }

    /// Names it among the places that are in use.
    pub(crate) fn address(&self) -> PlaceAddress {
        let (Self::Node(hold) | Self::Snapshots(hold)) = self;
        PlaceAddress(matches!(self, Self::Snapshots(_)), Arc::as_ptr(&hold.node).addr())
    }

    /// The file system of its node, or of the directory whose snapshots it has.
    pub(crate) fn fs(&self) -> &FileSystem {
        match self {
            Self::Node(hold) | Self::Snapshots(hold) => hold.fs(),
        }
    }

    /// True for the root of the live volume, which everything lies below.
    pub(crate) fn is_top(&self) -> bool {
        matches!(self, Self::Node(hold) if hold.volume.is_live() && hold.node.id == NodeId::ROOT)
    }

    /// True if `other` is this place or lies below it, in a snapshot or not.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        let mut at = other.clone();
        loop {
            at = match (self, &at) {
                (Self::Node(top), Self::Node(below)) if top.volume.id() == below.volume.id() => {
                    return top.node.contains(&below.node);
                }
                _ if at.is_same(self) => return true,
                (_, Self::Snapshots(of)) => Self::Node(of.clone()),
                (_, Self::Node(below)) => match &below.volume.via {
                    Some(of) => Self::Snapshots(of.clone()),
                    None => return false,
                },
            };
        }
    }

    /// What users see of it.
    pub(crate) fn attr(&self) -> Result<Attr> {
        match self {
            Self::Node(hold) => hold.fs().getattr(hold.node.id),
            Self::Snapshots(of) => {
                let directory = number_of(of);
                let count = of.fs().snapshots().iter().filter(|s| s.directory == directory).count();
                Ok(snapshot_directory_attr(directory, &of.fs().getattr(of.node.id)?, count))
            }
        }
    }

    /// Its inode; of the directory of snapshots as much as rights are judged by.
    pub(crate) fn inode(&self) -> Result<Inode> {
        match self {
            Self::Node(hold) => Ok(hold.node.state().inode.clone()),
            Self::Snapshots(_) => {
                let attr = self.attr()?;
                Ok(Inode::new(attr.kind, attr.mode, attr.uid, attr.gid, attr.ino, attr.ctime))
            }
        }
    }

    /// Refuses a caller that has not all permissions of `want`.
    pub(crate) fn check(&self, caller: &Credentials, want: u32) -> Result<()> {
        match self {
            Self::Node(hold) => caller.check(Granted::by(&hold.node.state().inode), want),
            Self::Snapshots(_) => caller.check(Granted::by(&self.inode()?), want),
        }
    }

    /// Refuses a caller that may not look names up in this directory.
    pub(crate) fn check_search(&self, caller: &Credentials) -> Result<()> {
        if caller.is_privileged() {
            return Ok(());
        }
        self.check(caller, SEARCH)
    }

    /// The entry `name` of this directory; `None` if there is none.
    pub(crate) fn child(&self, name: &[u8], open: &OpenSnapshots) -> Result<Option<Self>> {
        let of = match self {
            Self::Snapshots(of) => return open.find(of, name),
            Self::Node(of) => of,
        };
        let may_lead = name == SNAPSHOTS_NAME && of.volume.is_live();
        if may_lead && of.node.id == NodeId::ROOT {
            return Ok(Some(Self::Snapshots(of.clone())));
        }
        if let Some(held) = of.fs().names.lookup.find(&of.node, name)? {
            return Ok(Some(Self::Node(Hold::from(&of.volume, held))));
        }
        let leads = may_lead && !of.fs().snapshots_of(of.node.id)?.is_empty();
        Ok(leads.then(|| Self::Snapshots(of.clone())))
    }

    /// The directory above this one; itself if there is none.
    pub(crate) fn above(&self) -> Result<Self> {
        let hold = match self {
            Self::Snapshots(of) => return Ok(Self::Node(of.clone())),
            Self::Node(hold) => hold,
        };
        let Some(parent) = hold.node.place().parent else {
            return Ok(match &hold.volume.via {
                Some(of) => Self::Snapshots(of.clone()),
                None => self.clone(),
            });
        };
        if parent.dir().role != Role::Tree {
            return fail(FsErrorKind::NotFound, "the directory was removed");
        }
        Ok(Self::Node(Hold::from(&hold.volume, hold.fs().names.references.hold(&parent)?)))
    }
}

/// The number by which snapshots name a directory; none for the root.
pub(crate) fn number_of(dir: &Hold) -> Option<u64> {
    (dir.node.id != NodeId::ROOT).then_some(dir.node.ino)
}

impl OpenSnapshots {
    /// The top of snapshot `name` of a directory.
    fn find(&self, of: &Hold, name: &[u8]) -> Result<Option<PathPlace>> {
        let (all, directory) = (of.fs().snapshots(), number_of(of));
        let found = all.iter().find(|s| s.directory == directory && s.name.as_bytes() == name);
        let Some(snapshot) = found else { return Ok(None) };
        self.volume(of, &all, snapshot)?.root().map(Some)
    }

    /// The volume of a snapshot; opened if it is not yet. Closes those that were deleted.
    fn volume(&self, of: &Hold, all: &[SnapshotInfo], snapshot: &SnapshotInfo) -> Result<Arc<PathVolume>> {
        let mut open = self.0.lock();
        open.retain(|id, _| all.iter().any(|snapshot| snapshot.id == *id));
        if let Some(known) = open.get(&snapshot.id)
            && known.via.as_ref().is_some_and(|via| Arc::ptr_eq(&via.node, &of.node))
        {
            return Ok(known.clone());
        }
        let fs = of.fs().open_snapshot(snapshot, NAME_MEMORY_BYTES)?;
        let volume = Arc::new(PathVolume { fs, via: Some(of.clone()) });
        open.insert(snapshot.id, volume.clone());
        Ok(volume)
    }
}
