//! `.snapshots`: a directory that no listing shows, with snapshots by name: in the root those of
//! the whole volume, in a directory of which there are some its own, unless an entry has that name.
//!
//! Each snapshot is a file system of its own that cannot be changed, served by a dispatcher of its
//! own. The upper 16 bits of a node id say which: 0 the live one, the highest such a directory.
//! They are taken off where a request comes in, and put on where an answer names a node.

use super::errno::{Errno, of};
use super::{Answer, Dispatcher, Small};
use crate::protocol::{Operation, reply};
use crate::transport::Request;
use espalier_fs::{FileKind, FileSystem, NodeId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The name of the directory.
pub(super) const NAME: &[u8] = b".snapshots";
/// Bits of a node id within one file system.
const LOCAL_BITS: u32 = 48;
/// The node of the directory in the root; those of other directories follow.
pub(super) const DIRECTORY: NodeId = NodeId(0xffff << LOCAL_BITS | 1);
/// Memory for names, per snapshot that is looked into.
const NAME_MEMORY: u64 = 2 << 20;
/// What the directory has for a number: the last but one, which no file gets.
const DIRECTORY_INO: u64 = u64::MAX - 1;

/// The number of a directory of snapshots; others have such a one as rarely as files of two clones
/// share one.
fn directory_ino(directory: Option<u64>) -> u64 {
    directory.map_or(DIRECTORY_INO, |number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63)
}

/// What of a node id says in which file system it is.
pub(super) fn tag(node: NodeId) -> u64 {
    node.0 >> LOCAL_BITS << LOCAL_BITS
}

/// True for the node of a directory of snapshots.
pub(super) fn is_directory(node: NodeId) -> bool {
    tag(node) == tag(DIRECTORY)
}

/// The snapshots that were looked into.
#[derive(Default)]
pub(super) struct Snapshots(Mutex<Opened>);

#[derive(Default)]
struct Opened {
    /// By number of the volume: which tag.
    tags: HashMap<u32, u64>,
    by_tag: HashMap<u64, Arc<Dispatcher>>,
    last: u64,
    /// Directories whose snapshots were looked at: number and node. Their directories of snapshots
    /// have the nodes behind [`DIRECTORY`], in this order.
    directories: Vec<(u64, NodeId)>,
}

impl Snapshots {
    /// What serves the nodes with this tag.
    pub(super) fn of(&self, tag: u64) -> Result<Arc<Dispatcher>, Errno> {
        self.0.lock().by_tag.get(&tag).cloned().ok_or(Errno(libc::ESTALE))
    }

    /// The node of the directory of snapshots of directory `node`, whose number is `ino`.
    fn directory_for(&self, node: NodeId, ino: u64) -> NodeId {
        let directories = &mut self.0.lock().directories;
        let at = directories.iter().position(|(known, _)| *known == ino).unwrap_or(directories.len());
        match directories.get_mut(at) {
            // What is restored is another node than it was.
            Some(known) => known.1 = node,
            None => directories.push((ino, node)),
        }
        NodeId(DIRECTORY.0 + 1 + at as u64)
    }

    /// The same if it was looked up.
    pub(super) fn known_directory(&self, ino: u64) -> Option<NodeId> {
        let at = self.0.lock().directories.iter().position(|(known, _)| *known == ino)?;
        Some(NodeId(DIRECTORY.0 + 1 + at as u64))
    }

    /// Of which directory these are the snapshots: its number (of the whole volume none) and its
    /// node.
    fn directory_of(&self, node: NodeId) -> Result<(Option<u64>, NodeId), Errno> {
        let Some(at) = (node.0 - DIRECTORY.0).checked_sub(1) else { return Ok((None, NodeId::ROOT)) };
        let known = self.0.lock().directories.get(at as usize).copied();
        known.map(|(number, node)| (Some(number), node)).ok_or(Errno(libc::ESTALE))
    }

    /// What serves a snapshot, opened if need be.
    fn open(
        &self,
        fs: &FileSystem,
        directory: Option<u64>,
        name: &[u8],
        xattrs: bool,
    ) -> Result<Arc<Dispatcher>, Errno> {
        let shown = || String::from_utf8_lossy(name).into_owned();
        let mut all = fs.snapshots().into_iter();
        let found = all.find(|s| s.directory == directory && s.name.as_bytes() == name);
        let snapshot = found.ok_or(Errno(libc::ENOENT))?;
        let mut opened = self.0.lock();
        if let Some(known) = opened.tags.get(&snapshot.id).and_then(|tag| opened.by_tag.get(tag)) {
            return Ok(Arc::clone(known));
        }
        if opened.last + 2 >= DIRECTORY.0 >> LOCAL_BITS {
            return Err(Errno(libc::ENFILE));
        }
        let inner = of(fs.open_snapshot(&snapshot, NAME_MEMORY), shown)?;
        opened.last += 1;
        let tag = opened.last << LOCAL_BITS;
        let mut dispatcher = Dispatcher::new(inner, xattrs, None, None);
        dispatcher.tag = tag;
        let dispatcher = Arc::new(dispatcher);
        opened.tags.insert(snapshot.id, tag);
        opened.by_tag.insert(tag, Arc::clone(&dispatcher));
        Ok(dispatcher)
    }

    /// Lets go of a snapshot that is about to be deleted: its nodes are stale from now on.
    pub(super) fn close(&self, volume: u32) {
        let mut opened = self.0.lock();
        if let Some(tag) = opened.tags.remove(&volume) {
            opened.by_tag.remove(&tag);
        }
    }
}

impl Dispatcher {
    /// True if a request is about the directory of snapshots or what is in it.
    pub(super) fn is_elsewhere(&self, node: NodeId, operation: &Operation<'_>) -> bool {
        self.tag == 0
            && (tag(node) != 0
                || (node == NodeId::ROOT && matches!(operation, Operation::Lookup { name } if *name == NAME)))
    }

    /// The directory of snapshots of a directory that has no entry of that name, if there are
    /// snapshots of it.
    pub(super) fn find_snapshots(&self, node: NodeId) -> Result<Option<Small>, Errno> {
        let name = || self.name(node);
        if self.tag != 0 || of(self.fs.snapshots_of(node), name)?.is_empty() {
            return Ok(None);
        }
        let directory = self.snapshots.directory_for(node, of(self.fs.getattr(node), name)?.ino);
        Ok(Some(Small::Entry(directory.0, self.snapshot_attributes(directory)?)))
    }

    /// Answers a request on a directory of snapshots.
    pub(super) fn snapshot_directory(
        &self,
        node: NodeId,
        operation: Operation<'_>,
        out: &mut [u8],
    ) -> Answer {
        match operation {
            Operation::Lookup { .. } if node == NodeId::ROOT => {
                Ok(Small::Entry(DIRECTORY.0, self.snapshot_attributes(DIRECTORY)?).put(out))
            }
            Operation::Lookup { name: b"." } => {
                Ok(Small::Entry(node.0, self.snapshot_attributes(node)?).put(out))
            }
            Operation::Lookup { name } => {
                let (directory, _) = self.snapshots.directory_of(node)?;
                let inner = match self.snapshots.open(&self.fs, directory, name, self.xattrs) {
                    Err(Errno(libc::ENOENT)) => return Ok(Small::NoEntry.put(out)),
                    opened => opened?,
                };
                let root = of(inner.fs.lookup(NodeId::ROOT, b"."), || inner.name(NodeId::ROOT))?;
                Ok(inner.tagged(Small::entry(root)).put(out))
            }
            Operation::GetAttributes => Ok(Small::Attributes(self.snapshot_attributes(node)?).put(out)),
            Operation::Statx { .. } => Ok(Small::Statx(self.snapshot_attributes(node)?).put(out)),
            Operation::ReadDirectory { offset, size, plus } => {
                self.list_snapshots(node, offset, size, plus, out)
            }
            Operation::FileSystemStatistics => {
                of(self.fs.statfs(), String::new).map(|s| Small::statistics(&s).put(out))
            }
            Operation::SyncDirectory { .. } | Operation::Sync { .. } => {
                of(self.fs.syncfs(), String::new).map(|()| 0)
            }
            Operation::GetXattr { .. } => Err(Errno(libc::ENODATA)),
            Operation::ListXattr { size } => super::put_xattr(out, &[], size),
            Operation::Release | Operation::ReleaseDirectory => Ok(0),
            Operation::MakeNode { .. }
            | Operation::Create { .. }
            | Operation::TemporaryFile { .. }
            | Operation::MakeDirectory { .. }
            | Operation::SymbolicLink { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::Rename { .. }
            | Operation::SetAttributes(_)
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. } => Err(Errno(libc::EROFS)),
            Operation::Ioctl { .. } => Err(Errno(libc::ENOTTY)),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    fn snapshot_attributes(&self, node: NodeId) -> Result<reply::Attributes, Errno> {
        let (directory, above) = self.snapshots.directory_of(node)?;
        let root = of(self.fs.getattr(above), || self.name(above))?;
        let count = self.fs.snapshots().iter().filter(|snapshot| snapshot.directory == directory).count();
        let mut attributes = super::attributes(&root);
        (attributes.ino, attributes.size, attributes.nlink) =
            (directory_ino(directory), count as u64, 2 + count as u32);
        // Nothing can be made in it.
        attributes.mode &= !0o222;
        Ok(attributes)
    }

    fn list_snapshots(&self, node: NodeId, cookie: u64, size: u32, plus: bool, out: &mut [u8]) -> Answer {
        let (directory, _) = self.snapshots.directory_of(node)?;
        let own = directory_ino(directory);
        let size = (size as usize).min(out.len());
        let mut body = reply::Directory::new(&mut out[..size], plus);
        let kind = super::kind_bits(FileKind::Directory) >> 12;
        let mut names: Vec<(u64, Vec<u8>, u64)> = vec![(1, b".".to_vec(), own), (2, b"..".to_vec(), own)];
        // A volume's number is not used again, so it can say where a listing goes on.
        let snapshots = self.fs.snapshots().into_iter().filter(|s| s.directory == directory);
        names.extend(snapshots.map(|s| (u64::from(s.id) + 3, s.name.into_bytes(), u64::from(s.id) + 3)));
        names.sort();
        for (at, name, ino) in names.into_iter().filter(|(at, ..)| *at > cookie) {
            if !body.add(&name, ino, kind, at, None) {
                break;
            }
        }
        Ok(body.len())
    }

    /// Passes a request on to the snapshot that its node is in.
    pub(super) fn pass_on(
        &self,
        request: &Request<'_>,
        out: &mut [u8],
        received: usize,
    ) -> Result<Option<usize>, Errno> {
        let node = NodeId(request.header.node);
        let inner = self.snapshots.of(tag(node))?;
        let mut header = request.header;
        header.node &= !tag(node);
        let request = Request { header, argument: request.argument, dialect: request.dialect };
        inner.answer(&request, out, received)
    }

    /// Gives back references on a node, wherever it is.
    pub(super) fn forget(&self, node: NodeId, count: u64) {
        match tag(node) {
            0 => self.fs.forget(node, count),
            _ if is_directory(node) => {}
            of => {
                if let Ok(inner) = self.snapshots.of(of) {
                    inner.fs.forget(NodeId(node.0 & !of), count);
                }
            }
        }
    }

    /// An answer with the nodes that it names in this dispatcher's part of the ids.
    pub(super) fn tagged(&self, small: Small) -> Small {
        match small {
            Small::Entry(node, attributes) => Small::Entry(node | self.tag, attributes),
            small => small,
        }
    }
}
