use super::*;
use crate::model::ids::Msn;
use crate::model::op::{Op, RangeOp};
use crate::model::value::Value;
use crate::pieces::PartBuilder;
use crate::tree::Trees;
use crate::tree::node::{Body, Node, NodeSlot, Root};
use crate::tree::run_cuts::runs_clear_of;
use crate::tree::run_source::RunSource;
use crate::tree::source::Source;
use crate::tree::write::{header_blocks, header_bytes};
use crate::{FormatOptions, OpenOptions, Store};
use espalier_storage::{MemoryDevice, Random, SimulatedEnvironment};
use std::collections::BTreeSet;

fn key(random: &mut Random) -> Key {
    (0..random.below(4)).map(|_| *random.choose(&[0u8, 1, 0xff])).collect()
}

fn view(random: &mut Random) -> View {
    let range = KeyRange { start: key(random), end: (!random.one_in(3)).then(|| key(random)) };
    match random.below(3) {
        0 => View::lifted(&key(random)).restrict(&range),
        1 => View::identity().restrict(&range),
        _ => View::translated(&key(random), &key(random)).restrict(&range),
    }
}

/// The keys that a part shows.
fn shown(part: &ViewedPart, trees: &Trees) -> Vec<Key> {
    let loaded = part.slot.load(trees).unwrap();
    let mut cursor = loaded.cursor();
    cursor.first();
    let mut keys = Vec::new();
    while cursor.valid() {
        keys.extend(part.view.outward(cursor.key()));
        cursor.next();
    }
    keys
}

/// A run of parts with a few keys each.
fn run(random: &mut Random, trees: &Trees) -> Run {
    let keys: BTreeSet<Key> = (0..random.below(30)).map(|_| key(random)).collect();
    let keys: Vec<Key> = keys.into_iter().collect();
    let mut run = Run::default();
    for keys in keys.chunks(random.between(1..=4) as usize) {
        let mut builder = PartBuilder::new();
        keys.iter().for_each(|key| builder.push(key, Msn(1), &Op::Insert(Value::from(vec![1]))).unwrap());
        run.parts.push(Arc::new(ViewedPart::whole(PartSlot::new(&trees.memory, builder.finish()))));
    }
    run
}

#[test]
fn a_run_through_a_view_shows_what_each_of_its_parts_does() {
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    let trees = &store.components.trees;
    let mut random = Random::new(5);
    let mut wholly = 0;
    for _ in 0..5000 {
        let mut run = run(&mut random, trees);
        for _ in 0..3 {
            let view = view(&mut random);
            let before: Vec<Key> = run.parts.iter().flat_map(|part| shown(part, trees)).collect();
            let expected: Vec<Key> = before.iter().filter_map(|key| view.outward(key)).collect();
            for part in &run.parts {
                let composed = ViewedPart::viewed(part.slot.clone(), view.compose(&part.view));
                if let Some(short) = part.wholly_through(&view) {
                    let long = composed.unwrap();
                    assert_eq!((&short.view, &short.first), (&long.view, &long.first), "{view:?}");
                    assert_eq!(short.last, long.last, "{view:?}");
                    wholly += 1;
                }
            }
            run = run.through(&view);
            let after: Vec<Key> = run.parts.iter().flat_map(|part| shown(part, trees)).collect();
            assert_eq!(after, expected, "{view:?}");
            for part in &run.parts {
                for key in shown(part, trees) {
                    assert!(part.first <= key && part.last.as_ref().is_none_or(|last| key <= *last));
                }
            }
        }
    }
    assert!(wholly > 1000, "{wholly}");
}

