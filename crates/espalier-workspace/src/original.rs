//! Where the original of a workspace is: at its recorded path, or, if nothing is there any more,
//! among the neighbours of that path and of the workspace, by its number or identifier.

use crate::error::{AtPath, Error, Result};
use crate::record::Record;
use crate::workspace::{Lock, Workspace, identifier};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

impl Record {
    /// Notes by what the original, a directory, is known.
    pub(crate) fn note_original(&mut self, original: &Path) -> Result<()> {
        self.original_number = Some(original.metadata().at(original)?.ino());
        self.original_id = identifier(original);
        Ok(())
    }

    /// True if a directory is the original, wherever it lies.
    fn is_original(&self, dir: &Path) -> bool {
        let found = dir.symlink_metadata().ok().filter(std::fs::Metadata::is_dir);
        let same_number = found.is_some_and(|found| Some(found.ino()) == self.original_number);
        same_number || (self.original_id.is_some() && identifier(dir) == self.original_id)
    }
}

impl Workspace {
    /// The directory that its changes are applied to. Notes where that is if it was moved to where
    /// it is looked for. What has taken its place at its path counts as the original.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if it is not found; of the system.
    pub(crate) fn find_original(&mut self, lock: &Lock) -> Result<PathBuf> {
        let found = self.look_for_original()?;
        if found != self.original() {
            self.note_original_place(&found, lock)?;
        }
        Ok(found)
    }

    /// The same for a command that does not hold the lock, and so notes nothing.
    ///
    /// # Errors
    /// As for [`Workspace::find_original`].
    pub(crate) fn look_for_original(&self) -> Result<PathBuf> {
        let known = self.original();
        if known.is_dir() {
            return Ok(known);
        }
        let found = self.original_among_workspaces()?.or_else(|| self.original_among_neighbours());
        found.ok_or_else(|| {
            Error::Unsuitable(format!(
                "the original, {}, is not there; if it was moved, name it once: \
                 espalier workspace apply {} --check --to DIR",
                known.display(),
                self.record.name
            ))
        })
    }

    /// Notes that the original is at `dir`, if it is, and nothing is at its recorded path.
    pub(crate) fn note_if_original(&mut self, dir: &Path, lock: &Lock) -> Result<()> {
        match !self.original().is_dir() && self.record.is_original(dir) {
            true => self.note_original_place(dir, lock),
            false => Ok(()),
        }
    }

    fn note_original_place(&mut self, dir: &Path, lock: &Lock) -> Result<()> {
        self.record.original = self.home.relative(dir);
        self.store(lock)
    }

    /// Another workspace has a record of its own.
    fn original_among_workspaces(&self) -> Result<Option<PathBuf>> {
        let Some(id) = &self.record.original_id else { return Ok(None) };
        let Some(record) = Record::load(&self.home.dir().join(id))? else { return Ok(None) };
        let place = self.home.absolute(&record.place);
        Ok(Some(place).filter(|place| self.record.is_original(place)))
    }

    fn original_among_neighbours(&self) -> Option<PathBuf> {
        let (original, place) = (self.original(), self.place());
        for parent in [original.parent()?, place.parent()?, self.home.above()] {
            let entries = parent.read_dir().into_iter().flatten().flatten();
            let found = entries.map(|entry| entry.path()).find(|path| self.record.is_original(path));
            if found.is_some() {
                return found;
            }
        }
        None
    }
}
