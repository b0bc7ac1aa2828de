//! What differs between two trees, in time that grows with what differs.
//!
//! The engine compares the entries of both and passes over what they share. Every change of a file
//! leaves its mark in its entry, so data is not looked at. The entries of files with several names
//! say nothing: [`linked`] compares those.

mod linked;
mod shown;

use crate::inode::tree_check::{TreeCheck, TreeUse};
use crate::model::error::Result;
use crate::model::record::Record;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::volume::comparison_cache::{Asked, Comparing, DifferenceList, Trees};
use bytes::Bytes;
use espalier_engine::{Diff, Difference, Value};
use linked::{LinkedFiles, LinkedSides};
use shown::differs;
pub(crate) use shown::path_below;
use std::collections::VecDeque;
use std::sync::Arc;

/// So many entries that do not differ are passed over before a comparison asks whether to go on.
const ENTRIES_PER_LOOK: u32 = 64;

/// A comparison under way.
pub struct TreeDiff(Origin);

/// Where differences come from.
enum Origin {
    Walk(Box<Walk>),
    /// An answer that was kept, and how many of its differences were given.
    Kept(DifferenceList, usize),
}

/// A walk over what may differ.
struct Walk {
    diff: Diff,
    /// Until all entries were compared.
    linked: Option<LinkedFiles>,
    /// Differences of files with several names, which come last.
    rest: VecDeque<Vec<u8>>,
    /// Collects the answer that is to be kept; none once it cannot be.
    keeps: Option<Comparing>,
    /// Everything was found.
    is_done: bool,
}

/// Where the answer of a comparison may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recall {
    /// Both trees are walked over.
    Never,
    /// It may be that of an earlier comparison, if neither tree has changed since.
    Unchanged,
}

/// Begins to compare directory `old` of `before` (this file system or a snapshot of it) with
/// directory `node`.
///
/// # Errors
/// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory);
/// [`FsErrorKind::NotFound`](crate::FsErrorKind::NotFound) if one was removed;
/// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the caller is not root, and
/// not all of both is the caller's own; of the store.
pub(crate) fn diff_trees(
    (before, old): (&Namespace, NodeId),
    (namespace, node): (&Namespace, NodeId),
    caller: &Caller,
    recall: Recall,
) -> Result<TreeDiff> {
    let (old, new) = (before.nodes.dir(old)?, namespace.nodes.dir(node)?);
    let mut check_old = TreeCheck::new(&before.ownership, caller, TreeUse::Read);
    let mut check_new = TreeCheck::new(&namespace.ownership, caller, TreeUse::Read);
    let (there, here) = loop {
        let (there, here) = (before.tree.shared_again(), namespace.tree.shared_again());
        let is_ready = [check_old.is_ready(&old, &there), check_new.is_ready(&new, &here)];
        if is_ready == [true; 2] {
            break (there, here);
        }
        // Both trees may lie in one file system.
        drop((there, here));
        match is_ready[0] {
            true => check_new.walk(&new)?,
            false => check_old.walk(&old)?,
        }
    };
    check_old.check(&old, &there)?;
    check_new.check(&new, &here)?;
    let (from, to) = (old.content_prefix(there.epoch), new.content_prefix(here.epoch));
    let sides = LinkedSides::of((before, &old, there.epoch), (namespace, &new, here.epoch));
    let volume = &namespace.volume;
    // A volume that is only read may be one that another server changes.
    let may_recall = Arc::ptr_eq(&before.volume, volume) && !volume.options.read_only;
    let mut keeps = None;
    if may_recall && recall == Recall::Unchanged {
        let served_by = sides.as_ref().map(LinkedSides::served_by);
        match volume.comparisons.ask(Trees { tops: [from.clone(), to.clone()], served_by }) {
            Asked::Known(answer) => {
                [&old, &new].into_iter().try_for_each(|dir| dir.check_has_place())?;
                return Ok(TreeDiff(Origin::Kept(answer, 0)));
            }
            Asked::Unknown(comparing) => keeps = Some(comparing),
            Asked::Changing => {}
        }
    }
    let diff = volume.store.diff((before.volume.metadata(), &from), (volume.metadata(), &to))?;
    let linked = sides.map(|sides| LinkedFiles::new(sides, namespace)).transpose()?;
    // What is compared now is what was there before this, so it is theirs.
    [&old, &new].into_iter().try_for_each(|dir| dir.check_has_place())?;
    Ok(TreeDiff(Origin::Walk(Box::new(Walk { diff, linked, rest: VecDeque::new(), keeps, is_done: false }))))
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
        match &mut self.0 {
            Origin::Walk(walk) => walk.next_kept(goes_on),
            Origin::Kept(answer, given) => {
                let next = answer.get(*given).cloned();
                *given += usize::from(next.is_some());
                Ok(next)
            }
        }
    }

    /// True if it gives what an earlier comparison found.
    pub fn is_kept(&self) -> bool {
        self.walk().is_none()
    }

    fn walk(&self) -> Option<&Diff> {
        match &self.0 {
            Origin::Walk(walk) => Some(&walk.diff),
            Origin::Kept(..) => None,
        }
    }

    /// Entries that were passed over to find which keys may differ; of files with several names not
    /// those that lead to them.
    pub fn entries(&self) -> u64 {
        self.walk().map_or(0, Diff::entries)
    }

    /// Keys that were looked up on both sides so far.
    pub fn keys(&self) -> u64 {
        self.walk().map_or(0, Diff::keys)
    }

    /// Node headers that were looked at so far.
    pub fn nodes(&self) -> u64 {
        self.walk().map_or(0, Diff::nodes)
    }
}

impl Walk {
    /// The next difference, which is noted for the answer that is kept at the end.
    fn next_kept(&mut self, goes_on: &dyn Fn() -> bool) -> Result<Option<(Change, Vec<u8>)>> {
        let found = match self.next_while(goes_on) {
            Ok(found) => found,
            Err(error) => {
                self.keeps = None;
                return Err(error);
            }
        };
        match &found {
            Some((change, path)) => {
                let keeps = self.keeps.take();
                self.keeps = keeps.and_then(|mut keeps| keeps.add(*change, path).then_some(keeps));
            }
            None if self.is_done => self.keeps.take().into_iter().for_each(Comparing::keep),
            None => {}
        }
        Ok(found)
    }

    /// The next difference, or none if `goes_on` says no.
    fn next_while(&mut self, goes_on: &dyn Fn() -> bool) -> Result<Option<(Change, Vec<u8>)>> {
        let mut passed = 0u32;
        loop {
            // Before a difference is taken, so that none is lost.
            if passed > 0 && passed.is_multiple_of(ENTRIES_PER_LOOK) && !goes_on() {
                return Ok(None);
            }
            passed += 1;
            let Some(difference) = self.diff.next()? else { break };
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
        let last = self.rest.pop_front().map(|path| (Change::Changed, path));
        self.is_done = last.is_none();
        Ok(last)
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
}

#[cfg(test)]
mod tests;
