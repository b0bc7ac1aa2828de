//! What a measurement works with: a mounted file system with the original, and the way in which a
//! user makes copies of it.

use super::column::Column;
use super::figures::Figures;
use super::tree::{BASE, CACHE};
use crate::contender::Contender;
use crate::options::User;
use crate::system;
use crate::system::make_durable;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The ordinary user.
const USER_ID: u32 = 4321;
/// The space in use counts as settled when it did not change for so long, divided by the scale.
const CALM: Duration = Duration::from_millis(1500);
const CALM_LIMIT: Duration = Duration::from_secs(120);

/// How copies of the original are made and removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// `espalier ws create`, `espalier ws discard`
    Workspace,
    /// `btrfs subvolume snapshot`, `btrfs subvolume delete`
    Snapshot,
    /// `cp -a --reflink=always`, `rm -rf`
    Reflink,
    /// `cp -a`, `rm -rf`
    Copy,
}

impl Way {
    pub(super) fn of(contender: &Contender) -> Self {
        match contender {
            ours if ours.is_ours() => Self::Workspace,
            btrfs if btrfs.has_subvolumes() => Self::Snapshot,
            xfs if xfs.has_reflinks() => Self::Reflink,
            _ => Self::Copy,
        }
    }

    /// True if a copy is made without a look at every file.
    pub(super) fn is_at_once(self) -> bool {
        matches!(self, Self::Workspace | Self::Snapshot)
    }
}

/// What a measurement works with.
pub(super) struct Bench<'a> {
    pub(super) contender: &'a mut Contender,
    pub(super) way: Way,
    pub(super) column: Column,
    pub(super) scale: usize,
    pub(super) figures: &'a mut Figures,
    /// Files of the original that have one name, relative to it.
    pub(super) files: Vec<PathBuf>,
}

