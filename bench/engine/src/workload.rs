//! The workloads. Keys have 16 bytes, batches 100 values, and there is one thread. Values cannot be
//! compressed.

use crate::contenders::{self, Contender, Place};
use crate::measure::{self, Figures, Meter};
use anyhow::{Result, ensure};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 16;

/// A key.
pub(crate) type Key = [u8; KEY_BYTES];

/// Values in a batch.
const BATCH: u64 = 100;

/// Keys in a short scan.
const SHORT_SCAN: u64 = 100;

/// Ranges that are deleted, together a tenth of all keys.
const RANGES: u64 = 100;

/// Clones that are made, each of one part in 256 of the keys.
const CLONES: u8 = 100;

/// Random bytes that values are cut from.
const POOL_BYTES: usize = 1 << 20;

/// What is done, and with what.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// Which store it works on: that of scattered keys, or that of keys in order.
    pub(crate) set: &'static str,
    /// It makes that store.
    pub(crate) is_load: bool,
    /// Each batch is synced.
    pub(crate) syncs_each: bool,
    body: fn(&mut Run) -> Result<()>,
}

const fn on(set: &'static str, name: &'static str, body: fn(&mut Run) -> Result<()>) -> Workload {
    Workload { name, set, is_load: false, syncs_each: false, body }
}

/// All of them, in order.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload { is_load: true, ..on("ordered", "insert_ordered", Run::insert_ordered) },
    on("ordered", "scan_ordered_cold", Run::scan_all),
    Workload { is_load: true, ..on("scattered", "insert_random", Run::insert_random) },
    on("scattered", "scan_cold", Run::scan_all),
    on("scattered", "scan_short_cold", Run::scan_short),
    on("scattered", "get_cold", Run::get_cold),
    on("scattered", "get_missing_cold", Run::get_missing),
    on("scattered", "get_warm", Run::get_warm),
    on("scattered", "get_missing_warm", Run::get_missing_warm),
    on("scattered", "overwrite", Run::overwrite),
    Workload { syncs_each: true, ..on("scattered", "overwrite_synced", Run::overwrite_synced) },
    on("scattered", "delete_ranges", Run::delete_ranges),
    on("scattered", "scan_after_delete", Run::scan_all),
    on("scattered", "clone", Run::clone_ranges),
];

/// How much there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Values that are loaded.
    pub(crate) values: u64,
    pub(crate) value_bytes: usize,
    /// Memory of the contender, in bytes.
    pub(crate) budget: u64,
}

struct Run {
    contender: Box<dyn Contender>,
    meter: Meter,
    load: Load,
    random: Random,
    pool: Vec<u8>,
}

