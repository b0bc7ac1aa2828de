//! Keys of the file system in the three indexes of its volume.
//!
//! ```text
//! content of a directory   P(root) = empty, P(D/x) = P(D) x 01
//! root's attributes        P(root) 00                              metadata
//! entry n of directory D   P(D) 00 n                               metadata
//! block i of file D/n      P(D) 00 n 00 <i, 8 bytes big-endian>    data
//! large xattr a of D/n     P(D) 00 n 01 a                          data
//! entry D/n is a link      P(D) 00 n                               links
//! D has an area            P(D)                                    links
//! link area of D           P(D) 01 = L, laid out as a directory's content
//! orphan area              P(root) 01 01, laid out as a directory's content
//! reserved blocks at K     01 01 01 K                              metadata
//! location of file i       01 01 68 01 00 <i, 16 hex digits>       metadata
//! ```
//!
//! The root always has an area; its mark says only whether the link counts there are right.
//!
//! Names are escaped (`01 -> 02 02`, `02 -> 02 03`), so that no name contains 00 or 01 and order is
//! kept. From that follows: entries of a directory are contiguous and precede its subdirectories;
//! what lies below a directory is exactly one prefix per index; the blocks of a file are one
//! prefix; walking files first, then subdirectories, each in name order, walks in key order.

use espalier_engine::{Key, KeyRange};
use std::borrow::Cow;
use std::sync::Arc;

/// The index of entries and attributes.
pub(crate) const METADATA: u8 = 0;
/// The index of file data and large extended attributes.
pub(crate) const DATA: u8 = 1;
/// The index of entries that are links.
pub(crate) const LINKS: u8 = 2;
/// Number of indexes of a volume.
pub(crate) const INDEXES: u8 = 3;

/// The content prefix of the orphan area.
pub(crate) const ORPHAN_AREA: &[u8] = &[1, 1];
/// The key of the volume's state record: the attributes of the orphan area.
pub(crate) const STATE_KEY: &[u8] = &[1, 1, 0];
/// What the keys of records of reserved blocks begin with: behind it comes the key at which the
/// data of the file begins.
pub(crate) const RESERVATION_AREA: &[u8] = &[1, 1, 1];
/// The content prefix of the locations of files by id.
const LOCATIONS: &[u8] = &[1, 1, b'h', 1];
/// The key of the root's attributes.
pub(crate) const ROOT_KEY: &[u8] = &[0];

/// Length of the names in areas.
const AREA_NAME_BYTES: usize = 16;
/// Length of the keys of entries in the orphan area.
pub(crate) const ORPHAN_KEY_BYTES: usize = ORPHAN_AREA.len() + 1 + AREA_NAME_BYTES;
pub(crate) const ENTRY: u8 = 0;
pub(crate) const CONTENT: u8 = 1;
pub(crate) const BLOCK: u8 = 0;
const XATTR: u8 = 1;
const ESCAPE: u8 = 2;

/// Appends `name` escaped.
pub(crate) fn escape(name: &[u8], out: &mut Vec<u8>) {
    if name.iter().all(|byte| *byte > ESCAPE) {
        return out.extend_from_slice(name);
    }
    for byte in name {
        match byte {
            1 | 2 => out.extend([ESCAPE, byte + 1]),
            _ => out.push(*byte),
        }
    }
}

/// [`unescape`], for callers that keep the name.
pub(crate) fn unescape_shared(escaped: &[u8]) -> Option<Arc<[u8]>> {
    if escaped.iter().all(|byte| *byte > ESCAPE) {
        return Some(escaped.into());
    }
    unescape(escaped).map(Arc::from)
}

/// The name that was escaped to `escaped`; `None` if nothing escapes to that.
pub(crate) fn unescape(escaped: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            0 | 1 => return None,
            &ESCAPE => match bytes.next() {
                Some(&follow @ (2 | 3)) => name.push(follow - 1),
                _ => return None,
            },
            _ => name.push(*byte),
        }
    }
    Some(name)
}

/// The key of entry `name` in the directory whose content prefix is `prefix`.
pub(crate) fn entry_key(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + name.len() + 12);
    key.extend_from_slice(prefix);
    key.push(ENTRY);
    escape(name, &mut key);
    key
}

/// The content prefix of directory `name` in the directory whose content prefix is `prefix`.
pub(crate) fn content_prefix(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + name.len() + 4);
    push_component(&mut key, prefix, name);
    key
}

