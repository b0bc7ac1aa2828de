//! `espalier mkfs`: makes an empty file system.

mod target;

use crate::args::{Compress, Mkfs};
use crate::backing::{self, ObjectOptions};
use crate::image;
use crate::signature;
use crate::ui::say;
use crate::units::Size;
use anyhow::{Context, Result, bail, ensure};
use espalier_engine::{Compression, FormatOptions, OpenOptions, Store};
use espalier_object::{Access, Location, ObjectDevice, Options, Present};
use espalier_storage::{Device, Environment, Existing, FileDevice};
use std::io::IsTerminal;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

/// The longest label, in bytes.
const MAX_LABEL_BYTES: usize = 64;

/// Runs the command.
pub(crate) fn run(args: &Mkfs) -> Result<()> {
    let target = &args.target;
    ensure!(
        args.label.len() <= MAX_LABEL_BYTES,
        "the label is {} bytes long; at most {MAX_LABEL_BYTES} fit",
        args.label.len()
    );
    if let Some(location) = backing::location(target)? {
        return in_object_store(&location, args);
    }
    let before = std::fs::metadata(target).ok();
    let size = wanted_size(args, before.as_ref())?;
    if let Some(dir) = image::mounted(target) {
        bail!("{} is mounted at {}; it was left as it is", target.display(), dir.display());
    }
    let has_content = before.as_ref().is_some_and(|m| m.len() > 0 || m.file_type().is_block_device());
    let content = match signature::find(target) {
        // Force means not to care.
        _ if !has_content => None,
        Err(_) if args.force => None,
        found => found?,
    };
    if !args.force
        && let Some(found) = &content
    {
        bail!("{} contains {found}; it was left as it is (--force overwrites it)", target.display());
    }
    if std::io::stdout().is_terminal() {
        say!("{}", target::describe(target, before.as_ref(), size, content.as_deref()));
        say!("{}", announcement(args, before.as_ref().map(std::fs::Metadata::len), size));
    }
    let device = FileDevice::create_with(target, size, Existing::Replace)
        .with_context(|| format!("{} cannot be made", target.display()))?;
    let device = Arc::new(device);
    if let Err(error) = format(device.clone(), args) {
        // Nothing is left behind that was not there before.
        if before.is_none() {
            let _ = std::fs::remove_file(target);
        }
        return Err(error);
    }
    say!(
        "{}: made an Espalier file system of {}, compression {}; mount it with: espalier mount {} DIR",
        target.display(),
        Size(device.len()),
        compression_name(args.compress),
        target.display()
    );
    Ok(())
}

/// Makes a file system in an object store.
fn in_object_store(location: &Location, args: &Mkfs) -> Result<()> {
    let Some(Size(size)) = args.size else {
        bail!("{location}: say how large it shall be, for example --size 1T; only what is used is stored");
    };
    if let Some(dir) = image::mounted(&args.target) {
        bail!("{location} is mounted at {}; it was left as it is", dir.display());
    }
    let environment: Arc<dyn Environment> = image::environment();
    let present = if args.force { Present::Replace } else { Present::Refuse };
    if std::io::stdout().is_terminal() {
        say!("{}", announcement(args, None, size));
    }
    let bucket = backing::bucket(location, true)?;
    ObjectDevice::create(bucket, &environment, size, &Options::default(), present)
        .with_context(|| format!("{location} cannot be made (--force overwrites what is there)"))?;
    let device = backing::open_object(location, Access::Write, &environment, &ObjectOptions::default())?;
    let size = Size(device.len());
    format(device, args)?;
    say!(
        "{location}: made an Espalier file system of {size}, compression {}; mount it with: espalier mount '{location}' DIR",
        compression_name(args.compress)
    );
    Ok(())
}

fn format(device: Arc<dyn Device>, args: &Mkfs) -> Result<()> {
    let target = &args.target;
    let environment = image::environment();
    let options = FormatOptions {
        compression: match args.compress {
            Compress::None => Compression::None,
            Compress::Lz4 => Compression::Lz4,
            Compress::Zstd => Compression::Zstd,
        },
        label: args.label.clone(),
        ..Default::default()
    };
    let explained = |e| image::explain(e, target);
    Store::format(device.clone(), environment.clone(), &options).map_err(explained)?;
    let open = OpenOptions { merge: espalier_fs::merge_functions(), ..Default::default() };
    let store = Store::open(device, environment.clone(), open).map_err(explained)?;
    let now = i64::try_from(environment.now().as_nanos()).unwrap_or(0);
    let root = espalier_fs::FormatOptions {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        now,
        ..Default::default()
    };
    espalier_fs::FileSystem::format(&store, &root)
        .with_context(|| format!("the root directory of {} cannot be made", target.display()))?;
    store.close().map_err(explained)
}

/// What is about to be made, in a line for people. `size` is 0 for all of a device; `before` is how
/// long an image is so far.
fn announcement(args: &Mkfs, before: Option<u64>, size: u64) -> String {
    let label = if args.label.is_empty() { String::new() } else { format!(", label '{}'", args.label) };
    let all = if size == 0 { "all of it".to_owned() } else { Size(size).to_string() };
    let length = match before {
        // A device has no length.
        None | Some(0) => "",
        Some(before) if size < before => "; the image becomes shorter",
        Some(before) if size > before => "; the image becomes longer",
        Some(_) => "",
    };
    let lost = if args.force { "; what is there is lost" } else { "" };
    let compression = compression_name(args.compress);
    format!("makes an Espalier file system of {all}, compression {compression}{label}{length}{lost}")
}

fn compression_name(compress: Compress) -> &'static str {
    match compress {
        Compress::None => "none",
        Compress::Lz4 => "lz4",
        Compress::Zstd => "zstd",
    }
}

/// The size asked for, or that of what is there; 0 for all of a block device.
fn wanted_size(args: &Mkfs, before: Option<&std::fs::Metadata>) -> Result<u64> {
    let shown = args.target.display();
    let Some(before) = before else {
        let parent = args.target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        ensure!(parent.is_dir(), "{shown}: there is no directory {}; make it first", parent.display());
        return match args.size {
            Some(Size(size)) => Ok(size),
            None => bail!("{shown} is not there yet: say how large it shall be, for example --size 20G"),
        };
    };
    if before.is_dir() {
        bail!("{shown} is a directory; name an image file or a block device");
    }
    match args.size {
        Some(Size(size)) => Ok(size),
        None if before.file_type().is_block_device() || before.len() > 0 => Ok(before.len()),
        None => bail!("{shown} is empty: say how large it shall be, for example --size 20G"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        mkfs: Mkfs,
    }

    #[test]
    fn what_is_about_to_be_made_is_said() {
        let said = |words: &[&str], before, size| {
            announcement(&Line::parse_from([&["mkfs"], words].concat()).mkfs, before, size)
        };
        let all = said(&["x", "--label", "data", "--compress", "none"], Some(0), 0);
        assert_eq!(all, "makes an Espalier file system of all of it, compression none, label 'data'");
        let shorter = said(&["x", "--force"], Some(2 << 30), 1 << 30);
        assert!(
            shorter.ends_with("of 1 GiB, compression none; the image becomes shorter; what is there is lost"),
            "{shorter}"
        );
        assert!(said(&["x"], Some(1), 1 << 30).ends_with("; the image becomes longer"));
        assert!(said(&["x"], Some(1 << 30), 1 << 30).ends_with("none"));
    }
}
