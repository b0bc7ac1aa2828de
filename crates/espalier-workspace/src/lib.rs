//! Workspaces: clones of directories that are listed, compared, applied, undone and thrown away.
//!
//! A workspace is a clone of a directory with a *base*, a clone of what it was when it was made or
//! when its changes were last applied. All that is known of it lies in ordinary files of its user
//! ([`Home`], [`Record`]), and the top directory of the workspace bears an attribute that names it.
//! Every operation is made of the primitives of [`Trees`]: clones, removals and comparisons of
//! whole trees, and renames, many of them at once. docs/design/workspaces.md has the model and the
//! steps.

mod apply;
mod apply_note;
mod changes;
mod checkpoint;
mod commits;
mod create;
mod discard;
mod entry;
mod error;
mod exec;
mod file_lock;
mod file_names;
mod gc;
mod git;
mod git_command;
mod git_exchange;
mod git_files;
mod git_index;
mod git_warm;
mod home;
mod linked;
mod listing;
mod merge;
mod names;
mod original;
mod parallel;
mod patch;
mod path_text;
mod pinned;
mod plan;
mod process;
mod processes;
mod procfs;
mod promote;
mod record;
mod registry;
mod removal;
mod repositories;
mod rescue;
mod source;
mod stage;
mod staging;
#[cfg(test)]
mod testing;
mod three_way;
mod top;
mod trees;
mod workspace;

pub use apply::{Applied, Apply, ApplyOutcome, Conflict, Prefer};
pub use changes::{Changes, changes_since};
pub use checkpoint::Undone;
pub use create::{Create, Created};
pub use discard::Discard;
pub use entry::Kind;
pub use error::{Error, Result};
pub use exec::enter;
pub use gc::{Collect, Collected, Reason};
pub use git::GitNote;
pub use home::Home;
pub use listing::{Listed, own_bytes};
pub use patch::{patch, statistics};
pub use process::Process;
pub use processes::Processes;
pub use procfs::unescape_mount_path;
pub use promote::Promoted;
pub use record::{Checkpoint, Record, Top};
pub use registry::{Registry, Unreadable};
pub use removal::{Removal, RemoveInOneStep};
pub use three_way::{ConflictKind, Decision, Pick, Side, Triple, decide};
pub use trees::{Change, Expected, Mounted, Step, Trees};
pub use workspace::{Changed, Difference, Workspace};
