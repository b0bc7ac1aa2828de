//! Which processes work in a tree: those that have it as working or root directory, run a program
//! from it, or have a file there open or mapped. A user other than root sees the user's own
//! processes only.
//!
//! A process in another mount namespace may see the tree at another path, as after
//! [`enter`](crate::enter). So paths are taken back to paths within the mounted file system, by a
//! table of mounts.
//!
//! Proc(5) tells the paths of a process in the caller's namespace as the caller sees them, whatever
//! root directory the process has, and those of others from the root of their namespace. A table of
//! mounts, however, is told from the root directory of its process, and shows nothing outside of
//! that. So for processes in the caller's namespace the caller's own table counts, and for others
//! one that was read from a process of the same namespace with the same root directory. Invariant:
//! a table is kept for others only if it was read to the end, and from a process that was in that
//! namespace and root directory before and afterwards. One process that ends, or has another root
//! directory, hides no other.

use crate::error::{AtPath, Error, Result};
use crate::parallel;
use crate::process::Process;
use crate::procfs::{PROC, check_mounted, unescape_mount_path};
use rustix::fs::{CWD, Dir, Mode, OFlags, openat, readlinkat};
use rustix::path::Arg;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{DirEntry, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A mount of the file system in question: which of its directories is seen where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MountPoint {
    root: PathBuf,
    at: PathBuf,
}

/// All uses of a mounted file system by processes other than this one, at one time.
#[derive(Debug, Default)]
pub struct Processes {
    mounts: Vec<MountPoint>,
    /// Paths within the file system, with the processes that use them.
    uses: BTreeSet<(PathBuf, Process)>,
}

impl Processes {
    /// Looks at all processes for uses of the file system that `at` lies in.
    ///
    /// # Errors
    /// [`Error::NoProc`]; [`Error::Unsuitable`] if proc(5) does not show where the file system is
    /// mounted; of the system.
    pub fn look(at: &Path) -> Result<Self> {
        Self::look_in(Path::new(PROC), at)
    }

    /// The same with the place of proc(5).
    fn look_in(proc: &Path, at: &Path) -> Result<Self> {
        check_mounted(proc)?;
        let device = at.metadata().at(at)?.dev();
        let own = proc.join("self");
        let mounts = mounts_of(&own, device, Path::new("/")).map_err(|_| Error::NoProc)?;
        if mounts.is_empty() {
            // So it is in a root directory (chroot) below the place of the mount.
            return Err(Error::Unsuitable(format!(
                "{}: {}/self/mountinfo does not show the mount that it lies in, so it cannot be told which \
                 processes work there",
                at.display(),
                proc.display()
            )));
        }
        let number = |entry: DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
        let pids = proc.read_dir().at(proc)?.flatten().filter_map(number);
        let pids: Vec<i32> = pids.filter(|pid| pid.unsigned_abs() != std::process::id()).collect();
        let namespaces = Namespaces {
            device,
            own: std::fs::read_link(own.join("ns/mnt")).ok(),
            seen: mounts.into(),
            known: Mutex::default(),
        };
        let uses = parallel::map(&pids, |pid| uses_of((proc, *pid), &namespaces))?;
        let mounts = namespaces.seen.to_vec();
        Ok(Self { mounts, uses: uses.into_iter().flatten().collect() })
    }

    /// The processes that work in the directory `dir`, an absolute path without symbolic links.
    pub fn in_tree(&self, dir: &Path) -> Vec<Process> {
        let Some(top) = within(&self.mounts, dir) else { return Vec::new() };
        // Paths are ordered by their parts, so what lies below the top follows it.
        let first = (top.clone(), Process { pid: i32::MIN, command: String::new() });
        let below = self.uses.range(first..).take_while(|(path, _)| path.starts_with(&top));
        let found: BTreeSet<Process> = below.map(|(_, process)| process.clone()).collect();
        found.into_iter().collect()
    }
}

/// The path within the file system, by the innermost mount.
fn within(mounts: &[MountPoint], path: &Path) -> Option<PathBuf> {
    let around = mounts.iter().rev().filter(|mount| path.starts_with(&mount.at));
    let mount = around.max_by_key(|mount| mount.at.components().count())?;
    Some(mount.root.join(path.strip_prefix(&mount.at).ok()?))
}

/// From where a process sees mounts: its mount namespace and its root directory.
type View = (PathBuf, PathBuf);

/// The mounts of the file system in the mount namespaces that were met.
struct Namespaces {
    device: u64,
    /// That of the caller.
    own: Option<PathBuf>,
    /// What the caller sees.
    seen: Arc<[MountPoint]>,
    /// What processes of other namespaces see.
    known: Mutex<HashMap<View, Arc<[MountPoint]>>>,
}

impl Namespaces {
    /// The mounts by which the paths of a process are told, with its directory in proc(5) at
    /// `path`; `None` if it has ended, or the caller may not know.
    ///
    /// # Errors
    /// Of the system.
    fn mounts(&self, dir: &OwnedFd, path: &Path) -> Result<Option<Arc<[MountPoint]>>> {
        if link(dir, "ns/mnt") == self.own {
            return Ok(Some(Arc::clone(&self.seen)));
        }
        let view = || -> Option<View> { Some((link(dir, "ns/mnt")?, link(dir, "root")?)) };
        let Some(before) = view() else { return Ok(None) };
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mounts) = known().get(&before) {
            return Ok(Some(Arc::clone(mounts)));
        }
        let Some(mounts) = of_living(mounts_of(path, self.device, &before.1), path)? else { return Ok(None) };
        let mounts: Arc<[MountPoint]> = mounts.into();
        if view().as_ref() == Some(&before) {
            known().insert(before, Arc::clone(&mounts));
        }
        Ok(Some(mounts))
    }
}

