//! Opening images and stores, with messages that say what to do.

use anyhow::{Context, Result, anyhow, ensure};
use espalier_engine::{ErrorKind, OpenOptions, Store};
use espalier_storage::{Device, Environment, FileDevice, FileOptions, OpenMode, SystemEnvironment};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backing::{self, Backing, ObjectOptions};
use crate::lock_holder;
use crate::mounts;
use crate::ui::complain;

/// How long a command waits for a server that is just ending.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a command waits for the lock before it says so.
const LOCK_NOTICE_DELAY: Duration = Duration::from_secs(1);

/// How long one attempt at the lock takes.
const LOCK_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(300);

/// The volume with the files.
pub(crate) const VOLUME: &str = "main";

/// Background threads of a store, at most and at least.
const MAX_THREADS: usize = 8;
const MIN_THREADS: usize = 2;

/// The real world, for engine and file system.
pub(crate) fn environment() -> Arc<SystemEnvironment> {
    let processors = std::thread::available_parallelism().map_or(MIN_THREADS, Into::into);
    Arc::new(SystemEnvironment::new(processors.clamp(MIN_THREADS, MAX_THREADS)))
}

/// Opens the device of an image and takes its lock. Waits up to a minute for a server that is just
/// ending, but not for a mount that is there to stay, and says for which process it waits.
///
/// # Errors
/// If it is not there, may not be opened, or is in use.
pub(crate) fn open_device(path: &Path, mode: OpenMode) -> Result<FileDevice> {
    open_device_while(path, mode, &|| true)
}

/// As [`open_device`], and gives up waiting as soon as `wanted` says no.
///
/// # Errors
/// As for [`open_device`]; if it is not wanted any more.
pub(crate) fn open_device_while(
    path: &Path,
    mode: OpenMode,
    wanted: &dyn Fn() -> bool,
) -> Result<FileDevice> {
    ensure!(
        !backing::is_url(path),
        "{}: this is done on an image only; espalier copy makes one of an object store",
        path.display()
    );
    let begun = Instant::now();
    let mut told = false;
    loop {
        let options = FileOptions::new(mode).wait(LOCK_ATTEMPT_TIMEOUT);
        let busy = match FileDevice::open_with(path, &options) {
            Ok(device) => return Ok(device),
            Err(e) if e.kind == espalier_storage::ErrorKind::Busy => e,
            Err(e) => return Err(explain_device(e, path)),
        };
        if let Some(mount) = mounted(path) {
            let (path, mount) = (path.display(), mount.display());
            return Err(anyhow!("{path} is mounted at {mount}; unmount it first (espalier umount {mount})"));
        }
        if !wanted() {
            return Err(anyhow!("interrupted while another process had {} open", path.display()));
        }
        let holder = lock_holder::of(path);
        if begun.elapsed() > LOCK_TIMEOUT {
            return Err(match holder {
                Some(holder) => anyhow!("{} is in use by {holder}; let it end first", path.display()),
                None => busy.into(),
            });
        }
        if !told && begun.elapsed() > LOCK_NOTICE_DELAY {
            match holder {
                Some(holder) => complain!("espalier: waiting for {holder} to let go of {}", path.display()),
                None => complain!("espalier: waiting for another process to let go of {}", path.display()),
            }
            told = true;
        }
    }
}

/// Opens what a store lies in: an image, a block device or an object store.
///
/// # Errors
/// As for [`open_device`].
pub(crate) fn open_backing(path: &Path, mode: OpenMode) -> Result<Backing> {
    open_backing_while(path, mode, &ObjectOptions::default(), false, &|| true)
}

/// As [`open_backing`], and gives up waiting as soon as `wanted` says no; with `take_over` an
/// object store is taken from another writer. `options` are for object stores.
///
/// # Errors
/// As for [`open_device_while`].
pub(crate) fn open_backing_while(
    path: &Path,
    mode: OpenMode,
    options: &ObjectOptions,
    take_over: bool,
    wanted: &dyn Fn() -> bool,
) -> Result<Backing> {
    match backing::location(path)? {
        Some(location) => {
            let environment: Arc<dyn Environment> = environment();
            let access = backing::access(mode, take_over);
            backing::open_object(&location, access, &environment, options).map(Backing::Object)
        }
        None => Ok(Backing::File(Arc::new(open_device_while(path, mode, wanted)?))),
    }
}

