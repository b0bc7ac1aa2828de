//! What is stored as the value of a key: inodes, links, orphans and the volume's state.
//!
//! All numbers are little-endian. The tables are in `docs/format.md`, section "File system".
//! Decoding checks every length before it believes it.

use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::tree_limits::LimitsField;
use crate::model::types::{Attr, FileFlags, FileKind, MAX_NAME, MAX_SYMLINK, MAX_XATTR};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const KIND_LINK: u8 = 8;
const KIND_ORPHAN: u8 = 9;
const KIND_STATE: u8 = 10;

const FLAG_SPARSE: u8 = 1;
const FLAG_OWNED_ALONE: u8 = 2;
const FLAG_AREA: u8 = 4;
const FLAG_RESERVED: u8 = 8;
const KNOWN_FLAGS: u8 = FLAG_SPARSE | FLAG_OWNED_ALONE | FLAG_AREA | FLAG_RESERVED;

const TAG_DELTA: u8 = 1;
const TAG_RDEV: u8 = 2;
const TAG_TARGET: u8 = 3;
const TAG_XATTR: u8 = 4;
const TAG_LARGE_XATTR: u8 = 5;
const TAG_AREA_DELTA: u8 = 6;
const TAG_FLAGS: u8 = 7;
const TAG_LIMITS: u8 = 8;

/// Length of an inode's fixed fields.
const FIXED_RECORD_BYTES: usize = 64;

/// Extended attributes up to this length may lie in the entry, in bytes.
pub(crate) const INLINE_XATTR_MAX_BYTES: usize = 512;
/// The entry holds extended attributes inline while it stays below this, in bytes.
pub(crate) const INLINE_XATTRS_MAX_BYTES: usize = 2048;

/// The attributes of a file or directory, as stored and as held in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) kind: FileKind,
    /// Some of the blocks below `size` may be absent.
    pub(crate) sparse: bool,
    /// Of a file: a record may say that blocks are reserved. In a copy it says nothing.
    pub(crate) reserved: bool,
    /// Of a directory: everything below belongs to its owner, as
    /// [`belongs_alone`](crate::model::privileges::belongs_alone) says. Its absence says nothing.
    pub(crate) owned_alone: bool,
    /// Of a directory: it has a link area of its own.
    pub(crate) has_link_area: bool,
    /// The low 12 bits of the mode.
    pub(crate) mode: u32,
    /// Names of a file; subdirectories of a directory.
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// `st_ino` less the sum of the deltas of the directories above and its own.
    pub(crate) number: u64,
    /// Added to the numbers of everything in and below this directory, itself included.
    pub(crate) delta: u64,
    /// Of a directory with a link area: added to the numbers there, besides what is added to those
    /// of its entries.
    pub(crate) link_area_delta: u64,
    /// Bytes of a file; entries of a directory.
    pub(crate) size: u64,
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) btime: i64,
    pub(crate) rdev: u64,
    pub(crate) flags: FileFlags,
    /// Of a directory: how much everything below may take.
    pub(crate) limits: LimitsField,
    pub(crate) target: Option<Arc<[u8]>>,
    pub(crate) xattrs: Option<Arc<Xattrs>>,
}

/// Extended attributes by name.
pub(crate) type Xattrs = BTreeMap<Box<[u8]>, XattrValue>;

/// Where the value of an extended attribute is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum XattrValue {
    /// In the entry.
    Inline(Bytes),
    /// In the data index, with this length.
    Large(u32),
}

impl XattrValue {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Large(len) => *len as usize,
        }
    }
}

/// The value of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// The object itself.
    Inode(Inode),
    /// A name of a file in the link area.
    Link(Link),
}

/// A name of a file in the link area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) kind: FileKind,
    /// Names the file in the link area.
    pub(crate) id: u64,
    /// The inode's number, so that a listing needs no more than the entry.
    pub(crate) number: u64,
}

