//! A directory that is held open, and what lies below it, by paths that lead there whatever is
//! renamed. Paths by names lead elsewhere as soon as another user puts something else into a
//! directory above, or a symbolic link in the place of a directory below.
//!
//! What lies below is opened relative to the descriptor, by a path in which no symbolic link is
//! followed and which does not lead out of the directory (`openat2`); Linux before 5.6 gets one
//! call for each part of the path. Calls that take no descriptor, as those of [`Trees`], get the
//! descriptor's path in proc(5), so nothing can be held without that.
//!
//! [`Trees`]: crate::Trees

use crate::error::{AtPath, Error, Result};
use crate::procfs::{PROC, check_mounted, mount_points};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// How paths below a directory are followed: they lead below it, and through no symbolic link.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// A directory that is held open.
#[derive(Debug)]
pub(crate) struct Pinned {
    file: File,
    /// By which it was opened.
    name: PathBuf,
    /// That of the descriptor.
    path: PathBuf,
    /// How paths below it are followed.
    resolve: ResolveFlags,
}

/// Something below a directory that is held, but not opened to be read.
#[derive(Debug)]
pub(crate) struct Held {
    file: File,
    /// That of the descriptor.
    path: PathBuf,
}

impl Pinned {
    /// Opens the directory at a path; the last name is no symbolic link.
    ///
    /// # Errors
    /// [`Error::NoProc`]; of the system.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::of(openat(CWD, path, flags, Mode::empty()).at(path)?, path)
    }

    /// The same for an absolute path without symbolic links.
    ///
    /// # Errors
    /// [`Error::Meanwhile`] if there is a symbolic link now; as for [`Pinned::open`].
    pub(crate) fn open_resolved(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        match open_below(CWD, path, flags, ResolveFlags::NO_SYMLINKS) {
            Err(Errno::LOOP | Errno::NOTDIR) => Err(Error::Meanwhile(path.to_owned())),
            opened => Self::of(opened.at(path)?, path),
        }
    }

    /// The same with the name that it gets.
    pub(crate) fn called(self, name: &Path) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// The same, where paths below it lead to nothing that is mounted below it.
    pub(crate) fn within_its_mount(self) -> Self {
        Self { resolve: self.resolve.union(ResolveFlags::NO_XDEV), ..self }
    }

    fn of(dir: OwnedFd, name: &Path) -> Result<Self> {
        let (file, name) = (File::from(dir), name.to_owned());
        let path = descriptor_path(Path::new(PROC), &file)?.join(".");
        Ok(Self { file, name, path, resolve: BENEATH })
    }

    /// A path that leads to it as long as this lives.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its number (`st_ino`), from which those of entries below keep their distance in clones.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn number(&self) -> Result<u64> {
        Ok(self.file.metadata().at(&self.name)?.ino())
    }

    /// The directory at a path below it; `None` if there is none.
    ///
    /// # Errors
    /// As for [`Pinned::hold`].
    pub(crate) fn below(&self, below: &Path) -> Result<Option<Self>> {
        let opened = self.open_at(below, OFlags::RDONLY | OFlags::DIRECTORY)?;
        opened.map(|dir| Self::of(dir, &self.name.join(below))).transpose()
    }

    /// What is at a path below it, without following the last name; `None` if nothing is, or there
    /// is a symbolic link or a file in the place of a directory above.
    ///
    /// # Errors
    /// [`Error::MountPoint`]; of the system.
    pub(crate) fn hold(&self, below: &Path) -> Result<Option<Held>> {
        let Some(opened) = self.open_at(below, OFlags::PATH)? else { return Ok(None) };
        let file = File::from(opened);
        let path = Path::new(PROC).join("self/fd").join(file.as_raw_fd().to_string());
        Ok(Some(Held { file, path }))
    }

    fn open_at(&self, below: &Path, flags: OFlags) -> Result<Option<OwnedFd>> {
        let path = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        match open_below(self.file.as_fd(), path, flags | OFlags::NOFOLLOW, self.resolve) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(Errno::XDEV) => Err(self.crossed(&self.name.join(below))),
            Err(Errno::AGAIN) => Err(Error::Meanwhile(self.name.join(below))),
            opened => opened.at(&self.name.join(below)).map(Some),
        }
    }

    /// The error about a path that leads to another mount.
    fn crossed(&self, path: &Path) -> Error {
        let places = mount_points().unwrap_or_default();
        let around = places.into_iter().filter(|at| path.starts_with(at) && *at != self.name);
        let at = around.max_by_key(|at| at.components().count()).filter(|at| at.starts_with(&self.name));
        Error::MountPoint { target: self.name.clone(), at: at.unwrap_or_else(|| path.to_owned()) }
    }

    /// Where something is mounted below it, as paths relative to it.
    ///
    /// # Errors
    /// [`Error::NoProc`].
    pub(crate) fn mounts_below(&self) -> Result<Vec<PathBuf>> {
        let below = |at: PathBuf| Some(at.strip_prefix(&self.name).ok()?.to_owned());
        let found = mount_points()?.into_iter().filter_map(below);
        Ok(found.filter(|below| !below.as_os_str().is_empty()).collect())
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

    /// By which it was opened.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }
}

impl Held {
    /// A path that leads to it as long as this lives. It is itself a symbolic link of proc(5), so
    /// calls have to follow it; they follow no further, even if this is a symbolic link.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What is known of it.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn metadata(&self) -> std::io::Result<Metadata> {
        self.file.metadata()
    }

    /// Opens it.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn open(&self, options: &OpenOptions) -> std::io::Result<File> {
        options.open(&self.path)
    }

    /// What it says if it is a symbolic link.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn link_target(&self) -> std::io::Result<PathBuf> {
        let target = readlinkat(&self.file, "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }
}

/// The path of a descriptor below `proc`, where proc(5) should be mounted.
fn descriptor_path(proc: &Path, file: &File) -> Result<PathBuf> {
    let path = proc.join("self/fd").join(file.as_raw_fd().to_string());
    let is_same = |found: &Metadata| {
        file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
    };
    match path.metadata() {
        Ok(found) if is_same(&found) => Ok(path),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(&path, error)),
        _ => Err(check_mounted(proc).err().unwrap_or(Error::NoProc)),
    }
}

/// Opens a path relative to `dir`.
fn open_below(
    dir: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    match openat2(dir.as_fd(), path, flags, Mode::empty(), resolve) {
        // Before Linux 5.6; in a container that refuses calls which it does not know.
        Err(Errno::NOSYS | Errno::PERM) => walk(dir, path, flags, resolve),
        opened => opened,
    }
}

/// The same by one call for each part of the path. It tells another mount by its device alone.
fn walk(dir: impl AsFd, path: &Path, flags: OFlags, resolve: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    let device = |of: &OwnedFd| rustix::fs::fstat(of).map(|found| found.st_dev);
    let above = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = openat(dir, if path.is_absolute() { "/" } else { "." }, above, Mode::empty())?;
    let top = device(&at)?;
    let parts: Vec<_> = path.components().filter(|part| !matches!(part, Component::RootDir)).collect();
    for (index, part) in parts.iter().enumerate() {
        if *part == Component::ParentDir {
            return Err(Errno::XDEV);
        }
        let is_last = index + 1 == parts.len();
        at = openat(&at, part.as_os_str(), if is_last { flags } else { above }, Mode::empty())?;
        if resolve.contains(ResolveFlags::NO_XDEV) && device(&at)? != top {
            return Err(Errno::XDEV);
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests;
