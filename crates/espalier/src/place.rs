//! What commands on trees are given: a path in a mounted file system, or `IMAGE:PATH`, a path in an
//! image that is not mounted.
//!
//! A path that exists is itself, whatever colons it has. In any other the part before a colon is an
//! image if it is a file or a block device. The image is then opened here, with its lock, and the
//! library does what the server of a mount would.

use crate::image;
use anyhow::{Context, Result, anyhow, bail};
use espalier_fs::{Caller, Entry, FileKind, FileSystem, FsErrorKind, NodeId, OpenOptions};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory for work on an image.
pub(crate) const MEMORY_BYTES: u64 = 256 << 20;

/// Memory for the names of a snapshot that is looked into.
const NAME_MEMORY_BYTES: u64 = 4 << 20;

/// A user that may write an image may do anything in it.
pub(crate) const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// A path in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inside {
    /// The image.
    pub(crate) image: PathBuf,
    /// The names from its root on.
    pub(crate) names: Vec<Vec<u8>>,
}

/// An image that is open, as a file system.
pub(crate) struct Opened {
    path: PathBuf,
    store: Arc<espalier_engine::Store>,
    pub(crate) fs: Arc<FileSystem>,
    read_only: bool,
}

/// A file or directory that was found. It is given back with the file system.
pub(crate) struct Found {
    /// Of the volume, or of a snapshot.
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) node: NodeId,
    pub(crate) entry: Entry,
}

/// What of an image `path` names; `None` if it is a path of the system.
pub(crate) fn inside(path: &Path) -> Option<Inside> {
    if path.symlink_metadata().is_ok() {
        return None;
    }
    let bytes = path.as_os_str().as_bytes();
    let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
    for at in colons {
        let image = Path::new(OsStr::from_bytes(&bytes[..at]));
        let kind = image.metadata().map(|metadata| metadata.file_type());
        if kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
            let names = bytes[at + 1..].split(|byte| *byte == b'/').filter(|n| !n.is_empty() && *n != b".");
            return Some(Inside { image: image.into(), names: names.map(<[u8]>::to_vec).collect() });
        }
    }
    None
}

impl std::fmt::Display for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.image.display())?;
        self.names.iter().try_for_each(|name| write!(f, "/{}", String::from_utf8_lossy(name)))?;
        if self.names.is_empty() { write!(f, "/") } else { Ok(()) }
    }
}

impl Inside {
    /// The directory that it lies in, and its name.
    ///
    /// # Errors
    /// For the root.
    pub(crate) fn split(&self) -> Result<(Self, &[u8])> {
        match self.names.split_last() {
            Some((name, above)) => Ok((Self { image: self.image.clone(), names: above.to_vec() }, name)),
            None => bail!("{self} is the root, which lies in no directory"),
        }
    }

    /// What `name` in it is called.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let names = self.names.iter().cloned().chain([name.to_vec()]).collect();
        Self { image: self.image.clone(), names }
    }
}

/// Opens an image, does `work`, and makes durable what that did, also if it ended with an error
/// half way.
///
/// # Errors
/// If the image is mounted or cannot be opened; of the work.
pub(crate) fn open<T>(path: &Path, read_only: bool, work: impl FnOnce(&Opened) -> Result<T>) -> Result<T> {
    let store = image::open_store(path, MEMORY_BYTES, read_only)?;
    let options = OpenOptions { read_only, ..Default::default() };
    let fs = FileSystem::open(Arc::clone(&store), image::environment(), options)
        .with_context(|| format!("{} cannot be opened", path.display()))?;
    let opened = Opened { path: path.into(), store, fs, read_only };
    let done = work(&opened);
    let closed = opened.close();
    let done = done?;
    closed?;
    Ok(done)
}

impl Opened {
    fn close(self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.fs
            .close()
            .with_context(|| format!("the last changes of {} are not stored", self.path.display()))?;
        self.store.close().map_err(|error| image::explain(error, &self.path))
    }