/// Does the workload, from opening the store to closing it.
///
/// # Errors
/// Of the contender; if it returns something else than what was written.
pub(crate) fn run(workload: &Workload, name: &str, place: &Place, load: Load) -> Result<Option<Figures>> {
    if !workload.is_load {
        measure::drop_caches(&place.folder)?;
    }
    let mut random = Random(0x1234_5678_9abc_def1);
    let pool = (0..POOL_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    let contender = contenders::open(name, place)?;
    let meter = Meter::start()?;
    // Another sequence for each workload.
    let salt = workload.name.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
    let random = Random(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut run = Run { contender, meter, load, random, pool };
    (workload.body)(&mut run)?;
    let Run { contender, mut meter, .. } = run;
    meter.done();
    contender.close()?;
    let figures = meter.finish(name, workload.name)?;
    let figures = Figures { value_bytes: load.value_bytes, values: load.values, ..figures };
    Ok(Some(figures).filter(|figures| figures.operations > 0))
}

impl Run {
    fn insert_ordered(&mut self) -> Result<()> {
        self.write(self.load.values, |_, n| ordered(n))
    }

    fn insert_random(&mut self) -> Result<()> {
        self.write(self.load.values, |_, n| scattered(n))
    }

    fn overwrite(&mut self) -> Result<()> {
        let values = self.load.values;
        self.write(values / 2, |random, _| scattered(random.next() % values))
    }

    fn overwrite_synced(&mut self) -> Result<()> {
        let values = self.load.values;
        self.write((values / 20).min(200_000), |random, _| scattered(random.next() % values))
    }

    /// Writes `count` values with keys by `key`, in batches, and makes them durable.
    fn write(&mut self, count: u64, key: impl Fn(&mut Random, u64) -> Key) -> Result<()> {
        let Self { contender, meter, load, random, pool } = self;
        for first in (0..count).step_by(BATCH as usize) {
            let batch: Vec<(Key, &[u8])> = (first..(first + BATCH).min(count))
                .map(|n| {
                    let at = random.next() as usize % (POOL_BYTES - load.value_bytes);
                    (key(random, n), &pool[at..at + load.value_bytes])
                })
                .collect();
            meter.call(batch.len() as u64, || contender.write(&batch))?;
        }
        contender.sync()
    }

    fn scan_all(&mut self) -> Result<()> {
        let Self { contender, meter, .. } = self;
        let count = meter.call(0, || contender.scan(&[0; KEY_BYTES], u64::MAX))?;
        meter.add(count);
        Ok(())
    }

    fn scan_short(&mut self) -> Result<()> {
        let Self { contender, meter, load, random, .. } = self;
        for _ in 0..(load.values / 1000).clamp(100, 2_000) {
            let from = scattered(random.next() % load.values);
            let count = meter.call(0, || contender.scan(&from, SHORT_SCAN))?;
            meter.add(count);
        }
        Ok(())
    }

    fn get_cold(&mut self) -> Result<()> {
        let (count, values) = (self.cold_reads(), self.load.values);
        self.get(count, true, |random, _| scattered(random.next() % values))
    }

    fn get_missing(&mut self) -> Result<()> {
        let (count, values) = (self.cold_reads(), self.load.values);
        self.get(count, false, |random, _| scattered(values + random.next() % values))
    }

    fn cold_reads(&self) -> u64 {
        (self.load.values / 50).clamp(1_000, 50_000)
    }

    fn get_warm(&mut self) -> Result<()> {
        self.warm(true)
    }

    fn get_missing_warm(&mut self) -> Result<()> {
        self.warm(false)
    }

    /// Reads what lies together and takes an eighth of the budget, twice; the second time counts.
    fn warm(&mut self, is_there: bool) -> Result<()> {
        let Load { values, value_bytes, budget } = self.load;
        let share = (budget / 8 / (KEY_BYTES + value_bytes) as u64) as f64 / values as f64;
        let below = (share * u64::MAX as f64) as u64;
        let numbers = if is_there { 0..values } else { values..2 * values };
        let mut keys: Vec<Key> = numbers.map(scattered).filter(|key| first_word(key) < below).collect();
        for key in &keys {
            self.contender.get(key)?;
        }
        // Another order.
        for at in (1..keys.len()).rev() {
            keys.swap(at, self.random.next() as usize % (at + 1));
        }
        self.meter = Meter::start()?;
        self.get(keys.len().min(200_000) as u64, is_there, |_, n| keys[n as usize])
    }

    fn get(&mut self, count: u64, is_there: bool, key: impl Fn(&mut Random, u64) -> Key) -> Result<()> {
        let Self { contender, meter, load, random, .. } = self;
        for n in 0..count {
            let key = key(random, n);
            let length = meter.call(1, || contender.get(&key))?;
            ensure!(length == is_there.then_some(load.value_bytes), "{key:?} has {length:?} bytes");
        }
        Ok(())
    }

    fn delete_ranges(&mut self) -> Result<()> {
        let Self { contender, meter, load, .. } = self;
        let step = u64::MAX / RANGES;
        for n in 0..RANGES {
            let (from, to) = (n * step, n * step + step / 10);
            meter.call(0, || contender.delete_range(&bound(from), &bound(to)))?;
        }
        contender.sync()?;
        meter.add(load.values / 10);
        Ok(())
    }

    /// Operations are clones here.
    fn clone_ranges(&mut self) -> Result<()> {
        let Self { contender, meter, .. } = self;
        for n in 0..CLONES {
            let to = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, n];
            let has = meter.call(0, || contender.clone_range(&[n], &to))?;
            meter.add(u64::from(has));
        }
        contender.sync()
    }
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

/// The key with this number, after all with smaller ones.
fn ordered(n: u64) -> Key {
    key(n, n)
}

/// The key with this number, in an order that has nothing to do with that of the numbers.
fn scattered(n: u64) -> Key {
    key(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n)
}

/// The smallest key whose first word this is.
fn bound(word: u64) -> Key {
    key(word, 0)
}

fn key(first: u64, second: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&first.to_be_bytes());
    key[8..].copy_from_slice(&second.to_be_bytes());
    key
}

fn first_word(key: &Key) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&key[..8]);
    u64::from_be_bytes(word)
}
