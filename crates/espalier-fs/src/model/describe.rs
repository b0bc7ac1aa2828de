//! Key ranges in the words of people, for messages about damage.

use crate::model::layout::{self, DATA, Parsed};
use espalier_engine::{IndexId, KeyRange};

/// Says which paths the keys of `range` belong to: `/a/b`, `/a/b to /a/c`, `everything from /a/b
/// on`. Bounds that are no keys of the layout are shown by the nearest directory that they name.
pub fn describe_range(index: IndexId, range: &KeyRange) -> String {
    let what = if index.index == DATA { "data of " } else { "" };
    let first = path(&range.start);
    match range.end.as_deref().map(path) {
        Some(last) if last == first => format!("{what}{first}"),
        Some(last) => format!("{what}{first} to {last}"),
        None => format!("{what}everything from {first} on"),
    }
}

/// The path a key or a bound between keys belongs to.
fn path(key: &[u8]) -> String {
    if let Some(parsed) = layout::parse(key) {
        return parsed.path();
    }
    // A bound inside the keys of a directory's content: whole components are names, the rest is cut
    // off.
    let mut directory = Vec::new();
    let mut rest = key;
    while let Some(end) = rest.iter().position(|b| *b == layout::CONTENT) {
        let Some(name) = layout::unescape(&rest[..end]) else { break };
        directory.push(name);
        rest = &rest[end + 1..];
    }
    let Some(name) = directory.pop() else { return "/".into() };
    Parsed { prefix: &[], directory, base: &[], name, rest: &[] }.path()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(index: u8, start: &[u8], end: Option<&[u8]>) -> String {
        let range = KeyRange { start: start.into(), end: end.map(Into::into) };
        describe_range(IndexId { volume: 1, index }, &range)
    }

    #[test]
    fn ranges_are_named_by_their_paths() {
        assert_eq!(described(0, b"", None), "everything from / on");
        assert_eq!(described(0, b"a\x01\x00b", Some(b"a\x01\x00c")), "/a/b to /a/c");
        let block = |number: u8| [b"a\x01\x00b\x00", &[0, 0, 0, 0, 0, 0, 0, number][..]].concat();
        assert_eq!(described(DATA, &block(1), Some(&block(9))), "data of /a/b");
        assert_eq!(described(0, b"a\x01b\x01", Some(b"a\x01c\x01")), "/a/b to /a/c");
        assert_eq!(described(0, b"\x02", Some(&[0xff])), "/");
    }
}
