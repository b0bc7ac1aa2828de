//! Many small files: the rate of creation on the way to a million, and the server's memory
//! meanwhile.

use super::bench::Bench;
use crate::steps::small;
use anyhow::Result;
use std::time::Instant;

/// Slices of the way.
const SLICES: u64 = 40;

/// TokuBench (BetrFS 0.2, FAST 2015, section 7): files of 200 bytes, by one program.
pub(super) fn creation(bench: &mut Bench<'_>) -> Result<()> {
    let root = bench.root().join("small");
    let slice = bench.count(1_000_000) / SLICES;
    for number in 0..SLICES {
        let started = Instant::now();
        small::create_range(&root, number * slice..(number + 1) * slice)?;
        let seconds = started.elapsed().as_secs_f64();
        bench.point("creation", ((number + 1) * slice) as f64, slice as f64 / seconds);
    }
    bench.settle()
}

/// The server's memory by its budget while two programs make a million files: at most 1.15 times
/// the budget and 64 MiB.
pub(super) fn memory(bench: &mut Bench<'_>) -> Result<()> {
    for (curve, rate, budget) in
        [("memory_64M", "creation_64M", 64_u64 << 20), ("memory_256M", "creation_256M", 256_u64 << 20)]
    {
        bench.contender.set_cache(budget);
        bench.renew()?;
        let slice = bench.count(1_000_000) / SLICES / 2;
        let roots = ["a", "b"].map(|name| bench.root().join(name));
        for number in 0..SLICES {
            let started = Instant::now();
            let range = || number * slice..(number + 1) * slice;
            std::thread::scope(|scope| -> Result<()> {
                let other = scope.spawn(|| small::create_range(&roots[0], range()));
                small::create_range(&roots[1], range())?;
                other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })?;
            let seconds = started.elapsed().as_secs_f64();
            let files = ((number + 1) * slice * 2) as f64;
            bench.point(rate, files, slice as f64 * 2.0 / seconds);
            let resident = bench.contender.resident()?.unwrap_or(0);
            bench.point(curve, files, resident as f64 / f64::from(1 << 20));
        }
        let peak = bench.contender.peak_resident()?;
        let limit = budget + budget * 15 / 100 + (64 << 20);
        bench.curves.require(peak <= limit, || {
            format!("{} MiB resident with a budget of {} MiB, {curve}", peak >> 20, budget >> 20)
        });
    }
    bench.contender.set_cache(bench.options.cache);
    Ok(())
}
