//! What is at a path below a directory, as far as workspaces are concerned: kind, content,
//! attributes. Times do not count.
//!
//! An entry is read by a descriptor, and what it tells of later is what was read, or an error:
//! another user may put something else at its path at any time.

use crate::error::{AtPath, Error, Result};
use crate::pinned::{Held, Pinned};
use crate::trees::Expected;
use rustix::fs::{getxattr, lgetxattr, listxattr, llistxattr};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::Read;
use std::ops::Deref;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    fn of(metadata: &Metadata) -> Self {
        match metadata.file_type() {
            kind if kind.is_dir() => Self::Directory,
            kind if kind.is_symlink() => Self::Link,
            kind if kind.is_block_device() || kind.is_char_device() || kind.is_fifo() || kind.is_socket() => {
                Self::Special
            }
            _ => Self::File,
        }
    }

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

/// What was at a path below a directory when it was read.
#[derive(Debug)]
pub(crate) struct Entry {
    top: Arc<Pinned>,
    /// The path below the directory.
    pub(crate) below: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) metadata: Metadata,
    /// It itself, until [`Entry::release`].
    held: Option<Held>,
}

/// What is at path `below` of directory `top`; `None` if nothing is.
///
/// # Errors
/// As for [`Pinned::hold`].
pub(crate) fn read(top: &Arc<Pinned>, below: &Path) -> Result<Option<Entry>> {
    let Some(held) = top.hold(below)? else { return Ok(None) };
    let metadata = held.metadata().at(&top.name().join(below))?;
    let (top, below, held) = (Arc::clone(top), below.to_owned(), Some(held));
    Ok(Some(Entry { top, below, kind: Kind::of(&metadata), number: metadata.ino(), metadata, held }))
}

/// By what a later change of something shows.
pub(crate) fn expected(of: &Metadata) -> Expected {
    let (seconds, nanos) = (of.ctime(), of.ctime_nsec());
    Expected { number: of.ino(), changed: seconds.saturating_mul(1_000_000_000).saturating_add(nanos) }
}

/// What an [`Entry`] tells of.
#[derive(Debug)]
pub(crate) enum Known<'a> {
    /// It has been held since it was read.
    Since(&'a Held),
    /// It was opened anew.
    Anew(Held),
}

impl Deref for Known<'_> {
    type Target = Held;

    fn deref(&self) -> &Held {
        match self {
            Self::Since(held) => held,
            Self::Anew(held) => held,
        }
    }
}

impl Entry {
    /// By what a later change of it shows.
    pub(crate) fn expected(&self) -> Expected {
        expected(&self.metadata)
    }

    /// Its path by the name of the directory that it is in.
    pub(crate) fn name(&self) -> PathBuf {
        self.top.name().join(&self.below)
    }

    /// Closes it, so that many entries may be known at a time.
    pub(crate) fn release(&mut self) {
        self.held = None;
    }

    /// It itself, opened anew if it was released.
    ///
    /// # Errors
    /// [`Error::Meanwhile`] if something else is at its path by now; as for [`Pinned::hold`].
    pub(crate) fn hold(&self) -> Result<Known<'_>> {
        if let Some(held) = &self.held {
            return Ok(Known::Since(held));
        }
        let meanwhile = || Error::Meanwhile(self.name());
        let held = self.top.hold(&self.below)?.ok_or_else(meanwhile)?;
        let now = held.metadata().at(&self.name())?;
        match (now.dev(), now.ino(), Kind::of(&now)) == (self.metadata.dev(), self.number, self.kind) {
            true => Ok(Known::Anew(held)),
            false => Err(meanwhile()),
        }
    }

    /// What `call` makes of its path in proc(5), with errors that name it.
    ///
    /// # Errors
    /// As for [`Entry::hold`]; those of the call.
    pub(crate) fn with_path<T>(&self, call: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let held = self.hold()?;
        call(held.path()).map_err(|error| {
            error.map_path(|path| if path == held.path() { self.name() } else { path.to_owned() })
        })
    }

    /// Opens it, a file, to be read.
    ///
    /// # Errors
    /// As for [`Entry::hold`]; of the system.
    pub(crate) fn open(&self) -> Result<File> {
        self.hold()?.open(File::options().read(true)).at(&self.name())
    }

    /// What it says, a symbolic link.
    ///
    /// # Errors
    /// As for [`Entry::hold`]; of the system.
    pub(crate) fn link_target(&self) -> Result<PathBuf> {
        self.hold()?.link_target().at(&self.name())
    }

    /// Its extended attributes, sorted by name.
    ///
    /// # Errors
    /// As for [`Entry::hold`]; of the system.
    pub(crate) fn xattrs(&self) -> Result<Vec<Xattr>> {
        let held = self.hold()?;
        let path = held.path();
        xattrs_by(|names| listxattr(path, names), |name, value| getxattr(path, name, value)).at(&self.name())
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
            Kind::Link => Ok(self.link_target()? == other.link_target()?),
            Kind::File if self.metadata.size() != other.metadata.size() => Ok(false),
            Kind::File => Ok(self.is_untouched(other, trust) || same_bytes(self, other)?),
        }
    }

    /// True if mode, owner and extended attributes are the same.
    pub(crate) fn has_attributes_of(&self, other: &Self, trust: Trust) -> Result<bool> {
        let stat = |of: &Metadata| (of.mode() & 0o7777, of.uid(), of.gid());
        if stat(&self.metadata) != stat(&other.metadata) {
            return Ok(false);
        }
        let untouched = self.kind != Kind::Directory && self.is_untouched(other, trust);
        Ok(untouched || self.xattrs()? == other.xattrs()?)
    }
}

fn same_bytes(a: &Entry, b: &Entry) -> Result<bool> {
    let (mut first, mut second) = (a.open()?, b.open()?);
    let (a, b) = (&a.name(), &b.name());
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

/// An extended attribute: name and value.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// The extended attributes of what is at a path of a command's own, sorted by name.
///
/// # Errors
/// Of the system.
pub(crate) fn xattrs(path: &Path) -> Result<Vec<Xattr>> {
    xattrs_by(|names| llistxattr(path, names), |name, value| lgetxattr(path, name, value)).at(path)
}

/// Extended attributes by the calls that list them and get one.
fn xattrs_by(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<Xattr>> {
    let mut names = vec![0; XATTR_BYTES];
    let length = match list(&mut names) {
        Err(Errno::OPNOTSUPP) => 0,
        read => read?,
    };
    let mut all = Vec::new();
    for name in names[..length].split(|byte| *byte == 0) {
        if name.is_empty() || name.starts_with(OWN_ATTRIBUTES.as_bytes()) {
            continue;
        }
        let mut value = vec![0; XATTR_BYTES];
        match get(name, &mut value) {
            // Removed meanwhile, or not for this user to read.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            read => {
                value.truncate(read?);
                all.push((name.to_vec(), value));
            }
        }
    }
    all.sort();
    Ok(all)
}