/// What was read of a process; `None` if it has ended, or the caller may not know.
///
/// # Errors
/// Of the system: then it is not known what the process uses.
fn of_living<T>(read: std::io::Result<T>, path: &Path) -> Result<Option<T>> {
    match read.as_ref().map_err(std::io::Error::raw_os_error) {
        Err(Some(libc::ENOENT | libc::ENOTDIR | libc::ESRCH | libc::EINVAL | libc::EACCES | libc::EPERM)) => {
            Ok(None)
        }
        _ => read.at(path).map(Some),
    }
}

/// The paths within the file system that a process uses.
fn uses_of((proc, pid): (&Path, i32), namespaces: &Namespaces) -> Result<Vec<(PathBuf, Process)>> {
    let path = proc.join(pid.to_string());
    let opened = openat(CWD, &path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Some(dir) = of_living(opened.map_err(Into::into), &path)? else { return Ok(Vec::new()) };
    let mounts = namespaces.mounts(&dir, &path)?.filter(|mounts| !mounts.is_empty());
    let Some(mounts) = mounts else { return Ok(Vec::new()) };
    let is_there = |path: &PathBuf| mounts.iter().any(|mount| path.starts_with(&mount.at));
    let links = ["cwd", "root", "exe"].into_iter().filter_map(|name| link(&dir, name));
    let mut paths: BTreeSet<PathBuf> = links.chain(open_files(&dir, &path)?).filter(is_there).collect();
    let (maps, mut last) = (read(&dir, "maps"), &[][..]);
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b'/') else { continue };
        // The parts of one file follow each other.
        if line[at..] != *last {
            last = &line[at..];
            paths.extend(Some(unescape_mount_path(last)).filter(is_there));
        }
    }
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let command = String::from_utf8_lossy(read(&dir, "comm").trim_ascii()).into_owned();
    let used = paths.iter().filter_map(|path| within(&mounts, path));
    Ok(used.map(|path| (path, Process { pid, command: command.clone() })).collect())
}

/// What a link in a directory of proc(5) names, if the caller may know.
fn link(dir: &OwnedFd, name: impl Arg) -> Option<PathBuf> {
    let named = readlinkat(dir, name, Vec::new()).ok()?;
    Some(OsString::from_vec(named.into_bytes()).into())
}

/// The paths of the files that a process has open, with its directory in proc(5) at `path`.
///
/// # Errors
/// Of the system.
fn open_files(dir: &OwnedFd, path: &Path) -> Result<Vec<PathBuf>> {
    let open = openat(dir, "fd", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Some(fds) = of_living(open.map_err(Into::into), path)? else { return Ok(Vec::new()) };
    let listed = Dir::read_from(&fds).map_err(Into::into);
    let Some(listed) = of_living(listed, path)? else { return Ok(Vec::new()) };
    let named = listed.flatten().filter_map(|entry| link(&fds, entry.file_name()));
    // What has no path, as a pipe, does not begin like one.
    Ok(named.filter(|path| path.is_absolute()).collect())
}

/// What a file in a directory of proc(5) says, as far as the caller may read it.
fn read(dir: &OwnedFd, name: &str) -> Vec<u8> {
    let mut text = Vec::new();
    if let Ok(file) = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = File::from(file).read_to_end(&mut text);
    }
    text
}

/// The mounts of a file system that a process with this root directory sees; later ones lie above
/// earlier ones.
fn mounts_of(process: &Path, device: u64, top: &Path) -> std::io::Result<Vec<MountPoint>> {
    let table = std::fs::read(process.join("mountinfo"))?;
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let parse = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let same = fields.next()? == wanted.as_bytes();
        let (root, at) = (fields.next()?, unescape_mount_path(fields.next()?));
        let at = at.strip_prefix("/").map_or_else(|_| at.clone(), |below| top.join(below));
        same.then(|| MountPoint { root: unescape_mount_path(root), at })
    };
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

#[cfg(test)]
mod tests;
