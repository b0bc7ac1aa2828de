//! POSIX semantics over the Espalier engine: paths, inodes, blocks and subtree operations.

mod error;
mod fs;
mod types;

pub use error::{FsError, FsErrorKind, Result};
pub use fs::FileSystem;
pub use types::*;
