//! `espalier fsck`: verifies a store and says which paths are damaged. It changes nothing.

use crate::args::Fsck;
use crate::image;
use crate::problem::Exit;
use crate::ui;
use crate::units::{self, Size};
use anyhow::Result;
use espalier_engine::{ErrorKind, Problem};
use espalier_fs::CheckReport;
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
            println!("{shown}: DAMAGED: {}", crate::problem::Shown(&error));
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
    let spinner = ui::spinner("checking files and directories");
    let files = espalier_fs::check(&store, image::VOLUME, &mut |keys| {
        spinner.set_message(format!("{keys} keys checked"))
    });
    spinner.finish_and_clear();

    let mut problems = 0;
    let mut damaged = |what: String| {
        problems += 1;
        println!("{shown}: DAMAGED: {what}");
    };
    for problem in &engine.problems {
        damaged(place(problem));
    }
    let files = match files {
        Ok(files) => files,
        Err(error) => {
            damaged(format!("the file system cannot be read: {error}"));
            CheckReport::default()
        }
    };
    for problem in &files.problems {
        damaged(format!("{}: {}", problem.path, problem.message));
    }
    let problems = problems + engine.more_problems + files.more_problems;
    println!(
        "{shown}: {} directories, {} files, {} of data in {} nodes and {} parts; checked in {}: {}",
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
