//! The options of the commands for whole trees.

use crate::units::Size;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier clone /mnt/project /mnt/work/1      a writable copy of everything below, at once
  espalier clone /mnt/project /mnt/work        the same as /mnt/work/project, if /mnt/work is a directory
  espalier clone -T /mnt/project /mnt/work     refuses if /mnt/work exists
  espalier clone disk.img:project disk.img:copy   in an image that is not mounted

Source and clone share what they have in common and change independently. Times, owners, modes, extended \
attributes and hard links are kept; every file has a number (st_ino) of its own. Root may clone anything, \
other users what is all their own; in an image that is not mounted a user that may write it may do anything.")]
pub(crate) struct CloneArgs {
    /// The file or directory to clone
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,
    /// What the clone is called, or a directory to put it in
    #[arg(value_name = "DST")]
    pub(crate) destination: PathBuf,
    /// DST is what the clone is called, and never a directory to put it in
    #[arg(short = 'T', long)]
    pub(crate) no_target_directory: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier rm /mnt/work/1 /mnt/work/2          two trees go, however large, in one step each
  espalier rm disk.img:work/1                  in an image that is not mounted

What belongs to others is left, with the directories above it, and reported: exit status 1. The space is \
free again within seconds, or when the last program has closed what it has open there.")]
pub(crate) struct Remove {
    /// The directories (or files) to remove
    #[arg(value_name = "DIR", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Do not complain about what is not there
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  git config core.fsmonitor 'espalier fsmonitor' && git config core.fsmonitorHookVersion 2
  git config core.untrackedCache true

Git then asks for what changed and looks at nothing else. espalier workspace create sets it up. Git runs \
this with the version of the protocol, which is 2, and the token of the last answer; the current directory \
is the top of the work tree. After a remount everything counts as changed, once or twice. Where it cannot be \
told what changed (another file system, something there that belongs to another user) the exit status is 1, \
and git looks at everything.")]
pub(crate) struct FsMonitor {
    /// The version of the protocol
    #[arg(value_name = "VERSION")]
    pub(crate) protocol: u32,
    /// The token of the last answer
    #[arg(value_name = "TOKEN", default_value = "")]
    pub(crate) token: OsString,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier chown -R build:build /mnt/work/1    owner and group of everything below, in one step
  espalier chown -R :users /mnt/share          the group only
  espalier chown -R 1000:1000 disk.img:home    in an image that is not mounted

Symbolic links change too; set-id bits and capabilities of files go, as with chown(1). For root.")]
pub(crate) struct Chown {
    /// Whole trees; there is no other way
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// OWNER, OWNER:GROUP or :GROUP, names or numbers
    pub(crate) owner: String,
    /// The trees
    #[arg(value_name = "DIR", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier chmod -R u+rwX,go-w /mnt/work/1     clauses as for chmod(1), but no copies like g=u
  espalier chmod -R 755 /mnt/www               everything gets this mode; directories keep set-id bits
  espalier chmod -R go-w disk.img:www          in an image that is not mounted")]
pub(crate) struct Chmod {
    /// Whole trees; there is no other way
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// An octal mode, or clauses like u+rwX,go-w
    #[arg(allow_hyphen_values = true)]
    pub(crate) mode: String,
    /// The trees
    #[arg(value_name = "DIR", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier snapshot create /mnt before-upgrade      the whole volume as it is now, at no cost
  ls /mnt/.snapshots/before-upgrade                 look into it; listings do not show .snapshots
  espalier snapshot list /mnt
  espalier snapshot delete /mnt before-upgrade
  espalier snapshot restore disk.img before-upgrade  the image must not be mounted
  espalier mount disk.img /old -o ro,snapshot=before-upgrade

