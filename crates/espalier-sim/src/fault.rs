//! Devices that fail, lie, rot and fill up. The oracle: every answer is right or an error, nothing
//! acknowledged is lost unless the device lied about it, and a store that could not write says so
//! and stays readable.

mod damage;
mod decay;
mod full;
mod repair;

pub use damage::{run_liar, run_rot};
pub use decay::run_decay;
pub use full::{run_brim, run_cycles, run_full, run_shared};
pub use repair::run_repair;

use crate::failure::ensure;
use crate::history::{Event, History};
use crate::setup::{compare, contents, verify};
use crate::{Bench, Failure, Outcome, Setup, Step, differential};
use espalier_engine::{Error, ErrorKind};
use espalier_storage::{BLOCK, Fault, Operation, Random};
use std::sync::Arc;

/// The most blocks that a device without room has room for.
const MAX_PROBED_BLOCKS: u64 = 500;

/// What was tried.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FaultTally {
    /// Runs.
    pub runs: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Answers that were errors.
    pub errors: u64,
}

impl FaultTally {
    /// Adds another tally.
    pub fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.faults += other.faults;
        self.errors += other.errors;
    }
}

/// Inserts requests that fail, one or many, of one kind, somewhere into steps.
pub fn with_failure(seed: u64, steps: &[Step]) -> Vec<Step> {
    let random = &mut Random::new(seed ^ 0xfa17);
    let operation = *random.choose(&[Operation::Read, Operation::Write, Operation::Write, Operation::Sync]);
    let nth = random.below(if operation == Operation::Sync { 4 } else { 30 });
    let fault = match random.below(8) {
        0..4 => Fault::Fail { operation, nth },
        4 => Fault::FailFrom { operation, nth },
        5 => Fault::FailRandomly { operation, one_in: random.between(2..=40) },
        6 => {
            let start = random.below(16384) * 4096;
            Fault::Unreadable(start..start + (4096 << random.below(10)))
        }
        _ => Fault::Full { after: random.below(400_000) },
    };
    insert(random, fault, steps)
}

/// Inserts a write that is lost or goes astray somewhere into steps.
pub fn with_lie(seed: u64, steps: &[Step]) -> Vec<Step> {
    let random = &mut Random::new(seed ^ 0x11a2);
    let nth = random.below(20);
    let fault = if random.one_in(2) { Fault::Lose { nth } } else { Fault::Misdirect { nth, to: None } };
    insert(random, fault, steps)
}

fn insert(random: &mut Random, fault: Fault, steps: &[Step]) -> Vec<Step> {
    let (before, behind) = steps.split_at(random.index(steps.len() + 1));
    [before, &[Step::Inject(fault)], behind].concat()
}

/// Carries out steps, of which one may make requests fail, and then recovers from a power cut.
///
/// # Errors
/// If an answer is wrong or something acknowledged is lost.
pub fn run_failing(setup: &Setup, steps: &[Step]) -> Outcome<FaultTally> {
    let bench = Bench::new(setup.clone())?;
    bench.store.sync_all()?;
    let history = History::new(bench.model.clone(), bench.device.counts().changes());
    let mut run = Run {
        bench,
        history,
        tally: FaultTally { runs: 1, ..FaultTally::default() },
        refused: false,
        reads_fail: false,
    };
    for (i, step) in steps.iter().enumerate() {
        run.take(step).map_err(|e| {
            e.during(format_args!("step {i} of {}, {}", steps.len(), differential::name(step)))
        })?;
    }
    run.finish().map_err(|e| e.during("after the last step"))
}

/// Carries out steps again and again, the last few of them on a device that has no room for what
/// they write: for nothing, for one block, for two, until it has enough.
///
/// # Errors
/// As for [`run_failing`], after each.
pub fn run_without_room(setup: &Setup, steps: &[Step], last: usize) -> Outcome<FaultTally> {
    let (before, last) = steps.split_at(steps.len().saturating_sub(last));
    let mut tally = FaultTally::default();
    for blocks in 0..MAX_PROBED_BLOCKS {
        let fault = Fault::Full { after: blocks * BLOCK as u64 };
        let once = run_failing(setup, &[before, &[Step::Inject(fault)], last].concat())
            .map_err(|e| e.during(format_args!("room for {blocks} blocks")))?;
        tally.add(once);
        if once.faults == 0 {
            break;
        }
    }
    Ok(tally)
}

struct Run {
    bench: Bench,
    history: History,
    tally: FaultTally,
    /// True once making something durable has failed: changes must be refused from then on.
    refused: bool,
    /// True if the fault may be about reads, after which a store goes on.
    reads_fail: bool,
}

