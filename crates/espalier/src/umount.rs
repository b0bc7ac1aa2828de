//! `espalier umount`: unmounts, and returns when the server has made everything durable and is
//! gone.

use crate::args::Umount;
use crate::backing;
use crate::info;
use crate::mounts::{self, MountEntry};
use crate::ui;
use anyhow::{Context, Result, anyhow, bail};
use espalier_storage::{ErrorKind, FileDevice, FileOptions, OpenMode};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs the command.
pub(crate) fn run(args: &Umount) -> Result<()> {
    let dir = absolute(&args.dir)?;
    let mount = mounts::at(&dir).context("the table of mounts cannot be read")?;
    let Some(mount) = mount else {
        bail!("{}: nothing is mounted there (findmnt lists mounts)", dir.display())
    };
    if !mount.is_espalier() {
        bail!("{} is a mount of type {}; unmount it with umount(8)", dir.display(), mount.kind);
    }
    let server = if args.lazy { None } else { server_of(&mount) };
    detach(&dir, args.lazy)?;
    if args.lazy {
        return Ok(());
    }
    match server {
        Some(server) => wait_for_end(&server),
        None => wait_for_release(&mount),
    }
}

/// The server of a mount whose store has no lock to wait for: that of an object store. `None` if it
/// cannot be found.
fn server_of(mount: &MountEntry) -> Option<OwnedFd> {
    if !backing::is_url(&mount.source) {
        return None;
    }
    let pid = info::ask_server(&mount.dir).ok()?["mount"]["pid"].as_i64()?;
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until a server has made everything durable and is gone.
fn wait_for_end(server: &OwnedFd) -> Result<()> {
    let spinner = ui::spinner("making everything durable");
    let outcome = loop {
        match rustix::event::poll(&mut [PollFd::new(server, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            outcome => break outcome,
        }
    };
    spinner.finish_and_clear();
    outcome.context("the end of the server cannot be waited for")?;
    Ok(())
}

/// The path without links, found without touching its last component, whose server may be dead.
pub(crate) fn absolute(dir: &Path) -> Result<PathBuf> {
    if let Ok(path) = dir.canonicalize() {
        return Ok(path);
    }
    let missing = || anyhow!("{}: there is no such directory", dir.display());
    let name = dir.file_name().ok_or_else(missing)?;
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(parent.canonicalize().map_err(|_| missing())?.join(name))
}

/// Takes the mount out of the tree.
pub(crate) fn detach(dir: &Path, lazy: bool) -> Result<()> {
    let busy = || {
        anyhow!(
            "{} is busy: a program has a file open or works there (fuser -vm {} lists them); end it, or use --lazy",
            dir.display(),
            dir.display()
        )
    };
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(busy()),
        // Not root: the set-uid helper knows which mounts are ours.
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir).stdin(Stdio::null());
            let out = command.output().context("fusermount3 cannot be run; install the package fuse3")?;
            if out.status.success() {
                return Ok(());
            }
            let message = String::from_utf8_lossy(&out.stderr);
            if message.contains("busy") { Err(busy()) } else { Err(anyhow!("{}", message.trim())) }
        }
        Err(e) => Err(anyhow!(e).context(format!("{} cannot be unmounted", dir.display()))),
    }
}

/// Waits until the lock of the image is free, which the server keeps to its last write.
fn wait_for_release(mount: &MountEntry) -> Result<()> {
    let spinner = ui::spinner("making everything durable");
    let outcome = loop {
        let options = FileOptions { direct: false, ..FileOptions::new(OpenMode::ReadOnly) };
        match FileDevice::open_with(&mount.source, &options.wait(Duration::from_millis(200))) {
            Ok(_) => break Ok(()),
            Err(e) if e.kind == ErrorKind::Busy => {
                // Mounted again by another process, so released in between; or mounted twice.
                if mounts::of(&mount.source)?.is_some() {
                    break Ok(());
                }
            }
            // The image is gone or not ours to open: there is nothing to wait for that we could
            // see.
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::PermissionDenied) => break Ok(()),
            Err(e) => break Err(e.into()),
        }
    };
    spinner.finish_and_clear();
    outcome
}