  espalier snapshot create /mnt/project monday      of a directory alone, with what is below
  ls /mnt/project/.snapshots/monday
  espalier snapshot restore /mnt/project monday     in one step, mounted; what it was until then is removed
  espalier snapshot list /mnt                       of directories as NUMBER/NAME, with the directory's st_ino
  espalier snapshot delete /mnt 4711/monday         if the directory is gone
  espalier snapshot create disk.img:project tuesday   in an image that is not mounted
  espalier mount disk.img /old -o ro,snapshot=4711/monday

The root of a mount, or an image, stands for the whole volume; any other directory for itself. Snapshots are kept \
when the directory is removed; they go along when it is renamed.")]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    pub(crate) what: SnapshotCommand,
}

/// What to do with snapshots.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Keep the volume, or a directory, as it is now under a name
    Create(SnapshotCreate),
    /// List all snapshots, oldest first
    List(SnapshotList),
    /// Delete a snapshot
    Delete(SnapshotOne),
    /// Make the volume, or a directory, what it was; what it has become since is lost, unless there
    /// is a snapshot of it
    Restore(SnapshotOne),
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotCreate {
    /// A directory of a mounted file system, or an image or IMAGE:PATH that is not mounted
    #[arg(value_name = "DIR|IMAGE[:PATH]")]
    pub(crate) source: PathBuf,
    /// Its name
    pub(crate) name: String,
    /// It can be changed when it is mounted on its own (-o snapshot=NAME)
    #[arg(long)]
    pub(crate) writable: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotList {
    /// A directory of a mounted file system, or an image or IMAGE:PATH that is not mounted
    #[arg(value_name = "DIR|IMAGE[:PATH]")]
    pub(crate) source: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotOne {
    /// A directory of a mounted file system (to restore, not its root), or an image or IMAGE:PATH
    /// that is not mounted
    #[arg(value_name = "DIR|IMAGE[:PATH]")]
    pub(crate) source: PathBuf,
    /// Its name; NUMBER/NAME for that of another directory
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier diff /mnt/project /mnt/work/1                    what a clone has become
  espalier diff /mnt/.snapshots/before/etc /mnt/etc         since a snapshot
  espalier diff disk.img:.snapshots/before disk.img:        in an image that is not mounted
  espalier diff --json A B | jq -r '.changed[]'

Prints + added, - removed, ~ changed paths, relative to the directories. The time grows with what differs, not \
with what there is. For root, and for the user that owns all of both. Exit status: 0, also if there are differences.")]
pub(crate) struct Diff {
    /// The older directory
    #[arg(value_name = "A")]
    pub(crate) old: PathBuf,
    /// The newer directory
    #[arg(value_name = "B")]
    pub(crate) new: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier quota set /mnt/work/1 20G           what nothing outside shares may take 20 GiB
  espalier quota set /mnt/share --total 100G   all that it refers to may take 100 GiB
  espalier quota show /mnt/work/1
  espalier quota clear /mnt/work/1

Calls that would go beyond a limit fail with EDQUOT (disk quota exceeded); removing always works. With -o writeback \
write fills the kernel's pages, and fsync or close fail: see their results. df inside shows the limit. Space is that of the store, after compression. Limits above a directory count too. A clone has a limit of its \
own, and the limit goes along when the directory is moved. Of a file with several names all must lie inside.

Set and cleared by root, by the owner of the mount's root, and by a user that owns the directory and the one above. To \
limit a user, root gives the user a directory in one of root's.")]
pub(crate) struct Quota {
    #[command(subcommand)]
    pub(crate) what: QuotaCommand,
}

/// What to do with the limits of trees.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum QuotaCommand {
    /// Limit a tree, in place of the limits that it had
    Set(QuotaSet),
    /// Show limits, and what trees take of them
    Show(QuotaDirs),
    /// Take limits away
    Clear(QuotaDirs),
}

#[derive(Debug, Args)]
pub(crate) struct QuotaSet {
    /// The directory
    pub(crate) dir: PathBuf,
    /// What it may hold that nothing outside shares
    #[arg(required_unless_present = "total")]
    pub(crate) size: Option<Size>,
    /// All that it may refer to, shared or not
    #[arg(long, value_name = "SIZE")]
    pub(crate) total: Option<Size>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct QuotaDirs {
    /// The directories
    #[arg(value_name = "DIR", required = true)]
    pub(crate) dirs: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier du /mnt/work/1                space that everything below takes
  espalier du --exclusive /mnt/work/*    space that removing it would give back
  espalier du disk.img:work              in an image that is not mounted

Space in the store, after compression, of whole pieces of up to some hundred KiB; what clones share counts for \
each of them, unless --exclusive. For root; with --exclusive, as of at most two seconds ago, also for the owner.")]
pub(crate) struct Du {
    /// Files or directories
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Only what nothing else shares (takes time for that alone)
    #[arg(long)]
    pub(crate) exclusive: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
