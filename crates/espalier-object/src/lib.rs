//! A block device for Espalier whose blocks lie in an object store: S3 or what speaks its language,
//! Google Cloud Storage, Azure Blob Storage, or a local directory.
//!
//! [`ObjectDevice`] is an [`espalier_storage::Device`], so the engine does not know of it.
//! Why a sync that returned survives, why one writer wins and when an object may be deleted is
//! argued in docs/design/object-store.md; the bytes are in docs/format.md, "Object store".
//!
//! ```no_run
//! # use espalier_object::{Access, Location, ObjectDevice, Options, Present, RemoteBucket};
//! # use espalier_storage::{Environment, SystemEnvironment};
//! # use std::sync::Arc;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let location = Location::parse("file:///srv/store")?;
//! let bucket = Arc::new(RemoteBucket::open(&location, true).map_err(|failure| failure.message)?);
//! let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(2));
//! let options = Options::default();
//! ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse)?;
//! let device = ObjectDevice::open(bucket, &environment, Access::Write, options)?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod bucket;
mod cache;
mod device;
mod disk_cache;
mod fetches;
mod format;
mod journal;
mod map;
mod objects;
mod pages;
mod requests;
mod runs;
mod segment;
mod simulated;

pub use bucket::{
    Bucket, Condition, Failure, FailureKind, Location, LocationError, ObjectFacts, RemoteBucket, Reply,
    Request, Ticket, Version,
};
pub use device::{Access, CheckReport, ObjectDevice, Options, Present, check_objects};
pub use disk_cache::{DiskCache, DiskCacheUsage};
pub use journal::JournalUsage;
pub use objects::Usage;
pub use requests::RequestCounts;
pub use simulated::{BucketPoint, SimulatedBucket, Trouble};
