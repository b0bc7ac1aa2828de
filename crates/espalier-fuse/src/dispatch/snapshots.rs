//! `.snapshots`: directories of snapshots, which no listing shows. The one in the root holds the
//! snapshots of the whole volume by name; a directory with snapshots of its own has one too, unless
//! an entry of it has that name.
//!
//! Each opened snapshot is a file system that cannot be changed, with node ids of its own
//! (`node_tag`).

use super::convert::{attributes, decode};
use super::errno::{Errno, no_xattr, or_errno, shown_path};
use super::node_tag::{self, SNAPSHOT_DIRECTORY};
use super::small_reply::{SmallReply, put_xattr};
use super::volume::ServedVolume;
use crate::protocol::{Operation, reply};
use crate::transport::Request;
use espalier_fs::{
    FileKind, FileSystem, NodeId, WireReader, WireWriter, snapshot_directory_attr, snapshot_directory_number,
};
use espalier_sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The name of the directories.
pub(super) use espalier_fs::SNAPSHOTS_NAME as NAME;

/// Memory for names, bytes per opened snapshot.
const NAME_MEMORY_BYTES: u64 = 2 << 20;

/// The snapshots of a file system: which are opened, and which directories show them.
pub(super) struct SnapshotTable {
    /// The live file system.
    fs: Arc<FileSystem>,
    xattrs: bool,
    opened: Mutex<Opened>,
}

#[derive(Default)]
struct Opened {
    /// By number of the volume: the tag of its nodes.
    tags: HashMap<u32, u64>,
    by_tag: HashMap<u64, Arc<ServedVolume>>,
    /// How many were opened so far.
    last: u64,
    /// Directories whose snapshots were looked at: inode number and node. Their directories of
    /// snapshots have the nodes behind [`SNAPSHOT_DIRECTORY`], in this order.
    directories: Vec<(u64, NodeId)>,
}

impl SnapshotTable {
    /// The snapshots of `fs`, which are served with extended attributes if `xattrs`.
    pub(super) fn new(fs: Arc<FileSystem>, xattrs: bool) -> Self {
        Self { fs, xattrs, opened: Mutex::default() }
    }

    /// Appends what another server needs to go on with the opened snapshots.
    pub(super) fn hand_over(&self, out: &mut WireWriter) -> espalier_fs::Result<()> {
        let opened = self.opened.lock();
        out.u64(opened.last);
        out.len(opened.directories.len());
        for (ino, node) in &opened.directories {
            out.u64(*ino);
            out.u64(node.0);
        }
        out.len(opened.tags.len());
        for (id, tag) in &opened.tags {
            out.u32(*id);
            out.u64(*tag);
            let state = opened.by_tag.get(tag).map(|volume| volume.fs().hand_over()).transpose()?;
            out.bytes(&state.unwrap_or_default());
        }
        Ok(())
    }

    /// Goes on with what another server appended ([`SnapshotTable::hand_over`]).
    pub(super) fn take_over(&self, state: &mut WireReader<'_>) -> espalier_fs::Result<()> {
        let mut opened = self.opened.lock();
        opened.last = state.u64()?;
        for _ in 0..state.len(16)? {
            let directory = (state.u64()?, NodeId(state.u64()?));
            opened.directories.push(directory);
        }
        let snapshots = self.fs.snapshots();
        for _ in 0..state.len(20)? {
            let (id, tag, state) = (state.u32()?, state.u64()?, state.bytes()?);
            let Some(snapshot) = snapshots.iter().find(|snapshot| snapshot.id == id) else { continue };
            let inner = self.fs.open_snapshot_handed_over(snapshot, NAME_MEMORY_BYTES, state)?;
            opened.tags.insert(id, tag);
            opened.by_tag.insert(tag, Arc::new(ServedVolume::snapshot(inner, self.xattrs, tag)));
        }
        Ok(())
    }

    /// The opened snapshot whose nodes have this tag.
    pub(super) fn opened(&self, tag: u64) -> Result<Arc<ServedVolume>, Errno> {
        self.opened.lock().by_tag.get(&tag).cloned().ok_or(Errno(libc::ESTALE))
    }

    /// The node of the directory of snapshots of directory `node`, whose inode number is `ino`.
    fn directory_for(&self, node: NodeId, ino: u64) -> NodeId {
        let directories = &mut self.opened.lock().directories;
        let at = directories.iter().position(|(known, _)| *known == ino).unwrap_or(directories.len());
        match directories.get_mut(at) {
            // A restored directory has another node than before.
            Some(known) => known.1 = node,
            None => directories.push((ino, node)),
        }
        NodeId(SNAPSHOT_DIRECTORY.0 + 1 + at as u64)
    }

    /// The same if the kernel has looked it up.
    pub(super) fn known_directory(&self, ino: u64) -> Option<NodeId> {
        let at = self.opened.lock().directories.iter().position(|(known, _)| *known == ino)?;
        Some(NodeId(SNAPSHOT_DIRECTORY.0 + 1 + at as u64))
    }

    /// The directory whose snapshots the directory of snapshots `node` shows: its inode number
    /// (`None`: the whole volume) and its node.
    fn directory_of(&self, node: NodeId) -> Result<(Option<u64>, NodeId), Errno> {
        // A handle may have any number.
        let number = node.0.checked_sub(SNAPSHOT_DIRECTORY.0).ok_or(Errno(libc::ESTALE))?;
        let Some(at) = number.checked_sub(1) else {
            return Ok((None, NodeId::ROOT));
        };
        let known = self.opened.lock().directories.get(at as usize).copied();
        known.map(|(number, node)| (Some(number), node)).ok_or(Errno(libc::ESTALE))
    }

