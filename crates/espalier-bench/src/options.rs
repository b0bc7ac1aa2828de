//! The command line of the suites.

use crate::contender::{BEFORE, BOUND, Setup, is_bound};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Ordinary work on files and trees
    Files,
    /// Clones, renames, removals and comparisons of whole subtrees
    Subtrees,
    /// The life of workspaces, from creation to removal, for root and for an ordinary user
    Workspaces,
    /// Rates by number, size, age, fullness and threads: creation, ageing, servers, memory
    Curves,
    /// Work in an object store, on a server of loopback whose requests are made to wait
    Objects,
    /// Full paths and many files at once, by clients of a mount and by system calls
    Paths,
}

/// The contenders unless others are asked for.
const CONTENDERS: [&str; 4] = ["ext4", "xfs", "btrfs", "espalier"];
const OBJECT_CONTENDERS: [&str; 5] = ["espalier", "espalier+journal", "juicefs", "rclone", "s3fs"];

/// What may stand in front of a plus sign.
const KINDS: [&str; 6] = ["ext4", "xfs", "btrfs", "espalier", BEFORE, BOUND];
const OBJECT_KINDS: [&str; 5] = ["espalier", "before", "juicefs", "rclone", "s3fs"];
/// Every step.
const ALL: &str = "all";

/// Under which user the commands of the suite on workspaces run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum User {
    Root,
    /// An ordinary one
    User,
}

/// What to measure, and how.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Which suite
    #[arg(value_enum, default_value = "files")]
    pub(crate) suite: Suite,
    /// What is compared: ext4, xfs, btrfs and espalier by default; mount options follow a plus sign
    /// (espalier+writeback). In object stores espalier, espalier+journal, juicefs, rclone and s3fs
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) contenders: Vec<String>,
    /// Which steps of the suite, in the fixed order; `help` lists them
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "all")]
    pub(crate) steps: Vec<String>,
    /// How often everything is repeated on fresh file systems
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Small sizes and one round: a check that everything runs, not a measurement
    #[arg(long)]
    quick: bool,
    /// Where the images, mount points and results lie
    #[arg(long, value_name = "DIR", default_value = "bench-out")]
    pub(crate) dir: PathBuf,
    /// Where to write the figures as JSON (default: results.json in --dir)
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Size of each loop device
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_size)]
    pub(crate) device_size: u64,
    /// The source tree: a tar archive, plain or .xz
    #[arg(long, value_name = "FILE", default_value = "/usr/src/linux-source-6.1.tar.xz")]
    pub(crate) tree: PathBuf,
    /// Use only the first bytes of the tree (0: all)
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub(crate) tree_bytes: u64,
    /// The espalier program that takes part (default: this one)
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) espalier: Option<PathBuf>,
    /// Another build of it, which takes part as `espalier@before`: what a change did, measured by
    /// turns in one run
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) before: Option<PathBuf>,
    /// A server that does only what none can do without, which takes part as `bound`
    /// (`bound+transport=classic`: over /dev/fuse); built from the sources, as the example `bound`
    /// of espalier-fuse
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) bound: Option<PathBuf>,
    /// Espalier's memory budget
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = parse_size)]
    pub(crate) cache: u64,
    /// How much memory is touched before each step on files, so that no step waits for what the
    /// host of a virtual machine took back
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = parse_size)]
    pub(crate) touch: u64,
    /// Divides the numbers of links, clones, snapshots, files and rounds (not in `files` and
    /// `objects`)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) scale: usize,
    /// Size of the file for sequential and random access
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = parse_size, help_heading = OF_FILES)]
    pub(crate) file_size: u64,
    /// How many random overwrites
    #[arg(long, value_name = "N", default_value_t = 262_144, help_heading = OF_FILES)]
    pub(crate) overwrites: u64,
    /// How many random reads of 4 KiB
    #[arg(long, value_name = "N", default_value_t = 32_768, help_heading = OF_FILES)]
    pub(crate) reads: u64,
    /// How many files of 200 bytes
    #[arg(long, value_name = "N", default_value_t = 200_000, help_heading = OF_FILES)]
    pub(crate) small_files: u64,
    /// How many appends of 4 KiB, each with an fsync
    #[arg(long, value_name = "N", default_value_t = 4_000, help_heading = OF_FILES)]
    pub(crate) appends: u64,
    /// How many files of 4 KiB there are
    #[arg(long, value_name = "N", default_value_t = 1_000_000, help_heading = OF_PATHS)]
    pub(crate) files: usize,
    /// The numbers of clients at a time
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "1,4,16", help_heading = OF_PATHS)]
    pub(crate) clients: Vec<usize>,
    /// How many entries the tree has, about
    #[arg(long, value_name = "N", default_value_t = 200_000, help_heading = OF_WORKSPACES)]
    pub(crate) entries: usize,
    /// Everything is measured with one live workspace, and again with so many
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = OF_WORKSPACES)]
    pub(crate) live: usize,
    /// The users whose commands are measured
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "root,user",
        hide_possible_values = true,
        help_heading = OF_WORKSPACES
    )]
    pub(crate) users: Vec<User>,
    /// Milliseconds that each request is made to wait; everything is measured with each
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "0,10,50", help_heading = OF_OBJECTS)]
    pub(crate) delays: Vec<u64>,
}

