//! Replies, encoded in place.

use super::moment::Moment;
use super::{ROOT, flags};

/// Puts values one after the other into a slice. The slices here have fixed lengths chosen to fit;
/// what would not fit is dropped rather than written elsewhere, and debug builds say so.
pub struct Writer<'a> {
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// A writer from the start of `bytes`.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.rest.len(), "a reply is longer than the place set aside for it");
        if bytes.len() <= self.rest.len() {
            let (place, rest) = std::mem::take(&mut self.rest).split_at_mut(bytes.len());
            place.copy_from_slice(bytes);
            self.rest = rest;
        }
    }

    /// Appends a number.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_ne_bytes());
    }

    /// Appends a number.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    /// Appends a number.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_ne_bytes());
    }
}

/// Header of a reply: total length, error (0 or a positive errno), number of the request.
pub fn header(body: usize, errno: i32, unique: u64) -> [u8; super::REPLY_HEADER_BYTES] {
    let mut bytes = [0; super::REPLY_HEADER_BYTES];
    let mut writer = Writer::new(&mut bytes);
    writer.u32((super::REPLY_HEADER_BYTES + body) as u32);
    writer.u32((-errno) as u32);
    writer.u64(unique);
    bytes
}

/// Attributes of a node as the protocol has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of `stat`")]
pub struct Attributes {
    pub ino: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: Moment,
    pub mtime: Moment,
    pub ctime: Moment,
    /// When the node was made; only STATX carries it.
    pub btime: Moment,
    /// Tells files apart that have one node id at different times; only an entry carries it, and
    /// not that of the root.
    pub generation: u32,
    /// Kind and permissions.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a special file, as the kernel packs it into 32 bits.
    pub rdev: u32,
    /// Preferred size of I/O.
    pub block_size: u32,
    /// They follow another node, of whose changes the kernel does not know that they are changes of
    /// this one: so it asks each time.
    pub follow: bool,
}

impl Attributes {
    /// How long the kernel may cache them, seconds.
    fn timeout_seconds(&self) -> u64 {
        if self.follow { 0 } else { CACHE_TIMEOUT_SECONDS }
    }
}

/// Length of encoded attributes.
const ATTRIBUTES_BYTES: usize = 88;
/// Length of the body of a reply to LOOKUP and to everything that makes a node.
pub const ENTRY_BYTES: usize = 40 + ATTRIBUTES_BYTES;
/// Length of the body of a reply to GETATTR and SETATTR.
pub const ATTRIBUTE_REPLY_BYTES: usize = 16 + ATTRIBUTES_BYTES;
/// Length of the body of a reply to STATX.
pub const STATX_BYTES: usize = 288;
/// Length of the body of a reply to STATFS.
pub const STATFS_BYTES: usize = 80;
/// Length of what the kernel is told about an opened file.
pub const OPEN_BYTES: usize = 16;

/// How long the kernel may cache names and attributes, seconds: practically for ever. All changes
/// pass through the mount, so nothing in the cache becomes stale.
const CACHE_TIMEOUT_SECONDS: u64 = 1 << 30;

fn attributes(writer: &mut Writer<'_>, of: &Attributes) {
    for value in [of.ino, of.size, of.blocks] {
        writer.u64(value);
    }
    for time in [of.atime, of.mtime, of.ctime] {
        writer.u64(time.seconds as u64);
    }
    for time in [of.atime, of.mtime, of.ctime] {
        writer.u32(time.nanoseconds);
    }
    for value in [of.mode, of.nlink, of.uid, of.gid, of.rdev, of.block_size, 0] {
        writer.u32(value);
    }
}

/// A node under its name: the body for LOOKUP and what makes nodes. Returns its length.
/// `out` is at least [`ENTRY_BYTES`] long, here and below accordingly.
pub fn entry(out: &mut [u8], node: u64, of: &Attributes) -> usize {
    let mut writer = Writer::new(&mut out[..ENTRY_BYTES]);
    writer.u64(node);
    // The kernel knows the root before it was told of it.
    writer.u64(if node == ROOT { 0 } else { of.generation.into() });
    writer.u64(CACHE_TIMEOUT_SECONDS);
    writer.u64(of.timeout_seconds());
    writer.u64(0);
    attributes(&mut writer, of);
    ENTRY_BYTES
}

/// The body for a LOOKUP that found nothing: the kernel may remember that. Returns its length.
pub fn no_entry(out: &mut [u8]) -> usize {
    let out = &mut out[..ENTRY_BYTES];
    out.fill(0);
    let mut writer = Writer::new(&mut out[16..24]);
    writer.u64(CACHE_TIMEOUT_SECONDS);
    ENTRY_BYTES
}

/// The body for GETATTR and SETATTR. Returns its length.
pub fn attribute_reply(out: &mut [u8], of: &Attributes) -> usize {
    let mut writer = Writer::new(&mut out[..ATTRIBUTE_REPLY_BYTES]);
    writer.u64(of.timeout_seconds());
    writer.u64(0);
    attributes(&mut writer, of);
    ATTRIBUTE_REPLY_BYTES
}

/// The body for STATX. Returns its length.
pub fn statx(out: &mut [u8], of: &Attributes) -> usize {
    let out = &mut out[..STATX_BYTES];
    out.fill(0);
    let mut writer = Writer::new(out);
    writer.u64(of.timeout_seconds());
    // Nanoseconds of the timeout, flags, two spare words.
    writer.bytes(&[0; 24]);
    writer.u32(flags::statx::BASIC_STATS | flags::statx::BTIME);
    writer.u32(of.block_size);
    writer.u64(0);
    for value in [of.nlink, of.uid, of.gid] {
        writer.u32(value);
    }
    writer.u16(of.mode as u16);
    writer.u16(0);
    for value in [of.ino, of.size, of.blocks, 0] {
        writer.u64(value);
    }
    for time in [of.atime, of.btime, of.ctime, of.mtime] {
        writer.u64(time.seconds as u64);
        writer.u32(time.nanoseconds);
        writer.u32(0);
    }
    // The kernel packs device numbers as: minor low byte, major, minor high bytes.
    writer.u32(of.rdev >> 8 & 0xfff);
    writer.u32(of.rdev & 0xff | of.rdev >> 12 & 0xf_ff00);
    STATX_BYTES
}

