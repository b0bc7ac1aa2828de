//! Calls on whole trees: ioctls on the mount, and what ordinary programs do step by step on the
//! plain directory.
//!
//! What was stored through a mapping is in a clone or snapshot if it was synced, so both sides sync
//! what they copy first. Open files below a tree that is removed keep their link count on the
//! mount, so that is not compared.

use crate::calls::{Side, Value};
use crate::common::store::start;
use crate::random::Random;
use crate::tree;
use espalier_fuse::control::{
    self, CHMOD_TREE, CHOWN_TREE, CLONE, REMOVE_TREE, SNAPSHOT, SNAPSHOT_DELETE, TOKEN,
};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Debug, Clone)]
pub(crate) enum TreeCall {
    Clone {
        from: String,
        to: String,
    },
    Remove {
        path: String,
    },
    ChangeOwner {
        path: String,
        uid: u32,
        gid: u32,
    },
    ChangeMode {
        path: String,
        bits: [u32; 5],
    },
    /// A snapshot of a directory is made, read and deleted.
    Snapshot {
        path: String,
    },
}

impl TreeCall {
    pub(crate) fn choose(r: &mut Random, path: impl Fn(&mut Random) -> String) -> Self {
        match r.below(8) {
            0..3 => Self::Clone { from: path(r), to: path(r) },
            3 => Self::Remove { path: path(r) },
            4 => Self::ChangeOwner { path: path(r), uid: r.below(3) as u32, gid: r.below(3) as u32 },
            5 => Self::ChangeMode {
                path: path(r),
                bits: r.of(&[
                    [0o6000, 0o755, 0, 0o644, 0],
                    [0o7777, 0o700, 0o7777, 0o600, 0o100],
                    [0o7700; 5],
                ]),
            },
            _ => Self::Snapshot { path: path(r) },
        }
    }

    /// Makes the call on one side, `mounted` or plain; nothing happens where it makes no sense.
    pub(crate) fn apply(&self, side: &mut Side, mounted: bool) -> Result<Value, Errno> {
        let done = |result: std::io::Result<()>| match result {
            Ok(()) => Ok(Value::Nothing),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        };
        match self {
            Self::Clone { from, to } => {
                let (from, to) = (side.at(from), side.at(to));
                let plain_parent =
                    to.parent().is_some_and(|p| p.symlink_metadata().is_ok_and(|m| m.is_dir()));
                let source = from.symlink_metadata().is_ok_and(|m| m.is_dir() || m.is_file());
                if !source || !plain_parent || to.symlink_metadata().is_ok() || to.starts_with(&from) {
                    return Ok(Value::Nothing);
                }
                if to.file_name().is_none_or(|name| name.len() > 255) {
                    return Ok(Value::Nothing);
                }
                sync(&from);
                done(if mounted { clone(&from, &to) } else { run("cp", &["-a"], &[&from, &to]) })
            }
            Self::Remove { path } => {
                let path = side.at(path);
                if !path.symlink_metadata().is_ok_and(|m| m.is_dir()) {
                    return Ok(Value::Nothing);
                }
                let mut below = HashSet::new();
                walk(&path, &mut |_, meta| {
                    below.insert(meta.ino());
                });
                side.note_removed(&below);
                done(if mounted { ask_by_name(&path, REMOVE_TREE) } else { fs::remove_dir_all(&path) })
            }
            Self::ChangeOwner { path, uid, gid } => {
                let path = side.at(path);
                if !openable(&path) {
                    return Ok(Value::Nothing);
                }
                let mut argument = [uid.to_ne_bytes(), gid.to_ne_bytes()].concat();
                done(match mounted {
                    true => File::open(&path).and_then(|file| ask(&file, CHOWN_TREE, &mut argument)),
                    false => run("chown", &["-hR", &format!("{uid}:{gid}")], &[&path]),
                })
            }
            Self::ChangeMode { path, bits } => {
                let path = side.at(path);
                if !openable(&path) {
                    return Ok(Value::Nothing);
                }
                let mut argument: Vec<u8> = bits.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
                done(match mounted {
                    true => File::open(&path).and_then(|file| ask(&file, CHMOD_TREE, &mut argument)),
                    false => {
                        change_modes(&path, bits);
                        Ok(())
                    }
                })
            }
            Self::Snapshot { path } => {
                let path = side.at(path);
                if !path.symlink_metadata().is_ok_and(|m| m.is_dir()) {
                    return Ok(Value::Nothing);
                }
                sync(&path);
                let shown = |tree: tree::Tree| Ok(Value::Bytes(format!("{tree:?}")));
                if !mounted {
                    let copy = tempfile::tempdir().expect("a directory");
                    let copy = copy.path().join("copy");
                    // As a copy, in which names elsewhere do not count.
                    run("cp", &["-a"], &[&path, &copy]).expect("cp");
                    return shown(tree::read(&copy));
                }
                let dir = File::open(&path).expect("the directory");
                let name = |flags| control::name_argument(flags, b"s").expect("a name");
                ask(&dir, SNAPSHOT, &mut name(control::SNAPSHOT_DIRECTORY)).expect("snapshot");
                let seen = tree::read(&path.join(".snapshots/s"));
                ask(&dir, SNAPSHOT_DELETE, &mut name(control::SNAPSHOT_DIRECTORY)).expect("deletion");
                assert!(!path.join(".snapshots").exists(), "nothing is left to be seen");
                shown(seen)
            }
        }
    }
}

