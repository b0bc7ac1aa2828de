//! The vocabulary of the file system's calls.

pub use crate::model::file_flags::FileFlags;
pub use crate::model::tree_limits::{TreeLimits, TreeQuota};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The longest name of a directory entry or extended attribute, in bytes.
pub const MAX_NAME: usize = 255;

/// The longest value of an extended attribute, in bytes.
pub const MAX_XATTR: usize = 64 << 10;

/// The longest target of a symbolic link, in bytes.
pub const MAX_SYMLINK: usize = 4095;

/// The largest file, in bytes.
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// The longest key that may be made, in bytes; room for the suffix of blocks and attributes
/// included.
pub(crate) const MAX_KEY: usize = 1 << 20;

/// Names a file or directory that is in use. It stands for a (parent, name) pair, or, for a file
/// with several names, for the file, and stays when the file is renamed. Each
/// [`FileSystem::lookup`](crate::FileSystem::lookup) and each call that makes an entry takes one
/// reference, which [`FileSystem::forget`](crate::FileSystem::forget) gives back. A file that comes
/// back into use has the same id, unless the id is taken; [`Entry::generation`] tells those with
/// one id apart. Ids have 48 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory; always there.
    pub const ROOT: Self = Self(1);
}

/// What kind of object an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Regular,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    /// The file type bits of `st_mode` (inode(7)).
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Socket => 0o140_000,
            Self::Symlink => 0o120_000,
            Self::Regular => 0o100_000,
            Self::BlockDevice => 0o060_000,
            Self::Directory => 0o040_000,
            Self::CharDevice => 0o020_000,
            Self::Fifo => 0o010_000,
        }
    }

    /// The kind that the file type bits of a mode say, if they say one.
    pub fn of_mode(mode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.mode_bits() == mode & 0o170_000)
    }
}

/// The attributes of a file or directory. Times are nanoseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// The number that users see (`st_ino`); stable across rename and remount.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, set-id bits and sticky bit (the low 12 bits of `st_mode`).
    pub mode: u32,
    /// Number of names; for a directory 2 and one for each subdirectory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, as `makedev` makes it; otherwise 0.
    pub rdev: u64,
    /// Size in bytes; for a directory its number of entries.
    pub size: u64,
    /// Space that the data takes, in units of 512 bytes, before compression.
    pub blocks: u64,
    /// The unit of data that is efficient to write, in bytes.
    pub blksize: u32,
    /// Last read.
    pub atime: i64,
    /// Last change of the content.
    pub mtime: i64,
    /// Last change of content or attributes.
    pub ctime: i64,
    /// Creation.
    pub btime: i64,
}

/// On whose behalf a call is made. The rights to read, write and search are checked by the kernel
/// (`default_permissions`); here the ids become owners of what is made.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id; for traces only.
    pub pid: u32,
    /// Permission bits that new files do not get; ignored where the directory has a default ACL.
    /// 0 if the kernel has applied it already.
    pub umask: u32,
}

/// What a lookup or a call that makes an entry returns: one reference on a node, and its
/// attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The node, with one reference more.
    pub node: NodeId,
    /// Never the same for two files that have one id at different times, in this volume or another
    /// (but for a chance of one in 2^32).
    pub generation: u32,
    /// Its attributes.
    pub attr: Attr,
}

/// What a rename found, under the locks with which it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renamed {
    /// The node that had the old name.
    pub moved: NodeId,
    /// The node that had the new one: what was replaced, or moved the other way.
    pub target: Option<NodeId>,
    /// One of them is a directory.
    pub has_tree: bool,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// Nanoseconds since the Unix epoch.
    At(i64),
}

/// What [`FileSystem::setattr`](crate::FileSystem::setattr) changes; `None` leaves as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission, set-id and sticky bits.
    pub mode: Option<u32>,
    /// Owner. Setting owner or group clears set-id bits and capabilities of files.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Last change of attributes; the time of the call if `None`.
    pub ctime: Option<SetTime>,
    /// Clear set-id bits and capabilities as a write by an ordinary user does (kill-priv).
    pub kill_privileges: bool,
}

/// What [`FileSystem::mknod`](crate::FileSystem::mknod) makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewNode {
    /// An empty regular file.
    Regular,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with this number.
    CharDevice(u64),
    /// A block device with this number.
    BlockDevice(u64),
}

/// How [`FileSystem::rename`](crate::FileSystem::rename) treats an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// It is replaced, by the rules of POSIX.
    #[default]
    Replace,
    /// The rename fails.
    NoReplace,
    /// The two change places.
    Exchange,
    /// A character device 0:0 with this owner is left where the entry was, in the same step
    /// (`RENAME_WHITEOUT`); union file systems take it for the absence of an entry.
    Whiteout {
        /// An existing target is replaced.
        replace: bool,
        /// Owner of what is left.
        uid: u32,
        /// Group of what is left.
        gid: u32,
    },
}