    /// The snapshot `name` of a directory, or of the whole volume; opened if it is not yet.
    fn open(&self, directory: Option<u64>, name: &[u8]) -> Result<Arc<ServedVolume>, Errno> {
        let shown = || String::from_utf8_lossy(name).into_owned();
        let mut all = self.fs.snapshots().into_iter();
        let found = all.find(|s| s.directory == directory && s.name.as_bytes() == name);
        let snapshot = found.ok_or(Errno(libc::ENOENT))?;
        let mut opened = self.opened.lock();
        if let Some(known) = opened.tags.get(&snapshot.id).and_then(|tag| opened.by_tag.get(tag)) {
            return Ok(Arc::clone(known));
        }
        let tag = node_tag::snapshot_tag(opened.last + 1).ok_or(Errno(libc::ENFILE))?;
        let inner = or_errno(self.fs.open_snapshot(&snapshot, NAME_MEMORY_BYTES), shown)?;
        opened.last += 1;
        let volume = Arc::new(ServedVolume::snapshot(inner, self.xattrs, tag));
        opened.tags.insert(snapshot.id, tag);
        opened.by_tag.insert(tag, Arc::clone(&volume));
        Ok(volume)
    }

    /// Closes a snapshot that is about to be deleted: its nodes are stale from now on.
    pub(super) fn close(&self, volume: u32) {
        let mut opened = self.opened.lock();
        if let Some(tag) = opened.tags.remove(&volume) {
            opened.by_tag.remove(&tag);
        }
    }

    /// The entry of the directory of snapshots in the root.
    pub(super) fn root_entry(&self) -> Result<SmallReply, Errno> {
        Ok(SmallReply::Entry(SNAPSHOT_DIRECTORY.0, self.attributes(SNAPSHOT_DIRECTORY)?))
    }

    /// The entry of the directory of snapshots in directory `node`, if there are snapshots of it.
    pub(super) fn entry_in(&self, node: NodeId) -> Result<Option<SmallReply>, Errno> {
        let path = || shown_path(&self.fs, node);
        if or_errno(self.fs.snapshots_of(node), path)?.is_empty() {
            return Ok(None);
        }
        let directory = self.directory_for(node, or_errno(self.fs.getattr(node), path)?.ino);
        Ok(Some(SmallReply::Entry(directory.0, self.attributes(directory)?)))
    }

    /// Answers a request on a directory of snapshots; the result is the length of the reply's body.
    pub(super) fn answer(
        &self,
        request: &Request<'_>,
        out: &mut [u8],
        received: usize,
    ) -> Result<usize, Errno> {
        let node = NodeId(request.header.node);
        // The answer overwrites the request.
        let payload = out.get(..received).ok_or(Errno(libc::EIO))?.to_vec();
        match decode(request, &payload)? {
            Operation::Lookup { name: b"." } => {
                Ok(SmallReply::Entry(node.0, self.attributes(node)?).put(out))
            }
            Operation::Lookup { name } => {
                let (directory, _) = self.directory_of(node)?;
                let volume = match self.open(directory, name) {
                    Err(Errno(libc::ENOENT)) => return Ok(SmallReply::NoEntry.put(out)),
                    opened => opened?,
                };
                Ok(volume.as_known(volume.lookup(NodeId::ROOT, b".")?).put(out))
            }
            Operation::GetAttributes => Ok(SmallReply::Attributes(self.attributes(node)?).put(out)),
            Operation::Statx { .. } => Ok(SmallReply::Statx(self.attributes(node)?).put(out)),
            Operation::ReadDirectory { offset, size, plus } => self.list(node, offset, size, plus, out),
            Operation::FileSystemStatistics => {
                or_errno(self.fs.statfs(), String::new).map(|s| SmallReply::statistics(&s).put(out))
            }
            Operation::SyncDirectory { .. } | Operation::Sync { .. } => {
                or_errno(self.fs.syncfs(), String::new).map(|()| 0)
            }
            Operation::GetXattr { name, .. } => Err(no_xattr(name)),
            Operation::ListXattr { size } => put_xattr(out, &[], size),
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

    fn attributes(&self, node: NodeId) -> Result<reply::Attributes, Errno> {
        let (directory, above) = self.directory_of(node)?;
        let root = or_errno(self.fs.getattr(above), || shown_path(&self.fs, above))?;
        let count = self.fs.snapshots().iter().filter(|snapshot| snapshot.directory == directory).count();
        let mut attributes = attributes(&snapshot_directory_attr(directory, &root, count));
        // The node id may be that of another directory of snapshots in the next mount.
        attributes.generation = (attributes.ino >> 32) as u32;
        attributes.follow = true;
        Ok(attributes)
    }

    fn list(&self, node: NodeId, cookie: u64, size: u32, plus: bool, out: &mut [u8]) -> Result<usize, Errno> {
        let (directory, _) = self.directory_of(node)?;
        let own = snapshot_directory_number(directory);
        let size = (size as usize).min(out.len());
        let mut body = reply::Directory::new(&mut out[..size], plus);
        let kind = FileKind::Directory.mode_bits() >> 12;
        let mut names: Vec<(u64, Vec<u8>, u64)> = vec![(1, b".".to_vec(), own), (2, b"..".to_vec(), own)];
        // The number of a volume is never used again, so it serves as the cookie of the entry.
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

    /// Takes back `count` references to a node of a snapshot.
    pub(super) fn forget(&self, node: NodeId, count: u64) {
        if !node_tag::is_snapshot_directory(node)
            && let Ok(volume) = self.opened(node_tag::tag(node))
        {
            volume.fs().forget(node_tag::local(node), count);
        }
    }
}
