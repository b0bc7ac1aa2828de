//! A write-optimized, copy-on-write B-epsilon-DAG.

mod batch;
mod cursor;
mod device;
mod error;
mod index;
pub mod key;
#[allow(dead_code, reason = "used by the store, which is being built")]
mod log;
mod memtable;
mod op;
mod options;
mod piece;
mod pieces;
mod ranges;
mod resolve;
mod snapshot;
mod space;
mod store;
mod tree;
mod types;
mod value;
pub mod view;

pub use batch::Batch;
pub use cursor::{Cursor, Entry};
pub use device::DeviceStats;
pub use error::{Error, ErrorKind, Result};
pub use key::{Key, KeyRange};
pub use op::{MergeFunction, MergeFunctions, Op, RangeOp, Update};
pub use options::{Compression, FormatOptions, OpenOptions, Tuning};
pub use snapshot::Snapshot;
pub use space::{MAX_LABEL, MAX_PARAMETERS, MAX_VOLUME_NAME, RunHistogram, SpaceStats};
pub use store::{Store, VolumeInfo};
pub use types::{Extent, IndexId, Lsn, Msn, PieceId, PieceKind};
pub use value::{LARGE_VALUE, MAX_VALUE, VALUE_PAGE, Value};
