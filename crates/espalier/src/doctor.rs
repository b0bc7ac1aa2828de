//! `espalier doctor`: what this machine offers to a mount, and what to do about what it lacks.
//!
//! Each check looks at one thing that the kernel or the system provides, and gives a finding. A
//! finding that keeps every mount of the caller from working makes the command fail; one that costs
//! speed or comfort does not.

mod checks;
mod finding;

use crate::args::{Cli, Doctor};
use crate::config::Config;
use crate::info;
use crate::mount;
use crate::problem::Exit;
use crate::ui::say;
use anyhow::Result;
use checks::System;
use clap::CommandFactory;
use finding::{Finding, Grade};
use serde_json::Value;
use std::path::Path;

/// Runs the command.
pub(crate) fn run(args: &Doctor) -> Result<Exit> {
    let mut findings = System::here().examine();
    findings.push(configuration(Config::load(&Cli::command()).as_ref()));
    if let Some(dir) = &args.dir {
        findings.push(transport_of(dir)?);
    }
    if args.json {
        let list: Vec<Value> = findings.iter().map(Finding::as_json).collect();
        say!("{}", serde_json::to_string_pretty(&list)?);
    } else {
        findings.iter().for_each(print);
    }
    let broken = findings.iter().any(|finding| finding.grade == Grade::Broken);
    Ok(if broken { Exit::Failure } else { Exit::Success })
}

fn print(finding: &Finding) {
    say!("{:<7} {:<20} {}", finding.grade.word(), finding.what, finding.found);
    if let Some(advice) = &finding.advice {
        say!("{:<7} {:<20} -> {advice}", "", "");
    }
}

/// What the configuration files make of mounts.
fn configuration(config: Result<&Config, &anyhow::Error>) -> Finding {
    const WHAT: &str = "configuration";
    let broken = |error: &anyhow::Error| {
        Finding::broken(
            WHAT,
            format!("{error:#}"),
            "mend the file: every mount of this user fails until then",
        )
    };
    let config = match config {
        Ok(config) => config,
        Err(error) => return broken(error),
    };
    match mount::transport_by(&config.mount) {
        Ok(None) => Finding::good(WHAT, "mounts take the best transport there is"),
        Ok(Some((transport, places))) => {
            Finding::good(WHAT, format!("mounts take the transport {transport} ({places})"))
        }
        Err(error) => broken(&error),
    }
}

/// Which transport the mount at `dir` uses.
fn transport_of(dir: &Path) -> Result<Finding> {
    const WHAT: &str = "this mount";
    let description = info::ask_server(dir)?;
    let transport = description["mount"]["transport"].as_str().unwrap_or("unknown").to_owned();
    Ok(match transport.as_str() {
        "io_uring" => Finding::good(WHAT, "served over io_uring"),
        _ => Finding::advice(
            WHAT,
            format!("served over the {transport} transport"),
            "'FUSE over io_uring' above says whether a mount made now would use it; \
             -o transport=classic and a configuration file forbid it",
        ),
    })
}
