//! What a walk shows: entries by name, kind, size and time.

use crate::model::types::{Attr, FileKind};
use std::ops::RangeInclusive;

/// Which entries [`PathCaller::walk`](crate::PathCaller::walk) gives; the default gives all.
/// Directories are entered whatever it says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// A pattern: `*` for any bytes, `?` for one, `[a-z]` and `[!a-z]` for one of some, `\` before
    /// a byte that stands for itself. Without a slash it is one for the name; with one for the path
    /// below the directory of the walk, where only `**` stands for slashes too.
    pub pattern: Option<Vec<u8>>,
    /// One of these kinds.
    pub kinds: Option<Vec<FileKind>>,
    /// So many bytes; of a directory, entries.
    pub size: Option<RangeInclusive<u64>>,
    /// The content was last changed then, nanoseconds since the Unix epoch.
    pub modified: Option<RangeInclusive<i64>>,
}

impl Filter {
    /// True if the entry at `path` below the directory of a walk is to be given.
    pub fn matches(&self, path: &[u8], attr: &Attr) -> bool {
        let has_name = |pattern: &Vec<u8>| match pattern.contains(&b'/') {
            true => matches_pattern(pattern, path),
            false => matches_pattern(pattern, path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)),
        };
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&attr.kind))
            && self.size.as_ref().is_none_or(|size| size.contains(&attr.size))
            && self.modified.as_ref().is_none_or(|modified| modified.contains(&attr.mtime))
            && self.pattern.as_ref().is_none_or(has_name)
    }
}

/// True if all of `text` matches `pattern`. After a mismatch only the last `*`, and the last `**`,
/// take in more, so each byte of the pattern is looked at no more than the square of the length of
/// `text` often, without `**` no more than its length often.
fn matches_pattern(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut in_text) = (0, 0);
    // Where to go on, and from which byte, if what follows `*` or `**` does not match.
    let (mut star, mut globstar) = (None, None);
    loop {
        let rest = &pattern[at..];
        if rest.starts_with(b"**") {
            at += 2;
            (star, globstar) = (None, Some((at, in_text)));
            continue;
        }
        if rest.first() == Some(&b'*') {
            at += 1;
            star = Some((at, in_text));
            continue;
        }
        match (rest.is_empty(), text.get(in_text)) {
            (true, None) => return true,
            (false, Some(byte)) => {
                if let Some(length) = matches_byte(rest, *byte) {
                    (at, in_text) = (at + length, in_text + 1);
                    continue;
                }
            }
            _ => {}
        }
        // The last star takes in one byte more, which is no slash.
        match (star, globstar) {
            (Some((after, taken)), _) if text.get(taken).is_some_and(|byte| *byte != b'/') => {
                (at, in_text, star) = (after, taken + 1, Some((after, taken + 1)));
            }
            (_, Some((after, taken))) if taken < text.len() => {
                (at, in_text, star) = (after, taken + 1, None);
                globstar = Some((after, taken + 1));
            }
            _ => return false,
        }
    }
}

/// How long the part of a pattern is that matches `byte`; `None` if its first part does not.
fn matches_byte(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => (byte != b'/').then_some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', rest @ ..] => match parse_set(rest) {
            Some((set, length)) => (byte != b'/' && set.contains(byte)).then_some(1 + length),
            None => (byte == b'[').then_some(1),
        },
        [plain, ..] => (*plain == byte).then_some(1),
        [] => None,
    }
}

struct Set<'p> {
    is_negated: bool,
    members: &'p [u8],
}

impl Set<'_> {
    fn contains(&self, byte: u8) -> bool {
        let mut left = self.members;
        let mut found = false;
        while let Some(&first) = left.first() {
            let (last, length) = match left {
                [_, b'-', last, ..] => (*last, 3),
                _ => (first, 1),
            };
            found |= (first..=last).contains(&byte);
            left = &left[length..];
        }
        found != self.is_negated
    }
}

/// The set behind `[`, and its length with the bracket that closes it; `None` if none does.
fn parse_set(pattern: &[u8]) -> Option<(Set<'_>, usize)> {
    let is_negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let begin = usize::from(is_negated);
    // A bracket in the first place is a member.
    let length = pattern.get(begin + 1..)?.iter().position(|byte| *byte == b']')? + 1;
    let members = &pattern[begin..begin + length];
    Some((Set { is_negated, members }, begin + length + 1))
}

#[cfg(test)]
mod tests;
