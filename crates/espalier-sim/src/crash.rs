//! Power cuts. The oracle: what is found is the state after some prefix of the batches, at or after
//! the last acknowledged sync, and it is a sound store on which work can go on.
//!
//! Protocol: a list of steps runs once, on a device that records a crash point at its changes; then
//! each point is crashed, in several ways, and recovered. Recovery is a history of its own: some of
//! its crash points are crashed and recovered too.

use crate::failure::ensure;
use crate::history::{Event, History};
use crate::setup::{compare, contents, verify};
use crate::{Bench, Change, CrashDevice, Failure, Outcome, Setup, Step, differential};
use bytes::Bytes;
use espalier_engine::ErrorKind;
use espalier_storage::{CrashPoint, Device, Random, SimulatedDevice};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// How thoroughly to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// A crash point at one in so many changes of the device.
    pub one_in: u64,
    /// Outcomes tried of each.
    pub outcomes: u64,
    /// Only during so many steps at the end.
    pub last: Option<usize>,
}

/// What was tried.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CrashTally {
    /// Power cuts.
    pub crashes: u64,
    /// Power cuts during recovery.
    pub crashes_in_recovery: u64,
    /// Recoveries that were checked.
    pub recoveries: u64,
}

impl CrashTally {
    /// Adds another tally.
    pub fn add(&mut self, other: Self) {
        self.crashes += other.crashes;
        self.crashes_in_recovery += other.crashes_in_recovery;
        self.recoveries += other.recoveries;
    }
}

/// Carries out steps and crashes them.
///
/// # Errors
/// If a state is found that the oracle forbids, or that is no sound store.
pub fn run(setup: &Setup, steps: &[Step], plan: Plan) -> Outcome<CrashTally> {
    run_on::<SimulatedDevice>(setup, steps, plan)
}

/// [`run`] on a device of another kind.
///
/// # Errors
/// As for [`run`].
pub fn run_on<D: CrashDevice>(setup: &Setup, steps: &[Step], plan: Plan) -> Outcome<CrashTally> {
    let mut run = Run::<D>::new(setup, plan)?;
    let first = steps.len() - plan.last.unwrap_or(steps.len()).min(steps.len());
    for (i, step) in steps.iter().enumerate() {
        if i == first {
            run.bench.device.record_crash_points(plan.one_in);
        }
        run.take(step).map_err(|e| {
            e.during(format_args!("step {i} of {}, {}", steps.len(), differential::name(step)))
        })?;
    }
    run.crash_points()?;
    Ok(run.tally)
}

/// [`run`] with panics made failures.
///
/// # Errors
/// As for [`run`].
pub fn run_caught(setup: &Setup, steps: &[Step], plan: Plan) -> Outcome<CrashTally> {
    crate::catch(|| run(setup, steps, plan))
}

struct Run<D> {
    bench: Bench<D>,
    history: History,
    random: Random,
    plan: Plan,
    tally: CrashTally,
}

impl<D: CrashDevice> Run<D> {
    fn new(setup: &Setup, plan: Plan) -> Outcome<Self> {
        let bench = Bench::<D>::on_blank(setup.clone())?;
        bench.store.sync_all()?;
        bench.device.settle()?;
        let history = History::new(bench.model.clone(), bench.device.changes());
        let random = Random::new(setup.seed ^ 0xc7a5);
        Ok(Self { bench, history, random, plan, tally: CrashTally::default() })
    }

    fn now(&self) -> u64 {
        self.bench.device.changes()
    }

