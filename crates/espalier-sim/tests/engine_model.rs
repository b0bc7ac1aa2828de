//! The engine against an ordered map.
//!
//! `ESPALIER_SEED=7,8 ESPALIER_STEPS=2000 cargo test -p espalier-sim --test engine_model` replays.

use espalier_sim::{Profile, Setup, Workload, differential, minimize, seeds, soak, steps};

/// Seeds that failed once.
const REGRESSIONS: &[u64] = &[];

fn check(profile: Profile, count: u64, length: usize) {
    for seed in seeds(REGRESSIONS, count) {
        println!("ESPALIER_SEED={seed}");
        let setup = Setup::new(seed);
        let steps = Workload::new(seed, profile, setup.indexes.into()).steps(steps(length));
        let run = |steps: &[_]| differential::run_caught(&setup, steps);
        if let Err(failure) = run(&steps) {
            let (short, failure) = minimize::minimize(steps, failure, 400, run);
            panic!("ESPALIER_SEED={seed}: {failure}\n{setup:?}\n{}", minimize::show(&short));
        }
    }
}

#[test]
fn few_keys_and_every_message() {
    check(Profile::dense(), 30, 400);
}

#[test]
fn many_keys_in_a_tall_tree() {
    check(Profile::broad(), 10, 400);
}

#[test]
fn clones_and_moves() {
    check(Profile::clones(), 30, 400);
}

#[test]
fn clones_and_moves_in_a_tall_tree() {
    check(Profile::broad_clones(), 12, 400);
}

#[test]
fn long_keys_and_large_values() {
    check(Profile::long(), 8, 250);
}

/// A node evicted from a full cache dropped the last handle on a piece while the cache was locked.
#[test]
fn evicted_nodes_let_go_of_dying_pieces() {
    for seed in [1002, 1003] {
        soak::replay("differential", seed).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn what_a_soak_found() {
    // 700083: a writer waited without end for nodes that only snapshots held. 1000029: snapshots
    // kept the blocks of pieces that they could not know, until the store was full.
    for seed in seeds(&[700083, 1000029], 0) {
        soak::replay("differential", seed).unwrap_or_else(|e| panic!("{e}"));
    }
}
