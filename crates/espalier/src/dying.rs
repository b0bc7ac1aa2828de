//! Mounts whose server was killed and cannot end: one of its threads waits in the kernel, for a
//! device, or for a lock that a caller of the mount holds. Until that ends the connection stays,
//! and all callers wait for answers. Ending the connection lets them go, and mostly the thread too.

use crate::lock_holder;
use crate::mounts::MountEntry;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the kernel shows connections, if that is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// What leads to a connection.
const DEVICE: &str = "/dev/fuse";
/// In the set of pending signals.
const KILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// How long a process that was killed may take to end by itself.
const END_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait before looking again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Ends the connection of a mount if its server was killed and has not ended. Returns the number of
/// the server's process then. Where the kernel shows no connections, a server that is just ending
/// gets some time.
///
/// # Errors
/// If the kernel does not show the connection, or the caller may not end it.
pub(crate) fn abort(mount: &MountEntry) -> Result<Option<i32>> {
    let (connection, dir) = (mount.connection(), mount.dir.display());
    let abort = format!("{CONNECTIONS}/{connection}/abort");
    let begun = Instant::now();
    let process = loop {
        let Some(process) = killed_server(mount) else { return Ok(None) };
        if Path::new(&abort).exists() {
            break process;
        }
        if begun.elapsed() > END_LIMIT {
            bail!(
                "{dir}: its server (process {process}) was killed and waits in the kernel; as root: \
                 mount -t fusectl none {CONNECTIONS}; echo 1 > {abort}"
            );
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    std::fs::write(&abort, "1").with_context(|| {
        format!(
            "{dir}: its server (process {process}) was killed, and its connection ({abort}) cannot be ended"
        )
    })?;
    Ok(Some(process))
}

/// The process that serves a mount, if it was killed and has not ended.
fn killed_server(mount: &MountEntry) -> Option<i32> {
    let processes = Path::new("/proc").read_dir().ok()?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(|&process| is_killed(process)).find(|&process| serves(process, mount))
}

/// True if threads of a process are left.
pub(crate) fn is_waiting(process: i32) -> bool {
    let threads = Path::new("/proc").join(process.to_string()).join("task").read_dir();
    // What has ended, and was not asked for yet, has one that has no files.
    threads
        .into_iter()
        .flatten()
        .flatten()
        .any(|thread| thread.path().join("fd").read_dir().is_ok_and(|mut open| open.next().is_some()))
}

/// True if a process is to end: what is left of it waits for something.
fn is_killed(process: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut fields = status.lines().filter_map(|line| line.split_once(":\t"));
    fields.any(|(name, value)| match name {
        "State" => value.starts_with(['Z', 'X']),
        "SigPnd" | "ShdPnd" => u64::from_str_radix(value, 16).is_ok_and(|set| set & KILL_BIT != 0),
        _ => false,
    })
}

/// True if a thread of the process has the connection of a mount open.
fn serves(process: i32, mount: &MountEntry) -> bool {
    let wanted = format!("fuse_connection:\t{}", mount.connection());
    let paths = |dir: PathBuf| dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    paths(format!("/proc/{process}/task").into()).any(|thread| {
        paths(thread.join("fd")).any(|open| {
            if open.read_link().ok().as_deref() != Some(Path::new(DEVICE)) {
                return false;
            }
            let name = open.file_name().unwrap_or_default();
            let told = std::fs::read_to_string(thread.join("fdinfo").join(name)).unwrap_or_default();
            match told.lines().find(|line| line.starts_with("fuse_connection:")) {
                Some(line) => line == wanted,
                // Older kernels do not tell.
                None => lock_holder::of(&mount.source).is_some_and(|holder| holder.process() == process),
            }
        })
    })
}