    fn take(&mut self, step: &Step) -> Outcome {
        let began = self.now();
        match step {
            Step::Commit(changes) => {
                self.bench.commit(changes)?;
                self.history.push(Event::Batch(changes.clone()), began, &self.bench.model);
            }
            Step::CreateVolume(indexes) => {
                self.bench.create_volume(*indexes)?;
                self.history.push(Event::Volume(*indexes), began, &self.bench.model);
                self.history.acknowledge(self.now());
            }
            Step::Volumes(step) => {
                if self.bench.change_volumes(step)? {
                    self.history.push(Event::Volumes(*step), began, &self.bench.model);
                    self.history.acknowledge(self.now());
                }
            }
            Step::Sync => {
                self.bench.store.sync_all()?;
                self.history.acknowledge(self.now());
            }
            Step::Checkpoint => {
                self.bench.store.checkpoint()?;
                self.history.acknowledge(self.now());
            }
            Step::Work(pieces) => self.bench.work(*pieces)?,
            Step::Reopen => {
                self.bench.store.close()?;
                self.history.acknowledge(self.now());
                self.bench.open_again()?;
                compare(&self.bench.store, &self.bench.model)?;
            }
            Step::Kill => self.kill()?,
            Step::Verify => self.bench.verify()?,
            Step::Read(slot, key, offset, length) => self.bench.read(*slot, key, *offset, *length)?,
            // For these, nothing is different here; see `differential`.
            Step::Diff(..)
            | Step::Inject(_)
            | Step::Walk(..)
            | Step::Snapshot(..)
            | Step::LookBack(..)
            | Step::Forget(_) => {}
        }
        Ok(())
    }

    /// The process dies; the system goes on, so what was written is read.
    fn kill(&mut self) -> Outcome {
        self.crash_points()?;
        // Whatever began may have been written.
        let possible = self.history.possible(self.now() + 1, self.now() + 1);
        self.bench.device = self.bench.device.after_kill()?;
        self.bench.open_again().map_err(|e| e.during("open after the process was killed"))?;
        let events = self
            .history
            .locate(&contents(&self.bench.store)?, possible)
            .map_err(|e| e.during("after the process was killed"))?;
        self.history.truncate(events);
        self.bench.model = self.history.model(events);
        Ok(())
    }

    /// Crashes all points recorded so far.
    fn crash_points(&mut self) -> Outcome {
        for point in self.bench.device.take_crash_points() {
            for _ in 0..self.plan.outcomes {
                let seed = self.random.next_u64();
                self.crash(&point, seed).map_err(|e| {
                    e.during(format_args!(
                        "crash at change {} with {} writes pending, survivors {seed}",
                        D::change(&point),
                        D::pending(&point)
                    ))
                })?;
            }
        }
        Ok(())
    }

    fn crash(&mut self, point: &D::Point, seed: u64) -> Outcome {
        let mut random = Random::new(seed);
        let device = Arc::new(D::crash_at(point, seed)?);
        let possible = self.possible(&device, point);
        device.record_crash_points(1);
        self.tally.crashes += 1;
        let events = self.recover(&device, |history, found| history.locate(found, possible.clone()))?;

        let mut points = device.take_crash_points();
        random.shuffle(&mut points);
        for again in points.iter().take(2) {
            self.tally.crashes_in_recovery += 1;
            let device = Arc::new(D::crash_at(again, random.next_u64())?);
            let least = if device.loses_synced() { 0 } else { *possible.start() };
            let possible = least..=*possible.end();
            self.recover(&device, |history, found| history.locate(found, possible)).map_err(|e| {
                e.during(format_args!("crash at change {} of the recovery", D::change(again)))
            })?;
        }
        // What a recovery has shown stays, whatever was on its way when it began.
        if random.one_in(2) {
            self.tally.crashes += 1;
            let again = Arc::new(device.crash_now()?);
            self.recover(&again, |history, found| history.locate(found, events..=events))
                .map_err(|e| e.during("crash after the recovery"))?;
        }
        if random.one_in(4) {
            self.go_on(&device, events).map_err(|e| e.during("work after recovery"))?;
        }
        Ok(())
    }

