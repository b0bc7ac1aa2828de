//! Many threads on one store, with its background threads, and power cuts in the middle.
//!
//! Protocol: writer `t` commits batches numbered from 0. Batch `i` writes `i` to the counter of `t`
//! in both indexes and a value that `i` decides to key `i % RING_KEYS` of the ring of `t`. So from
//! the counters follows what every key must hold, and a batch is seen whole or not at all. Readers
//! check that in snapshots, and again when these are old; a saboteur checks it in what power cuts
//! leave, with the bounds that the acknowledged syncs set, and that the batches found are a prefix
//! in LSN order.

use crate::failure::ensure;
use crate::setup::{slots, verify};
use crate::{Failure, Outcome, Setup};
use bytes::Bytes;
use espalier_engine::{Batch, IndexId, KeyRange, Lsn, Snapshot, Store};
use espalier_storage::{CrashPoint, Random, SimulatedDevice, SystemEnvironment};
use espalier_sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Keys per writer.
const RING_KEYS: u64 = 40;

/// Snapshots that the first reader keeps, to look at them again when others have been made; the
/// next one keeps sixteen times as many.
const KEPT_SNAPSHOTS: usize = 4;

/// How much to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Writing threads.
    pub writers: usize,
    /// Batches of each.
    pub batches: u64,
    /// Threads that read snapshots.
    pub readers: usize,
    /// Background threads of the store.
    pub background: usize,
    /// Power cuts to record.
    pub crashes: usize,
}

/// What a writer has done.
#[derive(Debug, Default)]
struct Progress {
    /// Batches whose commit was called.
    begun: AtomicU64,
    /// Batches whose commit has returned.
    committed: AtomicU64,
    /// Batches known durable.
    durable: AtomicU64,
    /// The LSN of each batch.
    lsns: Mutex<Vec<Lsn>>,
}

/// A power cut, and how many batches of each writer may be found after it.
struct Cut {
    point: CrashPoint,
    least: Vec<u64>,
    most: Vec<u64>,
}

/// A writer clones its ring with one in so many batches.
const CLONES: u64 = 8;

struct Scene {
    store: Arc<Store>,
    device: Arc<SimulatedDevice>,
    indexes: [IndexId; 2],
    writers: Vec<Progress>,
    load: Load,
    seed: u64,
    over: AtomicBool,
    cuts: Mutex<Vec<Cut>>,
}

/// Runs a load and checks what is seen meanwhile, at the end, and after each power cut; returns the
/// number of snapshots checked.
///
/// # Errors
/// If something seen does not fit, and errors of the store.
pub fn run(setup: &Setup, load: Load) -> Outcome<u64> {
    let setup = Setup { indexes: 2, ..setup.clone() };
    let device = setup.blank_device();
    setup.format(device.clone())?;
    let environment = Arc::new(SystemEnvironment::new(load.background));
    let store = Store::open(device.clone(), environment, setup.open_options())?;
    store.create_volume("shared", 2, 0, &[])?;
    let indexes = slots(&store);
    let scene = Scene {
        store,
        device: device.clone(),
        indexes: [indexes[0], indexes[1]],
        writers: (0..load.writers).map(|_| Progress::default()).collect(),
        load,
        seed: setup.seed,
        over: AtomicBool::new(false),
        cuts: Mutex::default(),
    };
    let seen = scene.play()?;
    let full = vec![load.batches; load.writers];
    check(&scene.store.snapshot()?, scene.indexes, &full, &full).map_err(|e| e.during("at the end"))?;
    verify(&scene.store)?;
    let cuts = std::mem::take(&mut *scene.cuts.lock());
    for (i, cut) in cuts.iter().enumerate() {
        scene.recover(&setup, cut, setup.seed ^ i as u64).map_err(|e| {
            e.during(format_args!("power cut {i}, {:?} to {:?} batches", cut.least, cut.most))
        })?;
    }
    scene.store.close()?;
    drop(scene);
    let store = setup.open(device)?;
    check(&store.snapshot()?, [indexes[0], indexes[1]], &full, &full).map_err(|e| e.during("reopened"))?;
    Ok(seen)
}

