//! By what the top directory of a workspace is known: the attribute with the identifier, and the
//! number and owner that are recorded.
//!
//! A user with the right to write the directory above can move the workspace away, and put a
//! directory there whose attribute says the same. The record lies where no other user can write,
//! and no directory gets a number that another one has or had; but `espalier snapshot restore`
//! gives what it restores the number of the directory that it replaces, of the same owner. So a
//! command compares the number before it acts, and goes on whatever the owner is, which only root
//! can change. The owner counts where numbers say nothing, because everything was copied.

use crate::error::{Error, Result};
use crate::home::way_down;
use crate::pinned::Pinned;
use crate::record::Top;
use crate::workspace::{Lock, Workspace, attribute, set_identifier};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bits of a mode that let users other than the owner write.
const WRITTEN_BY_OTHERS: u32 = 0o022;
/// The bit of a directory's mode that keeps these users from moving entries of others.
const STICKY: u32 = 0o1000;

impl Workspace {
    /// True if a directory is this workspace, wherever it lies.
    pub(crate) fn is_own(&self, dir: &Path) -> bool {
        let attribute = attribute(dir).filter(|(id, _)| *id == self.record.id);
        let Some((_, told)) = attribute else { return false };
        let Some(found) = dir.symlink_metadata().ok().filter(Metadata::is_dir) else { return false };
        let number = found.ino();
        // Records of earlier versions have the attribute alone.
        let is_recorded = self.record.top.is_none_or(|top| top.number == number);
        told == number && (is_recorded || self.record.undoing == Some(number))
    }

    /// Opens its top directory.
    ///
    /// # Errors
    /// [`Error::Gone`] if something else is at its place; of the system.
    pub(crate) fn open_top(&self) -> Result<Pinned> {
        let top = Pinned::open(&self.place())?;
        match self.is_own(top.path()) {
            true => Ok(top),
            false => Err(Error::Gone(self.record.name.clone())),
        }
    }

    /// Records by what it is known, if that has changed: an undo that a crash interrupted has given
    /// it a new top directory, or root has given it to another user.
    ///
    /// # Errors
    /// As for [`Workspace::open_top`].
    pub(crate) fn note_top(&mut self, lock: &Lock) -> Result<()> {
        let (top, data) = (Top::of(self.open_top()?.path())?, Top::of(&self.dir())?.number);
        let known = (self.record.top, self.record.data_number, self.record.undoing);
        if known == (Some(top), Some(data), None) {
            return Ok(());
        }
        (self.record.top, self.record.data_number, self.record.undoing) = (Some(top), Some(data), None);
        self.store(lock)
    }

    /// True if what is at its place was put there as a copy of it, and it is nowhere else: that is
    /// so when everything was copied to another file system, with numbers that are new, or when the
    /// directory around it was restored. The copy is the workspace from now on.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn is_restored(&mut self) -> Result<bool> {
        self.take_copy(Self::is_trusted_copy_at_its_place)
    }

    /// Makes a copy of it that lies at its place the workspace, whichever users may write the
    /// directories above, because the user has named it by its path. False if there is none.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn adopt(&mut self) -> Result<bool> {
        self.take_copy(Self::is_copy_at_its_place)
    }

    fn take_copy(&mut self, is_copy: fn(&Self) -> bool) -> Result<bool> {
        if !is_copy(self) {
            return Ok(false);
        }
        let lock = self.lock_data()?;
        if self.record.promoting || !is_copy(self) {
            return Ok(false);
        }
        if !self.is_at_its_place() {
            // What is at the path may be another directory in this moment.
            let copy = Pinned::open(&self.place())?;
            if !self.is_copy(copy.path()) {
                return Ok(false);
            }
            copy.named(set_identifier(copy.path(), &self.record.id))?;
            self.record.missing = None;
            self.record.top = Some(Top::of(copy.path())?);
            self.record.data_number = Some(Top::of(&self.dir())?.number);
            self.store(&lock)?;
        }
        Ok(true)
    }

    /// True if it, or a copy of it that no other user has put there, is at its place.
    fn is_trusted_copy_at_its_place(&self) -> bool {
        self.is_copy_at_its_place() && (self.is_at_its_place() || self.was_copied() || self.is_among_own())
    }

    /// True if it, or a copy of it with its owner, is at its place, whichever user put that there.
    pub(crate) fn is_copy_at_its_place(&self) -> bool {
        self.is_copy(&self.place())
    }

    /// True if a directory is it, or a copy of it with its owner.
    fn is_copy(&self, dir: &Path) -> bool {
        if attribute(dir).is_none_or(|(id, _)| id != self.record.id) {
            return false;
        }
        let owner = dir.symlink_metadata().ok().filter(Metadata::is_dir).map(|found| found.uid());
        owner.is_some() && self.record.top.is_none_or(|top| owner == Some(top.owner))
    }

    /// True if the record itself is a copy: then the workspace is one, too.
    fn was_copied(&self) -> bool {
        let now = Top::of(&self.dir()).ok().map(|data| data.number);
        self.record.data_number.is_none_or(|recorded| now != Some(recorded))
    }

    /// True if no other user, but root and its owner, may change which directory is at its place.
    fn is_among_own(&self) -> bool {
        let user = rustix::process::geteuid().as_raw();
        let users = [0, user, self.record.top.map_or(user, |top| top.owner)];
        let is_safe = |mode: u32| mode & WRITTEN_BY_OTHERS == 0 || mode & STICKY != 0;
        let is_own = |dir: &Metadata| users.contains(&dir.uid()) && is_safe(dir.mode());
        let place = self.place();
        let way = place.parent().and_then(|parent| way_down(parent).ok());
        way.is_some_and(|way| way.iter().all(|dir| dir.symlink_metadata().is_ok_and(|dir| is_own(&dir))))
    }
}

#[cfg(test)]
mod tests;
