//! `espalier rm`: removes trees in one step each. Where that is not allowed, because something
//! below belongs to another user, it goes down, removes what may be removed, and reports the rest.
//! What is mounted below stays whole, with the directories that lead there ([`Removal`]): a tree
//! that is removed in one step takes its mounts along.
//!
//! The step leaves an empty directory, which rmdir(2) then removes: so watchers of the directory
//! above hear that the tree was deleted. A crash in between leaves the empty directory.

use crate::args::Remove;
use crate::control;
use crate::mounts;
use crate::place::{self, CALLER, Inside};
use crate::problem::Exit;
use crate::ui::{complain, say};
use anyhow::Result;
use espalier_fs::FileKind;
use espalier_fuse::control::{REMOVE_LEAVING_EMPTY, REMOVE_TREE};
use espalier_workspace::Removal;
use rustix::fs::{AtFlags, unlinkat};
use serde_json::json;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What was left, and why.
type Left = Vec<(PathBuf, String)>;

/// Runs the command.
pub(crate) fn run(args: &Remove) -> Result<Exit> {
    let mut left = Left::new();
    let mut steps = 0;
    for path in &args.paths {
        match place::inside(path) {
            None => remove(path, args.force, &mut left, &mut steps),
            Some(inside) => {
                steps += 1;
                if let Err(error) = remove_inside(&inside, args.force) {
                    left.push((path.clone(), format!("{error:#}")));
                }
            }
        }
    }
    if args.json {
        let left: Vec<_> =
            left.iter().map(|(path, why)| json!({"path": path.to_string_lossy(), "why": why})).collect();
        say!("{}", json!({"steps": steps, "left": left}));
    } else {
        left.iter().for_each(|(_, why)| complain!("espalier rm: {why}"));
    }
    Ok(if left.is_empty() { Exit::Success } else { Exit::Failure })
}

/// Removes a tree or file of an image that is not mounted.
fn remove_inside(inside: &Inside, force: bool) -> Result<()> {
    place::open(&inside.image, false, |image| {
        let (above, name) = inside.split()?;
        let kind = match image.find_live(inside) {
            Ok(found) => found.give_back(),
            Err(_) if force => return Ok(()),
            Err(error) => return Err(error),
        };
        let dir = image.find_live(&above)?.node;
        let removed = match kind {
            FileKind::Directory => image.fs.remove_tree(dir, name, &CALLER),
            _ => image.fs.unlink(dir, name),
        };
        removed.map_err(|error| place::explain(error, inside))
    })
}

/// Removes one tree or file as far as possible.
fn remove(path: &Path, force: bool, left: &mut Left, steps: &mut u64) {
    let kind = match path.symlink_metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if force && error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => return left.push((path.into(), format!("{}: {error}", path.display()))),
    };
    *steps += 1;
    if !kind.is_dir() {
        if let Err(error) = std::fs::remove_file(path) {
            left.push((path.into(), format!("{}: {error}", path.display())));
        }
        return;
    }
    let mounted = match mounted_in(path) {
        Ok(mounted) => mounted,
        Err(error) => return left.push((path.into(), format!("{}: {error}", path.display()))),
    };
    let one_step = |dir: &File, name: &OsStr| match mounted.is_empty() || !leads_to(dir, name, &mounted)? {
        true => remove_in_one_step(dir, name),
        false => Err(std::io::Error::from_raw_os_error(libc::EPERM)),
    };
    let (parent, name) = match control::split(path) {
        Ok(split) => split,
        Err(error) => return left.push((path.into(), format!("{error:#}"))),
    };
    match File::open(parent).and_then(|parent| one_step(&parent, OsStr::from_bytes(&name))) {
        Ok(()) => {}
        // Entry by entry the kernel decides, which knows more of the caller's rights on an idmapped
        // mount.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            match Removal::run(path, &one_step) {
                Ok(removal) => {
                    *steps += removal.steps;
                    let why = |path: &Path, error| format!("{:#}", control::explain(error, path));
                    left.extend(
                        removal.left.into_iter().map(|(path, error)| (path.clone(), why(&path, error))),
                    );
                }
                Err(error) => left.push((path.into(), error.to_string())),
            }
        }
        Err(error) => left.push((path.into(), format!("{:#}", control::explain(error, path)))),
    }
}

/// Where something is mounted on a directory and below it, as this process sees it.
fn mounted_in(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let place = path.canonicalize()?;
    let all = mounts::all()?.into_iter().map(|mount| mount.dir);
    Ok(all.filter(|dir| dir.starts_with(&place)).collect())
}

/// True if something is mounted on what has this name in a directory, or below that.
fn leads_to(dir: &File, name: &OsStr, mounted: &[PathBuf]) -> std::io::Result<bool> {
    let place = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))?.join(name);
    Ok(mounted.iter().any(|point| point.starts_with(&place)))
}

/// Removes a file, or a tree in one step.
///
/// # Errors
/// What the system says.
pub(crate) fn remove_anything(path: &Path) -> std::io::Result<()> {
    if path.symlink_metadata()?.is_dir() { remove_tree(path) } else { std::fs::remove_file(path) }
}

fn remove_tree(path: &Path) -> std::io::Result<()> {
    let (parent, name) = control::split(path).map_err(invalid)?;
    remove_in_one_step(&File::open(parent)?, OsStr::from_bytes(&name))
}

fn remove_in_one_step(dir: &File, name: &OsStr) -> std::io::Result<()> {
    let argument = |flags| control::name_argument(flags, name.as_bytes()).map_err(invalid);
    match control::ask(dir, REMOVE_TREE, &mut argument(REMOVE_LEAVING_EMPTY)?) {
        // An older server does not know the flag.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            control::ask(dir, REMOVE_TREE, &mut argument(0)?)
        }
        emptied => emptied.and_then(|()| Ok(unlinkat(dir, name, AtFlags::REMOVEDIR)?)),
    }
}

fn invalid(error: anyhow::Error) -> std::io::Error {
    std::io::Error::other(error.to_string())
}
