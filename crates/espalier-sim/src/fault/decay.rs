//! Storage of which some can no longer be read, in a store that goes on to be used: what lies
//! elsewhere is not concerned, and nothing is lost that could be read again.

use super::FaultTally;
use super::damage::{LOG_OFFSET, build};
use super::repair::covered;
use crate::failure::ensure;
use crate::model::show;
use crate::setup::{compare, contents, slots, verify};
use crate::{Bench, Failure, Outcome, Setup, Step, differential};
use espalier_engine::{Error, ErrorKind};
use espalier_storage::{BLOCK, Fault, Random, SimulatedDevice};
use std::sync::Arc;

/// Carries out the first half of some steps, closes the store, makes some blocks behind the log
/// unreadable and goes on with the rest, in `rounds` ways. Every answer is right or an error;
/// syncs, checkpoints and background work succeed; and when all can be read again everything that
/// was accepted is there.
///
/// # Errors
/// If anything else happens.
pub fn run_decay(setup: &Setup, steps: &[Step], rounds: u64) -> Outcome<FaultTally> {
    let mut random = Random::new(setup.seed ^ 0xdeca7);
    let (first, rest) = steps.split_at(steps.len() / 2);
    let (bench, _) = build(setup, first)?;
    bench.store.close()?;
    let (image, model) = (bench.device.image(), bench.model.clone());
    drop(bench);
    let mut tally = FaultTally::default();
    for round in 0..rounds {
        let device = Arc::new(SimulatedDevice::from_image(image.clone(), random.next_u64()));
        let faults = unreadable(&device, setup, &mut random);
        faults.iter().for_each(|fault| device.inject(fault.clone()));
        tally.runs += 1;
        let crash = random.one_in(3);
        let Ok(store) = setup.open(device.clone()) else { continue };
        let bench = Bench { setup: setup.clone(), device, store, model: model.clone() };
        let mut run = Run { bench, errors: 0, healed: false };
        let mut outcome = run.go(rest);
        if outcome.is_ok() {
            outcome = run.finish(rest, &faults, crash).map_err(|e| e.during("at the end"));
        }
        match outcome {
            Err(failure) if !without_tables(&failure) => {
                return Err(failure.during(format_args!("round {round}")));
            }
            _ => {}
        }
        tally.faults += run.bench.device.fault_counts().total();
        tally.errors += run.errors;
    }
    Ok(tally)
}

/// True if both copies of a table are gone: then nothing more can be said of a store.
fn without_tables(failure: &Failure) -> bool {
    failure.to_string().contains("nor can the copy be used")
}

/// A few places behind the log that were written.
fn unreadable(device: &SimulatedDevice, setup: &Setup, random: &mut Random) -> Vec<Fault> {
    let behind = LOG_OFFSET + setup.log.unwrap_or(4 << 20);
    let image = device.image();
    let blocks: Vec<u64> =
        image.blocks().map(|(offset, _)| offset).filter(|offset| *offset >= behind).collect();
    if blocks.is_empty() {
        return Vec::new();
    }
    let places = random.between(1..=6);
    let place = |_| {
        let start = *random.choose(&blocks);
        Fault::Unreadable(start..start + BLOCK as u64)
    };
    (0..places).map(place).collect()
}

struct Run {
    bench: Bench,
    errors: u64,
    /// All can be read again.
    healed: bool,
}

impl Run {
    fn go(&mut self, steps: &[Step]) -> Outcome {
        for (i, step) in steps.iter().enumerate() {
            let name = differential::name(step);
            self.take(step).map_err(|e| e.during(format_args!("step {i} of {}, {name}", steps.len())))?;
        }
        Ok(())
    }

