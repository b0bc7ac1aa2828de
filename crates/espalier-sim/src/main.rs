//! Soaks the engine in random workloads, power cuts and faults for a time, or until something fails.

use clap::Parser;
use espalier_sim::{Outcome, Profile, Setup, Step, Workload, catch, crash, differential, fault, minimize};
use espalier_storage::Random;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs seed after seed through the simulations of the engine. Exits with 1 and a short list of
/// steps at the first failure.
#[derive(Debug, Parser)]
struct Arguments {
    /// How long to run, in minutes; one seed more or less.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The first seed; the others follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run just this many seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// Only this simulation.
    #[arg(long)]
    only: Option<String>,
    /// Steps per seed; chosen by the seed if not given.
    #[arg(long)]
    steps: Option<usize>,
    /// Runs spent on making a failure short.
    #[arg(long, default_value_t = 500)]
    shorten: usize,
}

/// What was tried.
#[derive(Debug, Default)]
struct Tally {
    seeds: u64,
    steps: u64,
    crash: crash::Tally,
    fault: fault::Tally,
}

struct Simulation {
    name: &'static str,
    /// Makes the steps for it from those of the seed.
    prepare: fn(u64, &[Step]) -> Vec<Step>,
    run: fn(&Setup, &[Step], &mut Tally) -> Outcome,
}

const fn simulation(name: &'static str, run: fn(&Setup, &[Step], &mut Tally) -> Outcome) -> Simulation {
    Simulation { name, prepare: |_, steps| steps.to_vec(), run }
}

const SIMULATIONS: &[Simulation] = &[
    simulation("differential", |setup, steps, _| differential::run(setup, steps)),
    simulation("crash", |setup, steps, tally| {
        let plan = crash::Plan { one_in: 1 + steps.len() as u64 / 40, outcomes: 2 };
        crash::run(setup, steps, plan).map(|more| tally.crash.add(more))
    }),
    simulation("format", |setup, steps, tally| {
        crash::run_format(setup, steps).map(|more| tally.crash.add(more))
    }),
    Simulation {
        prepare: fault::with_failure,
        ..simulation("failing", |setup, steps, tally| {
            fault::run_failing(setup, steps).map(|more| tally.fault.add(more))
        })
    },
    Simulation {
        // Every state there was is kept for comparison.
        prepare: |seed, steps| fault::with_lie(seed, &steps[..steps.len().min(150)]),
        ..simulation("liar", |setup, steps, tally| {
            fault::run_liar(setup, steps).map(|more| tally.fault.add(more))
        })
    },
    simulation("rot", |setup, steps, tally| {
        fault::run_rot(setup, steps, 20).map(|more| tally.fault.add(more))
    }),
    simulation("repair", |setup, steps, tally| {
        fault::run_repair(setup, steps, 10).map(|more| tally.fault.add(more))
    }),
    Simulation {
        prepare: |_, _| Vec::new(),
        ..simulation("full", |setup, _, tally| {
            fault::run_full(&setup.small(), 2).map(|more| tally.fault.add(more))
        })
    },
    Simulation {
        prepare: |_, _| Vec::new(),
        ..simulation("cycles", |setup, _, tally| {
            fault::run_cycles(&setup.small(), 3).map(|more| tally.fault.add(more))
        })
    },
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let started = Instant::now();
    let time = Duration::from_secs_f64(arguments.minutes * 60.0);
    let mut tally = Tally::default();
    let mut reported = started;
    for seed in arguments.seed.. {
        let enough = arguments.seeds.map_or(started.elapsed() >= time, |seeds| tally.seeds >= seeds);
        if enough {
            break;
        }
        if !run_seed(seed, &arguments, &mut tally) {
            return ExitCode::FAILURE;
        }
        tally.seeds += 1;
        if reported.elapsed() > Duration::from_secs(20) {
            reported = Instant::now();
            report(&tally, started);
        }
    }
    report(&tally, started);
    ExitCode::SUCCESS
}

/// True if all went well.
fn run_seed(seed: u64, arguments: &Arguments, tally: &mut Tally) -> bool {
    let mut random = Random::new(seed);
    let setup = Setup::new(seed);
    let profile = Profile::any(&mut random);
    let length = random.between(20..=500) as usize;
    let steps = Workload::new(seed, profile, setup.indexes.into()).steps(arguments.steps.unwrap_or(length));
    for Simulation { name, prepare, run } in SIMULATIONS {
        if arguments.only.as_ref().is_some_and(|only| only != *name) {
            continue;
        }
        let steps = prepare(seed, &steps);
        tally.steps += steps.len() as u64;
        let Err(failure) = catch(|| run(&setup, &steps, tally)) else { continue };
        println!("FAILED: {name}, seed {seed}: {failure}");
        println!("Making it short ...");
        let (short, failure) = minimize::minimize(steps, failure, arguments.shorten, |steps| {
            catch(|| run(&setup, steps, &mut Tally::default()))
        });
        println!("{failure}\n{setup:?}\n{}", minimize::show(&short));
        println!("Again: espalier-sim --seed {seed} --seeds 1 --only {name}");
        return false;
    }
    true
}

fn report(tally: &Tally, started: Instant) {
    let Tally { seeds, steps, crash, fault } = tally;
    println!(
        "{:4.0} s: {seeds} seeds, {steps} steps; {} power cuts and {} more during recovery, {} recoveries checked; \
         {} runs on bad devices with {} faults that gave {} errors",
        started.elapsed().as_secs_f64(),
        crash.crashes,
        crash.crashes_in_recovery,
        crash.recoveries,
        fault.runs,
        fault.faults,
        fault.errors
    );
}
