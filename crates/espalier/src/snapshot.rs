//! `espalier snapshot`: on a mounted file system through its server, on an image directly; of the
//! whole volume (the root of a mount, an image), or of a directory (any other directory,
//! `IMAGE:PATH`).

use crate::args::{Snapshot, SnapshotCommand, SnapshotCreate, SnapshotList, SnapshotOne};
use crate::control;
use crate::image;
use crate::info;
use crate::mounts;
use crate::place::{self, CALLER, MEMORY_BYTES};
use crate::ui::say;
use crate::watchers;
use anyhow::{Result, bail};
use espalier_engine::Store;
use espalier_fs::SnapshotInfo;
use espalier_fuse::COMMAND_XATTR;
use espalier_fuse::control::{RESTORE, SNAPSHOT, SNAPSHOT_DELETE, SNAPSHOT_DIRECTORY, SNAPSHOT_WRITABLE};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// The command for the server of a mount that lists snapshots: behind it the time and number after
/// which to begin. Every user may ask.
const LIST_COMMAND: &str = "list.snapshots.";
/// The longest answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// The volume that images hold.
const VOLUME: &str = "main";

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
    let store = image::open_store(source, MEMORY_BYTES, read_only)?;
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
        Some(libc::EPERM) => anyhow::anyhow!(
            "{}: snapshots of the whole are for root and the owner of the file system's root, those of a directory for the \
             user that owns all of it",
            dir.display()
        ),
        Some(libc::EINVAL) => anyhow::anyhow!("'{name}' cannot be the name of a snapshot here"),
        _ => control::explain(error, dir),
    })
}

/// True for the root of a mount.
fn is_mount(dir: &Path) -> bool {
    dir.canonicalize().is_ok_and(|dir| mounts::at(&dir).ok().flatten().is_some())
}

fn create(args: &SnapshotCreate) -> Result<()> {
    let name = &args.name;
    if let Some(inside) = place::inside(&args.source) {
        place::open(&inside.image, false, |image| {
            let dir = image.find_live(&inside)?.node;
            Ok(image.fs.snapshot_tree(dir, name, args.writable, &CALLER)?)
        })?;
    } else if let Some(dir) = mounted(&args.source) {
        let flags = SNAPSHOT_DIRECTORY | if args.writable { SNAPSHOT_WRITABLE } else { 0 };
        ask(&dir, SNAPSHOT, flags, name)?;
    } else {
        on_image(&args.source, false, |store| {
            use espalier_storage::Environment;
            let now = image::environment().now().as_secs();
            Ok(espalier_fs::create_snapshot(store, VOLUME, name, args.writable, now)?)
        })?;
    }
    tell(args.json, json!({"created": args.name, "writable": args.writable}));
    Ok(())
}

fn delete(args: &SnapshotOne) -> Result<()> {
    if let Some(inside) = place::inside(&args.source) {
        place::open(&inside.image, false, |image| {
            let dir = image.find_live(&inside)?.node;
            Ok(image.fs.snapshot_tree_delete(dir, &args.name, &CALLER)?)
        })?;
    } else if let Some(dir) = mounted(&args.source) {
        ask(&dir, SNAPSHOT_DELETE, SNAPSHOT_DIRECTORY, &args.name)?;
    } else {
        on_image(&args.source, false, |store| Ok(espalier_fs::delete_snapshot(store, &args.name)?))?;
    }
    tell(args.json, json!({"deleted": args.name}));
    Ok(())
}

fn restore(args: &SnapshotOne) -> Result<()> {
    if let Some(inside) = place::inside(&args.source).filter(|inside| !inside.names.is_empty()) {
        place::open(&inside.image, false, |image| {
            let (above, name) = inside.split()?;
            let dir = image.find_live(&above)?.node;
            let restored = image.fs.restore_tree(dir, name, &args.name, &CALLER);
            restored.map(drop).map_err(|error| anyhow::anyhow!(error).context(inside.to_string()))
        })?;
    } else if let Some(dir) = mounted(&args.source) {
        if is_mount(&dir) {
            bail!(
                "{} is in use; unmount it first (espalier umount {}) and name the image, or copy what you need from .snapshots/{}",
                dir.display(),
                dir.display(),
                args.name
            );
        }
        ask(&dir, RESTORE, 0, &args.name)?;
        watchers::announce_attributes(&control::open(&dir)?);
    } else {
        let image = place::inside(&args.source).map_or_else(|| args.source.clone(), |inside| inside.image);
        on_image(&image, false, |store| Ok(espalier_fs::restore_snapshot(store, VOLUME, &args.name)?))?;
    }
    tell(args.json, json!({"restored": args.name}));
    Ok(())
}

