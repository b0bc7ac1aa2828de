//! `espalier info`: figures about a store, from its image or from the server that has it mounted.
//!
//! A server describes itself in JSON through the extended attribute [`DESCRIPTION_XATTR`] of the
//! mount's root. The text for people is made of the same JSON, so that both always say the same.

use crate::args::Info;
use crate::backing::{Backing, LeasedDevice};
use crate::image;
use crate::mount::plan::Plan;
use crate::mounts;
use crate::ui::say;
use crate::units::{self, Size};
use anyhow::{Context, Result, bail};
use espalier_engine::Store;
use espalier_fs::FileSystem;
use espalier_fuse::DESCRIPTION_XATTR;
use espalier_fuse::metrics::Metrics;
use espalier_fuse::transport::Kind;
use espalier_storage::OpenMode;
use espalier_sync::RwLock;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

/// Most of what an attribute can hold.
const MAX_DESCRIPTION_BYTES: usize = 64 << 10;

/// Memory for reading an image.
const MEMORY_BYTES: u64 = 128 << 20;

/// Runs the command.
pub(crate) fn run(args: &Info) -> Result<()> {
    let description = describe(&args.source)?;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&description)?);
    } else {
        say!("{}", text(&description).trim_end());
        if let Some(hint) = hint_when_full(&args.source, &description["space"]) {
            say!("{hint}");
        }
    }
    Ok(())
}

/// What to do when less than a tenth is free.
fn hint_when_full(source: &Path, space: &Value) -> Option<String> {
    let (free, total) = (space["free_bytes"].as_u64()?, space["total_bytes"].as_u64()?);
    (free < total / 10).then(|| {
        format!("nearly full: remove something, or make it larger: espalier resize {} SIZE", source.display())
    })
}

fn describe(source: &Path) -> Result<Value> {
    if source.is_dir() || mounts::is_dead(source) {
        return ask_at(&mount_or(source, "name an image or a mount point")?);
    }
    if let Some(dir) = image::mounted(source) {
        return ask_server(&dir);
    }
    let backing = image::open_backing(source, OpenMode::ReadOnly)?;
    let store = image::store_on(&backing, MEMORY_BYTES, true, false)?;
    let mut description = of_store(source, &store);
    if let Backing::Object(device) = &backing {
        description["object_store"] = device.describe();
    }
    Ok(description)
}

/// The mount at, or around, `dir`.
///
/// # Errors
/// There is none, or its server has died.
pub(crate) fn mount_around(dir: &Path) -> Result<mounts::MountEntry> {
    mount_or(dir, "name a directory of a mount (findmnt lists mounts)")
}

/// The same; the advice is for a caller that named something else.
fn mount_or(dir: &Path, advice: &str) -> Result<mounts::MountEntry> {
    if mounts::is_dead(dir) {
        bail!(has_died(dir));
    }
    let dir = dir.canonicalize().with_context(|| format!("{} cannot be read", dir.display()))?;
    let above = dir.ancestors().find_map(|d| mounts::at(d).ok().flatten());
    match above.filter(mounts::MountEntry::is_espalier) {
        Some(mount) => Ok(mount),
        None => bail!("{}: no Espalier file system is mounted there; {advice}", dir.display()),
    }
}

fn has_died(dir: &Path) -> String {
    format!("{0}: the server of this mount has died; unmount it (espalier umount {0})", dir.display())
}

/// Asks the server of a mount: for an extended attribute of its root that has no more than so many
/// bytes. `what` is what one wants of it, for messages.
pub(crate) fn ask_for(mount: &Path, name: &str, longest: usize, what: &str) -> Result<Value> {
    use rustix::io::Errno;
    let mut buffer = vec![0; longest];
    let length = match rustix::fs::getxattr(mount, name, &mut buffer) {
        // What lies below the mount point answers.
        Err(Errno::OPNOTSUPP | Errno::NODATA)
            if !mounts::at(mount)?.is_some_and(|there| there.is_espalier()) =>
        {
            bail!("{} is not mounted any more", mount.display())
        }
        // The kernel was told that there are no extended attributes, and does not pass on questions
        // for them.
        Err(Errno::OPNOTSUPP) => bail!(
            "{0} is mounted with noxattr, so its server cannot be asked; mount it without, or name the image \
             when it is unmounted",
            mount.display()
        ),
        Err(Errno::PERM) => bail!("only root and the user that mounted it may {what}"),
        // What the kernel itself says, also if the user is the right one.
        Err(Errno::ACCESS) => bail!(
            "{} is for processes of the user and of the group that mounted it (it has no allow_other), and for \
             those that may reach it; run the command with that group (setpriv --regid)",
            mount.display()
        ),
        // It died while it was asked.
        Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => bail!(has_died(mount)),
        length => length.with_context(|| format!("the server of {} does not answer", mount.display()))?,
    };
    serde_json::from_slice(&buffer[..length])
        .with_context(|| format!("the server of {} is of another version; use one for both", mount.display()))
}

