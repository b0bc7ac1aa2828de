//! `espalier fsck --repair` and `espalier salvage`: what is left of a damaged store.
//!
//! Both open the store as far as it can be read and mend what leads to what is left. A repair makes
//! that durable on the device itself; a salvage does it above an overlay in memory, and copies all
//! files out.

mod copy;

use crate::args::{Fsck, Salvage};
use crate::files::tree::show_text;
use crate::image;
use crate::problem::Exit;
use crate::signature;
use crate::ui::{self, say};
use crate::units;
use anyhow::{Context, Result, anyhow, bail, ensure};
use espalier_engine::{Loss, OpenOptions, Rescue, Store};
use espalier_fs::FileSystem;
use espalier_storage::{Device, Environment, OpenMode, OverlayDevice};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Lines that are printed; the file has all.
const MAX_PRINTED_LINES: usize = 20;

/// Memory for a salvage.
const MEMORY_BYTES: u64 = 1 << 30;

/// Repairs a store where it lies.
pub(crate) fn run(args: &Fsck) -> Result<Exit> {
    let started = Instant::now();
    let shown = args.source.display();
    let device = Arc::new(image::open_device(&args.source, OpenMode::ReadWrite)?);
    refuse_others(&args.source)?;
    let Mended { rescue, list } = mend(device, &args.source, args.cache.0)?;
    // The list comes first: when the repair is durable, nothing else knows what was lost.
    let path = match &args.lost {
        _ if list.is_empty() => None,
        Some(path) => Some(path.clone()),
        None => Some(fresh_path(&args.source)?),
    };
    if let Some(path) = &path {
        list.write(path).with_context(|| format!("{shown}: nothing was repaired"))?;
    }
    let spinner = ui::spinner("making the repair durable");
    let closed = rescue.store.close();
    spinner.finish_and_clear();
    closed.map_err(|e| image::explain(e, &args.source)).context(
        "the repair could not be made durable; the image is as it was (espalier salvage copies files out)",
    )?;
    drop(rescue);
    match &path {
        _ if args.json => say!("{}", list.described(&args.source, path.as_deref(), started)),
        None => say!("{shown}: nothing to repair; read in {}", units::duration(started.elapsed())),
        Some(path) => {
            list.print();
            say!("{shown}: repaired in {}; {}", units::duration(started.elapsed()), list.summary(path));
        }
    }
    Ok(if path.is_some() { Exit::Repaired } else { Exit::Success })
}

/// A spare superblock may outlive the store: what another program has made since must not be
/// written over.
fn refuse_others(source: &Path) -> Result<()> {
    if let Some(what) = signature::of_another(source)? {
        bail!(
            "{} holds {what}; if that is of no use any more, copy out what is left of the Espalier file system that was \
             there before (espalier salvage {} DIR)",
            source.display(),
            source.display()
        );
    }
    Ok(())
}

/// Copies everything out of a store that need not be mountable.
pub(crate) fn salvage(args: &Salvage) -> Result<()> {
    let started = Instant::now();
    let out = prepare_output(&args.out)?;
    let device = image::open_device(&args.source, OpenMode::ReadOnly)?;
    let Mended { rescue, mut list } = mend(Arc::new(OverlayDevice::new(device)), &args.source, MEMORY_BYTES)?;
    let mut copied = copy::Copied::default();
    for volume in file_volumes(&rescue.store) {
        // Snapshots lie beside what they are snapshots of, each in a directory of its own.
        let target =
            if volume == image::VOLUME { out.clone() } else { out.join(format!("{volume}.snapshot")) };
        let options =
            espalier_fs::OpenOptions { volume: volume.clone(), read_only: true, ..Default::default() };
        let fs = FileSystem::open(Arc::clone(&rescue.store), image::environment(), options)?;
        copy::tree(&fs, &target, &mut copied, &mut |path, why| list.add(path, why, true))?;
    }
    say!(
        "{}: {} directories and {} files, {}, copied to {} in {}",
        args.source.display(),
        copied.directories,
        copied.files,
        units::Size(copied.bytes),
        out.display(),
        units::duration(started.elapsed())
    );
    if !list.is_empty() {
        let mut path = out.into_os_string();
        path.push(".lost");
        let path = PathBuf::from(path);
        list.print();
        list.write(&path)?;
        say!("{}: {}", args.source.display(), list.summary(&path));
    }
    Ok(())
}

fn prepare_output(out: &Path) -> Result<PathBuf> {
    match std::fs::create_dir(out) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let empty = std::fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
            ensure!(empty, "{} is no empty directory; name one that does not exist yet", out.display());
        }
        made => made.with_context(|| format!("{} cannot be made", out.display()))?,
    }
    Ok(out.canonicalize()?)
}