    fn take(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Commit(changes) => {
                let done = self.bench.commit(changes);
                self.excuse(done)?;
            }
            Step::Read(slot, key, ..) => {
                let slots = self.bench.slots();
                let found = self.bench.store.get(slots[slot % slots.len()], key);
                if let Some(found) = self.excuse(found)? {
                    ensure!(found.as_ref() == self.bench.model.get(*slot, key), "a wrong answer");
                }
            }
            Step::Sync => self.bench.store.sync_all()?,
            Step::Checkpoint => self.bench.store.checkpoint()?,
            Step::Work(pieces) => self.bench.work(*pieces)?,
            Step::Reopen => {
                self.bench.store.close()?;
                // What was written since may lie where nothing can be read, both copies of a table
                // as well.
                if self.bench.open_again().is_err() {
                    self.bench.device.clear_faults();
                    self.bench.open_again()?;
                }
            }
            Step::Volumes(step) => match self.bench.change_volumes(step) {
                Err(failure) if self.bench.device.fault_counts().total() == 0 => return Err(failure),
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    /// A repair of a copy keeps what can be read, as it was, and tells what is lost.
    fn repair(&self, faults: &[Fault]) -> Outcome {
        let Bench { setup, device, model, .. } = &self.bench;
        let device = Arc::new(SimulatedDevice::from_image(device.image(), 1));
        faults.iter().for_each(|fault| device.inject(fault.clone()));
        let Ok(rescue) = setup.open_damaged(device.clone()) else { return Ok(()) };
        let (left, indexes) = (contents(&rescue.store)?, slots(&rescue.store));
        ensure!(indexes.len() == model.slots(), "{} indexes are left", indexes.len());
        for (slot, index) in indexes.into_iter().enumerate() {
            for key in model.slot(slot).keys().chain(left.slot(slot).keys()) {
                let (found, expected) = (left.get(slot, key), model.get(slot, key));
                let lost = found.is_none() && covered(&rescue.losses, index, key);
                ensure!(found == expected || lost, "index {slot}, key {}: lost or wrong", show(key));
            }
        }
        device.clear_faults();
        verify(&rescue.store)?;
        rescue.store.close()?;
        drop(rescue);
        let store = setup.open(device)?;
        verify(&store)
    }

    /// `None` for an error that is all right because something cannot be read.
    fn excuse<T>(&mut self, answer: Result<T, Error>) -> Outcome<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => {
                let faults = self.bench.device.fault_counts().total();
                ensure!(
                    error.kind() == ErrorKind::Io && faults > 0 && !self.healed,
                    "{:?} error: {error}",
                    error.kind()
                );
                self.errors += 1;
                Ok(None)
            }
        }
    }

    fn finish(&mut self, steps: &[Step], faults: &[Fault], crash: bool) -> Outcome {
        if crash {
            self.bench.store.sync_all()?;
            let device = Arc::new(self.bench.device.crash());
            faults.iter().for_each(|fault| device.inject(fault.clone()));
            self.bench.device = device;
            if self.bench.open_again().is_err() {
                self.bench.device.clear_faults();
                self.bench.open_again().map_err(|e| e.during("after a power cut"))?;
            }
            self.bench.store.checkpoint().map_err(|e| Failure::from(e).during("after a power cut"))?;
        }
        self.bench.work(1000)?;
        self.bench.store.checkpoint()?;
        self.repair(faults).map_err(|e| e.during("repairing a copy"))?;
        self.bench.device.clear_faults();
        compare(&self.bench.store, &self.bench.model)?;
        verify(&self.bench.store)?;
        for step in steps {
            if let Step::Diff(old, new) = step {
                self.bench.diff(old, new)?;
            }
        }
        // What was shown through bounds meanwhile is taken apart as it is changed.
        self.healed = true;
        self.go(steps).map_err(|e| e.during("once more"))?;
        self.bench.work(1000)?;
        self.bench.store.checkpoint()?;
        self.bench.verify().map_err(|e| e.during("once more"))?;
        self.bench.store.close()?;
        self.bench.open_again()?;
        self.bench.work(1000)?;
        self.bench.store.checkpoint()?;
        self.bench.verify()
    }
}
