//! The command line: commands, their options, and the names under which mount(8) and its kin call
//! us.

mod bench;
mod files;
pub(crate) mod mount_options;
mod trees;
mod watch;
mod workspace;

use crate::units::Size;
use anyhow::Context;
pub(crate) use bench::{Bench, BenchSuite, SuiteOptions};
use clap::{Args, Parser, Subcommand, ValueEnum};
pub(crate) use files::{Cat, Cp, Export, ExportFormat, FileType, Find, Import, Ls};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
pub(crate) use trees::{
    Chmod, Chown, CloneArgs, Diff, Du, FsMonitor, Quota, QuotaCommand, QuotaDirs, QuotaSet, Remove, Snapshot,
    SnapshotCommand, SnapshotCreate, SnapshotList, SnapshotOne,
};
pub(crate) use watch::{Stat, Top, Trace};
pub(crate) use workspace::{
    Workspace, WorkspaceApply, WorkspaceCheckpoint, WorkspaceCommand, WorkspaceCreate, WorkspaceDiff,
    WorkspaceDiscard, WorkspaceExec, WorkspaceForce, WorkspaceGc, WorkspaceName, WorkspaceUndo,
};

/// A file system for millions of small files, cheap clones and random writes, in an image file or
/// on a block device.
#[derive(Debug, Parser)]
#[command(name = "espalier", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Say more on stderr; twice for details (RUST_LOG overrides it)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "Examples:
  espalier mkfs --size 20G disk.img      make a file system in a new image file
  espalier mount disk.img /mnt           mount it; returns when it is usable
  espalier umount /mnt                   unmount; returns when everything is durable
  espalier clone /mnt/a /mnt/b           a writable copy of a whole tree, at once
  espalier fsck disk.img                 verify everything

Exit status: 0 success, 1 failure, 2 wrong usage; fsck: 0 clean, 1 repaired, 4 damaged, 8 could not run.";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a file system in an image file or on a block device
    Mkfs(Mkfs),
    /// Mount a file system on an empty directory
    Mount(Mount),
    /// Unmount; returns when everything is durable and the image is free again
    Umount(Umount),
    /// Verify every invariant and name damaged paths; changes nothing, unless it is to repair
    Fsck(Fsck),
    /// Copy out whatever can be read, also of an image that cannot be mounted; changes nothing
    Salvage(Salvage),
    /// Read everything of a mounted file system from its device, and name damaged paths
    Scrub(Scrub),
    /// Tell the device what is free, mounted or not
    Trim(Trim),
    /// Make a file system larger
    #[command(visible_alias = "grow")]
    Resize(Resize),
    /// Show or set the label of a file system, mounted or not
    Label(Label),
    /// Copy a whole file system between an image and an object store, without what is free
    Copy(Copy),
    /// Show what a file system has in an object store, and check that all of it is there
    Objects(Objects),
    /// Show geometry, space, node counts and heights, cache and log
    Info(Info),
    /// Look at what this machine offers to a mount, and say what to do about what it lacks
    Doctor(Doctor),
    /// Print figures of a mounted file system: requests, latencies, caches, log, device, space
    Stat(Stat),
    /// Show live what a mounted file system does, and for which processes
    Top(Top),
    /// Print a line for each request to a mounted file system, with path and times
    Trace(Trace),
    /// Print the tree as text
    Dump(Dump),
    /// Write directories and archives into a file system, mounted or not
    Import(Import),
    /// Write files to a directory or an archive
    Export(Export),
    /// List directories, also of an image that is not mounted
    Ls(Ls),
    /// Find files by name, type and size
    Find(Find),
    /// Print files
    Cat(Cat),
    /// Copy files and trees between mounts, images and the system
    Cp(Cp),
    /// Copy a file or tree in one step, whatever its size
    Clone(CloneArgs),
    /// Remove trees in one step each, whatever their size
    Rm(Remove),
    /// Change owner and group of whole trees in one step
    Chown(Chown),
    /// Change the modes of whole trees in one step
    Chmod(Chmod),
    /// Make, list, delete and restore snapshots of the whole volume or of a directory
    Snapshot(Snapshot),
    /// Make, compare, apply, undo and throw away workspaces: clones to work in
    #[command(visible_alias = "ws")]
    Workspace(Workspace),
    /// Tell git what changed in a work tree, as its core.fsmonitor hook
    #[command(name = "fsmonitor")]
    FsMonitor(FsMonitor),
    /// List what differs between two trees, in time that grows with what differs
    Diff(Diff),
    /// Show the space that trees take, and what nothing else shares
    Du(Du),
    /// Limit the space that a tree takes, or show what it takes of its limit
    Quota(Quota),
    /// Compare file systems: how many operations a second, and how long each takes
    Bench(Bench),
    /// Show everything at work: make an image, unpack a source tree, search, edit, build, check,
    /// compare
    Demo(Demo),
    /// Print the template unit for systemd, espalier@.service (make install and packages bring it)
    Unit(Unit),
    /// Write the manual pages below a directory (make install does)
    #[command(hide = true)]
    Man(Man),
}

