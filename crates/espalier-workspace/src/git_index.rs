//! What git's index has beside the entries: the token of the `core.fsmonitor` hook, and the cache
//! of untracked files, which names the place of the work tree. Layout: gitformat-index(5).
//!
//! The entries of a large repository take tens of megabytes, and git's sum is over all of them. So
//! where they end, and the state of the sum there, are kept in an extended attribute of the index:
//! git writes each index as a new file, which has none, and a clone has it, too.
//!
//! The cache of untracked files takes hundreds of kilobytes, and begins with the place. Git
//! compares that up to the first NUL and keeps what follows. So the original's index gets *room*
//! there, once: then another place in a clone's index changes a few bytes and moves none.
//!
//! An index is read defensively: what is not as expected is left alone.

use crate::error::{AtPath, Error, Result};
use crate::git_files::GitDir;
use rustix::fs::{Mode, OFlags, XattrFlags, fgetxattr, fsetxattr};
use sha1::digest::generic_array::GenericArray;
use sha1::{Digest, Sha1};
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The name of an index in git's directory, and of what locks it.
const INDEX: &str = "index";
const LOCK: &str = "index.lock";

/// An index of more bytes is left alone. It is read into memory, and a process in a workspace can
/// give the file any length with a hole that takes no room. An entry takes about a hundred bytes,
/// so that ten million of them are below this.
const MAX_BYTES: u64 = 1 << 30;
const HEADER_BYTES: usize = 12;
const HASH_BYTES: usize = 20;
/// Times, numbers, mode, owner and size; the hash; flags.
const ENTRY_BYTES: usize = 40 + HASH_BYTES + 2;
const NAME_LENGTH_MASK: usize = 0xfff;
const EXTENDED: usize = 0x4000;
const FSMONITOR: &[u8] = b"FSMN";
const UNTRACKED: &[u8] = b"UNTR";
const END_OF_ENTRIES: &[u8] = b"EOIE";
/// The place and what goes with it take a multiple of so many bytes where there is room.
const ROOM: usize = 512;
/// What changed in an index is written in units of so many bytes.
const WRITTEN_TOGETHER: usize = 512;

/// See the [module](self): time of modification in seconds and nanoseconds, length of the entries,
/// state of the sum; little-endian.
const ENTRIES_XATTR: &str = "user.espalier.entries";
const ENTRIES_XATTR_BYTES: usize = 8 + 8 + 8 + 20;
/// The sum is over blocks of so many bytes.
const SUM_BLOCK: usize = 64;
/// The state of an empty sum (FIPS 180-4, section 5.3.1).
const EMPTY_SUM: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];

/// An extension: signature and data.
type Extension<'a> = (&'a [u8], &'a [u8]);

/// The end of an index: all behind the entries.
pub(crate) struct IndexEnd {
    /// Bytes of the index before it.
    offset: usize,
    /// The last of those bytes, which do not fill a block of the sum, and then the end.
    bytes: Vec<u8>,
    /// The state of the sum over the bytes before.
    state: [u32; 5],
    /// When the index was modified.
    modified: (i64, i64),
}

impl IndexEnd {
    /// Reads the end of the index in an open file at `path`, and all of the index if where that
    /// begins is not known yet; `None` if it is not as expected, or has more than [`MAX_BYTES`].
    pub(crate) fn read_from(file: &File, path: &Path) -> Result<Option<Self>> {
        let found = file.metadata().at(path)?;
        if found.len() > MAX_BYTES {
            return Ok(None);
        }
        let length = found.len() as usize;
        let modified = (found.mtime(), found.mtime_nsec());
        if let Some((offset, state)) = known_entries(file, modified).filter(|(offset, _)| *offset <= length) {
            let begin = offset / SUM_BLOCK * SUM_BLOCK;
            let mut bytes = vec![0; length - begin];
            file.read_exact_at(&mut bytes, begin as u64).at(path)?;
            let end = Self { offset, bytes, state, modified };
            if end.extensions().is_some() {
                return Ok(Some(end));
            }
        }
        let mut index = vec![0; length];
        file.read_exact_at(&mut index, 0).at(path)?;
        let end = Self::of(&index, modified);
        if let Some(end) = &end {
            end.keep(file);
        }
        Ok(end)
    }