#[test]
fn what_no_border_crosses_is_shared_and_all_else_is_cut() {
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    let trees = &store.components.trees;
    let mut random = Random::new(6);
    let (mut within_shared, mut without_shared) = (0, 0);
    for _ in 0..5000 {
        let mut run = run(&mut random, trees);
        // Bounds that say less than what is there.
        run = run.through(&view(&mut random));
        for _ in 0..random.below(3) {
            let range =
                KeyRange { start: key(&mut random), end: (!random.one_in(3)).then(|| key(&mut random)) };
            run.ranges.insert(&range, Msn(2), &RangeOp::Delete, false);
        }
        let run = Arc::new(run);
        let range = KeyRange { start: key(&mut random), end: (!random.one_in(3)).then(|| key(&mut random)) };
        if range.is_empty() {
            continue;
        }
        let all = |runs: &[Arc<Run>]| -> (Vec<Key>, RangeMessages) {
            let keys = runs.iter().flat_map(|run| &run.parts).flat_map(|part| shown(part, trees)).collect();
            let mut ranges = RangeMessages::default();
            runs.iter().for_each(|run| ranges.merge_older(&run.ranges));
            (keys, ranges)
        };
        let cut = |run: Run| Some(Arc::new(run)).filter(|run| !run.is_empty());
        let within = runs_within(std::slice::from_ref(&run), &range);
        let expected = cut(run.through(&View::identity().restrict(&range)));
        assert_eq!(all(&within), all(expected.as_slice()), "{range:?}");
        within_shared += u32::from(within.iter().any(|within| Arc::ptr_eq(within, &run)));
        let clear = runs_clear_of(trees, std::slice::from_ref(&run), &range);
        let expected = cut(run.without(&range));
        assert_eq!(all(&clear), all(expected.as_slice()), "{range:?}");
        let is_same = clear.iter().any(|clear| Arc::ptr_eq(clear, &run));
        let is_clear = all(&within) == (Vec::new(), RangeMessages::default());
        assert_eq!(is_same, is_clear && !run.is_empty(), "{range:?}");
        let without = runs_without(std::slice::from_ref(&run), &range);
        assert_eq!(all(&without), all(expected.as_slice()), "{range:?}");
        if without.iter().any(|without| Arc::ptr_eq(without, &run)) {
            without_shared += 1;
            // What stays as it is has no bounds that reach into the range: else a caller that takes
            // out range after range of what its bounds tell would come to no end.
            let bounds = |part: &Arc<ViewedPart>| (part.first.clone(), part.last.clone());
            let as_cut: Vec<_> = expected.iter().flat_map(|run| &run.parts).map(bounds).collect();
            assert_eq!(run.parts.iter().map(bounds).collect::<Vec<_>>(), as_cut, "{range:?}");
        }
    }
    assert!(within_shared > 300 && without_shared > 300, "{within_shared}, {without_shared}");
}

/// What a header takes of a run, and what the run weighs, part by part.
fn counted(run: &Run) -> (u64, u64, usize) {
    let fresh = Run::new(run.parts.clone(), run.ranges.clone());
    (fresh.weight(), fresh.message_bytes(), header_bytes(&node_of(&Arc::new(fresh))))
}

fn node_of(run: &Arc<Run>) -> Node {
    Node { height: 0, body: Body::Leaf(run.clone()) }
}

