//! `espalier import`: directories and archives become files of a mount or of an image.

use crate::archive;
use crate::args::Import;
use crate::files::located::{Located, with_tree};
use crate::files::transfer::{ItemSink, Report};
use crate::files::tree::Access;
use crate::files::tree_sink::{Fatal, SinkOptions, TreeSink};
use crate::files::tree_source;
use crate::problem::Exit;
use crate::ui::say;
use crate::units::{self, Size};
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

/// Runs the command.
pub(crate) fn run(args: &Import) -> Result<Exit> {
    let started = Instant::now();
    let destination = Located::new(&args.destination);
    for source in &args.sources {
        if let Located::Image(inside) = Located::new(source) {
            bail!("{inside} lies in an image; for that there is espalier cp -r");
        }
    }
    let mut report = Report::new("import");
    with_tree(&destination, Access::Make, |target| {
        let owners = destination.keeps_owners() && !args.no_owners;
        let mut sink = TreeSink::new(target, SinkOptions { owners, resume: args.resume });
        let mut given = Ok(());
        for source in &args.sources {
            given = give(source, &mut sink, &mut report).with_context(|| source.display().to_string());
            if given.is_err() {
                break;
            }
        }
        // What an archive held before it was found to be damaged is kept.
        if given.as_ref().err().is_none_or(|error| !error.is::<Fatal>()) {
            sink.finish(&mut report)?;
        }
        given
    })?;
    tell(&report, args.json.then_some(started), &format!("{destination}: imported"), started)
}

/// Gives what a word of the command line names to the sink.
fn give(source: &Path, sink: &mut TreeSink<'_>, report: &mut Report) -> Result<()> {
    if source == Path::new("-") {
        return give_archive(&mut std::io::stdin().lock(), sink, report);
    }
    if source.metadata()?.is_dir() {
        let source = Located::System(source.into());
        return with_tree(&source, Access::Read, |files| tree_source::give(files, sink, report));
    }
    give_archive(&mut File::open(source)?, sink, report)
}

fn give_archive(input: &mut dyn Read, sink: &mut TreeSink<'_>, report: &mut Report) -> Result<()> {
    archive::give(input, sink, report)
}

/// Says what was done.
pub(crate) fn tell(report: &Report, json: Option<Instant>, done: &str, started: Instant) -> Result<Exit> {
    let exit = report.exit();
    let Report { items, bytes, skipped, failed, .. } = *report;
    if json.is_some() {
        let microseconds = u64::try_from(started.elapsed().as_micros())?;
        say!(
            "{}",
            json!({"files": items, "bytes": bytes, "skipped": skipped, "failed": failed, "microseconds": microseconds})
        );
        return Ok(exit);
    }
    let there = if skipped > 0 { format!(", of which {skipped} were there") } else { String::new() };
    say!("{done} {items} files{there}, {}, in {}", Size(bytes), units::duration(started.elapsed()));
    Ok(exit)
}
