//! How many bytes ranges hold, alone and in all: the measure of limits on trees.

use espalier_engine::{
    Batch, FormatOptions, HeldTally, IndexId, KeyRange, MergeFunctions, OpenOptions, READ_ONLY_VOLUME,
    SpaceUse, Store, Tuning,
};
use espalier_storage::{Random, SimulatedDevice, SimulatedEnvironment};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const DEVICE: u64 = 256 << 20;
const VALUE_BYTES: usize = 16 << 10;
/// What headers and parts take beside the values: a share of these, and so many bytes.
const OVERHEAD: (u64, u64) = (32, 64 << 10);

struct Bench {
    store: Arc<Store>,
    index: IndexId,
    random: Random,
    /// By the ranges that were asked for, and whether for all.
    tallies: HashMap<(Vec<(IndexId, KeyRange)>, bool), HeldTally>,
}

impl Bench {
    fn new() -> Self {
        let device = Arc::new(SimulatedDevice::new(DEVICE, 1));
        let env = Arc::new(SimulatedEnvironment::new(1));
        Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
        let options = OpenOptions {
            memory: 64 << 20,
            merge: MergeFunctions::new(),
            tuning: Tuning::default(),
            ..OpenOptions::default()
        };
        let store = Store::open(device, env, options).unwrap();
        let volume = store.create_volume("v", 1, 0, &[]).unwrap();
        Self { store, index: IndexId { volume, index: 0 }, random: Random::new(3), tallies: HashMap::new() }
    }

    fn put(&mut self, key: &str) {
        let mut value = vec![0; VALUE_BYTES];
        self.random.fill(&mut value);
        let mut batch = Batch::new();
        batch.insert(self.index, key.as_bytes(), value);
        self.store.commit(batch).unwrap();
    }

    /// Writes of trees that take turns, so that they meet in groups of the log.
    fn put_in_turns(&mut self, trees: &[&str], count: usize) {
        for number in 0..count {
            trees.iter().for_each(|tree| self.put(&format!("{tree}/file{number:05}")));
        }
    }

    fn keep_apart_all(&self, trees: &[&str]) {
        for (owner, tree) in trees.iter().enumerate() {
            self.store.keep_apart(owner as u64, Some((self.index, tree.as_bytes())));
        }
    }

    fn clone(&self, from: &str, to: &str) {
        let mut batch = Batch::new();
        batch.clone_range(self.index, from.as_bytes(), to.as_bytes());
        self.store.commit(batch).unwrap();
    }

    fn delete(&self, prefix: &str) {
        let mut batch = Batch::new();
        batch.delete_range(self.index, KeyRange::prefix(prefix.as_bytes()));
        self.store.commit(batch).unwrap();
    }

    /// What some trees hold alone, and in all.
    fn held(&mut self, trees: &[&str]) -> (u64, u64) {
        self.store.checkpoint().unwrap();
        let range = |tree: &&str| (self.index, KeyRange::prefix(tree.as_bytes()));
        let ranges: Vec<_> = trees.iter().map(range).collect();
        let [alone, all] = [false, true].map(|all| self.bytes_held(&ranges, all));
        assert_eq!(alone.exclusive, all.exclusive, "the short walk finds what the long one does");
        (all.exclusive, all.bytes)
    }

    /// The same of any ranges, by a walk that goes on from the last one, which must not matter.
    #[track_caller]
    fn bytes_held(&mut self, ranges: &[(IndexId, KeyRange)], all: bool) -> SpaceUse {
        let again = self.tallies.entry((ranges.to_vec(), all)).or_default();
        let again = self.store.bytes_held(again, ranges, all).unwrap();
        let anew = self.store.bytes_held(&mut HeldTally::default(), ranges, all).unwrap();
        assert_eq!(again, anew, "a walk that goes on finds what a new one does");
        anew
    }
}

/// All these values count, and little else.
#[track_caller]
fn are(found: u64, values: usize) {
    let expected = (values * VALUE_BYTES) as u64;
    let (share, bytes) = OVERHEAD;
    assert!((expected..=expected + expected / share + bytes).contains(&found), "{found} for {expected}");
}

#[test]
fn trees_that_are_written_in_turns_each_hold_their_own() {
    let mut bench = Bench::new();
    bench.keep_apart_all(&["b/", "d/"]);
    bench.put_in_turns(&["a", "b", "c", "d"], 300);
    for tree in ["b/", "d/"] {
        let (alone, all) = bench.held(&[tree]);
        are(alone, 300);
        are(all, 300);
    }
}

#[test]
fn a_small_tree_between_others_holds_its_own() {
    let mut bench = Bench::new();
    bench.keep_apart_all(&["b/"]);
    bench.put_in_turns(&["a", "c"], 500);
    bench.put_in_turns(&["b"], 20);
    while bench.store.step().unwrap() {}
    let (alone, all) = bench.held(&["b/"]);
    are(alone, 20);
    are(all, 20);
}

