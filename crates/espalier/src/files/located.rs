//! Where trees of files lie, as words of a command line name them.

use crate::files::client::ClientFiles;
use crate::files::image::{self, ImageFiles};
use crate::files::system::SystemFiles;
use crate::files::tree::{Access, Files};
use crate::place::{self, Inside};
use anyhow::{Context, Result};
use espalier_fs::Attr;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where a tree lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Located {
    /// In the system, or a mount.
    System(PathBuf),
    /// In an image that is not mounted.
    Image(Inside),
}

impl Located {
    /// What a word of the command line names.
    pub(crate) fn new(path: &Path) -> Self {
        place::inside(path).map_or_else(|| Self::System(path.into()), Self::Image)
    }

    /// The directory that it lies in, and its name; `None` for a root, and for what ends with dots.
    pub(crate) fn split(&self) -> Option<(Self, Vec<u8>)> {
        match self {
            Self::System(path) => {
                let name = path.file_name()?.as_bytes().to_vec();
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                Some((Self::System(parent.unwrap_or(Path::new(".")).into()), name))
            }
            Self::Image(inside) => {
                let (above, name) = inside.split().ok()?;
                (name != b"..").then(|| (Self::Image(above), name.to_vec()))
            }
        }
    }

    /// What `name` in it is called.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        match self {
            Self::System(path) => Self::System(path.join(OsStr::from_bytes(name))),
            Self::Image(inside) => Self::Image(inside.join(name)),
        }
    }

    /// The image that it lies in.
    fn image(&self) -> Option<PathBuf> {
        match self {
            Self::System(_) => None,
            Self::Image(inside) => inside.image.canonicalize().ok(),
        }
    }

    /// True if it is `other`, or lies below it, as far as paths tell.
    pub(crate) fn lies_in(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::System(one), Self::System(other)) => match (canonical(one), other.canonicalize()) {
                (Some(one), Ok(other)) => one.starts_with(other),
                _ => false,
            },
            (Self::Image(one), Self::Image(inside)) => {
                self.image().is_some()
                    && self.image() == other.image()
                    && one.names.starts_with(&inside.names)
            }
            _ => false,
        }
    }

    /// True if a user that writes there can give files to any owner.
    pub(crate) fn keeps_owners(&self) -> bool {
        matches!(self, Self::Image(_)) || rustix::process::geteuid().is_root()
    }

    /// The attributes of what is there; `None` if nothing is.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub(crate) fn attr(&self) -> Result<Option<Attr>> {
        match self {
            Self::System(path) if path.metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound) => Ok(None),
            Self::System(path) => {
                let files = SystemFiles::open(path, Access::Read).with_context(|| self.to_string())?;
                Ok(Some(files.stat(b"")?))
            }
            Self::Image(inside) => place::open(&inside.image, true, |opened| {
                image::attr(opened, inside).with_context(|| inside.to_string())
            }),
        }
    }
}

/// The path without links of what may not be there itself.
fn canonical(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().or_else(|| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        Some(parent.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?))
    })
}

impl std::fmt::Display for Located {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(path) => write!(f, "{}", path.display()),
            Self::Image(inside) => write!(f, "{inside}"),
        }
    }
}

/// Opens a tree, and does `work` with it. A symbolic link at the end of the path is followed.
///
/// # Errors
/// If there is nothing at the path, with the path; of the work.
pub(crate) fn with_tree<T>(
    place: &Located,
    access: Access,
    work: impl FnOnce(&dyn Files) -> Result<T>,
) -> Result<T> {
    match place {
        Located::Image(inside) => place::open(&inside.image, access == Access::Read, |opened| {
            work(&ImageFiles::open(opened, inside, access)?)
        }),
        Located::System(path) => {
            let files = SystemFiles::open(path, access).with_context(|| path.display().to_string())?;
            match ClientFiles::new(files, access) {
                Ok(files) => work(&files),
                Err(files) => work(&files),
            }
        }
    }
}

/// Opens a tree to read and one to write, which may lie in one image.
///
/// # Errors
/// As for [`with_tree`].
pub(crate) fn with_trees<T>(
    from: &Located,
    (to, access): (&Located, Access),
    work: impl FnOnce(&dyn Files, &dyn Files) -> Result<T>,
) -> Result<T> {
    if let (Located::Image(source), Located::Image(target)) = (from, to)
        && from.image().is_some()
        && from.image() == to.image()
    {
        return place::open(&source.image, false, |opened| {
            let source = ImageFiles::open(opened, source, Access::Read)?;
            work(&source, &ImageFiles::open(opened, target, access)?)
        });
    }
    with_tree(from, Access::Read, |source| with_tree(to, access, |target| work(source, target)))
}
