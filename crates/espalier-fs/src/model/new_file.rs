//! What calls that write many files are told of each: content and attributes.

use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::types::*;

/// The most data that one new file may bring along, in bytes; a larger one is written in parts.
pub const MAX_NEW_FILE_BYTES: u64 = 4 << 20;

/// What a new file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// A regular file with this content.
    Data(&'a [u8]),
    /// A regular file with holes.
    Sparse {
        /// Its size in bytes.
        size: u64,
        /// Pieces of content with the byte where each begins, in order, inside the size.
        pieces: &'a [(u64, &'a [u8])],
    },
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A file without content: an empty one, a named pipe, a socket or a device.
    Node(NewNode),
}

/// The attributes of a new file. The default is what it would get if it were made without any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewAttributes<'a> {
    /// The low 12 bits of its mode, which no umask changes; `None`: 0666 without the umask, or as
    /// the default access control list of the directory says. A symbolic link has none.
    pub mode: Option<u32>,
    /// Owner and group; `None`: the caller's, or the directory's group.
    pub owner: OwnerChange,
    /// The time of the last read, nanoseconds since the Unix epoch; `None`: the time of the call.
    pub atime: Option<i64>,
    /// The time of the last change of the content.
    pub mtime: Option<i64>,
    /// Names and values of extended attributes, access control lists among them.
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
}

/// A file that is to be made in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFile<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) content: Content<'a>,
    pub(crate) attributes: NewAttributes<'a>,
}

impl Content<'_> {
    /// Kind, device number and target.
    pub(crate) fn object(&self) -> (FileKind, u64, Option<&[u8]>) {
        match self {
            Self::Data(_) | Self::Sparse { .. } | Self::Node(NewNode::Regular) => {
                (FileKind::Regular, 0, None)
            }
            Self::Symlink(target) => (FileKind::Symlink, 0, Some(target)),
            Self::Node(NewNode::Fifo) => (FileKind::Fifo, 0, None),
            Self::Node(NewNode::Socket) => (FileKind::Socket, 0, None),
            Self::Node(NewNode::CharDevice(rdev)) => (FileKind::CharDevice, *rdev, None),
            Self::Node(NewNode::BlockDevice(rdev)) => (FileKind::BlockDevice, *rdev, None),
        }
    }

    /// Bytes of data that it brings along.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Sparse { pieces, .. } => pieces.iter().map(|(_, data)| data.len() as u64).sum(),
            Self::Symlink(_) | Self::Node(_) => 0,
        }
    }

    /// Refuses what no file can be made of.
    pub(crate) fn check(&self) -> Result<()> {
        if self.data_bytes() > MAX_NEW_FILE_BYTES {
            let length = self.data_bytes();
            return fail(
                FsErrorKind::TooBig,
                format!("{length} bytes of one file; {MAX_NEW_FILE_BYTES} are written at a time"),
            );
        }
        match self {
            Self::Sparse { size, pieces } => check_pieces(*size, pieces),
            Self::Symlink(target) => check_target(target),
            Self::Data(_) | Self::Node(_) => Ok(()),
        }
    }
}

fn check_pieces(size: u64, pieces: &[(u64, &[u8])]) -> Result<()> {
    if size > MAX_FILE_SIZE {
        return fail(FsErrorKind::FileTooLarge, format!("a file cannot have {size} bytes"));
    }
    let mut end = 0;
    for (offset, data) in pieces {
        let after = offset.checked_add(data.len() as u64).filter(|after| *after <= size);
        match after {
            Some(after) if *offset >= end => end = after,
            _ => return fail(FsErrorKind::Invalid, "the pieces of a file overlap, or lie behind its end"),
        }
    }
    Ok(())
}

/// Refuses what cannot be the target of a symbolic link.
pub(crate) fn check_target(target: &[u8]) -> Result<()> {
    match target {
        [] => fail(FsErrorKind::NotFound, "a symbolic link needs a target"),
        _ if target.len() > MAX_SYMLINK => {
            fail(FsErrorKind::NameTooLong, format!("a target of {} bytes", target.len()))
        }
        _ if target.contains(&0) => fail(FsErrorKind::Invalid, "a target contains a NUL"),
        _ => Ok(()),
    }
}
