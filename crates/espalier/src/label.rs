//! `espalier label`: shows or sets the label of a store, mounted or not.
//!
//! A mounted store is asked by the ioctls that Linux has for labels; any other is opened here.
//! Other file systems answer these ioctls, too, so a directory of another one is refused first.

use crate::args::Label;
use crate::control;
use crate::image;
use crate::info::mount_around;
use crate::ui::say;
use anyhow::{Result, anyhow, ensure};
use espalier_fuse::linux_ioctl::{GET_LABEL, LABEL_BYTES, SET_LABEL, label_bytes};
use std::path::Path;

/// Memory for a store that is opened for its label.
const MEMORY_BYTES: u64 = 64 << 20;

/// Runs the command.
pub(crate) fn run(args: &Label) -> Result<()> {
    match (&args.label, args.source.is_dir()) {
        (None, true) => say!("{}", label_of_mount(&args.source)?),
        (None, false) => {
            let store = image::open_store(&args.source, MEMORY_BYTES, true)?;
            say!("{}", store.statistics().label);
        }
        (Some(label), is_mount) => {
            let most = espalier_engine::MAX_LABEL;
            ensure!(label.len() <= most, "the label is {} bytes long; at most {most} fit", label.len());
            match is_mount {
                true => set_label_of_mount(&args.source, label)?,
                false => set_label(&args.source, label)?,
            }
        }
    }
    Ok(())
}

fn set_label(path: &Path, label: &str) -> Result<()> {
    let store = image::open_store(path, MEMORY_BYTES, false)?;
    store.set_label(label).map_err(|error| image::explain(error, path))?;
    store.close().map_err(|error| image::explain(error, path))
}

fn label_of_mount(dir: &Path) -> Result<String> {
    mount_around(dir)?;
    let mut text = [0; LABEL_BYTES];
    control::ask(&control::open(dir)?, GET_LABEL, &mut text).map_err(|e| control::explain(e, dir))?;
    let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

fn set_label_of_mount(dir: &Path, label: &str) -> Result<()> {
    mount_around(dir)?;
    let mut argument = label_bytes(label).ok_or_else(|| anyhow!("the label is too long"))?;
    let asked = control::ask(&control::open(dir)?, SET_LABEL, &mut argument);
    asked.map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => {
            anyhow!("{}: only root and the user of the mount may set the label", dir.display())
        }
        _ => control::explain(error, dir),
    })
}