/// Asks the server of the mount at (or around) `dir`.
pub(crate) fn ask_server(dir: &Path) -> Result<Value> {
    ask_at(&mount_around(dir)?)
}

fn ask_at(mount: &mounts::MountEntry) -> Result<Value> {
    ask_for(&mount.dir, DESCRIPTION_XATTR, MAX_DESCRIPTION_BYTES, "ask it")
}

/// What a mount shows: its store and file system, of which there is another one now and then if it
/// follows another writer. It holds nothing alive.
#[derive(Debug)]
pub(crate) struct ShownStore(RwLock<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    store: Weak<Store>,
    fs: Weak<FileSystem>,
    object: Option<Weak<LeasedDevice>>,
}

impl Parts {
    fn new(store: &Arc<Store>, fs: &Arc<FileSystem>, backing: &Backing) -> Self {
        let object = match backing {
            Backing::File(_) => None,
            Backing::Object(device) => Some(Arc::downgrade(device)),
        };
        Self { store: Arc::downgrade(store), fs: Arc::downgrade(fs), object }
    }
}

impl ShownStore {
    /// What a mount shows first.
    pub(crate) fn new(store: &Arc<Store>, fs: &Arc<FileSystem>, backing: &Backing) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Parts::new(store, fs, backing))))
    }

    /// Another one is shown.
    pub(crate) fn set(&self, store: &Arc<Store>, fs: &Arc<FileSystem>, backing: &Backing) {
        *self.0.write() = Parts::new(store, fs, backing);
    }
}

/// What the server of a mount tells about itself, made anew at every call. It holds nothing alive.
pub(crate) fn server_side(
    plan: &Plan,
    read_only: bool,
    transport: &Arc<OnceLock<Kind>>,
    shown: &Arc<ShownStore>,
) -> impl Fn(&Metrics) -> String + Send + Sync + 'static {
    let Plan { source, dir, settings, .. } = plan.clone();
    let (options, transport, shown) = (settings.words, Arc::clone(transport), Arc::clone(shown));
    move |requests: &Metrics| {
        let Parts { store, fs, object } = shown.0.read().clone();
        let (Some(store), Some(fs)) = (store.upgrade(), fs.upgrade()) else { return "{}".into() };
        let mut description = of_store(&source, &store);
        if let Some(device) = object.as_ref().and_then(Weak::upgrade) {
            description["object_store"] = device.describe_mounted();
        }
        let figures = fs.statistics();
        description["names"] = json!({
            "nodes": figures.nodes,
            "held_bytes": figures.name_bytes,
            "hits": figures.lookup_hits,
            "misses": figures.lookup_misses,
            "orphans": figures.orphans,
        });
        description["mount"] = json!({
            "directory": dir.to_string_lossy(),
            "options": options,
            "read_only": read_only,
            "transport": transport.get().map(|kind| match kind {
                Kind::Uring => "io_uring",
                Kind::Classic => "classic",
            }),
            "pid": std::process::id(),
            "requests": requests.each().map(|(kind, count)| (kind.to_owned(), count.into())).collect::<Map<_, Value>>(),
        });
        description.to_string()
    }
}

