//! Group commit with real threads.

use super::*;
use espalier_storage::{MemoryDevice, SimulatedDevice};
use espalier_sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A device that lets syncs wait at a gate.
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
        scope.spawn(move || assert_eq!(log.sync(Lsn(1)).unwrap(), LogProgress::Done));
        while gated.syncs.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
        for lsn in 2..=9 {
            log.append(batch(lsn, vec![delete("a")])).unwrap();
            scope.spawn(move || assert_eq!(log.sync(Lsn(lsn)).unwrap(), LogProgress::Done));
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

/// A device that notes what it is told, and lets the first write wait at a gate.
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

/// One caller syncs much, in many groups. A caller that waits for what is in the first of them
/// waits for that one.
#[test]
fn a_small_sync_does_not_wait_for_a_large_one() {
    let layout = Layout::new(1024, 64);
    let inner = MemoryDevice::new(layout.bytes());
    let noting =
        Arc::new(Noting { inner, open: Mutex::new(true), opened: Condvar::new(), told: Mutex::default() });
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
        scope.spawn(move || assert_eq!(log.sync(Lsn(60)).unwrap(), LogProgress::Done));
        while noting.told.lock().is_empty() {
            std::thread::yield_now();
        }
        scope.spawn(move || assert_eq!(log.sync(Lsn(1)).unwrap(), LogProgress::Done));
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
                LogProgress::Full => checkpoint(log, position),
                LogProgress::Done if log.durable_lsn() >= Lsn(lsn) => break,
                LogProgress::Done => {}
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

/// A device that notes the first byte and the place of what is written, and where a write waits, by
/// that byte, until it may end, well or not.
#[derive(Debug)]
struct Held {
    inner: MemoryDevice,
    /// What is under way, what may end and what must fail.
    state: Mutex<HeldState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct HeldState {
    begun: Vec<(u8, u64)>,
    may_end: Vec<u8>,
    must_fail: Vec<u8>,
}

impl Device for Held {
    fn name(&self) -> &str {
        "held"
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> espalier_storage::Result<()> {
        self.inner.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> espalier_storage::Result<()> {
        let first = buffers[0][0];
        let mut state = self.state.lock();
        state.begun.push((first, offset));
        self.changed.notify_all();
        // What begins otherwise is no value of the tests'.
        while matches!(first, 1..=9) && !state.may_end.contains(&first) {
            self.changed.wait(&mut state);
        }
        if state.must_fail.contains(&first) {
            let message = "told to fail";
            let operation = espalier_storage::Operation::Write;
            return Err(espalier_storage::Error::new(
                espalier_storage::ErrorKind::Io,
                operation,
                "held",
                message,
            ));
        }
        drop(state);
        self.inner.write_at(offset, buffers)
    }
    fn sync(&self) -> espalier_storage::Result<()> {
        self.inner.sync()
    }
    fn discard(&self, offset: u64, length: u64) -> espalier_storage::Result<()> {
        self.inner.discard(offset, length)
    }
}

impl Held {
    fn wait_for(&self, what: impl Fn(&HeldState) -> bool) {
        let mut state = self.state.lock();
        while !what(&state) {
            self.changed.wait(&mut state);
        }
    }

    fn let_end(&self, what: u8) {
        self.state.lock().may_end.push(what);
        self.changed.notify_all();
    }
}

/// Two groups at a time: the values of the second end first. If the first fails, the second does
/// not count either.
#[test]
fn groups_are_made_ready_together_and_written_in_order() {
    for fails in [false, true] {
        let layout = Layout::new(64, 64);
        let inner = MemoryDevice::new(layout.bytes());
        let held = Arc::new(Held { inner, state: Mutex::default(), changed: Condvar::new() });
        let device: Arc<dyn Device> = held.clone();
        let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
        let config =
            LogConfig { early_binding: 20_000, group_bytes: 60_000, groups: 2, ..LogConfig::default() };
        let rig = open(&device, layout, start, config, 1).unwrap();
        let written = [1, 2].map(|n| batch(n, vec![insert(&format!("{n}"), vec![n as u8; 50_000])]));
        for batch in written {
            rig.log.append(batch).unwrap();
        }
        held.state.lock().must_fail.extend(fails.then_some(1));
        held.state.lock().begun.clear();
        std::thread::scope(|scope| {
            let log = &rig.log;
            let push = move || assert_eq!(log.push(0).is_err(), fails);
            scope.spawn(push);
            held.wait_for(|state| state.begun.iter().any(|(first, _)| *first == 1));
            scope.spawn(push);
            held.wait_for(|state| state.begun.iter().any(|(first, _)| *first == 2));
            assert!(!log.has_turn());
            held.let_end(2);
            held.let_end(1);
        });
        assert!(rig.log.has_turn());
        let in_log = |offset: &u64| *offset / (BLOCK as u64) < layout.log.end();
        let in_log: Vec<u64> =
            held.state.lock().begun.iter().map(|(_, offset)| *offset).filter(in_log).collect();
        let first = layout.log.byte_offset();
        assert_eq!(in_log, if fails { vec![] } else { vec![first, first + BLOCK as u64] });
        let rig = open(&device, layout, start, config, 2).unwrap();
        assert_eq!(rig.replayed.len(), if fails { 0 } else { 2 });
    }
}

/// While others write, a writer that adds to what is pending waits until they have taken enough of
/// it, and not for what they took to be written.
#[test]
fn a_writer_waits_for_others_to_take_what_is_pending() {
    let layout = Layout::new(128, 128);
    let inner = MemoryDevice::new(layout.bytes());
    let held = Arc::new(Held { inner, state: Mutex::default(), changed: Condvar::new() });
    let device: Arc<dyn Device> = held.clone();
    let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
    let config = LogConfig { early_binding: 20_000, group_bytes: 60_000, groups: 2, ..LogConfig::default() };
    let rig = open(&device, layout, start, config, 1).unwrap();
    for n in 1..=3 {
        rig.log.append(batch(n, vec![insert(&format!("{n}"), vec![n as u8; 50_000])])).unwrap();
    }
    let has_begun = |state: &HeldState, what: u8| state.begun.iter().any(|(first, _)| *first == what);
    std::thread::scope(|scope| {
        let log = &rig.log;
        let push = move || assert_eq!(log.push(0).unwrap(), LogProgress::Done);
        scope.spawn(push);
        held.wait_for(|state| has_begun(state, 1));
        let writer = scope.spawn(move || log.make_room(60_000).unwrap());
        scope.spawn(push);
        held.wait_for(|state| has_begun(state, 2));
        assert_eq!(writer.join().unwrap(), LogProgress::Done);
        // Nothing has been written yet, and the writer has begun nothing.
        assert!(!has_begun(&held.state.lock(), 3));
        assert_eq!(log.counters().groups, 0);
        (1..=3).for_each(|what| held.let_end(what));
    });
    assert_eq!(rig.log.counters().groups, 3);
}

/// A writer that is alone writes what it needs to, and no more.
#[test]
fn a_writer_alone_writes_a_short_group() {
    let config = LogConfig { early_binding: 20_000, group_bytes: 400_000, ..LogConfig::default() };
    let (_, _, _, rig) = fresh(256, config);
    for n in 1..=4 {
        rig.log.append(batch(n, vec![insert(&format!("{n}"), vec![n as u8; 50_000])])).unwrap();
    }
    assert_eq!(rig.log.make_room(300_000).unwrap(), LogProgress::Done);
    assert_eq!(rig.log.counters().groups, 0);
    assert_eq!(rig.log.make_room(160_000).unwrap(), LogProgress::Done);
    let counters = rig.log.counters();
    assert_eq!((counters.groups, counters.batches), (1, 1));
    assert_eq!(rig.log.make_room(0).unwrap(), LogProgress::Done);
    assert_eq!(rig.log.counters().batches, 4);
}

/// Callers that wait for a group, and those that come later, get the error.
#[test]
fn a_panic_leaves_no_caller_waiting() {
    let config = LogConfig { early_binding: 20_000, group_bytes: 40_000, ..LogConfig::default() };
    let (device, layout, start, rig) = fresh(64, config);
    rig.log.append(batch(1, vec![insert("1", PANIC.to_vec())])).unwrap();
    for lsn in 2..=4 {
        rig.log.append(batch(lsn, vec![insert("2", vec![2; 30_000])])).unwrap();
    }
    std::thread::scope(|scope| {
        let log = &rig.log;
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(move || log.sync(Lsn(4)).and(log.push(0)))).collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        assert_eq!(ends.iter().filter(|end| end.is_err()).count(), 1);
        assert!(ends.iter().flatten().all(|end| end.is_err()));
    });
    assert!(rig.log.append(batch(5, vec![])).is_err());
    drop(rig);
    assert!(open(&device, layout, start, config, 2).unwrap().replayed.is_empty());
}

/// The device loses power while several write and sync: what is there afterwards is a row without a
/// gap, with all that was durable.
#[test]
fn a_crash_while_many_write_leaves_a_prefix() {
    let mut more = 0;
    for seed in 0..20 {
        let layout = Layout::new(8192, 8192);
        let simulated = Arc::new(SimulatedDevice::with_garbage(layout.bytes(), seed));
        let device: Arc<dyn Device> = simulated.clone();
        let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
        simulated.sync().unwrap();
        let config =
            LogConfig { early_binding: 20_000, group_bytes: 60_000, groups: 3, ..LogConfig::default() };
        let rig = open(&device, layout, start, config, seed).unwrap();
        let commit = Mutex::new(0u64);
        let over = AtomicBool::new(false);
        let mut crashes = Vec::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|thread| {
                    let (log, commit, over) = (&rig.log, &commit, &over);
                    scope.spawn(move || write_much(log, commit, over, Random::new(seed * 10 + thread)))
                })
                .collect();
            let mut seen = 0;
            while writers.iter().any(|writer| !writer.is_finished()) && crashes.len() < 8 {
                let durable = rig.log.durable_lsn();
                if durable.0 > seen {
                    seen = durable.0 + 10;
                    crashes.push((durable, simulated.crash()));
                }
                std::thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
        });
        let last = *commit.lock();
        for (durable, crashed) in crashes {
            let device: Arc<dyn Device> = Arc::new(crashed);
            let rig = open(&device, layout, start, config, seed + 100).unwrap();
            let lsns: Vec<u64> = rig.replayed.iter().map(|batch| batch.lsn.0).collect();
            let end = lsns.len() as u64;
            assert_eq!(lsns, (1..=end).collect::<Vec<_>>(), "seed {seed}");
            assert!(durable.0 <= end && end <= last, "seed {seed}: {durable:?} {end} {last}");
            more += u64::from(end > durable.0);
        }
    }
    assert!(more > 0, "nothing that was not synced came back: the crashes came too early");
}

fn write_much(log: &Log, commit: &Mutex<u64>, over: &AtomicBool, mut random: Random) {
    for _ in 0..100 {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let lsn = {
            let mut last = commit.lock();
            let value = vec![*last as u8; random.below(40_000) as usize];
            log.append(batch(*last + 1, vec![insert(&format!("{}", *last % 50), value)])).unwrap();
            *last += 1;
            *last
        };
        let progress = if random.one_in(5) { log.sync(Lsn(lsn)) } else { log.push(random.below(2) * 30_000) };
        assert_eq!(progress.unwrap(), LogProgress::Done);
    }
}
