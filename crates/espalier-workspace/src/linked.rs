//! `.git` files of linked worktrees, and where the repository has them registered: a directory
//! `worktrees/NAME` with the worktree's head and index, and the way back.

use crate::error::{Error, Result};
use crate::git_files::{GitDir, is_commit, read_text};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a `.git` file begins with.
pub(crate) const LINK: &str = "gitdir: ";

/// A linked worktree.
pub(crate) struct Linked {
    /// Its `.git` file.
    file: PathBuf,
    /// Where the repository has it registered.
    registration: PathBuf,
    /// The repository.
    common: PathBuf,
}

impl Linked {
    /// The linked worktree that `dir` is; `None` if it is none.
    pub(crate) fn of(dir: &Path) -> Option<Self> {
        let file = dir.join(".git");
        file.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
        let registration = dir.join(read_text(&file)?.strip_prefix(LINK)?).canonicalize().ok()?;
        let common = registration.join(read_text(&registration.join("commondir"))?).canonicalize().ok()?;
        Some(Self { file, registration, common })
    }

    /// True if the repository lies below a directory.
    pub(crate) fn is_within(&self, dir: &Path) -> bool {
        self.common.starts_with(dir)
    }

    /// The commits that the repository and its other worktrees are at, beside branches.
    pub(crate) fn other_heads(&self) -> BTreeSet<String> {
        let mut heads = BTreeSet::new();
        heads.extend(detached(&self.common));
        let others = self.common.join("worktrees").read_dir().into_iter().flatten().flatten();
        for other in others.map(|entry| entry.path()).filter(|path| *path != self.registration) {
            // One that is gone is forgotten by the next `git worktree prune`.
            if way_back(&other).is_some_and(|file| file.exists()) {
                heads.extend(detached(&other));
            }
        }
        heads
    }

    /// Where it is registered, if that is to be forgotten with it: it is registered as this
    /// worktree and no other, by the user that it belongs to, without a lock, and without
    /// repositories of submodules of its own. That user is the caller, unless the caller is root.
    pub(crate) fn own_registration(&self) -> Option<Registration> {
        let number = |file: &Path| file.symlink_metadata().ok().map(|found| (found.dev(), found.ino()));
        let is_own = way_back(&self.registration).and_then(|file| number(&file)) == number(&self.file)
            && self.registration.parent() == Some(&self.common.join("worktrees"))
            && !["locked", "modules"].iter().any(|kept| self.registration.join(kept).exists());
        // What another user has written leads where that user wants.
        let owner = GitDir::tree(self.file.parent()?).ok()??.owner()?;
        let is_of_owner = self.file.symlink_metadata().is_ok_and(|found| found.uid() == owner);
        let dir = GitDir::open(&self.registration, Some(owner)).ok()??;
        if is_own && is_of_owner { Registration::in_dir(&dir).ok() } else { None }
    }
}

/// A directory in which a repository has a linked worktree registered, held by the directory around
/// it: no rename above leads elsewhere.
#[derive(Debug)]
pub(crate) struct Registration {
    worktrees: GitDir,
    name: OsString,
    number: (u64, u64),
}

impl Registration {
    /// The one in a directory that is open.
    ///
    /// # Errors
    /// [`Error::Gone`] if the directory was moved; of the system.
    pub(crate) fn in_dir(dir: &GitDir) -> Result<Self> {
        let gone = || Error::Gone(dir.path().display().to_string());
        let name = dir.path().file_name().unwrap_or_default().to_owned();
        let worktrees = dir.clone_of_any()?.around()?.ok_or_else(gone)?;
        let number = worktrees.number(&name).filter(|number| Some(*number) == dir.own_number());
        Ok(Self { worktrees, name, number: number.ok_or_else(gone)? })
    }

    /// Has the repository forget the worktree.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn forget(self) -> Result<()> {
        if self.worktrees.number(&self.name) == Some(self.number) {
            self.worktrees.remove(&self.name)?;
        }
        // As git does it; others may be registered.
        if let Some(common) = self.worktrees.around()? {
            common.remove_if_empty(OsStr::new("worktrees"));
        }
        Ok(())
    }
}

/// The `.git` file of the worktree that is registered in a directory.
fn way_back(registration: &Path) -> Option<PathBuf> {
    Some(registration.join(read_text(&registration.join("gitdir"))?))
}

/// The commit in a head that names no branch.
fn detached(repository: &Path) -> Option<String> {
    read_text(&repository.join("HEAD")).filter(|head| is_commit(head))
}