#[test]
fn where_parts_mix_no_tree_holds_what_others_do_and_all_hold_everything() {
    let mut bench = Bench::new();
    bench.put_in_turns(&["a", "b", "c"], 200);
    let trees: Vec<u64> = ["a/", "b/", "c/"].iter().map(|tree| bench.held(&[tree]).0).collect();
    for (alone, values) in trees.iter().zip([200, 200, 200]) {
        assert!(*alone <= (values * VALUE_BYTES) as u64 * 33 / 32 + OVERHEAD.1, "{trees:?}");
    }
    are(bench.held(&["a/", "b/", "c/"]).0, 600);
}

#[test]
fn where_parts_mix_what_a_tree_has_more_than_the_others_counts() {
    let mut bench = Bench::new();
    // Of each part three quarters belong to one tree, so half of it counts.
    for number in 0..150 {
        bench.put(&format!("a/file{number:05}"));
        (0..3).for_each(|more| bench.put(&format!("b/file{:05}", 3 * number + more)));
    }
    bench.store.settle(&[(bench.index, KeyRange::all())], Duration::from_secs(60)).unwrap();
    let (most, _) = bench.held(&["b/"]);
    let values = |values: usize| (values * VALUE_BYTES) as u64;
    assert!((values(300)..=values(450) * 33 / 32 + OVERHEAD.1).contains(&most), "{most}");
    assert!(bench.held(&["a/"]).0 <= values(150) + OVERHEAD.1);
    are(bench.held(&["a/", "b/"]).0, 600);
}

#[test]
fn messages_that_wait_above_a_clone_and_its_source_belong_to_neither() {
    let mut bench = Bench::new();
    bench.keep_apart_all(&["a/", "b/"]);
    bench.put_in_turns(&["a"], 5);
    bench.store.checkpoint().unwrap();
    bench.clone("a/", "b/");
    for tree in ["a/", "b/"] {
        let (alone, all) = bench.held(&[tree]);
        are(alone, 0);
        are(all, 5);
    }
    are(bench.held(&["a/", "b/"]).0, 5);
}

#[test]
fn what_a_clone_keeps_of_its_source_becomes_its_own() {
    let mut bench = Bench::new();
    bench.keep_apart_all(&["a/", "b/"]);
    bench.put_in_turns(&["a"], 640);
    bench.store.settle(&[(bench.index, KeyRange::prefix(b"a/"))], Duration::from_secs(60)).unwrap();
    bench.clone("a/", "b/");
    are(bench.held(&["b/"]).0, 0);
    bench.delete("a/file000");
    bench.store.settle(&[(bench.index, KeyRange::all())], Duration::from_secs(60)).unwrap();
    let (alone, all) = bench.held(&["b/"]);
    are(alone, 100);
    are(all, 640);
}

#[test]
fn a_clone_holds_alone_what_was_written_in_it() {
    let mut bench = Bench::new();
    bench.keep_apart_all(&["b/"]);
    bench.put_in_turns(&["a"], 600);
    bench.clone("a/", "b/");
    let (alone, all) = bench.held(&["b/"]);
    are(alone, 0);
    are(all, 600);
    // Some are replaced in the clone, some in the source, which gives these to the clone alone.
    bench.put_in_turns(&["b"], 100);
    bench.store.settle(&[(bench.index, KeyRange::prefix(b"b/"))], Duration::from_secs(60)).unwrap();
    let (alone, all) = bench.held(&["b/"]);
    are(alone, 100);
    // What was replaced counts until the messages have come to leaves; these are shared.
    are(all, 700);
    // With the source both are whole.
    are(bench.held(&["a/", "b/"]).0, 700);
    bench.delete("a/");
    bench.store.settle(&[(bench.index, KeyRange::prefix(b"b/"))], Duration::from_secs(60)).unwrap();
    are(bench.held(&["b/"]).0, 600);
}

#[test]
fn what_is_replaced_or_deleted_is_held_no_longer_when_settled() {
    let mut bench = Bench::new();
    bench.keep_apart_all(&["b/"]);
    bench.put_in_turns(&["a", "b"], 200);
    bench.store.checkpoint().unwrap();
    let range = [(bench.index, KeyRange::prefix(b"b/"))];
    for _ in 0..3 {
        bench.put_in_turns(&["b"], 200);
    }
    bench.store.settle(&range, Duration::from_secs(60)).unwrap();
    are(bench.held(&["b/"]).0, 200);
    for number in (0..200).step_by(2) {
        bench.delete(&format!("b/file{number:05}"));
    }
    bench.store.settle(&range, Duration::from_secs(60)).unwrap();
    are(bench.held(&["b/"]).0, 100);
}