    /// The numbers of events that may be found on a device after a crash at a point.
    fn possible(&self, device: &D, point: &D::Point) -> RangeInclusive<usize> {
        let possible = self.history.possible(D::change(point), D::reach(point));
        if device.loses_synced() { 0..=*possible.end() } else { possible }
    }

    /// Opens, reads everything, verifies, and drops the store without closing it.
    fn recover<T>(
        &mut self,
        device: &Arc<D>,
        check: impl FnOnce(&History, &crate::Model) -> Outcome<T>,
    ) -> Outcome<T> {
        let store = self.bench.setup.open(device.clone()).map_err(|e| Failure::from(e).during("recovery"))?;
        device.record_crash_points(0);
        let found = check(&self.history, &contents(&store)?)?;
        verify(&store)?;
        self.tally.recoveries += 1;
        Ok(found)
    }

    /// A recovered store takes new batches, and the next crash finds them.
    fn go_on(&mut self, device: &Arc<D>, events: usize) -> Outcome {
        let setup = self.bench.setup.clone();
        let mut bench = Bench {
            store: setup.open(device.clone())?,
            setup,
            device: device.clone(),
            model: self.history.model(events),
        };
        for round in 0..3u8 {
            let key = Bytes::from(vec![b'a' + round; 3]);
            bench.commit(&[
                Change::Insert(0, key.clone(), Bytes::from(vec![round; 5000])),
                Change::Patch(0, key, 7, Bytes::from_static(b"seven")),
            ])?;
            match round {
                0 => bench.store.sync_all()?,
                1 => bench.store.checkpoint()?,
                _ => bench.store.close()?,
            }
            let crashed = Arc::new(device.crash_now()?);
            let store = bench.setup.open(crashed)?;
            compare(&store, &bench.model).map_err(|e| e.during(format_args!("round {round}")))?;
            verify(&store)?;
            self.tally.crashes += 1;
            self.tally.recoveries += 1;
        }
        Ok(())
    }
}

/// Crashes the making of a store, on a blank device and over another store: what is found is
/// nothing, an empty store, or the store that was there.
///
/// # Errors
/// If anything else is found.
pub fn run_format(setup: &Setup, steps: &[Step]) -> Outcome<CrashTally> {
    let mut tally = CrashTally::default();
    let mut old = Bench::new(setup.clone())?;
    for step in steps {
        if let Step::Commit(changes) = step {
            old.commit(changes)?;
        }
    }
    old.store.close()?;
    for (device, old) in [(setup.blank_device(), None), (old.device.clone(), Some(&old.model))] {
        device.record_crash_points(1);
        setup.format(device.clone())?;
        let points = device.take_crash_points();
        let last = points.last().map_or(0, CrashPoint::change);
        for (i, point) in points.iter().enumerate() {
            for seed in 0..4 {
                let done = point.change() == last && point.pending() == 0;
                tally.crashes += 1;
                tally.recoveries += 1;
                check_format(setup, point, (setup.seed ^ i as u64) << 8 | seed, old, done)?;
            }
        }
        ensure!(device.len() == setup.device, "the device changed its size");
    }
    Ok(tally)
}

fn check_format(
    setup: &Setup,
    point: &CrashPoint,
    seed: u64,
    old: Option<&crate::Model>,
    done: bool,
) -> Outcome {
    let what = format!("crash at change {} of a format", point.change());
    match setup.open(Arc::new(point.crash(seed))) {
        Ok(store) if store.volumes().is_empty() => verify(&store).map_err(|e| e.during(what)),
        Ok(store) => match old {
            Some(old) if !done => compare(&store, old).map_err(|e| e.during(what)),
            _ => Err(Failure::new(format!("{what}: there are volumes in a new store"))),
        },
        Err(error) => {
            ensure!(!done, "{what}: the finished store does not open: {error}");
            let expected = matches!(error.kind(), ErrorKind::NotAStore | ErrorKind::Damaged);
            ensure!(expected, "{what}: {:?} error: {error}", error.kind());
            Ok(())
        }
    }
}
