//! `espalier bench`: compares file systems, and shows figures and pictures of it.

use crate::args::{Bench, BenchSuite, SuiteOptions};
use crate::ui::{complain, say};
use anyhow::{Context, Result, ensure};
use espalier_bench::compare::{self, Amount, Plan};
use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;

/// Runs the command.
pub(crate) fn run(args: &Bench) -> Result<()> {
    if let Some(BenchSuite::Suite(options)) = &args.suite {
        return run_suite(options);
    }
    let contenders = match args.contenders.is_empty() {
        true => compare::contenders_of_machine(),
        false => args.contenders.clone(),
    };
    // Wherever the name of the device comes from.
    ensure!(args.device.is_none() || args.force, "all that is on the device would be lost; --force goes on");
    let plan = Plan {
        dirs: args.dirs.clone(),
        contenders,
        device: args.device.clone(),
        scratch: args.scratch.clone(),
        espalier: std::env::current_exe().context("this program cannot be found")?,
        rounds: args.rounds.unwrap_or(if args.full { 20 } else { 1 }),
        amount: if args.full { Amount::FULL } else { Amount::MINUTE },
    };
    if let Some(page) = &args.html {
        // Not after an hour.
        check_page(page).with_context(|| format!("{} cannot be written", page.display()))?;
    }
    let results = compare::run(&plan, &mut |done| complain!("{done}"))?;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&results.json())?);
    } else {
        let colours = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        say!("{}", results.text(colours).trim_end());
    }
    if let Some(page) = &args.html {
        compare::write_html(&results, page)?;
    }
    Ok(())
}

#[cfg(feature = "suites")]
fn run_suite(options: &SuiteOptions) -> Result<()> {
    espalier_bench::suites::run(options)
}

#[cfg(not(feature = "suites"))]
fn run_suite(_: &SuiteOptions) -> Result<()> {
    anyhow::bail!("this program is without suites; those of packages, and those built from source, have them")
}

/// Fails if a page cannot be written there. An older page stays until there is a new one, and where
/// there is none a run that fails leaves none.
fn check_page(page: &Path) -> io::Result<()> {
    let is_there = page.exists();
    fs::File::options().append(true).create(true).open(page)?;
    // Of a link, what it leads to was made.
    if is_there { Ok(()) } else { fs::remove_file(page.canonicalize()?) }
}
