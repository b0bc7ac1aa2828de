//! `espalier snapshot`: on a mounted file system through its server, on an image directly.

use crate::args::{Snapshot, SnapshotCommand, SnapshotCreate, SnapshotList, SnapshotOne};
use crate::control;
use crate::image;
use crate::info;
use anyhow::{Result, bail};
use espalier_engine::Store;
use espalier_fs::SnapshotInfo;
use espalier_fuse::control::{SNAPSHOT, SNAPSHOT_DELETE, SNAPSHOT_WRITABLE};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The volume that images hold.
const VOLUME: &str = "main";

/// Memory for work on an image.
const MEMORY: u64 = 256 << 20;

/// Runs the command.
pub(crate) fn run(args: &Snapshot) -> Result<()> {
    match &args.what {
        SnapshotCommand::Create(args) => create(args),
        SnapshotCommand::List(args) => list(args),
        SnapshotCommand::Delete(args) => delete(args),
        SnapshotCommand::Restore(args) => restore(args),
    }
}

/// The directory through which the server is asked, if what is named is mounted.
fn mounted(source: &Path) -> Option<PathBuf> {
    if source.is_dir() { Some(source.to_owned()) } else { image::mounted(source) }
}

/// Works on the store of an image, and closes it.
fn on_image<T>(source: &Path, read_only: bool, work: impl FnOnce(&Arc<Store>) -> Result<T>) -> Result<T> {
    let store = image::open_store(source, MEMORY, read_only)?;
    let done = work(&store)?;
    if !read_only {
        store.close().map_err(|e| image::explain(e, source))?;
    }
    Ok(done)
}

fn ask(dir: &Path, command: u32, flags: u32, name: &str) -> Result<()> {
    let mut argument = control::name_argument(flags, name.as_bytes())?;
    control::ask(&control::open(dir)?, command, &mut argument).map_err(|error| match error.raw_os_error() {
        Some(libc::EEXIST) => anyhow::anyhow!("there is a snapshot '{name}' already"),
        Some(libc::ENOENT) => {
            anyhow::anyhow!("there is no snapshot '{name}' (espalier snapshot list shows all)")
        }
        Some(libc::EPERM) => {
            anyhow::anyhow!("only root and the owner of the file system's root make snapshots")
        }
        Some(libc::EINVAL) => anyhow::anyhow!("'{name}' cannot be the name of a snapshot"),
        _ => control::explain(error, dir),
    })
}

fn create(args: &SnapshotCreate) -> Result<()> {
    match mounted(&args.source) {
        Some(dir) => ask(&dir, SNAPSHOT, if args.writable { SNAPSHOT_WRITABLE } else { 0 }, &args.name)?,
        None => on_image(&args.source, false, |store| {
            use espalier_storage::Environment;
            let now = image::environment().now().as_secs();
            Ok(espalier_fs::create_snapshot(store, VOLUME, &args.name, args.writable, now)?)
        })?,
    }
    tell(args.json, json!({"created": args.name, "writable": args.writable}));
    Ok(())
}

fn delete(args: &SnapshotOne) -> Result<()> {
    match mounted(&args.source) {
        Some(dir) => ask(&dir, SNAPSHOT_DELETE, 0, &args.name)?,
        None => on_image(&args.source, false, |store| Ok(espalier_fs::delete_snapshot(store, &args.name)?))?,
    }
    tell(args.json, json!({"deleted": args.name}));
    Ok(())
}

fn restore(args: &SnapshotOne) -> Result<()> {
    if let Some(dir) = mounted(&args.source) {
        bail!(
            "{} is in use; unmount it first (espalier umount {}) and name the image, or copy what you need from .snapshots/{}",
            dir.display(),
            dir.display(),
            args.name
        );
    }
    on_image(&args.source, false, |store| Ok(espalier_fs::restore_snapshot(store, VOLUME, &args.name)?))?;
    tell(args.json, json!({"restored": args.name}));
    Ok(())
}

fn list(args: &SnapshotList) -> Result<()> {
    let all: Vec<Value> = match mounted(&args.source) {
        Some(dir) => match info::ask_server(&dir)?.get("snapshots").and_then(Value::as_array) {
            Some(all) => all.clone(),
            None => bail!("the server of {} is too old for snapshots", dir.display()),
        },
        None => on_image(&args.source, true, |store| Ok(described(store)))?,
    };
    if args.json {
        println!("{}", Value::Array(all));
        return Ok(());
    }
    for snapshot in all {
        let created = snapshot["created_unix_seconds"].as_u64().unwrap_or(0);
        let kind = if snapshot["writable"] == json!(true) { "writable" } else { "read-only" };
        println!("{}  {kind:9}  {}", date(created), snapshot["name"].as_str().unwrap_or_default());
    }
    Ok(())
}

/// The snapshots of a store, for JSON.
pub(crate) fn described(store: &Store) -> Vec<Value> {
    let describe =
        |s: SnapshotInfo| json!({"name": s.name, "created_unix_seconds": s.created, "writable": s.writable});
    espalier_fs::snapshots(store).into_iter().map(describe).collect()
}

fn tell(wanted: bool, what: Value) {
    if wanted {
        println!("{what}");
    }
}

/// A time as `2026-11-22 01:05:09 UTC`, by the civil calendar.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of the year 0, in cycles of 400 years.
    let shifted = days + 719_468;
    let (cycle, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + cycle * 400 + carry;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_795_314_909), "2026-11-22 02:35:09 UTC");
        assert_eq!(date(4_102_444_799), "2099-12-31 23:59:59 UTC");
    }
}