impl Bench<'_> {
    /// The directory of the user in which everything lies.
    pub(super) fn top(&self) -> PathBuf {
        self.contender.dir.join("work")
    }

    /// The original.
    pub(super) fn base(&self) -> PathBuf {
        self.top().join(BASE)
    }

    /// A number of things, divided by the scale; few of what takes seconds.
    pub(super) fn count(&self, full: usize) -> usize {
        let full = (full / self.scale).max(2);
        if self.way.is_at_once() { full } else { full.min(2) }
    }

    /// Tells a figure.
    pub(super) fn tell(&mut self, name: &str, value: f64) {
        self.figures.add(&self.column, name, value);
    }

    /// Shows the median of what was told.
    pub(super) fn show(&self, name: &str) {
        if let Some(median) = self.figures.median(&self.column, name) {
            println!("  {:<24} {name:<28} {median:>12.3}", self.column.title());
        }
    }

    /// A program as the user runs it, in the user's directory.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.top()).stdin(std::process::Stdio::null());
        command.env("HOME", self.top()).env("GIT_CONFIG_NOSYSTEM", "1").env("LC_ALL", "C");
        // Git finds the hook by its name, as where it is installed.
        let own = self.contender.program().and_then(Path::parent).map(Path::as_os_str);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path: Vec<OsString> = own.map(Into::into).into_iter().chain([path]).collect();
        command.env("PATH", path.join(std::ffi::OsStr::new(":")));
        if self.column.user == User::User {
            command.uid(USER_ID).gid(USER_ID);
        }
        command
    }

    /// `espalier` with these arguments.
    pub(super) fn espalier(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("espalier");
        command.args(arguments);
        command
    }

    /// Runs commands one after the other; the result is how many milliseconds they took.
    pub(super) fn time(&self, commands: impl IntoIterator<Item = Command>) -> Result<f64> {
        let started = Instant::now();
        for mut command in commands {
            system::output(&mut command)?;
        }
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }

    /// Runs a command and tells how many milliseconds it took.
    pub(super) fn timed(&mut self, name: &str, command: Command) -> Result<()> {
        let milliseconds = self.time([command])?;
        self.tell(name, milliseconds);
        Ok(())
    }

    /// The command that makes a copy.
    pub(super) fn create(&self, name: &str) -> Command {
        match self.way {
            Way::Workspace => self.espalier(&["ws", "create", name, "--from", BASE]),
            Way::Snapshot => {
                let mut command = self.command("btrfs");
                command.args(["-q", "subvolume", "snapshot", BASE, name]);
                command
            }
            Way::Reflink | Way::Copy => {
                let mut command = self.command("cp");
                let reflink = if self.way == Way::Reflink { "--reflink=always" } else { "--reflink=never" };
                command.args(["-a", reflink, BASE, name]);
                command
            }
        }
    }

    /// The command that removes copies, whatever is in them.
    pub(super) fn discard(&self, names: &[String]) -> Command {
        let mut command = match self.way {
            Way::Workspace => self.espalier(&["ws", "discard", "--force"]),
            Way::Snapshot => {
                let mut command = self.command("btrfs");
                command.args(["-q", "subvolume", "delete"]);
                command
            }
            Way::Reflink | Way::Copy => {
                let mut command = self.command("rm");
                command.arg("-rf");
                command
            }
        };
        command.args(names);
        command
    }

    /// Makes copies called NAME-1 and so on, `count` of them; the result are their names.
    pub(super) fn create_many(&self, name: &str, count: usize) -> Result<Vec<String>> {
        if self.way == Way::Workspace {
            let count = count.to_string();
            self.time([self.espalier(&["ws", "create", name, "--from", BASE, "--count", &count])])?;
        }
        let names: Vec<_> = (1..=count).map(|number| format!("{name}-{number}")).collect();
        if self.way != Way::Workspace {
            self.time(names.iter().map(|name| self.create(name)))?;
        }
        Ok(names)
    }

    /// Removes copies by few commands.
    pub(super) fn discard_many(&self, names: &[String]) -> Result<f64> {
        self.time(names.chunks(500).map(|names| self.discard(names)))
    }

    /// Makes the original: the archive unpacked by the user, and an index of git that is good.
    pub(super) fn unpack(&mut self, archive: &Path) -> Result<()> {
        let top = self.top();
        std::fs::create_dir(&top)?;
        if self.column.user == User::User {
            std::os::unix::fs::chown(&top, Some(USER_ID), Some(USER_ID))?;
        }
        let mut tar = self.command("tar");
        tar.args(["--no-same-owner", "-xf"]).arg(std::path::absolute(archive)?).arg(BASE);
        if self.way == Way::Snapshot {
            // Names of one file cannot lie in two subvolumes.
            let mut command = self.command("btrfs");
            command.args(["-q", "subvolume", "create", BASE]);
            self.time([command])?;
        } else {
            tar.arg(CACHE);
        }
        self.time([tar])?;
        if !self.way.is_at_once() {
            // A copy has new numbers and a new time of change; its index is good without them.
            for (setting, value) in [("core.checkStat", "minimal"), ("core.trustCtime", "false")] {
                self.time([self.git(BASE, &["config", setting, value])])?;
            }
        }
        self.time([self.status(BASE)])?;
        self.settle()?;
        self.files = files_with_one_name(&self.base())?;
        ensure!(self.files.len() >= 100, "the tree has fewer than a hundred files: ask for more --entries");
        Ok(())
    }

    /// Git in a copy.
    pub(super) fn git(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.command("git");
        command.args(["-C", name]).args(arguments);
        command
    }

    /// `git status` in a copy.
    pub(super) fn status(&self, name: &str) -> Command {
        self.git(name, &["status", "--porcelain"])
    }

    /// Makes everything durable, and waits until the space in use does not change any more; the
    /// result is how much that is, in bytes.
    pub(super) fn settle(&self) -> Result<u64> {
        make_durable(&self.contender.dir)?;
        let begun = Instant::now();
        let (mut used, mut since) = (self.contender.used_bytes()?, Instant::now());
        let calm = CALM / u32::try_from(self.scale)?;
        while since.elapsed() < calm && begun.elapsed() < CALM_LIMIT {
            std::thread::sleep(Duration::from_millis(50));
            let now = self.contender.used_bytes()?;
            if now != used {
                (used, since) = (now, Instant::now());
            }
        }
        Ok(used)
    }

    /// Mounts anew with cold caches, and tells how long the mount took. `ws create` has git look at
    /// the original once then: that is told as a figure of its own.
    pub(super) fn remount(&mut self) -> Result<()> {
        let seconds = self.contender.remount_cold()?;
        self.tell("mount_ms", seconds * 1e3);
        Ok(())
    }

    /// The first workspace after a mount, and its removal.
    pub(super) fn first(&mut self) -> Result<()> {
        let command = self.create("first");
        self.timed("create_first_ms", command)?;
        self.discard_many(&["first".into()]).map(drop)
    }
}

/// The regular files below `dir` that have one name, relative to it, in a stable order; without
/// what belongs to git.
fn files_with_one_name(dir: &Path) -> Result<Vec<PathBuf>> {
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(at) = left.pop() {
        for entry in std::fs::read_dir(&at)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && entry.file_name() != ".git" {
                left.push(entry.path());
            } else if kind.is_file() && entry.metadata()?.nlink() == 1 {
                found.push(entry.path().strip_prefix(dir).context("not below")?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}
