//! What watchers (inotify, fanotify) hear of changes to whole trees.
//!
//! A whole tree is cloned or changed by an ioctl, of which the kernel's watchers hear nothing. So
//! each of these commands has one step that is an ordinary call on the top of the tree: a clone is
//! made under a hidden name and then renamed, a change of modes or owners ends with a call that
//! changes nothing, and a removal (`remove`) leaves an empty directory for rmdir(2). A watcher of
//! the directory above hears of the top what it hears of `mv`, `chmod` or `rmdir`; of what lies
//! below the top it hears nothing.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A name beside `path` that no other process uses, for a tree that is not there yet.
pub(crate) fn hidden_sibling(path: &Path) -> PathBuf {
    static USED: AtomicU64 = AtomicU64::new(0);
    let number = USED.fetch_add(1, Ordering::Relaxed);
    let name = format!(".espalier-{}-{number}", std::process::id());
    path.with_file_name(OsString::from(name))
}

/// Renames `from` to `to`, where nothing must be.
///
/// # Errors
/// What rename(2) says; `AlreadyExists` if something is there.
pub(crate) fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

/// Tells watchers that the attributes of an open file or directory changed, by setting one of them
/// to what it is. A hint: a caller that may not do that leaves watchers without it.
pub(crate) fn announce_attributes(open: &File) {
    let same = open.metadata().and_then(|metadata| {
        if metadata.is_dir() {
            // With the mode of a directory the kernel would forget its name.
            return std::os::unix::fs::fchown(open, Some(metadata.uid()), Some(metadata.gid()));
        }
        // With the owner of a file its set-id bits would go.
        open.set_permissions(Permissions::from_mode(metadata.mode() & 0o7777))
    });
    if let Err(error) = same {
        tracing::debug!(%error, "watchers hear nothing of the change");
    }
}