impl Scene {
    /// Lets all threads do their work.
    fn play(&self) -> Outcome<u64> {
        std::thread::scope(|scope| {
            let caught = |body: &dyn Fn() -> Outcome<u64>| {
                let outcome = crate::catch(body);
                if outcome.is_err() {
                    self.over.store(true, Ordering::Release);
                }
                outcome
            };
            let writers: Vec<_> =
                (0..self.load.writers).map(|t| scope.spawn(move || caught(&|| self.write(t)))).collect();
            let mut others: Vec<_> =
                (0..self.load.readers).map(|r| scope.spawn(move || caught(&|| self.look(r)))).collect();
            others.push(scope.spawn(move || caught(&|| self.cut())));
            others.push(scope.spawn(move || caught(&|| self.checkpoint())));
            let join = |thread: std::thread::ScopedJoinHandle<'_, Outcome<u64>>| {
                thread.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked")))
            };
            let written: Vec<Outcome<u64>> = writers.into_iter().map(join).collect();
            self.over.store(true, Ordering::Release);
            let seen: Vec<Outcome<u64>> = others.into_iter().map(join).collect();
            written.into_iter().collect::<Outcome<Vec<u64>>>()?;
            Ok(seen.into_iter().collect::<Outcome<Vec<u64>>>()?.into_iter().sum())
        })
    }

    fn write(&self, writer: usize) -> Outcome<u64> {
        let mut random = Random::new(self.seed ^ (writer as u64) << 32);
        let progress = &self.writers[writer];
        for i in 0..self.load.batches {
            if self.over.load(Ordering::Acquire) {
                break;
            }
            progress.begun.store(i + 1, Ordering::SeqCst);
            let lsn = self.store.commit(batch(writer, i, self.indexes))?;
            progress.lsns.lock().push(lsn);
            progress.committed.store(i + 1, Ordering::SeqCst);
            if random.one_in(16) {
                self.store.sync(lsn)?;
                progress.durable.store(i + 1, Ordering::SeqCst);
            }
        }
        Ok(0)
    }

    fn counts(&self, which: impl Fn(&Progress) -> &AtomicU64) -> Vec<u64> {
        self.writers.iter().map(|w| which(w).load(Ordering::SeqCst)).collect()
    }

    fn look(&self, reader: usize) -> Outcome<u64> {
        let mut seen = 0;
        let mut before = vec![0; self.load.writers];
        let mut kept = VecDeque::new();
        let again = |(n, snapshot, found): (u64, Snapshot, Vec<u64>)| {
            check(&snapshot, self.indexes, &found, &found)
                .map_err(|e| e.during(format_args!("snapshot {n} of reader {reader}, looked at again")))
        };
        while !self.over.load(Ordering::Acquire) {
            let least = self.counts(|w| &w.committed);
            let snapshot = self.store.snapshot()?;
            let most = self.counts(|w| &w.begun);
            let least: Vec<u64> = least.into_iter().zip(before).map(|(a, b)| a.max(b)).collect();
            before = check(&snapshot, self.indexes, &least, &most)
                .map_err(|e| e.during(format_args!("snapshot {seen} of reader {reader}")))?;
            kept.push_back((seen, snapshot, before.clone()));
            seen += 1;
            if kept.len() > KEPT_SNAPSHOTS << (4 * reader)
                && let Some(oldest) = kept.pop_front()
            {
                again(oldest)?;
            }
        }
        kept.into_iter().try_for_each(|snapshot| again(snapshot).map(drop))?;
        Ok(seen)
    }

    fn checkpoint(&self) -> Outcome<u64> {
        while !self.over.load(Ordering::Acquire) {
            self.store.checkpoint()?;
            std::thread::yield_now();
        }
        Ok(0)
    }

    fn cut(&self) -> Outcome<u64> {
        let all = self.load.batches * self.load.writers as u64;
        for i in 1..=self.load.crashes as u64 {
            let when = all * i / (self.load.crashes as u64 + 1);
            while self.counts(|w| &w.committed).iter().sum::<u64>() < when {
                if self.over.load(Ordering::Acquire) {
                    return Ok(0);
                }
                std::thread::yield_now();
            }
            let least = self.counts(|w| &w.durable);
            let point = self.device.crash_point();
            let most = self.counts(|w| &w.begun);
            self.cuts.lock().push(Cut { point, least, most });
        }
        Ok(0)
    }

    fn recover(&self, setup: &Setup, cut: &Cut, seed: u64) -> Outcome {
        let store = setup.open(Arc::new(cut.point.crash(seed)))?;
        let found = check(&store.snapshot()?, self.indexes, &cut.least, &cut.most)?;
        verify(&store)?;
        let lsns: Vec<Vec<Lsn>> = self.writers.iter().map(|w| w.lsns.lock().clone()).collect();
        let split = |t: usize| lsns[t].split_at(found[t] as usize);
        let newest = (0..found.len()).filter_map(|t| split(t).0.last()).max();
        let oldest_lost = (0..found.len()).filter_map(|t| split(t).1.first()).min();
        ensure!(
            newest.is_none() || oldest_lost.is_none() || newest < oldest_lost,
            "batch {newest:?} is there and batch {oldest_lost:?} is not"
        );
        Ok(())
    }
}

