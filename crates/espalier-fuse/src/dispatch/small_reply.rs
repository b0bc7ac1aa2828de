//! Replies of a small fixed length, and values of extended attributes.

use super::convert;
use super::errno::Errno;
use crate::protocol::reply;

/// The body of a reply of a small fixed length. It borrows nothing from the request, whose names
/// lie in the buffer that the reply overwrites.
pub(super) enum SmallReply {
    /// No body.
    Nothing,
    /// A node id, as the kernel knows it, and the attributes.
    Entry(u64, reply::Attributes),
    /// A node that is open already.
    Opened(u64, reply::Attributes),
    /// There is no such name, and the kernel may remember that.
    NoEntry,
    Attributes(reply::Attributes),
    Statx(reply::Attributes),
    /// An offset, or a number of bytes.
    Number(u64),
    /// A number of bytes, at most 4 GiB.
    Written(u32),
    Statistics(reply::Statistics),
}

impl SmallReply {
    /// A node under a name.
    pub(super) fn entry(entry: espalier_fs::Entry) -> Self {
        Self::Entry(entry.node.0, convert::entry(&entry))
    }

    /// True if it is the entry of something other than a directory.
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::Entry(_, attributes) if attributes.mode & libc::S_IFMT != libc::S_IFDIR)
    }

    /// A node that is open already.
    pub(super) fn opened(entry: espalier_fs::Entry) -> Self {
        Self::Opened(entry.node.0, convert::entry(&entry))
    }

    /// The answer to `statfs`.
    pub(super) fn statistics(of: &espalier_fs::StatFs) -> Self {
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

    /// Encodes the body into `out`; the result is its length in bytes.
    pub(super) fn put(self, out: &mut [u8]) -> usize {
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

/// Answers GETXATTR or LISTXATTR with `value`, or with its length if `size`, the room that the
/// caller has, is 0.
pub(super) fn put_xattr(out: &mut [u8], value: &[u8], size: u32) -> Result<usize, Errno> {
    if size == 0 {
        return Ok(reply::xattr_size(out, value.len() as u32));
    }
    if value.len() > size as usize {
        return Err(Errno(libc::ERANGE));
    }
    out.get_mut(..value.len()).ok_or(Errno(libc::ERANGE))?.copy_from_slice(value);
    Ok(value.len())
}
