//! `espalier objects`: what a store has in an object store, and whether all of it is there.

use crate::args::Objects;
use crate::backing::{self, ObjectOptions};
use crate::image;
use crate::problem::Exit;
use crate::ui::say;
use crate::units::Size;
use anyhow::{Context, Result, bail};
use espalier_object::{Access, CheckReport, Options, check_objects};
use espalier_storage::Environment;
use serde_json::json;
use std::sync::Arc;

/// Runs the command.
pub(crate) fn run(args: &Objects) -> Result<Exit> {
    let Some(location) = backing::location(&args.source)? else {
        bail!(
            "{}: name an object store (s3://BUCKET/PREFIX, gs://..., az://..., file:///DIRECTORY)",
            args.source.display()
        );
    };
    let environment: Arc<dyn Environment> = image::environment();
    if !args.check && !args.deep && !args.delete_orphans {
        let device =
            backing::open_object(&location, Access::ReadOnly, &environment, &ObjectOptions::default())?;
        let described = device.describe();
        if args.json {
            say!("{}", serde_json::to_string_pretty(&described)?);
        } else {
            let bytes = |key: &str| Size(described[key].as_u64().unwrap_or(0));
            say!(
                "{location}: {} in {} segments, {} of it live; {} in {} map objects; {} in {} objects to be deleted",
                bytes("segment_bytes"),
                described["segments"],
                bytes("live_bytes"),
                bytes("map_bytes"),
                described["map_objects"],
                bytes("dead_bytes"),
                described["dead_objects"]
            );
        }
        return Ok(Exit::Success);
    }
    let options = Options::default();
    // The writer first: what it finds in the root is then the last of the older epochs.
    let writer = match args.delete_orphans {
        true => {
            Some(backing::open_object(&location, Access::Write, &environment, &ObjectOptions::default())?)
        }
        false => None,
    };
    let report = check_objects(backing::bucket(&location, false)?, &environment, &options, args.deep)
        .with_context(|| format!("{location} cannot be checked"))?;
    let mut corrected = 0;
    if let Some(writer) = writer {
        writer.object().delete_orphans(&report.old_orphans)?;
        if !report.miscounted.is_empty() {
            corrected = writer.object().correct_counts()?;
        }
    }
    tell(&location.to_string(), args, &report, corrected)?;
    Ok(if report.is_sound() { Exit::Success } else { Exit::Damaged })
}

fn tell(shown: &str, args: &Objects, report: &CheckReport, corrected: usize) -> Result<()> {
    let orphan_bytes: u64 = report.orphans.iter().map(|(_, bytes)| bytes).sum();
    let deleted = if args.delete_orphans { report.old_orphans.len() } else { 0 };
    if args.json {
        let report = json!({
            "sound": report.is_sound(),
            "missing": report.missing,
            "damaged": report.damaged,
            "miscounted": report.miscounted,
            "corrected": corrected,
            "orphans": report.orphans.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            "orphan_bytes": orphan_bytes,
            "deleted": deleted,
            "strangers": report.strangers,
        });
        say!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    for (what, names) in
        [("missing", &report.missing), ("DAMAGED", &report.damaged), ("wrong count", &report.miscounted)]
    {
        names.iter().for_each(|name| say!("{shown}: {what}: {name}"));
    }
    if corrected > 0 {
        say!("{shown}: {corrected} wrong counts corrected");
    }
    report.orphans.iter().for_each(|(name, bytes)| say!("{shown}: orphan: {name}, {}", Size(*bytes)));
    report.strangers.iter().for_each(|name| say!("{shown}: no object of a store: {name}"));
    say!(
        "{shown}: {} segments and {} map objects in use: {}; {} orphans with {}, {deleted} deleted",
        report.usage.segments,
        report.usage.map_objects,
        if report.is_sound() { "all there" } else { "NOT all there" },
        report.orphans.len(),
        Size(orphan_bytes)
    );
    Ok(())
}
