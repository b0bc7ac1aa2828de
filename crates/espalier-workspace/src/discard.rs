//! Throwing workspaces away.

use crate::error::{AtPath, Error, Result};
use crate::processes::Processes;
use crate::trees::Trees;
use crate::workspace::Workspace;

/// How a workspace is thrown away.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard {
    /// Even if processes work in it, or it has changes that were not applied, or commits that are
    /// nowhere else.
    pub force: bool,
}

impl Discard {
    /// Removes a workspace with all that is known of it.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Unapplied`], [`Error::Commits`]; of the system.
    pub fn run(self, trees: &dyn Trees, workspace: &mut Workspace, processes: &Processes) -> Result<()> {
        let lock = workspace.lock(trees)?;
        if !self.force {
            workspace.check_unused(processes)?;
            workspace.check_applied(trees)?;
        }
        // In the directory with its data it is nowhere else, and goes with all of it at once.
        let gone = workspace.dir().join("discarded");
        std::fs::rename(workspace.place(), &gone).at(&workspace.place())?;
        trees.remove_tree(&workspace.dir())?;
        drop(lock);
        workspace.home.free_name(&workspace.record.name, &workspace.record.id)
    }
}

impl Workspace {
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

    /// Refuses if it has changes that were not applied, or commits that are nowhere else.
    ///
    /// # Errors
    /// [`Error::Unapplied`], [`Error::Commits`]; as for [`Workspace::differences`] and
    /// [`Workspace::lonely_commits`].
    pub fn check_applied(&self, trees: &dyn Trees) -> Result<()> {
        let name = self.record.name.clone();
        match self.differences(trees)?.len() {
            0 => {}
            changed => return Err(Error::Unapplied { name, changed }),
        }
        let commits = self.lonely_commits(trees)?;
        match commits.is_empty() {
            true => Ok(()),
            false => {
                let (place, original) = (self.place(), self.original());
                Err(Error::Commits { name, commits, place, original })
            }
        }
    }
}
