//! What users see of keys and records of a tree, for comparisons.

use crate::model::layout;
use crate::model::record::Inode;

/// The path that the rest of a key behind a directory's content prefix stands for; `None` for what
/// is no entry.
pub(crate) fn path_below(rest: &[u8]) -> Option<Vec<u8>> {
    let parsed = layout::parse(rest)?;
    if parsed.name.is_empty() || !parsed.rest.is_empty() || parsed.directory.iter().any(Vec::is_empty) {
        return None;
    }
    let mut path: Vec<u8> = Vec::new();
    for name in parsed.directory.iter().chain([&parsed.name]) {
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    Some(path)
}

/// True if users call that different.
pub(crate) fn differs(a: &Inode, b: &Inode) -> bool {
    let owner = |i: &Inode| (i.kind, i.mode, i.uid, i.gid, i.rdev);
    let content = |i: &Inode| (i.size, i.mtime, i.ctime);
    owner(a) != owner(b)
        || a.xattrs != b.xattrs
        || a.target != b.target
        || (!a.is_dir() && content(a) != content(b))
}
