//! Backing: what a store lies in, an image file or block device or an object store.
//!
//! An object store is named by a URL wherever an image is named by a path. It has no lock of the
//! system but a lease, which is given back when the last user of the device is gone.

mod object_options;

use anyhow::{Context, Result, anyhow};
use espalier_object::{Access, Location, ObjectDevice, RemoteBucket, RequestCounts};
use espalier_storage::{Device, Environment, ErrorKind, FileDevice, OpenMode};
pub(crate) use object_options::ObjectOptions;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device that is open.
#[derive(Debug, Clone)]
pub(crate) enum Backing {
    /// An image file or a block device.
    File(Arc<FileDevice>),
    /// An object store.
    Object(Arc<LeasedDevice>),
}

impl Backing {
    /// The device for a store.
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        match self {
            Self::File(device) => Arc::clone(device) as Arc<dyn Device>,
            Self::Object(device) => Arc::clone(device) as Arc<dyn Device>,
        }
    }

    /// What a user calls it.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::File(device) => device.path().to_owned(),
            Self::Object(device) => PathBuf::from(device.name()),
        }
    }

    /// True for a block device.
    pub(crate) fn is_block_device(&self) -> bool {
        matches!(self, Self::File(device) if device.is_block_device())
    }

    /// Lets the kernel claim a block device for a mount.
    pub(crate) fn release_claim(&self) {
        if let Self::File(device) = self {
            device.release_claim();
        }
    }

    /// What is made durable from now on has a minute for each request to a store that is away.
    pub(crate) fn begin_close(&self) {
        if let Self::Object(device) = self {
            device.object().begin_close();
        }
    }

    /// Makes everything durable and gives the lease of an object store back, so that the next
    /// writer does not wait; nothing is written from then on. Does nothing for a file, whose lock
    /// ends with the last user.
    ///
    /// # Errors
    /// If what was written cannot be made durable, or another writer took over.
    pub(crate) fn close(&self) -> espalier_storage::Result<()> {
        match self {
            Self::File(_) => Ok(()),
            Self::Object(device) => device.object().close(),
        }
    }

    /// True if it has to be told what is free, because it stores it otherwise.
    pub(crate) fn wants_discards(&self) -> bool {
        matches!(self, Self::Object(_))
    }
}

/// An object device that gives its lease back when it is dropped.
#[derive(Debug)]
pub(crate) struct LeasedDevice {
    device: ObjectDevice,
    /// When the opening began, of the first state if it follows a writer.
    opening: Instant,
}

impl LeasedDevice {
    /// What is stored and how many requests there were, for `espalier info`.
    pub(crate) fn describe(&self) -> Value {
        describe(&self.device)
    }

    /// The same for a device that a mount serves, with what its requests come to in a day. The
    /// requests of a command that only looks at a store say nothing of that.
    pub(crate) fn describe_mounted(&self) -> Value {
        let mut described = self.describe();
        described["a_day_at_this_rate"] = a_day(&self.device.request_counts(), self.opening.elapsed());
        described
    }

    /// The device as the root has it now, if that is another state
    /// ([`ObjectDevice::newer`]).
    ///
    /// # Errors
    /// What a request fails with; if the store was deleted or made anew.
    pub(crate) fn newer(&self) -> espalier_storage::Result<Option<Arc<Self>>> {
        let newer = self.device.newer()?;
        Ok(newer.map(|device| Arc::new(Self { device, opening: self.opening })))
    }

    /// When the opening of the first state began: that state was in the store later than this.
    pub(crate) fn opening(&self) -> Instant {
        self.opening
    }

    /// The device.
    pub(crate) fn object(&self) -> &ObjectDevice {
        &self.device
    }
}

/// So many requests at least are counted on: those of less than a minute say nothing about a day.
const SHORTEST_COUNT: Duration = Duration::from_secs(60);

/// What is paid for, if the next day is as the time since the device was opened.
fn a_day(requests: &RequestCounts, since: Duration) -> Value {
    let days = since.max(SHORTEST_COUNT).as_secs_f64() / 86_400.0;
    let scaled = |count: u64| (count as f64 / days).round() as u64;
    json!({
        "puts_and_lists": scaled(requests.puts + requests.lists),
        "gets": scaled(requests.gets),
        "put_bytes": scaled(requests.bytes_put),
        "got_bytes": scaled(requests.bytes_got),
    })
}

