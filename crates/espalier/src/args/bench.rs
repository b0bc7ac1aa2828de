//! The options of `espalier bench`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  espalier bench                                     a minute, all of this machine, as root
  espalier bench --html report.html ~/a /mnt/b       two directories, as anyone
  espalier bench --full --contenders xfs,espalier --html report.html
  espalier bench --device /dev/vdb --force           on a real device; its content is lost
  espalier bench suite files --tree linux.tar.xz     longer, real work, as root

Without directories, file systems of each kind are made on loop devices of the same size, or one \
after the other on a device, and taken away again. The steps are small files, a large file, random \
overwrites, fsyncs; every operation is timed. Caches are dropped before each step by root only, so \
figures of other users are those of warm caches."
)]
pub(crate) struct Bench {
    /// Directories to compare; nothing is made or mounted, and no rights are needed
    #[arg(value_name = "DIR")]
    pub(crate) dirs: Vec<PathBuf>,
    /// File systems to make if no directories are named: ext4, xfs, btrfs, espalier; mount options
    /// follow a plus sign (default: those that this machine can make)
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with = "dirs")]
    pub(crate) contenders: Vec<String>,
    /// Make them on this block device, one after the other
    #[arg(long, value_name = "DEV", conflicts_with = "dirs", requires = "force")]
    pub(crate) device: Option<PathBuf>,
    /// Write over what is on the device
    #[arg(long)]
    pub(crate) force: bool,
    /// Twenty rounds with large sizes: two hours or more, and 12 GiB for each file system
    #[arg(long)]
    pub(crate) full: bool,
    /// How often everything is repeated (default: 1, with --full 20)
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,
    /// Where images and mount points lie meanwhile
    #[arg(long, value_name = "DIR", default_value = "espalier-bench-work")]
    pub(crate) scratch: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write a page with tables and pictures
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) suite: Option<BenchSuite>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchSuite {
    /// Measure longer, real work, as root
    Suite(Box<SuiteOptions>),
}

#[cfg(feature = "suites")]
pub(crate) use espalier_bench::suites::Options as SuiteOptions;

/// What a program without suites takes.
#[cfg(not(feature = "suites"))]
#[derive(Debug, Args)]
pub(crate) struct SuiteOptions {
    /// This program is without suites; those of packages, and those built from source, have them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SUITE")]
    pub(crate) words: Vec<String>,
}
