//! The same system calls on a mount and on a plain directory: every result, errno, attribute and
//! byte is to be the same. Random but replayable: a failure prints its seed, and `ESPALIER_SEED`
//! replays it; `ESPALIER_STEPS` sets the number of calls. Needs root and FUSE, and fails without.

#[path = "differential/calls.rs"]
mod calls;
mod common;
#[path = "differential/random.rs"]
mod random;
#[path = "differential/tree.rs"]
mod tree;
#[path = "differential/trees.rs"]
mod trees;

use calls::{Call, Side};
use common::kinds;
use common::store::Image;
use random::Random;

const STEPS: usize = 4000;

#[test]
fn serves_when_asked() {
    common::store::serve_if_asked();
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs the calls of `seed` on a mount with `options` and on a directory, and compares.
fn compare(seed: u64, options: &str) {
    let steps = number("ESPALIER_STEPS").map_or(STEPS, |steps| steps as usize);
    for kind in kinds() {
        let image = Image::new(1 << 30);
        let mounted = image.mount(kind, options);
        let plain = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let mut sides = [Side::new(mounted.path(), true), Side::new(plain.path(), false)];
        let mut history = Vec::new();
        for step in 0..steps {
            let call = Call::choose(&mut random);
            let results = sides.each_mut().map(|side| side.apply(&call));
            history.push(call);
            let explain = || {
                let recent = &history[history.len().saturating_sub(30)..];
                let recent: Vec<_> = recent.iter().map(|call| format!("{call:?}")).collect();
                format!("ESPALIER_SEED={seed} {kind} step {step}; the last calls:\n{}", recent.join("\n"))
            };
            assert_eq!(results[0], results[1], "mount and directory differ: {}", explain());
            if step % 250 == 249 {
                let trees = [tree::read(mounted.path()), tree::read(plain.path())];
                tree::assert_same(&trees[0], &trees[1], explain);
            }
        }
        drop(sides);
        let before = tree::read(mounted.path());
        tree::assert_same(&before, &tree::read(plain.path()), || {
            format!("ESPALIER_SEED={seed} {kind} at the end")
        });
        mounted.end();
        let again = image.mount(kind, options);
        tree::assert_same(&tree::read(again.path()), &before, || {
            format!("ESPALIER_SEED={seed} {kind} remounted")
        });
        again.end();
    }
}

fn compare_all(first: u64, options: &str) {
    match number("ESPALIER_SEED") {
        Some(seed) => compare(seed, options),
        None => (first..first + 3).for_each(|seed| compare(seed, options)),
    }
}

#[test]
fn behaves_like_a_plain_directory() {
    compare_all(1, "");
}

#[test]
fn behaves_like_a_plain_directory_with_writeback() {
    compare_all(11, "writeback");
}
