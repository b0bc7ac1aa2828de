//! FUSE over io_uring, which stock kernels have and keep switched off.
//!
//! The switch is a parameter of the kernel module `fuse` and counts for connections made later, of
//! all users. A mount by root turns it on, unless it was told to use the classic device. An
//! ordinary user cannot, and is told once what root can do, for the scheduling of servers, too.

use crate::scheduling::{NICE_LIMIT, nice_limit};
use crate::ui::complain;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// The parameter. Kernels before 6.14 do not have it.
const PARAMETER_PATH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Where it is noted that a user was told, below the home directory.
const HINT_MARK_PATH: &str = ".local/state/espalier/told-of-speed";

/// Turns io_uring on where the kernel has it and this process may. Without it the mount uses the
/// classic device, so a failure is only logged.
pub(super) fn enable() {
    if !Path::new(PARAMETER_PATH).exists() {
        // The first process that opens the device has the kernel load the module.
        let _ = fs::File::open("/dev/fuse");
    }
    match enable_at(Path::new(PARAMETER_PATH)) {
        // Of the whole machine: what is logged by default says so.
        Ok(true) => tracing::warn!(
            parameter = PARAMETER_PATH,
            "turned FUSE over io_uring on, for all users (-o transport=classic leaves it alone)"
        ),
        Ok(false) => {}
        Err(error) => tracing::debug!(parameter = PARAMETER_PATH, %error, "FUSE over io_uring stays off"),
    }
}

/// True if the parameter was off and is on now.
fn enable_at(parameter: &Path) -> io::Result<bool> {
    if is_on(parameter)? {
        return Ok(false);
    }
    fs::write(parameter, "Y").map(|()| true)
}

/// True if new connections can use io_uring.
fn is_on(parameter: &Path) -> io::Result<bool> {
    Ok(fs::read_to_string(parameter)?.trim_end() == "Y")
}

/// Tells an ordinary user on a terminal, once, how root makes mounts faster.
pub(super) fn hint_once() {
    // Root has turned io_uring on, and no limit holds for root's servers.
    if rustix::process::geteuid().is_root() {
        return;
    }
    let mut steps = Vec::new();
    if is_on(Path::new(PARAMETER_PATH)).is_ok_and(|on| !on) {
        steps.push(format!("echo Y > {PARAMETER_PATH}"));
    }
    if nice_limit() < NICE_LIMIT {
        steps.push("put the line '* - nice 0' into /etc/security/limits.d/espalier.conf".to_owned());
    }
    if steps.is_empty() || !io::stderr().is_terminal() {
        return;
    }
    let Some(told) = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(HINT_MARK_PATH)) else {
        return;
    };
    if note_first(&told) {
        complain!(
            "espalier: root can make mounts of users faster: {} (espalier doctor says what else does)",
            steps.join("; ")
        );
    }
}

/// True if the note at `path` was not there before and is now.
fn note_first(path: &Path) -> bool {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::File::create_new(path)).is_ok()
}

#[cfg(test)]
mod tests;