/// A store that is sound again, and what that cost.
struct Mended {
    rescue: Rescue,
    list: List,
}

fn mend(device: Arc<dyn Device>, source: &Path, memory: u64) -> Result<Mended> {
    let options = OpenOptions { memory, merge: espalier_fs::merge_functions(), ..Default::default() };
    let bar = ui::byte_bar("reading everything", 0);
    let rescue = Store::open_damaged(device, image::environment(), options, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    let rescue = rescue
        .map_err(|e| image::explain(e, source))
        .with_context(|| format!("{}: nothing of it can be told from anything else", source.display()))?;
    let mut list = List::default();
    rescue.losses.iter().for_each(|loss| list.add_loss(loss));
    rescue.mended.iter().for_each(|what| list.add("(store)", what, false));
    let now = i64::try_from(image::environment().now().as_nanos()).unwrap_or(i64::MAX);
    for volume in file_volumes(&rescue.store) {
        let spinner = ui::spinner("mending files and directories");
        let mended = espalier_fs::repair(&rescue.store, &volume, &rescue.losses, now, &mut |keys| {
            spinner.set_message(format!("mending files and directories: {keys} keys"));
        });
        spinner.finish_and_clear();
        let mended = mended.map_err(|e| anyhow!(e).context(format!("volume {volume} cannot be mended")))?;
        mended.iter().for_each(|done| list.add(&done.path, &done.message, done.lost));
    }
    Ok(Mended { rescue, list })
}

/// The volumes that hold files, the main one first.
fn file_volumes(store: &Store) -> Vec<String> {
    let mut names: Vec<String> =
        store.volumes().into_iter().filter(|v| v.indexes == 3).map(|v| v.name).collect();
    names.sort_by_key(|name| name != image::VOLUME);
    names
}

/// What was lost, and what was put right.
#[derive(Default)]
struct List {
    lines: Vec<String>,
    lost: usize,
}

impl List {
    /// Adds a line. Names are shown in it already; whatever they are, it stays one line.
    fn add(&mut self, path: &str, message: &str, lost: bool) {
        self.lost += usize::from(lost);
        let (path, message) = (show_text(path), show_text(message));
        self.lines.push(format!("{}\t{path}\t{message}", if lost { "LOST" } else { "mended" }));
    }

    fn add_loss(&mut self, loss: &Loss) {
        let place = match (loss.index, &loss.range) {
            (Some(index), Some(range)) => espalier_fs::describe_range(index, range),
            _ => "(store)".into(),
        };
        self.add(&place, &loss.message, true);
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// What a repair did, for JSON; the file that is named has the details.
    fn described(&self, source: &Path, file: Option<&Path>, started: Instant) -> Value {
        json!({
            "image": source.to_string_lossy(),
            "repaired": !self.is_empty(),
            "lost": self.lost,
            "mended": self.lines.len() - self.lost,
            "list": file.map(Path::to_string_lossy),
            "seconds": started.elapsed().as_millis() as f64 / 1000.0,
        })
    }

    fn print(&self) {
        self.lines.iter().take(MAX_PRINTED_LINES).for_each(|line| say!("{line}"));
        if self.lines.len() > MAX_PRINTED_LINES {
            say!("... and {} more", self.lines.len() - MAX_PRINTED_LINES);
        }
    }

    fn write(&self, path: &Path) -> Result<()> {
        let written = File::create(path).and_then(|mut file| {
            file.write_all((self.lines.join("\n") + "\n").as_bytes())?;
            file.sync_all()?;
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
        });
        written.with_context(|| format!("the list cannot be written to {}", path.display()))
    }

    fn summary(&self, path: &Path) -> String {
        let (lost, all) = (self.lost, self.lines.len());
        format!("{lost} losses and {} other repairs, listed in {}", all - lost, path.display())
    }
}

/// A name for the list, beside the image or, for a device, in the current directory; of no file
/// that is there.
fn fresh_path(source: &Path) -> Result<PathBuf> {
    let is_file = source.metadata().is_ok_and(|m| m.is_file());
    let base = if is_file { source.to_owned() } else { source.file_name().unwrap_or_default().into() };
    for number in 0..1000 {
        let mut name = base.clone().into_os_string();
        name.push(if number == 0 { ".lost".to_owned() } else { format!(".lost.{number}") });
        let path = PathBuf::from(name);
        if !path.exists() {
            return Ok(path);
        }
    }
    bail!("{}: there are a thousand lists of losses already; name another with --lost", source.display())
}