/// The mark of a link area, in the links index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AreaMark {
    /// The link counts of files in the area have to be corrected.
    pub(crate) stale_counts: bool,
    /// A marked directory of one of these owners may hold a name that leads to a file in this area
    /// which contradicts the mark. [`AreaMark::EVERY_OWNER`] stands for all.
    pub(crate) doubted_owners: BTreeSet<u32>,
}

impl AreaMark {
    /// No user has this number.
    pub(crate) const EVERY_OWNER: u32 = u32::MAX;
    /// With more owners than this all are doubted.
    const MAX_OWNERS: usize = 256;

    /// The marks of directories of `uid` say nothing of names that lead to this area.
    pub(crate) fn doubts(&self, uid: u32) -> bool {
        self.doubted_owners.contains(&uid) || self.doubted_owners.contains(&Self::EVERY_OWNER)
    }

    /// Adds owners to those whose marks are doubted.
    pub(crate) fn doubt(&mut self, owners: impl IntoIterator<Item = u32>) {
        self.doubted_owners.extend(owners);
        if self.doubted_owners.len() > Self::MAX_OWNERS {
            self.doubted_owners = [Self::EVERY_OWNER].into();
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.stale_counts)];
        out.extend(self.doubted_owners.iter().flat_map(|uid| uid.to_le_bytes()));
        out
    }

    /// # Errors
    /// [`FsErrorKind::Io`] if it cannot be understood.
    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let (Some(&stale), owners) = (value.first(), value.get(1..).unwrap_or_default()) else {
            return fail(FsErrorKind::Io, "the mark of a link area is empty");
        };
        let (owners, rest) = owners.as_chunks::<4>();
        let doubted_owners: BTreeSet<u32> = owners.iter().map(|uid| u32::from_le_bytes(*uid)).collect();
        if stale > 1 || !rest.is_empty() || doubted_owners.len() != owners.len() {
            return fail(FsErrorKind::Io, "the mark of a link area cannot be understood");
        }
        Ok(Self { stale_counts: stale == 1, doubted_owners })
    }
}

/// The clock for times of files ticks at least so often (100 Hz).
const TICK_NANOSECONDS: i64 = 10_000_000;

/// The clock's time `now`, or a nanosecond after `last` if that is of the same tick.
pub(crate) fn later_than(last: i64, now: i64) -> i64 {
    let in_one_tick = (now..now.saturating_add(TICK_NANOSECONDS)).contains(&last);
    if in_one_tick { last.saturating_add(1) } else { now }
}

