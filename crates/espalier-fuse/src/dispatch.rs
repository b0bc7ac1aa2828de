//! Requests to file system calls.
//!
//! One call per request; the reply is left in the buffer in which the request came, so the data of
//! a WRITE goes to the file system as a slice of that buffer and the data of a READ is put there by
//! it. Errors become numbers here and nowhere else (`errno`).
//!
//! There are no open files: OPEN, OPENDIR and FLUSH are answered with ENOSYS, after which the
//! kernel no longer asks, and keeps the pages of files and the listings of directories. Existing
//! files are truncated by SETATTR, and O_APPEND is the kernel's own business, as it is for every
//! local file system.
//!
//! CREATE is answered with ENOSYS too, whereupon the kernel makes files by MKNOD. So every `write`
//! goes through the kernel's pages, unless its caller asked for direct I/O. That a reader of a
//! growing file never sees zeros in place of data depends on it: the kernel puts what is written
//! into the page under the page's lock, has it written by the server, and only then raises the
//! size, which a reader looks at after it has the page. A file that is opened with
//! `FOPEN_DIRECT_IO` has no such order: a reader may fill the page at the end of the file from what
//! the server has before the write, and see the size of after it.

mod caller;
mod control;
mod counts;
mod dirty_pages;
mod errno;
mod snapshots;

use crate::notifier::Notifier;
use crate::prefetch::{self, Prefetch};
use crate::protocol::Moment;
use crate::protocol::flags::statx;
use crate::protocol::request::{SetAttributes, SetTime as WireTime};
use crate::protocol::{self, Operation, reply};
use crate::transport::{self, Handler, Outcome, Request};
pub use counts::RequestCounts;
use errno::{Errno, of};
use espalier_fs::{
    Attr, Caller, Fallocate, FileKind, FileSystem, MAX_XATTR, NewNode, NodeId, Notice, RenameMode, Seek,
    SetAttr, SetTime, Waiter, XattrMode,
};
use std::sync::{Arc, OnceLock};

type Answer = Result<usize, Errno>;

/// The extended attribute of the root under which a mount describes itself.
pub const DESCRIPTION_XATTR: &str = "espalier.info";

/// By how much the description may grow between the question for its length and the one for itself.
const DESCRIPTION_SLACK: usize = 4096;

/// Says how the mounted file system is, in a form that is its giver's business; it is told what was
/// asked so far.
#[derive(Clone)]
pub struct Description(pub Arc<dyn Fn(&RequestCounts) -> String + Send + Sync>);

impl std::fmt::Debug for Description {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Description")
    }
}

/// Extended attributes of the root that begin so are commands for the server; see [`Commands`].
pub const COMMAND_XATTR: &str = "espalier.do.";

/// Carries out what is asked for by reading an extended attribute whose name is [`COMMAND_XATTR`]
/// and a command. Root and the user of the server may ask; commands that begin with
/// [`LIST_COMMAND`] change nothing, and every user may. `None`: there is no such command.
#[derive(Clone)]
pub struct Commands(pub Arc<Command>);

/// What commands begin with that only tell something; see [`Commands`].
pub const LIST_COMMAND: &str = "list.";

/// See [`Commands`].
type Command = dyn Fn(&str) -> Option<String> + Send + Sync;

impl std::fmt::Debug for Commands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Commands")
    }
}

/// Whether the caller waits for the answer to the request that the calling thread serves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requester;

impl Waiter for Requester {
    fn waits(&self) -> bool {
        transport::is_waited_for()
    }

    fn stays(&self) -> bool {
        transport::is_wanted()
    }
}

/// Serves requests from a file system.
pub struct Dispatcher {
    fs: Arc<FileSystem>,
    xattrs: bool,
    description: Option<Description>,
    counts: RequestCounts,
    commands: Option<Commands>,
    tokens: control::Tokens,
    sessions: control::Sessions,
    /// Takes from the kernel what it has cached; set once the mount is there.
    notifier: OnceLock<Arc<Notifier>>,
    /// Gives the kernel files before it asks for them; set once the mount is there, if at all.
    prefetch: OnceLock<Arc<Prefetch>>,
    snapshots: snapshots::Snapshots,
    /// What the ids of its nodes have in their upper bits, as the kernel knows them.
    tag: u64,
    /// What the kernel may have and the server has not.
    dirty_pages: dirty_pages::DirtyPages,
}

