//! `.snapshots`: a directory in the root that no listing shows, with the snapshots of the volume by name.
//!
//! Each snapshot is a file system of its own that cannot be changed, served by a dispatcher of its own. The upper 16 bits of a
//! node id say which: 0 the live one, the highest the directory itself. They are taken off where a request
//! comes in, and put on where an answer names a node.

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
/// The node of the directory.
pub(super) const DIRECTORY: NodeId = NodeId(0xffff << LOCAL_BITS | 1);
/// Memory for names, per snapshot that is looked into.
const NAME_MEMORY: u64 = 2 << 20;
/// What the directory has for a number: the last but one, which no file gets.
const DIRECTORY_INO: u64 = u64::MAX - 1;

/// What of a node id says in which file system it is.
pub(super) fn tag(node: NodeId) -> u64 {
    node.0 >> LOCAL_BITS << LOCAL_BITS
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
}

impl Snapshots {
    /// What serves the nodes with this tag.
    pub(super) fn of(&self, tag: u64) -> Result<Arc<Dispatcher>, Errno> {
        self.0.lock().by_tag.get(&tag).cloned().ok_or(Errno(libc::ESTALE))
    }

    /// What serves a snapshot, opened if need be.
    fn open(&self, fs: &FileSystem, name: &[u8], xattrs: bool) -> Result<Arc<Dispatcher>, Errno> {
        let shown = || String::from_utf8_lossy(name).into_owned();
        let found = fs.snapshots().into_iter().find(|s| s.name.as_bytes() == name);
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

    /// Answers a request on the directory of snapshots.
    pub(super) fn snapshot_directory(
        &self,
        node: NodeId,
        operation: Operation<'_>,
        out: &mut [u8],
    ) -> Answer {
        match operation {
            Operation::Lookup { .. } if node == NodeId::ROOT => {
                Ok(Small::Entry(DIRECTORY.0, self.snapshot_attributes()?).put(out))
            }
            Operation::Lookup { name: b"." } => {
                Ok(Small::Entry(DIRECTORY.0, self.snapshot_attributes()?).put(out))
            }
            Operation::Lookup { name } => {
                let inner = match self.snapshots.open(&self.fs, name, self.xattrs) {
                    Err(Errno(libc::ENOENT)) => return Ok(Small::NoEntry.put(out)),
                    opened => opened?,
                };
                let root = of(inner.fs.lookup(NodeId::ROOT, b"."), || inner.name(NodeId::ROOT))?;
                Ok(inner.tagged(Small::entry(root)).put(out))
            }
            Operation::GetAttributes => Ok(Small::Attributes(self.snapshot_attributes()?).put(out)),
            Operation::Statx { .. } => Ok(Small::Statx(self.snapshot_attributes()?).put(out)),
            Operation::ReadDirectory { offset, size, plus } => self.list_snapshots(offset, size, plus, out),
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

    fn snapshot_attributes(&self) -> Result<reply::Attributes, Errno> {
        let root = of(self.fs.getattr(NodeId::ROOT), || self.name(NodeId::ROOT))?;
        let count = self.fs.snapshots().len();
        let mut attributes = super::attributes(&root);
        (attributes.ino, attributes.size, attributes.nlink) = (DIRECTORY_INO, count as u64, 2 + count as u32);
        // Nothing can be made in it.
        attributes.mode &= !0o222;
        Ok(attributes)
    }

    fn list_snapshots(&self, cookie: u64, size: u32, plus: bool, out: &mut [u8]) -> Answer {
        let size = (size as usize).min(out.len());
        let mut body = reply::Directory::new(&mut out[..size], plus);
        let kind = super::kind_bits(FileKind::Directory) >> 12;
        let mut names: Vec<(u64, Vec<u8>, u64)> =
            vec![(1, b".".to_vec(), DIRECTORY_INO), (2, b"..".to_vec(), DIRECTORY_INO)];
        // A volume's number is not used again, so it can say where a listing goes on.
        let snapshots = self.fs.snapshots().into_iter();
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
            _ if node == DIRECTORY => {}
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