impl Run {
    fn take(&mut self, step: &Step) -> Outcome {
        let began = self.bench.device.counts().changes();
        match step {
            Step::Commit(changes) => match self.bench.commit(changes) {
                Ok(()) => {
                    ensure!(!self.refused, "a change is accepted after a failed sync or checkpoint");
                    self.history.push(Event::Batch(changes.clone()), began, &self.bench.model);
                }
                Err(error) => self.excuse(&error)?,
            },
            Step::Sync => self.make_durable(|bench| bench.store.sync_all())?,
            Step::Checkpoint | Step::Reopen => self.make_durable(|bench| bench.store.checkpoint())?,
            Step::Inject(fault) => {
                self.reads_fail |= !matches!(
                    fault,
                    Fault::Fail { operation: Operation::Write | Operation::Sync, .. }
                        | Fault::FailFrom { operation: Operation::Write | Operation::Sync, .. }
                );
                self.bench.device.inject(fault.clone());
            }
            Step::Work(pieces) => {
                if let Err(error) = self.bench.work(*pieces) {
                    self.excuse(&error)?;
                }
            }
            Step::Read(slot, key, ..) => self.read(*slot, key)?,
            Step::Walk(slot, range, _) => self.walk(*slot, range)?,
            _ => {}
        }
        Ok(())
    }

    fn make_durable(&mut self, act: impl FnOnce(&Bench) -> espalier_engine::Result<()>) -> Outcome {
        match act(&self.bench) {
            Ok(()) => {
                // After a failure too: what it promises is checked after the power cut.
                self.history.acknowledge(self.bench.device.counts().changes());
            }
            Err(error) => {
                self.excuse(&error)?;
                // A failed read in the way leaves the store as it was; it may also be in the way of
                // this batch.
                let attempt = self.bench.store.commit(espalier_engine::Batch::new());
                let refused = attempt.is_err_and(|error| error.kind() == ErrorKind::ReadOnly);
                ensure!(refused || self.reads_fail, "changes are accepted after {error}");
                self.refused |= refused;
            }
        }
        Ok(())
    }

    fn read(&mut self, slot: usize, key: &[u8]) -> Outcome {
        let slots = self.bench.slots();
        match self.bench.store.get(slots[slot % slots.len()], key) {
            Ok(found) => ensure!(found.as_ref() == self.bench.model.get(slot, key), "a wrong answer"),
            Err(error) => self.excuse(&error)?,
        }
        Ok(())
    }

    fn walk(&mut self, slot: usize, range: &espalier_engine::KeyRange) -> Outcome {
        let slots = self.bench.slots();
        let mut cursor = match self.bench.store.cursor(slots[slot % slots.len()], range.clone()) {
            Ok(cursor) => cursor,
            Err(error) => return self.excuse(&error),
        };
        for expected in self.bench.model.entries(slot, range).map(Some).chain([None]) {
            let found = cursor.next().and_then(|entry| match entry {
                Some(entry) => Ok(Some((cursor.read(&entry.value)?, entry.key))),
                None => Ok(None),
            });
            match found {
                Ok(found) => {
                    let same = found.as_ref().map(|(v, k)| (&k[..], v)) == expected.map(|(k, v)| (&k[..], v));
                    ensure!(same, "a wrong entry: {expected:?} expected");
                }
                Err(error) => {
                    self.tally.errors += 1;
                    return excusable(&error, self.bench.device.fault_counts().total());
                }
            }
        }
        Ok(())
    }

    /// An error is all right if a fault has struck.
    fn excuse(&mut self, error: &Error) -> Outcome {
        self.tally.errors += 1;
        excusable(error, self.bench.device.fault_counts().total())
    }

    fn finish(mut self) -> Outcome<FaultTally> {
        self.tally.faults += self.bench.device.fault_counts().total();
        self.bench.device.clear_faults();
        // Whatever failed, what was accepted can be read, now that the device can read again.
        compare(&self.bench.store, &self.bench.model).map_err(|e| e.during("still open"))?;
        let crashed = Arc::new(self.bench.device.crash());
        let now = self.bench.device.counts().changes() + 1;
        let possible = self.history.possible(now, now);
        let store = self.bench.setup.open(crashed).map_err(|e| Failure::from(e).during("recovery"))?;
        self.history.locate(&contents(&store)?, possible).map_err(|e| e.during("after a power cut"))?;
        verify(&store)?;
        Ok(self.tally)
    }
}

fn excusable(error: &Error, faults: u64) -> Outcome {
    // A device without room is one that fails; the store itself has room.
    let kind = matches!(error.kind(), ErrorKind::Io | ErrorKind::ReadOnly);
    ensure!(kind && faults > 0, "{:?} error after {faults} faults: {error}", error.kind());
    Ok(())
}
