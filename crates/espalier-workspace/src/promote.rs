//! A workspace becomes the original, and what was the original is kept as the workspace.

use crate::error::{AtPath, Error, Result};
use crate::processes::Processes;
use crate::trees::Trees;
use crate::workspace::{Workspace, identifier};
use rustix::fs::{CWD, RenameFlags, renameat_with};

impl Workspace {
    /// Exchanges it and its original, in one step. Afterwards the workspace, under its name and at
    /// its place, holds what was the original; so the same again takes it back.
    ///
    /// # Errors
    /// [`Error::InUse`] unless `force`; [`Error::Unsuitable`] if the original is not there; of the
    /// system.
    pub fn promote(&mut self, trees: &dyn Trees, processes: &Processes, force: bool) -> Result<()> {
        let lock = self.lock(trees)?;
        let (place, original) = (self.place(), self.find_original(&lock)?);
        if place.starts_with(&original) || original.starts_with(&place) {
            return Err(Error::Unsuitable(format!(
                "{} and {} lie in one another",
                original.display(),
                place.display()
            )));
        }
        if identifier(&original).is_some() {
            return Err(Error::Unsuitable(format!(
                "the original, {}, is a workspace itself; apply the changes to it instead",
                original.display()
            )));
        }
        if !force {
            self.check_unused(processes)?;
            let found = processes.in_tree(&original);
            if !found.is_empty() {
                return Err(Error::InUse { name: original.display().to_string(), processes: found });
            }
        }
        self.record.promoting = true;
        self.store(&lock)?;
        renameat_with(CWD, &place, CWD, &original, RenameFlags::EXCHANGE).at(&original)?;
        self.complete_promotion(&lock)
    }
}
