//! Fixed workloads of the engine, for counting the instructions that they take and the source files
//! that they pass.
//!
//! `cargo run --release -p espalier-engine --example instructions -- WORKLOAD`. The script
//! `scripts/instructions` runs the first four under callgrind and prints the instructions of each;
//! `scripts/files-passed` does the same with the files of single calls. Only what runs inside
//! [`measured`] counts. Everything is decided by a seed: the device is memory, the clock and
//! the random numbers are simulated, and there are no threads, so background work runs in the call
//! that waits for it.

use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Store};
use espalier_storage::{Device, MemoryDevice, Random, SimulatedEnvironment};
use std::hint::black_box;
use std::sync::Arc;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const DEVICE_BYTES: u64 = 512 << 20;
const MEMORY_BYTES: u64 = 64 << 20;
const VALUE_BYTES: usize = 100;
const SEED: u64 = 29;

fn main() -> Outcome {
    let usage = "usage: instructions small-commits|point-reads|scan|clones|\
                 one-write|one-read|one-clone|one-checkpoint";
    match std::env::args().nth(1).ok_or(usage)?.as_str() {
        "small-commits" => small_commits(),
        "point-reads" => point_reads(),
        "scan" => scan(),
        "clones" => clones(),
        "one-write" => one_write(),
        "one-read" => one_read(),
        "one-clone" => one_clone(),
        "one-checkpoint" => one_checkpoint(),
        _ => Err(usage.into()),
    }
}

/// Runs the part of a workload that counts; callgrind finds it by its name.
#[inline(never)]
fn measured(work: &mut dyn FnMut() -> Outcome) -> Outcome {
    let outcome = work();
    // The call above is not the last thing here, so that it does not become a jump.
    black_box(&outcome);
    outcome
}

/// A store in memory with one index.
struct Bed {
    device: Arc<dyn Device>,
    store: Arc<Store>,
    index: IndexId,
}

impl Bed {
    fn new() -> Outcome<Self> {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(DEVICE_BYTES));
        let env = Arc::new(SimulatedEnvironment::new(SEED));
        Store::format(device.clone(), env, &FormatOptions::default())?;
        let store = open(&device)?;
        let volume = store.create_volume("instructions", 1, 0, &[])?;
        Ok(Self { device, store, index: IndexId { volume, index: 0 } })
    }

    /// With `count` keys in the order of their numbers, all in the tree and on the device;
    /// reopened, so that the cache is empty.
    fn filled(count: u64) -> Outcome<Self> {
        let mut bed = Self::new()?;
        for n in 0..count {
            bed.insert(&key(n), n)?;
        }
        bed.store.close()?;
        bed.store = open(&bed.device)?;
        Ok(bed)
    }

    fn insert(&self, key: &[u8], n: u64) -> Outcome {
        let mut batch = Batch::new();
        batch.insert(self.index, key, vec![n as u8; VALUE_BYTES]);
        self.store.commit(batch)?;
        Ok(())
    }
}

fn open(device: &Arc<dyn Device>) -> Outcome<Arc<Store>> {
    let env = Arc::new(SimulatedEnvironment::new(SEED));
    let options = OpenOptions { memory: MEMORY_BYTES, ..OpenOptions::default() };
    Ok(Store::open(device.clone(), env, options)?)
}

/// The key with this number: a hundred in each directory.
fn key(n: u64) -> Vec<u8> {
    format!("project/{:04}/file-{:02}", n / 100, n % 100).into_bytes()
}

/// Inserts of 100 bytes at random keys, each a batch of its own, synced sixteen at a time; then a
/// checkpoint.
fn small_commits() -> Outcome {
    const COMMITS: u64 = 40_000;
    let (bed, mut random) = (Bed::new()?, Random::new(SEED));
    measured(&mut || {
        for n in 0..COMMITS {
            bed.insert(&key(random.below(COMMITS)), n)?;
            if n % 16 == 0 {
                bed.store.sync_all()?;
            }
        }
        Ok(bed.store.checkpoint()?)
    })
}

/// Look-ups of random keys, one in eight of them missing; the first of each part reads the device.
fn point_reads() -> Outcome {
    const KEYS: u64 = 20_000;
    const READS: u64 = 100_000;
    let (bed, mut random) = (Bed::filled(KEYS)?, Random::new(SEED));
    measured(&mut || {
        let mut found = 0;
        for _ in 0..READS {
            let mut key = key(random.below(KEYS));
            if random.one_in(8) {
                key.push(b'x');
            }
            found += u64::from(bed.store.get(bed.index, &key)?.is_some());
        }
        assert!((READS * 3 / 4..READS).contains(&found));
        Ok(())
    })
}

/// A scan that reads the device, then ten of what is in memory.
fn scan() -> Outcome {
    const KEYS: u64 = 20_000;
    let bed = Bed::filled(KEYS)?;
    measured(&mut || {
        for _ in 0..11 {
            let mut cursor = bed.store.cursor(bed.index, KeyRange::prefix(b"project/"))?;
            let mut count = 0;
            while let Some(entry) = cursor.next()? {
                black_box(cursor.read(&entry.value)?);
                count += 1;
            }
            assert_eq!(count, KEYS);
        }
        Ok(())
    })
}

/// Clones of ranges of a hundred keys; in each copy ten keys are changed and all are read. A
/// checkpoint follows each sixteenth.
fn clones() -> Outcome {
    const KEYS: u64 = 4_000;
    const CLONES: u64 = 400;
    let (bed, mut random) = (Bed::filled(KEYS)?, Random::new(SEED));
    measured(&mut || {
        for n in 0..CLONES {
            let source = format!("project/{:04}/", random.below(KEYS / 100));
            let copy = format!("copy/{n:04}/");
            let mut batch = Batch::new();
            batch.clone_range(bed.index, source.as_bytes(), copy.as_bytes());
            bed.store.commit(batch)?;
            for _ in 0..10 {
                bed.insert(format!("{copy}file-{:02}", random.below(100)).as_bytes(), n)?;
            }
            let mut cursor = bed.store.cursor(bed.index, KeyRange::prefix(copy.as_bytes()))?;
            let mut count = 0;
            while cursor.next()?.is_some() {
                count += 1;
            }
            assert_eq!(count, 100);
            if n % 16 == 0 {
                bed.store.checkpoint()?;
            }
        }
        Ok(())
    })
}

/// One commit of one key, and its sync.
fn one_write() -> Outcome {
    let bed = Bed::filled(4_000)?;
    measured(&mut || {
        bed.insert(&key(7), 1)?;
        Ok(bed.store.sync_all()?)
    })
}

/// One look-up, which reads the device.
fn one_read() -> Outcome {
    let bed = Bed::filled(4_000)?;
    measured(&mut || {
        assert!(bed.store.get(bed.index, &key(7))?.is_some());
        Ok(())
    })
}

/// One clone of a hundred keys, and a look-up in the copy.
fn one_clone() -> Outcome {
    let bed = Bed::filled(4_000)?;
    measured(&mut || {
        let mut batch = Batch::new();
        batch.clone_range(bed.index, b"project/0003/", b"copy/");
        bed.store.commit(batch)?;
        assert!(bed.store.get(bed.index, b"copy/file-07")?.is_some());
        Ok(())
    })
}

/// One checkpoint after some commits.
fn one_checkpoint() -> Outcome {
    let bed = Bed::filled(4_000)?;
    for n in 0..1_000 {
        bed.insert(&key(3 * n), n)?;
    }
    measured(&mut || Ok(bed.store.checkpoint()?))
}
