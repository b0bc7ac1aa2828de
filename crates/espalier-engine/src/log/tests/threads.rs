//! Group commit with real threads.

use super::*;
use espalier_storage::{MemoryDevice, SimulatedDevice};
use parking_lot::Condvar;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device whose syncs wait at a gate.
#[derive(Debug)]
struct Gated {
    inner: MemoryDevice,
    open: Mutex<bool>,
    opened: Condvar,
    syncs: AtomicU64,
}

impl Device for Gated {
    fn name(&self) -> &str {
        "gated"
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> espalier_storage::Result<()> {
        self.inner.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> espalier_storage::Result<()> {
        self.inner.write_at(offset, buffers)
    }
    fn sync(&self) -> espalier_storage::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
        Ok(())
    }
    fn discard(&self, offset: u64, length: u64) -> espalier_storage::Result<()> {
        self.inner.discard(offset, length)
    }
}

#[test]
fn who_comes_during_a_sync_shares_the_next() {
    let layout = Layout::new(64, 64);
    let inner = MemoryDevice::new(layout.bytes());
    let gated =
        Arc::new(Gated { inner, open: Mutex::new(true), opened: Condvar::new(), syncs: AtomicU64::new(0) });
    let device: Arc<dyn Device> = gated.clone();
    let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
    let rig = open(&device, layout, start, LogConfig::default(), 1).unwrap();
    let before = gated.syncs.load(Ordering::SeqCst);
    *gated.open.lock() = false;
    std::thread::scope(|scope| {
        let log = &rig.log;
        log.append(batch(1, vec![delete("a")])).unwrap();
        scope.spawn(move || assert_eq!(log.sync(Lsn(1)).unwrap(), Progress::Done));
        while gated.syncs.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
        for lsn in 2..=9 {
            log.append(batch(lsn, vec![delete("a")])).unwrap();
            scope.spawn(move || assert_eq!(log.sync(Lsn(lsn)).unwrap(), Progress::Done));
        }
        while log.waiting() < 9 {
            std::thread::yield_now();
        }
        *gated.open.lock() = true;
        gated.opened.notify_all();
    });
    // One for the first, one for the eight others; each with one group.
    assert_eq!(gated.syncs.load(Ordering::SeqCst) - before, 2);
    assert_eq!(rig.log.counters().groups, 2);
}

/// A device that notes what it is told, and whose first write waits at a gate.
#[derive(Debug)]
struct Noting {
    inner: MemoryDevice,
    open: Mutex<bool>,
    opened: Condvar,
    told: Mutex<Vec<&'static str>>,
}

impl Device for Noting {
    fn name(&self) -> &str {
        "noting"
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> espalier_storage::Result<()> {
        self.inner.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> espalier_storage::Result<()> {
        self.told.lock().push("write");
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
        self.inner.write_at(offset, buffers)
    }
    fn sync(&self) -> espalier_storage::Result<()> {
        self.told.lock().push("sync");
        Ok(())
    }
    fn discard(&self, offset: u64, length: u64) -> espalier_storage::Result<()> {
        self.inner.discard(offset, length)
    }
}

/// Somebody syncs much, in many groups. Who waits for what is in the first of them waits for that one.
#[test]
fn a_small_sync_does_not_wait_for_a_large_one() {
    let layout = Layout::new(1024, 64);
    let inner = MemoryDevice::new(layout.bytes());
    let noting =
        Arc::new(Noting { inner, open: true.into(), opened: Condvar::new(), told: Mutex::default() });
    let device: Arc<dyn Device> = noting.clone();
    let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
    let config = LogConfig { early_binding: u64::MAX, group_bytes: 60_000, ..LogConfig::default() };
    let rig = open(&device, layout, start, config, 1).unwrap();
    noting.told.lock().clear();
    *noting.open.lock() = false;
    for lsn in 1..=60 {
        rig.log.append(batch(lsn, vec![insert(&format!("{lsn}"), vec![7; 20_000])])).unwrap();
    }
    std::thread::scope(|scope| {
        let log = &rig.log;
        scope.spawn(move || assert_eq!(log.sync(Lsn(60)).unwrap(), Progress::Done));
        while noting.told.lock().is_empty() {
            std::thread::yield_now();
        }
        scope.spawn(move || assert_eq!(log.sync(Lsn(1)).unwrap(), Progress::Done));
        while log.waiting() < 2 {
            std::thread::yield_now();
        }
        *noting.open.lock() = true;
        noting.opened.notify_all();
    });
    let told = noting.told.lock();
    assert_eq!(told[..3], ["write", "sync", "write"], "{told:?}");
    // Once is enough: the large one syncs once more, at its end.
    assert_eq!(told.iter().filter(|what| **what == "sync").count(), 2, "{told:?}");
    assert_eq!(*told.last().unwrap(), "sync");
}

#[test]
fn many_threads_with_checkpoints() {
    for seed in 0..6 {
        let layout = Layout::new(64, 512);
        let simulated = Arc::new(SimulatedDevice::new(layout.bytes(), seed));
        let device: Arc<dyn Device> = simulated.clone();
        let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
        let config = LogConfig { early_binding: 20_000, group_bytes: 60_000, ..LogConfig::default() };
        let rig = open(&device, layout, start, config, seed).unwrap();
        let commit = Mutex::new(0u64);
        let position = Mutex::new(start);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (log, commit, position) = (&rig.log, &commit, &position);
                scope.spawn(move || run(log, commit, position, Random::new(seed * 10 + thread)));
            }
        });
        let last = *commit.lock();
        assert_eq!(rig.log.durable_lsn(), Lsn(last), "seed {seed}");
        let position = *position.lock();
        let device: Arc<dyn Device> = Arc::new(simulated.crash());
        let rig = open(&device, layout, position, config, seed + 100).unwrap();
        let lsns: Vec<u64> = rig.replayed.iter().map(|batch| batch.lsn.0).collect();
        assert_eq!(lsns, (position.lsn.0 + 1..=last).collect::<Vec<_>>(), "seed {seed}");
    }
}

fn run(log: &Log, commit: &Mutex<u64>, position: &Mutex<LogPosition>, mut random: Random) {
    for _ in 0..150 {
        let lsn = {
            let mut last = commit.lock();
            let value = vec![*last as u8; random.below(9000) as usize];
            log.append(batch(*last + 1, vec![insert(&format!("{}", *last % 50), value)])).unwrap();
            *last += 1;
            *last
        };
        loop {
            let progress = if random.one_in(4) { log.push(0) } else { log.sync(Lsn(lsn)) };
            match progress.unwrap() {
                Progress::Full => checkpoint(log, position),
                Progress::Done if log.durable_lsn() >= Lsn(lsn) => break,
                Progress::Done => {}
            }
        }
        assert!(log.durable_lsn() >= Lsn(lsn));
        assert!(log.used_bytes() <= log.capacity());
    }
}

fn checkpoint(log: &Log, position: &Mutex<LogPosition>) {
    let mut position = position.lock();
    let upto = log.appended_lsn();
    if upto > position.lsn {
        *position = log.position_after(upto);
        log.trim(*position);
    }
}
