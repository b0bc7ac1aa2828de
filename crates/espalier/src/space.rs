//! `espalier trim` and `espalier resize`: telling the device what is free, and making a store
//! larger.
//!
//! A mounted store is asked through its server, as for `espalier scrub`; any other is opened here.

use crate::args::{Resize, Trim};
use crate::backing::Backing;
use crate::image;
use crate::info;
use crate::mounts;
use crate::ui::say;
use crate::units::Size;
use anyhow::{Context, Result, anyhow, bail, ensure};
use espalier_engine::Store;
use espalier_fuse::COMMAND_XATTR;
use espalier_storage::{BLOCK, Device, FileDevice, OpenMode};
use serde_json::json;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::{Arc, Weak};

/// Memory for a store that is opened to be trimmed.
const MEMORY_BYTES: u64 = 128 << 20;

/// Runs `espalier trim`.
pub(crate) fn trim(args: &Trim) -> Result<()> {
    let shown = args.source.display();
    let told = if args.source.is_dir() {
        ask(&args.source, &format!("trim.{}", args.minimum.0), "trim")?
    } else {
        let store = image::open_store(&args.source, MEMORY_BYTES, false)?;
        let told = store.trim(args.minimum.0).map_err(|e| image::explain(e, &args.source))?;
        store.close().map_err(|e| image::explain(e, &args.source))?;
        told
    };
    say!("{shown}: {} trimmed", Size(told));
    Ok(())
}

/// Asks the server of the mount that `dir` lies in to carry out a command that gives a number of
/// bytes.
fn ask(dir: &Path, command: &str, what: &str) -> Result<u64> {
    let mount = mount_of(dir)?;
    let answer = info::ask_for(&mount, &format!("{COMMAND_XATTR}{command}"), 4096, what)?;
    match answer["error"].as_str() {
        Some(error) => bail!("{}: {error}", dir.display()),
        None => Ok(answer["bytes"].as_u64().unwrap_or(0)),
    }
}

/// What the server of a mount does when it is asked to trim or to resize. It holds nothing alive.
pub(crate) fn server_side(
    store: &Arc<Store>,
    device: &Backing,
) -> impl Fn(&str) -> Option<String> + Send + Sync + 'static {
    let store: Weak<Store> = Arc::downgrade(store);
    let file: Option<Weak<FileDevice>> = match device {
        Backing::File(file) => Some(Arc::downgrade(file)),
        Backing::Object(_) => None,
    };
    move |command| {
        let (what, number) = command.split_once('.')?;
        let number = number.parse().ok()?;
        let store = store.upgrade()?;
        let done = match what {
            "trim" => store.trim(number).map_err(|error| error.to_string()),
            "resize" => match &file {
                Some(file) => resize_online(&store, &*file.upgrade()?, number),
                None => Err("a store in an object store keeps its size".into()),
            },
            _ => return None,
        };
        let answer = match done {
            Ok(bytes) => json!({ "bytes": bytes }),
            Err(error) => json!({ "error": error }),
        };
        Some(answer.to_string())
    }
}

/// Makes an open store `bytes` long, 0 for all that its device has, and the image file with it. The
/// device first: what is behind the store's end does no harm.
fn resize_online(store: &Store, device: &FileDevice, bytes: u64) -> Result<u64, String> {
    let size = device.size().map_err(|error| error.to_string())?;
    let wanted = if bytes == 0 { size } else { bytes };
    let present = store.statistics().space.total;
    if wanted / (BLOCK as u64) < present / BLOCK as u64 {
        return Err(format!("it has {} and cannot shrink to {}", Size(present), Size(wanted)));
    }
    if wanted > device.len() {
        device.grow(wanted).map_err(|error| error.to_string())?;
    }
    store.resize_online(wanted).map_err(|error| error.to_string())
}

/// Runs `espalier resize`.
pub(crate) fn resize(args: &Resize) -> Result<()> {
    let shown = args.source.display();
    let wanted = match args.size.as_deref() {
        None | Some("max") => None,
        Some(size) => Some(size.parse::<Size>().map_err(|e| anyhow!(e))?.0),
    };
    if args.source.is_dir() {
        ensure!(wanted != Some(0), "{shown}: a store of 0 bytes makes no sense; name a size, or max");
        let now = ask(&args.source, &format!("resize.{}", wanted.unwrap_or(0)), "resize")?;
        say!("{shown}: {} now", Size(now));
        return Ok(());
    }
    let path = image::resolve(&args.source)?;
    let before = image::open_device(&path, OpenMode::ReadWrite)?;
    let is_file = !before.is_block_device();
    let length = before.len();
    let wanted = wanted.unwrap_or(length) / BLOCK as u64 * BLOCK as u64;
    // The lock is let go of for a moment: nothing was changed, and nothing is known but the length.
    drop(before);
    if wanted > length {
        ensure!(is_file, "{shown} has {}; enlarge the device first", Size(length));
        let file = OpenOptions::new().write(true).open(&path);
        file.and_then(|file| file.set_len(wanted)).with_context(|| format!("{shown} cannot be enlarged"))?;
    }
    let device = Arc::new(image::open_device(&path, OpenMode::ReadWrite)?);
    let now = Store::resize_offline(device, wanted).map_err(|e| image::explain(e, &path))?;
    say!("{shown}: {} now", Size(now));
    Ok(())
}

/// Where the file system is mounted that a directory lies in.
fn mount_of(dir: &Path) -> Result<std::path::PathBuf> {
    let dir = dir.canonicalize().with_context(|| format!("{} cannot be read", dir.display()))?;
    let above = dir.ancestors().find_map(|d| mounts::at(d).ok().flatten());
    match above.filter(mounts::MountEntry::is_espalier) {
        Some(mount) => Ok(mount.dir.clone()),
        None => bail!("{}: no Espalier file system is mounted there", dir.display()),
    }
}
