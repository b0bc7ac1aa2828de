//! Group commit, measured: threads that commit a small batch and sync it, over and over; then a
//! long sequential write with one sync at its end.
//!
//! `cargo run --release -p espalier-engine --example sync -- IMAGE [SECONDS]` makes and removes
//! IMAGE; with 0 seconds only the long write is measured.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use espalier_engine::{Batch, FormatOptions, IndexId, OpenOptions, Statistics, Store};
use espalier_storage::{Device, Environment, Existing, FileDevice, SystemEnvironment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SIZE: u64 = 8 << 30;
const SEQUENTIAL: u64 = 2 << 30;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let image = arguments.next().ok_or("usage: sync IMAGE [SECONDS]")?;
    let seconds = arguments.next().map_or(Ok(3), |s| s.parse())?;
    let device: Arc<dyn Device> = Arc::new(FileDevice::create_with(&image, SIZE, Existing::Refuse)?);
    let outcome = run(device, seconds);
    std::fs::remove_file(&image)?;
    outcome
}

fn run(device: Arc<dyn Device>, seconds: u64) -> Outcome {
    let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(2));
    Store::format(device.clone(), env.clone(), &FormatOptions::default())?;
    let store = Store::open(device, env, OpenOptions { memory: 1 << 30, ..OpenOptions::default() })?;
    let volume = store.create_volume("bench", 1, 0, &[])?;
    let index = IndexId { volume, index: 0 };
    println!(
        "{:>8} {:>8} {:>10} {:>10} {:>14} {:>12}",
        "threads", "bytes", "syncs/s", "mean us", "batches/group", "log B/batch"
    );
    for (threads, bytes) in [(1, 100), (4, 100), (16, 100), (1, 4096), (16, 4096)] {
        if seconds == 0 {
            break;
        }
        small(&store, index, threads, bytes, Duration::from_secs(seconds))?;
    }
    sequential(&store, index)?;
    store.close()?;
    Ok(())
}

/// Every thread commits one insert of `bytes` and syncs it, for `time`.
fn small(store: &Store, index: IndexId, threads: u64, bytes: usize, time: Duration) -> Outcome {
    let before = store.statistics();
    let (start, done) = (Instant::now(), AtomicU64::new(0));
    let work = |thread: u64| -> espalier_engine::Result<()> {
        let mut n = 0u64;
        while start.elapsed() < time {
            let mut batch = Batch::new();
            batch.insert(index, format!("small/{thread}/{n:012}").as_bytes(), vec![n as u8; bytes]);
            store.sync(store.commit(batch)?)?;
            n += 1;
        }
        done.fetch_add(n, Ordering::Relaxed);
        Ok(())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        all.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })?;
    let (count, seconds) = (done.into_inner() as f64, start.elapsed().as_secs_f64());
    let after = store.statistics();
    println!(
        "{threads:>8} {bytes:>8} {:>10.0} {:>10.0} {:>14.2} {:>12.0}",
        count / seconds,
        seconds * 1e6 * threads as f64 / count,
        count / (after.log.groups - before.log.groups).max(1) as f64,
        (after.log.bytes - before.log.bytes) as f64 / count,
    );
    Ok(())
}

/// One long write in blocks of 128 KiB, then one sync; then a checkpoint.
fn sequential(store: &Store, index: IndexId) -> Outcome {
    let written = |s: &Statistics| s.device.bytes_written;
    let before = store.statistics();
    let start = Instant::now();
    for n in 0..SEQUENTIAL >> 17 {
        let mut batch = Batch::new();
        batch.insert(index, format!("sequential/{n:012}").as_bytes(), vec![n as u8; 128 << 10]);
        store.commit(batch)?;
    }
    store.sync_all()?;
    let (seconds, synced) = (start.elapsed().as_secs_f64(), store.statistics());
    println!(
        "sequential: {:.0} MB/s; written per byte {:.4} at the sync",
        SEQUENTIAL as f64 / 1e6 / seconds,
        (written(&synced) - written(&before)) as f64 / SEQUENTIAL as f64,
    );
    store.checkpoint()?;
    let end = store.statistics();
    println!(
        "            {:.4} after a checkpoint: {:.4} bound early, {:.4} in the log",
        (written(&end) - written(&before)) as f64 / SEQUENTIAL as f64,
        (end.log.bound_bytes - before.log.bound_bytes) as f64 / SEQUENTIAL as f64,
        (end.log.bytes - before.log.bytes) as f64 / SEQUENTIAL as f64,
    );
    Ok(())
}
