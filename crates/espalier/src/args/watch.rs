//! The options of the commands that watch a mount.

use crate::units::Moment;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier stat /mnt                                  one line, of all the time since it was mounted
  espalier stat --interval 1 /mnt                     a line each second
  espalier stat --interval 10 --count 7 --json /mnt | jq .kinds

The first line is of all the time since the server began, each other one of the time since the line \
before, or since the server began if it has replaced another one meanwhile. Columns: requests per second, those answered with an error, those that the kernel holds; half \
of the requests, and 99 of 100, took no longer at work; data of files; the share of look-ups that \
found data and names in memory; memory of the cache, and what of it the device does not have; how \
full the log is, and checkpoints; data of the device, and its requests under way on average; free \
space, and the share in use.

Only root and the user that mounted it may ask.")]
pub(crate) struct Stat {
    /// Seconds from line to line
    #[arg(long, value_name = "SECONDS")]
    pub(crate) interval: Option<f64>,
    /// Lines to print (default: 1, or with --interval until it is interrupted)
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Print a JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// A directory where a file system is mounted
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier top /mnt

Keys: q ends it, the space bar holds the figures, + and - change the interval.

Only root and the user that mounted it may ask.")]
pub(crate) struct Top {
    /// Seconds between figures
    #[arg(long, value_name = "SECONDS", default_value = "1")]
    pub(crate) interval: f64,
    /// A directory where a file system is mounted
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  espalier trace /mnt                                 every request, until it is interrupted
  espalier trace --slow 10ms /mnt                     only those that took 10 milliseconds
  espalier trace --pid 4321 --json /mnt | jq .path

QUEUE is how long the thread with the request waited for a CPU, WORK how long the server took, \
waits for locks and storage included. What the kernel answers from its caches is no request. \
Only root and the user that mounted it may ask.")]
pub(crate) struct Trace {
    /// Only requests that took at least so long: a number and us, ms or s
    #[arg(long, value_name = "TIME")]
    pub(crate) slow: Option<Moment>,
    /// Only requests of this process
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// End after so many requests
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Print a JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// A directory where a file system is mounted
    pub(crate) dir: PathBuf,
}
