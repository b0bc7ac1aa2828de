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

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: throughput FILE [COUNT]")?;
    let count: u64 = args.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let env = Arc::new(SystemEnvironment::new(2));
    let device = Arc::new(FileDevice::create(Path::new(&path), 16 << 30)?);
    Store::format(device.clone(), env.clone(), &FormatOptions::default())?;
    drop(device);
    let open = || -> Result<Arc<Store>, Box<dyn Error>> {
        let device = Arc::new(FileDevice::open(Path::new(&path), OpenMode::ReadWrite)?);
        Ok(Store::open(device, env.clone(), OpenOptions { memory: 1 << 30, ..OpenOptions::default() })?)
    };
    let store = open()?;
    let volume = store.create_volume("bench", 2, 0, &[])?;
    let (small, large) = (IndexId { volume, index: 0 }, IndexId { volume, index: 1 });
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let key = |n: u64| format!("home/user/project-{:03}/src/module-{:05}/file-{n:012x}", n % 997, n % 65521);

    step(&store, "put 100-byte values at random keys", count, || {
        for _ in 0..count {
            let mut batch = Batch::new();
            batch.insert(small, key(next()).as_bytes(), vec![7u8; 100]);
            store.commit(batch)?;
        }
        Ok(store.sync_all()?)
    })?;
    let blocks = 32 * 1024;
    step(&store, "put 64 KiB values in order (2 GiB)", blocks, || {
        let value = bytes::Bytes::from(vec![9u8; 64 << 10]);
        for n in (0..blocks).step_by(16) {
            let mut batch = Batch::new();
            for i in n..n + 16 {
                batch.insert(large, format!("file/{i:08x}").as_bytes(), value.clone());
            }
            store.commit(batch)?;
        }
        Ok(store.sync_all()?)
    })?;
    step(&store, "patch 4 bytes at random places of them", count / 4, || {
        for _ in 0..count / 4 {
            let mut batch = Batch::new();
            let at = next();
            batch.patch(
                large,
                format!("file/{:08x}", at % blocks).as_bytes(),
                (at >> 32) as u32 % 65532,
                vec![1u8; 4],
            );
            store.commit(batch)?;
        }
        Ok(store.sync_all()?)
    })?;
    step(&store, "close", 1, || Ok(store.close()?))?;
    drop(store);
    let store = open()?;
    step(&store, "scan all small values, cold", count, || {
        let mut cursor = store.cursor(small, KeyRange::all())?;
        while cursor.next()?.is_some() {}
        Ok(())
    })?;
    step(&store, "read all large values in order, cold", blocks, || {
        let mut out = vec![0; 64 << 10];
        for n in 0..blocks {
            store.get_slice(large, format!("file/{n:08x}").as_bytes(), 0, &mut out)?.ok_or("gone")?;
        }
        Ok(())
    })?;
    step(&store, "read 4 KiB of random large values", 20_000, || {
        let mut out = vec![0; 4096];
        for _ in 0..20_000 {
            let at = next();
            store.get_slice(
                large,
                format!("file/{:08x}", at % blocks).as_bytes(),
                (at >> 40) as usize % 16 * 4096,
                &mut out,
            )?;
        }
        Ok(())
    })?;
    store.close()?;
    Ok(())
}

fn step(
    store: &Store,
    what: &str,
    count: u64,
    body: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
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
