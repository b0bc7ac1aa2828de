//! A file system as it is served: the live one, or an opened snapshot.
//!
//! One call of the file system per request. The reply is left in the buffer in which the request
//! came: the data of a WRITE goes to the file system as a slice of that buffer, and a READ fills
//! it.

use super::caller;
use super::convert::{
    self, attributes, check_times, decode, fallocate_mode, new_node, rename_mode, set_attr, xattr_mode,
};
use super::dirty_pages::{DirtyPages, PageCaching};
use super::errno::{Errno, no_xattr, or_errno, shown_path};
use super::listing_style::ListingStyles;
use super::node_tag;
use super::root_xattrs::COMMAND_XATTR;
use super::small_reply::{SmallReply, put_xattr};
use crate::notifier::Notifier;
use crate::prefetch::{self, Prefetch};
use crate::protocol::flags::statx;
use crate::protocol::{self, Operation, reply};
use crate::transport::Request;
use espalier_fs::{
    Caller, FileKind, FileSystem, FsErrorKind, ListedNodes, NewNode, NodeId, SNAPSHOTS_NAME, Seek,
};
use std::sync::{Arc, OnceLock};

/// A file system with what the kernel knows of it.
pub(super) struct ServedVolume {
    fs: Arc<FileSystem>,
    /// Whether there are extended attributes. Without them the mount saves the requests for them.
    xattrs: bool,
    /// The upper bits of its node ids, as the kernel knows them; 0 for the live file system.
    node_tag: u64,
    /// Pages that the kernel has and the server has not.
    dirty_pages: DirtyPages,
    listing_styles: ListingStyles,
    /// Stores files in the kernel's pages before they are read. Set once the mount exists, if at
    /// all.
    prefetch: OnceLock<Arc<Prefetch>>,
}

impl ServedVolume {
    /// Serves the live file system.
    pub(super) fn live(fs: Arc<FileSystem>, xattrs: bool) -> Self {
        Self::new(fs, xattrs, 0, PageCaching::WriteThrough)
    }

    /// Serves a snapshot, whose nodes the kernel knows by ids with `node_tag`.
    pub(super) fn snapshot(fs: Arc<FileSystem>, xattrs: bool, node_tag: u64) -> Self {
        let mut volume = Self::new(fs, xattrs, node_tag, PageCaching::ReadOnly);
        volume.list_all_attributes();
        volume
    }

    fn new(fs: Arc<FileSystem>, xattrs: bool, node_tag: u64, caching: PageCaching) -> Self {
        Self {
            fs,
            xattrs,
            node_tag,
            dirty_pages: DirtyPages::new(caching),
            listing_styles: ListingStyles::default(),
            prefetch: OnceLock::new(),
        }
    }

    /// Listings give the attributes of all entries from now on.
    pub(super) fn list_all_attributes(&mut self) {
        self.listing_styles.give_all();
    }

    /// The kernel keeps written data to itself for a while (`-o writeback`).
    pub(super) fn expect_write_back(&mut self) {
        self.dirty_pages = DirtyPages::new(PageCaching::WriteBack);
    }

    /// Hands over what tells the kernel of changes.
    pub(super) fn attach(&self, notifier: &Arc<Notifier>) {
        self.dirty_pages.attach(notifier);
    }

    /// Has the kernel write the dirty pages of a file, and drop them, if it can be waited for.
    pub(super) fn write_pages(&self, node: NodeId) {
        self.dirty_pages.write_pages(node, &(0..u64::MAX));
    }

    /// From now on `prefetch` hears of every request before it is served.
    pub(super) fn prefetch(&self, prefetch: Arc<Prefetch>) {
        // There is one mount, so it is set once.
        let _ = self.prefetch.set(prefetch);
    }

    /// The file system.
    pub(super) fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Whether there are extended attributes.
    pub(super) fn has_xattrs(&self) -> bool {
        self.xattrs
    }

    fn is_snapshot(&self) -> bool {
        self.node_tag != 0
    }

