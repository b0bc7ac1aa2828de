//! A store filled to the last byte and emptied, again and again, with a verification after each
//! step. `ESPALIER_CYCLES` says how often: a hundred times is `ESPALIER_CYCLES=100`.

use espalier_sim::soak::{Case, SIMULATIONS, Tally};
use espalier_sim::{Setup, catch, fault, seeds};

#[test]
fn a_store_is_filled_and_emptied_again_and_again() {
    let cycles = match std::env::var("ESPALIER_CYCLES") {
        Ok(number) => number.parse().expect("ESPALIER_CYCLES holds a number"),
        Err(_) => 3,
    };
    for seed in seeds(&[], 2) {
        let setup = Setup::new(seed).small();
        catch(|| fault::run_cycles(&setup, cycles)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn a_full_store_says_so_and_takes_what_frees_space() {
    for seed in seeds(&[1025, 3003, 21, 68, 76, 91, 106, 30007], 2) {
        let setup = Setup::new(seed).small();
        catch(|| fault::run_full(&setup, 2)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// The end of the space is met by whatever comes last: a batch, a flush, a checkpoint, a table
/// page.
#[test]
fn a_store_with_room_for_a_little_answers_with_the_batch() {
    let brim = SIMULATIONS.iter().find(|simulation| simulation.name == "brim").expect("a simulation");
    let mut tally = Tally::default();
    // 500118: a batch without operations, for a deletion of no keys has none.
    // 800049: moving messages down took for good what a deletion needs.
    for seed in seeds(&[500118, 800049], 4) {
        brim.run(&Case::new(seed, None), &mut tally)
            .unwrap_or_else(|broken| panic!("seed {seed}: {}", broken.failure));
    }
    assert!(tally.fault.errors > 20, "only {} batches were refused", tally.fault.errors);
}

/// What deletes parts of clones takes space for good, and may be refused; what deletes all of them
/// never is.
#[test]
fn a_full_store_of_clones_can_be_emptied() {
    let shared = SIMULATIONS.iter().find(|simulation| simulation.name == "shared").expect("a simulation");
    let mut tally = Tally::default();
    // 1000: deleting several ranges wrote more headers than were promised. 1012, 1042: no blocks
    // were reserved for the pages of the node translation table where most of them change. 2044:
    // deleting everything was to reserve headers that it does not write.
    for seed in seeds(&[2, 14, 22, 30, 1000, 1012, 1042, 2044], 2) {
        shared
            .run(&Case::new(seed, None), &mut tally)
            .unwrap_or_else(|broken| panic!("seed {seed}: {}", broken.failure));
    }
}
