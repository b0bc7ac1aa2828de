//! What workspaces are made from: a directory, another workspace, or a snapshot of a directory.
//!
//! Another user may own a directory above the one that root makes a workspace of, and put a link in
//! its place. So a path is followed once, when it is given, and no link is when it is cloned.

use crate::error::{AtPath, Error, Result};
use crate::pinned::Pinned;
use crate::trees::Trees;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The name under which snapshots are found.
const SNAPSHOTS: &str = ".snapshots";

/// What is cloned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A directory, by a path without links.
    Directory(PathBuf),
    /// A snapshot of a directory: the directory, and `NUMBER/NAME`.
    Snapshot { directory: PathBuf, name: String },
}

impl Source {
    /// What a path leads to.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if that cannot be cloned; of the system.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let found = path.canonicalize().at(path)?;
        if !found.is_dir() {
            return Err(Error::Unsuitable(format!("{} is no directory", path.display())));
        }
        let parts: Vec<Component<'_>> = found.components().collect();
        let Some(at) = parts.iter().rposition(|part| part.as_os_str() == SNAPSHOTS) else {
            return Ok(Self::Directory(found));
        };
        let directory: PathBuf = parts[..at].iter().collect();
        let name = match &parts[at + 1..] {
            [name] if !is_mount(&directory)? => name.as_os_str(),
            _ => return Err(unsuitable_snapshot(path)),
        };
        let number = Pinned::open_resolved(&directory)?.number()?;
        Ok(Self::Snapshot { name: format!("{number}/{}", OsStr::to_string_lossy(name)), directory })
    }

    /// The directory that it is, or that it is a snapshot of.
    pub(crate) fn directory(&self) -> &Path {
        match self {
            Self::Directory(directory) | Self::Snapshot { directory, .. } => directory,
        }
    }

    /// Makes `destination`, where nothing is, a clone of it.
    ///
    /// # Errors
    /// [`Error::Meanwhile`] if there is a link on the way to it now; as for [`Trees::clone_tree`].
    pub(crate) fn clone_to(&self, trees: &dyn Trees, destination: &Path) -> Result<()> {
        match self {
            Self::Directory(directory) => {
                let from = Pinned::open_resolved(directory)?;
                from.named(trees.clone_tree(from.path(), destination))
            }
            Self::Snapshot { name, .. } => {
                std::fs::create_dir(destination).at(destination)?;
                trees.restore(destination, name)
            }
        }
    }
}

/// True for the root of a mount.
pub(crate) fn is_mount(dir: &Path) -> Result<bool> {
    let Some(parent) = dir.parent() else { return Ok(true) };
    Ok(dir.metadata().at(dir)?.dev() != parent.metadata().at(parent)?.dev())
}

fn unsuitable_snapshot(path: &Path) -> Error {
    Error::Unsuitable(format!(
        "{}: only snapshots of a directory can be made workspaces of (espalier snapshot create DIR NAME); \
         of the whole volume, mount the snapshot",
        path.display()
    ))
}
