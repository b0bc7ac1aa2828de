//! Throwing workspaces away.

use crate::commits::Lonely;
use crate::error::{AtPath, Error, Result};
use crate::git_exchange;
use crate::linked::{Linked, Registration};
use crate::processes::Processes;
use crate::procfs::check_no_mounts;
use crate::registry::NEW_PREFIX;
use crate::trees::Trees;
use crate::workspace::{Lock, Workspace};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::path::Path;

/// What a workspace is called that was thrown away, among what is known of it.
pub(crate) const DISCARDED: &str = "discarded";

/// How a workspace is thrown away.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard {
    /// Even if processes work in it, or it has changes that were not applied, or commits that are
    /// nowhere else.
    pub force: bool,
}

impl Discard {
    /// Removes a workspace with all that is known of it. Processes are looked at once more when no
    /// other command can be at work on it; `processes` are those that the caller knows of already.
    ///
    /// # Errors
    /// [`Error::InUse`]; as for [`Workspace::check_applied`]; [`Error::MountPoint`], with force,
    /// too; of the system.
    pub fn run(self, trees: &dyn Trees, workspace: &mut Workspace, processes: &Processes) -> Result<()> {
        let lock = match workspace.lock(trees) {
            Err(Error::Io { .. }) if self.force => workspace.lock_to_remove(trees)?,
            locked => locked?,
        };
        if !self.force {
            workspace.check_unused(processes)?;
            workspace.check_unused_now()?;
            workspace.check_applied(trees)?;
        }
        workspace.remove(trees, lock)
    }
}

impl Workspace {
    /// Removes it with all that is known of it, also by a repository of which it is a linked
    /// worktree.
    ///
    /// # Errors
    /// [`Error::Gone`] if something else is at its place; [`Error::MountPoint`]; of the system.
    pub(crate) fn remove(&mut self, trees: &dyn Trees, lock: Lock) -> Result<()> {
        check_no_mounts(&self.place())?;
        let registration = Linked::of(&self.place()).and_then(|linked| linked.own_registration());
        // In the directory with its data it is nowhere else, and goes with all of it at once.
        let gone = self.dir().join(DISCARDED);
        std::fs::rename(self.place(), &gone).at(&self.place())?;
        if !self.is_own(&gone) {
            // Something else was at the place in that moment.
            let back = renameat_with(CWD, &gone, CWD, self.place(), RenameFlags::NOREPLACE);
            return Err(self.not_own(back, &gone));
        }
        self.remove_data(trees, lock)?;
        // What stays of it is forgotten by the next `git worktree prune`, as after `rm -rf`.
        let _ = registration.map(Registration::forget);
        Ok(())
    }

    /// Removes all that is known of it.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn remove_data(&self, trees: &dyn Trees, lock: Lock) -> Result<()> {
        // What cannot be removed as one tree goes entry by entry: then the lock, or the record,
        // would be gone before the rest is, and the rest would still count as a workspace.
        let gone = self.home.dir().join(format!("{NEW_PREFIX}{}", self.record.id));
        std::fs::rename(self.dir(), &gone).at(&self.dir())?;
        trees.remove_tree(&gone)?;
        drop(lock);
        self.home.free_name(&self.record.name, &self.record.id)
    }

    /// Refuses if processes work in it.
    ///
    /// # Errors
    /// [`Error::InUse`].
    pub fn check_unused(&self, processes: &Processes) -> Result<()> {
        let found = processes.in_tree(&self.place());
        match found.is_empty() {
            true => Ok(()),
            false => Err(Error::InUse { name: self.record.name.clone(), processes: found }),
        }
    }

    /// Refuses if processes work in it at this time.
    ///
    /// # Errors
    /// As for [`Workspace::check_unused`]; of the system.
    pub(crate) fn check_unused_now(&self) -> Result<()> {
        self.check_unused(&Processes::look(&self.place())?)
    }

    /// Refuses if it, or what an undo set aside, has changes that were not applied or commits that
    /// are nowhere else, or if it has the repository of linked worktrees that lie elsewhere.
    ///
    /// # Errors
    /// [`Error::Unapplied`], [`Error::SetAside`], [`Error::Commits`], [`Error::MayHaveCommits`],
    /// [`Error::Worktrees`]; as for [`Workspace::differences`].
    pub fn check_applied(&self, trees: &dyn Trees) -> Result<()> {
        let name = self.record.name.clone();
        match self.differences(trees)?.len() {
            0 => {}
            changed => return Err(Error::Unapplied { name, changed }),
        }
        self.check_commits(trees, &self.place())?;
        for kept in self.record.checkpoints.iter().filter(|kept| kept.set_aside) {
            match self.differences_at(trees, kept.number)?.len() {
                0 => self.check_commits(trees, &self.checkpoint_dir(kept.number))?,
                changed => return Err(Error::SetAside { name, number: kept.number, changed }),
            }
        }
        let worktrees = git_exchange::worktrees_elsewhere(&self.place())?;
        match worktrees.is_empty() {
            true => Ok(()),
            false => Err(Error::Worktrees { name, worktrees }),
        }
    }

    /// Refuses if commits in it, or in one of its checkpoints, `tree`, are nowhere else.
    fn check_commits(&self, trees: &dyn Trees, tree: &Path) -> Result<()> {
        match self.lonely_commits(trees, tree)? {
            Some(Lonely { commits, place, original }) => {
                Err(Error::Commits { name: self.record.name.clone(), commits, place, original })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
