//! What keys of the metadata index say about directories. Names contain neither of the bytes that
//! separate them, so every byte 01 before the first 00 ends the content prefix of a directory.

use crate::model::layout::CONTENT;
use espalier_engine::KeyRange;

/// The part of a key that consists of the names of directories: the longest content prefix that it
/// begins with.
pub(crate) fn directories(key: &[u8]) -> &[u8] {
    let end = key.iter().position(|byte| *byte == 0).unwrap_or(key.len());
    let last = key[..end].iter().rposition(|byte| *byte == CONTENT).map_or(0, |at| at + 1);
    &key[..last]
}

/// The content prefixes of the directories that a key lies in, from the root down. A content prefix
/// lies in its own directory, too.
pub(crate) fn directories_above(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let names = directories(key);
    let ends = names.iter().enumerate().filter(|(_, byte)| **byte == CONTENT).map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).map(|end| &key[..end])
}

/// True for what lies in a link area or in the orphan area, or is one.
pub(crate) fn is_in_area(key: &[u8]) -> bool {
    let names = directories(key);
    names.first() == Some(&CONTENT) || names.windows(2).any(|pair| pair == [CONTENT, CONTENT])
}

/// The content prefix of the directory that all of a range lies in: the one whose content the range
/// is, if it is that of one.
pub(crate) fn common_directory(range: &KeyRange) -> &[u8] {
    if range.start.last() == Some(&CONTENT) && *range == KeyRange::prefix(&range.start) {
        return directories(&range.start);
    }
    let end = range.end.as_deref().unwrap_or_default();
    let common = range.start.iter().zip(end).take_while(|(a, b)| a == b).count();
    directories(&range.start[..common])
}

/// A range as the standard library takes it.
pub(crate) fn bounds(range: &KeyRange) -> (std::ops::Bound<&[u8]>, std::ops::Bound<&[u8]>) {
    use std::ops::Bound;
    (Bound::Included(&range.start), range.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded))
}