/// Where the image is mounted, as far as this process can see, by a server that lives.
pub(crate) fn mounted(path: &Path) -> Option<std::path::PathBuf> {
    let absolute = if backing::is_url(path) { path.to_owned() } else { path.canonicalize().ok()? };
    mounts::of(&absolute).ok()?.filter(|m| !m.is_dead()).map(|m| m.dir)
}

/// The absolute path of an image, without links; a URL as it is always written.
///
/// # Errors
/// If there is none.
pub(crate) fn resolve(path: &Path) -> Result<std::path::PathBuf> {
    if let Some(location) = backing::location(path)? {
        return Ok(location.to_string().into());
    }
    path.canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            anyhow!(
                "{}: there is no such image; make one with espalier mkfs --size 20G IMAGE",
                path.display()
            )
        }
        _ => anyhow!(e).context(format!("{} cannot be opened", path.display())),
    })
}

fn explain_device(error: espalier_storage::Error, path: &Path) -> anyhow::Error {
    use espalier_storage::ErrorKind as Kind;
    let advice = match error.kind {
        Kind::NotFound => "there is no such image; make one with espalier mkfs --size 20G IMAGE",
        Kind::PermissionDenied => "you may not open it; become root or ask its owner",
        Kind::ReadOnly => "it cannot be written; mount with -o ro, or make it writable",
        _ => return error.into(),
    };
    anyhow!("{}: {advice}", path.display()).context(error.to_string())
}

/// Opens the store of an image, for reading only or for everything.
///
/// # Errors
/// As [`open_device`]; if there is no store, or one that this program cannot read.
pub(crate) fn open_store(path: &Path, memory: u64, read_only: bool) -> Result<Arc<Store>> {
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    store_on(&open_backing(path, mode)?, memory, read_only, false)
}

/// Opens the store on a device that is open already; with `discard` the device is told what becomes
/// free.
///
/// # Errors
/// If there is no store, or one that this program cannot read.
pub(crate) fn store_on(backing: &Backing, memory: u64, read_only: bool, discard: bool) -> Result<Arc<Store>> {
    store_over(backing.device(), backing, memory, read_only, discard)
}

/// As [`store_on`], through `device`, which passes everything on to the device of `backing`.
///
/// # Errors
/// As for [`store_on`].
pub(crate) fn store_over(
    device: Arc<dyn Device>,
    backing: &Backing,
    memory: u64,
    read_only: bool,
    discard: bool,
) -> Result<Arc<Store>> {
    let path = backing.path();
    let merge = espalier_fs::merge_functions();
    let discard = discard || backing.wants_discards();
    let options = OpenOptions { memory, read_only, merge, discard, ..Default::default() };
    let store = Store::open(device, environment(), options);
    store.map_err(|e| explain(e, &path)).with_context(|| format!("{} cannot be opened", path.display()))
}

/// Adds what to do about an engine error.
pub(crate) fn explain(error: espalier_engine::Error, path: &Path) -> anyhow::Error {
    let shown = path.display();
    let advice = match error.kind() {
        ErrorKind::NotAStore => {
            format!("{shown} holds no Espalier file system; is the name right? (espalier mkfs makes one)")
        }
        ErrorKind::NewerFormat => {
            format!("{shown} was written by a newer Espalier; use that version or a later one")
        }
        ErrorKind::Damaged => {
            format!(
                "restore it from a backup, or copy out what can be read (espalier salvage {shown} DIR) and repair it \
                 (espalier fsck --repair {shown})"
            )
        }
        ErrorKind::Io => {
            format!("the device below {shown} fails; see the kernel log, and save what can be read")
        }
        ErrorKind::NoSpace => {
            format!("{shown} is full; free some space, or make it larger (espalier resize {shown} SIZE)")
        }
        _ => return error.into(),
    };
    anyhow!(advice).context(error)
}
