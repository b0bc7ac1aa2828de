//! Files of git, opened so that nothing leads elsewhere: name by name below a directory that is
//! held open, and without symbolic links.
//!
//! Commands write into the repository of the tree that they are given, and root gives commands
//! about trees of other users. A symbolic link there, or a file that belongs to a user other than
//! the tree does, would have a command read or write what the owner of the tree may not.

use crate::error::{AtPath, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fchown, fstat, mkdirat, openat};
use rustix::fs::{Gid, Uid, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Kinds of files that no program should wait for.
const OPENED: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Files with more bytes are not read: a process in a workspace can give a file any length with a
/// hole that takes no room.
const MAX_READ_BYTES: u64 = 1 << 30;
/// How directories are opened.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// The mode of what is made, before the umask.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);

/// A directory that is held open, with files of git at or below it.
#[derive(Debug)]
pub(crate) struct GitDir {
    dir: OwnedFd,
    /// By which it was opened.
    name: PathBuf,
    /// The user that everything must belong to; `None`: any, as in a clone that no other process
    /// has seen yet.
    owner: Option<u32>,
}

impl GitDir {
    /// Opens a directory of the user `owner`. The names before the last one may be symbolic links.
    /// `None` if there is none, it is a link, or another user's.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn open(path: &Path, owner: Option<u32>) -> Result<Option<Self>> {
        let opened = openat(CWD, path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
        Self::of(opened, path.to_owned(), owner)
    }

    /// Opens a tree of the user that acts, or, for root, of any user. What is reached from there
    /// belongs to the same user.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn tree(path: &Path) -> Result<Option<Self>> {
        let Some(mut tree) = Self::open(path, None)? else { return Ok(None) };
        let (user, owner) = (effective_user(), fstat(&tree.dir).at(path)?.st_uid);
        tree.owner = Some(owner);
        Ok(Some(tree).filter(|_| user == 0 || user == owner))
    }

    fn of(opened: rustix::io::Result<OwnedFd>, name: PathBuf, owner: Option<u32>) -> Result<Option<Self>> {
        let dir = match opened {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            opened => opened.at(&name)?,
        };
        let is_own = is_of(owner, &fstat(&dir).at(&name)?);
        Ok(Some(Self { dir, name, owner }).filter(|_| is_own))
    }

    /// The user that everything belongs to, where one is asked for.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// The same directory, with what is reached from there of any user.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn clone_of_any(&self) -> Result<Self> {
        Ok(Self { dir: self.dir.try_clone().at(&self.name)?, name: self.name.clone(), owner: None })
    }

    /// The path that it was opened by.
    pub(crate) fn path(&self) -> &Path {
        &self.name
    }

    /// A directory below; `None` if there is none, a symbolic link is on the way, or something is
    /// another user's.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn below(&self, path: &Path) -> Result<Option<Self>> {
        let mut at = Self::of(self.dir.try_clone().map_err(errno), self.name.clone(), self.owner)?;
        for part in path.components() {
            let (Some(dir), Component::Normal(part)) = (at, part) else { return Ok(None) };
            let opened = openat(&dir.dir, part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
            at = Self::of(opened, dir.name.join(part), self.owner)?;
        }
        Ok(at)
    }

    /// The directory around it, `None` if that is another user's.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn around(&self) -> Result<Option<Self>> {
        let name = self.name.parent().unwrap_or(&self.name).to_owned();
        Self::of(openat(&self.dir, "..", DIRECTORY, Mode::empty()), name, self.owner)
    }

    /// Device and number of what has a name in it.
    pub(crate) fn number(&self, name: &OsStr) -> Option<(u64, u64)> {
        statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|found| (found.st_dev, found.st_ino))
    }

    /// Its own device and number.
    pub(crate) fn own_number(&self) -> Option<(u64, u64)> {
        fstat(&self.dir).ok().map(|found| (found.st_dev, found.st_ino))
    }

    /// True if this is the directory at a path.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let found = rustix::fs::stat(path).ok().map(|found| (found.st_dev, found.st_ino));
        found.is_some() && found == self.own_number()
    }

    /// Opens an ordinary file in it; `None` if there is none, or another user's.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn file(&self, name: &OsStr, flags: OFlags) -> Result<Option<File>> {
        let path = self.name.join(name);
        let is_fit = |found: &Stat| {
            FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && is_of(self.owner, found)
        };
        // To open some kinds of files has an effect.
        match statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            found if !is_fit(&found.at(&path)?) => return Ok(None),
            _ => {}
        }
        let file = match openat(&self.dir, name, flags | OPENED, Mode::empty()) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
            opened => File::from(opened.at(&path)?),
        };
        let is_fit = is_fit(&fstat(&file).at(&path)?);
        Ok(Some(file).filter(|_| is_fit))
    }

    /// The content of an ordinary file at a path below; `None` as for [`GitDir::file`], and if it
    /// has more than [`MAX_READ_BYTES`].
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Result<Option<Vec<u8>>> {
        let path = path.as_ref();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let Some(dir) = self.below(parent)? else { return Ok(None) };
        let Some(mut file) = dir.file(name, OFlags::RDONLY)? else { return Ok(None) };
        let mut content = Vec::new();
        if file.metadata().at(&self.name.join(path))?.len() > MAX_READ_BYTES {
            return Ok(None);
        }
        Read::take(&mut file, MAX_READ_BYTES).read_to_end(&mut content).at(&self.name.join(path))?;
        Ok(Some(content))
    }

    /// The same as text, without white space at the end; `None` also if it is no text.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Result<Option<String>> {
        let text = self.read(path)?.and_then(|content| String::from_utf8(content).ok());
        Ok(text.map(|text| text.trim_end().to_owned()))
    }

    /// Gives an ordinary file in it other content; false if there is none, or another user's.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn rewrite(&self, name: &OsStr, content: &[u8]) -> Result<bool> {
        let path = self.name.join(name);
        let Some(mut file) = self.file(name, OFlags::WRONLY)? else { return Ok(false) };
        file.write_all(content).at(&path)?;
        file.set_len(content.len() as u64).at(&path)?;
        Ok(true)
    }

    /// Makes a file in it, where nothing may be. For root it belongs to the user that the
    /// directory must belong to.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn make_file(&self, name: &OsStr, mode: Mode) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OPENED;
        let path = self.name.join(name);
        let file = openat(&self.dir, name, flags, mode).at(&path)?;
        self.give(file.as_fd(), &path)?;
        Ok(File::from(file))
    }

    /// Makes a file with content.
    ///
    /// # Errors
    /// As for [`GitDir::make_file`].
    pub(crate) fn write_new(&self, name: &OsStr, content: &[u8]) -> Result<()> {
        self.make_file(name, FILE_MODE)?.write_all(content).at(&self.name.join(name))
    }

    /// Makes a directory in it; `None` if something is there.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn make_directory(&self, name: &OsStr) -> Result<Option<Self>> {
        let path = self.name.join(name);
        match mkdirat(&self.dir, name, DIRECTORY_MODE) {
            Err(Errno::EXIST) => return Ok(None),
            made => made.at(&path)?,
        }
        let made = openat(&self.dir, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).at(&path)?;
        self.give(made.as_fd(), &path)?;
        Ok(Some(Self { dir: made, name: path, owner: self.owner }))
    }

    /// Of what root makes, the owner of the tree is the owner.
    fn give(&self, made: BorrowedFd<'_>, path: &Path) -> Result<()> {
        match self.owner.filter(|owner| *owner != effective_user()) {
            Some(owner) => {
                let group = fstat(&self.dir).at(path)?.st_gid;
                fchown(made, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group))).at(path)
            }
            None => Ok(()),
        }
    }

    /// Gives a file in it another name there, in place of what has that.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> Result<()> {
        renameat(&self.dir, from, &self.dir, to).at(&self.name.join(from))
    }

    /// Removes what has a name in it, with all that is below.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn remove(&self, name: &OsStr) -> Result<()> {
        remove_at(self.dir.as_fd(), name).at(&self.name.join(name))
    }

    /// Removes a directory in it, if that is empty.
    pub(crate) fn remove_if_empty(&self, name: &OsStr) {
        let _ = unlinkat(&self.dir, name, AtFlags::REMOVEDIR);
    }

    /// The names of the directories in it, in order.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn directories(&self) -> Result<Vec<OsString>> {
        let mut all = names_in(self.dir.as_fd()).at(&self.name)?;
        all.retain(|name| {
            let found = statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
            found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
        });
        all.sort();
        Ok(all)
    }
}

