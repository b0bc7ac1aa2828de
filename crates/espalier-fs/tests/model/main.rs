//! The file system against a POSIX tree in memory, by random operations, with crashes and without.
//! A failure prints the seed; `ESPALIER_SEED=n cargo test -p espalier-fs --test model` runs that
//! seed alone, `ESPALIER_SEEDS=n` the first n.

mod attributes;
mod compare;
mod contents;
mod copies;
mod crash;
mod cuts;
mod entries;
mod exhaustive;
mod giving_up;
mod golden;
mod limits;
mod renames;
mod repair;
mod restarts;
mod run;
mod tree;
mod whole_trees;
mod world;
mod written;

use espalier_sim::{SimulatedJournaledDevice, SimulatedObjectDevice};
use espalier_storage::SimulatedDevice;
use run::Run;

/// The seeds to run: `count` of them, unless the environment says otherwise.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    match number("ESPALIER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ESPALIER_SEEDS").unwrap_or(count),
    }
}

#[test]
fn random_operations_match_the_model() {
    let seeds = seeds(40);
    let (count, mut renamed) = (seeds.clone().count(), 0);
    for seed in seeds {
        let mut run = Run::new(seed);
        run.steps(1000);
        run.finish();
        renamed += run.renamed_all;
    }
    assert!(count < 40 || 2 * renamed > count, "{renamed} calls renamed several entries in {count} runs");
}

#[test]
fn links_between_clones_match_the_model() {
    let seeds = seeds(20);
    let (count, mut joined, mut renamed, mut split) = (seeds.clone().count(), 0, 0, 0);
    for seed in seeds {
        let mut run = Run::new(seed);
        run.of_links = true;
        run.steps(1000);
        run.finish();
        joined += run.tree.joined;
        renamed += run.renamed_names;
        split += run.tree.split.min(run.limited.1);
    }
    // Rare cases are not to become so rare that they are not tested.
    assert!(count < 20 || joined > 2 * count, "{joined} link areas were joined in {count} runs");
    assert!(count < 20 || renamed > count, "{renamed} calls renamed names of one file in {count} runs");
    assert!(
        count < 20 || 2 * split > count,
        "{split} link areas were split, and as many not, in {count} runs"
    );
}

#[test]
fn copies_of_large_files_match_the_model() {
    let seeds = seeds(12);
    let (count, mut whole, mut beginnings, mut continued) = (seeds.clone().count(), 0, 0, 0);
    for seed in seeds {
        let mut run = if seed.is_multiple_of(4) { Run::giving_up(seed) } else { Run::new(seed) };
        (run.of_copies, run.hands_over) = (true, seed % 4 == 1);
        run.steps(400);
        run.finish();
        whole += run.copied.whole;
        beginnings += run.copied.beginnings;
        continued += run.copied.continued;
    }
    // Each way is taken.
    let rarest = whole.min(beginnings).min(continued);
    assert!(count < 12 || rarest > 2 * count, "{whole}, {beginnings}, {continued} in {count} runs");
}

#[test]
fn calls_that_are_given_up_change_nothing() {
    let seeds = seeds(16);
    let (count, mut given_up) = (seeds.clone().count(), 0);
    for seed in seeds {
        let mut run = Run::giving_up(seed);
        run.of_links = seed.is_multiple_of(2);
        run.steps(1200);
        run.finish();
        given_up += run.given_up;
    }
    assert!(count < 16 || given_up > 100 * count, "{given_up} calls were given up in {count} runs");
}

#[test]
fn another_file_system_goes_on_where_one_was() {
    let seeds = seeds(8);
    let (count, mut times, mut nameless) = (seeds.clone().count(), 0, 0);
    for seed in seeds {
        let mut run = Run::new(seed);
        (run.hands_over, run.of_links) = (true, seed % 3 == 1);
        run.steps(1000);
        run.finish();
        (times, nameless) = (times + run.handed_over.0, nameless + run.handed_over.1);
    }
    assert!(
        count < 8 || times > 20 * count && nameless > 20 * count,
        "{times} times, {nameless} without a name"
    );
}

#[test]
fn a_crash_leaves_a_prefix_of_the_operations() {
    for seed in seeds(12) {
        crash::run::<SimulatedDevice>(seed, |_| ());
    }
    for seed in seeds(6) {
        crash::run::<SimulatedDevice>(seed, |run| run.of_links = true);
    }
}

#[test]
fn a_crash_on_an_object_store_leaves_a_prefix_of_the_operations() {
    for seed in seeds(2) {
        crash::run::<SimulatedObjectDevice>(seed, |_| ());
    }
    for seed in seeds(3) {
        crash::run::<SimulatedJournaledDevice>(seed, |run| run.of_links = seed.is_multiple_of(2));
    }
}

#[test]
fn a_crash_leaves_a_copy_of_a_large_file_as_far_as_it_was() {
    for seed in seeds(3) {
        crash::run::<SimulatedDevice>(seed, |run| run.of_copies = true);
    }
}
