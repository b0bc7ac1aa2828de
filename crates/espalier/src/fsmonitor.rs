//! `espalier fsmonitor`: git's `core.fsmonitor` hook.

use crate::args::FsMonitor;
use crate::ui::print_bytes;
use anyhow::{Result, bail};
use espalier_workspace::changes_since;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The version of git's protocol that is spoken.
const PROTOCOL: u32 = 2;

/// Runs the command.
pub(crate) fn run(args: &FsMonitor) -> Result<()> {
    if args.protocol != PROTOCOL {
        bail!(
            "git asks in version {} of the protocol: git config core.fsmonitorHookVersion {PROTOCOL}",
            args.protocol
        );
    }
    let top = Path::new(".");
    let mut changes = changes_since(top, args.token.as_bytes())?;
    changes.add_mounts_below(top)?;
    Ok(print_bytes(&changes.for_git())?)
}