    /// Keeps where the entries end in an attribute of the index: a help for the next time, where
    /// the caller may write and the file system has such.
    fn keep(&self, file: &File) {
        let _ = fsetxattr(file, ENTRIES_XATTR, &self.encode(), XattrFlags::empty());
    }

    /// True if this is the end of the index in `file`: a clone has the length and the time.
    fn is_of(&self, file: &File) -> bool {
        let length = (self.bytes.len() + self.offset / SUM_BLOCK * SUM_BLOCK) as u64;
        file.metadata()
            .is_ok_and(|found| found.len() == length && (found.mtime(), found.mtime_nsec()) == self.modified)
    }

    /// The end of the index with these bytes.
    fn of(index: &[u8], modified: (i64, i64)) -> Option<Self> {
        let (offset, _) = parse(index)?;
        let (before, bytes) = index.split_at(offset / SUM_BLOCK * SUM_BLOCK);
        let mut state = EMPTY_SUM;
        for block in before.chunks_exact(SUM_BLOCK) {
            sha1::compress(&mut state, std::slice::from_ref(GenericArray::from_slice(block)));
        }
        Some(Self { offset, bytes: bytes.to_vec(), state, modified })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = [self.modified.0.to_le_bytes(), self.modified.1.to_le_bytes()].concat();
        out.extend((self.offset as u64).to_le_bytes());
        out.extend(self.state.iter().flat_map(|word| word.to_le_bytes()));
        out
    }

    /// The last bytes before the extensions that do not fill a block.
    fn unsummed(&self) -> &[u8] {
        &self.bytes[..self.offset % SUM_BLOCK]
    }

    fn extensions(&self) -> Option<Vec<Extension<'_>>> {
        extensions(self.bytes.get(self.offset % SUM_BLOCK..)?)
    }

    /// The token that the index was last brought up to date with.
    pub(crate) fn fsmonitor_token(&self) -> Option<&[u8]> {
        let extensions = self.extensions()?;
        let (_, data) = extensions.into_iter().find(|(signature, _)| *signature == FSMONITOR)?;
        let (version, rest) = data.split_first_chunk()?;
        let token = rest.split(|byte| *byte == 0).next()?;
        (u32::from_be_bytes(*version) == 2).then_some(token)
    }

    /// True if there is a cache of untracked files, without room for another place.
    pub(crate) fn lacks_room(&self) -> bool {
        let identity =
            self.extensions().and_then(|extensions| identity_in(&extensions).map(|(i, _)| i.len()));
        identity.is_some_and(|length| length % ROOM != 0)
    }

    /// What the end is in an index of a work tree at `to`, if this one is of a work tree at `from`
    /// and has a cache of untracked files.
    fn relocated(&self, from: &Path, to: &Path) -> Option<Vec<u8>> {
        let extensions = self.extensions()?;
        let (old, rest) = identity_in(&extensions)?;
        let place = |at: &Path| [b"Location ", at.as_os_str().as_bytes(), b", system "].concat();
        let system = old.strip_prefix(&*place(from))?;
        let system = system.split(|byte| *byte == 0).next()?;
        let mut identity = [&place(to), system, &[0]].concat();
        let room = match old.len() % ROOM == 0 && identity.len() <= old.len() {
            true => old.len(),
            false => identity.len().next_multiple_of(ROOM),
        };
        identity.resize(room, 0);
        let cache = [&number(identity.len()), &identity[..], rest].concat();

        let mut end = Vec::with_capacity(self.bytes.len() + to.as_os_str().len());
        let mut heads = Sha1::new();
        for (signature, data) in extensions {
            let data = if signature == UNTRACKED { &cache } else { data };
            let length = u32::try_from(data.len()).ok()?.to_be_bytes();
            end.extend_from_slice(signature);
            end.extend_from_slice(&length);
            if signature == END_OF_ENTRIES {
                end.extend_from_slice(data.get(..4)?);
                end.extend_from_slice(&heads.clone().finalize());
            } else {
                heads.update(signature);
                heads.update(length);
                end.extend_from_slice(data);
            }
        }
        let old = self.bytes.get(self.bytes.len() - HASH_BYTES..)?;
        if old.iter().all(|byte| *byte == 0) {
            // Git was told to compute none.
            end.extend_from_slice(old);
        } else {
            end.extend_from_slice(&self.sum_with(&end));
        }
        Some(end)
    }

    /// The sum of the index if the extensions were `end`.
    fn sum_with(&self, end: &[u8]) -> Vec<u8> {
        let mut state = self.state;
        let bits = 8 * (self.offset + end.len()) as u64;
        // Behind the message: a one, zeros, and its length in bits (FIPS 180-4, section 5.1.1).
        let mut rest = [self.unsummed(), end, &[0x80]].concat();
        let padded = (rest.len() + 8).next_multiple_of(SUM_BLOCK) - 8;
        rest.resize(padded, 0);
        rest.extend(bits.to_be_bytes());
        for block in rest.chunks_exact(SUM_BLOCK) {
            sha1::compress(&mut state, std::slice::from_ref(GenericArray::from_slice(block)));
        }
        state.iter().flat_map(|word| word.to_be_bytes()).collect()
    }
}