#[test]
fn sums_of_a_run_equal_what_its_parts_come_to_before_and_after_they_are_stored() {
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    let trees = &store.components.trees;
    let mut random = Random::new(7);
    let mut less = 0;
    for _ in 0..300 {
        let mut run = run(&mut random, trees);
        let values = (0..random.below(3)).map(|n| (vec![0xfe, n as u8], vec![1; 20_000]));
        let mut builder = PartBuilder::new();
        values.for_each(|(key, value)| builder.push(&key, Msn(1), &Op::Insert(Value::from(value))).unwrap());
        if !builder.is_empty() {
            run.parts.push(Arc::new(ViewedPart::whole(PartSlot::new(&trees.memory, builder.finish()))));
        }
        let run = Arc::new(run);
        let asked = |run: &Arc<Run>| (run.weight(), run.message_bytes(), header_bytes(&node_of(run)));
        let before = asked(&run);
        assert_eq!(before, counted(&run));
        let root = Root { height: 0, slot: Some(NodeSlot::new(node_of(&run))) };
        assert_eq!(trees.uncounted_blocks(&root), trees.unwritten_together(std::slice::from_ref(&root)));
        assert_eq!(trees.counted_blocks(), 0);
        assert_eq!(trees.new_unwritten_blocks(&root), trees.unwritten_together(std::slice::from_ref(&root)));
        assert_eq!(trees.counted_blocks(), trees.unwritten_together(std::slice::from_ref(&root)));
        // Another header with the same run takes its own room, and no more.
        let other = Root { height: 0, slot: Some(NodeSlot::new(node_of(&run))) };
        assert_eq!(trees.uncounted_blocks(&other), header_blocks(&node_of(&run)));
        let slots: Vec<_> = run.parts.iter().map(|part| part.slot.clone()).collect();
        trees.store_parts(&slots).unwrap();
        // Until it is forgotten, it is at least what it takes.
        let (kept, now) = (asked(&run), counted(&run));
        assert!(kept == before && kept.2 >= now.2 && (kept.0, kept.1) == (now.0, now.1));
        trees.write(root.slot.as_ref().unwrap(), &mut Vec::new()).unwrap();
        assert_eq!(trees.counted_blocks(), 0);
        assert_eq!(asked(&run), now);
        assert_eq!(trees.unwritten_together(&[root, other]), header_blocks(&node_of(&run)));
        less += u32::from(kept.2 > now.2);
        // A copy may become another run.
        let mut longer = (*run).clone();
        longer.append(&Run::of_parts(vec![run.parts.first().cloned().unwrap_or_else(|| part(trees))]));
        assert_eq!(asked(&Arc::new(longer.clone())), counted(&longer));
    }
    assert!(less > 50, "{less}");
}

fn part(trees: &Trees) -> Arc<ViewedPart> {
    let mut builder = PartBuilder::new();
    builder.push(b"k", Msn(1), &Op::Delete).unwrap();
    Arc::new(ViewedPart::whole(PartSlot::new(&trees.memory, builder.finish())))
}

#[test]
fn a_reader_of_a_range_finds_all_range_messages_that_cover_its_keys() {
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    let trees = &store.components.trees;
    let mut random = Random::new(8);
    let (mut covered, mut dropped) = (0, 0);
    for _ in 0..5000 {
        let mut run = run(&mut random, trees);
        for n in 0..random.below(4) {
            let range =
                KeyRange { start: key(&mut random), end: (!random.one_in(3)).then(|| key(&mut random)) };
            run.ranges.insert(&range, Msn(2 + n), &RangeOp::Delete, true);
        }
        let (run, view) = (Arc::new(run), view(&mut random));
        let range = KeyRange { start: key(&mut random), end: (!random.one_in(3)).then(|| key(&mut random)) };
        let all = RunSource::new(trees.clone(), run.clone(), view.clone());
        let mut within = RunSource::new(trees.clone(), run, view);
        within.narrow(&range);
        dropped += u32::from(all.has_ranges() && !within.has_ranges());
        for _ in 0..10 {
            let key = key(&mut random);
            if range.contains(&key) {
                let expected = all.ranges(&key);
                let found = if within.has_ranges() { within.ranges(&key) } else { Vec::new() };
                assert_eq!(found, expected, "{key:?} in {range:?}");
                covered += u32::from(!expected.is_empty());
                // All that is told to be deleted is.
                if let Some(deleted) = all.deleted_around(&key) {
                    assert!(!expected.is_empty() && deleted.contains(&key), "{key:?}");
                    let other = self::key(&mut random);
                    assert!(!deleted.contains(&other) || !all.ranges(&other).is_empty(), "{other:?}");
                } else {
                    assert!(expected.is_empty(), "{key:?}");
                }
            }
        }
    }
    assert!(covered > 1000 && dropped > 1000, "{covered}, {dropped}");
}
