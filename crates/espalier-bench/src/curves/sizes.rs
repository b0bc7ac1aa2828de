//! What numbers and sizes cost: from ten thousand files to ten million, and from one gibibyte to
//! 64, with a budget of 256 MiB for Espalier. A knee is where the memory does not suffice any more.

use super::bench::Bench;
use crate::random::Random;
use crate::steps::{drain, small};
use crate::system;
use anyhow::Result;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// The budget.
const CACHE: u64 = 256 << 20;

/// Random accesses at each size.
const ACCESSES: u64 = 4_000;

/// Creation, look-ups and lists of ever more files.
pub(super) fn files(bench: &mut Bench<'_>) -> Result<()> {
    bench.contender.set_cache(CACHE);
    let largest = bench.count(10_000_000);
    let mut count = 10_000.min(largest);
    while count <= largest {
        bench.renew()?;
        let root = bench.root().join("small");
        let started = Instant::now();
        small::create(&root, count)?;
        bench.settle()?;
        let x = count as f64;
        bench.point("files_created", x, x / started.elapsed().as_secs_f64());
        bench.contender.remount_cold()?;
        let started = Instant::now();
        let mut random = Random(count);
        let looked_at = ACCESSES.min(count);
        for _ in 0..looked_at {
            std::fs::symlink_metadata(small::path_of(&root, random.next() % count))?;
        }
        bench.point("files_stat_us", x, started.elapsed().as_secs_f64() * 1e6 / looked_at as f64);
        bench.contender.remount_cold()?;
        let started = Instant::now();
        drain("find", &["."], &root)?;
        bench.point("files_listed", x, x / started.elapsed().as_secs_f64());
        count *= 10;
    }
    bench.contender.set_cache(bench.options.cache);
    Ok(())
}

/// Random reads and overwrites of 4 KiB in ever larger files.
pub(super) fn bytes(bench: &mut Bench<'_>) -> Result<()> {
    bench.contender.set_cache(CACHE);
    let largest = bench.count(64 << 30).min(bench.options.device_size / 10 * 7);
    // Whole mebibytes.
    let mut length = ((1 << 30).min(largest) >> 20).max(1) << 20;
    while length <= largest {
        bench.renew()?;
        let path = bench.root().join("file");
        let mut file = File::create(&path)?;
        let mut chunk = vec![0; 1 << 20];
        Random(1).fill(&mut chunk);
        for number in 0..length >> 20 {
            chunk[..8].copy_from_slice(&number.to_le_bytes());
            file.write_all(&chunk)?;
        }
        file.sync_all()?;
        drop(file);
        let x = length as f64 / f64::from(1 << 30);
        bench.contender.remount_cold()?;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut random = Random(length);
        let mut place = || random.next() % (length / 4096) * 4096;
        let started = Instant::now();
        for _ in 0..ACCESSES {
            file.read_exact_at(&mut chunk[..4096], place())?;
        }
        bench.point("file_read_us", x, started.elapsed().as_secs_f64() * 1e6 / ACCESSES as f64);
        let started = Instant::now();
        for _ in 0..ACCESSES {
            file.write_all_at(&chunk[..4096], place())?;
        }
        file.sync_all()?;
        bench.point("file_overwrite_us", x, started.elapsed().as_secs_f64() * 1e6 / ACCESSES as f64);
        drop(file);
        length *= 4;
    }
    system::drop_caches()?;
    bench.contender.set_cache(bench.options.cache);
    Ok(())
}
