//! `espalier clone`: a copy of a file or tree, in one step.

use crate::args::CloneArgs;
use crate::control;
use anyhow::{Context, Result, bail};
use espalier_fuse::control::{CLONE, clone_argument};
use serde_json::json;
use std::time::Instant;

/// Runs the command.
pub(crate) fn run(args: &CloneArgs) -> Result<()> {
    // Into a directory that exists, under the same name, as cp does.
    let destination = match args.source.file_name() {
        Some(name) if args.destination.is_dir() => args.destination.join(name),
        _ => args.destination.clone(),
    };
    let (parent, name) = control::split(&destination)?;
    let begun = Instant::now();
    let source = control::open(&args.source)?;
    let dir = control::open(&parent)?;
    let same = source.metadata().and_then(|a| dir.metadata().map(|b| (a, b)));
    let (a, b) = same.with_context(|| format!("{} cannot be read", args.source.display()))?;
    if std::os::unix::fs::MetadataExt::dev(&a) != std::os::unix::fs::MetadataExt::dev(&b) {
        bail!(
            "{} and {} lie in different file systems; copy with cp -a",
            args.source.display(),
            destination.display()
        );
    }
    let token = control::token(&source, &args.source)?;
    let Some(mut argument) = clone_argument(&token, &name) else {
        bail!("{}: the name has more than 255 bytes", destination.display());
    };
    control::ask(&dir, CLONE, &mut argument).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => control::explain(error, &args.source),
        _ => control::explain(error, &destination),
    })?;
    if args.json {
        let done = json!({
            "source": args.source.to_string_lossy(),
            "clone": destination.to_string_lossy(),
            "microseconds": begun.elapsed().as_micros() as u64,
        });
        println!("{done}");
    }
    Ok(())
}