fn counter_key(writer: usize) -> Vec<u8> {
    format!("counter/{writer:03}").into_bytes()
}

fn prefix(top: &str, writer: usize) -> Vec<u8> {
    format!("{top}/{writer:03}/").into_bytes()
}

fn ring_key(writer: usize, place: u64) -> Vec<u8> {
    format!("ring/{writer:03}/{place:05}").into_bytes()
}

fn ring_value(writer: usize, i: u64) -> Bytes {
    let mut random = Random::new(i << 8 | writer as u64);
    let length = if random.one_in(12) { random.between(4096..=20_000) } else { random.below(300) };
    let mut bytes = vec![i as u8; length as usize + 8];
    bytes[..8].copy_from_slice(&i.to_le_bytes());
    bytes.into()
}

fn batch(writer: usize, i: u64, [first, second]: [IndexId; 2]) -> Batch {
    let mut batch = Batch::new();
    batch.insert(first, &counter_key(writer), &i.to_le_bytes()[..]);
    batch.insert(first, &ring_key(writer, i % RING_KEYS), ring_value(writer, i));
    batch.insert(second, &counter_key(writer), &i.to_le_bytes()[..]);
    if i % CLONES == CLONES - 1 {
        batch.clone_range(first, &prefix("ring", writer), &prefix("copy", writer));
    }
    batch
}

/// Checks what a snapshot shows; returns the number of batches of each writer in it.
fn check(
    snapshot: &Snapshot,
    [first, second]: [IndexId; 2],
    least: &[u64],
    most: &[u64],
) -> Outcome<Vec<u64>> {
    let mut found = Vec::new();
    for writer in 0..least.len() {
        let key = counter_key(writer);
        let (one, two) = (snapshot.get(first, &key)?, snapshot.get(second, &key)?);
        ensure!(one == two, "half a batch: counters {one:?} and {two:?} of writer {writer}");
        let count = match one {
            None => 0,
            Some(bytes) => {
                let bytes = bytes[..].try_into().map_err(|_| Failure::new(format!("counter {bytes:?}")))?;
                u64::from_le_bytes(bytes) + 1
            }
        };
        let possible = least[writer]..=most[writer];
        ensure!(possible.contains(&count), "{count} batches of writer {writer}, not {possible:?}");
        check_ring(snapshot, first, "ring", writer, count)?;
        check_ring(snapshot, first, "copy", writer, count / CLONES * CLONES)?;
        found.push(count);
    }
    Ok(found)
}

fn check_ring(snapshot: &Snapshot, index: IndexId, top: &str, writer: usize, count: u64) -> Outcome {
    let range = KeyRange::prefix(&prefix(top, writer));
    let mut cursor = snapshot.cursor(index, range)?;
    for place in 0..count.min(RING_KEYS) {
        // The last batch that wrote to this place.
        let i = (count - 1) - (count - 1 + RING_KEYS - place) % RING_KEYS;
        let Some(entry) = cursor.next()? else {
            return Err(Failure::new(format!("after {count} batches, writer {writer} has {place} keys")));
        };
        let value = cursor.read(&entry.value)?;
        ensure!(
            entry.key[5..] == ring_key(writer, place)[5..] && value == ring_value(writer, i),
            "after {count} batches, place {place} of writer {writer} is not of batch {i}: {} of {} bytes from {:?}",
            entry.key.escape_ascii(),
            value.len(),
            value.get(..8)
        );
    }
    ensure!(cursor.next()?.is_none(), "after {count} batches, writer {writer} has too many keys");
    Ok(())
}
