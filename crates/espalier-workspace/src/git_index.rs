//! What git's index has beside the entries: the token of the `core.fsmonitor` hook, and the cache
//! of untracked files, which names the place of the work tree. Layout: gitformat-index(5).
//!
//! An index is read defensively: what is not as expected is left alone.

use crate::error::{AtPath, Result};
use sha1::{Digest, Sha1};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

const HEADER_BYTES: usize = 12;
const HASH_BYTES: usize = 20;
/// Times, numbers, mode, owner and size; the hash; flags.
const ENTRY_BYTES: usize = 40 + HASH_BYTES + 2;
const NAME_LENGTH_MASK: usize = 0xfff;
const EXTENDED: usize = 0x4000;
const FSMONITOR: &[u8] = b"FSMN";
const UNTRACKED: &[u8] = b"UNTR";
const END_OF_ENTRIES: &[u8] = b"EOIE";

/// An extension: signature and data.
type Extension<'a> = (&'a [u8], &'a [u8]);

/// The token that the index was last brought up to date with.
pub(crate) fn fsmonitor_token(index: &[u8]) -> Option<&[u8]> {
    let (_, extensions) = parse(index)?;
    let (_, data) = extensions.into_iter().find(|(signature, _)| *signature == FSMONITOR)?;
    let (version, rest) = data.split_first_chunk()?;
    let token = rest.split(|byte| *byte == 0).next()?;
    (u32::from_be_bytes(*version) == 2).then_some(token)
}

/// Makes the index in `file`, of a work tree that was cloned from `from`, good for one at `to`:
/// only the place in the cache of untracked files changes, and the sums. True if something was
/// changed.
pub(crate) fn relocate(file: &Path, from: &Path, to: &Path) -> Result<bool> {
    let index = std::fs::read(file).at(file)?;
    let Some((offset, tail)) = relocated(&index, from, to) else { return Ok(false) };
    let out = File::options().write(true).open(file).at(file)?;
    // Entries that changed as late as the index was written count as suspect, by its time.
    let modified = out.metadata().and_then(|of| of.modified()).at(file)?;
    out.write_all_at(&tail, offset as u64).at(file)?;
    out.set_len((offset + tail.len()) as u64).at(file)?;
    out.set_modified(modified).at(file)?;
    Ok(true)
}

/// From which byte on the index is another one at the new place, and what is there.
fn relocated(index: &[u8], from: &Path, to: &Path) -> Option<(usize, Vec<u8>)> {
    let (offset, extensions) = parse(index)?;
    let cache = extensions.iter().find(|(signature, _)| *signature == UNTRACKED)?.1;
    let place = |at: &Path| [b"Location ", at.as_os_str().as_bytes(), b", system "].concat();
    let (length, rest) = take_number(cache)?;
    let (identity, rest) = rest.split_at_checked(length)?;
    let system = identity.strip_prefix(&*place(from))?;
    let identity = [&place(to), system].concat();
    let cache = [&number(identity.len()), &identity[..], rest].concat();

    let mut tail = Vec::with_capacity(index.len() - offset + to.as_os_str().len());
    let mut heads = Sha1::new();
    for (signature, data) in extensions {
        let data = if signature == UNTRACKED { &cache } else { data };
        let length = u32::try_from(data.len()).ok()?.to_be_bytes();
        tail.extend_from_slice(signature);
        tail.extend_from_slice(&length);
        if signature == END_OF_ENTRIES {
            tail.extend_from_slice(data.get(..4)?);
            tail.extend_from_slice(&heads.clone().finalize());
        } else {
            heads.update(signature);
            heads.update(length);
            tail.extend_from_slice(data);
        }
    }
    let old = index.get(index.len() - HASH_BYTES..)?;
    if old.iter().all(|byte| *byte == 0) {
        // Git was told to compute none.
        tail.extend_from_slice(old);
    } else {
        let sum = Sha1::new().chain_update(&index[..offset]).chain_update(&tail).finalize();
        tail.extend_from_slice(&sum);
    }
    Some((offset, tail))
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
    let end = index.len().checked_sub(HASH_BYTES)?;
    let mut rest = index.get(at..end)?;
    let mut extensions = Vec::new();
    while !rest.is_empty() {
        let (head, behind) = rest.split_first_chunk::<8>()?;
        let length = u32::from_be_bytes(head[4..].try_into().ok()?) as usize;
        let (data, behind) = behind.split_at_checked(length)?;
        extensions.push((&rest[..4], data));
        rest = behind;
    }
    Some((at, extensions))
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
