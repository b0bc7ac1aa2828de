//! `espalier umount`: unmounts, and returns when the server has made everything durable and is
//! gone.

use crate::args::Umount;
use crate::backing;
use crate::dying;
use crate::info;
use crate::mounts::{self, MountEntry};
use crate::ui;
use anyhow::{Context, Result, anyhow, bail};
use espalier_storage::{ErrorKind, FileDevice, FileOptions, OpenMode};
use espalier_workspace::Processes;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long to wait for the end of a server before a look at other mount namespaces.
const LOOK_ELSEWHERE: Duration = Duration::from_secs(1);

/// How often, and after which time, to look whether a killed server has ended.
const KILLED_LOOKS: u32 = 300;
const KILLED_WAIT: Duration = Duration::from_millis(10);

/// How often, and after which time, to try again what is busy although no process works there: a
/// program that looks at all mounts, as `df` does, holds each for a moment.
const BUSY_TRIES: u32 = 20;
const BUSY_WAIT: Duration = Duration::from_millis(100);

/// How many processes a message names.
const USERS_SHOWN: usize = 5;

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
    let killed = dying::abort(&mount)?;
    if args.lazy {
        return detach(&dir, true);
    }
    if let Some(process) = killed {
        // What is open there gets errors only.
        detach(&dir, true)?;
        return wait_for_killed(&mount, process);
    }
    let server = server_of(&mount);
    sync(&dir);
    detach(&dir, false)?;
    let spinner = ui::spinner("making everything durable");
    let outcome = match server {
        Some(server) => wait_for_end(&server, &mount),
        None => wait_for_release(&mount),
    };
    spinner.finish_and_clear();
    if let Waited::Elsewhere(pid, name) = outcome? {
        ui::complain!(
            "{}: unmounted, and all that was written is durable; but process {pid} ({name}) has it in a mount namespace of its own, so its server goes on and the image stays in use until that ends",
            dir.display()
        );
    }
    Ok(())
}

/// What ended the wait for the server.
enum Waited {
    /// The server is gone.
    Gone,
    /// It goes on, because this process has the mount in another namespace.
    Elsewhere(i32, String),
}

/// Makes everything durable that was written: the kernel does so only with the last mount of a file
/// system, and there may be more in other namespaces. A mount that cannot be opened (its server is
/// dead, the directory is not the caller's) has nothing that this command could wait for.
fn sync(dir: &Path) {
    if let Ok(open) = std::fs::File::open(dir)
        && let Err(error) = rustix::fs::syncfs(open)
    {
        tracing::debug!(%error, "not everything is durable yet");
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
fn wait_for_end(server: &OwnedFd, mount: &MountEntry) -> Result<Waited> {
    loop {
        let timeout = Timespec { tv_sec: LOOK_ELSEWHERE.as_secs().cast_signed(), tv_nsec: 0 };
        match rustix::event::poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                if let Some((pid, name)) = mount.elsewhere()? {
                    return Ok(Waited::Elsewhere(pid, name));
                }
            }
            Err(Errno::INTR) => {}
            outcome => {
                outcome.context("the end of the server cannot be waited for")?;
                return Ok(Waited::Gone);
            }
        }
    }
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

/// Takes the mount out of the tree. While it is busy and no process works there, this tries again
/// for a moment.
pub(crate) fn detach(dir: &Path, lazy: bool) -> Result<()> {
    for _ in 0..BUSY_TRIES {
        if !is_busy_at_detach(dir, lazy)? {
            return Ok(());
        }
        if let Some(named) = users(dir) {
            bail!(
                "{} is busy: {named} (fuser -vm {} says more); end what works there, or use --lazy",
                dir.display(),
                dir.display()
            )
        }
        std::thread::sleep(BUSY_WAIT);
    }
    bail!(
        "{} is busy: a program has a file open or works there (fuser -vm {} lists them), or something is mounted below it; end it, or use --lazy",
        dir.display(),
        dir.display()
    )
}

/// The processes that work on a mount, for a message; `None` if none is found.
fn users(dir: &Path) -> Option<String> {
    let found = Processes::look(dir).ok()?.in_tree(dir);
    let shown =
        found.iter().take(USERS_SHOWN).map(|process| format!("{} ({})", process.command, process.pid));
    let mut named = shown.collect::<Vec<_>>().join(", ");
    if let Some(more) = found.len().checked_sub(USERS_SHOWN).filter(|more| *more > 0) {
        named += &format!(" and {more} more");
    }
    (!named.is_empty()).then_some(named)
}

/// Tries to take the mount out of the tree; true if it is busy.
fn is_busy_at_detach(dir: &Path, lazy: bool) -> Result<bool> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(false),
        Err(Errno::BUSY) => Ok(true),
        // Not root: the set-uid helper knows which mounts are ours.
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir).stdin(Stdio::null());
            let out = command.output().context("fusermount3 cannot be run; install the package fuse3")?;
            if out.status.success() {
                return Ok(false);
            }
            let message = String::from_utf8_lossy(&out.stderr);
            if message.contains("busy") { Ok(true) } else { Err(anyhow!("{}", message.trim())) }
        }
        Err(e) => Err(anyhow!(e).context(format!("{} cannot be unmounted", dir.display()))),
    }
}

/// Waits for the end of a server that was killed, which mostly ends with its connection.
fn wait_for_killed(mount: &MountEntry, process: i32) -> Result<()> {
    for _ in 0..KILLED_LOOKS {
        if !dying::is_waiting(process) {
            return Ok(());
        }
        std::thread::sleep(KILLED_WAIT);
    }
    ui::complain!(
        "{}: unmounted, but its server (process {process}), which was killed, still waits in the kernel; {} stays in use until that ends",
        mount.dir.display(),
        mount.source.display()
    );
    Ok(())
}

/// Waits until the lock of the image is free, which the server keeps to its last write.
fn wait_for_release(mount: &MountEntry) -> Result<Waited> {
    loop {
        let options = FileOptions { direct: false, ..FileOptions::new(OpenMode::ReadOnly) };
        match FileDevice::open_with(&mount.source, &options.wait(LOOK_ELSEWHERE)) {
            Ok(_) => return Ok(Waited::Gone),
            Err(e) if e.kind == ErrorKind::Busy => {
                // Mounted again by another process, so released in between; or mounted twice.
                if mounts::of(&mount.source)?.is_some() {
                    return Ok(Waited::Gone);
                }
                if let Some((pid, name)) = mount.elsewhere()? {
                    return Ok(Waited::Elsewhere(pid, name));
                }
            }
            // The image is gone or not ours to open: there is nothing to wait for that we could
            // see.
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                return Ok(Waited::Gone);
            }
            Err(e) => return Err(e.into()),
        }
    }
}
