//! Calls by path on whole trees: each is one step, whatever lies below.

use crate::model::access::{Granted, READ, SEARCH};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::types::*;
use crate::namespace::create::Maker;
use crate::path::caller::{At, Links, PathCaller};
use crate::path::filter::Filter;
use crate::path::handle::{Handle, Open};
use crate::path::place::{Hold, PathPlace};
use crate::tree_ops::changes::ChangedPaths;
use crate::tree_ops::list::walk_tree;
use crate::volume::change_journal::ChangeWaiter;
use std::sync::Arc;

#[cfg(test)]
mod tests;

#[cfg(test)]
thread_local! {
    /// What a test has happen between the two steps of a question about changes.
    static BEFORE_ASKED: std::cell::Cell<Option<Box<dyn FnOnce()>>> = const { std::cell::Cell::new(None) };
}

/// What [`PathCaller::walk`] gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkEntry<'a> {
    /// The path below the directory of the walk: names with slashes between them.
    pub path: &'a [u8],
    /// The attributes. The blocks of sparse files are not counted, and taken for full.
    pub attr: Attr,
    /// A directory that the caller may not list, or not search: nothing of what lies below is
    /// given.
    pub is_closed: bool,
}

impl PathCaller {
    /// Gives what `filter` lets through of all below a directory, with attributes, in the order of
    /// keys (each directory's files, then its subdirectories, each by name), until `each` returns
    /// false. All of it is of one instant, rights included. Links are not followed, and snapshots
    /// not shown. Closed directories are given whatever the filter says.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`]; [`FsErrorKind::AccessDenied`] unless the caller may list and
    /// search the directory; [`FsErrorKind::Unsupported`] for the directory of snapshots.
    pub fn walk<'a>(
        &self,
        path: impl Into<At<'a>>,
        filter: &Filter,
        each: &mut dyn FnMut(WalkEntry<'_>) -> bool,
    ) -> Result<()> {
        let top = self.object(path.into(), Links::Follow)?;
        if !top.is_directory() {
            return fail(FsErrorKind::NotDirectory, "not a directory");
        }
        let credentials = self.credentials();
        top.check(credentials, READ | SEARCH)?;
        let hold = node(&top)?;
        let enter = |inode: &_| credentials.has(Granted::by(inode), READ | SEARCH);
        walk_tree(&hold.fs().names, hold.node.id, &enter, &mut |entry, is_entered| {
            let is_closed = entry.attr.kind == FileKind::Directory && !is_entered;
            if !is_closed && !filter.matches(entry.path, &entry.attr) {
                return true;
            }
            each(WalkEntry { path: entry.path, attr: entry.attr, is_closed })
        })
    }

    /// Gives what differs between two directories, snapshots among them, until `each` returns
    /// false: paths below them, in the order of keys, files with several names last. The time grows
    /// with what differs, not with what there is.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`]; [`FsErrorKind::Permission`] if the caller is not root, and
    /// not all of both is the caller's own; [`FsErrorKind::Unsupported`] for the directory of
    /// snapshots.
    pub fn diff<'a, 'b>(
        &self,
        old: impl Into<At<'a>>,
        new: impl Into<At<'b>>,
        each: &mut dyn FnMut(Change, &[u8]) -> bool,
    ) -> Result<()> {
        self.diff_while(old, new, &|| true, each)
    }

    /// As [`PathCaller::diff`]; it also ends when `goes_on` says no, which is asked now and then
    /// while nothing is found that differs.
    ///
    /// # Errors
    /// As for [`PathCaller::diff`].
    pub fn diff_while<'a, 'b>(
        &self,
        old: impl Into<At<'a>>,
        new: impl Into<At<'b>>,
        goes_on: &dyn Fn() -> bool,
        each: &mut dyn FnMut(Change, &[u8]) -> bool,
    ) -> Result<()> {
        let old = self.object(old.into(), Links::Follow)?;
        let new = self.object(new.into(), Links::Follow)?;
        let (before, after) = (node(&old)?, node(&new)?);
        let mut diff = after.fs().diff_trees(before.fs(), before.node.id, after.node.id, &self.owner())?;
        while let Some((change, path)) = diff.next_while(goes_on)? {
            if !each(change, &path) {
                break;
            }
        }
        Ok(())
    }