/// Where the entries of an index end, and the state of the sum there, if that was kept of the index
/// as it is.
fn known_entries(file: &File, modified: (i64, i64)) -> Option<(usize, [u32; 5])> {
    let mut value = [0u8; ENTRIES_XATTR_BYTES + 1];
    let length = fgetxattr(file, ENTRIES_XATTR, &mut value[..]).ok()?;
    let (numbers, words) = value.get(..length).filter(|_| length == ENTRIES_XATTR_BYTES)?.split_at(24);
    let number = |at: usize| numbers[at..at + 8].try_into().map(i64::from_le_bytes).ok();
    if (number(0)?, number(8)?) != modified {
        return None;
    }
    let mut state = EMPTY_SUM;
    for (word, bytes) in state.iter_mut().zip(words.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().ok()?);
    }
    Some((usize::try_from(number(16)?).ok()?, state))
}

/// Makes the index in the open file at `path`, of a work tree that was cloned from `from`, good for
/// one at `to`: only the place in the cache of untracked files changes, and the sums. `known` may
/// be the end of the index that it is a clone of. True if something was changed.
pub(crate) fn relocate(
    opened: &File,
    path: &Path,
    (from, to): (&Path, &Path),
    known: Option<IndexEnd>,
) -> Result<bool> {
    let end = match known.filter(|known| known.is_of(opened)) {
        None => IndexEnd::read_from(opened, path)?,
        known => known,
    };
    let Some(end) = end else { return Ok(false) };
    let Some(new) = end.relocated(from, to) else { return Ok(false) };
    write_end(opened, &end, &new).at(path)?;
    Ok(true)
}

/// Gives the index in `git`, of the work tree `original`, room for other places, as git would write
/// it: under its lock, as a new file. False if it is not the caller's to write, or git is at work.
pub(crate) fn make_room(git: &GitDir, original: &Path) -> Result<bool> {
    let Some(file) = git.file(OsStr::new(INDEX), OFlags::RDONLY)? else { return Ok(false) };
    let path = git.path().join(INDEX);
    let found = file.metadata().at(&path)?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    let new = match git.make_file(OsStr::new(LOCK), Mode::from_raw_mode(found.mode() & 0o777)) {
        Err(Error::Io { source, .. })
            if matches!(
                source.kind(),
                ErrorKind::AlreadyExists | ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            return Ok(false);
        }
        made => made?,
    };
    let made = write_with_room(git, original, &new);
    if !matches!(made, Ok(true)) {
        git.remove(OsStr::new(LOCK))?;
    }
    made
}

/// What [`make_room`] does under the lock.
fn write_with_room(git: &GitDir, original: &Path, new: &File) -> Result<bool> {
    let (index, lock) = (git.path().join(INDEX), git.path().join(LOCK));
    // Git may have written another one before it was locked.
    let Some(file) = git.file(OsStr::new(INDEX), OFlags::RDONLY)? else { return Ok(false) };
    let Some(end) = IndexEnd::read_from(&file, &index)?.filter(IndexEnd::lacks_room) else {
        return Ok(false);
    };
    let Some(bytes) = end.relocated(original, original) else { return Ok(false) };
    std::io::copy(&mut &file, &mut &*new).at(&lock)?;
    new.set_permissions(file.metadata().at(&index)?.permissions()).at(&lock)?;
    new.set_modified(file.metadata().and_then(|of| of.modified()).at(&index)?).at(&lock)?;
    write_end(new, &end, &bytes).at(&lock)?;
    end.keep(new);
    git.rename(OsStr::new(LOCK), OsStr::new(INDEX))?;
    Ok(true)
}

