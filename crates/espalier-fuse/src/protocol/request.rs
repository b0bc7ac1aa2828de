//! Decoding of requests.

use super::flags::{self, init as bit};
use super::init::{Dialect, InitRequest};
use super::moment::Moment;
use super::reader::Reader;
use super::{DecodeError, HEADER_BYTES};

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole message, bytes.
    pub length: u32,
    /// What is asked, see [`flags::opcode`].
    pub opcode: u32,
    /// The request's number, repeated in the reply.
    pub unique: u64,
    /// The node that the request is about.
    pub node: u64,
    /// The caller's file system user id.
    pub uid: u32,
    /// The caller's file system group id.
    pub gid: u32,
    /// The caller's thread id; 0 for the kernel itself.
    pub pid: u32,
    /// Length of extensions at the end of the message, in units of 8 bytes.
    extensions: u16,
}

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, "header");
        let header = Self {
            length: reader.u32()?,
            opcode: reader.u32()?,
            unique: reader.u64()?,
            node: reader.u64()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            pid: reader.u32()?,
            extensions: reader.u16()?,
        };
        // Padding, without which it is no header either.
        reader.skip(2)?;
        Ok(header)
    }
}

/// Whether a caller waits for the answer to requests of this kind, and may be killed meanwhile.
pub fn has_caller(opcode: u32) -> bool {
    use flags::opcode::*;
    !matches!(opcode, FORGET | BATCH_FORGET | INTERRUPT | INIT | DESTROY | RELEASE | RELEASEDIR)
}

/// The errno for a request of this kind whose caller was killed before it was served. The kernel
/// takes `EINTR` of removing and renaming to mean that it may have happened, and drops the mounts
/// below.
pub fn interrupt_errno(opcode: u32) -> i32 {
    use flags::opcode::*;
    match opcode {
        UNLINK | RMDIR | RENAME | RENAME2 => libc::ECANCELED,
        _ => libc::EINTR,
    }
}

/// Whether the kernel learns from the answer to a request of this kind what was changed: then it
/// must have the true answer once something was. Of the changes of an ioctl it learns by
/// notifications.
pub fn reports_changes(opcode: u32) -> bool {
    opcode != flags::opcode::IOCTL
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// To the current time of the file system.
    Now,
    /// To a given time.
    To(Moment),
}

/// Attributes to set; `None` leaves one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names of `stat`")]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Set by the kernel itself when it keeps the times (write-back).
    pub ctime: Option<Moment>,
    /// Take the set-user-id and set-group-id bits away, as a write does.
    pub kill_suid_sgid: bool,
}

/// What a request asks for. Names come without their terminating NUL, and never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "what has no line is named after a system call or an argument of it")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        /// How many look-ups of the node the kernel takes back.
        count: u64,
    },
    BatchForget(ForgetList<'a>),
    GetAttributes,
    SetAttributes(SetAttributes),
    ReadLink,
    SymbolicLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        device: u32,
        umask: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open,
    Read {
        offset: u64,
        size: u32,
        /// The file was opened with `O_NOATIME`: the read is not to be seen in its times.
        no_atime: bool,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        /// The kernel writes back pages; the caller that changed them is not known.
        from_cache: bool,
        /// Take the set-user-id and set-group-id bits away.
        kill_suid_sgid: bool,
        /// The write must be durable before it is answered (true: the data only). Where the write
        /// goes through its pages the kernel sends an FSYNC instead.
        sync: Option<bool>,
    },
    FileSystemStatistics,
    Release,
    Sync {
        data_only: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        /// The attribute is an access control list that takes the set-group-id bit away.
        kill_sgid: bool,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush,
    Init(InitRequest),
    OpenDirectory,
    ReadDirectory {
        offset: u64,
        size: u32,
        /// Each entry comes with its attributes, as a look-up.
        plus: bool,
    },
    ReleaseDirectory,
    SyncDirectory {
        data_only: bool,
    },
    Access {
        mask: u32,
    },
    /// Make a regular file and open it.
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
        umask: u32,
    },
    Destroy,
    Ioctl {
        flags: u32,
        command: u32,
        argument: u64,
        input: &'a [u8],
        /// How many bytes of output the caller takes.
        output_size: u32,
    },
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    CopyRange {
        offset: u64,
        target: u64,
        target_offset: u64,
        length: u64,
        flags: u64,
        /// The reply has room for a count of 64 bits.
        wide: bool,
    },
    SyncFileSystem,
    TemporaryFile {
        mode: u32,
        umask: u32,
    },
    Statx {
        mask: u32,
    },
    /// An operation that is not served.
    Other,
}

