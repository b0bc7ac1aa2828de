//! Plan of a comparison: what is compared, and how much is done.

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// What is compared, and how much.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Directories that are there; with some of them nothing is made, mounted or formatted.
    pub dirs: Vec<PathBuf>,
    /// File systems to make otherwise: `ext4`, `xfs`, `btrfs`, `espalier`, mount options behind a
    /// plus sign.
    pub contenders: Vec<String>,
    /// A block device for each in turn, whose content is lost; `None`: loop devices.
    pub device: Option<PathBuf>,
    /// Where images and mount points lie meanwhile.
    pub scratch: PathBuf,
    /// The espalier program.
    pub espalier: PathBuf,
    /// How often everything is repeated.
    pub rounds: usize,
    /// How much is done.
    pub amount: Amount,
}

/// How much is done in each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// Small files.
    pub files: usize,
    /// Bytes of the large file.
    pub file_bytes: u64,
    /// Overwrites of 4 KiB at random places of it.
    pub overwrites: u64,
    /// Appends of 4 KiB, each with an fsync.
    pub appends: u64,
    /// Bytes of each loop device.
    pub device_bytes: u64,
    /// Espalier's memory budget, in bytes.
    pub cache_bytes: u64,
}

impl Amount {
    /// A minute for five contenders on an ordinary machine.
    pub const MINUTE: Self = Self {
        files: 4000,
        file_bytes: 256 << 20,
        overwrites: 5000,
        appends: 300,
        device_bytes: 1 << 30,
        cache_bytes: 512 << 20,
    };
    /// Some minutes a round for five contenders.
    pub const FULL: Self = Self {
        files: 200_000,
        file_bytes: 4 << 30,
        overwrites: 262_144,
        appends: 10_000,
        device_bytes: 12 << 30,
        cache_bytes: 2 << 30,
    };
}

/// Refuses what is no block device, is in use or is too small, before anything is lost.
///
/// # Errors
/// If it is one of these, or cannot be opened.
pub(super) fn check_device(device: &Path, amount: &Amount) -> Result<()> {
    let shown = device.display();
    let found = device.metadata().with_context(|| format!("{shown} cannot be used"))?;
    ensure!(found.file_type().is_block_device(), "{shown} is no block device (lsblk lists them)");
    // The kernel gives a block device that is mounted, or part of another one, to no second one.
    let open = rustix::fs::open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty());
    let open = open.with_context(|| format!("{shown} cannot be had alone (findmnt and lsblk say why)"))?;
    let bytes = rustix::fs::seek(open, SeekFrom::End(0))?;
    ensure!(
        bytes >= amount.device_bytes,
        "{shown} has {} MiB; {} are needed",
        bytes >> 20,
        amount.device_bytes >> 20
    );
    Ok(())
}
