//! What is at a path, as far as workspaces are concerned: kind, content, attributes. Times do not
//! count.

use crate::error::{AtPath, Result};
use crate::trees::Expected;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes that are compared at a time.
const CHUNK_BYTES: usize = 128 << 10;
/// The longest list of extended attributes, and the longest value.
const XATTR_BYTES: usize = 64 << 10;
/// Extended attributes that say nothing about an entry: those of workspaces themselves.
const OWN_ATTRIBUTES: &str = "user.espalier.";

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, pipe or socket.
    Special,
}

impl Kind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Link => "link",
            Self::Special => "special",
        }
    }
}

/// What is known of two entries that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// One is in a base, which was not written since it was cloned: what was written elsewhere
    /// since then has a later time, so with the same times nothing was.
    Times,
    /// Both may have been written in one tick of the clock.
    Content,
}

/// What is at a path.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) metadata: Metadata,
}

/// What is at path `below` of directory `top`; `None` if nothing is.
pub(crate) fn read(top: &Path, below: &Path) -> Result<Option<Entry>> {
    read_at(top.join(below))
}

/// What is at a path; `None` if nothing is.
pub(crate) fn read_at(path: PathBuf) -> Result<Option<Entry>> {
    let metadata = match path.symlink_metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        found => found.at(&path)?,
    };
    let kind = match metadata.file_type() {
        kind if kind.is_dir() => Kind::Directory,
        kind if kind.is_symlink() => Kind::Link,
        kind if kind.is_block_device() || kind.is_char_device() || kind.is_fifo() || kind.is_socket() => {
            Kind::Special
        }
        _ => Kind::File,
    };
    Ok(Some(Entry { path, kind, number: metadata.ino(), metadata }))
}

/// The number of a directory, from which those of entries below keep their distance in clones.
pub(crate) fn identity(top: &Path) -> Result<u64> {
    Ok(top.metadata().at(top)?.ino())
}

impl Entry {
    /// By what a later change of it shows.
    pub(crate) fn expected(&self) -> Expected {
        let (seconds, nanos) = (self.metadata.ctime(), self.metadata.ctime_nsec());
        Expected { number: self.number, changed: seconds.saturating_mul(1_000_000_000).saturating_add(nanos) }
    }

    /// True for a file that has other names.
    pub(crate) fn has_names(&self) -> bool {
        self.kind == Kind::File && self.metadata.nlink() > 1
    }

    /// True if kind, content and attributes are the same.
    pub(crate) fn is_like(&self, other: &Self, trust: Trust) -> Result<bool> {
        Ok(self.kind == other.kind
            && self.has_content_of(other, trust)?
            && self.has_attributes_of(other, trust)?)
    }

    /// True if both have the times of the original that one of them is still like.
    fn is_untouched(&self, other: &Self, trust: Trust) -> bool {
        let times = |of: &Metadata| (of.size(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
        trust == Trust::Times && self.kind == other.kind && times(&self.metadata) == times(&other.metadata)
    }

    /// True if two entries of one kind have the same content.
    pub(crate) fn has_content_of(&self, other: &Self, trust: Trust) -> Result<bool> {
        match self.kind {
            Kind::Directory => Ok(true),
            Kind::Special => {
                let device = |of: &Metadata| (of.mode() & libc::S_IFMT, of.rdev());
                Ok(device(&self.metadata) == device(&other.metadata))
            }
            Kind::Link => {
                let target = |path: &Path| std::fs::read_link(path).at(path);
                Ok(target(&self.path)? == target(&other.path)?)
            }
            Kind::File if self.metadata.size() != other.metadata.size() => Ok(false),
            Kind::File => Ok(self.is_untouched(other, trust) || same_bytes(&self.path, &other.path)?),
        }
    }

    /// True if mode, owner and extended attributes are the same.
    pub(crate) fn has_attributes_of(&self, other: &Self, trust: Trust) -> Result<bool> {
        let stat = |of: &Metadata| (of.mode() & 0o7777, of.uid(), of.gid());
        if stat(&self.metadata) != stat(&other.metadata) {
            return Ok(false);
        }
        let untouched = self.kind != Kind::Directory && self.is_untouched(other, trust);
        Ok(untouched || xattrs(&self.path)? == xattrs(&other.path)?)
    }
}

fn same_bytes(a: &Path, b: &Path) -> Result<bool> {
    let (mut first, mut second) = (File::open(a).at(a)?, File::open(b).at(b)?);
    let (mut here, mut there) = (Vec::new(), Vec::new());
    loop {
        let (a_read, b_read) = (fill(&mut first, &mut here).at(a)?, fill(&mut second, &mut there).at(b)?);
        if here != there {
            return Ok(false);
        }
        if a_read == 0 && b_read == 0 {
            return Ok(true);
        }
    }
}

fn fill(file: &mut File, chunk: &mut Vec<u8>) -> std::io::Result<usize> {
    chunk.clear();
    file.take(CHUNK_BYTES as u64).read_to_end(chunk)
}

/// The extended attributes of an entry, sorted by name.
pub(crate) fn xattrs(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; XATTR_BYTES];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        read => read.at(path)?,
    };
    let mut all = Vec::new();
    for name in names[..length].split(|byte| *byte == 0) {
        if name.is_empty() || name.starts_with(OWN_ATTRIBUTES.as_bytes()) {
            continue;
        }
        let mut value = vec![0; XATTR_BYTES];
        match rustix::fs::lgetxattr(path, name, &mut value[..]) {
            // Removed meanwhile, or not for this user to read.
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => {}
            read => {
                value.truncate(read.at(path)?);
                all.push((name.to_vec(), value));
            }
        }
    }
    all.sort();
    Ok(all)
}