fn of_store(source: &Path, store: &Store) -> Value {
    let figures = store.statistics();
    let space = figures.space;
    let used = space.total - space.free.min(space.total);
    let seconds = |time: std::time::Duration| time.as_millis() as f64 / 1000.0;
    let uuid: String = figures.uuid.iter().map(|b| format!("{b:02x}")).collect();
    let uuid = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]].join("-");
    // There may be thousands, and this has to fit into one answer: espalier snapshot list shows
    // them.
    let snapshots: HashSet<u32> = espalier_fs::snapshots(store).iter().map(|snapshot| snapshot.id).collect();
    let trees = figures.heights.iter().filter(|(index, _)| !snapshots.contains(&index.volume));
    json!({
        "image": source.to_string_lossy(),
        "label": figures.label,
        "uuid": uuid,
        "compression": format!("{:?}", figures.compression).to_lowercase(),
        "created_unix_seconds": figures.created.as_secs(),
        "pieces": pieces(store),
        "space": {
            "total_bytes": space.total,
            "used_bytes": used,
            "free_bytes": space.free,
            "promised_bytes": space.reserved,
            "longest_free_run_bytes": space.longest_run,
        },
        "log": {
            "size_bytes": figures.log_capacity,
            "used_bytes": figures.log_used,
            "groups": figures.log.groups,
            "batches": figures.log.batches,
            "syncs": figures.log.syncs,
        },
        "writers": {
            "wrote_log_seconds": seconds(figures.stalls.pushing),
            "slowed_seconds": seconds(figures.stalls.slowed),
            "waited_seconds": seconds(figures.stalls.waiting),
        },
        "checkpoint": {
            "generation": figures.generation,
            "batch": figures.checkpoint_lsn,
            "durable_batch": figures.durable_lsn,
            "last_batch": figures.last_lsn,
        },
        "snapshots": snapshots.len(),
        "volumes": store.volumes().iter().filter(|v| !snapshots.contains(&v.id)).map(|v| json!({
            "name": v.name, "id": v.id, "indexes": v.indexes,
        })).collect::<Vec<_>>(),
        "trees": trees.map(|(index, height)| json!({
            "index": index.to_string(), "height": height,
        })).collect::<Vec<_>>(),
        "memory": {
            "budget_bytes": figures.memory_budget,
            "cache_bytes": figures.cache_bytes,
            "memtable_bytes": figures.memtable_bytes,
            "dirty_bytes": figures.dirty_bytes,
            "cache_hits": figures.cache_hits,
            "cache_misses": figures.cache_misses,
        },
        "device": {
            "read_bytes": figures.device.bytes_read,
            "written_bytes": figures.device.bytes_written,
            "reads": figures.device.reads,
            "writes": figures.device.writes,
            "syncs": figures.device.syncs,
        },
    })
}

/// How many pieces of each kind the store has.
fn pieces(store: &Store) -> Value {
    match store.census() {
        Ok(census) => json!({
            "nodes": census.nodes,
            "parts": census.parts,
            "value_parts": census.value_parts,
            "node_bytes": census.node_bytes,
            "part_bytes": census.part_bytes,
            "value_part_bytes": census.value_part_bytes,
        }),
        // What cannot be counted is for fsck to tell.
        Err(error) => json!({ "error": error.to_string() }),
    }
}

/// The description for people: one line per figure, sizes in units.
fn text(description: &Value) -> String {
    let mut out = String::new();
    if let Value::Object(fields) = description {
        lines(&mut out, fields, 0);
    }
    out
}

/// How a figure is shown.
#[derive(Clone, Copy)]
enum Form {
    Plain,
    Size,
    Time,
}

fn lines(out: &mut String, fields: &Map<String, Value>, depth: usize) {
    for (name, value) in fields {
        let indent = "  ".repeat(depth);
        let (label, form) = match (name.strip_suffix("_bytes"), name.strip_suffix("_unix_seconds")) {
            // Beside a count of the same things, as of nodes.
            (Some(label), _) if fields.contains_key(&format!("{label}s")) => {
                (format!("{label}s take"), Form::Size)
            }
            (Some(label), _) => (label.to_owned(), Form::Size),
            (_, Some(label)) => (label.to_owned(), Form::Time),
            _ => (name.clone(), Form::Plain),
        };
        let label = label.replace('_', " ");
        match value {
            Value::Object(inner) => {
                let _ = writeln!(out, "{indent}{label}:");
                lines(out, inner, depth + 1);
            }
            Value::Array(items) => {
                let _ = writeln!(out, "{indent}{label}:");
                for item in items {
                    let _ = writeln!(out, "{indent}  {}", one_line(item));
                }
            }
            value => {
                let shown = match (value.as_u64(), form) {
                    (Some(bytes), Form::Size) => Size(bytes).to_string(),
                    (Some(seconds), Form::Time) => units::date(seconds),
                    _ => one_line(value),
                };
                let _ = writeln!(out, "{:<28} {shown}", format!("{indent}{label}"));
            }
        }
    }
}

fn one_line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| format!("{name} {}", one_line(value)))
            .collect::<Vec<_>>()
            .join(", "),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_a_line_per_figure() {
        let description = json!({
            "label": "x",
            "space": { "total_bytes": 1 << 20 },
            "trees": [{ "index": "0/1", "height": 2 }],
        });
        let words: Vec<String> =
            text(&description).lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(words, ["label x", "space:", "total 1 MiB", "trees:", "index 0/1, height 2"]);
    }
}
