//! Removes a tree entry by entry, as far as the caller may: where it cannot go in one step, because
//! something in it belongs to another user.
//!
//! Invariant: what is removed lies in one mount, the one around the tree, and in the tree. Each
//! directory is opened by the open directory around it, without following links, and what is in it
//! goes by that descriptor: no rename and no link above leads elsewhere. One that lies in another
//! mount is left, with all that is mounted there. Mounts are told by their numbers (Linux 5.8; else
//! by the device, which a directory that is mounted twice has in both places).

use crate::error::{AtPath, Result};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, major, minor, openat, statat, statx, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Removes a directory with everything below in one step, if that can be: the one with this name in
/// an open directory.
pub type RemoveInOneStep<'a> = dyn Fn(&File, &OsStr) -> std::io::Result<()> + 'a;

/// A removal entry by entry.
pub struct Removal<'a> {
    in_one_step: &'a RemoveInOneStep<'a>,
    mount: Mount,
    /// What was left, and why.
    pub left: Vec<(PathBuf, std::io::Error)>,
    /// How many entries it tried to remove.
    pub steps: u64,
}

/// Which mount something lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mount {
    number: Option<u64>,
    device: (u32, u32),
}

/// What is known of an entry.
struct Found {
    is_directory: bool,
    mount: Mount,
}

impl<'a> Removal<'a> {
    /// Removes what may be removed of the directory at `path`. Below it whole directories go by
    /// `in_one_step` where that does not fail with EPERM or EACCES.
    ///
    /// # Errors
    /// Of the system, if the directory around it cannot be opened.
    pub fn run(path: &Path, in_one_step: &'a RemoveInOneStep<'a>) -> Result<Self> {
        let around = path.parent().filter(|around| !around.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = File::from(openat(CWD, around, flags, Mode::empty()).at(around)?);
        let mount = look(&dir, OsStr::new(""), AtFlags::EMPTY_PATH).at(around)?.mount;
        let mut this = Self { in_one_step, mount, left: Vec::new(), steps: 0 };
        this.remove_directory(&dir, path.file_name().unwrap_or_default(), path);
        Ok(this)
    }

    /// Removes what may be removed of the directory `name` in `around`, which the caller knows as
    /// `path`.
    fn remove_directory(&mut self, around: &File, name: &OsStr, path: &Path) {
        let before = self.left.len();
        if let Err(error) = self.remove_below(around, name, path) {
            self.left.push((path.to_owned(), error));
        }
        if self.left.len() == before
            && let Err(error) = unlinkat(around, name, AtFlags::REMOVEDIR)
        {
            self.left.push((path.to_owned(), error.into()));
        }
    }

    fn remove_below(&mut self, around: &File, name: &OsStr, path: &Path) -> std::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = File::from(openat(around, name, flags, Mode::empty())?);
        self.check_mount(look(&dir, OsStr::new(""), AtFlags::EMPTY_PATH)?.mount)?;
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            let path = path.join(&name);
            self.steps += 1;
            if let Err(error) = self.remove_entry(&dir, &name, entry.file_type(), &path) {
                self.left.push((path, error));
            }
        }
        Ok(())
    }

    fn remove_entry(&mut self, dir: &File, name: &OsStr, kind: FileType, path: &Path) -> std::io::Result<()> {
        if !matches!(kind, FileType::Directory | FileType::Unknown) {
            return Ok(unlinkat(dir, name, AtFlags::empty())?);
        }
        let found = look(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)?;
        self.check_mount(found.mount)?;
        if !found.is_directory {
            return Ok(unlinkat(dir, name, AtFlags::empty())?);
        }
        match (self.in_one_step)(dir, name) {
            // Entry by entry the kernel decides.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                self.remove_directory(dir, name, path);
                Ok(())
            }
            done => done,
        }
    }

    fn check_mount(&self, mount: Mount) -> std::io::Result<()> {
        match mount == self.mount {
            true => Ok(()),
            false => Err(std::io::Error::other("something is mounted there, and stays")),
        }
    }
}

/// What is known of an entry of a directory.
fn look(dir: &File, name: &OsStr, flags: AtFlags) -> rustix::io::Result<Found> {
    let name = name.as_bytes();
    match statx(dir, name, flags, StatxFlags::TYPE | StatxFlags::MNT_ID) {
        // In a container that refuses calls which it does not know.
        Err(Errno::NOSYS | Errno::PERM) => {
            let found = statat(dir, name, flags)?;
            Ok(Found {
                is_directory: FileType::from_raw_mode(found.st_mode) == FileType::Directory,
                mount: Mount { number: None, device: (major(found.st_dev), minor(found.st_dev)) },
            })
        }
        found => {
            let found = found?;
            let has_number = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
            Ok(Found {
                is_directory: FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory,
                mount: Mount {
                    number: has_number.then_some(found.stx_mnt_id),
                    device: (found.stx_dev_major, found.stx_dev_minor),
                },
            })
        }
    }
}

#[cfg(test)]
mod tests;