/// The nodes of a BATCH_FORGET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgetList<'a>(&'a [u8]);

impl ForgetList<'_> {
    /// Node and number of look-ups to forget, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.chunks_exact(16).map(|entry| {
            let mut reader = Reader::new(entry, "forget entry");
            (reader.u64().unwrap_or(0), reader.u64().unwrap_or(0))
        })
    }
}

/// Decodes a message whose parts lie in a row, as the classic device delivers them.
///
/// # Errors
/// [`DecodeError`].
pub fn decode<'a>(message: &'a [u8], dialect: &Dialect) -> Result<(Header, Operation<'a>), DecodeError> {
    let header = Header::decode(message)?;
    let body = &message[HEADER_BYTES..];
    // INIT is one argument of any length: what it holds says how long it is.
    let fixed = if header.opcode == flags::opcode::INIT {
        body.len()
    } else {
        dialect.argument_bytes(header.opcode).min(body.len())
    };
    let (argument, payload) = body.split_at(fixed);
    Ok((header, decode_parts(&header, argument, payload, dialect)?))
}

/// Decodes a request from its parts. `argument` may be longer than the operation's argument.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_parts<'a>(
    header: &Header,
    argument: &'a [u8],
    payload: &'a [u8],
    dialect: &Dialect,
) -> Result<Operation<'a>, DecodeError> {
    let extensions = usize::from(header.extensions) * 8;
    let Some(length) = payload.len().checked_sub(extensions) else {
        return Err(DecodeError::Contradiction("the length of its extensions"));
    };
    let fixed = Reader::new(argument, "argument");
    let rest = Reader::new(&payload[..length], "payload");
    use flags::opcode::*;
    match header.opcode {
        LOOKUP..=SYMLINK | MKNOD..=LINK | CREATE | TMPFILE | RENAME2 => names(header, fixed, rest),
        READ | WRITE | READDIR | READDIRPLUS | FSYNC | FSYNCDIR | FALLOCATE | LSEEK | COPY_FILE_RANGE
        | COPY_FILE_RANGE_64 | IOCTL => data(header, fixed, rest),
        SETXATTR..=REMOVEXATTR => xattr(header, fixed, rest, dialect),
        INIT => Ok(Operation::Init(InitRequest::decode(argument)?)),
        _ => bare(header, fixed, rest),
    }
}

