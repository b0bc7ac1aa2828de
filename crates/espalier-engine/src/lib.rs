//! A write-optimized, copy-on-write B-epsilon-DAG: an ordered key-value store on a file or block
//! device.
//!
//! Keys are byte strings in memcmp order, values byte strings of up to 1 MiB. A [`Store`] holds
//! volumes of several indexes each; a [`Batch`] changes any of them at once. Changes are buffered
//! as messages and move towards the leaves in large batches, so that small random writes cost
//! sequential ones; values can be patched and updated without being read, and whole ranges deleted
//! or updated by one message. Snapshots are consistent across all indexes and cost nothing to take.
//!
//! ```
//! use espalier_engine::{
//!     Batch, FileDevice, FormatOptions, IndexId, KeyRange, MergeFunctions, OpenMode, OpenOptions,
//!     Store, SystemEnvironment,
//! };
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("example.store");
//! // Two threads for background work: one can write a checkpoint while the other goes on.
//! let env = Arc::new(SystemEnvironment::new(2));
//! let device = Arc::new(FileDevice::create(&path, 64 << 20)?);
//! Store::format(device, env.clone(), &FormatOptions::default())?;
//!
//! // A merge function that adds a little-endian number to the value.
//! let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
//! let add = move |old: Option<&[u8]>, by: &[u8]| {
//!     Some((number(old.unwrap_or(&[])) + number(by)).to_le_bytes().to_vec())
//! };
//! let merge = MergeFunctions::new().with(1, add);
//! let options = OpenOptions { merge, ..OpenOptions::default() };
//!
//! let device = Arc::new(FileDevice::open(&path, OpenMode::ReadWrite)?);
//! let store = Store::open(device, env.clone(), options.clone())?;
//! let index = IndexId { volume: store.open_or_create_volume("example", 1)?, index: 0 };
//! let mut batch = Batch::new();
//! batch.insert(index, b"fruit/apple", b"red".to_vec());
//! batch.insert(index, b"fruit/pear", b"green".to_vec());
//! batch.patch(index, b"fruit/pear", 0, b"G".to_vec());
//! batch.update(index, b"visits", 1, 3u64.to_le_bytes().to_vec());
//! let lsn = store.commit(batch)?;
//! store.sync(lsn)?;
//! assert_eq!(store.get(index, b"fruit/pear")?.as_deref(), Some(&b"Green"[..]));
//! store.close()?;
//! drop(store);
//!
//! // The next session.
//! let device = Arc::new(FileDevice::open(&path, OpenMode::ReadWrite)?);
//! let store = Store::open(device, env, options)?;
//! let volume = store.volume_by_name("example").expect("made above").id;
//! let index = IndexId { volume, index: 0 };
//! let fruit = store.cursor(index, KeyRange::prefix(b"fruit/"))?;
//! let mut batch = Batch::new();
//! batch.delete_range(index, KeyRange::prefix(b"fruit/"));
//! store.commit(batch)?;
//! assert!(!store.contains(index, b"fruit/apple")?);
//! // The cursor still sees what was there when it was made.
//! for entry in fruit {
//!     let (key, value) = entry?;
//!     println!("{} is {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
//! }
//! store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Store::close`] makes everything durable. A store that is dropped without it has what
//! [`Store::sync`] covered, as after a crash. A general-purpose allocator such as mimalloc or
//! jemalloc makes many workloads 1.4 to 2 times as fast as that of the C library: a program chooses
//! it with `#[global_allocator]`.
//!
//! How it works is in `ARCHITECTURE.md`, what lies on the device in `docs/format.md`. The order of
//! the modules is in `layers.txt`, that of the locks in `lock_order.rs`.

#![forbid(unsafe_code)]

mod checkpoint;
mod commit;
mod device;
mod extents;
mod index;
mod lock_order;
mod log;
mod maintenance;
mod memtable;
mod message;
mod model;
mod pieces;
mod read;
mod readahead;
mod signal;
mod space;
mod store;
mod tree;

// What a program needs to open a store on a file.
pub use espalier_storage::{FileDevice, MemoryDevice, OpenMode, SystemEnvironment};

pub use checkpoint::CheckpointPause;
pub use commit::back_pressure::StallTimes;
pub use device::DeviceStats;
pub use index::catalog::{READ_ONLY_VOLUME, VolumeInfo};
pub use log::LogCounters;
pub use model::batch::{Batch, Touch};
pub use model::error::{Error, ErrorKind, Result};
pub use model::ids::{Extent, IndexId, Lsn, Msn, PieceId, PieceKind};
pub use model::key::{Key, KeyRange, MAX_KEY};
pub use model::op::{ComposeFunction, MergeFunction, MergeFunctions, Op, RangeOp, Update};
pub use model::options::{Compression, FormatOptions, OpenOptions, Tuning};
pub use model::value::{LARGE_VALUE, MAX_VALUE, VALUE_PAGE, Value};
pub use model::{key, view};
pub use read::cursor::{Cursor, Entries, Entry, Within};
pub use read::snapshot::Snapshot;
pub use read::snapshot_index::Slice;
pub use space::{Census, MAX_LABEL, MAX_PARAMETERS, MAX_VOLUME_NAME, RunHistogram, SpaceStats};
pub use store::Store;
pub use store::diff::{Diff, Difference};
pub use store::repair::Rescue;
pub use store::scrub::{ScrubProblem, Scrubbed};
pub use store::statistics::Statistics;
pub use tree::{HeldTally, Loss, Problem, Progress, SpaceUse, VerifyReport};
