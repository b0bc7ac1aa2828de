//! `espalier export`: files of a mount or of an image become a directory or an archive.

use crate::archive::ArchiveSink;
use crate::args::{Export, ExportFormat};
use crate::files::located::{Located, with_tree, with_trees};
use crate::files::transfer::{Below, ItemSink, Report};
use crate::files::tree::{Access, Files};
use crate::files::tree_sink::{SinkOptions, TreeSink};
use crate::files::tree_source;
use crate::import::tell;
use crate::problem::Exit;
use anyhow::{Context, Result, bail};
use espalier_fs::FileKind;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is written to an archive at a time, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Runs the command.
pub(crate) fn run(args: &Export) -> Result<Exit> {
    let started = Instant::now();
    let source = Located::new(&args.source);
    let is_output = args.destination == Path::new("-");
    let format = args.format.unwrap_or_else(|| format_of(&args.destination));
    if is_output && (format == ExportFormat::Directory || args.json) {
        bail!("standard output takes an archive, and nothing else");
    }
    if let Located::Image(inside) = Located::new(&args.destination) {
        bail!("{inside} lies in an image; for that there is espalier cp -r");
    }
    let mut report = Report::new("export");
    if format == ExportFormat::Directory {
        let target = Located::System(args.destination.clone());
        let options = SinkOptions { owners: target.keeps_owners(), resume: false };
        with_trees(&source, (&target, Access::Make), |from, to| {
            give(from, &source, &mut TreeSink::new(to, options), &mut report)
        })?;
    } else {
        let is_compressed = format == ExportFormat::TarZst;
        with_tree(&source, Access::Read, |from| match is_output {
            true => {
                if std::io::stdout().is_terminal() {
                    bail!("an archive is not written to a terminal");
                }
                let output = BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout().lock());
                give(from, &source, &mut ArchiveSink::new(Box::new(output), is_compressed)?, &mut report)
            }
            false => write_file(&args.destination, |output| {
                give(from, &source, &mut ArchiveSink::new(output, is_compressed)?, &mut report)
            }),
        })?;
    }
    if is_output {
        return Ok(report.exit());
    }
    let done = format!("{}: exported", args.destination.display());
    tell(&report, args.json.then_some(started), &done, started)
}

/// Gives a tree to a sink; a file under its name.
fn give(from: &dyn Files, source: &Located, sink: &mut dyn ItemSink, report: &mut Report) -> Result<()> {
    if from.stat(b"")?.kind == FileKind::Directory {
        tree_source::give(from, sink, report)?;
        return sink.finish(report);
    }
    let (_, name) = source.split().with_context(|| format!("{source} has no name"))?;
    let mut sink = Below { sink, name };
    tree_source::give(from, &mut sink, report)?;
    sink.finish(report)
}

/// Writes a file, which gets its name when it is complete.
fn write_file(path: &Path, write: impl FnOnce(Box<dyn Write>) -> Result<()>) -> Result<()> {
    let mut part = OsString::from(path);
    part.push(".part");
    let part = PathBuf::from(part);
    let shown = || format!("{} cannot be written", part.display());
    let file = File::create(&part).with_context(shown)?;
    let synced = file.try_clone().with_context(shown)?;
    let written = write(Box::new(BufWriter::with_capacity(BUFFER_BYTES, file))).and_then(|()| {
        synced.sync_all().with_context(shown)?;
        std::fs::rename(&part, path).with_context(|| format!("{} cannot be written", path.display()))
    });
    if written.is_err() {
        // The first error is the one that is told.
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// The format that a name tells.
fn format_of(path: &Path) -> ExportFormat {
    let name = path.file_name().map(|name| name.as_bytes().to_ascii_lowercase()).unwrap_or_default();
    if path == Path::new("-") || name.ends_with(b".tar") {
        ExportFormat::Tar
    } else if name.ends_with(b".tar.zst") || name.ends_with(b".tzst") {
        ExportFormat::TarZst
    } else {
        ExportFormat::Directory
    }
}
