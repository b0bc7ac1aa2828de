//! The options of `espalier workspace`.

use crate::units::{Size, Span};
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier ws create fix-1 --from /pool/base       /pool/fix-1: a writable clone, with what git needs
  espalier ws list                                 those around the working directory
  espalier ws diff fix-1 --patch > fix-1.patch     ignored and binary files too; for git apply
  espalier ws checkpoint fix-1 'before the move'   keep everything as it is
  espalier ws undo fix-1                           back to the last checkpoint; can be undone
  espalier ws apply fix-1                          its changes go into the original, all or none
  espalier ws exec fix-1 -- make test              make sees the workspace at the original's path
  espalier ws discard fix-1                        throw it away

A workspace is a clone of a directory with all that is known of it. It is named by its name, if it lies around the \
working directory (or DIR of --in), or by any path in it. No command needs root. What is known of workspaces lies in \
.espalier-UID, in the topmost directory of the mount that the user may write.

Exit status: 0 done, 1 not done (conflicts, in use, ...), 2 wrong usage; of exec and create -- CMD that of the \
program.")]
pub(crate) struct Workspace {
    #[command(subcommand)]
    pub(crate) what: WorkspaceCommand,
    /// Where to look for workspaces: here and in the directories above (default: the working
    /// directory)
    #[arg(id = "around", long = "in", value_name = "DIR", global = true)]
    pub(crate) around: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What to do with workspaces.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkspaceCommand {
    /// Make a workspace: a clone of a directory, of another workspace or of a snapshot
    Create(WorkspaceCreate),
    /// List workspaces
    List,
    /// Show what a workspace has become since it was made or last applied
    Diff(WorkspaceDiff),
    /// Keep everything in a workspace as it is now
    Checkpoint(WorkspaceCheckpoint),
    /// List the checkpoints of a workspace
    Log(WorkspaceName),
    /// Put a workspace back to a checkpoint; what it was is kept as another one
    Undo(WorkspaceUndo),
    /// Bring the changes of a workspace into its original, all or none
    Apply(WorkspaceApply),
    /// Make a workspace the original; what was the original becomes the workspace
    Promote(WorkspaceForce),
    /// Run a program that sees a workspace at the path of its original
    Exec(WorkspaceExec),
    /// Remove workspaces with all that is known of them
    Discard(WorkspaceDiscard),
    /// Remove workspaces whose time is over or whose program has ended, and what is left of others
    Gc(WorkspaceGc),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier ws create fix-1 --from /pool/base
  espalier ws create job --from /pool/base --count 100 --at /pool/work/job     /pool/work/job-1 to job-100
  espalier ws create try --from fix-1                            of another workspace
  espalier ws create old --from /pool/base/.snapshots/monday     of a snapshot of a directory
  espalier ws create big --from /pool/base --quota 20G           what is written there may take 20 GiB
  espalier ws create run --from /pool/base --ttl 7d -- make test runs make in it; gc removes it in the end

Nothing may be at the place; what is there is never merged with. The place does not lie in the original. Of a git work tree also git's files are prepared, and \
standard error says what was done, once for all of --count. So the first git status reads no file and looks only at \
what changed:
  in the workspace's .git/config: core.checkStat=minimal (in its submodules, too); core.fsmonitor (this program's \
fsmonitor command), core.fsmonitorHookVersion=2, core.untrackedCache=true
  in the original's .git/config: the last three, unless a core.fsmonitor is set there or it may not be written; git \
then looks at everything in the original once, and again after a remount
  in both: the place of the work tree at the end of .git/index
  a clone of a linked worktree becomes a worktree of its own, with a detached head; there nothing is set
--no-git leaves all of that alone.")]
pub(crate) struct WorkspaceCreate {
    /// Its name
    pub(crate) name: String,
    /// What to clone: a directory, a workspace, or DIR/.snapshots/NAME
    #[arg(long, value_name = "DIR|WORKSPACE|SNAPSHOT", default_value = ".")]
    pub(crate) from: PathBuf,
    /// Its path (default: beside the original, under its name)
    #[arg(long, value_name = "PATH")]
    pub(crate) at: Option<PathBuf>,
    /// Make so many, called NAME-1, NAME-2 and so on
    #[arg(long, value_name = "N", conflicts_with = "command")]
    pub(crate) count: Option<u32>,
    /// After this time gc removes it, changed or not, unless it is in use or was promoted: 90s,
    /// 30m, 12h, 7d
    #[arg(long, value_name = "TIME")]
    pub(crate) ttl: Option<Span>,
    /// How much it may hold beside what it shares; more is refused
    #[arg(long, value_name = "SIZE")]
    pub(crate) quota: Option<Size>,
    /// Leave git's files as they are
    #[arg(long)]
    pub(crate) no_git: bool,
    /// Then run this in it; when it has ended, gc may remove the workspace if nothing is left to
    /// apply
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct WorkspaceName {
    /// The workspace: its name, or a path in it
    pub(crate) name: OsString,
}

#[derive(Debug, Args)]
pub(crate) struct WorkspaceForce {
    /// The workspace: its name, or a path in it
    pub(crate) name: OsString,
    /// Even if processes work in it
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier ws diff fix-1                        + added, - removed, ~ changed, > renamed
  espalier ws diff fix-1 --patch src | git -C /pool/base apply --check
  espalier ws diff fix-1 --json | jq -r '.changes[].path'

The time grows with what differs. Times do not count, and what is in .git is git's. Exit status: 0, also if there are \
differences.")]
pub(crate) struct WorkspaceDiff {
    /// The workspace: its name, or a path in it
    pub(crate) name: OsString,
    /// How many lines changed, for each file
    #[arg(long, conflicts_with_all = ["name_only", "patch"])]
    pub(crate) stat: bool,
    /// Paths only
    #[arg(long, conflicts_with = "patch")]
    pub(crate) name_only: bool,
    /// A patch for git apply, with files that git ignores, and binary ones
    #[arg(long)]
    pub(crate) patch: bool,
    /// Only what is at or below these paths, relative to the workspace
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct WorkspaceCheckpoint {
    /// The workspace: its name, or a path in it
    pub(crate) name: OsString,
    /// What to say about it
    #[arg(default_value = "")]
    pub(crate) message: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier ws undo fix-1            to the last checkpoint; the same again takes it back
  espalier ws undo fix-1 3          to number 3 of espalier ws log

Everything goes back, files that git ignores too. What the workspace was is kept as a new checkpoint first, so changes \
that were never applied are no reason to refuse; they are one for discard, until all is applied. Processes that work \
in the workspace, and mounts below it, are reasons.")]
pub(crate) struct WorkspaceUndo {
    /// The workspace: its name, or a path in it
    pub(crate) name: OsString,
    /// The number of the checkpoint (default: the last)
    pub(crate) checkpoint: Option<u64>,
    /// Even if processes work in it
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier ws apply fix-1 --check         what would be done, and the conflicts
  espalier ws apply fix-1                 all of it in one step
  espalier ws apply fix-1 src docs/a.md   only what is there
  espalier ws apply fix-1 --merge         lines of text that both changed are merged
  espalier ws apply fix-1 --theirs big    where both changed: as in the workspace; --ours: as in the original
  espalier ws apply fix-1 --to /pool/next into another directory

What only one side changed is taken from there. What both changed differently is a conflict: all conflicts are listed \
(content, mode, deletion, rename, type), nothing is changed, exit status 1. Files get the time of the apply, so that \
build tools take them for new. Programs in the original see files replaced; .git is left to git fetch.")]
pub(crate) struct WorkspaceApply {
    /// The workspace: its name, or a path in it
    pub(crate) name: OsString,
    /// Where to apply the changes (default: the original)
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Only say what would be done
    #[arg(long)]
    pub(crate) check: bool,
    /// Where both changed, take the workspace's
    #[arg(long, conflicts_with = "ours")]
    pub(crate) theirs: bool,
    /// Where both changed, keep the original's
    #[arg(long)]
    pub(crate) ours: bool,
    /// Merge text that both changed, by git merge-file
    #[arg(long, conflicts_with_all = ["ours", "theirs"])]
    pub(crate) merge: bool,
    /// Only what is at or below these paths, relative to the workspace
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier ws exec fix-1 -- make test
  cd /pool/fix-1/sub && espalier ws exec . -- pytest      runs in /pool/base/sub, which is the workspace's

The program runs in a mount namespace of its own, for users other than root in a user namespace. So absolute paths \
that tools have stored (virtual environments, CMake) are right. Its exit status is that of this command: 127 if it is \
not there, 126 if it cannot be run.")]
pub(crate) struct WorkspaceExec {
    /// The workspace: its name, or a path in it
    pub(crate) name: OsString,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier ws discard fix-1 fix-2
  espalier ws discard --force job-7       in use or with changes that were not applied")]
pub(crate) struct WorkspaceDiscard {
    /// The workspaces: their names, or paths in them
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<OsString>,
    /// Even if processes work in it, or it or what an undo set aside has changes that were not
    /// applied
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier ws gc --dry-run                what would be removed
  espalier ws gc                          for a timer: every hour, say

Removed are workspaces whose time to live is over, changed or not; those made for a program that has ended, if nothing \
is left to apply; and what is known of workspaces that were removed by other means (rm -rf), a week after they were \
missed. What processes work in is kept.")]
pub(crate) struct WorkspaceGc {
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// What is known of workspaces that are not found goes at once
    #[arg(long)]
    pub(crate) missing: bool,
}
