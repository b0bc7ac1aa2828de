//! Files that are to be made: with content, mode, owner and time of change, or with all that files
//! have.

use super::codec::{Malformed, Reader, Writer};
use super::lists::{RangeList, XattrList};

/// Bytes of a file in a message, besides those of variable length.
pub(super) const NEW_ITEM_LEAST_BYTES: usize = 68;

/// A file that is to be made or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteItem<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// Its content, or where the symbolic link leads that is to be made.
    pub content: &'a [u8],
    /// A symbolic link is to be made.
    pub is_symlink: bool,
    /// The low 12 bits of its mode; `None`: 0666 less the umask, or what the directory says.
    pub mode: Option<u32>,
    /// Its owner; `None`: the caller.
    pub uid: Option<u32>,
    /// Its group; `None`: the caller's, or the directory's.
    pub gid: Option<u32>,
    /// The time of its last change; `None`: now.
    pub mtime: Option<i64>,
}

/// A file that is to be made or replaced, with all that a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewItem<'a> {
    /// Path, content and the usual attributes. Of a file with holes the content is that of its
    /// ranges, one after the other.
    pub file: WriteItem<'a>,
    /// A named pipe, a socket or a device: the file type bits of its mode, and the device number as
    /// `makedev` makes it.
    pub node: Option<(u32, u64)>,
    /// The time of the last read, nanoseconds since the Unix epoch; `None`: now.
    pub atime: Option<i64>,
    /// Extended attributes, access control lists among them.
    pub xattrs: XattrList<'a>,
    /// A regular file with holes: its size in bytes, and the ranges that are none.
    pub sparse: Option<(u64, RangeList<'a>)>,
}

impl<'a> WriteItem<'a> {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.bytes(self.path);
        out.bytes(self.content);
        out.u8(u8::from(self.is_symlink));
        out.u32(self.mode.unwrap_or(u32::MAX));
        out.u32(self.uid.unwrap_or(u32::MAX));
        out.u32(self.gid.unwrap_or(u32::MAX));
        out.u8(u8::from(self.mtime.is_some()));
        out.i64(self.mtime.unwrap_or_default());
    }

    pub(super) fn decode(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (path, content, is_symlink) = (from.bytes()?, from.bytes()?, from.bool()?);
        let mut known = || from.u32().map(|value| (value != u32::MAX).then_some(value));
        let (mode, uid, gid) = (known()?, known()?, known()?);
        let (has_mtime, mtime) = (from.bool()?, from.i64()?);
        Ok(Self { path, content, is_symlink, mode, uid, gid, mtime: has_mtime.then_some(mtime) })
    }
}

impl<'a> NewItem<'a> {
    /// A file with the usual attributes only.
    pub fn plain(file: WriteItem<'a>) -> Self {
        Self { file, node: None, atime: None, xattrs: XattrList::default(), sparse: None }
    }

    /// The pieces of content of a file with holes, with the byte where each begins; none of another
    /// file.
    pub fn pieces(&self) -> Vec<(u64, &'a [u8])> {
        let Some((_, ranges)) = self.sparse else { return Vec::new() };
        let mut left = self.file.content;
        let mut piece = |range: std::ops::Range<u64>| {
            let length = left.len().min((range.end - range.start) as usize);
            let (now, later) = left.split_at(length);
            left = later;
            (range.start, now)
        };
        ranges.iter().map(&mut piece).collect()
    }

    /// True if a [`WriteItem`] says it all.
    pub fn is_plain(&self) -> bool {
        *self == Self::plain(self.file)
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        self.file.encode(out);
        let (kind, device) = self.node.unwrap_or_default();
        out.u32(kind);
        out.u64(device);
        out.u8(u8::from(self.atime.is_some()));
        out.i64(self.atime.unwrap_or_default());
        self.xattrs.encode(out);
        out.u8(u8::from(self.sparse.is_some()));
        let (size, ranges) = self.sparse.unwrap_or_default();
        out.u64(size);
        ranges.encode(out);
    }

    pub(super) fn decode(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let file = WriteItem::decode(from)?;
        let node = (from.u32()?, from.u64()?);
        let atime = (from.bool()?, from.i64()?);
        let xattrs = XattrList::decode(from)?;
        let sparse = (from.bool()?, (from.u64()?, RangeList::decode(from)?));
        let is_consistent = match (node.0, sparse.0) {
            (0, false) => node.1 == 0,
            (0, true) => {
                let (size, ranges) = sparse.1;
                let end = ranges.iter().last().map_or(0, |range| range.end);
                node.1 == 0 && !file.is_symlink && end <= size && ranges.total() == file.content.len() as u64
            }
            (kind, is_sparse) => !is_sparse && !file.is_symlink && file.content.is_empty() && is_node(kind),
        };
        if !is_consistent {
            return Err(Malformed("a new file is of no kind, or has other content than it says"));
        }
        Ok(Self {
            file,
            node: (node.0 != 0).then_some(node),
            atime: atime.0.then_some(atime.1),
            xattrs,
            sparse: sparse.0.then_some(sparse.1),
        })
    }
}

fn is_node(kind: u32) -> bool {
    [libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK].contains(&kind)
}