/// What is to be listed: all, or the snapshots of one directory.
fn found(source: &Path) -> Result<(Vec<Value>, Option<u64>)> {
    if let Some(inside) = place::inside(source) {
        return place::open(&inside.image, true, |image| {
            let dir = image.find_live(&inside)?;
            let number = (!inside.names.is_empty()).then_some(dir.entry.attr.ino);
            Ok((image.fs.snapshots().into_iter().map(describe).collect(), number))
        });
    }
    let Some(dir) = mounted(source) else {
        return Ok((on_image(source, true, |store| Ok(described(store)))?, None));
    };
    let number = match is_mount(&dir) {
        true => None,
        false => Some(std::os::unix::fs::MetadataExt::ino(&dir.metadata()?)),
    };
    Ok((listed(&dir)?, number))
}

/// All snapshots, page by page, from the server of the mount around `dir`.
fn listed(dir: &Path) -> Result<Vec<Value>> {
    let mount = info::mount_around(dir)?.dir;
    let (mut all, mut after) = (Vec::new(), Some((0, 0)));
    while let Some((created, id)) = after {
        let page = info::ask_for(
            &mount,
            &format!("{COMMAND_XATTR}{LIST_COMMAND}{created}.{id}"),
            MAX_ANSWER_BYTES,
            "list snapshots",
        )?;
        all.extend(page["snapshots"].as_array().into_iter().flatten().cloned());
        after = page["next"][0].as_u64().zip(page["next"][1].as_u64());
    }
    Ok(all)
}

/// What the server of a mount lists when it is asked: as many snapshots as fit into one answer,
/// oldest first, behind the one that was made at a time and has a number, and where the next page
/// begins. It holds nothing alive.
pub(crate) fn server_side(store: &Arc<Store>) -> impl Fn(&str) -> Option<String> + Send + Sync + 'static {
    let store: Weak<Store> = Arc::downgrade(store);
    move |command| {
        let (created, id) = command.strip_prefix(LIST_COMMAND)?.split_once('.')?;
        let after: (u64, u32) = (created.parse().ok()?, id.parse().ok()?);
        let all = espalier_fs::snapshots(&*store.upgrade()?);
        let (mut page, mut bytes, mut next) = (Vec::new(), 0, None);
        for snapshot in all.into_iter().filter(|snapshot| (snapshot.created, snapshot.id) > after) {
            if bytes > MAX_ANSWER_BYTES / 2 {
                next = page.last().map(|(at, _)| *at);
                break;
            }
            let at = (snapshot.created, snapshot.id);
            let described = describe(snapshot);
            bytes += described.to_string().len() + 1;
            page.push((at, described));
        }
        let page: Vec<Value> = page.into_iter().map(|(_, described)| described).collect();
        Some(
            json!({ "snapshots": page, "next": next.map(|(created, id)| [created, u64::from(id)]) })
                .to_string(),
        )
    }
}

/// The names by which the snapshots of `source` can be deleted there.
///
/// # Errors
/// If it is no image and no directory of a mount, or cannot be read.
pub(crate) fn names(source: &Path) -> Result<Vec<String>> {
    let (all, of) = found_of(source)?;
    Ok(all.iter().filter_map(|snapshot| shown_name(snapshot, of)).collect())
}

/// The name of a snapshot, with the number of its directory where others may be meant.
fn shown_name(snapshot: &Value, of: Option<u64>) -> Option<String> {
    let directory = snapshot["directory"].as_u64().filter(|_| of.is_none());
    let directory = directory.map(|number| format!("{number}/")).unwrap_or_default();
    Some(format!("{directory}{}", snapshot["name"].as_str()?))
}

/// The snapshots of the whole, or of a directory and its number.
fn found_of(source: &Path) -> Result<(Vec<Value>, Option<u64>)> {
    let (mut all, of) = found(source)?;
    if let Some(number) = of {
        all.retain(|snapshot| snapshot["directory"] == json!(number));
    }
    Ok((all, of))
}

fn list(args: &SnapshotList) -> Result<()> {
    let (all, of) = found_of(&args.source)?;
    if args.json {
        say!("{}", Value::Array(all));
        return Ok(());
    }
    for snapshot in all {
        let created = snapshot["created_unix_seconds"].as_u64().unwrap_or(0);
        let kind = if snapshot["writable"] == json!(true) { "writable" } else { "read-only" };
        let name = shown_name(&snapshot, of).unwrap_or_default();
        say!("{}  {kind:9}  {name}", date(created));
    }
    Ok(())
}

/// The snapshots of a store, for JSON.
fn described(store: &Store) -> Vec<Value> {
    espalier_fs::snapshots(store).into_iter().map(describe).collect()
}

fn describe(s: SnapshotInfo) -> Value {
    json!({"name": s.name, "directory": s.directory, "created_unix_seconds": s.created, "writable": s.writable})
}

fn tell(wanted: bool, what: Value) {
    if wanted {
        say!("{what}");
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
