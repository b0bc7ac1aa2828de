//! Random workspaces against a model with real copies: edits on both sides, checkpoints, applies
//! (of everything and of some paths, with and without merged texts), promotions, undo, discards,
//! `gc`, remounts, and files with names in several places. The model has a three-way rule of its
//! own, which knows trees as maps from paths to what is there.
//!
//! With crashes, too: of the server and of commands, killed at any of their steps ([`kill`]), and
//! of the machine, with a device that loses what was not synced ([`cut`]). After a crash the mount
//! holds one of the states that the run passed since the last sync, commands in the midst included:
//! all of it, trees, bases, checkpoints and names outside.
//!
//! `ESPALIER_SEED=n` runs that seed alone, `ESPALIER_SEEDS=n` the first n.

#[path = "../common/mod.rs"]
mod common;
mod cut;
mod kill;
mod machine;
mod run;
mod state;
mod tree;

use common::Place;
use cut::Cutting;
use kill::Killing;
use run::{Choice, Counts, Run, USER};

/// Steps of a run.
const STEPS: usize = 60;
/// Steps of a run with crashes.
const CRASH_STEPS: usize = 30;
/// Steps of a run with power cuts.
const CUT_STEPS: usize = 60;

/// The seeds to run, `count` if the environment says nothing.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("ESPALIER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ESPALIER_SEEDS").unwrap_or(count),
    }
}

/// True if as much runs as tests have in mind: then what they count must be enough.
fn is_whole() -> bool {
    ["ESPALIER_SEED", "ESPALIER_SEEDS"].iter().all(|name| std::env::var_os(name).is_none())
}

/// A run without crashes.
fn calm(seed: u64, user: Option<u32>) -> Counts {
    let place = Place::mounted("512M");
    run::let_users_in(&place);
    let mut run = Run::new(&place.dir, seed, user);
    for step in 0..STEPS {
        match run.choose() {
            Choice::Disturb => place.remount(),
            choice => run.carry_out(&choice),
        }
        run.compare(step);
        run.forget();
    }
    place.remount();
    run.compare(STEPS);
    run.counts
}

/// A run with kills.
fn killed(seed: u64, user: Option<u32>) -> Counts {
    let mut killing = Killing::new(seed, user);
    (0..CRASH_STEPS).for_each(|step| killing.step(step));
    killing.end(CRASH_STEPS);
    killing.run.counts
}

#[test]
fn random_workspaces_are_as_real_copies_merged_by_another_rule() {
    let counts: Counts = seeds(8).map(|seed| calm(seed, None)).sum();
    println!("{counts:?}");
    let is_enough = counts.applied > 20 && counts.conflicts > 5 && counts.linked > 5;
    let is_enough = is_enough && counts.in_part > 5 && counts.merged > 0 && counts.collected > 3;
    assert!(!is_whole() || is_enough, "{counts:?}");
}

#[test]
fn those_of_an_ordinary_user_are_too() {
    let counts: Counts = seeds(2).map(|seed| calm(seed, Some(USER))).sum();
    assert!(!is_whole() || counts.applied > 0, "{counts:?}");
}

#[test]
fn kills_leave_what_was_synced_and_no_command_by_halves() {
    let counts: Counts = seeds(3).map(|seed| killed(seed, None)).sum();
    println!("{counts:?}");
    let is_enough = counts.crashes > 15 && counts.lost > 5;
    assert!(!is_whole() || is_enough, "{counts:?}");
}

#[test]
fn so_do_those_of_an_ordinary_user() {
    let counts: Counts = seeds(1).map(|seed| killed(seed, Some(USER))).sum();
    assert!(!is_whole() || counts.crashes > 5, "{counts:?}");
}

/// A run with power cuts.
fn cut(seed: u64, user: Option<u32>) -> Counts {
    let mut cutting = Cutting::new(seed, user);
    (0..CUT_STEPS).for_each(|step| cutting.step(step));
    let counts = cutting.run.counts;
    cutting.end(CUT_STEPS);
    counts
}

#[test]
fn power_cuts_leave_what_was_synced_and_no_command_by_halves() {
    let counts: Counts = seeds(5).map(|seed| cut(seed, None)).sum();
    println!("{counts:?}");
    let is_enough = counts.crashes > 40 && counts.lost > 10 && counts.halfway > 0;
    assert!(!is_whole() || is_enough, "{counts:?}");
}

#[test]
fn so_do_those_during_an_ordinary_users_work() {
    let counts: Counts = seeds(1).map(|seed| cut(seed, Some(USER))).sum();
    assert!(!is_whole() || counts.crashes > 5, "{counts:?}");
}

/// What a machine does; see [`machine`].
#[test]
fn serves_when_asked() {
    machine::serve_if_asked();
}
