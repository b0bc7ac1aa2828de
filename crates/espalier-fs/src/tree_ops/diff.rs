//! What differs between two trees, in time that grows with what differs.
//!
//! The engine compares the entries of both and passes over what they share. Every change of a file
//! leaves its mark in its entry, so data is not looked at. Files with several names, whose entries
//! say nothing, are compared one by one.

use crate::inode::node::Node;
use crate::inode::ownership::TreeUse;
use crate::model::error::Result;
use crate::model::layout;
use crate::model::record::{Inode, Record};
use crate::model::types::*;
use crate::namespace::context::Namespace;
use bytes::Bytes;
use espalier_engine::{Diff, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Only the newer tree has it.
    Added,
    /// Only the older tree has it.
    Removed,
    /// Both have it, with different content or attributes; a directory with different attributes.
    /// Times of the last read and numbers do not count, nor of directories their times.
    Changed,
}

/// A comparison under way.
pub struct TreeDiff {
    diff: Diff,
    linked: VecDeque<(Change, Vec<u8>)>,
}

/// Begins to compare directory `old` of `before` (this file system or a snapshot of it) with
/// directory `node`.
///
/// # Errors
/// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory);
/// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the caller is not root, and
/// not all of both is the caller's own; of the store.
pub(crate) fn diff_trees(
    namespace: &Namespace,
    before: &Namespace,
    old: NodeId,
    node: NodeId,
    caller: &Caller,
) -> Result<TreeDiff> {
    let (old, new) = (before.nodes.dir(old)?, namespace.nodes.dir(node)?);
    let verified_old = before.ownership.verify(&old, caller, TreeUse::Read)?;
    let verified_new = namespace.ownership.verify(&new, caller, TreeUse::Read)?;
    let (there, here) = (before.tree.shared_again(), namespace.tree.shared_again());
    before.ownership.check_use(&old, &there, (caller, TreeUse::Read), verified_old.as_ref())?;
    namespace.ownership.check_use(&new, &here, (caller, TreeUse::Read), verified_new.as_ref())?;
    let (from, to) = (old.content_prefix(there.epoch), new.content_prefix(here.epoch));
    let diff =
        namespace.volume.store.diff((before.volume.metadata(), &from), (namespace.volume.metadata(), &to))?;
    let mut linked = VecDeque::new();
    let mut names = linked_below(before, &old, there.epoch)?;
    for (path, inode) in linked_below(namespace, &new, here.epoch)? {
        match names.remove(&path) {
            Some(was) if differs(&was, &inode) => linked.push_back((Change::Changed, path)),
            // Whether it is new the entries tell.
            _ => {}
        }
    }
    Ok(TreeDiff { diff, linked })
}

/// The files with several names below a directory that its own link area serves, by path.
fn linked_below(namespace: &Namespace, dir: &Arc<Node>, epoch: u64) -> Result<BTreeMap<Vec<u8>, Inode>> {
    let prefix = dir.content_prefix(epoch);
    let Some(top) = dir.link_area_directory() else { return Ok(BTreeMap::new()) };
    let area = layout::area_prefix(&top.content_prefix(epoch));
    let mut found = Vec::new();
    namespace.links.for_each_below(&prefix, |key, id| {
        found.extend(path_below(&key[prefix.len()..]).map(|path| (path, id)));
        true
    })?;
    found.into_iter().map(|(path, id)| Ok((path, namespace.links.inode_in_area(&area, id)?))).collect()
}

impl TreeDiff {
    /// The next difference; paths are relative to the trees.
    ///
    /// # Errors
    /// Of the store.
    #[allow(clippy::should_implement_trait, reason = "it can fail")]
    pub fn next(&mut self) -> Result<Option<(Change, Vec<u8>)>> {
        while let Some(difference) = self.diff.next()? {
            let Some(path) = path_below(&difference.key) else { continue };
            let old = difference.old.map(|value| self.record(&value)).transpose()?;
            let new = difference.new.map(|value| self.record(&value)).transpose()?;
            let change = match (old, new) {
                (None, None) => continue,
                (None, Some(_)) => Change::Added,
                (Some(_), None) => Change::Removed,
                (Some(Record::Inode(old)), Some(Record::Inode(new))) if !differs(&old, &new) => continue,
                (Some(Record::Link(old)), Some(Record::Link(new))) if old.kind == new.kind => continue,
                _ => Change::Changed,
            };
            return Ok(Some((change, path)));
        }
        Ok(self.linked.pop_front())
    }

    fn record(&self, value: &Value) -> Result<Record> {
        let bytes: Bytes = self.diff.read(value)?;
        Record::decode(&bytes)
    }

    /// Node headers that were looked at so far.
    pub fn nodes(&self) -> u64 {
        self.diff.nodes()
    }
}

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
fn differs(a: &Inode, b: &Inode) -> bool {
    let owner = |i: &Inode| (i.kind, i.mode, i.uid, i.gid, i.rdev);
    let content = |i: &Inode| (i.size, i.mtime, i.ctime);
    owner(a) != owner(b)
        || a.xattrs != b.xattrs
        || a.target != b.target
        || (!a.is_dir() && content(a) != content(b))
}

#[cfg(test)]
mod tests;
