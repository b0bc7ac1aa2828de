//! `espalier mount`: checks what can be checked, forks the server, and returns when the mount
//! answers.
//!
//! The server is a fork made before any thread exists. It reports once: that the mount is usable,
//! or why it could not be made.

mod channel;
mod clients;
mod existing;
mod fill;
mod follower;
mod give;
mod io_uring;
mod limits;
mod opening;
mod options;
pub(crate) mod plan;
mod server;
mod service;
mod take;

pub(crate) use fill::answer as fill;

use crate::args;
use crate::backing;
use crate::config::MountRules;
use crate::dying;
use crate::image;
use crate::logging::{self, Sink};
use crate::mounts;
use crate::problem::{Exit, Shown};
use crate::ui::{complain, say};
use crate::umount;
use anyhow::{Context, Result, anyhow, bail, ensure};
use espalier_fs::FileSystem;
use espalier_fuse::daemon::{self, Forked};
use espalier_fuse::transport::Kind;
use options::Settings;
use plan::Plan;
use server::Starter;
use service::Service;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs the command; in the foreground it returns when the mount has ended.
pub(crate) fn run(args: &args::Mount, rules: &MountRules, verbose: u8) -> Result<Exit> {
    if args.replace {
        return replace(args, verbose);
    }
    let mut settings = Settings::by_rules(&args.options, args.cache, rules)?;
    if settings.remount {
        existing::remount(args, &settings)?;
        return Ok(Exit::Success);
    }
    settings.log_more(verbose);
    if settings.no_fail && !backing::is_url(&args.source) && !args.source.exists() {
        complain!("espalier: {}: there is no such image; nothing is mounted (nofail)", args.source.display());
        return Ok(Exit::Success);
    }
    if !backing::is_url(&args.source) {
        settings.object.refuse_for_image(&args.source)?;
    }
    if settings.object.follows() {
        ensure!(
            settings.mount.read_only && settings.snapshot.is_none() && !settings.mount.handles,
            "follow is for mounts with ro, of no snapshot, and without handles and nfs_export"
        );
    }
    // Any number of readers may look at an object store, beside its writer too.
    let is_reader = backing::is_url(&args.source) && settings.mount.read_only;
    let plan = check(args, settings)?;
    if let Some(at) = image::mounted(&plan.source).filter(|_| !is_reader) {
        if args.from_mount && rustix::process::geteuid().is_root() {
            existing::bind(&plan, &at)?;
            return Ok(Exit::Success);
        }
        bail!(
            "{} is mounted already, at {}; a second server would damage it",
            plan.source.display(),
            at.display()
        );
    }
    start(&plan, args.foreground, server::serve)
}

/// The transport that the configuration files choose for mounts, and the lines with options in
/// them; `None` if they choose none.
///
/// # Errors
/// If they have an option that is none.
pub(crate) fn transport_by(rules: &MountRules) -> Result<Option<(Kind, String)>> {
    let settings = Settings::by_rules(&[], None, rules)?;
    let lines = [&rules.system, &rules.user, &rules.enforce].into_iter().flatten();
    let chosen = lines.filter(|rule| rule.text.contains("transport="));
    let places: Vec<&str> = chosen.map(|rule| rule.place.as_str()).collect();
    Ok(settings.mount.transport.map(|kind| (kind, places.join(", "))))
}

/// Goes on with a mount in place of its server.
fn replace(args: &args::Mount, verbose: u8) -> Result<Exit> {
    ensure!(
        args.dir.is_none() && args.options.is_empty() && args.cache.is_none(),
        "--replace takes the directory of a mount, and no options: those of its server stay"
    );
    let mut plan = take::plan(&args.source)?;
    plan.settings.log_more(verbose);
    start(&plan, args.foreground, server::take_over)
}

