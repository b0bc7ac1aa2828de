//! A workspace becomes the original, and what was the original is kept as the workspace.
//!
//! Invariant: what has a time to live, or was made for a process, is a clone that was made to go.
//! What was an original was not: with the exchange the workspace loses both, so that `gc` never
//! removes a former original.

use crate::error::{AtPath, Error, Result};
use crate::git_exchange;
use crate::pinned::Pinned;
use crate::processes::Processes;
use crate::procfs::check_no_mounts;
use crate::record::Top;
use crate::trees::Trees;
use crate::workspace::{Lock, Workspace, clear_identifier, identifier, set_identifier};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How a workspace was promoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promoted {
    /// It had a time to live, or was made for a process, after which `gc` would have removed it.
    pub kept_from_gc: bool,
}

impl Workspace {
    /// Exchanges it and its original, in one step. Afterwards the workspace, under its name and at
    /// its place, holds what was the original; so the same again takes it back. Linked worktrees of
    /// git stay with the repository that they belong to. Limits go with the directories.
    ///
    /// # Errors
    /// [`Error::InUse`] unless `force`; [`Error::MountPoint`]; [`Error::Unsuitable`] if the
    /// original is not there; of the system.
    pub fn promote(&mut self, trees: &dyn Trees, processes: &Processes, force: bool) -> Result<Promoted> {
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
        check_no_mounts(&place)?;
        check_no_mounts(&original)?;
        if !force {
            self.check_both_unused(processes, &original)?;
            self.check_both_unused(&Processes::look(&place)?, &original)?;
        }
        let kept_from_gc = self.record.expires.is_some() || self.record.process.is_some();
        let own = self.record.top.map(|top| top.number);
        let Some(numbers) = own.zip(self.number_of(&original)) else {
            return Err(Error::Unsuitable(format!(
                "{} is no directory of this file system; a link to one does not change places",
                original.display()
            )));
        };
        self.record.promoting = true;
        self.record.promoting_numbers = Some(numbers);
        self.store(&lock)?;
        renameat_with(CWD, &place, CWD, &original, RenameFlags::EXCHANGE).at(&original)?;
        if !self.is_own(&original) {
            // Something else was at the place in that moment.
            renameat_with(CWD, &place, CWD, &original, RenameFlags::EXCHANGE)
                .map_err(|_| self.interrupted())?;
            (self.record.promoting, self.record.promoting_numbers) = (false, None);
            self.store(&lock)?;
            return Err(Error::Gone(self.record.name.clone()));
        }
        match self.complete_promotion(&lock)? {
            true => Ok(Promoted { kept_from_gc }),
            false => Err(self.interrupted()),
        }
    }

    fn check_both_unused(&self, processes: &Processes, original: &Path) -> Result<()> {
        self.check_unused(processes)?;
        let found = processes.in_tree(original);
        match found.is_empty() {
            true => Ok(()),
            false => Err(Error::InUse { name: original.display().to_string(), processes: found }),
        }
    }

    /// Completes a promotion that a crash interrupted, or forgets it if the workspace is where it
    /// was before. False if neither is so, because something was moved or replaced since: then
    /// nothing is changed, because what is at these places is not known.
    pub(crate) fn complete_promotion(&mut self, lock: &Lock) -> Result<bool> {
        if !self.record.promoting {
            return Ok(true);
        }
        let (place, original) = (self.place(), self.original());
        let (at_place, at_original) = (self.number_of(&place), self.number_of(&original));
        let (own, other) = self.record.promoting_numbers.unzip();
        if own.is_some() && (at_place, at_original) == (other, own) {
            // By their paths either may be another one in this moment.
            let (former, promoted) = (Pinned::open(&place)?, Pinned::open(&original)?);
            if (Some(former.number()?), Some(promoted.number()?)) != (other, own) {
                return Ok(false);
            }
            former.named(set_identifier(former.path(), &self.record.id))?;
            promoted.named(clear_identifier(promoted.path()))?;
            self.record.note_original(promoted.path())?;
            let owner = Top::of(former.path())?.owner;
            self.record.top = other.map(|number| Top { number, owner });
            (self.record.expires, self.record.process) = (None, None);
            // What cannot be written is left to `git worktree repair`.
            let _ = git_exchange::relink(&place, &original);
        } else if at_place == other || !self.is_at_its_place() {
            return Ok(false);
        }
        self.record.promoting = false;
        self.record.promoting_numbers = None;
        self.store(lock)?;
        Ok(true)
    }

    /// The number of what is at a path, if that is a directory of the file system that the data
    /// lies in.
    fn number_of(&self, dir: &Path) -> Option<u64> {
        let device = self.home.dir().metadata().ok()?.dev();
        let found = dir.symlink_metadata().ok().filter(std::fs::Metadata::is_dir);
        found.filter(|found| found.dev() == device).map(|found| found.ino())
    }

    /// The error for one whose promotion cannot be completed.
    pub(crate) fn interrupted(&self) -> Error {
        let (place, original) = (self.place(), self.original());
        Error::Interrupted { name: self.record.name.clone(), place, original }
    }
}

#[cfg(test)]
mod tests;