    /// Answers a request on one of its nodes; the result is the length of the reply's body in
    /// bytes.
    pub(super) fn answer(
        &self,
        request: &Request<'_>,
        out: &mut [u8],
        received: usize,
    ) -> Result<usize, Errno> {
        let node = node_tag::local(NodeId(request.header.node));
        let payload = out.get(..received).ok_or(Errno(libc::EIO))?;
        let operation = decode(request, payload)?;
        self.announce(node, &operation)?;
        match operation {
            Operation::Read { offset, size, no_atime } => self.read(node, offset, size, no_atime, out),
            Operation::Write { offset, data, from_cache: true, kill_suid_sgid: false, .. } => {
                self.write_cached(node, offset, data).map(|count| reply::written(out, count))
            }
            Operation::Write { offset, data, kill_suid_sgid, sync, .. } => {
                let written = self.write_through(node, offset, data, kill_suid_sgid, sync);
                written.map(|count| reply::written(out, count))
            }
            Operation::ReadDirectory { offset, size, plus } => {
                let nodes = plus.then(|| self.listing_styles.begin(request.header.pid, offset == 0));
                let (listed, left_out) = self.list(node, offset, size, nodes, out)?;
                if let Some(nodes) = nodes.filter(|_| left_out) {
                    self.listing_styles.left_out(request.header.pid, node.0, nodes);
                }
                Ok(listed)
            }
            Operation::GetXattr { name, size } => {
                let value = self.xattr(node, name)?;
                put_xattr(out, &value, size)
            }
            Operation::ListXattr { size } => {
                self.check_xattrs()?;
                let names = or_errno(self.fs.listxattr(node), || self.shown_path(node))?;
                put_xattr(out, &names, size)
            }
            Operation::ReadLink => {
                let target = or_errno(self.fs.readlink(node), || self.shown_path(node))?;
                out.get_mut(..target.len()).ok_or(Errno(libc::ENAMETOOLONG))?.copy_from_slice(&target);
                Ok(target.len())
            }
            _ => {
                self.check_other_place(&operation)?;
                let reply = self.small(node, request, operation)?;
                Ok(self.as_known(reply).put(out))
            }
        }
    }

    /// Announces a request to the prefetcher, which must hear of it before it is served.
    ///
    /// # Errors
    /// The request must not be served.
    pub(super) fn announce(&self, node: NodeId, operation: &Operation<'_>) -> Result<(), Errno> {
        match self.prefetch.get() {
            Some(prefetch) => prefetch.before(node.0, operation).map_err(|_| Errno(libc::EIO)),
            None => Ok(()),
        }
    }

    /// The entry `name` of a directory.
    pub(super) fn lookup(&self, node: NodeId, name: &[u8]) -> Result<SmallReply, Errno> {
        if self.is_snapshot() && node == NodeId::ROOT && name == b".." {
            // It lies in a directory of snapshots, in which the kernel would not find its name.
            return Ok(SmallReply::NoEntry);
        }
        match self.fs.lookup(node, name) {
            Err(error) if error.kind() == FsErrorKind::NotFound => Ok(SmallReply::NoEntry),
            found => or_errno(found, || self.shown_path(node)).map(SmallReply::entry),
        }
    }

    /// The entry `name` of a directory, for a process.
    fn lookup_by(&self, process: u32, node: NodeId, name: &[u8]) -> Result<SmallReply, Errno> {
        let found = self.lookup(node, name)?;
        if found.is_file() {
            self.listing_styles.asked_for_file(process, node.0);
        }
        Ok(found)
    }

    /// A reply with node ids and numbers of blocks as the kernel is to have them.
    pub(super) fn as_known(&self, reply: SmallReply) -> SmallReply {
        let adjust = |attributes| self.dirty_pages.adjust(attributes);
        match reply {
            SmallReply::Entry(node, of) => SmallReply::Entry(node | self.node_tag, adjust(of)),
            SmallReply::Opened(node, of) => SmallReply::Opened(node, adjust(of)),
            SmallReply::Attributes(of) => SmallReply::Attributes(adjust(of)),
            SmallReply::Statx(of) => SmallReply::Statx(adjust(of)),
            other => other,
        }
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        // Commands are refused as well: the kernel passes on no question once it has had ENOSYS,
        // and whether it has must not depend on what was asked before.
        self.check_xattrs()?;
        // The live root has been asked for it before; the root of a snapshot takes no commands.
        if node == NodeId::ROOT && name.starts_with(COMMAND_XATTR.as_bytes()) {
            return Err(Errno(libc::ENODATA));
        }
        match self.fs.getxattr(node, name) {
            Err(error) if error.kind() == FsErrorKind::NoData => Err(no_xattr(name)),
            found => or_errno(found, || self.shown_path(node)),
        }
    }

    /// Writes a page of the kernel's cache; the result is the number of bytes.
    fn write_cached(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let written = or_errno(self.fs.write_back(node, offset, data), || self.shown_path(node));
        self.dirty_pages.written_back(node);
        written.map(|count| count as u32)
    }

    /// Writes data that an application wrote by direct I/O, and makes it durable if `sync` says so
    /// (true: the data only); the result is the number of bytes.
    fn write_through(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
        sync: Option<bool>,
    ) -> Result<u32, Errno> {
        let written = self.fs.write(node, offset, data, kill_privileges).and_then(|count| {
            sync.map_or(Ok(()), |data_only| self.fs.fsync(node, data_only))?;
            Ok(count as u32)
        });
        or_errno(written, || self.shown_path(node))
    }

