//! `.git` files of linked worktrees, and where the repository has them registered: a directory
//! `worktrees/NAME` with the worktree's head and index, and the way back.

use crate::error::{AtPath, Result};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a `.git` file begins with.
const LINK: &str = "gitdir: ";

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
        let text = std::fs::read_to_string(&file).ok()?;
        let registration = dir.join(text.trim_end().strip_prefix(LINK)?).canonicalize().ok()?;
        let common = std::fs::read_to_string(registration.join("commondir")).ok()?;
        let common = registration.join(common.trim_end()).canonicalize().ok()?;
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
    /// worktree and no other, by the caller, without a lock, and without repositories of submodules
    /// of its own.
    pub(crate) fn own_registration(&self) -> Option<PathBuf> {
        let user = rustix::process::geteuid().as_raw();
        let number = |file: &Path| file.symlink_metadata().ok().map(|found| (found.dev(), found.ino()));
        let is_own = way_back(&self.registration).and_then(|file| number(&file)) == number(&self.file)
            // What another user has written leads where that user wants.
            && [&self.file, &self.registration]
                .iter()
                .all(|path| path.symlink_metadata().is_ok_and(|found| found.uid() == user))
            && self.registration.parent() == Some(&self.common.join("worktrees"))
            && !["locked", "modules"].iter().any(|kept| self.registration.join(kept).exists());
        is_own.then(|| self.registration.clone())
    }
}

/// Has the repository forget a linked worktree that is gone.
///
/// # Errors
/// Of the system.
pub(crate) fn forget(registration: &Path) -> Result<()> {
    std::fs::remove_dir_all(registration).at(registration)?;
    // As git does it; others may be registered.
    if let Some(all) = registration.parent() {
        let _ = std::fs::remove_dir(all);
    }
    Ok(())
}

/// The `.git` file of the worktree that is registered in a directory.
fn way_back(registration: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(registration.join("gitdir")).ok()?;
    Some(registration.join(text.trim_end()))
}

/// The commit in a head that names no branch.
fn detached(repository: &Path) -> Option<String> {
    let head = std::fs::read_to_string(repository.join("HEAD")).ok()?;
    let head = head.trim_end();
    (head.len() >= 40 && head.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| head.to_owned())
}
