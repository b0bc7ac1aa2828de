//! The table of mounts.

use espalier_workspace::unescape_mount_path;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How often, and after which time, a mount is asked again whose server is ending.
const DYING_TRIES: u32 = 1000;
const DYING_WAIT: std::time::Duration = std::time::Duration::from_millis(1);

/// A line of proc(5) `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// Where it is mounted.
    pub(crate) dir: PathBuf,
    /// Type, like `fuse.espalier`.
    pub(crate) kind: String,
    /// What is mounted: for us, the absolute path of the image.
    pub(crate) source: PathBuf,
    /// Major and minor number of what its files are on.
    device: (u32, u32),
}

impl MountEntry {
    /// True if it is one of ours.
    pub(crate) fn is_espalier(&self) -> bool {
        self.kind == "fuse.espalier" || self.kind == "fuseblk.espalier"
    }

    /// The kernel's number of its connection.
    pub(crate) fn connection(&self) -> u64 {
        let (major, minor) = self.device;
        u64::from(major) << 20 | u64::from(minor)
    }

    /// A process in another mount namespace that has it, too: its number and name. What is
    /// unmounted here stays mounted there.
    pub(crate) fn elsewhere(&self) -> std::io::Result<Option<(i32, String)>> {
        let own = std::fs::read_link("/proc/self/ns/mnt")?;
        let mut looked_at = HashSet::from([own]);
        for process in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let path = process.path();
            // A process of another user may hide its namespace, and still tell its mounts.
            if path.join("ns/mnt").read_link().is_ok_and(|namespace| !looked_at.insert(namespace)) {
                continue;
            }
            // It may have ended.
            let Ok(table) = std::fs::read(path.join("mountinfo")) else { continue };
            let mut mounts = table.split(|&b| b == b'\n').filter_map(parse);
            if mounts.any(|mount| mount.is_espalier() && mount.device == self.device) {
                let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
                return Ok(Some((pid, name.trim_end().to_owned())));
            }
        }
        Ok(None)
    }

    /// True if no server serves it any more.
    pub(crate) fn is_dead(&self) -> bool {
        is_dead(&self.dir)
    }
}

/// True if `path` leads into a mount whose server has died. What the kernel has cached still
/// answers, so this asks what it never caches.
pub(crate) fn is_dead(path: &Path) -> bool {
    use rustix::io::Errno;
    // A queue over io_uring is taken down before the connection ends, and cancels requests.
    let is_dying = || rustix::fs::statfs(path).is_err_and(|e| e == Errno::CANCELED);
    for _ in 0..DYING_TRIES {
        if !is_dying() {
            break;
        }
        std::thread::sleep(DYING_WAIT);
    }
    rustix::fs::statfs(path)
        .is_err_and(|e| matches!(e, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED))
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
    let table = all()?;
    let wanted = source.metadata().ok();
    let same = |m: &&MountEntry| {
        m.source == source
            || wanted.as_ref().is_some_and(|wanted| {
                let here = (rustix::fs::major(wanted.dev()), rustix::fs::minor(wanted.dev()));
                !is_served_elsewhere(&table, &m.source, here)
                    && m.source.metadata().is_ok_and(|found| identity(&found) == identity(wanted))
            })
    };
    Ok(table.iter().rev().filter(|m| m.is_espalier()).find(same).cloned())
}

/// True if a file lies on a FUSE file system, and not on the one with the number `here`: its server
/// may be silent, and a process that looks at the file then waits for it.
fn is_served_elsewhere(table: &[MountEntry], path: &Path, here: (u32, u32)) -> bool {
    let around = table.iter().filter(|m| path.starts_with(&m.dir));
    let nearest = around.max_by_key(|m| m.dir.components().count());
    nearest.is_some_and(|m| m.kind.starts_with("fuse") && m.device != here)
}

/// What makes a file or block device the same under two names.
fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    if metadata.file_type().is_block_device() {
        (0, metadata.rdev())
    } else {
        (metadata.dev(), metadata.ino())
    }
}

fn parse(line: &[u8]) -> Option<MountEntry> {
    let text = OsStr::from_bytes(line).as_bytes();
    let dash = text.windows(3).position(|w| w == b" - ")?;
    let mut fields = text[..dash].split(|&b| b == b' ').skip(2);
    let device = std::str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let device = (device.0.parse().ok()?, device.1.parse().ok()?);
    let dir = fields.nth(1)?;
    let mut rest = text[dash + 3..].split(|&b| b == b' ');
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = rest.next()?;
    Some(MountEntry { dir: unescape_mount_path(dir), kind, source: unescape_mount_path(source), device })
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
        assert_eq!(entry.device, (0, 32));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 25 0:32"), None);
    }

    #[test]
    fn images_on_the_mounts_of_others_are_not_looked_at() {
        let lines = [
            "20 1 8:1 / / rw - ext4 /dev/sda1 rw",
            "21 20 0:40 / /mnt/a rw - fuse.espalier /srv/a.img rw",
            "22 21 0:41 / /mnt/a/b rw - fuse.espalier /mnt/a/b.img rw",
            "23 20 8:2 / /mnt/a/b/c rw - xfs /dev/sda2 rw",
        ];
        let table: Vec<_> = lines.iter().filter_map(|line| parse(line.as_bytes())).collect();
        assert_eq!(table.len(), lines.len());
        let served = |path: &str, here| is_served_elsewhere(&table, Path::new(path), here);
        assert!(!served("/srv/a.img", (8, 2)) && !served("/mnt/ab/x.img", (8, 2)));
        assert!(served("/mnt/a/b.img", (8, 1)) && !served("/mnt/a/b.img", (0, 40)));
        assert!(served("/mnt/a/b/x.img", (0, 40)) && !served("/mnt/a/b/c/x.img", (8, 1)));
    }
}