fn describe(device: &ObjectDevice) -> Value {
    let (usage, requests) = (device.usage(), device.request_counts());
    let mut described = json!({
        "segments": usage.segments,
        "segment_bytes": usage.segment_bytes,
        "live_bytes": usage.live_bytes,
        "map_objects": usage.map_objects,
        "map_bytes": usage.map_bytes,
        "dead_objects": usage.dead_objects,
        "dead_bytes": usage.dead_bytes,
        "unmovable_segments": usage.unmovable_segments,
        "puts": requests.puts,
        "gets": requests.gets,
        "deletes": requests.deletes,
        "lists": requests.lists,
        "repeats": requests.repeats,
        "bytes_put": requests.bytes_put,
        "bytes_got": requests.bytes_got,
    });
    if let Some(cache) = device.disk_cache_usage() {
        described["disk_cache"] = json!({
            "hits": cache.hits,
            "misses": cache.misses,
            "damaged": cache.damaged,
            "frames": cache.frames,
            "stored_bytes": cache.bytes,
            "limit_bytes": cache.limit_bytes,
            "failed_writes": cache.failed_writes,
        });
    }
    if let Some(journal) = device.journal_usage() {
        described["journal"] = json!({
            "records": journal.last,
            "waiting_for_the_store": journal.waiting,
            "size_bytes": journal.bytes,
            "works": journal.works,
        });
    }
    if let Some(failure) = device.failure() {
        described["failure"] = failure.into();
    }
    described
}

impl Drop for LeasedDevice {
    fn drop(&mut self) {
        if let Err(error) = self.device.close() {
            tracing::warn!(%error, "the lease of the object store was not given back");
        }
    }
}

impl Device for LeasedDevice {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn len(&self) -> u64 {
        self.device.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> espalier_storage::Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn announce(&self, ranges: &[Range<u64>]) {
        self.device.announce(ranges);
    }

    fn read_ahead_bytes(&self) -> u64 {
        self.device.read_ahead_bytes()
    }

    fn keeps_order(&self) -> bool {
        self.device.keeps_order()
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> espalier_storage::Result<()> {
        self.device.write_at(offset, buffers)
    }

    fn sync(&self) -> espalier_storage::Result<()> {
        self.device.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> espalier_storage::Result<()> {
        self.device.discard(offset, length)
    }
}

/// The location that a path is meant to be; `None` for a path.
///
/// # Errors
/// If it is meant to be one and is none.
pub(crate) fn location(path: &Path) -> Result<Option<Location>> {
    match path.to_str().filter(|text| Location::is_meant_by(text)) {
        None => Ok(None),
        Some(text) => {
            let location =
                Location::parse(text).map_err(|e| anyhow!("{}: {e}", Location::without_secrets(text)))?;
            Ok(Some(location))
        }
    }
}

/// True if a path is meant to be a URL.
pub(crate) fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(Location::is_meant_by)
}

/// The objects at a location; `create` makes a local directory that is not there.
///
/// # Errors
/// If the location is not complete.
pub(crate) fn bucket(location: &Location, create: bool) -> Result<Arc<RemoteBucket>> {
    if let Location::Directory(path) = location
        && !create
        && !path.exists()
    {
        return Err(no_store(location));
    }
    let bucket = RemoteBucket::open(location, create);
    bucket.map(Arc::new).map_err(|failure| anyhow!("{location}: {failure}"))
}

fn no_store(location: &Location) -> anyhow::Error {
    anyhow!("{location}: there is no store; make one with espalier mkfs --size 100G URL")
}

/// Opens the device of an object store.
///
/// # Errors
/// If there is none, or it, its cache or its journal are in use.
pub(crate) fn open_object(
    location: &Location,
    access: Access,
    environment: &Arc<dyn Environment>,
    options: &ObjectOptions,
) -> Result<Arc<LeasedDevice>> {
    let bucket = bucket(location, false)?;
    let opening = Instant::now();
    let device = ObjectDevice::open(bucket, environment, access, options.open()?);
    let device = device.map_err(|error| match error.kind {
        ErrorKind::NotFound => no_store(location),
        _ => anyhow!(error),
    });
    let device = device.with_context(|| format!("{location} cannot be opened"))?;
    Ok(Arc::new(LeasedDevice { device, opening }))
}

/// What a way of opening an image is for an object store.
pub(crate) fn access(mode: OpenMode, take_over: bool) -> Access {
    match (mode, take_over) {
        (OpenMode::ReadOnly, _) => Access::ReadOnly,
        (OpenMode::ReadWrite, false) => Access::Write,
        (OpenMode::ReadWrite, true) => Access::TakeOver,
    }
}
