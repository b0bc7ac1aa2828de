//! The simulations that a soak runs, each by its name and a seed.
//!
//! Protocol: a seed gives a [`Case`] of some length, on which most simulations run; each may change
//! it, and may make several *rounds* of one seed. Those that crash short histories do so in a small
//! store at every change of the device: recovering costs a fraction of a millisecond there, so that
//! is where most power cuts are tried.

use crate::{
    Failure, Outcome, Profile, Setup, SimulatedJournaledDevice, SimulatedObjectDevice, Step, Workload, catch,
    crash, differential, fault, minimize,
};
use espalier_storage::Random;

/// What was tried.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Steps carried out, those of recovered stores aside.
    pub steps: u64,
    /// Power cuts.
    pub crash: crash::CrashTally,
    /// Devices that fail.
    pub fault: fault::FaultTally,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.crash.add(other.crash);
        self.fault.add(other.fault);
    }
}

/// A store and what is done to it.
#[derive(Debug, Clone)]
pub struct Case {
    /// The store.
    pub setup: Setup,
    /// What is done.
    pub steps: Vec<Step>,
}

impl Case {
    /// The one that a seed names; `length` overrides the number of steps.
    pub fn new(seed: u64, length: Option<usize>) -> Self {
        let mut random = Random::new(seed);
        let setup = Setup::new(seed);
        let profile = Profile::any(&mut random);
        let any = random.between(20..=500) as usize;
        let steps = Workload::new(seed, profile, setup.indexes.into()).steps(length.unwrap_or(any));
        Self { setup, steps }
    }

    fn with(&self, steps: Vec<Step>) -> Self {
        Self { setup: self.setup.clone(), steps }
    }
}

/// One way to put a store to the test.
pub struct Simulation {
    /// Its name.
    pub name: &'static str,
    rounds: u64,
    case: fn(&Case, u64) -> Case,
    run: fn(&Case, &mut Tally) -> Outcome,
}

/// All of them.
pub const SIMULATIONS: &[Simulation] = &[
    simulation("differential", |case, _| differential::run(&case.setup, &case.steps)),
    simulation("crash", |case, tally| {
        let plan = crash::Plan { one_in: 1 + case.steps.len() as u64 / 40, outcomes: 2, last: None };
        crash::run(&case.setup, &case.steps, plan).map(|more| tally.crash.add(more))
    }),
    Simulation {
        rounds: 20,
        case: |case, round| short(case.setup.seed, round),
        ..simulation("short", |case, tally| {
            let plan = crash::Plan { one_in: 1, outcomes: 4, last: Some(recorded(&case.setup)) };
            crash::run(&case.setup, &case.steps, plan).map(|more| tally.crash.add(more))
        })
    },
    Simulation {
        rounds: 4,
        case: |case, round| short(case.setup.seed, round | 1 << 22),
        ..simulation("object", |case, tally| {
            let plan = crash::Plan { one_in: 1, outcomes: 2, last: Some(recorded(&case.setup)) };
            let run = crash::run_on::<SimulatedObjectDevice>(&case.setup, &case.steps, plan);
            run.map(|more| tally.crash.add(more))
        })
    },
    Simulation {
        rounds: 4,
        case: |case, round| short(case.setup.seed, round | 1 << 23),
        ..simulation("journal", |case, tally| {
            let plan = crash::Plan { one_in: 1, outcomes: 2, last: Some(recorded(&case.setup)) };
            let run = crash::run_on::<SimulatedJournaledDevice>(&case.setup, &case.steps, plan);
            run.map(|more| tally.crash.add(more))
        })
    },
    simulation("format", |case, tally| {
        crash::run_format(&case.setup, &case.steps).map(|more| tally.crash.add(more))
    }),
    Simulation {
        rounds: 10,
        case: |case, round| case.with(fault::with_failure(case.setup.seed ^ (round << 48), &case.steps)),
        ..simulation("failing", |case, tally| {
            fault::run_failing(&case.setup, &case.steps).map(|more| tally.fault.add(more))
        })
    },
    Simulation {
        rounds: 2,
        case: |case, round| short(case.setup.seed, round | 1 << 20),
        ..simulation("no room", |case, tally| {
            let recorded = recorded(&case.setup);
            fault::run_without_room(&case.setup, &case.steps, recorded).map(|more| tally.fault.add(more))
        })
    },
    Simulation {
        case: |case, _| starved(case),
        ..simulation("starved", |case, tally| {
            differential::run(&case.setup, &case.steps)?;
            let plan = crash::Plan { one_in: 1 + case.steps.len() as u64 / 6, outcomes: 1, last: None };
            crash::run(&case.setup, &case.steps, plan).map(|more| tally.crash.add(more))
        })
    },
    Simulation {
        rounds: 3,
        // Every state there was is kept for comparison.
        case: |case, round| {
            let steps = &case.steps[..case.steps.len().min(150)];
            case.with(fault::with_lie(case.setup.seed ^ (round << 48), steps))
        },
        ..simulation("liar", |case, tally| {
            fault::run_liar(&case.setup, &case.steps).map(|more| tally.fault.add(more))
        })
    },
    simulation("rot", |case, tally| {
        fault::run_rot(&case.setup, &case.steps, 20).map(|more| tally.fault.add(more))
    }),
    simulation("decay", |case, tally| {
        fault::run_decay(&case.setup, &case.steps, 10).map(|more| tally.fault.add(more))
    }),
    simulation("repair", |case, tally| {
        fault::run_repair(&case.setup, &case.steps, 10).map(|more| tally.fault.add(more))
    }),
    Simulation {
        case: |case, _| case.with(Vec::new()),
        ..simulation("full", |case, tally| {
            fault::run_full(&case.setup.small(), 2).map(|more| tally.fault.add(more))
        })
    },
    Simulation {
        case: |case, _| brim(case),
        ..simulation("brim", |case, tally| {
            fault::run_brim(&case.setup, &case.steps, 12).map(|more| tally.fault.add(more))
        })
    },
    Simulation {
        case: |case, _| case.with(Vec::new()),
        ..simulation("shared", |case, tally| {
            let setup = Setup { device: 8 << 20, log: Some(512 << 10), ..case.setup.small() };
            fault::run_shared(&setup, 400).map(|more| tally.fault.add(more))
        })
    },
    Simulation {
        case: |case, _| case.with(Vec::new()),
        ..simulation("cycles", |case, tally| {
            fault::run_cycles(&case.setup.small(), 3).map(|more| tally.fault.add(more))
        })
    },
];