const OF_FILES: &str = "Options of files and objects";
const OF_PATHS: &str = "Options of paths";
const OF_WORKSPACES: &str = "Options of workspaces";
const OF_OBJECTS: &str = "Options of objects";

// One line for each: manual pages are made of them.
const EXAMPLES: &str = "Examples:
  espalier bench suite                                  all of files, three rounds
  espalier bench suite --quick                          a minute, to see that it runs
  espalier bench suite --steps grep_cold,rm_rf --rounds 5
  espalier bench suite --contenders espalier,espalier+transport=classic
  espalier bench suite --contenders espalier --before OLD --steps unpack
  espalier bench suite subtrees --device-size 12G       clones, renames and removals of trees
  espalier bench suite curves --steps creation,ageing   a million files; a hundred pulls by git
  espalier bench suite workspaces --live 10000          workspaces, one live and ten thousand
  espalier bench suite objects --tree-bytes 200M        object stores 0, 10 and 50 ms away
  espalier bench suite paths --rounds 1                 full paths and many files at once

Times are medians over the rounds; a ratio above 1 says how many times faster Espalier is than the \
fastest of the others. Without `objects`, everything is made on loop devices of one disk. Some steps \
take fio, git, rsync, tar and the mkfs programs; all is removed again but the results.";

/// The steps of a suite that are asked for, in their order.
///
/// # Errors
/// One of them does not exist.
pub(crate) fn chosen(known: Vec<&'static str>, asked: &[String]) -> Result<Vec<&'static str>> {
    if let Some(unknown) = asked.iter().find(|name| *name != ALL && !known.contains(&name.as_str())) {
        bail!("'{unknown}' is no step of this suite; there are {ALL}, {}", known.join(", "));
    }
    let is_asked = |name: &&str| asked.iter().any(|asked| asked == ALL || asked == name);
    Ok(known.into_iter().filter(is_asked).collect())
}

impl Options {
    /// Applies `--quick`, `--before` and `--bound`.
    ///
    /// # Errors
    /// This program cannot be found; a contender that does not exist; no rounds.
    pub(crate) fn settle(mut self) -> Result<Self> {
        if self.espalier.is_none() {
            self.espalier = Some(std::env::current_exe().context("this program cannot be found")?);
        }
        if self.contenders.is_empty() {
            let names: &[&str] = match self.suite {
                Suite::Objects => &OBJECT_CONTENDERS,
                _ => &CONTENDERS,
            };
            self.contenders = names.iter().map(|name| (*name).to_owned()).collect();
        }
        if self.before.is_some()
            && self.suite != Suite::Objects
            && !self.contenders.iter().any(|name| name.starts_with(BEFORE))
        {
            self.contenders.push(BEFORE.into());
        }
        // The other suite is about what it cannot do.
        if self.suite == Suite::Files
            && self.bound.is_some()
            && !self.contenders.iter().any(|name| is_bound(name))
        {
            self.contenders.push(BOUND.into());
        }
        let kinds: &[&str] = if self.suite == Suite::Objects { &OBJECT_KINDS } else { &KINDS };
        let is_known = |name: &&String| kinds.contains(&name.split('+').next().unwrap_or_default());
        if let Some(unknown) = self.contenders.iter().find(|name| !is_known(name)) {
            bail!("'{unknown}' is no contender; there are {}", kinds.join(", "));
        }
        ensure!(self.rounds > 0, "no rounds, no figures");
        if self.quick {
            let device = if self.suite == Suite::Workspaces { 1 << 30 } else { 2 << 30 };
            self.rounds = 1;
            self.device_size = self.device_size.min(device);
            self.file_size = self.file_size.min(128 << 20);
            self.overwrites = self.overwrites.min(5_000);
            self.reads = self.reads.min(2_000);
            self.small_files = self.small_files.min(5_000);
            self.appends = self.appends.min(200);
            // 0 is all of it.
            self.tree_bytes = self.tree_bytes.wrapping_sub(1).min((100 << 20) - 1) + 1;
            self.scale = self.scale.max(20);
            self.files = self.files.min(20_000);
        }
        Ok(self)
    }

    /// The espalier program that takes part.
    pub(crate) fn espalier(&self) -> &Path {
        self.espalier.as_deref().unwrap_or(Path::new("espalier"))
    }

    /// How the contenders are made.
    pub(crate) fn setup(&self) -> Setup<'_> {
        Setup {
            dir: &self.dir,
            device_size: self.device_size,
            device: None,
            espalier: self.espalier(),
            before: self.before.as_deref(),
            bound: self.bound.as_deref(),
            cache: self.cache,
            entries: 0,
        }
    }

    /// Where the figures go.
    pub(crate) fn json(&self) -> PathBuf {
        self.results.clone().unwrap_or_else(|| self.dir.join("results.json"))
    }
}

/// Parses `4096`, `512M`, `20G`: powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        unit => return Err(format!("'{unit}' is no unit; use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("'{text}' is no size"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large"))
}