/// One of the changes that [`FileSystem::rename_all`](crate::FileSystem::rename_all) makes at a
/// place below a directory, with an entry of another directory, where things are staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenameStep {
    /// What is done.
    pub action: RenameAction,
    /// The path below the directory: names.
    pub place: Vec<Vec<u8>>,
    /// The name of what is staged, or the name that it gets there.
    pub staged: Vec<u8>,
    /// What must be at the place: number and time of change (nanoseconds since the Unix epoch).
    /// Not looked at where nothing may be there.
    pub expected: (u64, i64),
}

/// What a [`RenameStep`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameAction {
    /// What is staged moves to the place, where nothing may be.
    Enter,
    /// What is at the place moves away and is staged.
    Leave,
    /// The two change places.
    Exchange,
    /// The two, both directories, exchange mode, owner, group and extended attributes.
    ExchangeAttributes,
}

/// What [`FileSystem::fallocate`](crate::FileSystem::fallocate) does to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    /// Checks that there is room now and, unless `keep_size`, grows the file to contain the range.
    Allocate {
        /// Leave the size as it is.
        keep_size: bool,
    },
    /// The range becomes a hole; the size stays.
    PunchHole,
    /// The range reads as zeros.
    ZeroRange {
        /// Leave the size as it is.
        keep_size: bool,
    },
}

/// What [`FileSystem::lseek`](crate::FileSystem::lseek) looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte that is in a hole, or the end of the file.
    Hole,
}

/// How [`FileSystem::setxattr`](crate::FileSystem::setxattr) treats an existing attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Make or replace.
    #[default]
    Set,
    /// Fail if it exists.
    Create,
    /// Fail if it does not exist.
    Replace,
}

/// A change of owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerChange {
    /// The new owner; `None`: each entry keeps its own.
    pub uid: Option<u32>,
    /// The new group; `None`: each entry keeps its own.
    pub gid: Option<u32>,
}

/// A change of modes: each entry gets `mode & keep | add`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeChange {
    /// Bits of directories that stay as they are.
    pub keep_directories: u32,
    /// Bits that directories get.
    pub add_directories: u32,
    /// Bits of other files that stay as they are.
    pub keep_files: u32,
    /// Bits that other files get.
    pub add_files: u32,
    /// Bits that other files get if an execute bit is set (`chmod +X`).
    pub add_executables: u32,
}

/// One entry of a listing.
#[derive(Debug)]
pub struct DirEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its number, as in [`Attr::ino`].
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Give this to continue behind this entry; fits in 63 bits.
    pub cookie: u64,
    /// With [`FileSystem::readdirplus`](crate::FileSystem::readdirplus), for entries other than
    /// `.` and `..`: the node, with one reference if the callback keeps the entry, and attributes.
    pub entry: Option<&'a Entry>,
}

/// Which entries of a listing come with their nodes, other than `.` and `..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedNodes {
    /// All of them.
    All,
    /// All but the first that is no directory.
    AllButOneFile,
    /// Directories.
    Directories,
}

/// Room and limits of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// The unit of the counts, in bytes.
    pub block_size: u32,
    /// Units in all.
    pub blocks: u64,
    /// Units free.
    pub free: u64,
    /// Units free for ordinary use.
    pub available: u64,
    /// Entries in use, as far as known; 0: not counted.
    pub files: u64,
    /// The longest name.
    pub max_name: u32,
}

/// Counters since opening, and what memory holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsStatistics {
    /// Nodes held for the users of node ids.
    pub nodes: u64,
    /// Bytes of names known in memory.
    pub name_bytes: u64,
    /// Lookups answered from memory.
    pub lookup_hits: u64,
    /// Lookups that asked the engine.
    pub lookup_misses: u64,
    /// Calls that made something.
    pub creates: u64,
    /// Of these, calls that had to ask the engine whether the name exists.
    pub create_queries: u64,
    /// Unlinked files that are still in use.
    pub orphans: u64,
    /// Walks over whole trees that found out whether everything in them is the caller's own.
    pub ownership_walks: u64,
    /// Bytes read by callers.
    pub bytes_read: u64,
    /// Bytes written by callers.
    pub bytes_written: u64,
}

/// When reading changes the time of the last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// If it is older than the last change, or than a day.
    #[default]
    Relative,
    /// By every read that reaches the file system; reads that the kernel answers from its pages do
    /// not.
    Strict,
    /// Never.
    Never,
}

/// The rule for the time of the last read of a mounted volume, which a remount can change.
#[derive(Debug)]
pub(crate) struct AtimeRule(AtomicU8);

impl AtimeRule {
    const RULES: [Atime; 3] = [Atime::Relative, Atime::Strict, Atime::Never];

    pub(crate) fn new(rule: Atime) -> Self {
        Self(AtomicU8::new(rule as u8))
    }

