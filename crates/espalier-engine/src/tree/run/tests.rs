use super::*;
use crate::model::ids::Msn;
use crate::model::op::Op;
use crate::model::value::Value;
use crate::pieces::PartBuilder;
use crate::tree::Trees;
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

#[test]
fn a_run_through_a_view_shows_what_each_of_its_parts_does() {
    let (device, env) = (Arc::new(MemoryDevice::new(64 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    let trees = &store.components.trees;
    let mut random = Random::new(5);
    let mut wholly = 0;
    for _ in 0..5000 {
        let keys: BTreeSet<Key> = (0..random.below(30)).map(|_| key(&mut random)).collect();
        let keys: Vec<Key> = keys.into_iter().collect();
        let mut run = Run::default();
        for keys in keys.chunks(random.between(1..=4) as usize) {
            let mut builder = PartBuilder::new();
            keys.iter().for_each(|key| builder.push(key, Msn(1), &Op::Insert(Value::from(vec![1]))));
            run.parts.push(ViewedPart::whole(PartSlot::new(&trees.memory, builder.finish())));
        }
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
