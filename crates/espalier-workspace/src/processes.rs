//! Which processes work in a tree: those that have it as working or root directory, run a program
//! from it, or have a file there open or mapped. A user other than root sees the user's own
//! processes only.
//!
//! A process in another mount namespace may see the tree at another path, as after
//! [`enter`](crate::enter). So paths are taken back to paths within the mounted file system, by the
//! process's own table of mounts.

use crate::error::{AtPath, Result};
use crate::process::Process;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

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
    /// Of the system.
    pub fn look(at: &Path) -> Result<Self> {
        let device = at.metadata().at(at)?.dev();
        let proc = Path::new("/proc");
        let mut known = HashMap::new();
        let mut this = Self { mounts: mounts_of(&proc.join("self"), device), uses: BTreeSet::new() };
        let own = std::process::id();
        for entry in proc.read_dir().at(proc)?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if pid.unsigned_abs() == own {
                continue;
            }
            let dir = entry.path();
            let namespace = dir.join("ns/mnt").read_link().ok();
            let mounts: &Rc<[MountPoint]> =
                known.entry(namespace).or_insert_with(|| mounts_of(&dir, device).into());
            if !mounts.is_empty() {
                this.add(pid, &dir, &Rc::clone(mounts));
            }
        }
        Ok(this)
    }

    fn add(&mut self, pid: i32, dir: &Path, mounts: &[MountPoint]) {
        let mut paths = used_paths(dir);
        paths.retain(|path| mounts.iter().any(|mount| path.starts_with(&mount.at)));
        if paths.is_empty() {
            return;
        }
        let command = std::fs::read(dir.join("comm")).unwrap_or_default();
        let command = String::from_utf8_lossy(command.trim_ascii()).into_owned();
        for path in paths {
            if let Some(within) = within(mounts, &path) {
                self.uses.insert((within, Process { pid, command: command.clone() }));
            }
        }
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

/// The paths that a process uses, as it sees them. What it may not be asked for is left out.
fn used_paths(dir: &Path) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    for link in ["cwd", "root", "exe"] {
        paths.extend(dir.join(link).read_link().ok());
    }
    if let Ok(open) = dir.join("fd").read_dir() {
        paths.extend(open.flatten().filter_map(|entry| entry.path().read_link().ok()));
    }
    let maps = std::fs::read(dir.join("maps")).unwrap_or_default();
    for line in maps.split(|byte| *byte == b'\n') {
        if let Some(at) = line.iter().position(|byte| *byte == b'/') {
            paths.insert(unescape_mount_path(&line[at..]));
        }
    }
    paths.retain(|path| path.is_absolute());
    paths
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

/// Where the caller sees something mounted.
pub(crate) fn mount_points() -> Vec<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let place = |line: &[u8]| Some(unescape_mount_path(line.split(|byte| *byte == b' ').nth(4)?));
    table.split(|byte| *byte == b'\n').filter_map(place).collect()
}

/// A path in the kernel's table of mounts, where blanks, tabs, newlines and backslashes stand as
/// three octal digits.
pub fn unescape_mount_path(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match (first, octal) {
            (b'\\', Some(digits)) => {
                out.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &tail[3..];
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    Path::new(OsStr::from_bytes(&out)).to_owned()
}

#[cfg(test)]
mod tests;
