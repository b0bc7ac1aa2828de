//! `espalier clone`: a copy of a file or tree, in one step.

use crate::args::CloneArgs;
use crate::control;
use crate::place::{self, CALLER, Inside};
use crate::remove;
use crate::ui::say;
use crate::watchers;
use anyhow::{Context, Result, bail};
use espalier_fuse::control::{CLONE, clone_argument};
use serde_json::json;
use std::fmt::Display;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

/// Runs the command.
pub(crate) fn run(args: &CloneArgs) -> Result<()> {
    match (place::inside(&args.source), place::inside(&args.destination)) {
        (None, None) => {}
        (Some(source), Some(destination)) => return in_image(&source, &destination, args),
        (Some(_), None) => {
            bail!("the clone must lie in the image too: name it {}:PATH", image_of(&args.source))
        }
        (None, Some(_)) => {
            bail!("the source must lie in the image too; copy from elsewhere with cp -a on a mount")
        }
    }
    // Into a directory that exists, under the same name, as cp does.
    let destination = match args.source.file_name() {
        Some(name) if !args.no_target_directory && args.destination.is_dir() => args.destination.join(name),
        _ => args.destination.clone(),
    };
    let (parent, _) = control::split(&destination)?;
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
    if destination.symlink_metadata().is_ok() {
        bail!("{} exists already", destination.display());
    }
    let hidden = watchers::hidden_sibling(&destination);
    clone_as(&source, &dir, &args.source, &hidden)?;
    if let Err(error) = watchers::rename_to_new(&hidden, &destination) {
        // The error that matters is the first.
        let _ = remove::remove_anything(&hidden);
        return Err(control::explain(error, &destination));
    }
    if args.json {
        let done = json!({
            "source": args.source.to_string_lossy(),
            "clone": destination.to_string_lossy(),
            "microseconds": begun.elapsed().as_micros() as u64,
        });
        say!("{done}");
    } else if destination != args.destination {
        tell_where(&args.source.display(), &args.destination.display(), &destination.display());
    }
    Ok(())
}

/// Says that a clone lies in a directory that was there, as the caller may not have expected.
fn tell_where(source: &dyn Display, dir: &dyn Display, clone: &dyn Display) {
    say!("{dir} is a directory: {source} was cloned as {clone} (-T refuses that)");
}

/// Clones what `source` has open as `destination`, whose directory `dir` has open.
fn clone_as(source: &File, dir: &File, source_path: &Path, destination: &Path) -> Result<()> {
    let (_, name) = control::split(destination)?;
    let token = control::token(source, source_path)?;
    let Some(mut argument) = clone_argument(&token, &name) else {
        bail!("{}: the name has more than 255 bytes", destination.display());
    };
    control::ask(dir, CLONE, &mut argument).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => control::explain(error, source_path),
        _ => control::explain(error, destination),
    })
}

/// What of `IMAGE:PATH` names the image.
fn image_of(path: &Path) -> String {
    place::inside(path).map_or_else(String::new, |inside| inside.image.display().to_string())
}

/// The same within an image that is not mounted.
fn in_image(source: &Inside, destination: &Inside, args: &CloneArgs) -> Result<()> {
    let same = source.image.canonicalize().ok() == destination.image.canonicalize().ok();
    if !same {
        bail!("{source} and {destination} lie in different images; mount them and copy with cp -a");
    }
    let begun = Instant::now();
    let made = place::open(&source.image, false, |image| {
        let from = image.find_live(source)?;
        let mut to = destination.clone();
        if let (Ok(there), Some(name)) = (image.find_live(destination), source.names.last())
            && there.is_dir()
            && !args.no_target_directory
        {
            to = destination.join(name);
        }
        let (above, name) = to.split()?;
        let dir = image.find_live(&above)?;
        image
            .fs
            .clone_tree(from.node, dir.node, name, &CALLER)
            .map_err(|error| place::explain(error, &to))?;
        Ok(to)
    })?;
    if args.json {
        let done = json!({
            "source": source.to_string(),
            "clone": made.to_string(),
            "microseconds": begun.elapsed().as_micros() as u64,
        });
        say!("{done}");
    } else if made != *destination {
        tell_where(source, destination, &made);
    }
    Ok(())
}
