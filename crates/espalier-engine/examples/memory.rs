//! What memory a store takes beside its budget: small values at random keys, and the figures.
//!
//! `cargo run --release -p espalier-engine --example memory -- FILE [MIB [VALUES [BYTES]]]` opens a
//! store that may take MIB (256) of memory, puts so many VALUES (4,000,000) of so many BYTES (100)
//! at random keys in batches of a hundred, then reads a quarter of them at random. After each tenth
//! it prints what the store counts, what the allocator has given out, and what the process has
//! resident; at the end the most that was resident.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use espalier_engine::{Batch, FormatOptions, IndexId, OpenOptions, Store};
use espalier_storage::{FileDevice, OpenMode, SystemEnvironment};
use std::alloc::{GlobalAlloc, Layout};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Instant;

/// Values in a batch.
const BATCH: u64 = 100;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The allocator of the program `espalier`, which counts what it has given out.
struct Counting(mimalloc::MiMalloc);

/// Bytes given out, now and at most since they were last printed.
static LIVE: AtomicI64 = AtomicI64::new(0);
static MOST_LIVE: AtomicI64 = AtomicI64::new(0);

fn count(bytes: i64) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    if live > MOST_LIVE.load(Relaxed) {
        MOST_LIVE.fetch_max(live, Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(mimalloc::MiMalloc);

// SAFETY: all of it is done by the allocator inside.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.realloc(at, layout, size) }
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: memory FILE [MIB [VALUES [BYTES]]]")?;
    let mut number = |default: u64| args.next().map_or(Ok(default), |n| n.parse());
    let (mebibytes, values, bytes) = (number(256)?, number(4_000_000)?, number(100)?);
    let env = Arc::new(SystemEnvironment::new(2));
    let device = Arc::new(FileDevice::create(Path::new(&path), 6 * values * (bytes + 100) + (2 << 30))?);
    Store::format(device, env.clone(), &FormatOptions::default())?;
    let device = Arc::new(FileDevice::open(Path::new(&path), OpenMode::ReadWrite)?);
    let store = Store::open(device, env, OpenOptions { memory: mebibytes << 20, ..OpenOptions::default() })?;
    let index = IndexId { volume: store.create_volume("bench", 1, 0, &[])?, index: 0 };
    let start = Instant::now();
    println!(
        "{:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "seconds", "stalled", "memtables", "dirty", "cache", "counted", "live", "resident"
    );
    let mut value = vec![0; bytes as usize];
    for first in (0..values).step_by(BATCH as usize) {
        let mut batch = Batch::new();
        for n in first..(first + BATCH).min(values) {
            scatter(n, &mut value);
            batch.insert(index, &key(n), value.clone());
        }
        store.commit(batch)?;
        if (first + BATCH).is_multiple_of(values / 10 / BATCH * BATCH) {
            print(&store, start)?;
        }
    }
    store.sync_all()?;
    print(&store, start)?;
    for n in 0..values / 4 {
        let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % values;
        store.get(index, &key(n))?.ok_or("a value is gone")?;
    }
    println!("read");
    print(&store, start)?;
    store.close()?;
    println!("{} MiB resident at most", status("VmHWM:")? >> 10);
    Ok(())
}

fn print(store: &Store, start: Instant) -> Result<()> {
    let now = store.statistics();
    let counted = now.memtable_bytes + now.dirty_bytes + now.log_bytes + now.cache_bytes;
    let seconds = start.elapsed().as_secs_f64();
    let stalled = now.stalls.pushing + now.stalls.slowed + now.stalls.waiting;
    print!("{seconds:10.1} {:9.1}", stalled.as_secs_f64());
    let live = [LIVE.load(Relaxed) as u64, MOST_LIVE.swap(0, Relaxed) as u64];
    let parts = [now.memtable_bytes, now.dirty_bytes, now.log_bytes, now.cache_bytes, counted];
    for bytes in parts.into_iter().chain(live) {
        print!(" {:9}", bytes >> 20);
    }
    println!(" {:9}", status("VmRSS:")? >> 10);
    Ok(())
}

/// A line of `/proc/self/status`, in KiB.
fn status(name: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
    Ok(line.split_whitespace().next().ok_or("no number")?.parse()?)
}

/// Bytes that cannot be compressed.
fn scatter(n: u64, out: &mut [u8]) {
    let mut word = n ^ 0x1234_5678;
    for bytes in out.chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
}

/// Sixteen bytes, scattered.
fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}
