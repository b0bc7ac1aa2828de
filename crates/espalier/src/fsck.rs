//! `espalier fsck`: verifies a store and says which paths are damaged. It changes nothing.

use crate::args::Fsck;
use crate::image;
use crate::problem::Exit;
use crate::ui::{self, say};
use crate::units::{self, Size};
use anyhow::Result;
use espalier_engine::{ErrorKind, Problem, Store};
use espalier_fs::{CheckProblem, CheckReport};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// What to do about problems.
const ADVICE: &str =
    "; restore what is named from a backup, or see espalier salvage --help and fsck --repair";

/// Most problems that JSON lists; their number is complete.
const MAX_LISTED_PROBLEMS: usize = 10_000;

/// What was found so far, and how it is told: line by line, or as JSON in the end.
struct Findings<'a> {
    args: &'a Fsck,
    count: u64,
    listed: Vec<Value>,
}

impl Findings<'_> {
    /// Takes a problem of the store, or of a file in the volume or a snapshot; `place` is a path,
    /// or says what lies there.
    fn add(&mut self, snapshot: Option<&str>, place: Option<&str>, message: &str) {
        self.count += 1;
        if self.args.json {
            if self.listed.len() < MAX_LISTED_PROBLEMS {
                self.listed.push(json!({ "snapshot": snapshot, "place": place, "message": message }));
            }
            return;
        }
        let snapshot = snapshot.map(|name| format!("snapshot {name}: ")).unwrap_or_default();
        let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
        say!("{}: DAMAGED: {snapshot}{place}{message}", self.args.source.display());
    }

    /// Tells JSON with what was looked at, or else the line for people.
    fn finish(self, looked_at: Value, line: &str) -> Exit {
        let clean = self.count == 0;
        if self.args.json {
            let mut all = json!({
                "image": self.args.source.to_string_lossy(),
                "clean": clean,
                "problem_count": self.count,
                "problems": self.listed,
            });
            if let (Value::Object(all), Value::Object(looked_at)) = (&mut all, looked_at) {
                all.extend(looked_at);
            }
            say!("{all}");
        } else if !line.is_empty() {
            let advice = match self.count {
                0 => "clean".to_owned(),
                1 => "1 problem".to_owned() + ADVICE,
                n => format!("{n} problems{ADVICE}"),
            };
            say!("{}: {line}: {advice}", self.args.source.display());
        }
        if clean { Exit::Success } else { Exit::Damaged }
    }
}

/// Runs the command; an error means that the check could not run.
pub(crate) fn run(args: &Fsck) -> Result<Exit> {
    let started = Instant::now();
    let mut findings = Findings { args, count: 0, listed: Vec::new() };
    let store = match image::open_store(&args.source, args.cache.0, true) {
        Ok(store) => store,
        Err(error) if is_damage(&error) => {
            findings.add(None, None, &crate::problem::Shown(&error).to_string());
            return Ok(findings.finish(json!({}), ""));
        }
        Err(error) => return Err(error),
    };
    let bar = ui::byte_bar("checking the store", 0);
    let engine = store.verify(&mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    let engine = engine.map_err(|e| image::explain(e, &args.source))?;
    engine
        .problems
        .iter()
        .for_each(|problem| findings.add(None, place(problem).as_deref(), &problem.message));
    findings.count += engine.more_problems;
    let files = check_files(&store, image::VOLUME, None, &mut findings)?;
    let snapshots = if args.snapshots { espalier_fs::snapshots(&store) } else { Vec::new() };
    for snapshot in &snapshots {
        let directory = snapshot.directory.map(|number| format!("{number}/")).unwrap_or_default();
        let name = format!("{directory}{}", snapshot.name);
        check_files(&store, &snapshot.volume, Some(&name), &mut findings)?;
    }
    let also = match snapshots.len() {
        0 => String::new(),
        1 => ", and 1 snapshot".to_owned(),
        n => format!(", and {n} snapshots"),
    };
    let line = format!(
        "{} directories, {} files, {} of data in {} nodes and {} parts{also}; checked in {}",
        files.directories,
        files.files,
        Size(files.bytes),
        engine.nodes,
        engine.parts,
        units::duration(started.elapsed()),
    );
    let looked_at = json!({
        "directories": files.directories,
        "files": files.files,
        "data_bytes": files.bytes,
        "nodes": engine.nodes,
        "parts": engine.parts,
        "snapshots_checked": snapshots.len(),
        "seconds": started.elapsed().as_millis() as f64 / 1000.0,
    });
    Ok(findings.finish(looked_at, &line))
}

/// Checks the files and directories of a volume, which is that of a snapshot or the main one.
///
/// # Errors
/// If part of what is checked was deleted meanwhile, as of a state of an object store that was
/// replaced.
fn check_files(
    store: &Arc<Store>,
    volume: &str,
    snapshot: Option<&str>,
    findings: &mut Findings<'_>,
) -> Result<CheckReport> {
    let spinner = ui::spinner("checking files and directories");
    let of = snapshot.map(|name| format!("snapshot {name}: ")).unwrap_or_default();
    let checked = espalier_fs::check(store, volume, &mut |keys| {
        spinner.set_message(format!("{of}{keys} keys checked"))
    });
    spinner.finish_and_clear();
    store.still_there()?;
    let report = checked.unwrap_or_else(|error| {
        let message = format!("the file system cannot be read: {error}");
        CheckReport { problems: vec![CheckProblem { path: "/".into(), message }], ..CheckReport::default() }
    });
    for problem in &report.problems {
        findings.add(snapshot, Some(&problem.path), &problem.message);
    }
    findings.count += report.more_problems;
    Ok(report)
}

/// Where the engine found a problem, in paths as far as there are any.
fn place(problem: &Problem) -> Option<String> {
    match (problem.index, &problem.range) {
        (Some(index), Some(range)) => Some(espalier_fs::describe_range(index, range)),
        (Some(index), None) => Some(format!("index {index}")),
        _ => None,
    }
}

/// True if opening failed because of what is stored, and not because of how.
fn is_damage(error: &anyhow::Error) -> bool {
    error.downcast_ref::<espalier_engine::Error>().is_some_and(|e| e.kind() == ErrorKind::Damaged)
}
