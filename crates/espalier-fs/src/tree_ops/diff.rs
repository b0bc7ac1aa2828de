//! What differs between two trees, in time that grows with what differs.
//!
//! The engine compares the entries of both and passes over what they share. Every change of a file
//! leaves its mark in its entry, so data is not looked at. The entries of files with several names
//! say nothing: [`linked`] compares those.

mod linked;
mod shown;

use crate::inode::ownership::TreeUse;
use crate::model::error::Result;
use crate::model::record::Record;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use bytes::Bytes;
use espalier_engine::{Diff, Difference, Value};
use linked::LinkedFiles;
use shown::differs;
pub(crate) use shown::path_below;
use std::collections::VecDeque;

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

/// So many entries that do not differ are passed over before a comparison asks whether to go on.
const ENTRIES_PER_LOOK: u32 = 64;

/// A comparison under way.
pub struct TreeDiff {
    diff: Diff,
    /// Until all entries were compared.
    linked: Option<LinkedFiles>,
    /// Differences of files with several names, which come last.
    rest: VecDeque<Vec<u8>>,
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
    let linked = LinkedFiles::new((before, &old, there.epoch), (namespace, &new, here.epoch))?;
    Ok(TreeDiff { diff, linked, rest: VecDeque::new() })
}

impl TreeDiff {
    /// The next difference; paths are relative to the trees.
    ///
    /// # Errors
    /// Of the store.
    #[allow(clippy::should_implement_trait, reason = "it can fail")]
    pub fn next(&mut self) -> Result<Option<(Change, Vec<u8>)>> {
        self.next_while(&|| true)
    }

    /// The next difference, or none if `goes_on` says no: that is asked now and then while entries
    /// turn out not to differ.
    ///
    /// # Errors
    /// Of the store.
    pub fn next_while(&mut self, goes_on: &dyn Fn() -> bool) -> Result<Option<(Change, Vec<u8>)>> {
        let mut passed = 0u32;
        while let Some(difference) = self.diff.next()? {
            passed += 1;
            if passed.is_multiple_of(ENTRIES_PER_LOOK) && !goes_on() {
                return Ok(None);
            }
            let Some(path) = path_below(&difference.key) else {
                self.note(&difference)?;
                continue;
            };
            let old = difference.old.map(|value| self.record(&value)).transpose()?;
            let new = difference.new.map(|value| self.record(&value)).transpose()?;
            let change = match (old, new) {
                (None, None) => continue,
                (None, Some(_)) => Change::Added,
                (Some(_), None) => Change::Removed,
                (Some(Record::Inode(old)), Some(Record::Inode(new))) if !differs(&old, &new) => continue,
                (Some(Record::Link(old)), Some(Record::Link(new))) if old.kind == new.kind => continue,
                (Some(Record::Link(_)), Some(Record::Inode(inode)))
                | (Some(Record::Inode(inode)), Some(Record::Link(_)))
                    if !inode.is_dir() && self.linked.is_some() =>
                {
                    // A second name, or its end, makes no other file of it.
                    self.linked.iter_mut().for_each(|linked| linked.add_name(&difference.key));
                    continue;
                }
                _ => Change::Changed,
            };
            return Ok(Some((change, path)));
        }
        if let Some(linked) = self.linked.take() {
            self.rest = linked.finish()?;
        }
        Ok(self.rest.pop_front().map(|path| (Change::Changed, path)))
    }

    /// Takes notice of a difference at a key that is no entry.
    fn note(&mut self, difference: &Difference) -> Result<()> {
        if let (Some(old), Some(new)) = (&difference.old, &difference.new)
            && let Some(linked) = &mut self.linked
            && let Some(file) = linked::area_file(&difference.key)
        {
            linked.note(file, &self.diff.read(old)?, &self.diff.read(new)?)?;
        }
        Ok(())
    }

    fn record(&self, value: &Value) -> Result<Record> {
        let bytes: Bytes = self.diff.read(value)?;
        Record::decode(&bytes)
    }

    /// Entries that were passed over to find which keys may differ; of files with several names not
    /// those that lead to them.
    pub fn entries(&self) -> u64 {
        self.diff.entries()
    }

    /// Keys that were looked up on both sides so far.
    pub fn keys(&self) -> u64 {
        self.diff.keys()
    }

    /// Node headers that were looked at so far.
    pub fn nodes(&self) -> u64 {
        self.diff.nodes()
    }
}

#[cfg(test)]
mod tests;
