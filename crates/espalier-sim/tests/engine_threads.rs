//! The engine under many threads; see `espalier_sim::concurrent`. Here a seed does not name the
//! interleaving, so a failure may take several runs to show again.

use espalier_sim::concurrent::{Load, run};
use espalier_sim::{Setup, seeds};

fn check(load: Load, count: u64) {
    for seed in seeds(&[], count) {
        println!("ESPALIER_SEED={seed}");
        let setup = Setup::new(seed);
        let seen = run(&setup, load).unwrap_or_else(|e| panic!("ESPALIER_SEED={seed}: {e}\n{setup:?}"));
        println!("{seen} snapshots");
    }
}

#[test]
fn writers_readers_checkpoints_and_background_threads() {
    check(Load { writers: 4, batches: 400, readers: 2, background: 2, crashes: 0 }, 4);
}

#[test]
fn power_cuts_among_threads() {
    check(Load { writers: 3, batches: 300, readers: 1, background: 2, crashes: 12 }, 4);
}

#[test]
fn threads_that_step_the_background_work_themselves() {
    check(Load { writers: 3, batches: 300, readers: 1, background: 0, crashes: 0 }, 2);
}
