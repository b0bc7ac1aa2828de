//! The worst case of renames by range operations ("The Full Path to Full-Path Indexing", FAST 2018,
//! section 7): files renamed by turns between two directories, each rename followed by an fsync.

use super::bench::Bench;
use crate::random::Random;
use anyhow::Result;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

const FILE_SIZES_BYTES: [usize; 4] = [64 << 10, 1 << 20, 4 << 20, 16 << 20];
/// As many files of each size as fit into a device of ordinary size are made; all are renamed in
/// turn.
const BYTES_PER_SIZE: usize = 4 << 30;

/// A thousand renames of files of each size.
pub(super) fn interleaved(bench: &mut Bench<'_>) -> Result<()> {
    let root = bench.root();
    let flush = device_flush(bench)?;
    bench.tell("device_flush_ms", flush);
    let renames = bench.count(1000);
    for size in FILE_SIZES_BYTES {
        let (one, two) = (root.join(format!("one-{size}")), root.join(format!("two-{size}")));
        for dir in [&one, &two] {
            std::fs::create_dir(dir)?;
        }
        let files = renames.min(BYTES_PER_SIZE / size);
        write_files(&one, &two, files, size)?;
        bench.settle()?;
        bench.contender.remount_cold()?;
        let mut times = Vec::new();
        for number in 0..renames {
            let file = number % files;
            // A file is in the first directory if its number is even, until it is renamed.
            let in_first = (file + number / files).is_multiple_of(2);
            let (from, to) = if in_first { (&one, &two) } else { (&two, &one) };
            let (from, to) = (from.join(file.to_string()), to.join(file.to_string()));
            let started = Instant::now();
            std::fs::rename(from, &to)?;
            File::open(&to)?.sync_all()?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        bench.tell("rename_median_ms", times[times.len() / 2]);
        let worst = times.last().copied().unwrap_or_default();
        bench.tell("rename_worst_beyond_flush_ms", (worst - flush).max(0.0));
        for dir in [&one, &two] {
            bench.remove_tree(dir)?;
        }
        bench.settle()?;
    }
    Ok(())
}

fn write_files(one: &Path, two: &Path, files: usize, size: usize) -> Result<()> {
    let mut content = vec![0; size];
    Random(9).fill(&mut content);
    for number in 0..files {
        let dir = if number.is_multiple_of(2) { one } else { two };
        content[..8].copy_from_slice(&(number as u64).to_le_bytes());
        std::fs::write(dir.join(number.to_string()), &content)?;
    }
    Ok(())
}

/// The worst of a thousand writes of 4 KiB with an fsync, on a file of the disk below.
fn device_flush(bench: &Bench<'_>) -> Result<f64> {
    let beside = bench.root().with_extension("flush");
    let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
    let mut worst: f64 = 0.0;
    for number in 0..1000 {
        let started = Instant::now();
        file.write_all_at(&[1; 4096], number % 16 * 4096)?;
        file.sync_data()?;
        worst = worst.max(started.elapsed().as_secs_f64() * 1e3);
    }
    std::fs::remove_file(beside)?;
    Ok(worst)
}
