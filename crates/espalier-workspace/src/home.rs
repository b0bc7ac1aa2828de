//! Where the data about workspaces lies: a directory of the user's own, on the same mount.

use crate::error::{AtPath, Error, Result};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::fs::{DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Keeps git from seeing a home in a work tree.
const IGNORE: &str =
    "# Data about workspaces of Espalier. Remove workspaces with: espalier workspace discard\n*\n";

/// A directory with data about workspaces. It is called `.espalier-UID`, belongs to that user, and
/// lies in the topmost directory of the mount that the user may write, on the way to the
/// workspaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    above: PathBuf,
    dir: PathBuf,
}

impl Home {
    /// The home of workspaces that lie in directory `parent`, which is absolute and has no symbolic
    /// links, made if it is not there. It does not lie in `original`.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if the user may write no such directory; of the system.
    pub fn make(parent: &Path, original: &Path) -> Result<Self> {
        for above in way_down(parent)?.into_iter().filter(|above| !above.starts_with(original)) {
            let home = Self::below(&above);
            if home.is_own() {
                return Ok(home);
            }
            let may = accessat(CWD, &above, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok();
            if may && DirBuilder::new().mode(0o700).create(&home.dir).is_ok() {
                let ignore = home.dir.join(".gitignore");
                std::fs::write(&ignore, IGNORE).at(&ignore)?;
                return Ok(home);
            }
        }
        Err(Error::Unsuitable(format!(
            "{}: you may write no directory above it that lies outside {}, where the data about workspaces could be",
            parent.display(),
            original.display()
        )))
    }

    /// The user's homes in the directories from `at`, which is absolute and has no symbolic links,
    /// up to the root of the mount; the nearest first.
    ///
    /// # Errors
    /// Of the system.
    pub fn around(at: &Path) -> Result<Vec<Self>> {
        let mut homes: Vec<_> = way_down(at)?.iter().map(|above| Self::below(above)).collect();
        homes.retain(Self::is_own);
        homes.reverse();
        Ok(homes)
    }

    /// The one that lies in `above`, whether it is there or not.
    pub(crate) fn below(above: &Path) -> Self {
        let name = format!(".espalier-{}", rustix::process::geteuid().as_raw());
        Self { above: above.to_owned(), dir: above.join(name) }
    }

    /// True if it is there, and was not put there by another user.
    fn is_own(&self) -> bool {
        let own = |found: Metadata| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        self.dir.symlink_metadata().is_ok_and(own)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory that it lies in; places of workspaces are relative to that.
    pub fn above(&self) -> &Path {
        &self.above
    }

    /// A place as it is recorded: relative to [`Home::above`].
    pub(crate) fn relative(&self, place: &Path) -> PathBuf {
        let common = self.above.ancestors().find(|above| place.starts_with(above)).unwrap_or(Path::new("/"));
        let up = self.above.components().count() - common.components().count();
        let mut relative: PathBuf = std::iter::repeat_n("..", up).collect();
        relative.push(place.strip_prefix(common).unwrap_or(place));
        relative
    }

    /// The absolute path of a place that is recorded.
    pub(crate) fn absolute(&self, relative: &Path) -> PathBuf {
        let mut path = self.above.clone();
        for part in relative.components() {
            match part {
                std::path::Component::ParentDir => {
                    path.pop();
                }
                part => path.push(part),
            }
        }
        path
    }
}

/// The directories from the root of the mount down to `at`.
pub(crate) fn way_down(at: &Path) -> Result<Vec<PathBuf>> {
    let device = at.metadata().at(at)?.dev();
    let same = |above: &&Path| above.metadata().is_ok_and(|found| found.dev() == device);
    let mut way: Vec<_> = at.ancestors().take_while(same).map(Path::to_owned).collect();
    way.reverse();
    Ok(way)
}

#[cfg(test)]
mod tests;
