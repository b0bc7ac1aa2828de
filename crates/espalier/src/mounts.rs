//! The table of mounts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A line of proc(5) `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// Where it is mounted.
    pub(crate) dir: PathBuf,
    /// Type, like `fuse.espalier`.
    pub(crate) kind: String,
    /// What is mounted: for us, the absolute path of the image.
    pub(crate) source: PathBuf,
}

impl MountEntry {
    /// True if it is one of ours.
    pub(crate) fn is_espalier(&self) -> bool {
        self.kind == "fuse.espalier" || self.kind == "fuseblk.espalier"
    }

    /// True if nobody serves it any more.
    pub(crate) fn is_dead(&self) -> bool {
        is_dead(&self.dir)
    }
}

/// True if `path` leads into a mount whose server has died. What the kernel has cached still answers, so
/// this asks what it never caches.
pub(crate) fn is_dead(path: &Path) -> bool {
    rustix::fs::statfs(path)
        .is_err_and(|e| matches!(e, rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED))
}

/// Everything mounted, oldest first.
pub(crate) fn all() -> std::io::Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// What is mounted on top at `dir`, which must be an absolute path.
pub(crate) fn at(dir: &Path) -> std::io::Result<Option<MountEntry>> {
    Ok(all()?.into_iter().rev().find(|m| m.dir == dir))
}

/// Where the image at `source` is mounted, under whatever name.
pub(crate) fn of(source: &Path) -> std::io::Result<Option<MountEntry>> {
    let wanted = identity(source);
    let same = |m: &MountEntry| m.source == source || (wanted.is_some() && identity(&m.source) == wanted);
    Ok(all()?.into_iter().rev().find(|m| m.is_espalier() && same(m)))
}

/// What makes a file or block device the same under two names.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = path.metadata().ok()?;
    Some(if metadata.file_type().is_block_device() {
        (0, metadata.rdev())
    } else {
        (metadata.dev(), metadata.ino())
    })
}

fn parse(line: &[u8]) -> Option<MountEntry> {
    let text = OsStr::from_bytes(line).as_bytes();
    let dash = text.windows(3).position(|w| w == b" - ")?;
    let dir = text[..dash].split(|&b| b == b' ').nth(4)?;
    let mut rest = text[dash + 3..].split(|&b| b == b' ');
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = rest.next()?;
    Some(MountEntry { dir: unescape(dir).into(), kind, source: unescape(source).into() })
}

/// The kernel writes blanks, tabs, newlines and backslashes as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| d.iter().all(|b| (b'0'..=b'7').contains(b)));
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
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_understood() {
        let line = br"36 25 0:32 / /mnt/two\040words rw,nosuid shared:1 - fuse.espalier /srv/a\134b.img rw";
        let entry = parse(line).unwrap();
        assert_eq!(entry.dir, Path::new("/mnt/two words"));
        assert_eq!(entry.source, Path::new(r"/srv/a\b.img"));
        assert!(entry.is_espalier());
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 25 0:32"), None);
    }
}
