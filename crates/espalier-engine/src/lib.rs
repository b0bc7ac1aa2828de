//! A write-optimized, copy-on-write B-epsilon-DAG.

mod device;
mod error;
pub mod key;
mod op;
mod piece;
mod pieces;
mod types;
mod value;
pub mod view;

pub use error::{Error, ErrorKind, Result};
pub use key::{Key, KeyRange};
pub use op::{MergeFunction, MergeFunctions, Op, RangeOp, Update};
pub use types::{Extent, IndexId, Lsn, Msn, PieceId, PieceKind};
pub use value::{LARGE_VALUE, MAX_VALUE, VALUE_PAGE, Value};