    fn read(
        &self,
        node: NodeId,
        offset: u64,
        size: u32,
        no_atime: bool,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let size = (size as usize).min(out.len());
        let out = &mut out[..size];
        let read = match no_atime {
            true => self.fs.read_unnoticed(node, offset, out),
            false => self.fs.read(node, offset, out),
        };
        or_errno(read, || self.shown_path(node))
    }

    /// Lists a directory, with the attributes of these `nodes`, if any; the result is the length of
    /// the body, and whether files were left out of those.
    fn list(
        &self,
        node: NodeId,
        cookie: u64,
        size: u32,
        nodes: Option<ListedNodes>,
        out: &mut [u8],
    ) -> Result<(usize, bool), Errno> {
        let size = (size as usize).min(out.len());
        let plus = nodes.is_some();
        let mut body = reply::Directory::new(&mut out[..size], plus);
        let prefetch = self.prefetch.get().filter(|_| plus);
        let mut files = Vec::new();
        let mut each = |entry: espalier_fs::DirEntry<'_>| {
            let kind = entry.kind.mode_bits() >> 12;
            let known = entry.entry.map(|entry| {
                let attributes = self.dirty_pages.adjust(convert::entry(entry));
                (entry.node.0 | self.node_tag, attributes)
            });
            let known = known.as_ref().map(|(node, attributes)| (*node, attributes));
            let added = body.add(entry.name, entry.ino, kind, entry.cookie, known);
            if let Some(entry) =
                entry.entry.filter(|_| added && prefetch.is_some() && entry.kind == FileKind::Regular)
                && entry.attr.size > 0
                && self.fs.is_held_once(entry.node)
            {
                files.push(prefetch::File { node: entry.node.0, size: entry.attr.size });
            }
            added
        };
        let listed = match nodes {
            Some(nodes) => self.fs.readdirplus_once(node, cookie, nodes, &mut each),
            None => self.fs.readdir(node, cookie, &mut each).map(|()| false),
        };
        if let Some(prefetch) = prefetch {
            prefetch.listed(files, |node| self.fs.is_held_once(NodeId(node)));
        }
        match or_errno(listed, || self.shown_path(node)) {
            // The kernel has to get the entries in the body, which hold references. The next
            // request meets the error again.
            Err(_) if !body.is_empty() => Ok((body.len(), false)),
            result => result.map(|left_out| (body.len(), left_out)),
        }
    }

    /// Refuses what would lead to another volume, or to a name in the root that would be hidden by
    /// what is shown there.
    fn check_other_place(&self, operation: &Operation<'_>) -> Result<(), Errno> {
        let (node, name) = match *operation {
            Operation::Link { node, .. } => (node, &b""[..]),
            Operation::Rename { new_parent, new_name, .. } => (new_parent, new_name),
            _ => return Ok(()),
        };
        if node_tag::tag(NodeId(node)) != self.node_tag {
            return Err(Errno(libc::EXDEV));
        }
        match NodeId(node) == NodeId::ROOT && name == SNAPSHOTS_NAME {
            true => Err(Errno(libc::EBUSY)),
            false => Ok(()),
        }
    }

    /// Operations on names and attributes whose reply is small, of a fixed length.
    fn small(
        &self,
        node: NodeId,
        request: &Request<'_>,
        operation: Operation<'_>,
    ) -> Result<SmallReply, Errno> {
        let fs = &self.fs;
        let caller = |umask| Caller {
            uid: request.header.uid,
            gid: request.header.gid,
            pid: request.header.pid,
            umask,
        };
        let name = || self.shown_path(node);
        match operation {
            Operation::Lookup { name: child } => self.lookup_by(request.header.pid, node, child),
            Operation::GetAttributes => {
                or_errno(fs.getattr(node), name).map(|attr| SmallReply::Attributes(attributes(&attr)))
            }
            Operation::Statx { mask } => {
                debug_assert!(mask & !(statx::BASIC_STATS | statx::BTIME) == 0);
                or_errno(fs.getattr(node), name).map(|attr| SmallReply::Statx(attributes(&attr)))
            }
            Operation::SetAttributes(set) => {
                check_times(&set)?;
                or_errno(fs.setattr(node, &set_attr(&set)), name)
                    .map(|attr| SmallReply::Attributes(attributes(&attr)))
            }
            Operation::SymbolicLink { name: link, target } => {
                or_errno(fs.symlink(node, link, target, &caller(0)), name).map(SmallReply::entry)
            }
            Operation::MakeNode { name: new, mode, device, umask } => {
                let what = new_node(mode, device)?;
                or_errno(fs.mknod(node, new, what, mode & 0o7777, &caller(umask)), name)
                    .map(SmallReply::entry)
            }
            Operation::MakeDirectory { name: new, mode, umask } => {
                or_errno(fs.mkdir(node, new, mode & 0o7777, &caller(umask)), name).map(SmallReply::entry)
            }
            Operation::TemporaryFile { mode, umask } => {
                or_errno(fs.tmpfile(node, mode & 0o7777, &caller(umask)), name).map(SmallReply::opened)
            }
            // A snapshot refuses it with the error of MKNOD: ENOSYS would hold for the whole mount.
            Operation::Create { name: new, mode, umask, .. } if self.is_snapshot() => {
                or_errno(fs.mknod(node, new, NewNode::Regular, mode & 0o7777, &caller(umask)), name)
                    .map(SmallReply::opened)
            }
            Operation::Unlink { name: old } => {
                or_errno(fs.unlink(node, old), name).map(|()| SmallReply::Nothing)
            }
            Operation::RemoveDirectory { name: old } => {
                or_errno(fs.rmdir(node, old), name).map(|()| SmallReply::Nothing)
            }
            Operation::Link { node: target, name: new } => {
                or_errno(fs.link(node_tag::local(NodeId(target)), node, new), name).map(SmallReply::entry)
            }
            Operation::Rename { name: old, new_parent, new_name, flags } => {
                let mode = rename_mode(flags, &request.header)?;
                or_errno(fs.rename(node, old, node_tag::local(NodeId(new_parent)), new_name, mode), name)
                    .map(|()| SmallReply::Nothing)
            }
            _ => self.content(node, request, operation),
        }
    }

    /// The same for operations on content and on the whole file system.
    fn content(
        &self,
        node: NodeId,
        request: &Request<'_>,
        operation: Operation<'_>,
    ) -> Result<SmallReply, Errno> {
        let fs = &self.fs;
        let name = || self.shown_path(node);
        let done = |result| or_errno(result, name).map(|()| SmallReply::Nothing);
        match operation {
            Operation::SetXattr { name: xattr, value, flags, kill_sgid } => {
                self.check_xattrs()?;
                done(fs.setxattr(node, xattr, value, xattr_mode(flags)?, kill_sgid))
            }
            Operation::RemoveXattr { name: xattr } => {
                self.check_xattrs()?;
                done(fs.removexattr(node, xattr))
            }
            Operation::Allocate { offset, length, mode } => {
                let kill = self.clears_set_id(node, &request.header);
                done(fs.fallocate(node, offset, length, fallocate_mode(mode)?, kill))
            }
            Operation::Seek { offset, whence } => {
                let what = match whence as i32 {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return Err(Errno(libc::EINVAL)),
                };
                self.dirty_pages.seek(fs, node, offset, what).map(SmallReply::Number)
            }
            Operation::CopyRange { offset, target, target_offset, length, flags, wide } => {
                if flags != 0 {
                    return Err(Errno(libc::EINVAL));
                }
                let target = NodeId(target);
                // Between a snapshot and the live tree the kernel copies by itself.
                if node_tag::tag(target) != self.node_tag {
                    return Err(Errno(libc::EXDEV));
                }
                // A narrow reply has room for less than 4 GiB.
                let length = if wide { length } else { length.min(1 << 31) };
                // The kernel does not say which callers may keep set-id bits.
                let kill = self.clears_set_id(target, &request.header);
                let copied =
                    or_errno(fs.copy_file_range(node, offset, target, target_offset, length, kill), name)?;
                Ok(if wide { SmallReply::Number(copied) } else { SmallReply::Written(copied as u32) })
            }
            Operation::Sync { data_only } => {
                let synced = done(fs.fsync(node, data_only));
                self.dirty_pages.fsync_returns(node);
                synced
            }
            Operation::SyncDirectory { data_only } => done(fs.fsync(node, data_only)),
            Operation::SyncFileSystem | Operation::Destroy => done(fs.syncfs()),
            Operation::FileSystemStatistics => {
                or_errno(fs.statfs_at(node), name).map(|s| SmallReply::statistics(&s))
            }
            Operation::Release | Operation::ReleaseDirectory => Ok(SmallReply::Nothing),
            // Not served: the kernel asks no more.
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// True if a change of the data of `node` by the caller clears set-id bits, as it does for all
    /// users but root with the capability for it.
    fn clears_set_id(&self, node: NodeId, header: &protocol::Header) -> bool {
        // The caller is only looked up for files that have some.
        !self.fs.has_set_id(node) || !caller::keeps_set_id(header)
    }

    fn check_xattrs(&self) -> Result<(), Errno> {
        if self.xattrs { Ok(()) } else { Err(Errno(libc::ENOSYS)) }
    }

    fn shown_path(&self, node: NodeId) -> String {
        shown_path(&self.fs, node)
    }
}
