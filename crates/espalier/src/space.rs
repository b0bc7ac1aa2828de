//! `espalier trim` and `espalier resize`: telling the device what is free, and making a store larger.
//!
//! A mounted store is asked through its server, as for `espalier scrub`; any other is opened here.

use crate::args::{Resize, Trim};
use crate::image;
use crate::mounts;
use crate::ui::say;
use crate::units::Size;
use anyhow::{Context, Result, anyhow, bail, ensure};
use espalier_engine::Store;
use espalier_fuse::COMMAND_XATTR;
use espalier_storage::{BLOCK, Device, OpenMode};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::{Arc, Weak};

/// Memory for a store that is opened to be trimmed.
const MEMORY: u64 = 128 << 20;

/// Runs `espalier trim`.
pub(crate) fn trim(args: &Trim) -> Result<()> {
    let shown = args.source.display();
    let told = if args.source.is_dir() {
        let mount = mount_of(&args.source)?;
        let mut buffer = vec![0; 4096];
        let name = format!("{COMMAND_XATTR}trim.{}", args.minimum.0);
        let length = rustix::fs::getxattr(&mount, name, &mut buffer).map_err(|error| match error {
            rustix::io::Errno::PERM => anyhow!("only root and who has mounted it may trim"),
            error => anyhow!(error).context(format!("the server of {} fails", mount.display())),
        })?;
        let answer: Value =
            serde_json::from_slice(&buffer[..length]).context("the server answers nonsense")?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{shown}: {error}");
        }
        answer["bytes"].as_u64().unwrap_or(0)
    } else {
        let store = image::open_store(&args.source, MEMORY, false)?;
        let told = store.trim(args.minimum.0).map_err(|e| image::explain(e, &args.source))?;
        store.close().map_err(|e| image::explain(e, &args.source))?;
        told
    };
    say!("{shown}: {} trimmed", Size(told));
    Ok(())
}

/// What the server of a mount does when it is asked to trim. It holds nothing alive.
pub(crate) fn server_side(store: &Arc<Store>) -> impl Fn(&str) -> Option<String> + Send + Sync + 'static {
    let store: Weak<Store> = Arc::downgrade(store);
    move |command| {
        let least = command.strip_prefix("trim.")?.parse().ok()?;
        let answer = match store.upgrade()?.trim(least) {
            Ok(bytes) => json!({ "bytes": bytes }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        Some(answer.to_string())
    }
}

/// Runs `espalier resize`.
pub(crate) fn resize(args: &Resize) -> Result<()> {
    let shown = args.source.display();
    if args.source.is_dir() {
        let mount = mount_of(&args.source)?;
        bail!("{shown} is mounted; unmount it first (espalier umount {})", mount.display());
    }
    let path = image::resolve(&args.source)?;
    let wanted = match args.size.as_deref() {
        None | Some("max") => None,
        Some(size) => Some(size.parse::<Size>().map_err(|e| anyhow!(e))?.0),
    };
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
    let now = Store::grow(device, wanted).map_err(|e| image::explain(e, &path))?;
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
