//! The file system against a POSIX tree in memory, by random operations. A failure prints the seed;
//! `ESPALIER_SEED=n cargo test -p espalier-fs --test model` runs that seed alone.

mod run;
mod tree;
mod world;

use run::Run;

/// The seeds to run: one, if the environment names it.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("ESPALIER_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..count).collect(),
    }
}

#[test]
fn random_operations_match_the_model() {
    for seed in seeds(std::env::var("ESPALIER_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60)) {
        let mut run = Run::new(seed);
        run.steps(1000);
        run.finish();
    }
}
