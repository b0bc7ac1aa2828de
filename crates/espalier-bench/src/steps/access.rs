//! Work on one large file: sequential, at random places, with and without many requests at a time.

use crate::random::Random;
use crate::system;
use anyhow::{Context, Result, ensure};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

/// Writes a new file from its beginning to its end, in calls of 1 MiB, and syncs it.
pub(super) fn write_sequential(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    // Incompressible; every mebibyte differs in its first bytes, so that none equals another.
    let mut chunk = vec![0; MIB];
    Random(1).fill(&mut chunk);
    for number in 0..bytes / MIB as u64 {
        chunk[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&chunk)?;
    }
    Ok(file.sync_all()?)
}

/// Reads the file from its beginning to its end, in calls of 1 MiB, and checks it.
pub(super) fn read_sequential(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::open(path)?;
    let mut chunk = vec![0; MIB];
    for number in 0..bytes / MIB as u64 {
        file.read_exact(&mut chunk)?;
        ensure!(chunk[..8] == number.to_le_bytes(), "mebibyte {number} of {} is wrong", path.display());
    }
    Ok(())
}

/// Overwrites `length` bytes at `count` random places, and syncs the file.
pub(super) fn overwrite(path: &Path, bytes: u64, count: u64, length: usize) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut random = Random(length as u64);
    let mut data = vec![0; length];
    for _ in 0..count {
        random.fill(&mut data);
        let slot = random.next() % (bytes / length as u64);
        file.write_all_at(&data, slot * length as u64)?;
    }
    Ok(file.sync_all()?)
}

/// Appends blocks of 4 KiB to a new file, each with an fsync.
pub(super) fn append(path: &Path, count: u64) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).mode(0o644).open(path)?;
    let mut data = [0; 4096];
    let mut random = Random(3);
    for _ in 0..count {
        random.fill(&mut data);
        file.write_all(&data)?;
        file.sync_all()?;
    }
    Ok(())
}

/// How 4 KiB at random places are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct RandomReads {
    /// The engine of fio: `psync`, `libaio`, `io_uring`.
    pub(super) engine: &'static str,
    /// Past the kernel's pages.
    pub(super) direct: bool,
    /// Threads.
    pub(super) jobs: u64,
    /// Requests that each has under way.
    pub(super) depth: u64,
}

/// Reads 4 KiB at `count` random places, no place twice, by fio; returns the seconds, without what
/// fio itself takes to begin.
pub(super) fn read_random(path: &Path, bytes: u64, count: u64, how: RandomReads) -> Result<f64> {
    let each = (count / how.jobs).max(1) * 4096;
    let text = system::output(
        Command::new("fio")
            .args(["--name=reads", "--rw=randread", "--bs=4k", "--invalidate=0", "--output-format=json"])
            .args(["--thread", "--group_reporting", "--randrepeat=1", "--allow_file_create=0"])
            .arg(format!("--filename={}", path.display()))
            .arg(format!("--size={bytes}"))
            .arg(format!("--io_size={each}"))
            .arg(format!("--ioengine={}", how.engine))
            .arg(format!("--direct={}", u8::from(how.direct)))
            .arg(format!("--numjobs={}", how.jobs))
            .arg(format!("--iodepth={}", how.depth)),
    )?;
    // It may say something before the object.
    let object = text.find('{').map_or("", |at| &text[at..]);
    let told: serde_json::Value = serde_json::from_str(object).context("what fio prints")?;
    let read = &told["jobs"][0]["read"];
    let (done, rate) = (read["total_ios"].as_u64(), read["iops"].as_f64());
    let (done, rate) = done.zip(rate).context("fio does not say how many reads it made")?;
    ensure!(done * 4096 >= each * how.jobs && rate > 0.0, "fio made {done} reads only");
    Ok(done as f64 / rate)
}
