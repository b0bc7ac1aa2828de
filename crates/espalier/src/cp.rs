//! `espalier cp`: copies files and trees between mounts, images and the system.

use crate::args::Cp;
use crate::files::located::{Located, with_trees};
use crate::files::transfer::{Below, ItemSink, Report};
use crate::files::tree::Access;
use crate::files::tree_sink::{SinkOptions, TreeSink};
use crate::files::tree_source;
use crate::problem::Exit;
use anyhow::{Result, anyhow, bail};
use espalier_fs::FileKind;

/// Runs the command.
pub(crate) fn run(args: &Cp) -> Result<Exit> {
    let destination = Located::new(&args.destination);
    let is_directory =
        !args.no_target_directory && destination.attr()?.is_some_and(|attr| attr.kind == FileKind::Directory);
    if !is_directory && args.sources.len() > 1 {
        bail!("{destination}: several files go into a directory only");
    }
    let mut report = Report::new("cp");
    for source in args.sources.iter().map(|source| Located::new(source)) {
        if let Err(error) = copy(&source, (&destination, is_directory), args.recursive, &mut report) {
            report.complain(source.to_string().as_bytes(), error);
        }
    }
    Ok(report.exit())
}

/// Copies one file or tree.
fn copy(
    source: &Located,
    (destination, is_directory): (&Located, bool),
    recursive: bool,
    report: &mut Report,
) -> Result<()> {
    let attr = source.attr()?.ok_or_else(|| anyhow!("there is nothing of that name"))?;
    if attr.kind == FileKind::Directory && !recursive {
        bail!("it is a directory, and left out without -r");
    }
    let named = source.split().map(|(_, name)| name).filter(|_| is_directory);
    // What has no name, as a root, gives its content.
    let target = named.map_or_else(|| destination.clone(), |name| destination.join(&name));
    if target.lies_in(source) {
        bail!("it cannot be copied into itself, {target}");
    }
    let options = SinkOptions { owners: target.keeps_owners(), resume: false };
    let (above, name) = match target.split() {
        Some((above, name)) => (above, name),
        None => (target.clone(), Vec::new()),
    };
    with_trees(source, (&above, Access::Change), |from, to| {
        let mut tree = TreeSink::new(to, options);
        let mut sink = Below { sink: &mut tree, name };
        tree_source::give(from, &mut sink, report)?;
        sink.finish(report)
    })
}