impl Inode {
    /// A new object, all times `now`.
    pub(crate) fn new(kind: FileKind, mode: u32, uid: u32, gid: u32, number: u64, now: i64) -> Self {
        Self {
            kind,
            sparse: false,
            reserved: false,
            owned_alone: kind == FileKind::Directory,
            has_link_area: false,
            mode: mode & 0o7777,
            links: if kind == FileKind::Directory { 0 } else { 1 },
            uid,
            gid,
            number,
            delta: 0,
            link_area_delta: 0,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            rdev: 0,
            flags: FileFlags::default(),
            limits: LimitsField::Absent,
            target: None,
            xattrs: None,
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Sets the time of the last change. A change within the same tick of the clock as the one
    /// before is a nanosecond later: so each change has a time of its own, by which comparisons of
    /// trees find it.
    pub(crate) fn set_ctime(&mut self, now: i64) {
        self.ctime = later_than(self.ctime, now);
    }

    /// True if something of it lies in the data index, or blocks of it are reserved.
    pub(crate) fn has_data(&self) -> bool {
        (self.kind == FileKind::Regular && (self.size > 0 || self.reserved)) || self.has_large_xattrs()
    }

    pub(crate) fn has_large_xattrs(&self) -> bool {
        self.xattrs.as_ref().is_some_and(|x| x.values().any(|v| matches!(v, XattrValue::Large(_))))
    }

    /// What users see; `blocks` are the units of 512 bytes that its data takes.
    pub(crate) fn attr(&self, ino: u64, blocks: u64, blksize: u32) -> Attr {
        Attr {
            ino,
            kind: self.kind,
            mode: self.mode,
            nlink: if self.is_dir() { self.links.saturating_add(2) } else { self.links },
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks,
            blksize,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let extra = self.target.as_ref().map_or(0, |t| t.len() + 8);
        let mut out =
            Vec::with_capacity(FIXED_RECORD_BYTES + extra + if self.xattrs.is_some() { 128 } else { 0 });
        out.push(kind_code(self.kind));
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let dir = flag(self.owned_alone, FLAG_OWNED_ALONE) | flag(self.has_link_area, FLAG_AREA);
        let file = flag(self.sparse, FLAG_SPARSE) | flag(self.reserved, FLAG_RESERVED);
        out.push(file | dir);
        out.extend_from_slice(&(self.mode as u16).to_le_bytes());
        for field in [self.links, self.uid, self.gid] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        for time in [self.mtime, self.ctime, self.atime, self.btime] {
            out.extend_from_slice(&time.to_le_bytes());
        }
        debug_assert_eq!(out.len(), FIXED_RECORD_BYTES);
        if self.delta != 0 {
            push_field(&mut out, TAG_DELTA, &[&self.delta.to_le_bytes()]);
        }
        if self.link_area_delta != 0 {
            push_field(&mut out, TAG_AREA_DELTA, &[&self.link_area_delta.to_le_bytes()]);
        }
        if self.rdev != 0 {
            push_field(&mut out, TAG_RDEV, &[&self.rdev.to_le_bytes()]);
        }
        if self.flags != FileFlags::default() {
            push_field(&mut out, TAG_FLAGS, &[&self.flags.0.to_le_bytes()]);
        }
        if let Some(limits) = self.limits.encode() {
            push_field(&mut out, TAG_LIMITS, &[&limits]);
        }
        if let Some(target) = &self.target {
            push_field(&mut out, TAG_TARGET, &[target]);
        }
        for (name, value) in self.xattrs.iter().flat_map(|x| x.iter()) {
            let name_len = [name.len() as u8];
            match value {
                XattrValue::Inline(bytes) => push_field(&mut out, TAG_XATTR, &[&name_len, name, bytes]),
                XattrValue::Large(len) => {
                    push_field(&mut out, TAG_LARGE_XATTR, &[&name_len, name, &len.to_le_bytes()]);
                }
            }
        }
        out
    }

    fn decode(bytes: &[u8], kind: FileKind) -> Result<Self> {
        let Some((fixed, mut rest)) = bytes.split_first_chunk::<FIXED_RECORD_BYTES>() else {
            return damaged(format!("an inode of {} bytes is too short", bytes.len()));
        };
        let u32_at = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().unwrap_or_default());
        let u64_at = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().unwrap_or_default());
        if fixed[1] & !KNOWN_FLAGS != 0 {
            return damaged(format!("unknown inode flags {:#x}", fixed[1]));
        }
        let mut inode = Self {
            kind,
            sparse: fixed[1] & FLAG_SPARSE != 0,
            reserved: fixed[1] & FLAG_RESERVED != 0,
            owned_alone: fixed[1] & FLAG_OWNED_ALONE != 0,
            has_link_area: fixed[1] & FLAG_AREA != 0,
            mode: u32::from(u16::from_le_bytes([fixed[2], fixed[3]])),
            links: u32_at(4),
            uid: u32_at(8),
            gid: u32_at(12),
            number: u64_at(16),
            size: u64_at(24),
            mtime: u64_at(32) as i64,
            ctime: u64_at(40) as i64,
            atime: u64_at(48) as i64,
            btime: u64_at(56) as i64,
            delta: 0,
            link_area_delta: 0,
            rdev: 0,
            flags: FileFlags::default(),
            limits: LimitsField::Absent,
            target: None,
            xattrs: None,
        };
        let mut xattrs = Xattrs::new();
        while !rest.is_empty() {
            let (tag, field);
            (tag, field, rest) = take_field(rest)?;
            inode.decode_field(tag, field, &mut xattrs)?;
        }
        if !xattrs.is_empty() {
            inode.xattrs = Some(Arc::new(xattrs));
        }
        inode.plausible()?;
        Ok(inode)
    }

    fn decode_field(&mut self, tag: u8, field: &[u8], xattrs: &mut Xattrs) -> Result<()> {
        match tag {
            TAG_DELTA => self.delta = u64::from_le_bytes(exact(field)?),
            TAG_AREA_DELTA => self.link_area_delta = u64::from_le_bytes(exact(field)?),
            TAG_FLAGS => self.flags = FileFlags(u32::from_le_bytes(exact(field)?)),
            TAG_LIMITS => self.limits = LimitsField::decode(field, self.is_dir()),
            TAG_RDEV => self.rdev = u64::from_le_bytes(exact(field)?),
            TAG_TARGET if field.len() <= MAX_SYMLINK => self.target = Some(field.into()),
            TAG_XATTR | TAG_LARGE_XATTR => {
                let (name, value) = split_xattr(field)?;
                let value = if tag == TAG_XATTR {
                    XattrValue::Inline(Bytes::copy_from_slice(value))
                } else {
                    XattrValue::Large(u32::from_le_bytes(exact(value)?))
                };
                if value.len() > MAX_XATTR {
                    return damaged(format!("an extended attribute of {} bytes", value.len()));
                }
                xattrs.insert(name.into(), value);
            }
            _ => return damaged(format!("unknown inode field {tag} of {} bytes", field.len())),
        }
        Ok(())
    }

    fn plausible(&self) -> Result<()> {
        if self.mode > 0o7777 {
            return damaged(format!("mode {:#o} has unknown bits", self.mode));
        }
        if self.size > crate::model::types::MAX_FILE_SIZE {
            return damaged(format!("a size of {} bytes", self.size));
        }
        if (self.owned_alone || self.has_link_area) && !self.is_dir() {
            return damaged("what only a directory has, on something else");
        }
        if self.flags.0 & !FileFlags::ALL.0 != 0 {
            return damaged(format!("unknown file flags {:#x}", self.flags.0));
        }
        if self.reserved && self.kind != FileKind::Regular {
            return damaged("reserved blocks of something that is no file");
        }
        if (self.kind == FileKind::Symlink) != self.target.is_some() {
            return damaged("a target belongs to a symbolic link, and to nothing else");
        }
        Ok(())
    }
}

impl Link {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![KIND_LINK, 0, kind_code(self.kind), 0];
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let bytes: [u8; 20] = exact(bytes)?;
        let kind = match kind_from(bytes[2]) {
            Some(kind) if kind != FileKind::Directory && bytes[1] == 0 && bytes[3] == 0 => kind,
            _ => return damaged("a link to something of unknown kind"),
        };
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        Ok(Self { kind, id: number(4), number: number(12) })
    }
}

