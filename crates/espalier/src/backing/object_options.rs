//! Mount options of object stores: cache and journal on a local disk, and what to do while the
//! store is away.

use crate::units::Size;
use anyhow::{Context, Result, anyhow, ensure};
use espalier_object::{DiskCache, Options};
use espalier_storage::{Device, FileDevice, FileOptions, OpenMode};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Sizes if none are asked for.
const DEFAULT_DISK_CACHE_BYTES: u64 = 10 << 30;
const DEFAULT_JOURNAL_BYTES: u64 = 256 << 20;

/// How long to wait for a server that is just ending to let go of cache and journal.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// What a caller gets while the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offline {
    /// An error, when requests have failed for a minute.
    Eio,
    /// Nothing before the store is there again.
    Wait,
}

/// What the options ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectOptions {
    disk_cache: Option<PathBuf>,
    disk_cache_bytes: u64,
    journal: Option<PathBuf>,
    journal_bytes: u64,
    offline: Offline,
    follow: bool,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        Self {
            disk_cache: None,
            disk_cache_bytes: DEFAULT_DISK_CACHE_BYTES,
            journal: None,
            journal_bytes: DEFAULT_JOURNAL_BYTES,
            offline: Offline::Eio,
            follow: false,
        }
    }
}

impl ObjectOptions {
    /// Takes one option; false if it is another one.
    ///
    /// # Errors
    /// A wrong value.
    pub(crate) fn apply(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let size = |text: &str| -> Result<u64> {
            let size: Result<Size, String> = text.parse();
            Ok(size.map_err(|error| anyhow!("mount option {name}: {error}"))?.0)
        };
        // The server changes its directory before it opens them.
        let path = |text: &str| std::path::absolute(text).with_context(|| format!("mount option {name}"));
        match (name, value) {
            ("disk_cache", Some(directory)) => self.disk_cache = Some(path(directory)?),
            ("disk_cache_size", Some(bytes)) => self.disk_cache_bytes = size(bytes)?,
            ("nodisk_cache", None) => self.disk_cache = None,
            ("journal", Some(file)) => self.journal = Some(path(file)?),
            ("journal_size", Some(bytes)) => self.journal_bytes = size(bytes)?,
            ("nojournal", None) => self.journal = None,
            ("offline", Some("eio")) => self.offline = Offline::Eio,
            ("follow" | "nofollow", None) => self.follow = name == "follow",
            ("offline", Some("wait")) => self.offline = Offline::Wait,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Fails if an option was given, none of which an image has.
    ///
    /// # Errors
    /// If one was.
    pub(crate) fn refuse_for_image(&self, image: &Path) -> Result<()> {
        ensure!(
            *self == Self::default(),
            "{}: disk_cache, journal, offline and follow are for object stores, not for images",
            image.display()
        );
        Ok(())
    }

    /// True if a mount shows what another machine writes.
    pub(crate) fn follows(&self) -> bool {
        self.follow
    }

    /// Opens cache and journal: what the device of an object store takes.
    ///
    /// # Errors
    /// If another process has them in use, or they cannot be made or opened.
    pub(crate) fn open(&self) -> Result<Options> {
        let mut options = Options::default();
        if self.offline == Offline::Wait {
            options.budget = None;
        }
        if let Some(directory) = &self.disk_cache {
            let cache = DiskCache::open(directory, self.disk_cache_bytes, LOCK_TIMEOUT);
            let cache =
                cache.with_context(|| format!("the disk cache {} cannot be used", directory.display()))?;
            options.disk_cache = Some(Arc::new(cache));
        }
        if let Some(file) = &self.journal {
            let journal = open_journal(file, self.journal_bytes);
            let journal =
                journal.with_context(|| format!("the journal {} cannot be used", file.display()))?;
            options.journal = Some(journal as Arc<dyn Device>);
        }
        Ok(options)
    }
}

/// Opens the file or block device of a journal. A file that is not there, or empty, gets its space
/// at once, so that no sync finds the disk full.
fn open_journal(path: &Path, bytes: u64) -> Result<Arc<FileDevice>> {
    let is_block_device = path.metadata().is_ok_and(|found| found.file_type().is_block_device());
    if !is_block_device {
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut open = File::options();
        let file = open.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let file = file.open(path)?;
        if file.metadata()?.len() == 0 {
            // Its name comes first, so what is synced to it later is in a file that a crash does
            // not take away.
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let synced = File::open(directory.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all());
            synced.context("its directory cannot be synced")?;
            if let Err(error) = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                // It is as if it had not been there.
                let _ = file.set_len(0);
                return Err(error).context("there is no room for it");
            }
        }
    }
    let options = FileOptions::new(OpenMode::ReadWrite).wait(LOCK_TIMEOUT);
    Ok(Arc::new(FileDevice::open_with(path, &options)?))
}
