//! POSIX semantics over the Espalier engine: paths, inodes, blocks and subtree operations.
//!
//! A [`FileSystem`] is a volume of a [`Store`](espalier_engine::Store) seen as a tree of files. Its
//! calls are those that a mount needs, on [`NodeId`]s; each call that changes something is one
//! atomic batch of the engine. What a call did is visible when it returns, and durable after
//! [`FileSystem::fsync`], [`FileSystem::syncfs`] or [`FileSystem::background_tick`].
//!
//! [`Paths`] has the calls of POSIX that take a path, for programs that use a store as a library.
//!
//! Keys are described in `model::layout`, stored values in `model::record` (and both in
//! `docs/format.md`), the locks in `docs/design/fs.md`, deviations from what people expect in
//! `docs/semantics.md`.

#![forbid(unsafe_code)]

mod check;
mod data;
mod file;
mod file_system;
mod inode;
mod links;
mod lock_order;
mod model;
mod namespace;
mod orphan;
mod path;
mod quota;
mod references;
mod snapshot;
#[cfg(test)]
mod test_support;
mod tree_ops;
mod volume;

pub use check::repair::{Repaired, repair};
pub use check::report::{CheckProblem, CheckReport, MAX_PROBLEMS};
pub use check::verify::check;
pub use file_system::FileSystem;
pub use model::access::Credentials;
pub use model::describe::describe_range;
pub use model::error::{FsError, FsErrorKind, Result};
pub use model::merge::merge_functions;
pub use model::new_file::{Content, MAX_NEW_FILE_BYTES, NewAttributes};
pub use model::types::*;
pub use model::wire::{WireReader, WireWriter};
pub use path::bulk::{Caching, ReadRequest, read_order};
pub use path::caller::{At, Links, PathCaller, Paths, Policy};
pub use path::changes::RenameHow;
pub use path::filter::Filter;
pub use path::handle::{Handle, Open};
pub use path::trees::WalkEntry;
pub use path::write_many::{WriteHow, WriteRequest, WrittenBatch};
pub use snapshot::volume::{
    SNAPSHOTS_NAME, SnapshotInfo, create_snapshot, delete_snapshot, find_snapshot, find_snapshot_of,
    restore_snapshot, snapshot_directory_attr, snapshot_directory_number, snapshots,
};
pub use tree_ops::changes::ChangedPaths;
pub use tree_ops::diff::TreeDiff;
pub use tree_ops::list::TreeEntry;
pub use volume::change_journal::ChangeWaiter;