impl Dispatcher {
    /// Serves `fs`; without `xattrs` the mount has no extended attributes (and saves the requests
    /// for them).
    pub fn new(
        fs: Arc<FileSystem>,
        xattrs: bool,
        description: Option<Description>,
        commands: Option<Commands>,
    ) -> Self {
        Self {
            fs,
            xattrs,
            description,
            commands,
            counts: RequestCounts::default(),
            tokens: Default::default(),
            sessions: Default::default(),
            notifier: OnceLock::new(),
            prefetch: OnceLock::new(),
            snapshots: Default::default(),
            tag: 0,
            dirty_pages: Default::default(),
        }
    }

    /// The kernel keeps what is written to itself for a while.
    pub(crate) fn expect_write_back(&mut self) {
        self.dirty_pages.has_written_data = true;
    }

    /// Gives it what tells the kernel of changes that it did not ask for.
    pub(crate) fn attach(&self, notifier: Arc<Notifier>) {
        self.pass_on_notices(&notifier);
        // There is one mount, so it is set once.
        let _ = self.notifier.set(notifier);
    }

    /// Has the notifier tell the kernel what the file system says that it should be told.
    fn pass_on_notices(&self, notifier: &Arc<Notifier>) {
        // The file system outlives the mount.
        let (notifier, fs) = (Arc::downgrade(notifier), Arc::downgrade(&self.fs));
        self.fs.watch_notices(Arc::new(move |notice| {
            let Some(notifier) = notifier.upgrade() else { return };
            match notice {
                Notice::Attributes(node) => notifier.attributes_changed(node.0),
                Notice::OldStores(node, number) => {
                    let fs = fs.clone();
                    notifier.write_back(node.0, move || {
                        fs.upgrade().iter().for_each(|fs| fs.end_mtime_hold(node, number));
                    });
                }
            }
        }));
    }

    /// Files are given to the kernel by `prefetch` from now on, before it asks for them.
    pub(crate) fn prefetch(&self, prefetch: Arc<Prefetch>) {
        let _ = self.prefetch.set(prefetch);
    }

    /// Requests served so far, and files given to the kernel without any.
    pub(crate) fn counts(&self) -> &RequestCounts {
        &self.counts
    }
}

impl Handler for Dispatcher {
    fn handle(&self, request: &Request<'_>, buffer: &mut [u8], received: usize) -> Outcome {
        self.counts.add(request.header.opcode);
        let mut answer = self.answer(request, buffer, received);
        // A refusal leaves the buffer, and with it the request's data, as it was.
        if matches!(answer, Err(Errno(libc::ENOSPC))) && self.fs.release_unlinked() {
            answer = self.answer(request, buffer, received);
        }
        match answer {
            Ok(None) => Outcome::Silent,
            Ok(Some(length)) => Outcome::Reply(length),
            Err(Errno(errno)) => Outcome::Error(errno),
        }
    }

    fn unanswered(&self, header: &protocol::Header, reply: &[u8]) {
        reply::references(header.opcode, reply).for_each(|node| self.forget(NodeId(node), 1));
    }
}

/// Decodes a request; `payload` may be a copy of what came with it.
fn decode<'a>(request: &Request<'a>, payload: &'a [u8]) -> Result<Operation<'a>, Errno> {
    let opcode = request.header.opcode;
    protocol::decode_parts(&request.header, request.argument, payload, request.dialect)
        .inspect_err(|error| tracing::error!(opcode, %error, "a request cannot be decoded"))
        .map_err(|_| Errno(libc::EIO))
}

