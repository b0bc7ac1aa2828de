//! The repositories of a workspace in which commits may have been made, by the paths that differ.
//!
//! They are at any depth: that of the workspace, those of its submodules, which lie in
//! `.git/modules`, and others below. What is not below a `.git` or `.jj` is a change like others.

use crate::error::{AtPath, Result};
use crate::linked::Linked;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What of a repository changes with its commits, beside their objects.
const TRACES: [&str; 6] = ["HEAD", "refs", "packed-refs", "reftable", "logs", "worktrees"];

/// The repositories, as paths below the workspace.
pub(crate) struct Repositories<'a> {
    top: &'a Path,
    /// Git's own directories.
    pub(crate) own: BTreeSet<PathBuf>,
    /// Linked worktrees of repositories that lie outside.
    pub(crate) linked: BTreeSet<PathBuf>,
    /// Directories of jj, without one of git beside them, that has all the commits.
    pub(crate) jj: BTreeSet<PathBuf>,
}

impl<'a> Repositories<'a> {
    /// Those of the workspace at `top`, before any path is told.
    pub(crate) fn of(top: &'a Path) -> Self {
        let mut all = Self { top, own: BTreeSet::new(), linked: BTreeSet::new(), jj: BTreeSet::new() };
        // Its head lies outside, where no comparison looks.
        all.add_link(Path::new(""));
        all
    }

    /// Takes a path that differs.
    pub(crate) fn add(&mut self, path: &[u8]) {
        let path = Path::new(OsStr::from_bytes(path));
        let mut names = path.iter();
        let mut dir = PathBuf::new();
        while let Some(name) = names.next() {
            let within = names.as_path();
            match name.as_bytes() {
                b".git" if within.as_os_str().is_empty() => return self.add_link(&dir),
                b".git" => return self.add_own(&dir.join(name), within),
                b".jj" => return self.add_jj(dir.join(name)),
                _ => dir.push(name),
            }
        }
    }

    /// Takes all paths, where there is nothing to compare with.
    pub(crate) fn add_all(&mut self) -> Result<()> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(below) = waiting.pop() {
            let dir = self.top.join(&below);
            for found in dir.read_dir().at(&dir)? {
                let found = found.at(&dir)?;
                let path = below.join(found.file_name());
                self.add(path.as_os_str().as_bytes());
                if found.file_type().at(&dir)?.is_dir() {
                    waiting.push(path);
                }
            }
        }
        Ok(())
    }

    fn add_link(&mut self, dir: &Path) {
        // What lies inside is told by its own paths.
        if Linked::of(&self.top.join(dir)).is_some_and(|linked| !linked.is_within(self.top)) {
            self.linked.insert(dir.to_owned());
        }
    }

    /// `within`: the path that differs, below `git`.
    fn add_own(&mut self, git: &Path, within: &Path) {
        if !within.iter().any(|name| TRACES.iter().any(|trace| name == *trace)) {
            return;
        }
        // The repository of a submodule lies in that of what is around it.
        let inner = within.ancestors().skip(1).filter(|inner| !inner.as_os_str().is_empty());
        let inner = inner.map(|inner| git.join(inner)).find(|inner| is_repository(&self.top.join(inner)));
        let repository = inner.unwrap_or_else(|| git.to_owned());
        // If it is gone, so are its commits, on purpose or as others that the original still has.
        if self.top.join(&repository).is_dir() {
            self.own.insert(repository);
        }
    }

    fn add_jj(&mut self, jj: PathBuf) {
        let at = self.top.join(&jj);
        // A second work tree of jj has a file there, that leads to the repository.
        if at.join("repo").is_dir() && at.with_file_name(".git").symlink_metadata().is_err() {
            self.jj.insert(jj);
        }
    }
}

/// True for a directory of git's own, as git tells.
pub(crate) fn is_repository(dir: &Path) -> bool {
    dir.join("HEAD").symlink_metadata().is_ok() && dir.join("objects").is_dir() && dir.join("refs").is_dir()
}
