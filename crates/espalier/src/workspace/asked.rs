//! What the commands have in common: where they look for workspaces, and how they show paths.

use crate::problem::Exit;
use crate::ui::complain;
use anyhow::{Context, Result, ensure};
use espalier_workspace::{Mounted, Processes, Registry, Workspace};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What every command is given.
pub(super) struct Asked<'a> {
    pub(super) at: &'a Path,
    pub(super) json: bool,
}

impl Asked<'_> {
    pub(super) fn registry(&self) -> Result<Registry> {
        Ok(Registry::around(self.at)?)
    }

    /// The workspace that a user has named.
    pub(super) fn find(&self, name: &OsStr) -> Result<Workspace> {
        Ok(Registry::locate(self.at, name)?)
    }

    /// The workspace that a user has named to destroy it.
    pub(super) fn find_itself(&self, name: &OsStr) -> Result<Workspace> {
        Ok(Registry::locate_itself(self.at, name)?)
    }
}

/// The primitives.
pub(super) const TREES: Mounted = Mounted;

/// Uses of the mount that a workspace lies on.
pub(super) fn processes_around(workspace: &Workspace) -> Result<Processes> {
    Processes::look(&workspace.place()).context("processes cannot be looked at")
}

/// Says that a program could not be run in a workspace, with the status that shells have for it.
pub(super) fn not_run(program: &OsStr, error: &std::io::Error) -> Exit {
    complain!("espalier workspace: {} cannot be run: {error}", program.to_string_lossy());
    match error.kind() {
        ErrorKind::NotFound => Exit::ProgramNotFound,
        _ => Exit::ProgramNotRun,
    }
}

/// A path as JSON has it.
pub(super) fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Paths that users give relative to a workspace, also as paths from where they are.
///
/// # Errors
/// If one is neither in the workspace, nor in what it was, nor in `target`.
pub(super) fn paths_below(workspace: &Workspace, paths: &[PathBuf], target: &Path) -> Result<Vec<PathBuf>> {
    let below = |path: &PathBuf| {
        let absolute = if path.is_absolute() {
            path.canonicalize().unwrap_or_else(|_| path.clone())
        } else {
            path.clone()
        };
        absolute.strip_prefix(workspace.place()).map_or_else(|_| path.clone(), Path::to_owned)
    };
    // Without `.` and doubled slashes.
    let plain = |path| below(path).components().filter(|c| c.as_os_str() != ".").collect::<PathBuf>();
    let paths: Vec<PathBuf> = paths.iter().map(plain).collect();
    let places = [workspace.place(), workspace.base(), target.to_owned()];
    for path in &paths {
        let is_there = places.iter().any(|place| place.join(path).symlink_metadata().is_ok());
        ensure!(
            is_there,
            "{}: there is no such path in the workspace, nor was there (paths are relative to its top)",
            path.display()
        );
    }
    Ok(paths)
}
