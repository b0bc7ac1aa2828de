//! States of a workspace that are kept, and going back to them.
//!
//! An undo refuses for no change, applied or not, because it loses none. Invariant: from before the
//! exchange until an apply of everything, a checkpoint that is marked as set aside has what the
//! undo took back, and [`Workspace::check_applied`] looks at it as at the workspace itself. So
//! `discard` without force, and `gc` of a workspace whose time is not over, remove it no more than
//! they would have removed the workspace before the undo.

use crate::error::{AtPath, Error, Result};
use crate::processes::Processes;
use crate::procfs::check_no_mounts;
use crate::record::{Checkpoint, Top, now};
use crate::trees::Trees;
use crate::workspace::{Lock, Workspace, set_identifier};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// How a workspace was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// The checkpoint that it is like now.
    pub to: Checkpoint,
    /// The checkpoint of what it was before.
    pub before: Checkpoint,
}

impl Workspace {
    /// Keeps everything in it as it is.
    ///
    /// # Errors
    /// As for [`Trees::clone_tree`].
    pub fn checkpoint(&mut self, trees: &dyn Trees, message: &str) -> Result<Checkpoint> {
        let lock = self.lock(trees)?;
        self.keep(trees, (message, false), &lock)
    }

    /// The same for a caller that holds the lock: an undo sets aside what it keeps.
    fn keep(
        &mut self,
        trees: &dyn Trees,
        (message, set_aside): (&str, bool),
        lock: &Lock,
    ) -> Result<Checkpoint> {
        let number = self.record.checkpoints.last().map_or(1, |last| last.number + 1);
        let dir = self.checkpoint_dir(number);
        if dir.symlink_metadata().is_ok() {
            // A crash came before it was recorded.
            trees.remove_tree(&dir)?;
        }
        // What is at its path may be another directory since the lock was taken.
        let top = self.open_top()?;
        top.named(trees.clone_tree(top.path(), &dir))?;
        let checkpoint = Checkpoint { number, created: now(), message: message.to_owned(), set_aside };
        self.record.checkpoints.push(checkpoint.clone());
        self.store(lock)?;
        Ok(checkpoint)
    }

    /// Makes it what it was at a checkpoint, by default the last one. What it is now is kept as a
    /// checkpoint first, so this can be undone.
    ///
    /// # Errors
    /// [`Error::Name`] without such a checkpoint; [`Error::InUse`] unless `force`;
    /// [`Error::MountPoint`]; as for [`Trees::clone_tree`].
    pub fn undo(
        &mut self,
        trees: &dyn Trees,
        number: Option<u64>,
        processes: &Processes,
        force: bool,
    ) -> Result<Undone> {
        let lock = self.lock(trees)?;
        let to = match number {
            Some(number) => self.record.checkpoint(number).cloned(),
            None => self.record.checkpoints.last().cloned(),
        };
        let Some(to) = to else {
            let name = &self.record.name;
            return Err(Error::Name(match number {
                Some(number) => {
                    format!("workspace '{name}' has no checkpoint {number} (espalier workspace log {name})")
                }
                None => {
                    format!("workspace '{name}' has no checkpoint (espalier workspace checkpoint {name})")
                }
            }));
        };
        check_no_mounts(&self.place())?;
        if !force {
            self.check_unused(processes)?;
            self.check_unused_now()?;
        }
        let scratch = self.scratch()?;
        let (tree, place) = (scratch.join("tree"), self.place());
        trees.clone_tree(&self.checkpoint_dir(to.number), &tree)?;
        set_identifier(&tree, &self.record.id)?;
        // A limit is the workspace's, whatever the checkpoint had.
        let now = self.open_top()?;
        let limits = now.named(trees.limits(now.path()))?;
        if trees.limits(&tree)? != limits {
            trees.set_limits(&tree, limits)?;
        }
        // Before it is there: from now on both are the workspace.
        let top = Top::of(&tree)?;
        self.record.undoing = Some(top.number);
        let message = format!("before undo to {}", to.number);
        let before = self.keep(trees, (&message, true), &lock)?;
        renameat_with(CWD, &tree, CWD, &place, RenameFlags::EXCHANGE).at(&place)?;
        if !self.is_own(&tree) {
            // Something else was at the place in that moment.
            let back = renameat_with(CWD, &tree, CWD, &place, RenameFlags::EXCHANGE);
            return Err(self.not_own(back, &tree));
        }
        (self.record.top, self.record.undoing) = (Some(top), None);
        self.store(&lock)?;
        trees.remove_tree(&scratch)?;
        Ok(Undone { to, before })
    }
}

#[cfg(test)]
mod tests;
