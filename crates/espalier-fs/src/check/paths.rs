//! The paths that keys stand for, for messages.

use crate::model::layout::{self, Parsed};

/// The path of the file that a key belongs to.
pub(crate) fn path_of(key: &[u8]) -> String {
    layout::parse(key).map_or_else(|| format!("key {}", key.escape_ascii()), |parsed| parsed.path())
}

/// The path of the directory that has the link area of a mark.
pub(crate) fn area_path(mark: &[u8]) -> String {
    let inside = [mark, layout::ROOT_KEY].concat();
    layout::parse(&inside).map_or_else(|| path_of(mark), |parsed| directory_path(&parsed))
}

/// The path of the directory in which an entry lies.
pub(crate) fn directory_path(parsed: &Parsed<'_>) -> String {
    let names: Vec<String> = parsed.directory.iter().map(|n| layout::show(n)).collect();
    format!("/{}", names.join("/"))
}