impl Dispatcher {
    fn answer(&self, request: &Request<'_>, out: &mut [u8], received: usize) -> Result<Option<usize>, Errno> {
        let header = &request.header;
        let node = NodeId(header.node);
        let payload = out.get(..received).ok_or(Errno(libc::EIO))?;
        let operation = decode(request, payload)?;
        match operation {
            Operation::Forget { count } => {
                self.forget(node, count);
                return Ok(None);
            }
            Operation::BatchForget(list) => {
                list.iter().for_each(|(node, count)| self.forget(NodeId(node), count));
                return Ok(None);
            }
            // Tokens and comparisons are of the whole mount.
            Operation::Ioctl { .. } => {}
            _ if self.is_elsewhere(node, &operation) => {
                if node == NodeId::ROOT || snapshots::is_directory(node) {
                    // The answer goes where the question is.
                    let payload = payload.to_vec();
                    return self.snapshot_directory(node, decode(request, &payload)?, out).map(Some);
                }
                return self.pass_on(request, out, received);
            }
            _ => {}
        }
        if let Some(prefetch) = self.prefetch.get() {
            prefetch.before(node.0, &operation).map_err(|_| Errno(libc::EIO))?;
        }
        let done = match operation {
            Operation::Read { offset, size } => self.read(node, offset, size, out),
            Operation::Write { offset, data, from_cache: true, kill_suid_sgid: false, .. } => {
                self.write_cached(node, offset, data).map(|count| reply::written(out, count))
            }
            Operation::Write { offset, data, kill_suid_sgid, sync, .. } => {
                let written = self.write_through(node, offset, data, kill_suid_sgid, sync);
                written.map(|count| reply::written(out, count))
            }
            Operation::ReadDirectory { offset, size, plus } => self.list(node, offset, size, plus, out),
            // Also to the questions of the program: the kernel passes on none once it has heard
            // this, and whether it has must not depend on what was done before.
            Operation::GetXattr { .. } if !self.xattrs => Err(Errno(libc::ENOSYS)),
            Operation::GetXattr { name, size } if self.describes(node, name) => self.describe(size, out),
            Operation::GetXattr { name, size }
                if node == NodeId::ROOT && name.starts_with(COMMAND_XATTR.as_bytes()) =>
            {
                let name = name[COMMAND_XATTR.len()..].to_vec();
                self.command(&name, caller::user(header), size, out)
            }
            Operation::GetXattr { name, size } => {
                let value = of(self.fs.getxattr(node, name), || self.name(node));
                value.and_then(|value| put_xattr(out, &value, size))
            }
            Operation::ListXattr { size } => {
                self.xattr_names(node).and_then(|names| put_xattr(out, &names, size))
            }
            Operation::Ioctl { command, input, output_size, .. } => {
                // The answer goes where the question is.
                let input = input.to_vec();
                self.control(node, header, command, &input, output_size, out)
            }
            Operation::ReadLink => {
                let target = of(self.fs.readlink(node), || self.name(node))?;
                out.get_mut(..target.len()).ok_or(Errno(libc::ENAMETOOLONG))?.copy_from_slice(&target);
                Ok(target.len())
            }
            _ => {
                let reply = self.small(node, request, operation)?;
                Ok(self.tagged(self.counted(reply)).put(out))
            }
        };
        done.map(Some)
    }

    /// Writes a page of the kernel's cache; the result is the number of bytes.
    fn write_cached(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let written = of(self.fs.write_back(node, offset, data), || self.name(node));
        self.blocks_changed(node);
        written.map(|count| count as u32)
    }

