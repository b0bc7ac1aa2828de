//! Backing: what a store lies in, an image file or block device or an object store.
//!
//! An object store is named by a URL wherever an image is named by a path. It has no lock of the
//! system but a lease, which is given back when the last user of the device is gone.

use anyhow::{Context, Result, anyhow};
use espalier_object::{Access, Location, ObjectDevice, Options, RemoteBucket, RequestCounts, Usage};
use espalier_storage::{Device, Environment, ErrorKind, FileDevice, OpenMode};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

    /// True if it has to be told what is free, because it stores it otherwise.
    pub(crate) fn wants_discards(&self) -> bool {
        matches!(self, Self::Object(_))
    }
}

/// An object device that gives its lease back when it is dropped.
#[derive(Debug)]
pub(crate) struct LeasedDevice(ObjectDevice);

impl LeasedDevice {
    /// What is stored and how many requests there were, for `espalier info`.
    pub(crate) fn describe(&self) -> Value {
        describe(&self.0.usage(), &self.0.request_counts(), self.0.failure())
    }

    /// The device.
    pub(crate) fn object(&self) -> &ObjectDevice {
        &self.0
    }
}

fn describe(usage: &Usage, requests: &RequestCounts, failure: Option<String>) -> Value {
    let mut described = json!({
        "segments": usage.segments,
        "segment_bytes": usage.segment_bytes,
        "live_bytes": usage.live_bytes,
        "map_objects": usage.map_objects,
        "map_bytes": usage.map_bytes,
        "dead_objects": usage.dead_objects,
        "dead_bytes": usage.dead_bytes,
        "puts": requests.puts,
        "gets": requests.gets,
        "deletes": requests.deletes,
        "lists": requests.lists,
        "repeats": requests.repeats,
        "bytes_put": requests.bytes_put,
        "bytes_got": requests.bytes_got,
    });
    if let Some(failure) = failure {
        described["failure"] = failure.into();
    }
    described
}

impl Drop for LeasedDevice {
    fn drop(&mut self) {
        if let Err(error) = self.0.close() {
            tracing::warn!(%error, "the lease of the object store was not given back");
        }
    }
}

impl Device for LeasedDevice {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> espalier_storage::Result<()> {
        self.0.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> espalier_storage::Result<()> {
        self.0.write_at(offset, buffers)
    }

    fn sync(&self) -> espalier_storage::Result<()> {
        self.0.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> espalier_storage::Result<()> {
        self.0.discard(offset, length)
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
            let location = Location::parse(text).map_err(|e| anyhow!("{text}: {e}"))?;
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
    let bucket = RemoteBucket::open(location, create);
    bucket.map(Arc::new).map_err(|failure| anyhow!("{location}: {failure}"))
}

/// Opens the device of an object store.
///
/// # Errors
/// If there is none, or it is in use.
pub(crate) fn open_object(
    location: &Location,
    access: Access,
    environment: &Arc<dyn Environment>,
) -> Result<Arc<LeasedDevice>> {
    let bucket = bucket(location, false)?;
    let device = ObjectDevice::open(bucket, environment, access, Options::default());
    let device = device.map_err(|error| match error.kind {
        ErrorKind::NotFound => {
            anyhow!("{location}: there is no store; make one with espalier mkfs --size 100G URL")
        }
        _ => anyhow!(error),
    });
    Ok(Arc::new(LeasedDevice(device.with_context(|| format!("{location} cannot be opened"))?)))
}

/// What a way of opening an image is for an object store.
pub(crate) fn access(mode: OpenMode, take_over: bool) -> Access {
    match (mode, take_over) {
        (OpenMode::ReadOnly, _) => Access::ReadOnly,
        (OpenMode::ReadWrite, false) => Access::Write,
        (OpenMode::ReadWrite, true) => Access::TakeOver,
    }
}
