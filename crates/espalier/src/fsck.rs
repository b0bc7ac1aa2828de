//! `espalier fsck`: verifies a store and says which paths are damaged. It changes nothing.

use crate::args::Fsck;
use crate::image;
use crate::problem::Exit;
use crate::ui::{self, say};
use crate::units::{self, Size};
use anyhow::Result;
use espalier_engine::{ErrorKind, Problem};
use espalier_fs::{CheckProblem, CheckReport};
use std::time::Instant;

/// What to do about problems.
const ADVICE: &str =
    "; restore what is named from a backup, or see espalier salvage --help and fsck --repair";

/// Runs the command; an error means that the check could not run.
pub(crate) fn run(args: &Fsck) -> Result<Exit> {
    let started = Instant::now();
    let shown = args.source.display();
    let store = match image::open_store(&args.source, args.cache.0, true) {
        Ok(store) => store,
        Err(error) if is_damage(&error) => {
            say!("{shown}: DAMAGED: {}", crate::problem::Shown(&error));
            return Ok(Exit::Damaged);
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
    let mut problems = engine.more_problems;
    for problem in &engine.problems {
        problems += 1;
        say!("{shown}: DAMAGED: {}", place(problem));
    }
    let spinner = ui::spinner("checking files and directories");
    // The name of a volume for people, and what was found in it.
    let mut check = |volume: &str, of: &str| {
        let checked = espalier_fs::check(&store, volume, &mut |keys| {
            spinner.set_message(format!("{of}{keys} keys checked"))
        });
        let report = checked.unwrap_or_else(|error| {
            let message = format!("the file system cannot be read: {error}");
            let problems = vec![CheckProblem { path: "/".into(), message }];
            CheckReport { problems, ..CheckReport::default() }
        });
        problems += report.problems.len() as u64 + report.more_problems;
        for problem in &report.problems {
            spinner.suspend(|| say!("{shown}: DAMAGED: {of}{}: {}", problem.path, problem.message));
        }
        report
    };
    let files = check(image::VOLUME, "");
    let snapshots = if args.snapshots { espalier_fs::snapshots(&store) } else { Vec::new() };
    for snapshot in &snapshots {
        let directory = snapshot.directory.map(|number| format!("{number}/")).unwrap_or_default();
        check(&snapshot.volume, &format!("snapshot {directory}{}: ", snapshot.name));
    }
    spinner.finish_and_clear();
    let also = match snapshots.len() {
        0 => String::new(),
        1 => ", and 1 snapshot".to_owned(),
        n => format!(", and {n} snapshots"),
    };
    say!(
        "{shown}: {} directories, {} files, {} of data in {} nodes and {} parts{also}; checked in {}: {}",
        files.directories,
        files.files,
        Size(files.bytes),
        engine.nodes,
        engine.parts,
        units::duration(started.elapsed()),
        match problems {
            0 => "clean".to_owned(),
            1 => "1 problem".to_owned() + ADVICE,
            n => format!("{n} problems{ADVICE}"),
        }
    );
    Ok(if problems == 0 { Exit::Success } else { Exit::Damaged })
}

/// Says where the engine found a problem, in paths as far as there are any.
fn place(problem: &Problem) -> String {
    match (problem.index, &problem.range) {
        (Some(index), Some(range)) => {
            format!("{}: {}", espalier_fs::describe_range(index, range), problem.message)
        }
        (Some(index), None) => format!("index {index}: {}", problem.message),
        _ => problem.message.clone(),
    }
}

/// True if opening failed because of what is stored, and not because of how.
fn is_damage(error: &anyhow::Error) -> bool {
    error.downcast_ref::<espalier_engine::Error>().is_some_and(|e| e.kind() == ErrorKind::Damaged)
}
