//! Everything that can be seen below a directory: names, attributes, and a hash of every content.

use crate::units::Size;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// What one entry shows of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    inode: u64,
    device: u64,
    size: u64,
    modified: (i64, i64),
    content: u64,
}

/// A tree as it was seen.
#[derive(Debug, Default)]
pub(crate) struct Manifest(BTreeMap<PathBuf, Seen>);

impl Manifest {
    /// Reads everything below `root`.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let mut manifest = Self::default();
        let mut waiting = vec![PathBuf::new()];
        while let Some(relative) = waiting.pop() {
            let path = root.join(&relative);
            let seen = look(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            if rustix::fs::FileType::from_raw_mode(seen.mode) == rustix::fs::FileType::Directory {
                let listed = waiting.len();
                let entries = std::fs::read_dir(&path);
                for entry in entries.with_context(|| format!("{} cannot be listed", path.display()))? {
                    waiting.push(relative.join(entry?.file_name()));
                }
                // Taken from the end, and read in the order of the listing, as most programs do.
                waiting[listed..].reverse();
            }
            manifest.0.insert(relative, seen);
        }
        Ok(manifest)
    }

    pub(crate) fn entries(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn size(&self) -> Size {
        Size(self.0.values().map(|s| s.size).sum())
    }

    /// Fails with the first difference.
    pub(crate) fn same_as(&self, other: &Self) -> Result<()> {
        for (path, seen) in &self.0 {
            match other.0.get(path) {
                Some(now) if now == seen => {}
                Some(now) => bail!("{} changed: it was {seen:?} and is {now:?}", path.display()),
                None => bail!("{} is gone", path.display()),
            }
        }
        match other.0.keys().find(|path| !self.0.contains_key(*path)) {
            Some(path) => bail!("{} was not there before", path.display()),
            None => Ok(()),
        }
    }
}

fn look(path: &Path) -> std::io::Result<Seen> {
    let metadata = path.symlink_metadata()?;
    let content = if metadata.is_symlink() {
        xxh3_64(std::fs::read_link(path)?.as_os_str().as_bytes())
    } else if metadata.is_file() {
        hash(path)?
    } else {
        0
    };
    Ok(seen(&metadata, content))
}

fn seen(metadata: &Metadata, content: u64) -> Seen {
    Seen {
        mode: metadata.mode(),
        owner: (metadata.uid(), metadata.gid()),
        links: metadata.nlink(),
        inode: metadata.ino(),
        device: metadata.rdev(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        content,
    }
}

fn hash(path: &Path) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.digest()),
            n => hasher.update(&buffer[..n]),
        }
    }
}