#[test]
fn a_snapshot_shares_what_a_tree_holds_unless_it_counts_too() {
    let mut bench = Bench::new();
    bench.put_in_turns(&["a"], 200);
    let flags = READ_ONLY_VOLUME;
    let copy = bench.store.snapshot_prefix_if(bench.index.volume, b"a/", "copy", flags, &|| true).unwrap();
    are(bench.held(&["a/"]).0, 0);
    let ranges =
        [(bench.index, KeyRange::prefix(b"a/")), (IndexId { volume: copy, index: 0 }, KeyRange::all())];
    are(bench.bytes_held(&ranges, false).exclusive, 200);
}

/// How many headers are looked at to count a tree.
fn looked_at(bench: &Bench, tally: &mut HeldTally, tree: &str) -> u64 {
    bench.store.checkpoint().unwrap();
    let before = tally.headers_looked_at();
    let range = (bench.index, KeyRange::prefix(tree.as_bytes()));
    bench.store.bytes_held(tally, &[range], false).unwrap();
    tally.headers_looked_at() - before
}

#[test]
fn a_later_count_looks_at_what_has_changed() {
    let mut bench = Bench::new();
    bench.put_in_turns(&["a"], 4000);
    bench.store.settle(&[(bench.index, KeyRange::all())], Duration::from_secs(60)).unwrap();
    let mut tally = HeldTally::default();
    let first = looked_at(&bench, &mut tally, "a/");
    assert!(first >= 16, "{first} headers");
    assert_eq!(looked_at(&bench, &mut tally, "a/"), 0);
    bench.put("a/file01234");
    let height = 4;
    assert!(looked_at(&bench, &mut tally, "a/") <= height);
    // A clone shares all: only what leads there is looked at. So it is when it goes.
    bench.clone("a/", "b/");
    assert!(looked_at(&bench, &mut tally, "a/") <= height);
    assert!(tally.pieces() < 100, "{} pieces", tally.pieces());
    bench.delete("b/");
    assert!(looked_at(&bench, &mut tally, "a/") >= first / 2, "all is its own again");
    // A tree that moves is not walked again.
    bench.clone("a/", "c/");
    bench.delete("a/");
    bench.store.checkpoint().unwrap();
    let moved = looked_at(&bench, &mut tally, "c/");
    assert!(moved <= 2 * height, "{moved} of {first} headers");
    assert!(tally.pieces() >= 60, "{} pieces", tally.pieces());
}

/// Random changes of four trees and a snapshot of one; all ranges are counted now and then.
fn random_changes(seed: u64) {
    let mut bench = Bench::new();
    bench.random = Random::new(seed);
    let names = ["a/", "b/", "c/", "d/"];
    bench.keep_apart_all(&names[..2]);
    let mut snapshot = None;
    for step in 0..120 {
        let mut pick = |below: usize| bench.random.below(below as u64) as usize;
        let (kind, one, other) = (pick(12), names[pick(4)], names[pick(4)]);
        let (first, count) = (pick(400), pick(40));
        match kind {
            0..=4 => (first..first + count).for_each(|n| bench.put(&format!("{one}file{n:05}"))),
            5 => {
                let range = KeyRange::new(
                    format!("{one}file{first:05}").as_bytes(),
                    format!("{one}file{:05}", first + 99).as_bytes(),
                );
                let mut batch = Batch::new();
                batch.delete_range(bench.index, range);
                bench.store.commit(batch).unwrap();
            }
            6 | 7 if one != other => bench.clone(one, other),
            8 if one != other => {
                bench.clone(one, other);
                bench.delete(one);
            }
            9 => bench
                .store
                .settle(&[(bench.index, KeyRange::prefix(one.as_bytes()))], Duration::from_secs(60))
                .unwrap(),
            10 => {
                for _ in 0..count {
                    bench.store.step().unwrap();
                }
            }
            11 => {
                let volume = bench.index.volume;
                snapshot = match snapshot.take() {
                    Some(copy) => {
                        bench.store.delete_volume(copy).unwrap();
                        None
                    }
                    None => {
                        let wanted = bench.store.snapshot_prefix_if(
                            volume,
                            one.as_bytes(),
                            "copy",
                            READ_ONLY_VOLUME,
                            &|| true,
                        );
                        Some(wanted.unwrap())
                    }
                };
            }
            _ => bench.store.checkpoint().unwrap(),
        }
        if step % 3 == 0 {
            for trees in [&names[..1], &names[1..2], &names[1..3], &names[..]] {
                bench.held(trees);
            }
            if let Some(volume) = snapshot {
                let of_copy = (IndexId { volume, index: 0 }, KeyRange::all());
                let one = (bench.index, KeyRange::prefix(b"a/"));
                bench.bytes_held(&[one, of_copy], step % 2 == 0);
            }
        }
    }
}

#[test]
fn counts_that_go_on_are_those_that_begin_anew() {
    for seed in 0..12 {
        random_changes(seed);
    }
}
