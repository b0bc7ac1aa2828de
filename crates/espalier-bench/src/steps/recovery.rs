//! How long a mount takes after the server was killed in the middle of its work.

use super::Setting;
use crate::contender::Contender;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

/// Kills the server in the middle of an unpack; returns the seconds the next mount took. `None` for
/// a contender without a server.
pub(crate) fn recovery(contender: &mut Contender, setting: &Setting) -> Result<Option<f64>> {
    contender.mount()?;
    if contender.daemon()?.is_none() {
        contender.unmount()?;
        return Ok(None);
    }
    let tree = contender.dir.join("killed");
    std::fs::create_dir(&tree)?;
    let mut tar = Command::new("tar")
        .args(["-xf", "-", "-C"])
        .arg(&tree)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut feed = tar.stdin.take().context("no pipe")?;
    let half = std::fs::metadata(&setting.tarball)?.len() / 2;
    std::io::copy(&mut File::open(&setting.tarball)?.take(half), &mut feed)?;
    contender.kill()?;
    drop(feed);
    let _ = tar.wait();
    let seconds = contender.mount()?;
    let entries = std::fs::read_dir(&contender.dir)?.count();
    ensure!(entries > 0, "nothing is left after recovery");
    contender.unmount()?;
    Ok(Some(seconds))
}