fn push_component(key: &mut Vec<u8>, prefix: &[u8], name: &[u8]) {
    key.extend_from_slice(prefix);
    escape(name, key);
    key.push(CONTENT);
}

/// The first key behind all below the directory with this content prefix, which is not the root's.
pub(crate) fn behind_content(prefix: &[u8]) -> Vec<u8> {
    debug_assert!(prefix.last() == Some(&CONTENT));
    [&prefix[..prefix.len().saturating_sub(1)], &[CONTENT + 1]].concat()
}

/// The content prefix of the directory above the one with this content prefix.
pub(crate) fn prefix_above(prefix: &[u8]) -> &[u8] {
    let end = prefix.len().saturating_sub(1);
    let above = prefix[..end].iter().rposition(|byte| *byte == CONTENT);
    &prefix[..above.map_or(0, |at| at + 1)]
}

/// The range of the entries of the directory with this content prefix, its own attributes excluded.
pub(crate) fn entries_range(prefix: &[u8]) -> KeyRange {
    // The root's and the areas' own attributes lie at P 00; escaped names begin with 02 or more.
    KeyRange::new([prefix, &[ENTRY, ESCAPE]].concat(), [prefix, &[CONTENT]].concat())
}

/// The range of everything below a directory: one prefix.
pub(crate) fn content_range(prefix: &[u8]) -> KeyRange {
    KeyRange::prefix(prefix)
}

/// The keys below a content prefix that a change of the whole tree reaches: all but the volume's
/// own records.
pub(crate) fn entries_below(content: &[u8]) -> Vec<KeyRange> {
    let whole = content_range(content);
    if !content.is_empty() {
        return vec![whole];
    }
    let files = KeyRange::prefix(&area_files(content));
    let behind = KeyRange { start: vec![2].into(), end: None };
    vec![entries_range(content), files, behind]
}

/// Block `number` of the file whose entry key (or place of detached data) is `base`.
pub(crate) fn block_key(base: &[u8], number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(base.len() + 9);
    key.extend_from_slice(base);
    key.push(BLOCK);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The number of the block whose key, behind its base, is `rest`.
pub(crate) fn block_number(rest: &[u8]) -> Option<u64> {
    let (&BLOCK, number) = rest.split_first()? else { return None };
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// The blocks of a file from `first` on.
pub(crate) fn blocks_from(base: &[u8], first: u64) -> KeyRange {
    KeyRange::new(block_key(base, first), [base, &[XATTR]].concat())
}

/// Large extended attribute `name` of the file or directory whose entry key is `base`.
pub(crate) fn xattr_key(base: &[u8], name: &[u8]) -> Vec<u8> {
    [base, &[XATTR], name].concat()
}

/// Everything that belongs to one file in the data index: blocks and large extended attributes.
pub(crate) fn file_range(base: &[u8]) -> KeyRange {
    KeyRange::new([base, &[BLOCK]].concat(), [base, &[ESCAPE]].concat())
}

/// The prefix of all files in the link area of the directory with this content prefix.
pub(crate) fn area_files(prefix: &[u8]) -> Vec<u8> {
    [prefix, &[CONTENT, ENTRY]].concat()
}

/// The content prefix of the link area of the directory with this content prefix.
pub(crate) fn area_prefix(prefix: &[u8]) -> Vec<u8> {
    [prefix, &[CONTENT]].concat()
}

/// True if a key of the links index says that a directory has a link area of its own.
pub(crate) fn is_area_mark(key: &[u8]) -> bool {
    key.last() == Some(&CONTENT)
}

/// The prefixes of what belongs to one file in the data index: blocks, and large extended
/// attributes if it has such.
pub(crate) fn file_prefixes(base: &[u8], with_xattrs: bool) -> impl Iterator<Item = Vec<u8>> {
    let kinds = if with_xattrs { &[BLOCK, XATTR][..] } else { &[BLOCK] };
    kinds.iter().map(move |kind| [base, &[*kind]].concat())
}

/// The name of entry number `id` in the link area or the orphan area.
pub(crate) fn area_name(id: u64) -> [u8; AREA_NAME_BYTES] {
    let mut name = [0; AREA_NAME_BYTES];
    for (i, digit) in name.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(id >> (60 - 4 * i)) as usize & 15];
    }
    name
}

/// The key of the record of the reserved blocks of the file whose data begins at `base`; the prefix
/// of all below a content prefix.
pub(crate) fn reservation_key(base: &[u8]) -> Vec<u8> {
    [RESERVATION_AREA, base].concat()
}

