//! What the engine does alone: puts, large values, point and range reads, cold and warm.
//!
//! `cargo run --release -p espalier-engine --example throughput -- FILE [COUNT]`

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Store};
use espalier_storage::{FileDevice, OpenMode, SystemEnvironment};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Large values, and the bytes of each.
const LARGE_VALUES: u64 = 32 * 1024;
const LARGE_VALUE_BYTES: usize = 64 << 10;
/// Random reads of large values, and the bytes of each.
const RANDOM_READS: u64 = 20_000;
const RANDOM_READ_BYTES: usize = 4096;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: throughput FILE [COUNT]")?;
    let count: u64 = args.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let env = Arc::new(SystemEnvironment::new(2));
    let device = Arc::new(FileDevice::create(Path::new(&path), 16 << 30)?);
    Store::format(device.clone(), env.clone(), &FormatOptions::default())?;
    drop(device);
    let open = || -> Result<Arc<Store>> {
        let device = Arc::new(FileDevice::open(Path::new(&path), OpenMode::ReadWrite)?);
        Ok(Store::open(device, env.clone(), OpenOptions { memory: 1 << 30, ..OpenOptions::default() })?)
    };
    let store = open()?;
    let volume = store.create_volume("bench", 2, 0, &[])?;
    let (small, large) = (IndexId { volume, index: 0 }, IndexId { volume, index: 1 });
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    put_small(&store, small, count, &mut random)?;
    put_large(&store, large)?;
    patch_large(&store, large, count / 4, &mut random)?;
    step(&store, "close", 1, || Ok(store.close()?))?;
    drop(store);
    let store = open()?;
    step(&store, "scan all small values, cold", count, || {
        let mut cursor = store.cursor(small, KeyRange::all())?;
        while cursor.next()?.is_some() {}
        Ok(())
    })?;
    read_large(&store, large, &mut random)?;
    store.close()?;
    Ok(())
}

/// A sequence of numbers without order (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A key with a long prefix in common with others, like a path.
fn small_key(n: u64) -> String {
    format!("home/user/project-{:03}/src/module-{:05}/file-{n:012x}", n % 997, n % 65521)
}

fn large_key(n: u64) -> String {
    format!("file/{n:08x}")
}

fn put_small(store: &Store, index: IndexId, count: u64, random: &mut Random) -> Result<()> {
    step(store, "put 100-byte values at random keys", count, || {
        for _ in 0..count {
            let mut batch = Batch::new();
            batch.insert(index, small_key(random.next()).as_bytes(), vec![7u8; 100]);
            store.commit(batch)?;
        }
        Ok(store.sync_all()?)
    })
}

fn put_large(store: &Store, index: IndexId) -> Result<()> {
    step(store, "put 64 KiB values in order (2 GiB)", LARGE_VALUES, || {
        let value = bytes::Bytes::from(vec![9u8; LARGE_VALUE_BYTES]);
        for n in (0..LARGE_VALUES).step_by(16) {
            let mut batch = Batch::new();
            for i in n..n + 16 {
                batch.insert(index, large_key(i).as_bytes(), value.clone());
            }
            store.commit(batch)?;
        }
        Ok(store.sync_all()?)
    })
}

fn patch_large(store: &Store, index: IndexId, count: u64, random: &mut Random) -> Result<()> {
    step(store, "patch 4 bytes at random places of them", count, || {
        for _ in 0..count {
            let mut batch = Batch::new();
            let at = random.next();
            let offset = (at >> 32) as u32 % (LARGE_VALUE_BYTES as u32 - 4);
            batch.patch(index, large_key(at % LARGE_VALUES).as_bytes(), offset, vec![1u8; 4]);
            store.commit(batch)?;
        }
        Ok(store.sync_all()?)
    })
}

fn read_large(store: &Store, index: IndexId, random: &mut Random) -> Result<()> {
    step(store, "read all large values in order, cold", LARGE_VALUES, || {
        let mut out = vec![0; LARGE_VALUE_BYTES];
        for n in 0..LARGE_VALUES {
            store.get_slice(index, large_key(n).as_bytes(), 0, &mut out)?.ok_or("gone")?;
        }
        Ok(())
    })?;
    step(store, "read 4 KiB of random large values", RANDOM_READS, || {
        let mut out = vec![0; RANDOM_READ_BYTES];
        for _ in 0..RANDOM_READS {
            let at = random.next();
            let offset = (at >> 40) as usize % (LARGE_VALUE_BYTES / RANDOM_READ_BYTES) * RANDOM_READ_BYTES;
            store.get_slice(index, large_key(at % LARGE_VALUES).as_bytes(), offset, &mut out)?;
        }
        Ok(())
    })
}

/// Runs a step, and prints its time and what the device did.
fn step(store: &Store, what: &str, count: u64, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = store.statistics().device;
    let start = Instant::now();
    body()?;
    let (time, after) = (start.elapsed(), store.statistics().device);
    println!(
        "{what:45} {:8.2} s {:9.2} us each, {:6} MB written in {} writes, {:6} MB read in {} reads, {} syncs",
        time.as_secs_f64(),
        time.as_secs_f64() * 1e6 / count as f64,
        (after.bytes_written - before.bytes_written) >> 20,
        after.writes - before.writes,
        (after.bytes_read - before.bytes_read) >> 20,
        after.reads - before.reads,
        after.syncs - before.syncs,
    );
    Ok(())
}
