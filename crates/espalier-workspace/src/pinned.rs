//! A directory that is held open: a path that leads to it whatever is renamed. Paths by names lead
//! elsewhere as soon as another user puts something else into a directory above.

use crate::error::{AtPath, Error, Result};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A directory that is held open.
#[derive(Debug)]
pub(crate) struct Pinned {
    _file: File,
    /// By which it was opened.
    name: PathBuf,
    /// That of the descriptor.
    path: PathBuf,
}

impl Pinned {
    /// Opens the directory at a path; the last name is no symbolic link.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::with(path, OFlags::NOFOLLOW)
    }

    /// The same for the directory at the end of symbolic links.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn open_followed(path: &Path) -> Result<Self> {
        Self::with(path, OFlags::empty())
    }

    /// The same with the name that it gets.
    pub(crate) fn called(self, name: &Path) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    fn with(path: &Path, flags: OFlags) -> Result<Self> {
        let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, path, flags, Mode::empty()).at(path)?);
        let by_descriptor = format!("/proc/self/fd/{}/.", file.as_raw_fd());
        Ok(Self { _file: file, name: path.to_owned(), path: by_descriptor.into() })
    }

    /// A path that leads to it as long as this lives.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The result with the name by which the directory was opened in place of the path of the
    /// descriptor, which says nothing to people.
    ///
    /// # Errors
    /// Those of `done`.
    pub(crate) fn named<T>(&self, done: Result<T>) -> Result<T> {
        let (path, name) = (self.path.display().to_string(), self.name.display().to_string());
        done.map_err(|error| match error {
            Error::Unsuitable(what) => Error::Unsuitable(what.replace(&path, &name)),
            error => error.map_path(|path| self.by_name(path)),
        })
    }

    /// A path below it, by its name.
    pub(crate) fn by_name(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.path) {
            Ok(below) if below.as_os_str().is_empty() => self.name.clone(),
            Ok(below) => self.name.join(below),
            Err(_) => path.to_owned(),
        }
    }
}
