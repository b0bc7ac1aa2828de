//! The engine on an object store, with and without a journal: the writer's process dies, the power
//! fails, or the machine is lost, at every change of store and journal.
//!
//! `ESPALIER_SEED=7 cargo test -p espalier-sim --test engine_object NAME` replays.

use espalier_sim::{
    Change, CrashDevice, Profile, Setup, SimulatedJournaledDevice, SimulatedObjectDevice, Step, Workload,
    crash, minimize, seeds, steps,
};

/// Seeds that failed once.
const REGRESSIONS: &[u64] = &[];

fn check<D: CrashDevice>(profile: Profile, count: u64, length: usize, plan: crash::Plan) {
    for seed in seeds(REGRESSIONS, count) {
        println!("ESPALIER_SEED={seed}");
        let setup = Setup::new(seed);
        let list = Workload::new(seed, profile, setup.indexes.into()).steps(steps(length));
        let run = |steps: &[_]| espalier_sim::catch(|| crash::run_on::<D>(&setup, steps, plan).map(drop));
        if let Err(failure) = run(&list) {
            println!("ESPALIER_SEED={seed}: {failure}\nMaking it short ...");
            let (short, failure) = minimize::minimize(list, failure, 200, run);
            panic!("ESPALIER_SEED={seed}: {failure}\n{setup:?}\n{}", minimize::show(&short));
        }
    }
}

const EVERY_CHANGE: crash::Plan = crash::Plan { one_in: 1, outcomes: 2, last: None };

#[test]
fn deaths_at_every_change_of_short_histories() {
    check::<SimulatedObjectDevice>(Profile::dense(), 6, 60, EVERY_CHANGE);
}

#[test]
fn deaths_in_long_histories() {
    check::<SimulatedObjectDevice>(
        Profile::broad(),
        2,
        200,
        crash::Plan { one_in: 12, outcomes: 1, last: None },
    );
}

#[test]
fn deaths_with_clones_and_snapshots() {
    check::<SimulatedObjectDevice>(
        Profile::clones(),
        4,
        60,
        crash::Plan { one_in: 2, outcomes: 1, last: None },
    );
}

#[test]
fn deaths_of_writers_with_a_journal() {
    check::<SimulatedJournaledDevice>(Profile::dense(), 3, 60, EVERY_CHANGE);
}

#[test]
fn deaths_of_writers_with_a_journal_in_long_histories() {
    check::<SimulatedJournaledDevice>(
        Profile::broad(),
        2,
        200,
        crash::Plan { one_in: 12, outcomes: 1, last: None },
    );
}

/// A store that is made durable, and processes that are killed before they have done anything.
#[test]
fn a_state_that_was_found_after_one_death_is_found_after_the_next() {
    for seed in seeds(REGRESSIONS, 16) {
        println!("ESPALIER_SEED={seed}");
        let setup = Setup::new(seed).tiny();
        let change =
            |key: u8| Step::Commit(vec![Change::Insert(0, vec![key; 3].into(), vec![key; 100].into())]);
        let made_durable = if seed % 2 == 0 { Step::Checkpoint } else { Step::Sync };
        let steps = [
            change(1),
            made_durable,
            Step::Kill,
            Step::Kill,
            change(2),
            Step::Kill,
            Step::Kill,
            Step::Reopen,
        ];
        for outcome in [
            espalier_sim::catch(|| crash::run_on::<SimulatedObjectDevice>(&setup, &steps, EVERY_CHANGE)),
            espalier_sim::catch(|| crash::run_on::<SimulatedJournaledDevice>(&setup, &steps, EVERY_CHANGE)),
        ] {
            outcome.unwrap_or_else(|failure| panic!("ESPALIER_SEED={seed}: {failure}"));
        }
    }
}
