//! Which processes work in a tree: those that have it as working or root directory, run a program
//! from it, or have a file there open or mapped. A user other than root sees the user's own
//! processes only.
//!
//! A process in another mount namespace may see the tree at another path, as after
//! [`enter`](crate::enter). So paths are taken back to paths within the mounted file system, by the
//! process's own table of mounts.

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
        let mounts = mounts_of(&proc.join("self"), device);
        if mounts.is_empty() {
            // So it is in a root directory (chroot) below the place of the mount.
            return Err(Error::Unsuitable(format!(
                "{}: {}/self/mountinfo does not show the mount that it lies in, so it cannot be told which \
                 processes work there",
                at.display(),
                proc.display()
            )));
        }
        let own = std::process::id();
        let number = |entry: DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
        let pids = proc.read_dir().at(proc)?.flatten().filter_map(number);
        let pids: Vec<i32> = pids.filter(|pid| pid.unsigned_abs() != own).collect();
        let namespaces = Namespaces { device, known: Mutex::default() };
        let uses = parallel::map(&pids, |pid| Ok(uses_of((proc, *pid), &namespaces)))?;
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

/// The mounts of the file system in the mount namespaces that were met.
struct Namespaces {
    device: u64,
    known: Mutex<HashMap<Option<PathBuf>, Arc<[MountPoint]>>>,
}

impl Namespaces {
    /// The mounts that a process sees, with its directory in proc(5) at `path`.
    fn mounts(&self, dir: &OwnedFd, path: &Path) -> Arc<[MountPoint]> {
        let namespace = link(dir, "ns/mnt");
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mounts) = known().get(&namespace) {
            return Arc::clone(mounts);
        }
        let mounts: Arc<[MountPoint]> = mounts_of(path, self.device).into();
        Arc::clone(known().entry(namespace).or_insert(mounts))
    }
}

/// The paths within the file system that a process uses.
fn uses_of((proc, pid): (&Path, i32), namespaces: &Namespaces) -> Vec<(PathBuf, Process)> {
    let path = proc.join(pid.to_string());
    // It may have ended.
    let Ok(dir) = openat(CWD, &path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
        return Vec::new();
    };
    let mounts = namespaces.mounts(&dir, &path);
    if mounts.is_empty() {
        return Vec::new();
    }
    let is_there = |path: &PathBuf| mounts.iter().any(|mount| path.starts_with(&mount.at));
    let links = ["cwd", "root", "exe"].into_iter().filter_map(|name| link(&dir, name));
    let mut paths: BTreeSet<PathBuf> = links.chain(open_files(&dir)).filter(is_there).collect();
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
        return Vec::new();
    }
    let command = String::from_utf8_lossy(read(&dir, "comm").trim_ascii()).into_owned();
    let used = paths.iter().filter_map(|path| within(&mounts, path));
    used.map(|path| (path, Process { pid, command: command.clone() })).collect()
}

/// What a link in a directory of proc(5) names, if the caller may know.
fn link(dir: &OwnedFd, name: impl Arg) -> Option<PathBuf> {
    let named = readlinkat(dir, name, Vec::new()).ok()?;
    Some(OsString::from_vec(named.into_bytes()).into())
}

/// The paths of the files that a process has open.
fn open_files(dir: &OwnedFd) -> Vec<PathBuf> {
    let open = openat(dir, "fd", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Ok(fds) = open else { return Vec::new() };
    let Ok(listed) = Dir::read_from(&fds) else { return Vec::new() };
    let named = listed.flatten().filter_map(|entry| link(&fds, entry.file_name()));
    // What has no path, as a pipe, does not begin like one.
    named.filter(|path| path.is_absolute()).collect()
}

/// What a file in a directory of proc(5) says, as far as the caller may read it.
fn read(dir: &OwnedFd, name: &str) -> Vec<u8> {
    let mut text = Vec::new();
    if let Ok(file) = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = File::from(file).read_to_end(&mut text);
    }
    text
}

/// The mounts of a file system that a process sees; later ones lie above earlier ones.
fn mounts_of(process: &Path, device: u64) -> Vec<MountPoint> {
    let table = std::fs::read(process.join("mountinfo")).unwrap_or_default();
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let parse = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let same = fields.next()? == wanted.as_bytes();
        let (root, at) = (fields.next()?, fields.next()?);
        same.then(|| MountPoint { root: unescape_mount_path(root), at: unescape_mount_path(at) })
    };
    table.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

#[cfg(test)]
mod tests;
