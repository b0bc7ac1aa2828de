//! The calls: what a client asks of a server.

use super::codec::{Malformed, Reader, Writer};
use super::constants::{AREA_BYTES, MAGIC, MAX_ITEMS, TOKEN_BYTES, VERSIONS};
use super::details::Aspects;
use super::new_item::{NEW_ITEM_LEAST_BYTES, NewItem, WriteItem};
use std::ops::RangeInclusive;

/// The first request of a session. The directory and the memory come with it as descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The oldest and the newest version that the client speaks.
    pub versions: (u16, u16),
    /// Bytes of the area of the memory in which bodies of requests lie, and of the one behind it
    /// with those of replies.
    pub areas: (u32, u32),
    /// What `ESPALIER_IOC_CLIENT` gave out for the directory.
    pub token: [u8; TOKEN_BYTES],
    /// The umask of the client.
    pub umask: u32,
}

/// When a file was read or changed, as a client sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Time {
    /// It stays.
    #[default]
    Keep,
    /// The time of the call.
    Now,
    /// Nanoseconds since the Unix epoch.
    At(i64),
}

/// A part of a file that is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The file.
    pub path: &'a [u8],
    /// The first byte.
    pub offset: u64,
    /// How many bytes at most.
    pub length: u64,
}

/// How files are made or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteFlags {
    /// What has the name of a file goes, unless it is a directory; otherwise the file is refused.
    pub replace: bool,
    /// Directories that are missing are made with this mode, less the umask.
    pub directories: Option<u32>,
}

impl Default for WriteFlags {
    fn default() -> Self {
        Self { replace: true, directories: Some(0o777) }
    }
}

/// Which entries a walk gives; the default gives all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// A pattern for names, or with a slash for paths below the directory: `*`, `?`, `[a-z]`,
    /// `**`.
    pub pattern: Option<Vec<u8>>,
    /// File types, as the four bits of `st_mode >> 12`: a bit for each that is wanted; 0: all.
    pub kinds: u16,
    /// So many bytes.
    pub size: Option<RangeInclusive<u64>>,
    /// The content was last changed then, nanoseconds since the Unix epoch.
    pub modified: Option<RangeInclusive<i64>>,
}

