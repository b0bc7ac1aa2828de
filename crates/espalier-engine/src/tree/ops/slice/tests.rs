//! Slices against an ordered map, and what one costs.

use super::super::plain::{self, Plain, assert_same};
use crate::model::key::KeyRange;
use crate::{Batch, IndexId, Store, Tuning};
use espalier_storage::Random;
use std::sync::Arc;

/// What is absorbed stays on the edges of the root, for no edge is too heavy.
fn new_store(seed: u64, tuning: Tuning) -> (Arc<Store>, IndexId) {
    plain::new_store(64 << 20, seed, tuning)
}

/// Moves one slice down; what it costs in blocks, or nothing if there was none. `range` asks as
/// tidying does.
fn slice(store: &Store, id: IndexId, range: Option<&KeyRange>) -> Option<u64> {
    let components = &store.components;
    components.accounting.assume_low();
    let index = components.indexes.read()[&id].clone();
    let _structure = index.structure.lock();
    let root = index.version().root.clone();
    let sliced = match range {
        None => components.accounting.edit().flush_slice_for_space(&root).unwrap()?,
        Some(range) => components.accounting.edit().flush_range_slice(&root, range).unwrap()?.0,
    };
    let blocks =
        |root: &super::Root| root.slot.as_ref().map_or(0, |slot| components.trees.unwritten_blocks(slot));
    let more = blocks(&sliced).saturating_sub(blocks(&root));
    index.publish_root(&components.space, sliced, |_| {});
    Some(more)
}

fn at(n: u64) -> Vec<u8> {
    format!("{}/{n:04}", ["a", "b", "c"][n as usize % 3]).into_bytes()
}

fn change(store: &Store, id: IndexId, random: &mut Random, plain: &mut Plain) {
    let mut batch = Batch::new();
    for _ in 0..random.between(1..=12) {
        let key = at(random.below(150));
        match random.below(20) {
            0..12 => {
                let large = random.one_in(6);
                let mut value = vec![0; random.below(if large { 12_000 } else { 90 }) as usize];
                random.fill(&mut value);
                batch.insert(id, &key, value.clone());
                plain.insert(key, value);
            }
            12..15 => {
                batch.delete(id, &key);
                plain.remove(&key);
            }
            15..17 => {
                let offset = random.below(60) as u32;
                batch.patch(id, &key, offset, vec![7; 9]);
                let value = plain.entry(key).or_default();
                value.resize(value.len().max(offset as usize + 9), 0);
                value[offset as usize..][..9].fill(7);
            }
            17..19 => {
                let end = [&key[..], b"9"].concat();
                let start = at(random.below(150)).min(key);
                plain.retain(|key, _| *key < start || *key >= end);
                batch.delete_range(id, KeyRange::new(start, end));
            }
            _ => {
                let (from, to) = (&b"a/"[..], &b"c/"[..]);
                batch.clone_range(id, from, to);
                let copies: Vec<_> = plain.range(from.to_vec()..b"a0".to_vec()).collect();
                let copies: Vec<_> =
                    copies.into_iter().map(|(k, v)| ([to, &k[2..]].concat(), v.clone())).collect();
                plain.retain(|key, _| !key.starts_with(to));
                plain.extend(copies);
            }
        }
    }
    store.commit(batch).unwrap();
}

#[test]
fn slices_change_nothing_that_can_be_seen() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let edge = *random.choose(&[1 << 10, 8 << 10, 1 << 20]);
        let (store, id) = new_store(seed, Tuning { edge, ..Tuning::tiny() });
        let mut plain = Plain::new();
        let mut moved = 0;
        for round in 0..25 {
            for _ in 0..random.between(1..=20) {
                change(&store, id, &mut random, &mut plain);
            }
            if random.one_in(2) {
                store.checkpoint().unwrap();
            }
            let range = KeyRange { start: at(random.below(150)).into(), end: None };
            for _ in 0..random.between(1..=6) {
                let range = random.one_in(2).then_some(&range);
                moved += u64::from(slice(&store, id, range).is_some());
            }
            assert_same(&store, id, &plain, &format!("seed {seed}, round {round}"));
        }
        assert!(moved > 20, "seed {seed}: {moved} slices");
        // There is an end to it.
        let more = (0..10_000).take_while(|_| slice(&store, id, None).is_some()).count();
        assert!(more < 10_000, "seed {seed}: {more} slices and no end");
        assert_same(&store, id, &plain, &format!("seed {seed}, all of it"));
    }
}

#[test]
fn a_slice_costs_little_however_much_waits() {
    let tuning =
        Tuning { memtable: 64 << 10, edge: 64 << 20, leaf: 512 << 10, fanout: 8, ..Tuning::default() };
    let (store, id) = new_store(1, tuning);
    let mut random = Random::new(1);
    let mut plain = Plain::new();
    for round in 0..9000 {
        let mut batch = Batch::new();
        for _ in 0..10 {
            // First everywhere, so that there are some leaves, then for one of them.
            let number = random.below(if round < 3000 { 40_000 } else { 2000 });
            let key = format!("{number:05}{:03}", random.below(100)).into_bytes();
            let mut value = vec![0; 200];
            random.fill(&mut value);
            batch.insert(id, &key, value.clone());
            plain.insert(key, value);
        }
        store.commit(batch).unwrap();
        while round % 50 == 0 && store.step().unwrap() {}
    }
    store.checkpoint().unwrap();
    let root = store.components.indexes.read()[&id].version().root.clone();
    store.components.accounting.assume_low();
    let whole = store.components.accounting.edit().flush_for_space(&root).unwrap().unwrap();
    let blocks = |root: &super::Root| {
        root.slot.as_ref().map_or(0, |slot| store.components.trees.unwritten_blocks(slot))
    };
    assert!(blocks(&whole) > 192, "an edge takes {} blocks, too few to say anything", blocks(&whole));
    drop(whole);
    let mut count = 0;
    while let Some(more) = slice(&store, id, None) {
        // Half of the smallest pool are 192.
        assert!(more < 128, "slice {count} takes {more} blocks");
        store.checkpoint().unwrap();
        count += 1;
    }
    assert!(count > 20, "{count} slices");
    assert_same(&store, id, &plain, "in the end");
}