/// The text of an ordinary file; symbolic links on the way to its directory are followed.
pub(crate) fn read_text(path: &Path) -> Option<String> {
    let dir = openat(CWD, path.parent()?, DIRECTORY, Mode::empty());
    let dir = GitDir::of(dir, path.parent()?.to_owned(), None).ok()??;
    dir.text(path.file_name()?).ok()?
}

/// The user that the process acts as.
pub(crate) fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// True for the name of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// An absolute path, or one below a directory, without `.` and `..`.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

fn is_of(owner: Option<u32>, found: &Stat) -> bool {
    owner.is_none_or(|owner| found.st_uid == owner)
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn remove_at(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return done,
    }
    let inner = openat(dir, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    for name in names_in(inner.as_fd())? {
        remove_at(inner.as_fd(), &name)?;
    }
    unlinkat(dir, name, AtFlags::REMOVEDIR)
}

/// The names in a directory, all read before one is removed.
fn names_in(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let mut all = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            name => all.push(OsStr::from_bytes(name).to_owned()),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::{GitDir, MAX_READ_BYTES};
    use std::fs::File;

    #[test]
    fn a_file_that_a_hole_makes_too_large_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("config")).unwrap();
        let git = GitDir::open(dir.path(), None).unwrap().unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(git.read("config").unwrap(), Some(vec![0; 4096]));
        file.set_len(MAX_READ_BYTES + 1).unwrap();
        assert_eq!(git.read("config").unwrap(), None);
    }
}