/// The body that says how a file was opened: with no state of ours, and with its pages kept.
/// Returns its length.
pub fn opened(out: &mut [u8]) -> usize {
    let mut writer = Writer::new(&mut out[..OPEN_BYTES]);
    writer.u64(0);
    // The caller that closes it must hear what became of pages that were written through a
    // mapping.
    writer.u32(flags::open::KEEP_CACHE);
    writer.u32(0);
    OPEN_BYTES
}

/// The body for WRITE and narrow COPY_FILE_RANGE. Returns its length.
pub fn written(out: &mut [u8], count: u32) -> usize {
    let mut writer = Writer::new(&mut out[..8]);
    writer.u32(count);
    writer.u32(0);
    8
}

/// A body of one 64-bit number: LSEEK, COPY_FILE_RANGE_64. Returns its length.
pub fn number(out: &mut [u8], value: u64) -> usize {
    out[..8].copy_from_slice(&value.to_ne_bytes());
    8
}

/// The body for GETXATTR and LISTXATTR when only the length is asked for. Returns its length.
pub fn xattr_size(out: &mut [u8], size: u32) -> usize {
    written(out, size)
}

/// What `statfs` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of `statvfs`")]
pub struct Statistics {
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_size: u32,
    pub name_max: u32,
}

/// The body for STATFS. Returns its length.
pub fn statistics(out: &mut [u8], of: &Statistics) -> usize {
    let out = &mut out[..STATFS_BYTES];
    out.fill(0);
    let mut writer = Writer::new(out);
    for value in [of.blocks, of.free, of.available, of.files, of.files_free] {
        writer.u64(value);
    }
    for value in [of.block_size, of.name_max, of.block_size] {
        writer.u32(value);
    }
    STATFS_BYTES
}

/// The body for IOCTL: a result and the bytes after it. `out` holds both. Returns the length.
pub fn ioctl(out: &mut [u8], result: i32, output: &[u8]) -> usize {
    let mut writer = Writer::new(&mut out[..16 + output.len()]);
    writer.u32(result as u32);
    writer.bytes(&[0; 12]);
    writer.bytes(output);
    16 + output.len()
}

/// The nodes to which the kernel would have a reference each, once it had this body as the reply to
/// a request of kind `opcode`.
pub fn references(opcode: u32, body: &[u8]) -> impl Iterator<Item = u64> {
    use flags::opcode::*;
    let (one, mut list) = match opcode {
        LOOKUP | SYMLINK | MKNOD | MKDIR | LINK | CREATE | TMPFILE => (referred(body), &[][..]),
        READDIRPLUS => (None, body),
        _ => (None, &[][..]),
    };
    let each = std::iter::from_fn(move || {
        let length =
            list.get(ENTRY_BYTES + NAME_LENGTH_AT..)?.first_chunk().map(|four| u32::from_ne_bytes(*four))?;
        let total = (ENTRY_BYTES + NAME_AT).checked_add(length as usize)?.checked_next_multiple_of(8)?;
        let (entry, rest) = list.split_at_checked(total)?;
        list = rest;
        Some(referred(entry))
    });
    one.into_iter().chain(each.flatten())
}

/// The node that an entry refers to, if any.
fn referred(entry: &[u8]) -> Option<u64> {
    entry.first_chunk().map(|node| u64::from_ne_bytes(*node)).filter(|&node| node != 0)
}

/// In an entry of a directory: where the length of its name lies, and the name.
const NAME_LENGTH_AT: usize = 16;
const NAME_AT: usize = 24;

/// The body for READDIR and READDIRPLUS, built entry by entry.
pub struct Directory<'a> {
    out: &'a mut [u8],
    length: usize,
    plus: bool,
}

impl<'a> Directory<'a> {
    /// A body of at most `out.len()` bytes, with attributes if `plus`.
    pub fn new(out: &'a mut [u8], plus: bool) -> Self {
        Self { out, length: 0, plus }
    }

    /// Adds an entry; false, and nothing is added, if it does not fit. `next` is the position that
    /// continues after it, `kind` the upper four bits of the mode, `node` what the kernel shall
    /// remember the entry as (`None`: as nothing, for `.` and `..` and without `plus`).
    pub fn add(
        &mut self,
        name: &[u8],
        ino: u64,
        kind: u32,
        next: u64,
        node: Option<(u64, &Attributes)>,
    ) -> bool {
        let before = if self.plus { ENTRY_BYTES } else { 0 };
        let total = (before + NAME_AT + name.len()).next_multiple_of(8);
        let Some(place) = self.out.get_mut(self.length..self.length + total) else { return false };
        match node {
            Some((node, attributes)) if self.plus && node >= ROOT => {
                entry(place, node, attributes);
            }
            _ => place[..before].fill(0),
        }
        let mut writer = Writer::new(&mut place[before..]);
        writer.u64(ino);
        writer.u64(next);
        writer.u32(name.len() as u32);
        writer.u32(kind);
        writer.bytes(name);
        place[before + NAME_AT + name.len()..].fill(0);
        self.length += total;
        true
    }

    /// Length of the body so far, bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True before the first entry.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}