    /// Tells what was changed below a directory since `token` was given out, as
    /// [`FileSystem::changed_paths`](crate::FileSystem::changed_paths) does, for a reader that
    /// keeps what it knows elsewhere: a token is good while the directory is the one at this path.
    ///
    /// # Errors
    /// Those of that call; [`FsErrorKind::ReadOnly`] in snapshots.
    pub fn changed_paths<'a>(&self, path: impl Into<At<'a>>, token: &[u8]) -> Result<ChangedPaths> {
        let directory = self.watched(path.into())?;
        let hold = watchable(&directory)?;
        hold.fs().changed_at_place(hold.node.id, token, &self.owner(), None)
    }

    /// As [`PathCaller::changed_paths`]; if there is nothing to tell (no paths, and not
    /// "everything"), `waiter` is woken once by the next change there, and when the directory
    /// leaves its place. The file system does not keep the waiter.
    ///
    /// # Errors
    /// As for [`PathCaller::changed_paths`].
    pub fn changed_paths_or_wait<'a>(
        &self,
        path: impl Into<At<'a>>,
        token: &[u8],
        waiter: &Arc<dyn ChangeWaiter>,
    ) -> Result<ChangedPaths> {
        let path = path.into();
        loop {
            let directory = self.watched(path)?;
            let hold = watchable(&directory)?;
            #[cfg(test)]
            BEFORE_ASKED.take().into_iter().for_each(|happen| happen());
            let changed = hold.fs().changed_at_place(hold.node.id, token, &self.owner(), Some(waiter))?;
            if changed.everything || !changed.paths.is_empty() {
                return Ok(changed);
            }
            // It may have moved away between the two steps: then the waiter waits at the new place,
            // which was not asked about, and the move itself woke nothing.
            if self.watched(path)?.node() == Some(hold.node.id) {
                return Ok(changed);
            }
        }
    }

    fn watched(&self, path: At<'_>) -> Result<Handle> {
        self.open(path, &Open { directory: true, ..Open::default() })
    }

    /// Removes a directory with everything below it.
    ///
    /// # Errors
    /// As for [`FileSystem::remove_tree`](crate::FileSystem::remove_tree) and
    /// [`PathCaller::rmdir`].
    pub fn remove_tree<'a>(&self, path: impl Into<At<'a>>) -> Result<()> {
        self.remove_tree_node(path).map(drop)
    }

    /// As [`PathCaller::remove_tree`]; returns the node by which a mount knew the directory.
    ///
    /// # Errors
    /// As for [`PathCaller::remove_tree`].
    pub fn remove_tree_node<'a>(&self, path: impl Into<At<'a>>) -> Result<NodeId> {
        let (dir, name) = self.directory_to_remove(path.into())?;
        let hold = changeable(&dir)?;
        hold.fs().remove_tree_judged(hold.node.id, &name, &self.owner(), self.judge())
    }

    /// Makes `new` a clone of what is at `old`, with everything below: the same content, times,
    /// owners, modes and extended attributes. A link at the end of `old` is cloned itself.
    ///
    /// # Errors
    /// As for [`FileSystem::clone_tree`](crate::FileSystem::clone_tree) and [`PathCaller::mkdir`];
    /// [`FsErrorKind::CrossesVolumes`].
    pub fn clone_tree<'a, 'b>(&self, old: impl Into<At<'a>>, new: impl Into<At<'b>>) -> Result<()> {
        let source = self.object(old.into(), Links::Stay)?;
        let (dir, name) = self.free_name(new.into(), source.is_directory())?;
        let (from, to) = (node(&source)?, changeable(&dir)?);
        if from.volume.id() != to.volume.id() {
            return fail(FsErrorKind::CrossesVolumes, "the two paths lie in different volumes");
        }
        let (caller, judge) = (self.owner(), self.judge());
        let maker = Maker { caller: &caller, judge };
        let entry = to.fs().clone_tree_judged(from.node.id, to.node.id, &name, maker)?;
        Hold::of_entry(&to.volume, &entry).map(drop)
    }

    /// Changes owner and group of what is at a path and of everything below, as `chown -R -h`.
    ///
    /// # Errors
    /// As for [`FileSystem::chown_tree`](crate::FileSystem::chown_tree).
    pub fn chown_tree<'a>(&self, path: impl Into<At<'a>>, change: OwnerChange) -> Result<()> {
        let place = self.object(path.into(), Links::Stay)?;
        let hold = changeable(&place)?;
        hold.fs().chown_tree(hold.node.id, change, &self.owner())
    }

    /// Changes the modes of what is at a path and of everything below but links, as `chmod -R`.
    ///
    /// # Errors
    /// As for [`FileSystem::chmod_tree`](crate::FileSystem::chmod_tree).
    pub fn chmod_tree<'a>(&self, path: impl Into<At<'a>>, change: ModeChange) -> Result<()> {
        let place = self.object(path.into(), Links::Stay)?;
        let hold = changeable(&place)?;
        hold.fs().chmod_tree(hold.node.id, change, &self.owner())
    }
}

fn watchable(directory: &Handle) -> Result<&Hold> {
    match &directory.place {
        PathPlace::Node(hold) if hold.volume.is_live() => Ok(hold),
        _ => fail(FsErrorKind::ReadOnly, "a snapshot does not change"),
    }
}

fn node(place: &PathPlace) -> Result<&Hold> {
    match place {
        PathPlace::Node(hold) => Ok(hold),
        PathPlace::Snapshots(_) => fail(FsErrorKind::Unsupported, "this is the directory of snapshots"),
    }
}

fn changeable(place: &PathPlace) -> Result<&Hold> {
    match place {
        PathPlace::Node(hold) => {
            hold.fs().volume.check_writable()?;
            Ok(hold)
        }
        PathPlace::Snapshots(_) => fail(FsErrorKind::ReadOnly, "snapshots cannot be changed"),
    }
}