/// The range of all records of reserved blocks.
pub(crate) fn reservations_range() -> KeyRange {
    KeyRange::prefix(RESERVATION_AREA)
}

/// The key of the location of the file with this id.
pub(crate) fn location_key(id: u64) -> Vec<u8> {
    entry_key(LOCATIONS, &area_name(id))
}

/// The range of all locations.
pub(crate) fn locations_range() -> KeyRange {
    KeyRange::prefix(LOCATIONS)
}

/// [`entry_key`] of entry number `id` in the orphan area.
pub(crate) fn orphan_key(id: u64) -> [u8; ORPHAN_KEY_BYTES] {
    let mut key = [ENTRY; ORPHAN_KEY_BYTES];
    key[..ORPHAN_AREA.len()].copy_from_slice(ORPHAN_AREA);
    key[ORPHAN_AREA.len() + 1..].copy_from_slice(&area_name(id));
    key
}

/// The number that `name` stands for in an area.
pub(crate) fn area_id(name: &[u8]) -> Option<u64> {
    let plain = name.len() == AREA_NAME_BYTES && name.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(std::str::from_utf8(name).ok().filter(|_| plain)?, 16).ok()
}

/// What a key of the volume stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parsed<'a> {
    /// The content prefix of the directory.
    pub(crate) prefix: &'a [u8],
    /// Names from the root down to the directory; an empty name stands for an area.
    pub(crate) directory: Vec<Vec<u8>>,
    /// The key of the entry.
    pub(crate) base: &'a [u8],
    /// The entry's name; empty for the root's and the areas' own attributes.
    pub(crate) name: Vec<u8>,
    /// What follows the entry: block or attribute, with their first byte.
    pub(crate) rest: &'a [u8],
}

impl Parsed<'_> {
    /// The path for people.
    pub(crate) fn path(&self) -> String {
        let mut path = String::new();
        for name in &self.directory {
            path.push('/');
            path.push_str(&show(name));
        }
        path.push('/');
        path.push_str(&show(&self.name));
        if self.name.is_empty() && self.directory.is_empty() { "/".into() } else { path }
    }
}

/// A name for people: UTF-8 where it is, escapes where it is not.
pub(crate) fn show(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        _ if name.is_empty() => "(area)".into(),
        Ok(text) if !text.chars().any(char::is_control) => text.into(),
        _ => name.escape_ascii().to_string(),
    }
}

/// Takes a key apart; `None` if no key of the layout looks like that.
pub(crate) fn parse(key: &[u8]) -> Option<Parsed<'_>> {
    let mut directory = Vec::new();
    let mut at = 0;
    while *key.get(at)? != ENTRY {
        let len = key[at..].iter().position(|b| *b <= CONTENT)?;
        if key[at + len] != CONTENT {
            return None;
        }
        directory.push(unescape(&key[at..at + len])?);
        at += len + 1;
    }
    let start = at + 1;
    let len = key[start..].iter().position(|b| *b <= CONTENT).unwrap_or(key.len() - start);
    let name = unescape(&key[start..start + len])?;
    Some(Parsed { prefix: &key[..at], directory, base: &key[..start + len], name, rest: &key[start + len..] })
}

/// The name of the entry to which `key` belongs in the directory with this content prefix; `None`
/// if it belongs to no entry of that. Cheaper than [`parse`] for a walk within a directory.
pub(crate) fn name_in<'k>(prefix: &[u8], key: &'k [u8]) -> Option<Cow<'k, [u8]>> {
    let (separator, rest) = key.strip_prefix(prefix)?.split_first()?;
    if *separator != ENTRY {
        return None;
    }
    let name = rest.split(|byte| *byte <= CONTENT).next()?;
    match name.contains(&ESCAPE) {
        true => unescape(name).map(Cow::Owned),
        false => Some(Cow::Borrowed(name)),
    }
}

/// The names from the root down to the directory with this content prefix; those of an area are
/// empty.
pub(crate) fn names_of(prefix: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let names = prefix.split(|byte| *byte == CONTENT);
    names.take(prefix.iter().filter(|byte| **byte == CONTENT).count()).map_while(unescape)
}

/// `key` with `from`, with which it begins, replaced by `to`.
pub(crate) fn rebase(key: &[u8], from: &[u8], to: &[u8]) -> Key {
    debug_assert!(key.starts_with(from));
    [to, &key[from.len()..]].concat().into()
}

#[cfg(test)]
mod tests;
