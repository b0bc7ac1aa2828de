//! The caller of a request: the thread that made the system call, and its rights.
//!
//! Since idmapped mounts are allowed the kernel tells the caller's user and group only with
//! requests that make an inode, where they are those of the new file. For all other requests they
//! are read from the process table. The thread waits for the answer meanwhile, so it neither ends
//! nor changes its ids. A thread that the server cannot see, as one outside of its container, has
//! no rights.

use crate::protocol::Header;
use espalier_fs::Caller;

/// The id of a user or group that is not known. Nothing belongs to it.
const UNKNOWN_ID: u32 = u32::MAX;

/// The user by whose rights the request of `header` is to be judged.
pub(super) fn user(header: &Header) -> u32 {
    match header.uid {
        UNKNOWN_ID => id_in(&status(header.pid), "Uid:"),
        known => known,
    }
}

/// The number of the capability to change a file without clearing its set-id bits (`CAP_FSETID`).
const FSETID: u32 = 4;

/// True if the caller may change a file without clearing its set-id bits: root with this
/// capability, which a process may have given up.
pub(super) fn keeps_set_id(header: &Header) -> bool {
    let status = status(header.pid);
    let user = if header.uid == UNKNOWN_ID { id_in(&status, "Uid:") } else { header.uid };
    user == 0 && has_capability(&status, FSETID)
}

fn has_capability(status: &str, number: u32) -> bool {
    let effective = u64::from_str_radix(field(status, "CapEff:").trim(), 16);
    effective.is_ok_and(|set| set >> number & 1 != 0)
}

/// The caller of a request that makes no inode.
pub(super) fn of(header: &Header) -> Caller {
    let (mut uid, mut gid) = (header.uid, header.gid);
    if uid == UNKNOWN_ID || gid == UNKNOWN_ID {
        let status = status(header.pid);
        (uid, gid) = (id_in(&status, "Uid:"), id_in(&status, "Gid:"));
    }
    Caller { uid, gid, pid: header.pid, umask: 0 }
}

/// The same for a request of which the kernel has checked that the caller may make it, by the ids
/// of an idmapped mount if it is one: root, where the kernel allows such mounts. Older kernels
/// check less.
pub(super) fn of_checked(header: &Header) -> Caller {
    if header.uid == UNKNOWN_ID { Caller { pid: header.pid, ..Caller::default() } } else { of(header) }
}

/// The supplementary groups of the caller.
pub(super) fn groups(pid: u32) -> Vec<u32> {
    let status = status(pid);
    let line = field(&status, "Groups:");
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// proc(5) `/proc/PID/status` of a thread; empty if there is none.
fn status(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default()
}

/// The last of the four ids of a line: the one that the kernel checks access to files with.
fn id_in(status: &str, name: &str) -> u32 {
    field(status, name).split_whitespace().nth(3).and_then(|id| id.parse().ok()).unwrap_or(UNKNOWN_ID)
}

#[cfg(test)]
mod tests;