fn ask(file: &File, command: u32, argument: &mut [u8]) -> std::io::Result<()> {
    assert_eq!(argument.len(), control::size(command));
    // SAFETY: the kernel reads and writes as many bytes as the number says, and the slice has that
    // many.
    match unsafe { libc::ioctl(file.as_raw_fd(), command as libc::Ioctl, argument.as_mut_ptr()) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn split(path: &Path) -> (PathBuf, Vec<u8>) {
    let name = path.file_name().expect("a name").as_bytes().to_vec();
    (path.parent().expect("a parent").to_owned(), name)
}

fn ask_by_name(path: &Path, command: u32) -> std::io::Result<()> {
    let (parent, name) = split(path);
    ask(&File::open(parent)?, command, &mut control::name_argument(0, &name).expect("a short name"))
}

fn clone(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut token = [0; control::TOKEN_BYTES];
    let source = File::open(from)?;
    ask(&source, TOKEN, &mut token)?;
    let (parent, name) = split(to);
    ask(&File::open(parent)?, CLONE, &mut control::clone_argument(&token, &name).expect("a short name"))
}

fn run(program: &str, words: &[&str], paths: &[&Path]) -> std::io::Result<()> {
    let mut command = Command::new(program);
    let mut said = String::new();
    let ran = start(command.args(words).args(paths).stdout(Stdio::null()).stderr(Stdio::piped()), |ran| {
        // It says nothing more when it has ended, and then it has been in its program.
        ran.stderr.take().expect("a pipe").read_to_string(&mut said).expect("what it says");
    });
    assert!({ ran }.wait()?.success(), "{program}: {said}");
    Ok(())
}

fn openable(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| m.is_dir() || m.is_file())
}

fn walk(path: &Path, each: &mut dyn FnMut(&Path, &fs::Metadata)) {
    let meta = path.symlink_metadata().expect("it is there");
    each(path, &meta);
    if meta.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            walk(&entry.expect("an entry").path(), each);
        }
    }
}

fn sync(path: &Path) {
    walk(path, &mut |path, meta| {
        if meta.is_file() {
            File::open(path).and_then(|file| file.sync_all()).expect("fsync");
        }
    });
}

/// As the header has it. Names of one file more than one: a change twice is not always a change
/// once, so each file once.
fn change_modes(path: &Path, bits: &[u32; 5]) {
    let [keep_directories, add_directories, keep_files, add_files, add_executables] = *bits;
    let mut seen = HashSet::new();
    walk(path, &mut |path, meta| {
        if meta.is_symlink() || !seen.insert(meta.ino()) {
            return;
        }
        let mode = meta.mode() & 0o7777;
        let new = match meta.is_dir() {
            true => mode & keep_directories | add_directories,
            false => mode & keep_files | add_files | if mode & 0o111 != 0 { add_executables } else { 0 },
        };
        fs::set_permissions(path, fs::Permissions::from_mode(new)).expect("chmod");
    });
}