    /// Writes what a program wrote, and makes it durable if `sync` says so (true: the data only);
    /// the result is the number of bytes.
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
        of(written, || self.name(node))
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.xattrs()?;
        of(self.fs.listxattr(node), || self.name(node))
    }

    fn describes(&self, node: NodeId, name: &[u8]) -> bool {
        self.description.is_some() && node == NodeId::ROOT && name == DESCRIPTION_XATTR.as_bytes()
    }

    fn describe(&self, size: u32, out: &mut [u8]) -> Answer {
        let text =
            self.description.as_ref().map(|description| description.0(&self.counts)).unwrap_or_default();
        match size {
            0 => Ok(reply::xattr_size(out, (text.len() + DESCRIPTION_SLACK) as u32)),
            _ => put_xattr(out, text.as_bytes(), size),
        }
    }

    fn command(&self, name: &[u8], uid: u32, size: u32, out: &mut [u8]) -> Answer {
        let Some(commands) = &self.commands else { return Err(Errno(libc::ENODATA)) };
        let trusted = uid == 0 || uid == rustix::process::geteuid().as_raw();
        if !trusted && !name.starts_with(LIST_COMMAND.as_bytes()) {
            return Err(Errno(libc::EPERM));
        }
        if size == 0 {
            // Not to be carried out twice: as long as a value can be.
            return Ok(reply::xattr_size(out, MAX_XATTR as u32));
        }
        let answer = std::str::from_utf8(name).ok().and_then(|name| commands.0(name));
        put_xattr(out, answer.ok_or(Errno(libc::ENODATA))?.as_bytes(), size)
    }

    fn read(&self, node: NodeId, offset: u64, size: u32, out: &mut [u8]) -> Answer {
        let size = (size as usize).min(out.len());
        of(self.fs.read(node, offset, &mut out[..size]), || self.name(node))
    }

    fn list(&self, node: NodeId, cookie: u64, size: u32, plus: bool, out: &mut [u8]) -> Answer {
        let size = (size as usize).min(out.len());
        let mut body = reply::Directory::new(&mut out[..size], plus);
        let prefetch = self.prefetch.get().filter(|_| plus);
        let mut files = Vec::new();
        let mut each = |entry: espalier_fs::DirEntry<'_>| {
            let kind = kind_bits(entry.kind) >> 12;
            let known = entry.entry.map(|entry| {
                let attributes = self.dirty_pages.counted(attributes(&entry.attr));
                (entry.node.0 | self.tag, attributes)
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
        let listed = match plus {
            true => self.fs.readdirplus_once(node, cookie, &mut each),
            false => self.fs.readdir(node, cookie, &mut each),
        };
        if let Some(prefetch) = prefetch {
            prefetch.listed(files, |node| self.fs.is_held_once(NodeId(node)));
        }
        match of(listed, || self.name(node)) {
            // What is in the body already holds references; the error comes with the next request.
            Err(_) if !body.is_empty() => Ok(body.len()),
            result => result.map(|()| body.len()),
        }
    }

    /// Everything whose reply is of a small fixed length.
    fn small(&self, node: NodeId, request: &Request<'_>, operation: Operation<'_>) -> Result<Small, Errno> {
        let fs = &self.fs;
        let caller = |umask| Caller {
            uid: request.header.uid,
            gid: request.header.gid,
            pid: request.header.pid,
            umask,
        };
        let name = || self.name(node);
        match operation {
            Operation::Lookup { name: of_what } => match fs.lookup(node, of_what) {
                Err(error) if error.kind() == espalier_fs::FsErrorKind::NotFound => {
                    let hidden = of_what == snapshots::NAME;
                    let found = if hidden { self.find_snapshots(node)? } else { None };
                    Ok(found.unwrap_or(Small::NoEntry))
                }
                found => of(found, name).map(Small::entry),
            },
            Operation::GetAttributes => {
                of(fs.getattr(node), name).map(|attr| Small::Attributes(attributes(&attr)))
            }
            Operation::Statx { mask } => {
                debug_assert!(mask & !(statx::BASIC_STATS | statx::BTIME) == 0);
                of(fs.getattr(node), name).map(|attr| Small::Statx(attributes(&attr)))
            }
            Operation::SetAttributes(set) => {
                check_times(&set)?;
                of(fs.setattr(node, &set_attr(&set)), name).map(|attr| Small::Attributes(attributes(&attr)))
            }
            Operation::SymbolicLink { name: link, target } => {
                of(fs.symlink(node, link, target, &caller(0)), name).map(Small::entry)
            }
            Operation::MakeNode { name: new, mode, device, umask } => {
                let what = new_node(mode, device)?;
                of(fs.mknod(node, new, what, mode & 0o7777, &caller(umask)), name).map(Small::entry)
            }
            Operation::MakeDirectory { name: new, mode, umask } => {
                of(fs.mkdir(node, new, mode & 0o7777, &caller(umask)), name).map(Small::entry)
            }
            Operation::TemporaryFile { mode, umask } => {
                of(fs.tmpfile(node, mode & 0o7777, &caller(umask)), name).map(Small::opened)
            }
            // In a snapshot it is refused; ENOSYS would be for the whole mount.
            Operation::Create { name: new, mode, umask, .. } if self.tag != 0 => {
                of(fs.mknod(node, new, NewNode::Regular, mode & 0o7777, &caller(umask)), name)
                    .map(Small::opened)
            }
            Operation::Unlink { name: old } => of(fs.unlink(node, old), name).map(|()| Small::Nothing),
            Operation::RemoveDirectory { name: old } => {
                of(fs.rmdir(node, old), name).map(|()| Small::Nothing)
            }
            Operation::Link { node: target, name: new } => {
                of(fs.link(NodeId(target), node, new), name).map(Small::entry)
            }
            Operation::Rename { name: old, new_parent, new_name, flags } => {
                let mode = rename_mode(flags, &request.header)?;
                of(fs.rename(node, old, NodeId(new_parent), new_name, mode), name).map(|()| Small::Nothing)
            }
            _ => self.content(node, request, operation),
        }
    }

    /// Operations on content and on the whole file system.
    fn content(&self, node: NodeId, request: &Request<'_>, operation: Operation<'_>) -> Result<Small, Errno> {
        let fs = &self.fs;
        let name = || self.name(node);
        let done = |result| of(result, name).map(|()| Small::Nothing);
        match operation {
            Operation::SetXattr { name: xattr, value, flags, kill_sgid } => {
                self.xattrs()?;
                done(fs.setxattr(node, xattr, value, xattr_mode(flags)?, kill_sgid))
            }
            Operation::RemoveXattr { name: xattr } => {
                self.xattrs()?;
                done(fs.removexattr(node, xattr))
            }
            Operation::Allocate { offset, length, mode } => {
                let kill = self.clears_set_id(node, &request.header);
                done(fs.fallocate(node, offset, length, allocation(mode)?, kill))
            }
            Operation::Seek { offset, whence } => {
                let what = match whence as i32 {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return Err(Errno(libc::EINVAL)),
                };
                self.seek(node, offset, what).map(Small::Number)
            }
            Operation::CopyRange { offset, target, target_offset, length, flags, wide } => {
                if flags != 0 {
                    return Err(Errno(libc::EINVAL));
                }
                let target = NodeId(target);
                // From a snapshot into the live tree or the other way round: the kernel copies by
                // itself.
                if snapshots::tag(target) != self.tag {
                    return Err(Errno(libc::EXDEV));
                }
                // A narrow reply has room for less than 4 GiB.
                let length = if wide { length } else { length.min(1 << 31) };
                // The kernel does not say which callers may keep set-id bits.
                let kill = self.clears_set_id(target, &request.header);
                let copied = of(fs.copy_file_range(node, offset, target, target_offset, length, kill), name)?;
                Ok(if wide { Small::Number(copied) } else { Small::Written(copied as u32) })
            }
            Operation::Sync { data_only } => {
                let synced = done(fs.fsync(node, data_only));
                self.synced(node);
                synced
            }
            Operation::SyncDirectory { data_only } => done(fs.fsync(node, data_only)),
            Operation::SyncFileSystem | Operation::Destroy => done(fs.syncfs()),
            Operation::FileSystemStatistics => of(fs.statfs(), name).map(|s| Small::statistics(&s)),
            Operation::Release | Operation::ReleaseDirectory => Ok(Small::Nothing),
            // Not served, and the kernel need not ask again.
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// True if a change of the data of `node` by the caller clears set-id bits, as it does for all
    /// users but root with the capability for it.
    fn clears_set_id(&self, node: NodeId, header: &protocol::Header) -> bool {
        // The caller is only looked up for files that have some.
        !self.fs.has_set_id(node) || !caller::keeps_set_id(header)
    }

    fn xattrs(&self) -> Result<(), Errno> {
        if self.xattrs { Ok(()) } else { Err(Errno(libc::ENOSYS)) }
    }

    /// A path for messages.
    fn name(&self, node: NodeId) -> String {
        match self.fs.path(node) {
            Ok(path) => String::from_utf8_lossy(&path).into_owned(),
            Err(_) => format!("node {}", node.0),
        }
    }
}

/// A reply of a small fixed length, taken from the request's names so that they may be overwritten.
enum Small {
    Nothing,
    Entry(u64, reply::Attributes),
    /// A node that is open already.
    Opened(u64, reply::Attributes),
    NoEntry,
    Attributes(reply::Attributes),
    Statx(reply::Attributes),
    Number(u64),
    Written(u32),
    Statistics(reply::Statistics),
}

impl Small {
    fn entry(entry: espalier_fs::Entry) -> Self {
        Self::Entry(entry.node.0, attributes(&entry.attr))
    }

    fn opened(entry: espalier_fs::Entry) -> Self {
        Self::Opened(entry.node.0, attributes(&entry.attr))
    }

    fn statistics(of: &espalier_fs::StatFs) -> Self {
        Self::Statistics(reply::Statistics {
            blocks: of.blocks,
            free: of.free,
            available: of.available,
            files: of.files,
            files_free: 0,
            block_size: of.block_size,
            name_max: of.max_name,
        })
    }

    fn put(self, out: &mut [u8]) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Entry(node, attributes) => reply::entry(out, node, &attributes),
            Self::Opened(node, attributes) => {
                let length = reply::entry(out, node, &attributes);
                length + reply::opened(&mut out[length..])
            }
            Self::NoEntry => reply::no_entry(out),
            Self::Attributes(attributes) => reply::attribute_reply(out, &attributes),
            Self::Statx(attributes) => reply::statx(out, &attributes),
            Self::Number(number) => reply::number(out, number),
            Self::Written(count) => reply::written(out, count),
            Self::Statistics(statistics) => reply::statistics(out, &statistics),
        }
    }
}

fn put_xattr(out: &mut [u8], value: &[u8], size: u32) -> Answer {
    if size == 0 {
        return Ok(reply::xattr_size(out, value.len() as u32));
    }
    if value.len() > size as usize {
        return Err(Errno(libc::ERANGE));
    }
    out.get_mut(..value.len()).ok_or(Errno(libc::ERANGE))?.copy_from_slice(value);
    Ok(value.len())
}

const NANOSECONDS: i64 = 1_000_000_000;

/// Nanoseconds since the epoch; what is farther than 292 years from it becomes the farthest time
/// there is.
fn nanoseconds(moment: Moment) -> i64 {
    moment.seconds.saturating_mul(NANOSECONDS).saturating_add(i64::from(moment.nanoseconds))
}

fn moment(nanoseconds: i64) -> Moment {
    Moment {
        seconds: nanoseconds.div_euclid(NANOSECONDS),
        nanoseconds: nanoseconds.rem_euclid(NANOSECONDS) as u32,
    }
}

fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

fn attributes(of: &Attr) -> reply::Attributes {
    reply::Attributes {
        ino: of.ino,
        size: of.size,
        blocks: of.blocks,
        atime: moment(of.atime),
        mtime: moment(of.mtime),
        ctime: moment(of.ctime),
        btime: moment(of.btime),
        mode: kind_bits(of.kind) | of.mode & 0o7777,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        // `makedev` puts numbers that fit into 32 bits where the kernel's packing has them.
        rdev: of.rdev as u32,
        block_size: of.blksize,
    }
}

/// Refuses a time of modification that cannot be stored where the kernel keeps times by itself: it
/// does not take over what was stored instead. Then it always sends the time of the last change.
fn check_times(set: &SetAttributes) -> Result<(), Errno> {
    match set.mtime {
        Some(WireTime::To(asked)) if set.ctime.is_some() && moment(nanoseconds(asked)) != asked => {
            Err(Errno(libc::EOVERFLOW))
        }
        _ => Ok(()),
    }
}

fn set_attr(set: &SetAttributes) -> SetAttr {
    let time = |time: WireTime| match time {
        WireTime::Now => SetTime::Now,
        WireTime::To(moment) => SetTime::At(nanoseconds(moment)),
    };
    SetAttr {
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        ctime: set.ctime.map(|moment| SetTime::At(nanoseconds(moment))),
        kill_privileges: set.kill_suid_sgid,
    }
}

fn new_node(mode: u32, device: u32) -> Result<NewNode, Errno> {
    match mode & libc::S_IFMT {
        libc::S_IFREG | 0 => Ok(NewNode::Regular),
        libc::S_IFIFO => Ok(NewNode::Fifo),
        libc::S_IFSOCK => Ok(NewNode::Socket),
        libc::S_IFCHR => Ok(NewNode::CharDevice(u64::from(device))),
        libc::S_IFBLK => Ok(NewNode::BlockDevice(u64::from(device))),
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn rename_mode(flags: u32, header: &protocol::Header) -> Result<RenameMode, Errno> {
    const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
    let whiteout = |replace| RenameMode::Whiteout { replace, uid: header.uid, gid: header.gid };
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        libc::RENAME_WHITEOUT => Ok(whiteout(true)),
        WHITEOUT_NOREPLACE => Ok(whiteout(false)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn xattr_mode(flags: u32) -> Result<XattrMode, Errno> {
    match flags as i32 {
        0 => Ok(XattrMode::Set),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn allocation(mode: u32) -> Result<Fallocate, Errno> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match mode as i32 {
        0 => Ok(Fallocate::Allocate { keep_size: false }),
        KEEP => Ok(Fallocate::Allocate { keep_size: true }),
        PUNCH => Ok(Fallocate::PunchHole),
        ZERO => Ok(Fallocate::ZeroRange { keep_size: false }),
        ZERO_KEEP => Ok(Fallocate::ZeroRange { keep_size: true }),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}