/// Look-ups, attributes, and everything that makes, moves or removes names.
fn names<'a>(
    header: &Header,
    mut fixed: Reader<'a>,
    mut rest: Reader<'a>,
) -> Result<Operation<'a>, DecodeError> {
    use flags::opcode::*;
    Ok(match header.opcode {
        LOOKUP => Operation::Lookup { name: rest.name()? },
        FORGET => Operation::Forget { count: fixed.u64()? },
        GETATTR => Operation::GetAttributes,
        SETATTR => Operation::SetAttributes(set_attributes(fixed)?),
        READLINK => Operation::ReadLink,
        SYMLINK => Operation::SymbolicLink { name: rest.name()?, target: rest.string()? },
        MKNOD => Operation::MakeNode {
            name: rest.name()?,
            mode: fixed.u32()?,
            device: fixed.u32()?,
            umask: fixed.u32()?,
        },
        MKDIR => Operation::MakeDirectory { name: rest.name()?, mode: fixed.u32()?, umask: fixed.u32()? },
        UNLINK => Operation::Unlink { name: rest.name()? },
        RMDIR => Operation::RemoveDirectory { name: rest.name()? },
        RENAME | RENAME2 => Operation::Rename {
            new_parent: fixed.u64()?,
            flags: if header.opcode == RENAME2 { fixed.u32()? } else { 0 },
            name: rest.name()?,
            new_name: rest.name()?,
        },
        LINK => Operation::Link { node: fixed.u64()?, name: rest.name()? },
        CREATE => Operation::Create {
            name: rest.name()?,
            flags: fixed.u32()?,
            mode: fixed.u32()?,
            umask: fixed.u32()?,
        },
        TMPFILE => {
            fixed.skip(4)?;
            Operation::TemporaryFile { mode: fixed.u32()?, umask: fixed.u32()? }
        }
        _ => Operation::Other,
    })
}

fn set_attributes(mut fixed: Reader<'_>) -> Result<SetAttributes, DecodeError> {
    use flags::setattr::*;
    let valid = fixed.u32()?;
    fixed.skip(12)?;
    let size = fixed.u64()?;
    fixed.skip(8)?;
    let seconds = [fixed.u64()? as i64, fixed.u64()? as i64, fixed.u64()? as i64];
    let nanoseconds = [fixed.u32()?, fixed.u32()?, fixed.u32()?];
    let mode = fixed.u32()?;
    fixed.skip(4)?;
    let (uid, gid) = (fixed.u32()?, fixed.u32()?);
    let set = |bits: u32| valid & bits != 0;
    let moment = |which: usize| Moment { seconds: seconds[which], nanoseconds: nanoseconds[which] };
    let times = [(ATIME, ATIME_NOW, 0), (MTIME, MTIME_NOW, 1), (CTIME, 0, 2)];
    if times.iter().any(|&(bit, now, which)| set(bit) && !set(now) && nanoseconds[which] >= 1_000_000_000) {
        return Err(DecodeError::Contradiction("its times"));
    }
    let time = |(bit, now, which): (u32, u32, usize)| match (set(now), set(bit)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::To(moment(which))),
        (false, false) => None,
    };
    Ok(SetAttributes {
        mode: set(MODE).then_some(mode),
        uid: set(UID).then_some(uid),
        gid: set(GID).then_some(gid),
        size: set(SIZE).then_some(size),
        atime: time(times[0]),
        mtime: time(times[1]),
        ctime: set(CTIME).then(|| moment(2)),
        kill_suid_sgid: set(KILL_SUIDGID),
    })
}

