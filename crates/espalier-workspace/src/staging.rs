//! Where an apply stages what it brings: in the scratch directory of the workspace, or, if the
//! target lies in a tree with a limit, in a directory in the target, because files with several
//! names do not cross the border of such a tree.
//!
//! The target may belong to another user than the caller, if the caller is root. That user can
//! rename what lies in the target, and put a link in its place. So the directory there is made in
//! the scratch directory, where no other user can reach it, with mode 700; it is opened before it
//! moves into the target, and all that is staged is named relative to the descriptor. What is at
//! its place later is removed only if it has the recorded number.

use crate::error::{AtPath, Error, Result};
use crate::pinned::Pinned;
use crate::procfs::mount_points;
use crate::record::Top;
use crate::trees::Trees;
use crate::workspace::{Lock, Workspace};
use espalier_fuse::control::TreeBytes;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The name in the directory of a target, or in the scratch directory.
const STAGED: &str = "staged";
/// So many names are tried in a target.
const MAX_STAGED: usize = 100;

/// An empty directory for what is staged.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    /// The directory in the target that it lies in.
    in_target: Option<Pinned>,
}

impl Staging {
    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory around it, if that is one in the target.
    pub(crate) fn in_target(&self) -> Option<&Pinned> {
        self.in_target.as_ref()
    }

    /// A path in it that says something to people.
    pub(crate) fn by_name(&self, path: &Path) -> PathBuf {
        self.in_target.as_ref().map_or(path.to_owned(), |dir| dir.by_name(path))
    }

    /// The result with paths that say something to people.
    ///
    /// # Errors
    /// Those of `done`.
    pub(crate) fn named<T>(&self, done: Result<T>) -> Result<T> {
        match &self.in_target {
            Some(dir) => dir.named(done),
            None => done,
        }
    }
}

impl Workspace {
    /// An empty directory in which an apply to the directory `into` stages what it brings.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if it has to lie in the target, and that is mounted elsewhere than the
    /// workspace; of the system.
    pub(crate) fn staging(
        &mut self,
        trees: &dyn Trees,
        into: &Pinned,
        scratch: &Path,
        lock: &Lock,
    ) -> Result<Staging> {
        let inside = |dir: &&Path| dir.starts_with(self.home.above());
        let is_limited = |dir: &Path| trees.limits(dir).is_ok_and(|limits| limits != TreeBytes::default());
        let in_target = match into.name().ancestors().take_while(inside).any(is_limited) {
            true => Some(self.staging_in(into, scratch, lock)?),
            false => None,
        };
        let path = in_target.as_ref().map_or(scratch, Pinned::path).join(STAGED);
        // It may be kept in the target, in place of the directory around it.
        DirBuilder::new().mode(0o700).create(&path).at(&path)?;
        Ok(Staging { path, in_target })
    }

    /// What a command that did not end has staged; `None` if it is not where it was.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn left_staging(&self) -> Result<Option<Staging>> {
        let in_target = match &self.record.staging {
            None => None,
            Some(staging) => match Pinned::open(&self.home.absolute(staging)) {
                Ok(dir) if is_staging(&dir, self.record.staging_number)? => Some(dir),
                Ok(_) => return Ok(None),
                Err(Error::Io { source, .. }) if is_nothing(&source) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let path = in_target.as_ref().map_or(self.scratch_dir(), |dir| dir.path().to_owned()).join(STAGED);
        Ok(path.symlink_metadata().is_ok().then_some(Staging { path, in_target }))
    }

    /// Makes a directory in the target `into`.
    fn staging_in(&mut self, into: &Pinned, scratch: &Path, lock: &Lock) -> Result<Pinned> {
        let made = scratch.join("in-target");
        DirBuilder::new().mode(0o700).create(&made).at(&made)?;
        let mut dir = Pinned::open(&made)?;
        self.record.staging_number = Some(Top::of(dir.path())?.number);
        let first = format!(".espalier-{}", self.record.id);
        let others = (2..MAX_STAGED).map(|number| format!("{first}-{number}"));
        // No command removes what has such a name already.
        for name in std::iter::once(first.clone()).chain(others) {
            let place = into.name().join(&name);
            dir = dir.called(&place);
            // Before it is there: so it does not stay, whatever happens.
            self.record.staging = Some(self.home.relative(&place));
            self.store(lock)?;
            match renameat_with(CWD, &made, CWD, into.path().join(&name), RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                Err(Errno::XDEV) => return Err(mounted_elsewhere(into)),
                done => return done.at(&place).map(|()| dir),
            }
        }
        Err(Error::io(&into.name().join(first), Errno::EXIST))
    }

    /// Removes what a command has staged in a target.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn remove_staging(&mut self, trees: &dyn Trees, lock: &Lock) -> Result<()> {
        let number = self.record.staging_number.take();
        let Some(staging) = self.record.staging.take() else { return Ok(()) };
        let staging = self.home.absolute(&staging);
        match Pinned::open(&staging) {
            Ok(dir) if is_staging(&dir, number)? => {
                for entry in dir.path().read_dir().at(&staging)? {
                    let path = dir.path().join(entry.at(&staging)?.file_name());
                    dir.named(trees.remove_tree(&path))?;
                }
                // Whatever is there by now: only an empty directory goes.
                match std::fs::remove_dir(&staging) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(Error::io(&staging, error));
                    }
                    _ => {}
                }
            }
            Ok(_) => {}
            Err(Error::Io { source, .. }) if is_nothing(&source) => {}
            Err(error) => return Err(error),
        }
        self.store(lock)
    }
}

/// The error about a target that the caller sees through another mount than the workspace, so that
/// nothing can be renamed from one to the other.
fn mounted_elsewhere(into: &Pinned) -> Error {
    let around = mount_points().unwrap_or_default().into_iter().filter(|at| into.name().starts_with(at));
    let at = around.max_by_key(|at| at.components().count()).unwrap_or_else(|| into.name().to_owned());
    Error::Unsuitable(format!(
        "{}: it has a limit, and is seen through another mount ({}) than the workspace; nothing was applied; \
         name it by its path in the mount that the workspace lies in",
        into.name().display(),
        at.display()
    ))
}

/// True for what opening says where no directory is.
fn is_nothing(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

/// True if a directory is the one with the recorded number, in which no other user can write.
fn is_staging(dir: &Pinned, number: Option<u64>) -> Result<bool> {
    let found = Top::of(dir.path())?;
    // Records of earlier versions have no number.
    Ok(found.owner == rustix::process::geteuid().as_raw()
        && number.is_none_or(|number| number == found.number))
}

#[cfg(test)]
mod tests;