/// Writes another end of an index, where it differs.
fn write_end(out: &File, old: &IndexEnd, new: &[u8]) -> std::io::Result<()> {
    // Entries that changed as late as the index was written count as suspect, by its time.
    let modified = out.metadata()?.modified()?;
    let before = &old.bytes[old.offset % SUM_BLOCK..];
    if before.len() == new.len() {
        let units = before.chunks(WRITTEN_TOGETHER).zip(new.chunks(WRITTEN_TOGETHER));
        for (number, (_, unit)) in units.enumerate().filter(|(_, (a, b))| a != b) {
            out.write_all_at(unit, (old.offset + number * WRITTEN_TOGETHER) as u64)?;
        }
    } else {
        out.write_all_at(new, old.offset as u64)?;
        out.set_len((old.offset + new.len()) as u64)?;
    }
    out.set_modified(modified)
}

/// Where the extensions begin, and the extensions.
fn parse(index: &[u8]) -> Option<(usize, Vec<Extension<'_>>)> {
    let word = |at: usize| Some(u32::from_be_bytes(index.get(at..at + 4)?.try_into().ok()?) as usize);
    let version = word(4)?;
    if !index.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return None;
    }
    let mut at = HEADER_BYTES;
    for _ in 0..word(8)? {
        at = behind_entry(index, at, version)?;
    }
    Some((at, extensions(index.get(at..)?)?))
}

/// What the cache of untracked files says of its place, and what follows.
fn identity_in<'a>(extensions: &[Extension<'a>]) -> Option<(&'a [u8], &'a [u8])> {
    let cache = extensions.iter().find(|(signature, _)| *signature == UNTRACKED)?.1;
    let (length, rest) = take_number(cache)?;
    rest.split_at_checked(length)
}

/// The extensions of an index, of which this is all behind the entries.
fn extensions(end: &[u8]) -> Option<Vec<Extension<'_>>> {
    let mut rest = end.get(..end.len().checked_sub(HASH_BYTES)?)?;
    let mut extensions = Vec::new();
    while !rest.is_empty() {
        let (head, behind) = rest.split_first_chunk::<8>()?;
        let length = u32::from_be_bytes(head[4..].try_into().ok()?) as usize;
        let (data, behind) = behind.split_at_checked(length)?;
        extensions.push((&rest[..4], data));
        rest = behind;
    }
    Some(extensions)
}

/// Where the entry that begins at `at` ends.
fn behind_entry(index: &[u8], at: usize, version: usize) -> Option<usize> {
    let flags = index.get(at + ENTRY_BYTES - 2..at + ENTRY_BYTES)?;
    let flags = usize::from(u16::from_be_bytes(flags.try_into().ok()?));
    let extended = if version > 2 && flags & EXTENDED != 0 { 2 } else { 0 };
    let mut name = at + ENTRY_BYTES + extended;
    if version == 4 {
        let rest = index.get(name..)?;
        name += rest.len() - take_number(rest)?.1.len();
    }
    let known = flags & NAME_LENGTH_MASK;
    let length = match known < NAME_LENGTH_MASK && version < 4 {
        true => known,
        false => index.get(name..)?.iter().position(|byte| *byte == 0)?,
    };
    let end = name + length;
    // One NUL at least, and as many as make the entry a multiple of eight bytes.
    Some(if version == 4 { end + 1 } else { at + (end - at + 8) / 8 * 8 })
}

/// A number as git writes it, with what is behind it.
fn take_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let (mut value, mut last) = (usize::from(first & 127), *first);
    while last & 128 != 0 {
        let (next, behind) = rest.split_first()?;
        value = value.checked_add(1)?.checked_mul(128)?.checked_add(usize::from(next & 127))?;
        (last, rest) = (*next, behind);
    }
    Some((value, rest))
}

/// The number as git writes it.
fn number(mut value: usize) -> Vec<u8> {
    let mut out = vec![(value & 127) as u8];
    value >>= 7;
    while value > 0 {
        value -= 1;
        out.insert(0, 128 | (value & 127) as u8);
        value >>= 7;
    }
    out
}

#[cfg(test)]
mod tests;
