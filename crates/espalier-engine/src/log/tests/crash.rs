//! Histories with crashes: what comes back is a prefix of the batches, at or after the last sync.

use super::model::{Maps, Workload, apply};
use super::*;
use espalier_storage::{CrashPoint, SimulatedDevice};

/// A checkpoint with a durable superblock: the position in it and the state it holds.
#[derive(Clone)]
struct Checkpoint {
    position: LogPosition,
    maps: Maps,
}

/// What was promised at some number of device operations.
struct Promise {
    change: u64,
    durable: Lsn,
    /// Which checkpoint is in force.
    checkpoint: usize,
}

struct History {
    seed: u64,
    work: Workload,
    layout: Layout,
    config: LogConfig,
    device: Arc<SimulatedDevice>,
    rig: Rig,
    /// `states[i]`: the maps after batch `i`.
    states: Vec<Maps>,
    checkpoints: Vec<Checkpoint>,
    promises: Vec<Promise>,
    /// A checkpoint under way: position taken, superblock not durable.
    begun: Option<LogPosition>,
}

fn in_memory(value: &Value) -> Vec<u8> {
    value.in_memory().expect("new values are in memory").to_vec()
}

impl History {
    fn new(seed: u64) -> Self {
        let mut work = Workload::new(seed);
        let layout = Layout::new(work.random.between(16..=80) as u32, 600);
        let early_binding = *work.random.choose(&[1, 10_000, 40_000, u64::MAX]);
        let config = LogConfig {
            early_binding,
            group_bytes: work.random.between(1_000..=60_000),
            unsynced_blocks: work.random.between(1..=20),
            unsynced_values: work.random.between(1..=200_000),
            groups: work.random.between(1..=3) as usize,
            unlogged: false,
            recovery_memory: *work.random.choose(&[0, 5_000, 100_000, u64::MAX]),
        };
        let device = Arc::new(SimulatedDevice::with_garbage(layout.bytes(), seed));
        let shared: Arc<dyn Device> = device.clone();
        let start = Log::format(&guarded(&shared), layout.log, UUID).unwrap();
        device.sync().unwrap();
        let rig = open(&shared, layout, start, config, seed).unwrap();
        let checkpoints = vec![Checkpoint { position: start, maps: Maps::new() }];
        let states = vec![Maps::new()];
        let (promises, begun) = (Vec::new(), None);
        let mut history =
            Self { seed, work, layout, config, device, rig, states, checkpoints, promises, begun };
        history.promise();
        history
    }

    fn promise(&mut self) {
        self.promises.push(Promise {
            change: self.device.counts().changes(),
            durable: self.rig.log.durable_lsn(),
            checkpoint: self.checkpoints.len() - 1,
        });
    }

