//! What a writer waits for: random overwrites of values, in batches, each made durable or not; and
//! what a scan reads of values that were loaded so.
//!
//! `cargo run --release -p espalier-engine --example overwrite -- FILE [VALUES [BYTES [BATCHES
//! [MIB]]]]` loads so many values (500,000) of so many bytes (4,096) at random keys, reads all of
//! them in the order of their keys when the store was opened anew, then overwrites a hundred at a
//! time at random keys: so many batches (2,000) without a sync, and as many with one each. It
//! prints how long a batch took, what writers were stalled for, and what the device did. The store
//! may take MIB (256) of memory.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Statistics, Store};
use espalier_storage::{FileDevice, OpenMode, SystemEnvironment};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Values in a batch.
const BATCH: u64 = 100;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: overwrite FILE [VALUES [BYTES [BATCHES [MIB]]]]")?;
    let mut number = |default: u64| args.next().map_or(Ok(default), |n| n.parse());
    let (values, bytes, batches, mebibytes) = (number(500_000)?, number(4096)?, number(2000)?, number(256)?);
    let env = Arc::new(SystemEnvironment::new(2));
    let device = Arc::new(FileDevice::create(Path::new(&path), 3 * values * bytes + (2 << 30))?);
    Store::format(device, env.clone(), &FormatOptions::default())?;
    let open = || -> Result<Arc<Store>> {
        let device = Arc::new(FileDevice::open(Path::new(&path), OpenMode::ReadWrite)?);
        let options = OpenOptions { memory: mebibytes << 20, ..OpenOptions::default() };
        Ok(Store::open(device, env.clone(), options)?)
    };
    let store = open()?;
    let index = IndexId { volume: store.create_volume("bench", 1, 0, &[])?, index: 0 };
    let mut writer = Writer { store, index, values, bytes: bytes as usize, random: 0x9e37_79b9_7f4a_7c15 };
    writer.load()?;
    writer.store.close()?;
    let random = writer.random;
    // The file is locked as long as it is open.
    drop(writer);
    let mut writer = Writer { store: open()?, index, values, bytes: bytes as usize, random };
    writer.scan()?;
    writer.run("overwrite", batches, false)?;
    writer.run("overwrite, a sync each", batches, true)?;
    writer.store.close()?;
    Ok(())
}

struct Writer {
    store: Arc<Store>,
    index: IndexId,
    values: u64,
    bytes: usize,
    random: u64,
}

impl Writer {
    /// The next of a sequence of numbers without order (xorshift).
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Bytes that cannot be compressed.
    fn value(&mut self) -> Vec<u8> {
        let words = self.bytes.div_ceil(8);
        let mut value: Vec<u8> = (0..words).flat_map(|_| self.next().to_le_bytes()).collect();
        value.truncate(self.bytes);
        value
    }

    /// Keys in an order that has nothing to do with theirs.
    fn load(&mut self) -> Result<()> {
        let before = self.store.statistics();
        let start = Instant::now();
        let mut times = Vec::new();
        for first in (0..self.values).step_by(BATCH as usize) {
            let mut batch = Batch::new();
            for n in first..(first + BATCH).min(self.values) {
                let value = self.value();
                batch.insert(self.index, &key(n), value);
            }
            let begun = Instant::now();
            self.store.commit(batch)?;
            times.push(begun.elapsed());
        }
        self.store.sync_all()?;
        self.print("load", start.elapsed(), times, &before);
        Ok(())
    }

    /// Reads all values in the order of their keys.
    fn scan(&self) -> Result<()> {
        let (before, start) = (self.store.statistics().device, Instant::now());
        let mut cursor = self.store.cursor(self.index, KeyRange::all())?;
        let mut count = 0u64;
        while let Some(entry) = cursor.next()? {
            std::hint::black_box(cursor.read(&entry.value)?);
            count += 1;
        }
        let (took, after) = (start.elapsed(), self.store.statistics().device);
        println!(
            "scan, cold              {:8.0}/s; {:.3} reads and {:.0} bytes of the device for each value",
            count as f64 / took.as_secs_f64(),
            (after.reads - before.reads) as f64 / count as f64,
            (after.bytes_read - before.bytes_read) as f64 / count as f64,
        );
        Ok(())
    }

    fn run(&mut self, what: &str, batches: u64, synced: bool) -> Result<()> {
        let before = self.store.statistics();
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..batches {
            let mut batch = Batch::new();
            for _ in 0..BATCH {
                let key = key(self.next() % self.values);
                let value = self.value();
                batch.insert(self.index, &key, value);
            }
            let begun = Instant::now();
            let lsn = self.store.commit(batch)?;
            if synced {
                self.store.sync(lsn)?;
            }
            times.push(begun.elapsed());
        }
        self.print(what, start.elapsed(), times, &before);
        Ok(())
    }

    fn print(&self, what: &str, took: Duration, mut times: Vec<Duration>, before: &Statistics) {
        let after = self.store.statistics();
        let count = times.len() as u64 * BATCH;
        times.sort_unstable();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        let stalled = |of: fn(&Statistics) -> Duration| (of(&after) - of(before)).as_secs_f64();
        let mebibytes = |of: fn(&Statistics) -> u64| (of(&after) - of(before)) >> 20;
        println!(
            "{what:23} {:8.0}/s; a batch: {:6.2} ms median, {:7.2} p99, {:7.1} worst; stalled {:5.2} s pushing, \
             {:5.2} slowed, {:5.2} waiting; {} MiB of values, {} written, {} read; {} checkpoints",
            count as f64 / took.as_secs_f64(),
            at(0.5),
            at(0.99),
            at(1.0),
            stalled(|s| s.stalls.pushing),
            stalled(|s| s.stalls.slowed),
            stalled(|s| s.stalls.waiting),
            (count * self.bytes as u64) >> 20,
            mebibytes(|s| s.device.bytes_written),
            mebibytes(|s| s.device.bytes_read),
            after.checkpoints - before.checkpoints,
        );
    }
}

/// Sixteen bytes, scattered.
fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}
