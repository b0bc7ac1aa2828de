//! The options of the commands for files: import, export, ls, find, cat, cp.

use crate::units::{Size, Span};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier import project disk.img:work                 what is in project goes to work in the image
  espalier import backup.tar.zst /mnt/restored          an archive, into a mounted file system
  curl -s URL | espalier import - disk.img:             an archive from standard input
  espalier import --resume /home disk.img:home          goes on after an interruption

A SRC is a directory, whose content goes into DST, a tar archive (ustar, GNU or pax, also compressed with \
zstd), or - for an archive from standard input. DST is a directory of a mounted file system, or IMAGE:PATH in \
an image that is not mounted, and is made if it is missing. Kept are types, holes, hard links, modes, times, \
extended attributes and access control lists; root keeps owners, too. Files that are there are replaced, and \
each is there as a whole or not at all. What is refused (a path of an archive that is absolute, has .. or leads \
through a symbolic link) or fails is reported, and the rest goes on.

Exit status: 0 all of it is there, 1 something failed, 2 wrong usage")]
pub(crate) struct Import {
    /// Leave files that are there with the same size and time of change as they are
    #[arg(long)]
    pub(crate) resume: bool,
    /// Everything belongs to the user that imports it
    #[arg(long)]
    pub(crate) no_owners: bool,
    /// Directories, archives, or - for standard input
    #[arg(value_name = "SRC", required = true)]
    pub(crate) sources: Vec<PathBuf>,
    /// The directory that gets the files
    #[arg(value_name = "DST")]
    pub(crate) destination: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What export writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// A directory
    Directory,
    /// A tar archive
    Tar,
    /// A tar archive, compressed with zstd
    #[value(name = "tar.zst")]
    TarZst,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier export disk.img:project project.tar.zst      an archive of a directory of an image
  espalier export /mnt/project project                  a directory
  espalier export disk.img:.snapshots/monday - | ssh host espalier import - other.img:
  espalier export --format tar.zst /mnt/project - > project.tar.zst

SRC is a file or directory, or IMAGE:PATH in an image that is not mounted. What DST becomes is told by its \
name: .tar, .tar.zst and .tzst are archives, - is an archive on standard output, all else is a directory, which \
is made if it is missing. Archives are those of pax, which GNU tar and bsdtar read; they have no sockets.

Exit status: 0 all of it was written, 1 something failed, 2 wrong usage")]
pub(crate) struct Export {
    /// What is written; the name of DST does not count
    #[arg(long, value_enum)]
    pub(crate) format: Option<ExportFormat>,
    /// The file or directory to export
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,
    /// The archive or directory that is written
    #[arg(value_name = "DST")]
    pub(crate) destination: PathBuf,
    /// Print JSON (not with - as DST)
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier ls disk.img:                  what is in the root of an image that is not mounted
  espalier ls -lR disk.img:project       everything below, with attributes
  espalier ls --json /mnt | jq -r .path

Exit status: 0 all listed, 1 something below could not be listed, 2 a path of the command line could not")]
pub(crate) struct Ls {
    /// Everything below, too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Mode, names, owner, group, size and time of each entry
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Entries whose names begin with a dot, too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// A directory itself, not what is in it
    #[arg(short, long)]
    pub(crate) directory: bool,
    /// Files and directories: paths, or IMAGE:PATH
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Print JSON: an object on each line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Types of files as find(1) has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileType {
    /// Regular files
    F,
    /// Directories
    D,
    /// Symbolic links
    L,
    /// Named pipes
    P,
    /// Sockets
    S,
    /// Character devices
    C,
    /// Block devices
    B,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier find disk.img:project --name '*.c'            by name, in an image that is not mounted
  espalier find disk.img: --type f --min-size 100M       large files
  espalier find /mnt/project --newer-than 1h             what was changed in the last hour
  espalier find -0 /mnt/project --type l | xargs -0 ls -l

Prints paths below the directories, in the order of the store. A pattern without a slash is for the name; with \
one for the path below the directory, where only ** stands for slashes too.

Exit status: 0 success, 1 something could not be looked at")]
pub(crate) struct Find {
    /// A pattern: *, ?, [a-z], and ** for any path
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name: Option<String>,
    /// One of these types; several with commas
    #[arg(long = "type", value_enum, value_delimiter = ',', value_name = "TYPE")]
    pub(crate) types: Vec<FileType>,
    /// So many bytes at least
    #[arg(long, value_name = "SIZE")]
    pub(crate) min_size: Option<Size>,
    /// So many bytes at most
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_size: Option<Size>,
    /// Content changed in the last 90s, 30m, 12h, 7d
    #[arg(long, value_name = "TIME")]
    pub(crate) newer_than: Option<Span>,
    /// Content changed for the last time at least so long ago
    #[arg(long, value_name = "TIME")]
    pub(crate) older_than: Option<Span>,
    /// End paths with a NUL instead of a line
    #[arg(short = '0', long)]
    pub(crate) null: bool,
    /// Directories: paths, or IMAGE:PATH
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Print JSON: an object on each line
    #[arg(long, conflicts_with = "null")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier cat disk.img:etc/fstab                      a file of an image that is not mounted
  espalier cat disk.img:.snapshots/monday/notes        as it was

Exit status: 0 success, 1 something could not be read")]
pub(crate) struct Cat {
    /// Files: paths, or IMAGE:PATH
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier cp disk.img:etc/fstab .             out of an image that is not mounted
  espalier cp -r src disk.img:                 into it, as src in its root
  espalier cp -r one.img:work other.img:       from one image to another

As cp -a: with modes, times, holes, hard links, extended attributes and, for root, owners. If DST is a \
directory, SRC goes into it by its name. Within one file system espalier clone does the same in one step.

Exit status: 0 success, 1 something could not be copied, 2 wrong usage")]
pub(crate) struct Cp {
    /// Directories with everything below, too
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// DST is what the copy is called, and never a directory to put it in
    #[arg(short = 'T', long)]
    pub(crate) no_target_directory: bool,
    /// Files and directories: paths, or IMAGE:PATH
    #[arg(value_name = "SRC", required = true)]
    pub(crate) sources: Vec<PathBuf>,
    /// Where they go: a path, or IMAGE:PATH
    #[arg(value_name = "DST")]
    pub(crate) destination: PathBuf,
}
