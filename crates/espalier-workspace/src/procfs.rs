//! What proc(5) tells: whether a process runs, and where something is mounted. Where it is not
//! mounted, as in a container or a root directory without it, nothing is known: that is an error,
//! and never an answer, because commands remove what no process uses any more.

use crate::error::{AtPath, Error, Result};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where it is mounted.
pub(crate) const PROC: &str = "/proc";

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// It was started so many ticks after the boot.
    Runs(u64),
    /// It has ended, or there was none.
    Ended,
    /// It runs, and proc(5) does not show it to the caller (`hidepid`).
    Hidden,
}

/// Refuses if proc(5) is not mounted at `proc`, or tells nothing of the calling process.
///
/// # Errors
/// [`Error::NoProc`].
pub(crate) fn check_mounted(proc: &Path) -> Result<()> {
    match proc.join("self/stat").is_file() {
        true => Ok(()),
        false => Err(Error::NoProc),
    }
}

/// Whether a process runs.
///
/// # Errors
/// [`Error::NoProc`].
pub(crate) fn life_of(pid: i32) -> Result<Life> {
    life_in(Path::new(PROC), pid)
}

/// The same with the place of proc(5).
fn life_in(proc: &Path, pid: i32) -> Result<Life> {
    let Ok(text) = std::fs::read_to_string(proc.join(pid.to_string()).join("stat")) else {
        check_mounted(proc)?;
        let asked = Pid::from_raw(pid).map(test_kill_process);
        return Ok(match asked {
            Some(Ok(()) | Err(Errno::PERM)) => Life::Hidden,
            _ => Life::Ended,
        });
    };
    Ok(start_in(&text).map_or(Life::Ended, Life::Runs))
}

/// The time of start in what proc(5) says of a process; `None` if that has ended.
fn start_in(text: &str) -> Option<u64> {
    // The name of the program, in parentheses, may contain anything.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}

/// Where the caller sees something mounted.
///
/// # Errors
/// [`Error::NoProc`].
pub(crate) fn mount_points() -> Result<Vec<PathBuf>> {
    mount_points_in(Path::new(PROC))
}

/// Refuses if something is mounted on a directory, or below it: a rename would take it along, and a
/// removal would come to what is mounted.
///
/// # Errors
/// [`Error::MountPoint`]; [`Error::NoProc`]; of the system.
pub(crate) fn check_no_mounts(dir: &Path) -> Result<()> {
    let found = match (dir.parent(), dir.file_name()) {
        (Some(above), Some(name)) => above.canonicalize().at(above)?.join(name),
        _ => dir.to_owned(),
    };
    match mount_points()?.into_iter().find(|at| at.starts_with(&found)) {
        Some(at) => Err(Error::MountPoint { target: dir.to_owned(), at }),
        None => Ok(()),
    }
}

/// The same with the place of proc(5).
fn mount_points_in(proc: &Path) -> Result<Vec<PathBuf>> {
    let table = std::fs::read(proc.join("self/mountinfo")).map_err(|_| Error::NoProc)?;
    let place = |line: &[u8]| Some(unescape_mount_path(line.split(|byte| *byte == b' ').nth(4)?));
    Ok(table.split(|byte| *byte == b'\n').filter_map(place).collect())
}

/// A path in the kernel's table of mounts, where blanks, tabs, newlines and backslashes stand as
/// three octal digits.
pub fn unescape_mount_path(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
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
    Path::new(OsStr::from_bytes(&out)).to_owned()
}

#[cfg(test)]
mod tests;
