//! Soaks the engine in random workloads, power cuts and faults for a time.

use clap::Parser;
use espalier_sim::minimize;
use espalier_sim::soak::{Broken, Case, SIMULATIONS, Simulation, Tally};
use espalier_sync::{Condvar, Mutex};
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs seed after seed through the simulations of the engine. Prints each failure with its seed
/// and a short list of steps, and exits with 1 if there was one.
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
    /// Only this simulation; may be given several times.
    #[arg(long, value_parser = names())]
    only: Vec<String>,
    /// Steps per seed; chosen by the seed if not given.
    #[arg(long)]
    steps: Option<usize>,
    /// Seeds at a time; as many as there are processors if not given.
    #[arg(long)]
    jobs: Option<usize>,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 10)]
    failures: usize,
    /// Runs spent on making a failure short.
    #[arg(long, default_value_t = 500)]
    shorten: usize,
    /// A simulation of one seed that takes so many minutes hangs.
    #[arg(long, default_value_t = 20.0)]
    patience: f64,
    /// Print the figures and the failures as JSON at the end, and everything else to standard
    /// error.
    #[arg(long)]
    json: bool,
}

fn names() -> clap::builder::PossibleValuesParser {
    SIMULATIONS.iter().map(|simulation| simulation.name).collect::<Vec<_>>().into()
}

/// How far it is.
struct Progress {
    next: u64,
    done: u64,
    tally: Tally,
    failures: Vec<Broken>,
    /// What each job does, and since when; nothing once it has ended.
    jobs: Vec<Option<(u64, &'static str, Instant)>>,
}

struct Soak {
    arguments: Arguments,
    started: Instant,
    progress: Mutex<Progress>,
    changed: Condvar,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.unwrap_or_else(processors).max(1);
    let started = Instant::now();
    let progress = Progress {
        next: arguments.seed,
        done: 0,
        tally: Tally::default(),
        failures: Vec::new(),
        jobs: vec![Some((arguments.seed, "start", started)); jobs],
    };
    let soak = Soak { arguments, started, progress: Mutex::new(progress), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let soak = &soak;
            scope.spawn(move || soak.work(job));
        }
        soak.watch();
    });
    let progress = soak.progress.lock();
    soak.report(&progress);
    soak.print_json(&progress);
    if progress.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Soak {
    /// Seed after seed, until there is enough of it.
    fn work(&self, job: usize) {
        while let Some(seed) = self.next_seed() {
            let case = Case::new(seed, self.arguments.steps);
            let chosen = |simulation: &&Simulation| {
                let only = &self.arguments.only;
                only.is_empty() || only.iter().any(|only| only == simulation.name)
            };
            for simulation in SIMULATIONS.iter().filter(chosen) {
                self.progress.lock().jobs[job] = Some((seed, simulation.name, Instant::now()));
                let mut tally = Tally::default();
                let outcome = simulation.run(&case, &mut tally);
                self.progress.lock().tally.add(tally);
                if let Err(broken) = outcome {
                    self.fail(*broken);
                }
            }
            self.progress.lock().done += 1;
        }
        self.progress.lock().jobs[job] = None;
        self.changed.notify_all();
    }

    fn next_seed(&self) -> Option<u64> {
        let time = Duration::from_secs_f64(self.arguments.minutes * 60.0);
        let mut progress = self.progress.lock();
        let begun = progress.next - self.arguments.seed;
        let enough = self.arguments.seeds.map_or(self.started.elapsed() >= time, |seeds| begun >= seeds);
        if enough || progress.failures.len() >= self.arguments.failures {
            return None;
        }
        progress.next += 1;
        Some(progress.next - 1)
    }

    fn fail(&self, broken: Broken) {
        let Broken { name, seed, round, failure, .. } = &broken;
        self.say(&format!("FAILED: {name}, seed {seed}, round {round}: {failure}\nMaking it short ..."));
        let broken = broken.shorten(self.arguments.shorten);
        let Broken { name, seed, failure, case, .. } = &broken;
        let steps = minimize::show(&case.steps);
        let again = format!("Again: espalier-sim --seed {seed} --seeds 1 --only {name}");
        self.say(&format!("{name}, seed {seed}: {failure}\n{:?}\n{steps}\n{again}", case.setup));
        self.progress.lock().failures.push(broken);
    }

    /// Reports now and then, and ends the program if a simulation hangs; returns when all jobs have
    /// ended.
    fn watch(&self) {
        let patience = Duration::from_secs_f64(self.arguments.patience * 60.0);
        let mut reported = Instant::now();
        let mut progress = self.progress.lock();
        while progress.jobs.iter().any(Option::is_some) {
            self.changed.wait_for(&mut progress, Duration::from_secs(1));
            let hangs = |(_, _, since): &&(u64, &str, Instant)| since.elapsed() > patience;
            if let Some((seed, name, _)) = progress.jobs.iter().flatten().find(hangs) {
                self.say(&format!("FAILED: {name}, seed {seed} does not end"));
                self.report(&progress);
                std::process::exit(1);
            }
            if reported.elapsed() > Duration::from_secs(20) {
                reported = Instant::now();
                self.report(&progress);
            }
        }
    }

    fn say(&self, text: &str) {
        if self.arguments.json {
            eprintln!("{text}");
        } else {
            println!("{text}");
        }
    }

    fn report(&self, progress: &Progress) {
        let Progress { done, tally: Tally { steps, crash, fault }, failures, .. } = progress;
        self.say(&format!(
            "{:4.0} s: {done} seeds, {steps} steps; {} power cuts and {} more during recovery, {} recoveries checked; \
             {} runs on bad devices with {} faults that gave {} errors; {} failures",
            self.started.elapsed().as_secs_f64(),
            crash.crashes,
            crash.crashes_in_recovery,
            crash.recoveries,
            fault.runs,
            fault.faults,
            fault.errors,
            failures.len()
        ));
    }

    fn print_json(&self, progress: &Progress) {
        if !self.arguments.json {
            return;
        }
        let Progress { done, tally: Tally { steps, crash, fault }, failures, .. } = progress;
        let failure = |broken: &Broken| {
            json!({
                "simulation": broken.name,
                "seed": broken.seed,
                "round": broken.round,
                "failure": broken.failure.to_string(),
                "steps": broken.case.steps.len(),
            })
        };
        let all = json!({
            "seconds": self.started.elapsed().as_secs_f64(),
            "first_seed": self.arguments.seed,
            "seeds": done,
            "steps": steps,
            "power_cuts": crash.crashes,
            "power_cuts_in_recovery": crash.crashes_in_recovery,
            "recoveries": crash.recoveries,
            "runs_on_bad_devices": fault.runs,
            "faults": fault.faults,
            "errors": fault.errors,
            "failures": failures.iter().map(failure).collect::<Vec<_>>(),
        });
        println!("{all}");
    }
}
