//! What people do with trees of sources: unpack, search, compare, copy, keep in git.

use crate::system;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};

/// Unpacks the archive into the new directory `tree`.
pub(crate) fn unpack(tarball: &Path, tree: &Path) -> Result<()> {
    std::fs::create_dir(tree)?;
    system::output(Command::new("tar").arg("-xf").arg(tarball).arg("-C").arg(tree)).map(drop)
}

/// Runs a program in `dir` and reads what it prints (grep would stop early at /dev/null).
pub(crate) fn drain(program: &str, arguments: &[&str], dir: &Path) -> Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{program} cannot be run"))?;
    let mut out = child.stdout.take().context("no pipe")?;
    let printed = std::io::copy(&mut out, &mut std::io::sink())?;
    let status = child.wait()?;
    ensure!(status.success() && printed > 0, "{program} failed ({status}) or found nothing");
    Ok(())
}

/// `cp -a --reflink=auto` of the tree.
pub(super) fn copy(tree: &Path, to: &Path) -> Result<()> {
    system::output(Command::new("cp").args(["-a", "--reflink=auto"]).arg(tree).arg(to)).map(drop)
}

/// `rsync -a` of the tree into a place that is not there yet.
pub(super) fn rsync(tree: &Path, to: &Path) -> Result<()> {
    // A slash at the end: what is inside.
    system::output(Command::new("rsync").arg("-a").arg(tree.join("")).arg(to)).map(drop)
}

/// Makes the tree a repository with one commit of everything, and one file that git does not know.
pub(super) fn commit(tree: &Path) -> Result<()> {
    system::output(git(tree).args(["init", "--quiet"]))?;
    commit_all(tree)?;
    std::fs::write(tree.join("unknown to git"), "for git status to tell\n").map_err(Into::into)
}

/// Commits everything as it is.
pub(crate) fn commit_all(tree: &Path) -> Result<()> {
    system::output(git(tree).args(["add", "--all", "--force"]))?;
    let author = ["-c", "user.name=Bench", "-c", "user.email=bench@example.org"];
    system::output(git(tree).args(author).args(["commit", "--quiet", "--message", "All"])).map(drop)
}

/// `git status`, which has one file to tell of.
pub(super) fn status(tree: &Path) -> Result<()> {
    let told = system::output(git(tree).args(["status", "--porcelain"]))?;
    ensure!(told.lines().count() == 1, "git status tells of other changes than the one:\n{told}");
    Ok(())
}

/// `git clone` of the repository.
pub(super) fn clone(tree: &Path, to: &Path) -> Result<()> {
    system::output(git(tree).args(["clone", "--quiet"]).arg(tree).arg(to)).map(drop)
}

/// git in a directory, whatever is configured elsewhere, and without work in the background.
pub(crate) fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"]).arg("-C").arg(dir);
    command
}
