//! The sum of what is unwritten, against a walk over all of it.

use crate::index::accounting::LEAST_ADDED;
use crate::model::key::KeyRange;
use crate::{Batch, FormatOptions, IndexId, OpenOptions, Store, Tuning};
use espalier_storage::{MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

fn open(tuning: Tuning) -> (Arc<Store>, IndexId) {
    let (device, env) = (Arc::new(MemoryDevice::new(256 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let options = OpenOptions { memory: 64 << 20, tuning, ..OpenOptions::default() };
    let store = Store::open(device, env, options).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    (store, IndexId { volume, index: 0 })
}

/// The sum, without a count of all, and what a walk over the trees gives.
fn sum_and_all(store: &Store) -> (u64, u64) {
    let components = &store.components;
    components.accounting.recount();
    let roots: Vec<_> = components.indexes.all().iter().map(|index| index.version().root.clone()).collect();
    (components.accounting.unwritten_now(), components.trees.unwritten_together(&roots))
}

/// Each clone writes the headers above it anew. What they replace does not stay in the sum, so that
/// it need not be counted again and again while clones are made.
#[test]
fn headers_that_were_replaced_leave_the_sum() {
    let (store, id) = open(Tuning { fanout: 4, ..Tuning::default() });
    for n in 0..4000u64 {
        let mut batch = Batch::new();
        batch.insert(id, format!("a/{:02}/{n:05}", n % 16).as_bytes(), vec![1; 100]);
        store.commit(batch).unwrap();
    }
    store.checkpoint().unwrap();
    let mut sums = Vec::new();
    for n in 0..600u64 {
        let mut batch = Batch::new();
        batch.clone_range(id, b"a/", format!("c{n:04}/").as_bytes());
        store.commit(batch).unwrap();
        store.components.write.pipeline.absorb_now(&[id]).unwrap();
        let (sum, all) = sum_and_all(&store);
        assert_eq!(sum, all, "after {n} clones");
        sums.push(sum);
    }
    // Each of them replaced the header of the root, at least.
    assert!(sums.last().is_some_and(|sum| *sum < 600), "{sums:?}");
    store.checkpoint().unwrap();
    assert_eq!(sum_and_all(&store), (0, 0));
}

/// The sum is never too small, and too large only by what readers keep.
#[test]
fn the_sum_covers_what_is_unwritten_through_random_changes() {
    for seed in 1..=8 {
        let mut random = Random::new(seed);
        let (store, id) = open(Tuning::tiny());
        let mut kept = Vec::new();
        for step in 0..400 {
            let mut batch = Batch::new();
            match random.below(20) {
                0..12 => (0..random.between(1..=30)).for_each(|_| {
                    let key = format!("{}/{:03}", random.below(6), random.below(300));
                    batch.insert(id, key.as_bytes(), vec![1; random.below(200) as usize]);
                }),
                12..15 => {
                    let (from, to) = (random.below(6), random.below(6));
                    let names = [from, to].map(|n| format!("{n}/"));
                    batch.clone_range(id, names[0].as_bytes(), names[1].as_bytes());
                }
                15 => batch.delete_range(id, KeyRange::prefix(format!("{}/", random.below(6)).as_bytes())),
                16 => drop(store.step().unwrap()),
                17 => store.checkpoint().unwrap(),
                18 => kept.push(store.snapshot().unwrap()),
                _ => kept.clear(),
            }
            store.commit(batch).unwrap();
            let (sum, all) = sum_and_all(&store);
            assert!(all <= sum, "seed {seed}, step {step}: {sum} for {all}");
            assert!(!kept.is_empty() || sum == all, "seed {seed}, step {step}: {sum} for {all}");
            assert!(sum <= 2 * all.max(LEAST_ADDED) + LEAST_ADDED, "seed {seed}, step {step}: {sum}");
        }
    }
}