/// A call. Paths are relative to the directory with which the session began; so are those with a
/// slash in front.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the system calls; docs/protocol.md has them")]
pub enum Call<'a> {
    /// Attributes of many files.
    Stat { follow: bool, paths: Vec<&'a [u8]> },
    /// Reads parts of many files.
    Read { pieces: Vec<Piece<'a>> },
    /// Begins to give everything below a directory, in place of the stream that is open.
    Walk { path: &'a [u8], listing: Listing },
    /// More of the stream.
    More,
    /// Ends the stream.
    End,
    /// Makes or replaces many files.
    WriteMany { how: WriteFlags, files: Vec<WriteItem<'a>> },
    /// Writes at an offset of a file, which is made with `create` as its mode if it is missing.
    WriteAt { path: &'a [u8], create: Option<u32>, truncate: bool, offset: u64, data: &'a [u8] },
    /// Makes a directory, with `parents` also those above.
    MakeDirectory { path: &'a [u8], mode: u32, parents: bool },
    /// Makes a symbolic link.
    Symlink { target: &'a [u8], path: &'a [u8] },
    /// Gives a file another name.
    Link { old: &'a [u8], new: &'a [u8] },
    /// Removes a name of a file.
    Unlink { path: &'a [u8] },
    /// Removes an empty directory.
    RemoveDirectory { path: &'a [u8] },
    /// Moves; `how`: 0 replaces, 1 does not, 2 exchanges.
    Rename { old: &'a [u8], new: &'a [u8], how: u8 },
    /// Sets the mode.
    SetMode { path: &'a [u8], mode: u32 },
    /// Sets owner and group; `u32::MAX`: as it is.
    SetOwner { path: &'a [u8], uid: u32, gid: u32, follow: bool },
    /// Sets the times of the last read and change.
    SetTimes { path: &'a [u8], atime: Time, mtime: Time, follow: bool },
    /// Sets the size of a file.
    Truncate { path: &'a [u8], size: u64 },
    /// The target of a symbolic link.
    ReadLink { path: &'a [u8] },
    /// Removes a directory with everything below.
    RemoveTree { path: &'a [u8] },
    /// Clones a file or a directory with everything below.
    CloneTree { old: &'a [u8], new: &'a [u8] },
    /// Sets owner and group of everything below; `u32::MAX`: as it is.
    OwnTree { path: &'a [u8], uid: u32, gid: u32 },
    /// Changes the modes of everything below: bits of directories that stay and that are added, the
    /// same of files, and bits added to executable files.
    ModeTree { path: &'a [u8], bits: [u32; 5] },
    /// What was changed below a directory since a position; the paths are a stream.
    Changes { path: &'a [u8], position: &'a [u8] },
    /// Makes everything durable.
    Sync,
    /// Begins to give what differs between two trees, in place of the stream that is open.
    Diff { old: &'a [u8], new: &'a [u8] },
    /// What many files have, at choice.
    Describe { follow: bool, asked: Aspects, paths: Vec<&'a [u8]> },
    /// Makes or replaces many files with all that files have.
    MakeMany { how: WriteFlags, files: Vec<NewItem<'a>> },
    /// Sets an extended attribute; `how`: 0 sets, 1 only makes, 2 only replaces.
    SetXattr { path: &'a [u8], name: &'a [u8], value: &'a [u8], how: u8, follow: bool },
    /// Removes an extended attribute.
    RemoveXattr { path: &'a [u8], name: &'a [u8], follow: bool },
    /// As `Changes`; answered when there is something to tell. `End` ends it before.
    Wait { path: &'a [u8], position: &'a [u8] },
}

impl Hello {
    /// The number of the call.
    pub const NUMBER: u16 = 1;

    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.0.extend_from_slice(&MAGIC);
        out.u16(self.versions.0);
        out.u16(self.versions.1);
        out.u32(self.areas.0);
        out.u32(self.areas.1);
        out.0.extend_from_slice(&self.token);
        out.u32(self.umask);
        out.0
    }

    /// From a body.
    ///
    /// # Errors
    /// [`Malformed`]; areas of a size that is not allowed.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        if reader.array()? != MAGIC {
            return Err(Malformed("it does not begin as a session does"));
        }
        let versions = (reader.u16()?, reader.u16()?);
        let areas = (reader.u32()?, reader.u32()?);
        let (token, umask) = (reader.array()?, reader.u32()?);
        reader.finish()?;
        if !AREA_BYTES.contains(&areas.0) || !AREA_BYTES.contains(&areas.1) {
            return Err(Malformed("an area of the memory is too small or too large"));
        }
        Ok(Self { versions, areas, token, umask })
    }
}

impl Time {
    fn encode(self, out: &mut Writer) {
        let (kind, at) = match self {
            Self::Keep => (0, 0),
            Self::Now => (1, 0),
            Self::At(at) => (2, at),
        };
        out.u8(kind);
        out.i64(at);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match (from.u8()?, from.i64()?) {
            (0, 0) => Ok(Self::Keep),
            (1, 0) => Ok(Self::Now),
            (2, at) => Ok(Self::At(at)),
            _ => Err(Malformed("a time is none")),
        }
    }
}

impl Listing {
    fn encode(&self, out: &mut Writer) {
        let flags = u8::from(self.pattern.is_some())
            | u8::from(self.size.is_some()) << 1
            | u8::from(self.modified.is_some()) << 2;
        out.u8(flags);
        out.u16(self.kinds);
        out.bytes(self.pattern.as_deref().unwrap_or_default());
        let (least, most) = self.size.clone().unwrap_or(0..=0).into_inner();
        out.u64(least);
        out.u64(most);
        let (from, to) = self.modified.clone().unwrap_or(0..=0).into_inner();
        out.i64(from);
        out.i64(to);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (flags, kinds, pattern) = (from.u8()?, from.u16()?, from.bytes()?);
        let (size, modified) = (from.u64()?..=from.u64()?, from.i64()?..=from.i64()?);
        if flags > 7 {
            return Err(Malformed("a filter has unknown flags"));
        }
        Ok(Self {
            pattern: (flags & 1 != 0).then(|| pattern.to_vec()),
            kinds,
            size: (flags & 2 != 0).then_some(size),
            modified: (flags & 4 != 0).then_some(modified),
        })
    }
}

impl<'a> Call<'a> {
    /// The number of the call.
    pub fn number(&self) -> u16 {
        match self {
            Self::Stat { .. } => 2,
            Self::Read { .. } => 3,
            Self::Walk { .. } => 4,
            Self::More => 5,
            Self::End => 6,
            Self::WriteMany { .. } => 7,
            Self::WriteAt { .. } => 8,
            Self::MakeDirectory { .. } => 9,
            Self::Symlink { .. } => 10,
            Self::Link { .. } => 11,
            Self::Unlink { .. } => 12,
            Self::RemoveDirectory { .. } => 13,
            Self::Rename { .. } => 14,
            Self::SetMode { .. } => 15,
            Self::SetOwner { .. } => 16,
            Self::SetTimes { .. } => 17,
            Self::Truncate { .. } => 18,
            Self::ReadLink { .. } => 19,
            Self::RemoveTree { .. } => 20,
            Self::CloneTree { .. } => 21,
            Self::OwnTree { .. } => 22,
            Self::ModeTree { .. } => 23,
            Self::Changes { .. } => 24,
            Self::Sync => 25,
            Self::Diff { .. } => 26,
            Self::Describe { .. } => 27,
            Self::MakeMany { .. } => 28,
            Self::SetXattr { .. } => 29,
            Self::RemoveXattr { .. } => 30,
            Self::Wait { .. } => 31,
        }
    }

    /// The first version of the protocol that has the call with this number.
    pub fn first_version(number: u16) -> u16 {
        const LAST_OF_FIRST: u16 = 25;
        if number <= LAST_OF_FIRST { *VERSIONS.start() } else { *VERSIONS.end() }
    }

    /// True if a call changes nothing, so that it may be made twice.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Stat { .. } | Self::Read { .. } | Self::Walk { .. } | Self::ReadLink { .. })
            || matches!(self, Self::Changes { .. } | Self::Sync | Self::More | Self::End)
            || matches!(self, Self::Diff { .. } | Self::Describe { .. } | Self::Wait { .. })
    }

    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Stat { follow, paths } => {
                out.u8(u8::from(*follow));
                out.u32(paths.len() as u32);
                paths.iter().for_each(|path| out.bytes(path));
            }
            Self::Read { pieces } => {
                out.u32(pieces.len() as u32);
                for piece in pieces {
                    out.bytes(piece.path);
                    out.u64(piece.offset);
                    out.u64(piece.length);
                }
            }
            Self::Walk { path, listing } => {
                out.bytes(path);
                listing.encode(&mut out);
            }
            Self::More | Self::End | Self::Sync => {}
            Self::WriteMany { how, files } => {
                out.u8(u8::from(how.replace));
                out.u32(how.directories.unwrap_or(u32::MAX));
                out.u32(files.len() as u32);
                files.iter().for_each(|file| file.encode(&mut out));
            }
            Self::Describe { follow, asked, paths } => {
                out.u8(u8::from(*follow));
                asked.encode(&mut out);
                out.u32(paths.len() as u32);
                paths.iter().for_each(|path| out.bytes(path));
            }
            Self::MakeMany { how, files } => {
                out.u8(u8::from(how.replace));
                out.u32(how.directories.unwrap_or(u32::MAX));
                out.u32(files.len() as u32);
                files.iter().for_each(|file| file.encode(&mut out));
            }
            other => other.encode_one(&mut out),
        }
        out.0
    }

    /// Appends the body of a call on one file or tree.
    fn encode_one(&self, out: &mut Writer) {
        match *self {
            Self::WriteAt { path, create, truncate, offset, data } => {
                out.bytes(path);
                out.u32(create.unwrap_or(u32::MAX));
                out.u8(u8::from(truncate));
                out.u64(offset);
                out.bytes(data);
            }
            Self::MakeDirectory { path, mode, parents } => {
                out.bytes(path);
                out.u32(mode);
                out.u8(u8::from(parents));
            }
            Self::Symlink { target: one, path: other }
            | Self::Link { old: one, new: other }
            | Self::CloneTree { old: one, new: other }
            | Self::Changes { path: one, position: other }
            | Self::Diff { old: one, new: other }
            | Self::Wait { path: one, position: other } => {
                out.bytes(one);
                out.bytes(other);
            }
            Self::Unlink { path }
            | Self::RemoveDirectory { path }
            | Self::ReadLink { path }
            | Self::RemoveTree { path } => out.bytes(path),
            Self::Rename { old, new, how } => {
                out.bytes(old);
                out.bytes(new);
                out.u8(how);
            }
            Self::SetMode { path, mode } => {
                out.bytes(path);
                out.u32(mode);
            }
            Self::SetOwner { path, uid, gid, follow } => {
                out.bytes(path);
                out.u32(uid);
                out.u32(gid);
                out.u8(u8::from(follow));
            }
            Self::SetTimes { path, atime, mtime, follow } => {
                out.bytes(path);
                atime.encode(out);
                mtime.encode(out);
                out.u8(u8::from(follow));
            }
            Self::Truncate { path, size } => {
                out.bytes(path);
                out.u64(size);
            }
            Self::OwnTree { path, uid, gid } => {
                out.bytes(path);
                out.u32(uid);
                out.u32(gid);
            }
            Self::ModeTree { path, bits } => {
                out.bytes(path);
                bits.iter().for_each(|bits| out.u32(*bits));
            }
            _ => self.encode_xattr(out),
        }
    }

    /// Appends the body of a call on an extended attribute.
    fn encode_xattr(&self, out: &mut Writer) {
        match *self {
            Self::SetXattr { path, name, value, how, follow } => {
                out.bytes(path);
                out.bytes(name);
                out.bytes(value);
                out.u8(how);
                out.u8(u8::from(follow));
            }
            Self::RemoveXattr { path, name, follow } => {
                out.bytes(path);
                out.bytes(name);
                out.u8(u8::from(follow));
            }
            _ => {}
        }
    }

    /// The call with this number, from its body.
    ///
    /// # Errors
    /// [`Malformed`]; a number that no call has.
    pub fn decode(number: u16, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        let call = match number {
            2..=7 | 25 => Self::decode_many(number, &mut from)?,
            26..=31 => Self::decode_later(number, &mut from)?,
            8..=18 => Self::decode_one(number, &mut from)?,
            _ => Self::decode_tree(number, &mut from)?,
        };
        from.finish()?;
        Ok(call)
    }

    fn decode_many(number: u16, from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match number {
            2 => {
                let follow = from.bool()?;
                let count = from.count(MAX_ITEMS, 4)?;
                Self::Stat { follow, paths: (0..count).map(|_| from.bytes()).collect::<Result<_, _>>()? }
            }
            3 => {
                let count = from.count(MAX_ITEMS, 20)?;
                let mut piece =
                    || Ok(Piece { path: from.bytes()?, offset: from.u64()?, length: from.u64()? });
                Self::Read { pieces: (0..count).map(|_| piece()).collect::<Result<_, _>>()? }
            }
            4 => Self::Walk { path: from.bytes()?, listing: Listing::decode(from)? },
            5 => Self::More,
            6 => Self::End,
            7 => {
                let (replace, mode) = (from.bool()?, from.u32()?);
                let how = WriteFlags { replace, directories: (mode != u32::MAX).then_some(mode) };
                let count = from.count(MAX_ITEMS, 30)?;
                let files = (0..count).map(|_| WriteItem::decode(from)).collect::<Result<_, _>>()?;
                Self::WriteMany { how, files }
            }
            _ => Self::Sync,
        })
    }

    /// Calls of the second version.
    fn decode_later(number: u16, from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match number {
            26 => Self::Diff { old: from.bytes()?, new: from.bytes()? },
            27 => {
                let (follow, asked) = (from.bool()?, Aspects::decode(from)?);
                let count = from.count(MAX_ITEMS, 4)?;
                let paths = (0..count).map(|_| from.bytes()).collect::<Result<_, _>>()?;
                Self::Describe { follow, asked, paths }
            }
            28 => {
                let (replace, mode) = (from.bool()?, from.u32()?);
                let how = WriteFlags { replace, directories: (mode != u32::MAX).then_some(mode) };
                let count = from.count(MAX_ITEMS, NEW_ITEM_LEAST_BYTES)?;
                let files = (0..count).map(|_| NewItem::decode(from)).collect::<Result<_, _>>()?;
                Self::MakeMany { how, files }
            }
            29 => {
                let (path, name, value) = (from.bytes()?, from.bytes()?, from.bytes()?);
                let how = from.u8()?;
                if how > 2 {
                    return Err(Malformed("an extended attribute is set in an unknown way"));
                }
                Self::SetXattr { path, name, value, how, follow: from.bool()? }
            }
            30 => Self::RemoveXattr { path: from.bytes()?, name: from.bytes()?, follow: from.bool()? },
            _ => Self::Wait { path: from.bytes()?, position: from.bytes()? },
        })
    }

    fn decode_one(number: u16, from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match number {
            8 => {
                let (path, mode) = (from.bytes()?, from.u32()?);
                let create = (mode != u32::MAX).then_some(mode);
                let (truncate, offset) = (from.bool()?, from.u64()?);
                Self::WriteAt { path, create, truncate, offset, data: from.bytes()? }
            }
            9 => Self::MakeDirectory { path: from.bytes()?, mode: from.u32()?, parents: from.bool()? },
            10 => Self::Symlink { target: from.bytes()?, path: from.bytes()? },
            11 => Self::Link { old: from.bytes()?, new: from.bytes()? },
            12 => Self::Unlink { path: from.bytes()? },
            13 => Self::RemoveDirectory { path: from.bytes()? },
            14 => {
                let (old, new, how) = (from.bytes()?, from.bytes()?, from.u8()?);
                if how > 2 {
                    return Err(Malformed("a rename of an unknown kind"));
                }
                Self::Rename { old, new, how }
            }
            15 => Self::SetMode { path: from.bytes()?, mode: from.u32()? },
            16 => Self::SetOwner {
                path: from.bytes()?,
                uid: from.u32()?,
                gid: from.u32()?,
                follow: from.bool()?,
            },
            17 => {
                let (path, atime, mtime) = (from.bytes()?, Time::decode(from)?, Time::decode(from)?);
                Self::SetTimes { path, atime, mtime, follow: from.bool()? }
            }
            _ => Self::Truncate { path: from.bytes()?, size: from.u64()? },
        })
    }

    fn decode_tree(number: u16, from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match number {
            19 => Self::ReadLink { path: from.bytes()? },
            20 => Self::RemoveTree { path: from.bytes()? },
            21 => Self::CloneTree { old: from.bytes()?, new: from.bytes()? },
            22 => Self::OwnTree { path: from.bytes()?, uid: from.u32()?, gid: from.u32()? },
            23 => {
                let path = from.bytes()?;
                let mut bits = [0; 5];
                for bits in &mut bits {
                    *bits = from.u32()?;
                }
                Self::ModeTree { path, bits }
            }
            24 => Self::Changes { path: from.bytes()?, position: from.bytes()? },
            _ => return Err(Malformed("there is no such call")),
        })
    }
}
