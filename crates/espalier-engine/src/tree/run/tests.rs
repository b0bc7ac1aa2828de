use super::*;
use crate::model::ids::Msn;
use crate::model::op::{Op, RangeOp};
use crate::model::value::Value;
use crate::pieces::PartBuilder;
use crate::tree::Trees;
use crate::tree::run_cuts::runs_clear_of;
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
        keys.iter().for_each(|key| builder.push(key, Msn(1), &Op::Insert(Value::from(vec![1]))));
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