/// Operations on the content of files and directories.
fn data<'a>(
    header: &Header,
    mut fixed: Reader<'a>,
    mut rest: Reader<'a>,
) -> Result<Operation<'a>, DecodeError> {
    use flags::opcode::*;
    // All of these begin with a file handle, and there are no open files here.
    fixed.skip(8)?;
    Ok(match header.opcode {
        READ => {
            let (offset, size) = (fixed.u64()?, fixed.u32()?);
            // How the read came about, and whose locks count, are no concern here.
            fixed.skip(12)?;
            let no_atime = fixed.u32()? & libc::O_NOATIME as u32 != 0;
            Operation::Read { offset, size, no_atime }
        }
        READDIR | READDIRPLUS => Operation::ReadDirectory {
            offset: fixed.u64()?,
            size: fixed.u32()?,
            plus: header.opcode == READDIRPLUS,
        },
        WRITE => {
            let offset = fixed.u64()?;
            let size = fixed.u32()? as usize;
            let bits = fixed.u32()?;
            // The owner of locks: said of what does not go through the kernel's pages.
            let is_direct = bits & flags::write::LOCK_OWNER != 0;
            fixed.skip(8)?;
            let opened = fixed.u32()? as i32;
            let is_synchronous = is_direct && opened & libc::O_DSYNC != 0;
            Operation::Write {
                offset,
                data: rest.bytes(size)?,
                from_cache: bits & flags::write::CACHE != 0,
                kill_suid_sgid: bits & flags::write::KILL_SUIDGID != 0,
                // `O_SYNC` is `O_DSYNC` and a bit more.
                sync: is_synchronous.then_some(opened & libc::O_SYNC != libc::O_SYNC),
            }
        }
        FSYNC => Operation::Sync { data_only: fixed.u32()? & flags::FSYNC_DATA_ONLY != 0 },
        FSYNCDIR => Operation::SyncDirectory { data_only: fixed.u32()? & flags::FSYNC_DATA_ONLY != 0 },
        FALLOCATE => Operation::Allocate { offset: fixed.u64()?, length: fixed.u64()?, mode: fixed.u32()? },
        LSEEK => Operation::Seek { offset: fixed.u64()?, whence: fixed.u32()? },
        IOCTL => {
            let (flags, command) = (fixed.u32()?, fixed.u32()?);
            let argument = fixed.u64()?;
            let (input, output_size) = (fixed.u32()? as usize, fixed.u32()?);
            Operation::Ioctl { flags, command, argument, input: rest.bytes(input)?, output_size }
        }
        _ => {
            let (offset, target) = (fixed.u64()?, fixed.u64()?);
            fixed.skip(8)?;
            let (target_offset, length, flags) = (fixed.u64()?, fixed.u64()?, fixed.u64()?);
            let wide = header.opcode == COPY_FILE_RANGE_64;
            Operation::CopyRange { offset, target, target_offset, length, flags, wide }
        }
    })
}

/// Extended attributes.
fn xattr<'a>(
    header: &Header,
    mut fixed: Reader<'a>,
    mut rest: Reader<'a>,
    dialect: &Dialect,
) -> Result<Operation<'a>, DecodeError> {
    use flags::opcode::*;
    Ok(match header.opcode {
        SETXATTR => {
            let (size, flags) = (fixed.u32()? as usize, fixed.u32()?);
            let more = if dialect.has(bit::SETXATTR_EXT) { fixed.u32()? } else { 0 };
            let name = rest.name()?;
            let kill_sgid = more & flags::SETXATTR_ACL_KILL_SGID != 0;
            Operation::SetXattr { name, value: rest.bytes(size)?, flags, kill_sgid }
        }
        GETXATTR => Operation::GetXattr { size: fixed.u32()?, name: rest.name()? },
        LISTXATTR => Operation::ListXattr { size: fixed.u32()? },
        _ => Operation::RemoveXattr { name: rest.name()? },
    })
}

/// Everything else: little or no argument.
fn bare<'a>(
    header: &Header,
    mut fixed: Reader<'a>,
    mut rest: Reader<'a>,
) -> Result<Operation<'a>, DecodeError> {
    use flags::opcode::*;
    Ok(match header.opcode {
        OPEN => Operation::Open,
        OPENDIR => Operation::OpenDirectory,
        RELEASE => Operation::Release,
        RELEASEDIR => Operation::ReleaseDirectory,
        FLUSH => Operation::Flush,
        STATFS => Operation::FileSystemStatistics,
        SYNCFS => Operation::SyncFileSystem,
        DESTROY => Operation::Destroy,
        ACCESS => Operation::Access { mask: fixed.u32()? },
        BATCH_FORGET => {
            let count = fixed.u32()? as usize;
            let length = count.checked_mul(16).ok_or(DecodeError::Contradiction("its count of nodes"))?;
            Operation::BatchForget(ForgetList(rest.bytes(length)?))
        }
        STATX => {
            // getattr flags, reserved, file handle, flags of the system call.
            fixed.skip(20)?;
            Operation::Statx { mask: fixed.u32()? }
        }
        _ => Operation::Other,
    })
}