/// Runs the server in the foreground; or in the background, and returns when the mount answers.
fn start(plan: &Plan, foreground: bool, serve: fn(&Plan, &mut dyn Starter) -> Result<()>) -> Result<Exit> {
    limits::raise_open_files();
    let log_level = plan.settings.log_level.unwrap_or_default();
    if foreground {
        logging::to_stderr(log_level, Some(&plan.dir));
        serve(plan, &mut Foreground { plan, service: Service::default() })?;
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
            if plan.settings.mount.transport.is_none() {
                io_uring::hint_once();
            }
            Ok(Exit::Success)
        }
        Forked::Daemon(report) => {
            Service::leave();
            let sink = plan.settings.log_file.clone().map_or_else(Sink::of_machine, Sink::File);
            if let Err(error) = logging::to_sink(&sink, log_level, Some(&plan.dir)) {
                // The report to the caller must not fail for want of a log.
                complain!("espalier mount: the server cannot log to {sink:?}: {error}");
            }
            let mut background = Background { plan, report: Some(report), service: Service::default() };
            let Err(error) = serve(plan, &mut background) else { return Ok(Exit::Success) };
            match background.report {
                Some(report) => report.failed(&Shown(&error).to_string()),
                None => {
                    let source = plan.source.display();
                    tracing::error!(%source, error = %Shown(&error), "the server ends, and its mount with it");
                }
            }
            // The parent, or the log, has the message already.
            std::process::exit(i32::from(Exit::Failure.code()));
        }
    }
}

/// A server in the foreground is its own starter.
struct Foreground<'a> {
    plan: &'a Plan,
    service: Service,
}

impl Starter for Foreground<'_> {
    fn waits(&self) -> bool {
        true
    }

    fn serves(&mut self, fs: &Arc<FileSystem>) -> std::io::Result<()> {
        self.service.ready(&self.plan.dir, fs)
    }

    fn ready(&mut self) -> std::io::Result<()> {
        say!("{} is mounted at {}", self.plan.source.display(), self.plan.dir.display());
        Ok(())
    }

    fn ending(&mut self) {
        self.service.ending();
    }
}

/// A daemon reports once to the process that forked it.
struct Background<'a> {
    plan: &'a Plan,
    report: Option<daemon::Report>,
    /// A daemon is one if it goes on in place of one.
    service: Service,
}

impl Starter for Background<'_> {
    fn waits(&self) -> bool {
        self.report.as_ref().is_some_and(daemon::Report::is_awaited)
    }

    fn serves(&mut self, fs: &Arc<FileSystem>) -> std::io::Result<()> {
        self.service.ready(&self.plan.dir, fs)
    }

    fn ready(&mut self) -> std::io::Result<()> {
        self.report.take().map_or(Ok(()), daemon::Report::ready)
    }

    fn ending(&mut self) {
        self.service.ending();
    }
}

/// Refuses early, with clear words, what would fail later with others.
fn check(args: &args::Mount, settings: Settings) -> Result<Plan> {
    let source = image::resolve(&args.source)?;
    let dir = resolve_mount_point(args.mount_point()?)?;
    let metadata = dir.metadata().with_context(|| format!("{} cannot be read", dir.display()))?;
    ensure!(
        metadata.is_dir(),
        "{} is no directory; a file system is mounted on an empty directory",
        dir.display()
    );
    Ok(Plan { source, dir, take_over: args.take_over, settings })
}

/// The absolute path of a mount point, without links. Dead mounts there, which a server left that
/// was killed, are taken away first.
fn resolve_mount_point(dir: &Path) -> Result<PathBuf> {
    let shown = dir.display();
    if let Ok(path) = umount::absolute(dir)
        && let Some(mount) = mounts::at(&path)?.filter(|mount| mount.is_espalier())
    {
        dying::abort(&mount)?;
    }
    while mounts::is_dead(dir) {
        let dead = umount::absolute(dir)?;
        ensure!(
            mounts::at(&dead)?.is_some_and(|mount| mount.is_espalier()),
            "{shown} lies in a mount whose server has died; unmount that first"
        );
        umount::detach(&dead, true).with_context(|| format!("the server of {shown} has died"))?;
        complain!("espalier: the server that had {shown} mounted has died; its mount was taken away");
    }
    dir.canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            anyhow!("{shown}: there is no such directory; make it first (mkdir {shown})")
        }
        _ => anyhow!(e).context(format!("{shown} cannot be used")),
    })
}
