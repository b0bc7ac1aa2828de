//! Copies a tree out of a file system that is not mounted, with all attributes, as far as it can be
//! read.

use crate::files::tree::show;
use anyhow::{Context, Result};
use espalier_fs::{Attr, FileKind, FileSystem, NodeId, Seek};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// How much was copied.
#[derive(Debug, Default)]
pub(super) struct Copied {
    pub(super) directories: u64,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Copies all of `fs` to the directory `out`, which is made. `lost` is told of what cannot be read
/// or made.
///
/// # Errors
/// If nothing can be written at all.
pub(super) fn tree(
    fs: &FileSystem,
    out: &Path,
    copied: &mut Copied,
    lost: &mut dyn FnMut(&str, &str),
) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("{} cannot be made", out.display()))?;
    let mut copy = Copy { fs, out, copied, lost, linked: HashMap::new() };
    copy.directory(NodeId::ROOT, Path::new(""));
    let root = fs.getattr(NodeId::ROOT)?;
    copy.attributes(NodeId::ROOT, &root, Path::new(""));
    Ok(())
}

struct Copy<'a> {
    fs: &'a FileSystem,
    out: &'a Path,
    copied: &'a mut Copied,
    lost: &'a mut dyn FnMut(&str, &str),
    /// Where files with several names are.
    linked: HashMap<u64, PathBuf>,
}

impl Copy<'_> {
    fn lose(&mut self, path: &Path, why: impl std::fmt::Display) {
        (self.lost)(&format!("/{}", show(path.as_os_str().as_bytes())), &why.to_string());
    }

    fn directory(&mut self, node: NodeId, path: &Path) {
        self.copied.directories += 1;
        let mut names = Vec::new();
        let listed = self.fs.readdir(node, 2, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        });
        if let Err(error) = listed {
            self.lose(path, format_args!("not all of it can be listed: {error}"));
        }
        for name in names {
            let below = path.join(OsStr::from_bytes(&name));
            match self.fs.lookup(node, &name) {
                Ok(entry) => {
                    if let Err(error) = self.entry(entry.node, &entry.attr, &below) {
                        self.lose(&below, format_args!("{error:#}"));
                    }
                    self.fs.forget(entry.node, 1);
                }
                Err(error) => self.lose(&below, error),
            }
        }
    }

    fn entry(&mut self, node: NodeId, attr: &Attr, path: &Path) -> Result<()> {
        let target = self.out.join(path);
        if attr.kind != FileKind::Directory && attr.nlink > 1 {
            if let Some(first) = self.linked.get(&attr.ino) {
                return Ok(std::fs::hard_link(first, &target)?);
            }
            self.linked.insert(attr.ino, target.clone());
        }
        match attr.kind {
            FileKind::Directory => {
                std::fs::create_dir(&target)?;
                self.directory(node, path);
            }
            FileKind::Regular => self.file(node, attr, path, &target)?,
            FileKind::Symlink => {
                let to = self.fs.readlink(node)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&to), &target)?;
            }
            kind => {
                let kind = match kind {
                    FileKind::Fifo => FileType::Fifo,
                    FileKind::Socket => FileType::Socket,
                    FileKind::CharDevice => FileType::CharacterDevice,
                    _ => FileType::BlockDevice,
                };
                rustix::fs::mknodat(CWD, &target, kind, Mode::from_raw_mode(0o600), attr.rdev)?;
            }
        }
        if attr.kind != FileKind::Directory {
            self.copied.files += 1;
        }
        self.attributes(node, attr, path);
        Ok(())
    }

    /// Copies the data; holes stay holes, and so does what cannot be read.
    fn file(&mut self, node: NodeId, attr: &Attr, path: &Path, target: &Path) -> Result<()> {
        let file = File::create_new(target)?;
        file.set_len(attr.size)?;
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < attr.size {
            // Where nothing can be said about holes, everything is tried.
            match self.fs.lseek(node, at, Seek::Data) {
                Ok(data) => at = data,
                Err(error) if error.kind() == espalier_fs::FsErrorKind::NoData => break,
                Err(_) => {}
            }
            let wanted = (attr.size - at).min(CHUNK_BYTES as u64) as usize;
            match self.fs.read(node, at, &mut buffer[..wanted]) {
                Ok(0) => break,
                Ok(length) => {
                    file.write_all_at(&buffer[..length], at)?;
                    self.copied.bytes += length as u64;
                    at += length as u64;
                }
                Err(error) => {
                    let end = at + wanted as u64;
                    self.lose(path, format_args!("bytes {at} to {end} cannot be read: {error}"));
                    at = end;
                }
            }
        }
        Ok(())
    }

    /// Owner, extended attributes, mode and times. What may not be set is told only if it should be
    /// possible.
    fn attributes(&mut self, node: NodeId, attr: &Attr, path: &Path) {
        let target = self.out.join(path);
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            let (uid, gid) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
            if let Err(error) =
                rustix::fs::chownat(CWD, &target, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            {
                self.lose(path, format_args!("its owner cannot be set: {error}"));
            }
        }
        let names = self.fs.listxattr(node).unwrap_or_default();
        for name in names.split(|b| *b == 0).filter(|name| !name.is_empty()) {
            let set = self.fs.getxattr(node, name).map_err(anyhow::Error::from).and_then(|value| {
                Ok(rustix::fs::lsetxattr(&target, OsStr::from_bytes(name), &value, XattrFlags::empty())?)
            });
            if let Err(error) = set
                && (is_root || name.starts_with(b"user."))
            {
                let name = show(name);
                self.lose(path, format_args!("the extended attribute {name} cannot be set: {error}"));
            }
        }
        if attr.kind != FileKind::Symlink
            && let Err(error) = rustix::fs::chmod(&target, Mode::from_raw_mode(attr.mode))
        {
            self.lose(path, format_args!("its mode cannot be set: {error}"));
        }
        let time = |nanoseconds: i64| Timespec {
            tv_sec: nanoseconds.div_euclid(1_000_000_000),
            tv_nsec: nanoseconds.rem_euclid(1_000_000_000) as _,
        };
        let times = Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) };
        if let Err(error) = rustix::fs::utimensat(CWD, &target, &times, AtFlags::SYMLINK_NOFOLLOW) {
            self.lose(path, format_args!("its times cannot be set: {error}"));
        }
    }
}
