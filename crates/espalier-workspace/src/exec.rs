//! A process that sees a workspace at the path of its original.

use crate::error::{AtPath, Error, Result};
use crate::procfs::{PROC, check_mounted};
use crate::workspace::Workspace;
use rustix::mount::{MountPropagationFlags, mount_bind_recursive, mount_change};
use std::path::{Path, PathBuf};

/// Puts the calling process, which must have one thread, into a mount namespace of its own, in
/// which the original's path leads to the workspace; a user other than root into a user namespace,
/// too. Returns the directory in which a program is to be run: where the process is, seen from
/// there.
///
/// # Errors
/// [`Error::Unsuitable`] if the system allows no such namespaces, or the original is not found;
/// [`Error::NoProc`]; of the system.
pub fn enter(workspace: &Workspace) -> Result<PathBuf> {
    let (place, original) = (workspace.place(), workspace.look_for_original()?);
    let here = std::env::current_dir().at(Path::new("."))?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let flags = if uid == 0 { libc::CLONE_NEWNS } else { libc::CLONE_NEWNS | libc::CLONE_NEWUSER };
    if uid != 0 {
        check_mounted(Path::new(PROC))?;
    }
    // SAFETY: it concerns the calling process alone, and takes no pointers.
    if unsafe { libc::unshare(flags) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::Unsuitable(format!(
            "no mount namespace: {error}; users other than root need user namespaces \
             (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        )));
    }
    if uid != 0 {
        let write = |file: &str, text: String| std::fs::write(file, text).at(Path::new(file));
        write("/proc/self/setgroups", "deny".into())?;
        write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    let root = Path::new("/");
    mount_change(root, MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).at(root)?;
    mount_bind_recursive(&place, &original).at(&original)?;
    // From a directory of either tree into the same one of the workspace.
    let below = here.strip_prefix(&place).or_else(|_| here.strip_prefix(&original));
    let dir = match below {
        Ok(below) if !below.as_os_str().is_empty() && original.join(below).is_dir() => original.join(below),
        _ => original,
    };
    std::env::set_current_dir(&dir).at(&dir)?;
    Ok(dir)
}