impl Record {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        match bytes.first() {
            Some(&KIND_LINK) => Link::decode(bytes).map(Self::Link),
            Some(&code) => match kind_from(code) {
                Some(kind) => Inode::decode(bytes, kind).map(Self::Inode),
                None => damaged(format!("an entry of unknown kind {code}")),
            },
            None => damaged("an empty entry"),
        }
    }

    pub(crate) fn kind(&self) -> FileKind {
        match self {
            Self::Inode(inode) => inode.kind,
            Self::Link(link) => link.kind,
        }
    }
}

/// True for the entry of a directory.
pub(crate) fn is_directory(entry: &[u8]) -> bool {
    entry.first() == Some(&kind_code(FileKind::Directory))
}

/// The record that says where the data of an unlinked file lies.
pub(crate) fn encode_orphan(base: &[u8]) -> Vec<u8> {
    [&[KIND_ORPHAN], base].concat()
}

/// Where the data of an unlinked file lies.
pub(crate) fn decode_orphan(bytes: &[u8]) -> Result<&[u8]> {
    match bytes.split_first() {
        Some((&KIND_ORPHAN, base))
            if crate::model::layout::parse(base).is_some_and(|p| p.rest.is_empty()) =>
        {
            Ok(base)
        }
        _ => damaged("a record of the orphan area that says nothing"),
    }
}

