//! The pathname analyzer: cuts a path into runs of names, and makes the key of a run.
//!
//! A *run* is a row of names without `..` in between, which one key resolves. Slashes that repeat
//! and `.` in a run mean nothing; what a run ends with does.

use crate::model::layout;
use std::ops::Range;

/// What follows the last name of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// `..`, and perhaps more.
    Up,
    /// The end of the path, after `.`.
    Here,
    /// The end of the path, after a slash.
    Slash,
    /// The end of the path.
    Plain,
}

/// A row of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run<'p> {
    /// How many names there are.
    pub(crate) count: usize,
    /// The part of the path before the last name.
    pub(crate) before_last: &'p [u8],
    /// The last name; empty without names.
    pub(crate) last: &'p [u8],
    pub(crate) end: End,
    /// Where the path goes on behind the run and what ends it, in bytes from its beginning.
    pub(crate) after: usize,
}

/// The first run of a path.
pub(crate) fn first_run(path: &[u8]) -> Run<'_> {
    let mut run = Run { count: 0, before_last: b"", last: b"", end: End::Plain, after: path.len() };
    let mut is_here = false;
    for (name, range) in components(path) {
        match name {
            b"." => is_here = true,
            b".." => return Run { end: End::Up, after: range.end, ..run },
            _ => {
                is_here = false;
                (run.count, run.before_last, run.last) = (run.count + 1, &path[..range.start], name);
            }
        }
    }
    run.end = match path.last() {
        _ if is_here => End::Here,
        Some(b'/') => End::Slash,
        _ => End::Plain,
    };
    run
}

/// The names of a run, each with the place in `path` where it ends.
pub(crate) fn names(path: &[u8]) -> impl Iterator<Item = (&[u8], usize)> + Clone {
    components(path).filter(|(name, _)| *name != b".").map(|(name, range)| (name, range.end))
}

/// The last name of a path, whatever follows it.
pub(crate) fn last_name(path: &[u8]) -> &[u8] {
    names(path).last().map_or(b"", |(name, _)| name)
}

fn components(path: &[u8]) -> impl Iterator<Item = (&[u8], Range<usize>)> + Clone {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += path[at..].iter().position(|byte| *byte != b'/')?;
        let length = path[at..].iter().position(|byte| *byte == b'/').unwrap_or(path.len() - at);
        let range = at..at + length;
        at = range.end;
        Some((&path[range.clone()], range))
    })
}

/// Makes the content prefix of a directory that of the directory `name` in it.
pub(crate) fn push_name(name: &[u8], prefix: &mut Vec<u8>) {
    layout::escape(name, prefix);
    prefix.push(layout::CONTENT);
}

#[cfg(test)]
mod tests;
