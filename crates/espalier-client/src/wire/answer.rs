//! What replies carry.

use super::codec::{Malformed, Reader, Writer};

/// What a server says of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WelcomeFlags {
    /// Nothing can be changed: the place where the client sees the mount is read-only.
    pub read_only: bool,
    /// The content of files cannot be changed, because the kernel keeps sizes to itself
    /// (`-o writeback`).
    pub write_back: bool,
}

impl WelcomeFlags {
    /// Appends the version that is spoken, and the flags.
    pub fn encode(self, version: u16, out: &mut Writer) {
        out.u16(version);
        out.u16(u16::from(self.read_only) | u16::from(self.write_back) << 1);
    }

    /// The version that is spoken, and the flags.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: &[u8]) -> Result<(u16, Self), Malformed> {
        let mut reader = Reader::new(body);
        let (version, flags) = (reader.u16()?, reader.u16()?);
        reader.finish()?;
        Ok((version, Self { read_only: flags & 1 != 0, write_back: flags & 2 != 0 }))
    }
}

/// The attributes of a file, as `stat` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// `st_ino`.
    pub ino: u64,
    /// Type and permissions (`st_mode`).
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, as `makedev` makes it.
    pub rdev: u64,
    /// Size in bytes; of a directory its number of entries.
    pub size: u64,
    /// Space that the data takes, in units of 512 bytes.
    pub blocks: u64,
    /// The unit of data that is efficient to write, in bytes.
    pub blksize: u32,
    /// Last read, nanoseconds since the Unix epoch.
    pub atime: i64,
    /// Last change of the content, nanoseconds since the Unix epoch.
    pub mtime: i64,
    /// Last change of content or attributes, nanoseconds since the Unix epoch.
    pub ctime: i64,
    /// Creation, nanoseconds since the Unix epoch.
    pub btime: i64,
}

impl Stat {
    /// Bytes of attributes in a message.
    pub const BYTES: usize = 84;

    /// Appends the attributes.
    pub fn encode(&self, out: &mut Writer) {
        out.0.extend_from_slice(&self.bytes());
    }

    /// The attributes as a message has them: a walk has many, so they are put together in one
    /// place of known size, and appended at once.
    fn bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&self.ino.to_le_bytes());
        for value in [self.mode, self.nlink, self.uid, self.gid, self.blksize] {
            put(&value.to_le_bytes());
        }
        for value in [self.rdev, self.size, self.blocks] {
            put(&value.to_le_bytes());
        }
        for value in [self.atime, self.mtime, self.ctime, self.btime] {
            put(&value.to_le_bytes());
        }
        bytes
    }

    /// Takes attributes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let bytes = from.array::<{ Self::BYTES }>()?;
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        Ok(Self {
            ino: long(0),
            mode: short(8),
            nlink: short(12),
            uid: short(16),
            gid: short(20),
            blksize: short(24),
            rdev: long(28),
            size: long(36),
            blocks: long(44),
            atime: long(52).cast_signed(),
            mtime: long(60).cast_signed(),
            ctime: long(68).cast_signed(),
            btime: long(76).cast_signed(),
        })
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// True for a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// One entry of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkItem<'a> {
    /// The path below the directory of the walk.
    pub path: &'a [u8],
    /// The attributes; blocks of sparse files are taken for full.
    pub stat: Stat,
    /// A directory that the caller may not list or search: nothing below it is given.
    pub is_closed: bool,
}

impl<'a> WalkItem<'a> {
    /// Bytes beside the path.
    const HEAD_BYTES: usize = 1 + Stat::BYTES + 4;

    /// Appends the entry.
    pub fn encode(&self, out: &mut Writer) {
        out.0.reserve(Self::HEAD_BYTES + self.path.len());
        out.u8(u8::from(self.is_closed));
        self.stat.encode(out);
        out.bytes(self.path);
    }

    /// Takes an entry.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (is_closed, stat) = (from.bool()?, Stat::decode(from)?);
        Ok(Self { path: from.bytes()?, stat, is_closed })
    }
}

/// What was read for one part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadItem<'a> {
    /// The place of the part in the request.
    pub index: u32,
    /// 0, or the number of the error.
    pub errno: u32,
    /// What was read, or the message of the error.
    pub data: &'a [u8],
}

impl<'a> ReadItem<'a> {
    /// Bytes beside the data.
    pub const HEAD_BYTES: usize = 12;

    /// Appends the item.
    pub fn encode(&self, out: &mut Writer) {
        out.u32(self.index);
        out.u32(self.errno);
        out.bytes(self.data);
    }

    /// Takes an item.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self { index: from.u32()?, errno: from.u32()?, data: from.bytes()? })
    }
}

/// What an answer with changed paths begins with; paths follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesHead<'a> {
    /// The position of this answer.
    pub position: &'a [u8],
    /// Anything may have changed; no paths follow.
    pub everything: bool,
}

impl<'a> ChangesHead<'a> {
    /// Appends the head.
    pub fn encode(&self, out: &mut Writer) {
        out.u8(u8::from(self.everything));
        out.bytes(self.position);
    }

    /// Takes the head.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self { everything: from.bool()?, position: from.bytes()? })
    }
}

/// What an answer to a wait begins with; paths follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitHead<'a> {
    /// Names the very instant of this answer, for the next wait.
    pub exact: &'a [u8],
    /// As for an answer with changes.
    pub changes: ChangesHead<'a>,
}

impl<'a> WaitHead<'a> {
    /// Appends the head.
    pub fn encode(&self, out: &mut Writer) {
        out.bytes(self.exact);
        self.changes.encode(out);
    }

    /// Takes the head.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self { exact: from.bytes()?, changes: ChangesHead::decode(from)? })
    }
}

/// One difference between two trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiffItem<'a> {
    /// How the path differs.
    pub change: Change,
    /// The path below both directories.
    pub path: &'a [u8],
}

/// How a path differs between two trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Only the newer tree has it.
    Added,
    /// Only the older tree has it.
    Removed,
    /// Both have it, with different content or attributes. Times of the last read and numbers do
    /// not count, nor of directories their times.
    Changed,
}

impl<'a> DiffItem<'a> {
    /// Appends the difference.
    pub fn encode(&self, out: &mut Writer) {
        out.u8(match self.change {
            Change::Added => b'+',
            Change::Removed => b'-',
            Change::Changed => b'~',
        });
        out.bytes(self.path);
    }

    /// Takes a difference.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let change = match from.u8()? {
            b'+' => Change::Added,
            b'-' => Change::Removed,
            b'~' => Change::Changed,
            _ => return Err(Malformed("a difference of an unknown kind")),
        };
        Ok(Self { change, path: from.bytes()? })
    }
}