/// The volume's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VolumeState {
    /// The first number that was never given out.
    pub(crate) next_number: u64,
    /// No key of the metadata index is longer, in bytes; `None`: not known.
    pub(crate) longest_key: Option<u64>,
    /// No object has a flag that is not among these.
    pub(crate) flags_used: FileFlags,
}

/// In the place of the longest key: its length is not known.
const UNKNOWN_LENGTH: u64 = u64::MAX;

impl VolumeState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![KIND_STATE];
        out.extend_from_slice(&self.next_number.to_le_bytes());
        let has_flags = self.flags_used != FileFlags::default();
        let length = self.longest_key.or(has_flags.then_some(UNKNOWN_LENGTH));
        length.iter().for_each(|length| out.extend_from_slice(&length.to_le_bytes()));
        if has_flags {
            out.extend_from_slice(&self.flags_used.0.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let number = |field: &[u8]| -> Result<u64> { Ok(u64::from_le_bytes(exact(field)?)) };
        match bytes.split_first() {
            Some((&KIND_STATE, fields)) if fields.len() >= 16 => {
                let (next, rest) = fields.split_at(8);
                let (longest, flags) = rest.split_at(8);
                let longest = number(longest)?;
                let flags = if flags.is_empty() { 0 } else { u32::from_le_bytes(exact(flags)?) };
                Ok(Self {
                    next_number: number(next)?,
                    longest_key: (longest != UNKNOWN_LENGTH).then_some(longest),
                    flags_used: FileFlags(flags),
                })
            }
            Some((&KIND_STATE, next)) => {
                let (longest_key, flags_used) = (None, FileFlags::default());
                Ok(Self { next_number: number(next)?, longest_key, flags_used })
            }
            _ => damaged("a volume state record of unknown kind"),
        }
    }
}

/// What the orphan area says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OrphanRecord<'a> {
    /// The data of an unlinked file lies at this base.
    File(&'a [u8]),
    /// A removed tree lies below this entry.
    Tree,
}

impl<'a> OrphanRecord<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        if bytes.first() == Some(&kind_code(FileKind::Directory)) {
            return Record::decode(bytes).map(|_| Self::Tree);
        }
        decode_orphan(bytes).map(Self::File)
    }
}

fn kind_code(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::Symlink => 3,
        FileKind::Fifo => 4,
        FileKind::Socket => 5,
        FileKind::CharDevice => 6,
        FileKind::BlockDevice => 7,
    }
}

fn kind_from(code: u8) -> Option<FileKind> {
    Some(match code {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::Symlink,
        4 => FileKind::Fifo,
        5 => FileKind::Socket,
        6 => FileKind::CharDevice,
        7 => FileKind::BlockDevice,
        _ => return None,
    })
}

fn push_field(out: &mut Vec<u8>, tag: u8, pieces: &[&[u8]]) {
    out.push(tag);
    let len: usize = pieces.iter().map(|p| p.len()).sum();
    out.extend_from_slice(&(len as u16).to_le_bytes());
    pieces.iter().for_each(|p| out.extend_from_slice(p));
}

fn take_field(bytes: &[u8]) -> Result<(u8, &[u8], &[u8])> {
    if let Some((&[tag, low, high], rest)) = bytes.split_first_chunk::<3>()
        && let Some((field, rest)) = rest.split_at_checked(usize::from(u16::from_le_bytes([low, high])))
    {
        return Ok((tag, field, rest));
    }
    damaged("an inode field is cut off")
}

fn split_xattr(field: &[u8]) -> Result<(&[u8], &[u8])> {
    if let Some((&len, rest)) = field.split_first()
        && let Some((name, value)) = rest.split_at_checked(len.into())
        && (1..=MAX_NAME).contains(&name.len())
    {
        return Ok((name, value));
    }
    damaged("an extended attribute without a name")
}

fn exact<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    match bytes.try_into() {
        Ok(array) => Ok(array),
        Err(_) => damaged(format!("{} bytes where {N} belong", bytes.len())),
    }
}

fn damaged<T>(message: impl Into<String>) -> Result<T> {
    fail(FsErrorKind::Io, message)
}

#[cfg(test)]
mod tests;