    /// Finds what a path names. Links are not followed; `.snapshots/NAME` leads into a snapshot, as
    /// on a mount.
    ///
    /// # Errors
    /// If there is nothing, with the path.
    pub(crate) fn find(&self, place: &Inside) -> Result<Found> {
        let mut at = Found {
            fs: Arc::clone(&self.fs),
            node: NodeId::ROOT,
            entry: self.fs.lookup(NodeId::ROOT, b".").with_context(|| place.to_string())?,
        };
        let mut names = place.names.iter();
        while let Some(name) = names.next() {
            match at.fs.lookup(at.node, name) {
                Ok(entry) => (at.node, at.entry) = (entry.node, entry),
                Err(error)
                    if error.kind() == FsErrorKind::NotFound
                        && name == b".snapshots"
                        && Arc::ptr_eq(&at.fs, &self.fs) =>
                {
                    let Some(snapshot) = names.next() else {
                        bail!("{place}: name a snapshot (espalier snapshot list shows all)");
                    };
                    let snapshot = String::from_utf8_lossy(snapshot);
                    let snapshot =
                        self.fs.snapshot_of(at.node, &snapshot).with_context(|| place.to_string())?;
                    let fs = self
                        .fs
                        .open_snapshot(&snapshot, NAME_MEMORY_BYTES)
                        .with_context(|| place.to_string())?;
                    let entry = fs.lookup(NodeId::ROOT, b".").with_context(|| place.to_string())?;
                    at = Found { fs, node: NodeId::ROOT, entry };
                }
                Err(error) => return Err(explain(error, place)),
            }
        }
        Ok(at)
    }

    /// Finds what can be changed: nothing in a snapshot.
    ///
    /// # Errors
    /// As for [`Opened::find`]; if it lies in a snapshot.
    pub(crate) fn find_live(&self, place: &Inside) -> Result<Found> {
        let found = self.find(place)?;
        if !Arc::ptr_eq(&found.fs, &self.fs) {
            bail!(
                "{place} lies in a snapshot, which is not changed (a writable one can be mounted with -o snapshot=NAME)"
            );
        }
        Ok(found)
    }
}

impl Found {
    /// True for a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.entry.attr.kind == FileKind::Directory
    }

    /// Gives it back: what is removed next is then not in use.
    pub(crate) fn give_back(self) -> FileKind {
        self.fs.forget(self.node, 1);
        self.entry.attr.kind
    }
}

/// Says what a failure of the library was about.
pub(crate) fn explain(error: espalier_fs::FsError, place: &Inside) -> anyhow::Error {
    match error.kind() {
        FsErrorKind::NotFound => anyhow!("{place}: there is nothing of that name"),
        FsErrorKind::Exists => anyhow!("{place} exists already"),
        FsErrorKind::NoSpace => anyhow!(
            "{place}: the file system is full; remove something, or make it larger (espalier resize {} SIZE)",
            place.image.display()
        ),
        FsErrorKind::NotDirectory => anyhow!("{place}: a directory is needed"),
        _ => anyhow!(error).context(place.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_is_itself() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("disk.img"), b"").unwrap();
        std::fs::write(at("a:b"), b"").unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        for path in ["disk.img", "a:b", "dir", "missing", "missing:x", "dir:x", "disk.img/x"] {
            assert_eq!(inside(&at(path)), None, "{path}");
        }
        for (path, image, names) in [
            ("disk.img:", "disk.img", &[][..]),
            ("disk.img:/", "disk.img", &[]),
            ("disk.img:a/b", "disk.img", &["a", "b"]),
            ("disk.img:/a//./b/", "disk.img", &["a", "b"]),
            ("disk.img:a:b", "disk.img", &["a:b"]),
            ("a:b:c", "a:b", &["c"]),
        ] {
            let found = inside(&at(path)).unwrap();
            let expected: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            assert_eq!(found, Inside { image: at(image), names: expected }, "{path}");
        }
    }
}