const fn simulation(name: &'static str, run: fn(&Case, &mut Tally) -> Outcome) -> Simulation {
    Simulation { name, rounds: 1, case: |case, _| case.clone(), run }
}

/// A short history in a small store, behind none or some steps that give it something to hold.
fn short(seed: u64, round: u64) -> Case {
    let mut random = Random::new(seed ^ (round << 48) ^ 0x5407);
    let setup = Setup::new(random.next_u64()).tiny();
    let profile = Profile {
        keys: random.between(4..=120) as usize,
        batch: random.between(1..=8),
        large_values: *random.choose(&[0, 3, 20]),
        largest: *random.choose(&[5000, 9000, 20_000]),
        ranges: *random.choose(&[0, 4, 12]),
        clones: *random.choose(&[0, 0, 4, 12]),
        reopen: *random.choose(&[0, 10]),
        verify: 0,
        checkpoints: random.between(3..=20),
        ..Profile::dense()
    };
    let before = *random.choose(&[0, 5, 20, 60]);
    let steps = Workload::new(random.next_u64(), profile, setup.indexes.into())
        .steps(4 * (before + recorded(&setup)))
        .into_iter()
        .filter(|step| step.changes())
        .take(before + recorded(&setup))
        .collect();
    Case { setup, steps }
}

/// The same with less memory than anything needs: a small part of what the least cache of a mount
/// gives.
fn starved(case: &Case) -> Case {
    let memory = *Random::new(case.setup.seed ^ 0x57a).choose(&[0, 4 << 10, 64 << 10]);
    Case {
        setup: Setup { memory, ..case.setup.clone() },
        steps: case.steps[..case.steps.len().min(60)].to_vec(),
    }
}

/// A small store, and a few steps that it has or has not room for.
fn brim(case: &Case) -> Case {
    let setup = Setup { device: 8 << 20, log: Some(512 << 10), ..case.setup.small() };
    let short = short(case.setup.seed, 1 << 21);
    Case { setup, steps: short.steps.into_iter().take(25).collect() }
}

/// With how many steps the history ends that are crashed.
fn recorded(setup: &Setup) -> usize {
    Random::new(setup.seed ^ 0x1a57).between(2..=8) as usize
}

/// Something that must not happen, and what was done until then.
#[derive(Debug)]
pub struct Broken {
    /// The simulation's name.
    pub name: &'static str,
    /// The seed.
    pub seed: u64,
    /// The round of it.
    pub round: u64,
    /// What was wrong.
    pub failure: Failure,
    /// In which case.
    pub case: Case,
}

impl Simulation {
    /// Makes all rounds of a seed, until one fails.
    ///
    /// # Errors
    /// How it failed.
    pub fn run(&self, base: &Case, tally: &mut Tally) -> Result<(), Box<Broken>> {
        for round in 0..self.rounds {
            let case = (self.case)(base, round);
            tally.steps += case.steps.len() as u64;
            if let Err(failure) = catch(|| (self.run)(&case, tally)) {
                let seed = base.setup.seed;
                return Err(Box::new(Broken { name: self.name, seed, round, failure, case }));
            }
        }
        Ok(())
    }
}

impl Broken {
    /// The same with fewer steps, if fewer fail too; `budget` bounds the runs.
    #[must_use]
    pub fn shorten(self, budget: usize) -> Self {
        let Some(simulation) = SIMULATIONS.iter().find(|simulation| simulation.name == self.name) else {
            return self;
        };
        let (steps, failure) = minimize::minimize(self.case.steps.clone(), self.failure, budget, |steps| {
            catch(|| (simulation.run)(&self.case.with(steps.to_vec()), &mut Tally::default()))
        });
        Self { failure, case: self.case.with(steps), ..self }
    }
}

/// Runs one simulation with one seed.
///
/// # Errors
/// How it failed.
///
/// # Panics
/// If there is no such simulation.
pub fn replay(name: &str, seed: u64) -> Outcome {
    let simulation = SIMULATIONS.iter().find(|simulation| simulation.name == name).expect("a simulation");
    let run = simulation.run(&Case::new(seed, None), &mut Tally::default());
    run.map_err(|broken| broken.failure.during(format_args!("{name}, seed {seed}, round {}", broken.round)))
}