    pub(crate) fn set(&self, rule: Atime) {
        self.0.store(rule as u8, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Atime {
        Self::RULES[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

/// What a volume gets when it is made.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Name of the volume.
    pub volume: String,
    /// Bytes of file data per key, a power of two from 4096 to 1 MiB.
    pub block_size: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Mode of the root directory.
    pub mode: u32,
    /// The time of creation, nanoseconds since the Unix epoch.
    pub now: i64,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { volume: "main".into(), block_size: 64 << 10, uid: 0, gid: 0, mode: 0o755, now: 0 }
    }
}

/// Called to have pending [`forget`](crate::FileSystem::forget)s delivered.
pub type ForgetDrain = Arc<dyn Fn() + Send + Sync>;

/// The caller that waits for the call which the current thread serves, and may give up. Locks are
/// held when it is asked.
pub trait Waiter: Send + Sync {
    /// True unless the caller has given up.
    fn waits(&self) -> bool;

    /// The same right before a change that users could see takes its place among the others: a
    /// caller that has to hear the result of the change cannot give up any more once this was true.
    fn stays(&self) -> bool;
}

/// What the kernel of a mount is to be told of a call; see
/// [`FileSystem::watch_notices`](crate::FileSystem::watch_notices).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Attributes of the node have changed in a way that the kernel does not derive from the call.
    Attributes(NodeId),
    /// The kernel may have pages of the node that were stored before the caller set its time of
    /// modification. The mount shall have the kernel write its pages back, and then call
    /// [`FileSystem::end_mtime_hold`](crate::FileSystem::end_mtime_hold) with this number.
    OldStores(NodeId, u64),
}

/// Gets the [`Notice`]s of calls.
pub type NoticeWatch = Arc<dyn Fn(Notice) + Send + Sync>;

/// Is called when more files and directories are in memory than there is memory for.
pub type SurplusWatch = Arc<dyn Fn() + Send + Sync>;

/// A file or directory on which references should be given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurplusNode {
    /// Its id.
    pub node: NodeId,
    /// Of a file that is found by one name: its directory and name.
    pub place: Option<(NodeId, Arc<[u8]>)>,
}

/// How a volume is opened.
#[derive(Clone)]
pub struct OpenOptions {
    /// Name of the volume.
    pub volume: String,
    /// Bytes of memory for what is known about names.
    pub name_memory: u64,
    /// Bytes of memory for files and directories in use. Beyond that the watch of
    /// [`FileSystem::watch_surplus`](crate::FileSystem::watch_surplus) is called: only the callers
    /// that hold references can give them back.
    pub node_memory: u64,
    /// Refuse every change, and make none.
    pub read_only: bool,
    /// When reading changes the time of the last read.
    pub atime: Atime,
    /// The longest key that may be made, in bytes, and so about the longest path from the root; no
    /// more than the default of 1 MiB.
    pub max_key: usize,
    /// The mount holds references to unlinked files until it has seen that the kernel gave them
    /// up. This asks it to look now, before work is spent on keeping such a file; called without
    /// any lock held.
    pub forget_drain: Option<ForgetDrain>,
    /// Calls may be given up while they are served: from then on they change nothing, and fail with
    /// [`FsErrorKind::Interrupted`](crate::FsErrorKind::Interrupted) if that is what they were
    /// about to do.
    pub waiter: Option<Arc<dyn Waiter>>,
    /// Added to every number ([`Attr::ino`]), for several volumes that are seen as one.
    pub number_delta: u64,
    /// New files get numbers with 32 bits, and so do copies of trees, which takes longer the more
    /// they hold; without such numbers they fail with
    /// [`FsErrorKind::NoSpace`](crate::FsErrorKind::NoSpace).
    pub narrow_numbers: bool,
    /// When the background gives back what copies of link areas hold without need.
    pub area_correction: AreaCorrection,
    /// How long files are found by their ids alone.
    pub handles: HandleLifetime,
}

/// How long a file is found by its id ([`Entry::node`]) alone, as the file handles of the kernel
/// need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandleLifetime {
    /// While a caller holds a reference on it.
    Reference,
    /// While the file system is open: where files lie that left memory is remembered there.
    Open,
    /// Across remounts. Costs a record for each file that comes into use.
    Stored,
}

/// How a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Only the newer tree has it.
    Added,
    /// Only the older tree has it.
    Removed,
    /// Both have it, with different content or attributes; a directory with different attributes.
    /// Times of the last read and numbers do not count, nor of directories their times.
    Changed,
}

/// When [`FileSystem::background_tick`](crate::FileSystem::background_tick) corrects link areas: in
/// a clone of files with names outside of it, it deletes those that have none inside, and stores
/// how many names each has. That is work for each such file, and of use only if the source lost
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaCorrection {
    /// When less than an eighth of the room is free.
    WhenRoomIsShort,
    /// Each time, all of them.
    Always,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            volume: "main".into(),
            name_memory: 64 << 20,
            node_memory: 256 << 20,
            read_only: false,
            atime: Atime::Relative,
            max_key: MAX_KEY,
            forget_drain: None,
            waiter: None,
            number_delta: 0,
            narrow_numbers: false,
            area_correction: AreaCorrection::WhenRoomIsShort,
            handles: HandleLifetime::Open,
        }
    }
}