    fn last(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn step(&mut self) {
        match self.work.random.below(20) {
            0..=9 => self.append(),
            10..=12 => {
                let log = &self.rig.log;
                let upto = self.work.random.between(log.durable_lsn().0..=log.appended_lsn().0);
                if log.sync(Lsn(upto)).unwrap() == LogProgress::Full {
                    self.forced_checkpoint();
                } else {
                    assert!(self.rig.log.durable_lsn() >= Lsn(upto), "seed {}", self.seed);
                }
            }
            13..=16 => {
                let leave = *self.work.random.choose(&[0, 0, 20_000]);
                if self.rig.log.push(leave).unwrap() == LogProgress::Full {
                    self.forced_checkpoint();
                }
            }
            17 | 18 => {
                let from = self.checkpoints.last().map_or(0, |c| c.position.lsn.0);
                let lsn = self.work.random.between(from..=self.last());
                self.begun.get_or_insert_with(|| self.rig.log.position_after(Lsn(lsn)));
            }
            _ => self.finish_checkpoint(),
        }
        assert!(self.rig.log.used_bytes() <= self.rig.log.capacity());
        self.promise();
    }

    fn append(&mut self) {
        let batch = self.work.batch(self.last() + 1);
        if self.rig.log.check(&batch.ops).is_err() {
            return;
        }
        let mut maps = self.states.last().cloned().unwrap_or_default();
        batch.ops.iter().for_each(|op| apply(&mut maps, op, &in_memory));
        self.rig.log.append(batch).unwrap();
        self.states.push(maps);
    }

    fn forced_checkpoint(&mut self) {
        self.begun = Some(self.rig.log.position_after(Lsn(self.last())));
        self.finish_checkpoint();
        assert_eq!(self.rig.log.push(0).unwrap(), LogProgress::Done);
    }

    fn finish_checkpoint(&mut self) {
        let Some(position) = self.begun.take() else { return };
        // Parts that the checkpoint's state needs are counted then; here the state is a copy.
        self.device.sync().unwrap();
        let maps = self.states[position.lsn.0 as usize].clone();
        self.checkpoints.push(Checkpoint { position, maps });
        self.promise();
        self.rig.log.trim(position);
    }

    /// Loses the power at `point` and recovers.
    fn crash(&mut self, point: &CrashPoint) {
        let at = self.promises.partition_point(|promise| promise.change <= point.change());
        let Promise { durable, checkpoint, .. } = self.promises[at - 1];
        let checkpoint = self.checkpoints[checkpoint].clone();
        let seed = self.work.random.next_u64();
        self.device = Arc::new(point.crash(seed));
        self.recover(checkpoint, durable, seed);
    }

    fn recover(&mut self, checkpoint: Checkpoint, durable: Lsn, seed: u64) {
        let name = self.seed;
        let device: Arc<dyn Device> = self.device.clone();
        self.device.record_crash_points(1);
        self.rig = open(&device, self.layout, checkpoint.position, self.config, seed)
            .unwrap_or_else(|e| panic!("seed {name}: {e}"));
        let last = self.rig.log.durable_lsn();
        assert!(last >= durable, "seed {name}: {last:?} is older than {durable:?}");
        assert!(last.0 <= self.last(), "seed {name}: {last:?} never was");
        let mut maps = checkpoint.maps.clone();
        let mut expected = checkpoint.position.lsn.0;
        for batch in std::mem::take(&mut self.rig.replayed) {
            expected += 1;
            assert_eq!((batch.lsn, batch.first_msn), (Lsn(expected), Msn(expected * 1000)), "seed {name}");
            batch
                .ops
                .iter()
                .for_each(|op| apply(&mut maps, op, &|value| self.rig.binder.read(value).unwrap()));
        }
        assert_eq!(expected, last.0, "seed {name}");
        assert_eq!(maps, self.states[last.0 as usize], "seed {name}: the state after {last:?}");
        self.states.truncate(last.0 as usize + 1);
        self.checkpoints = vec![checkpoint];
        self.promises.clear();
        self.begun = None;
        // Crashes from here on find the device as it is now or later.
        let _ = self.device.take_crash_points();
        self.promise();
    }
}

#[test]
fn a_crash_anywhere_leaves_a_prefix() {
    let mut recovered_unsynced = 0;
    for seed in 0..150 {
        let mut history = History::new(seed);
        history.device.record_crash_points(1);
        for _ in 0..6 {
            for _ in 0..history.work.random.between(1..=60) {
                history.step();
            }
            let mut points = history.device.take_crash_points();
            points.push(history.device.crash_point());
            // Later ones more often: they have more behind them.
            let back = history.work.random.index(points.len().min(12));
            let pick = if history.work.random.one_in(3) {
                history.work.random.index(points.len())
            } else {
                points.len() - 1 - back
            };
            let before = history.promises.last().map_or(Lsn(0), |promise| promise.durable);
            history.crash(&points[pick]);
            recovered_unsynced += u32::from(history.rig.log.durable_lsn() > before);
        }
    }
    assert!(recovered_unsynced > 10, "groups that were only pushed came back {recovered_unsynced} times");
}

#[test]
fn a_crash_during_recovery_changes_nothing() {
    for seed in 1000..1060 {
        let mut history = History::new(seed);
        for _ in 0..80 {
            history.step();
        }
        let durable = history.rig.log.durable_lsn();
        let checkpoint = history.checkpoints[history.checkpoints.len() - 1].clone();
        let device = history.device.crash();
        history.device = Arc::new(device);
        history.recover(checkpoint.clone(), durable, seed);
        let first = history.rig.log.durable_lsn();
        // What recovery has shown must not vanish in a crash right after it.
        history.device = Arc::new(history.device.crash());
        history.recover(checkpoint, first, seed + 1);
        assert_eq!(history.rig.log.durable_lsn(), first, "seed {seed}");
    }
}

#[test]
fn a_kill_loses_nothing_that_was_written() {
    let (device, layout, start, rig) = fresh(64, LogConfig::default());
    for lsn in 1..=5 {
        rig.log.append(batch(lsn, vec![insert("k", vec![1; 5000])])).unwrap();
        assert_eq!(rig.log.push(0).unwrap(), LogProgress::Done);
    }
    assert_eq!(rig.log.durable_lsn(), Lsn(0));
    drop(rig);
    assert_eq!(open(&device, layout, start, LogConfig::default(), 2).unwrap().replayed.len(), 5);
}

/// What a process that was killed had written and not synced is replayed; once shown, it must
/// survive a power cut too.
#[test]
fn what_recovery_has_shown_is_durable() {
    for seed in 0..20 {
        let layout = Layout::new(64, 64);
        let simulated = Arc::new(SimulatedDevice::new(layout.bytes(), seed));
        let device: Arc<dyn Device> = simulated.clone();
        let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
        let rig = open(&device, layout, start, LogConfig::default(), seed).unwrap();
        for lsn in 1..=3 {
            rig.log.append(batch(lsn, vec![insert("k", vec![1; 5000])])).unwrap();
            assert_eq!(rig.log.push(0).unwrap(), LogProgress::Done);
        }
        drop(rig);
        assert_eq!(open(&device, layout, start, LogConfig::default(), 2).unwrap().replayed.len(), 3);
        let device: Arc<dyn Device> = Arc::new(simulated.crash());
        let rig = open(&device, layout, start, LogConfig::default(), 3).unwrap();
        assert_eq!(rig.replayed.len(), 3, "seed {seed}");
    }
}

/// A crashed session wrote two groups and lost the first. What replaces the first must not be
/// continued by the second, though numbers and LSNs fit.
#[test]
fn a_torn_tail_never_comes_back() {
    let (device, layout, start, rig) = fresh(64, LogConfig::default());
    for lsn in 1..=2 {
        rig.log.append(batch(lsn, vec![insert("old", &b"old"[..])])).unwrap();
        assert_eq!(rig.log.push(0).unwrap(), LogProgress::Done);
    }
    drop(rig);
    let first = layout.log.byte_offset();
    device.write_at(first, &[&AlignedBuf::zeroed(BLOCK)]).unwrap();
    let rig = open(&device, layout, start, LogConfig::default(), 2).unwrap();
    assert!(rig.replayed.is_empty());
    rig.log.append(batch(1, vec![insert("new", &b"new"[..])])).unwrap();
    assert_eq!(rig.log.sync(Lsn(1)).unwrap(), LogProgress::Done);
    drop(rig);
    let rig = open(&device, layout, start, LogConfig::default(), 3).unwrap();
    assert_eq!(rig.replayed, [batch(1, vec![insert("new", &b"new"[..])])]);
    // Nor may a checkpoint just before the old group take it for the next.
    let position = rig.log.position_after(Lsn(1));
    assert_eq!(position.block, 1);
    assert!(open(&device, layout, position, LogConfig::default(), 4).unwrap().replayed.is_empty());
}