impl Command {
    /// True if all it does is to ask the server of a mount, as a rule.
    pub(crate) fn is_brief(&self) -> bool {
        use Command::{
            Chmod, Chown, Clone, Doctor, FsMonitor, Info, Quota, Rm, Snapshot, Stat, Top, Trace, Umount,
            Workspace,
        };
        matches!(
            self,
            Umount(_)
                | Doctor(_)
                | Info(_)
                | Stat(_)
                | Top(_)
                | Trace(_)
                | Clone(_)
                | Rm(_)
                | Chown(_)
                | Chmod(_)
                | Snapshot(_)
                | Workspace(_)
                | FsMonitor(_)
                | Quota(_)
        )
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier mkfs --size 20G disk.img                      a new image file, sparse
  espalier mkfs --compress zstd --label home /dev/vdb    a whole block device
  espalier mkfs --size 1T s3://bucket/prefix             in an object store

An object store is s3://BUCKET/PREFIX?endpoint=URL&region=NAME, gs://BUCKET/PREFIX, \
az://CONTAINER/PREFIX?account=NAME, https://HOST/... of one of these services, or \
file:///DIRECTORY, here and in place of an image elsewhere. Credentials come from the environment \
(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, \
AZURE_STORAGE_ACCOUNT_KEY and the like), or from the machine's role.")]
pub(crate) struct Mkfs {
    /// Size of the file system (default: that of the existing file or device)
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,
    /// How to compress what is stored
    #[arg(long, value_enum, default_value_t = Compress::None)]
    pub(crate) compress: Compress,
    /// Overwrite whatever is there
    #[arg(long)]
    pub(crate) force: bool,
    /// A name for people, at most 64 bytes
    #[arg(long, default_value = "")]
    pub(crate) label: String,
    /// The image file, block device or URL of an object store
    #[arg(value_name = "IMAGE|DEVICE|URL")]
    pub(crate) target: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier copy disk.img s3://bucket/prefix            migrate, or back up
  espalier copy --resume disk.img s3://bucket/prefix   go on, or bring an older copy up to date
  espalier copy s3://bucket/prefix disk.img            and back

Neither may be mounted for writing. The source does not change. What is not complete is no file \
system.")]
pub(crate) struct Copy {
    /// Go on with a copy that was interrupted, or bring an older copy up to date: what differs is
    /// written
    #[arg(long)]
    pub(crate) resume: bool,
    /// The image file, block device or URL to copy
    #[arg(value_name = "FROM")]
    pub(crate) source: PathBuf,
    /// Where to copy it: a new image file, or a URL where no file system is yet
    #[arg(value_name = "TO")]
    pub(crate) target: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier objects --check s3://bucket/prefix     are all objects there, and which are not needed?
  espalier objects --deep s3://bucket/prefix      gets all of them, and checks every byte

Exit status: 0 all there, 4 something is missing or damaged, 1 could not run")]
pub(crate) struct Objects {
    /// Look for each object, and for objects that nothing needs
    #[arg(long)]
    pub(crate) check: bool,
    /// Check every byte, too
    #[arg(long)]
    pub(crate) deep: bool,
    /// Delete objects that writers left behind which died, and correct wrong counts of live blocks;
    /// takes the lease for a moment
    #[arg(long)]
    pub(crate) delete_orphans: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The object store
    #[arg(value_name = "URL")]
    pub(crate) source: PathBuf,
}

/// Names of the compressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compress {
    None,
    Lz4,
    Zstd,
}

#[derive(Debug, Args)]
#[command(after_help = mount_help())]
pub(crate) struct Mount {
    /// The image file, block device or URL of an object store
    #[arg(value_name = "IMAGE|DEVICE|URL")]
    pub(crate) source: PathBuf,
    /// Where to mount it: an empty directory
    #[arg(required_unless_present = "replace")]
    pub(crate) dir: Option<PathBuf>,
    /// Go on with the mount at a directory, which is all that is named, in place of its server, as
    /// after an upgrade; programs that use it notice a short pause
    #[arg(long)]
    pub(crate) replace: bool,
    /// Mount options, separated by commas
    #[arg(short, value_name = "OPTS")]
    pub(crate) options: Vec<String>,
    /// Stay in the foreground and log to stderr
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Memory budget for everything the server holds (default 2G)
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<Size>,
    /// Take an object store from another machine that has it mounted; writing ends there at once
    #[arg(long)]
    pub(crate) take_over: bool,
    /// mount(8) asks: an image that is mounted is bound to the directory, as kernel file systems do
    #[arg(long, hide = true)]
    pub(crate) from_mount: bool,
}

impl Mount {
    /// Where to mount.
    ///
    /// # Errors
    /// It was not said.
    pub(crate) fn mount_point(&self) -> anyhow::Result<&Path> {
        self.dir.as_deref().context("the directory to mount at is missing")
    }
}

/// What help says below the options of `mount`.
fn mount_help() -> String {
    format!("Mount options (-o):\n{}\n{MOUNT_EXAMPLES}", mount_options::as_text())
}

const MOUNT_EXAMPLES: &str = "In /etc/fstab:
  /srv/disk.img  /mnt  fuse.espalier  cache=4G,noatime  0  0

Examples:
  espalier mount disk.img /mnt                           for all users, if root mounts it
  espalier mount -o noatime,commit=1 --cache 4G disk.img ~/files
  espalier mount --replace /mnt                          the version that is installed now goes on

The server ends by itself when it is unmounted. SIGTERM makes it unmount; if the mount is busy, \
it makes everything durable and stays.";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier umount /mnt
  umount /mnt                the same, without waiting for the server to have ended")]
pub(crate) struct Umount {
    /// Where it is mounted
    pub(crate) dir: PathBuf,
    /// Detach even if it is busy; what is still open keeps working, and this does not wait
    #[arg(short, long)]
    pub(crate) lazy: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier fsck disk.img
  espalier fsck --snapshots disk.img   looks into every snapshot too
  espalier fsck --repair disk.img      keeps what can be read; lists the rest in disk.img.lost
  espalier fsck --json disk.img | jq -r '.problems[].place'

If a device fails, salvage first: espalier salvage disk.img DIR changes nothing.

Exit status: 0 clean, 1 repaired, 4 damaged, 8 could not run")]
pub(crate) struct Fsck {
    /// Cut out what cannot be read, mend what leads to the rest, and list what is lost
    #[arg(long)]
    pub(crate) repair: bool,
    /// Where to list what is lost (default: IMAGE.lost)
    #[arg(long, value_name = "FILE", requires = "repair")]
    pub(crate) lost: Option<PathBuf>,
    /// Check the files and directories of every snapshot, too; takes as long for each as for the
    /// volume
    #[arg(long, conflicts_with = "repair")]
    pub(crate) snapshots: bool,
    /// The image file or block device; it must not be mounted for writing
    #[arg(value_name = "IMAGE|DEVICE|URL")]
    pub(crate) source: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Memory for the check
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub(crate) cache: Size,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier salvage disk.img rescued    copies all files to rescued/, and lists losses in rescued.lost")]
pub(crate) struct Salvage {
    /// The image file or block device; it must not be mounted
    #[arg(value_name = "IMAGE|DEVICE")]
    pub(crate) source: PathBuf,
    /// Where to copy to: a directory that is empty or does not exist
    #[arg(value_name = "OUTDIR")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier scrub /mnt
  espalier scrub --rate 20M /mnt       for a device that is busy otherwise

Exit status: 0 all of it can be read, 4 damaged, 1 could not run")]
pub(crate) struct Scrub {
    /// A directory where a file system is mounted
    pub(crate) dir: PathBuf,
    /// Bytes to read per second, at most
    #[arg(long, value_name = "SIZE", default_value = "200M")]
    pub(crate) rate: Size,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier trim /mnt           a mounted file system, while it is in use
  espalier trim disk.img       the image file gets holes where nothing is

Mounted with -o discard, the device is told at once when space becomes free.")]
pub(crate) struct Trim {
    /// An image, a device, or a directory where one is mounted
    #[arg(value_name = "IMAGE|DIR")]
    pub(crate) source: PathBuf,
    /// Leave shorter free runs as they are
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    pub(crate) minimum: Size,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier resize disk.img 40G      the image file grows, too
  espalier resize /mnt 40G          the same while it is mounted
  espalier resize /dev/sdb1         all of the device, after it was enlarged")]
pub(crate) struct Resize {
    /// An image or device, or a directory of a mount
    #[arg(value_name = "IMAGE|DIR")]
    pub(crate) source: PathBuf,
    /// The new size, or max for all that the file or device has
    #[arg(value_name = "SIZE|max")]
    pub(crate) size: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier label disk.img           shows it
  espalier label /mnt home          sets it while the file system is mounted
  espalier label disk.img \"\"        takes it away")]
pub(crate) struct Label {
    /// An image or device, or a directory of a mount
    #[arg(value_name = "IMAGE|DIR")]
    pub(crate) source: PathBuf,
    /// The new label, up to 64 bytes
    #[arg(value_name = "LABEL")]
    pub(crate) label: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier info disk.img                                 reads the image
  espalier info /mnt                                     asks the server
  espalier info --json /mnt | jq .space.free_bytes")]
pub(crate) struct Info {
    /// An image, a device, or a directory where one is mounted
    #[arg(value_name = "IMAGE|DIR")]
    pub(crate) source: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier doctor                                        kernel, FUSE, helpers, limits
  espalier doctor /mnt                                   and how this mount is served

Exit status: 0 mounts work (with or without advice), 1 something keeps them from working")]
pub(crate) struct Doctor {
    /// A directory where a file system is mounted
    pub(crate) dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier dump disk.img | less
  espalier dump --node 17 disk.img")]
pub(crate) struct Dump {
    /// The image file or block device
    #[arg(value_name = "IMAGE|DEVICE")]
    pub(crate) source: PathBuf,
    /// Only this node
    #[arg(long, value_name = "N")]
    pub(crate) node: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier demo
  espalier demo --dir /srv/demo --tree linux-6.1.tar.xz --keep")]
pub(crate) struct Demo {
    /// Where to work; made if it is not there, and left empty
    #[arg(long, default_value = "demo-out")]
    pub(crate) dir: PathBuf,
    /// The source tree to unpack: a directory or a tar archive (default: the best that is found)
    #[arg(long, value_name = "DIR|ARCHIVE")]
    pub(crate) tree: Option<PathBuf>,
    /// Size of the image
    #[arg(long, default_value = "20G", value_name = "SIZE")]
    pub(crate) size: Size,
    /// Leave the image there at the end
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier unit >/etc/systemd/system/espalier@.service   then systemctl daemon-reload

The unit says at its top how it is used.")]
pub(crate) struct Unit {
    /// The program that it runs (default: this one)
    pub(crate) program: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Where man1, man5 and man8 are made
    pub(crate) dir: PathBuf,
}

/// Turns a call under another name (`mkfs.espalier ...`) into one of ours. `Ok(None)` means that
/// there is nothing to do (mount -f).
///
/// # Errors
/// A usage message.
pub(crate) fn translate(arguments: Vec<OsString>) -> Result<Option<Vec<OsString>>, String> {
    let name = arguments.first().and_then(|a| std::path::Path::new(a).file_name()).map(OsStr::to_owned);
    let name = name.unwrap_or_default();
    // A program that is called espalier-0.1.0 is no helper.
    let helper =
        name.to_str().and_then(|name| name.split_once('.')).filter(|(_, rest)| rest.ends_with("espalier"));
    let Some((tool, _)) = helper else { return Ok(Some(arguments)) };
    let rest = arguments.into_iter().skip(1);
    match tool {
        "mkfs" => Ok(Some(with_command("mkfs", mkfs_words(rest)))),
        "fsck" => Ok(Some(with_command("fsck", rest.filter(|w| !is_fsck_flag(w))))),
        "mount" => mount_words(rest).map(|words| words.map(|w| with_command("mount", w.into_iter()))),
        "umount" => umount_words(rest).map(|words| Some(with_command("umount", words.into_iter()))),
        _ => Err(format!("'{}' is no name of this program", name.to_string_lossy())),
    }
}

fn with_command(command: &str, words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    ["espalier", command].into_iter().map(OsString::from).chain(words).collect()
}

/// mkfs(8) passes `-V` and `-t TYPE` through; other mkfs programs take `-f`, `-F` and `-L`.
fn mkfs_words(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    words.filter(|w| w != "-V").map(|w| match w.to_str() {
        Some("-f" | "-F") => "--force".into(),
        Some("-L") => "--label".into(),
        _ => w,
    })
}

/// Flags that fsck(8) passes to every checker. None matters: what is asked for at every boot only
/// looks; a repair is for people to decide.
fn is_fsck_flag(word: &OsStr) -> bool {
    let Some(word) = word.to_str() else { return false };
    matches!(word, "-a" | "-p" | "-n" | "-y" | "-f" | "-r" | "-V" | "-T" | "-M") || is_fsck_progress(word)
}

fn is_fsck_progress(word: &str) -> bool {
    word.strip_prefix("-C").is_some_and(|fd| fd.bytes().all(|b| b.is_ascii_digit()))
}

/// mount(8) calls `mount.TYPE SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE.SUBTYPE]`.
fn mount_words(words: impl Iterator<Item = OsString>) -> Result<Option<Vec<OsString>>, String> {
    let mut out = vec!["--from-mount".into()];
    let mut words = words;
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-o") => {
                out.push(word);
                out.push(words.next().ok_or("-o needs options")?);
            }
            Some("-t" | "-N") => drop(words.next()),
            Some(flags) if is_cluster(flags, "sfnvrw") => {
                if flags.contains('f') {
                    return Ok(None);
                }
                if flags.contains('r') {
                    out.extend(["-o".into(), "ro".into()]);
                }
            }
            _ => out.push(word),
        }
    }
    Ok(Some(out))
}

/// umount(8) calls `umount.TYPE DIR [-nlfvr] [-N NAMESPACE] [-t TYPE.SUBTYPE]`.
fn umount_words(words: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let mut out = Vec::new();
    let mut words = words;
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-t" | "-N") => drop(words.next()),
            Some(flags) if is_cluster(flags, "nlfvr") => {
                if flags.contains('l') {
                    out.push("--lazy".into());
                }
            }
            _ => out.push(word),
        }
    }
    Ok(out)
}

/// True for one dash and letters of `known` only.
fn is_cluster(word: &str, known: &str) -> bool {
    word.strip_prefix('-').is_some_and(|flags| !flags.is_empty() && flags.chars().all(|c| known.contains(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        match translate(words) {
            Ok(Some(words)) => words.join(OsStr::new(" ")).into_string().unwrap_or_default(),
            Ok(None) => "nothing".into(),
            Err(message) => format!("error: {message}"),
        }
    }

    #[test]
    fn helpers_of_mount_and_its_kin_become_our_commands() {
        for (call, ours) in [
            ("espalier info x", "espalier info x"),
            ("./espalier-0.1.0-static info x", "./espalier-0.1.0-static info x"),
            ("/sbin/mkfs.espalier -V -F -L home /dev/vdb", "espalier mkfs --force --label home /dev/vdb"),
            ("fsck.espalier -a -C0 /dev/vdb", "espalier fsck /dev/vdb"),
            (
                "mount.fuse.espalier a /b -sn -o ro,cache=1G -t fuse.espalier",
                "espalier mount --from-mount a /b -o ro,cache=1G",
            ),
            ("mount.espalier a /b -f", "nothing"),
            ("mount.espalier a /b -o", "error: -o needs options"),
            ("umount.fuse.espalier /b -nl", "espalier umount /b --lazy"),
            ("frobnicate.espalier /b", "error: 'frobnicate.espalier' is no name of this program"),
        ] {
            assert_eq!(translated(call), ours, "{call}");
        }
    }

    /// A paragraph is one line: the width of the terminal breaks it.
    #[test]
    fn paragraphs_of_help_are_not_broken_by_hand() {
        fn look(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
            for pair in lines.windows(2) {
                let is_broken = pair[0].len() >= 70 && is_text(pair[0]) && is_text(pair[1]);
                assert!(!is_broken, "{}: {} | {}", command.get_name(), pair[0], pair[1]);
            }
            command.get_subcommands().for_each(look);
        }
        look(&<Cli as clap::CommandFactory>::command());
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
