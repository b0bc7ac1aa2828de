//! POSIX semantics over the Espalier engine: paths, inodes, blocks and subtree operations.
//!
//! A [`FileSystem`] is a volume of a [`Store`](espalier_engine::Store) seen as a tree of files. Its
//! calls are those that a mount needs, on [`NodeId`]s; each call that changes something is one
//! atomic batch of the engine. What a call did is visible when it returns, and durable after
//! [`FileSystem::fsync`], [`FileSystem::syncfs`] or [`FileSystem::background_tick`].
//!
//! Keys are described in `layout`, stored values in `record` (and both in `docs/format.md`), the
//! locks in `node`, deviations from what people expect in `docs/semantics.md`.

mod acl;
mod area;
mod attributes;
mod change_tree;
mod changes;
mod check;
mod clone;
mod create;
mod data;
mod describe;
mod diff;
mod error;
#[cfg(test)]
mod fixture;
mod forgotten;
mod fs;
mod join_areas;
mod layout;
mod lengths;
mod list_tree;
mod listing;
mod lookup;
mod merge;
mod node;
mod orphan;
mod record;
mod remove;
mod remove_tree;
mod rename;
mod repair;
mod snapshots;
mod sync;
mod tmpfile;
mod tree_snapshots;
mod types;
mod uniform;
mod xattr;

pub use change_tree::{ModeChange, OwnerChange};
pub use check::{CheckProblem, CheckReport, MAX_PROBLEMS, check};
pub use describe::describe_range;
pub use diff::{Change, TreeDiff};
pub use error::{FsError, FsErrorKind, Result};
pub use fs::FileSystem;
pub use list_tree::TreeEntry;
pub use merge::merge_functions;
pub use repair::{Repaired, repair};
pub use snapshots::{
    SnapshotInfo, create_snapshot, delete_snapshot, find_snapshot, find_snapshot_of, restore_snapshot,
    snapshots,
};
pub use types::*;
