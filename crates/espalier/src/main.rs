//! The command line of Espalier: one program, also called as mkfs.espalier, mount.fuse.espalier,
//! umount.fuse.espalier and fsck.espalier by mkfs(8), mount(8), umount(8) and fsck(8).

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod archive;
mod args;
mod backing;
mod bench;
mod cat;
mod change;
mod clone;
mod completion;
mod config;
mod control;
mod copy;
mod cp;
mod demo;
mod diff;
mod doctor;
mod dump;
mod dying;
mod export;
mod files;
mod fsck;
mod fsmonitor;
mod image;
mod import;
mod info;
mod label;
mod lock_holder;
mod logging;
mod ls;
mod manual;
mod memory;
mod mkfs;
mod mount;
mod mounts;
mod objects;
mod place;
mod problem;
mod quota;
mod remove;
mod repair;
mod scheduling;
mod scrub;
mod signature;
mod snapshot;
mod space;
mod systemd_unit;
mod ui;
mod umount;
mod units;
mod watch;
mod watchers;
mod workspace;

use args::{Cli, Command};
use clap::{CommandFactory, FromArgMatches};
use config::Config;
use logging::LogLevel;
use problem::{Exit, Shown};
use std::ffi::OsString;
use std::process::ExitCode;
use ui::complain;

/// Millions of short-lived keys and messages of every size, made by one thread and freed by
/// another: the C library's allocator took a sixth of the server's time for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    completion::answer();
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = mount::fill(&words) {
        return code;
    }
    let words = match args::translate(words) {
        Ok(Some(words)) => words,
        Ok(None) => return ExitCode::SUCCESS,
        Err(message) => {
            complain!("espalier: {message}");
            return ExitCode::from(Exit::Usage.code());
        }
    };
    let is_fsck = words.get(1).is_some_and(|word| word == "fsck");
    let (cli, config) = match parse(&words) {
        Ok(Ok(parsed)) => parsed,
        Ok(Err(error)) => return usage(&error, is_fsck),
        Err(error) => {
            complain!("espalier: {}", Shown(&error));
            return ExitCode::from(if is_fsck { Exit::NotChecked } else { Exit::Usage }.code());
        }
    };
    if !cli.command.is_brief() {
        memory::allow_huge_pages();
    }
    // The server of a mount sets logging up after it has forked.
    if !matches!(cli.command, Command::Mount(_)) {
        logging::to_stderr(LogLevel::of_verbose(cli.verbose), None);
    }
    let (name, outcome) = run(&cli, &config);
    let outcome = outcome.and_then(|exit| match ui::not_printed() {
        Some(error) => Err(anyhow::Error::new(error).context("standard output cannot be written")),
        None => Ok(exit),
    });
    let exit = outcome.unwrap_or_else(|error| {
        complain!("espalier {name}: {}", Shown(&error));
        if name == "fsck" { Exit::NotChecked } else { Exit::Failure }
    });
    ExitCode::from(exit.code())
}

/// The command line, with the defaults of the configuration files.
///
/// # Errors
/// An error in a file; within, wrong usage.
fn parse(words: &[OsString]) -> anyhow::Result<clap::error::Result<(Cli, Config)>> {
    let (config, matches) = Config::for_words(Cli::command, words)?;
    Ok(matches.and_then(|matches| Cli::from_arg_matches(&matches)).map(|cli| (cli, config)))
}

/// Prints help to stdout and complaints to stderr.
fn usage(error: &clap::Error, is_fsck: bool) -> ExitCode {
    // Nothing is left to say when the terminal is gone.
    let _ = error.print();
    let exit = match (error.use_stderr(), is_fsck) {
        (false, _) => Exit::Success,
        (true, true) => Exit::NotChecked,
        (true, false) => Exit::Usage,
    };
    ExitCode::from(exit.code())
}

fn run(cli: &Cli, config: &Config) -> (&'static str, anyhow::Result<Exit>) {
    let done = |()| Exit::Success;
    match &cli.command {
        Command::Mkfs(args) => ("mkfs", mkfs::run(args).map(done)),
        Command::Mount(args) => ("mount", mount::run(args, &config.mount, cli.verbose)),
        Command::Umount(args) => ("umount", umount::run(args).map(done)),
        Command::Fsck(args) if args.repair => ("fsck", repair::run(args)),
        Command::Fsck(args) => ("fsck", fsck::run(args)),
        Command::Salvage(args) => ("salvage", repair::salvage(args).map(done)),
        Command::Trim(args) => ("trim", space::trim(args).map(done)),
        Command::Resize(args) => ("resize", space::resize(args).map(done)),
        Command::Label(args) => ("label", label::run(args).map(done)),
        Command::Scrub(args) => ("scrub", scrub::run(args)),
        Command::Copy(args) => ("copy", copy::run(args).map(done)),
        Command::Objects(args) => ("objects", objects::run(args)),
        Command::Info(args) => ("info", info::run(args).map(done)),
        Command::Doctor(args) => ("doctor", doctor::run(args)),
        Command::Stat(args) => ("stat", watch::stat(args).map(done)),
        Command::Top(args) => ("top", watch::top(args).map(done)),
        Command::Trace(args) => ("trace", watch::trace(args).map(done)),
        Command::Dump(args) => ("dump", dump::run(args).map(done)),
        Command::Import(args) => ("import", import::run(args)),
        Command::Export(args) => ("export", export::run(args)),
        Command::Ls(args) => ("ls", ls::ls(args)),
        Command::Find(args) => ("find", ls::find(args)),
        Command::Cat(args) => ("cat", cat::run(args)),
        Command::Cp(args) => ("cp", cp::run(args)),
        Command::Clone(args) => ("clone", clone::run(args).map(done)),
        Command::Rm(args) => ("rm", remove::run(args)),
        Command::Chown(args) => ("chown", change::chown(args).map(done)),
        Command::Chmod(args) => ("chmod", change::chmod(args).map(done)),
        Command::Snapshot(args) => ("snapshot", snapshot::run(args).map(done)),
        Command::Workspace(args) => ("workspace", workspace::run(args)),
        Command::FsMonitor(args) => ("fsmonitor", fsmonitor::run(args).map(done)),
        Command::Diff(args) => ("diff", diff::run(args).map(done)),
        Command::Du(args) => ("du", diff::du(args).map(done)),
        Command::Quota(args) => ("quota", quota::run(args).map(done)),
        Command::Bench(args) if args.suite.is_some() => ("bench suite", bench::run(args).map(done)),
        Command::Bench(args) => ("bench", bench::run(args).map(done)),
        Command::Demo(args) => ("demo", demo::run(args).map(done)),
        Command::Unit(args) => ("unit", systemd_unit::run(args).map(done)),
        Command::Man(args) => ("man", manual::run(args).map(done)),
    }
}
