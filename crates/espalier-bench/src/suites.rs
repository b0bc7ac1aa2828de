//! The suites: real work on files and trees, on whole subtrees, on workspaces, by full paths and in
//! object stores, and curves.
//!
//! Protocol: every contender gets a loop device of the same size, with direct I/O, on a file of the
//! same disk, filled before (so that no contender pays for the first allocation in the file below)
//! and with discard switched off. Rounds repeat everything on freshly made file systems; inside a
//! round the contenders take turns step by step, so that a slow minute of the machine hits all of
//! them. A step begins on a fresh mount with dropped caches, unless its name says `warm`, and with
//! some memory touched (a host may have taken back what was free); its time includes syncfs and an
//! fsync of the root directory.

use crate::contender::Contender;
use crate::curves;
use crate::objects;
pub use crate::options::Options;
use crate::options::{Suite, chosen};
use crate::paths;
use crate::report::{Measure, Report};
use crate::steps::{self, Setting, Stage};
use crate::subtrees;
use crate::system::{self, Undo};
use crate::workspaces;
use anyhow::{Context, Result};
use std::time::Instant;

/// The step that lists the others.
const HELP: &str = "help";

/// Runs a suite. Blocks the termination signals, so it is for the main thread of a program that has
/// no other.
///
/// # Errors
/// What cannot be made, mounted or run; a step or contender that does not exist.
pub fn run(options: &Options) -> Result<()> {
    let options = options.clone().settle()?;
    let steps = match options.suite {
        Suite::Files => steps::names(),
        Suite::Subtrees => subtrees::names(),
        Suite::Workspaces => workspaces::names(),
        Suite::Curves => curves::names(),
        Suite::Objects => objects::names(),
        Suite::Paths => paths::names(),
    };
    if options.steps.iter().any(|step| step == HELP) {
        println!("{}", steps.join("\n"));
        return Ok(());
    }
    // Before anything is made.
    chosen(steps, &options.steps)?;
    let undo = Undo::on_signals();
    let outcome = match options.suite {
        Suite::Files => files(&options, &undo),
        Suite::Subtrees => subtrees::run(&options, &undo),
        Suite::Workspaces => workspaces::run(&options, &undo),
        Suite::Curves => curves::run(&options, &undo),
        Suite::Objects => objects::run(&options, &undo),
        Suite::Paths => paths::run(&options, &undo),
    };
    undo.play();
    outcome
}

fn files(options: &Options, undo: &Undo) -> Result<()> {
    system::require_root()?;
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("{} cannot be made", options.dir.display()))?;
    let stages = steps::stages(&options.steps)?;
    let setting = Setting::prepare(options)?;
    let mut contenders = Vec::new();
    for name in &options.contenders {
        contenders.push(Contender::new(name, &options.setup(), undo)?);
    }
    let mut report = Report::new(options, &setting);
    for round in 0..options.rounds {
        for contender in &mut contenders {
            contender.make()?;
        }
        for stage in &stages {
            // The order turns from round to round: none always goes first.
            for turn in 0..contenders.len() {
                let contender = &mut contenders[(turn + round) % options.contenders.len()];
                if !stage.is_recovery() && !stage.steps.iter().any(|step| step.is_possible(contender)) {
                    continue;
                }
                run_stage(round, stage, contender, &setting, &mut report)
                    .with_context(|| format!("{} on {}", stage.name(), contender.name))?;
            }
        }
        report.write_json(&options.json())?;
    }
    report.write_json(&options.json())?;
    println!("{}", report.text());
    println!("all figures: {}", options.json().display());
    Ok(())
}

/// Runs the steps of one stage on one contender, from mount to unmount.
fn run_stage(
    round: usize,
    stage: &Stage,
    contender: &mut Contender,
    setting: &Setting,
    report: &mut Report,
) -> Result<()> {
    stage.prepare(setting)?;
    if stage.is_recovery() {
        if let Some(seconds) = steps::recovery(contender, setting)? {
            progress(round, &contender.name, steps::RECOVERY, seconds);
            report.add(Measure::plain(round, &contender.name, steps::RECOVERY, seconds));
        }
        return Ok(());
    }
    let mount_seconds = contender.mount()?;
    let mut measures = Vec::new();
    for step in stage.steps.iter().filter(|step| step.is_possible(contender)) {
        let before = contender.counts()?;
        let seconds = step.run(&contender.dir, setting)?;
        let counts = contender.counts()?.since(&before);
        progress(round, &contender.name, step.name, seconds);
        let plain = Measure::plain(round, &contender.name, step.name, seconds);
        measures.push(Measure { counts, mount_seconds, ..plain });
    }
    let peak_resident = contender.peak_resident()?;
    stage.clear(&contender.dir)?;
    let before = contender.written_bytes()?;
    let started = Instant::now();
    contender.unmount()?;
    let unmount_seconds = started.elapsed().as_secs_f64();
    let unmount_written = contender.written_bytes()? - before;
    for mut measure in measures {
        measure.peak_resident = peak_resident;
        measure.unmount_seconds = unmount_seconds;
        measure.unmount_written = unmount_written;
        report.add(measure);
    }
    Ok(())
}

fn progress(round: usize, contender: &str, step: &str, seconds: f64) {
    println!("round {}  {contender:<12} {step:<16} {seconds:>9.3} s", round + 1);
}
