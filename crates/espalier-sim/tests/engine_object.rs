//! The engine on an object store: the writer's process dies at every change of the store.
//!
//! `ESPALIER_SEED=7 cargo test -p espalier-sim --test engine_object NAME` replays.

use espalier_sim::{Profile, Setup, SimulatedObjectDevice, Workload, crash, minimize, seeds, steps};

/// Seeds that failed once.
const REGRESSIONS: &[u64] = &[];

fn check(profile: Profile, count: u64, length: usize, plan: crash::Plan) {
    for seed in seeds(REGRESSIONS, count) {
        println!("ESPALIER_SEED={seed}");
        let setup = Setup::new(seed);
        let list = Workload::new(seed, profile, setup.indexes.into()).steps(steps(length));
        let run = |steps: &[_]| {
            espalier_sim::catch(|| crash::run_on::<SimulatedObjectDevice>(&setup, steps, plan).map(drop))
        };
        if let Err(failure) = run(&list) {
            println!("ESPALIER_SEED={seed}: {failure}\nMaking it short ...");
            let (short, failure) = minimize::minimize(list, failure, 200, run);
            panic!("ESPALIER_SEED={seed}: {failure}\n{setup:?}\n{}", minimize::show(&short));
        }
    }
}

#[test]
fn deaths_at_every_change_of_short_histories() {
    check(Profile::dense(), 6, 60, crash::Plan { one_in: 1, outcomes: 2, last: None });
}

#[test]
fn deaths_in_long_histories() {
    check(Profile::broad(), 2, 200, crash::Plan { one_in: 12, outcomes: 1, last: None });
}

#[test]
fn deaths_with_clones_and_snapshots() {
    check(Profile::clones(), 4, 60, crash::Plan { one_in: 2, outcomes: 1, last: None });
}
