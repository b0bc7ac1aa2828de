//! Programs that the demonstration runs.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Runs a program to its end; what it printed is part of the error if it fails.
pub(super) fn run_quietly(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("{name} cannot be run"))?;
    if !out.status.success() {
        let said = [out.stdout, out.stderr].concat();
        bail!("{name} failed ({}): {}", out.status, String::from_utf8_lossy(&said).trim());
    }
    Ok(())
}
