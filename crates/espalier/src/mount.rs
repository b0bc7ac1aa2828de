//! `espalier mount`: checks what can be checked, forks the server, and returns when the mount
//! answers.
//!
//! The server is a fork made before any thread exists. It reports once: that the mount is usable,
//! or why it could not be made.

mod options;
mod server;

use crate::args;
use crate::image;
use crate::mounts;
use crate::problem::{Exit, Shown};
use crate::ui::{self, say};
use anyhow::{Context, Result, anyhow, bail, ensure};
use espalier_fuse::daemon::{self, Forked};
use options::Settings;
use std::path::{Path, PathBuf};

/// What to mount, where, and how. Paths are absolute and without links.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    source: PathBuf,
    dir: PathBuf,
    settings: Settings,
}

/// Runs the command; in the foreground it returns when the mount has ended.
pub(crate) fn run(args: &args::Mount, verbose: u8) -> Result<Exit> {
    let settings = Settings::new(&args.options, args.cache)?;
    let plan = check(&args.source, &args.dir, settings)?;
    if args.foreground {
        ui::log_to_stderr(verbose);
        server::serve(&plan, || {
            say!("{} is mounted at {}", plan.source.display(), plan.dir.display());
            Ok(())
        })?;
        return Ok(Exit::Success);
    }
    match daemon::fork().context("the server cannot be started")? {
        Forked::Parent(child) => {
            child.wait().map_err(|said| match said.as_str() {
                "" => anyhow!("the server died while it was starting; the system log may say why"),
                said => anyhow!("{said}"),
            })?;
            // The last proof: the mount answers.
            let answer = plan.dir.metadata();
            answer.with_context(|| format!("{} is mounted but does not answer", plan.dir.display()))?;
            Ok(Exit::Success)
        }
        Forked::Daemon(report) => {
            ui::log_to_syslog(verbose);
            let mut report = Some(report);
            let served = server::serve(&plan, || report.take().map_or(Ok(()), daemon::Report::ready));
            let Err(error) = served else { return Ok(Exit::Success) };
            match report {
                Some(report) => report.failed(&Shown(&error).to_string()),
                None => tracing::error!("{}: {}", plan.source.display(), Shown(&error)),
            }
            // Said already, where somebody listens.
            std::process::exit(i32::from(Exit::Failure.code()));
        }
    }
}

/// Refuses early, with clear words, what would fail later with others.
fn check(source: &Path, dir: &Path, settings: Settings) -> Result<Plan> {
    let source = image::resolve(source)?;
    let dir = resolve_mount_point(dir)?;
    let metadata = dir.metadata().with_context(|| format!("{} cannot be read", dir.display()))?;
    ensure!(
        metadata.is_dir(),
        "{} is no directory; a file system is mounted on an empty directory",
        dir.display()
    );
    if let Some(at) = image::mounted(&source) {
        bail!("{} is mounted already, at {}; a second mount would damage it", source.display(), at.display());
    }
    Ok(Plan { source, dir, settings })
}

fn resolve_mount_point(dir: &Path) -> Result<PathBuf> {
    let shown = dir.display();
    ensure!(
        !mounts::is_dead(dir),
        "{shown} is a mount whose server has died; unmount it first (espalier umount {shown})"
    );
    dir.canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            anyhow!("{shown}: there is no such directory; make it first (mkdir {shown})")
        }
        _ => anyhow!(e).context(format!("{shown} cannot be used")),
    })
}
