//! What is left of the speed when the device is nearly full.

use super::bench::Bench;
use crate::random::Random;
use anyhow::Result;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

/// Overwrites of 4 KiB, new files and removals at a half, at 90 and at 97 of 100.
pub(super) fn churn(bench: &mut Bench<'_>) -> Result<()> {
    let root = bench.root();
    let target = root.join("target");
    let mut random = Random(5);
    let mut chunk = vec![0; 1 << 20];
    random.fill(&mut chunk);
    let length = (bench.options.device_size / 10) >> 20;
    let mut file = File::create(&target)?;
    for number in 0..length {
        chunk[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    let mut fillers = 0;
    for percent in [50, 90, 97] {
        let told = rustix::fs::statvfs(&root)?;
        let all = told.f_blocks * told.f_frsize;
        // Space that was freed may come back late.
        while bench.contender.used_bytes()? * 100 < all * percent {
            let mut file = File::create(root.join(format!("filler-{fillers}")))?;
            fillers += 1;
            for number in 0..8_u64 {
                chunk[..8].copy_from_slice(&(fillers * 8 + number).to_le_bytes());
                file.write_all(&chunk)?;
            }
            if fillers % 16 == 0 {
                bench.settle()?;
            }
        }
        bench.settle()?;
        let target = OpenOptions::new().write(true).open(&target)?;
        let rate = bench.rate(1, bench.count(20_000), |_, random| {
            let mut page = [0; 4096];
            random.fill(&mut page);
            target.write_all_at(&page, random.next() % (length << 8) * 4096)?;
            if random.next() % 8 == 0 {
                let path = root.join(format!("new-{}", random.next() % 64));
                if random.next() % 2 == 0 { std::fs::write(path, &chunk[..65_536])? } else { gone(&path)? }
            }
            Ok(())
        })?;
        bench.point("nearly_full", percent as f64, rate);
    }
    Ok(())
}

/// Removes a file if it is there.
fn gone(path: &std::path::Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Appends of 4 KiB with an fsync each, to a file of each thread.
pub(super) fn fsyncs(bench: &mut Bench<'_>) -> Result<()> {
    for threads in [1, 2, 4, 8] {
        let open = |thread: u64| File::create(bench.root().join(format!("log-{threads}-{thread}")));
        let files: Vec<_> = (0..threads).map(open).collect::<std::io::Result<_>>()?;
        let rate = bench.rate(threads, bench.count(4_000), |thread, random| {
            let mut block = [0; 4096];
            random.fill(&mut block);
            let mut file = &files[thread as usize];
            file.write_all(&block)?;
            Ok(file.sync_all()?)
        })?;
        bench.point("fsyncs", threads as f64, rate);
    }
    Ok(())
}
