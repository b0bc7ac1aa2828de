//! Clones in whose copy something else takes a place, against an ordered map, and what they cost.

use super::super::plain::{Plain, assert_same, new_store};
use crate::model::key::KeyRange;
use crate::{Batch, IndexId, Tuning};
use espalier_storage::Random;

/// Bytes of the device.
const DEVICE: u64 = 256 << 20;

fn clone(batch: &mut Batch, id: IndexId, plain: &mut Plain, (source, destination): (&[u8], &[u8])) {
    batch.clone_range(id, source, destination);
    let copies: Vec<_> = plain
        .range(source.to_vec()..)
        .take_while(|(key, _)| key.starts_with(source))
        .map(|(key, value)| ([destination, &key[source.len()..]].concat(), value.clone()))
        .collect();
    plain.retain(|key, _| !key.starts_with(destination));
    plain.extend(copies);
}

#[test]
fn what_is_replaced_inside_of_a_clone_is_not_seen_elsewhere() {
    const TOPS: [&str; 4] = ["a", "b", "c", "d"];
    const INNER: [&str; 5] = ["0", "1", "12", "1999", "3"];
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let tuning = Tuning { edge: *random.choose(&[1 << 10, 8 << 10]), ..Tuning::tiny() };
        let (store, id) = new_store(DEVICE, seed, tuning);
        let mut plain = Plain::new();
        // Some trees have nothing where others get something.
        let holes = random.one_in(2);
        for round in 0..30 {
            for _ in 0..random.below(40) {
                let (top, number) = (random.choose(&TOPS), random.below(400));
                if holes && *top != "d" && (100..200).contains(&number) {
                    continue;
                }
                let key = format!("{top}{number:04}").into_bytes();
                let mut value = vec![0; random.below(200) as usize];
                random.fill(&mut value);
                let mut batch = Batch::new();
                batch.insert(id, &key, value.clone());
                plain.insert(key, value);
                store.commit(batch).unwrap();
            }
            let mut batch = Batch::new();
            let (source, top) = (random.choose(&TOPS), random.choose(&TOPS));
            clone(&mut batch, id, &mut plain, (source.as_bytes(), top.as_bytes()));
            for _ in 0..random.between(0..=2) {
                let inner = [*top, "0", *random.choose(&INNER)].concat();
                let guest = random.choose(&["d", "a0", "b01", "c02", "x"]);
                clone(&mut batch, id, &mut plain, (guest.as_bytes(), inner.as_bytes()));
            }
            // Keys stay short however often something is cloned into itself.
            let long = KeyRange::new(b"a00000000".to_vec(), b"a00000001".to_vec());
            batch.delete_range(id, long.clone());
            plain.retain(|key, _| !long.contains(key));
            store.commit(batch).unwrap();
            if random.one_in(3) {
                store.checkpoint().unwrap();
            }
            assert_same(&store, id, &plain, &format!("seed {seed}, round {round}"));
            if plain.len() > 4000 {
                break;
            }
        }
    }
}

/// A tree with a hole, a guest elsewhere, and clones that get the guest in the place of the hole.
#[test]
fn a_guest_inside_of_clones_costs_each_of_them_little() {
    for (entries, guests, pending) in [(4000, 1000, 0), (4000, 20, 0), (400, 400, 300), (4000, 1000, 300)] {
        let tuning = Tuning { part: 256, leaf: 2 << 10, fanout: 4, edge: 64 << 10, ..Tuning::tiny() };
        let (store, id) = new_store(DEVICE, 1, tuning);
        let mut plain = Plain::new();
        let insert = |plain: &mut Plain, key: String, value: &[u8]| {
            let mut batch = Batch::new();
            batch.insert(id, key.as_bytes(), value.to_vec());
            plain.insert(key.into_bytes(), value.to_vec());
            store.commit(batch).unwrap();
        };
        for i in 0..guests {
            insert(&mut plain, format!("area/{i:06}"), b"a file with several names");
        }
        for i in 0..entries {
            insert(&mut plain, format!("base/{}{i:06}", if i < 10 { "0" } else { "2" }), b"a file");
        }
        store.checkpoint().unwrap();
        let nodes = || store.census().unwrap().nodes;
        let mut made = Vec::new();
        for round in 0..12 {
            if round == 2 {
                for i in 0..pending {
                    insert(&mut plain, format!("base/2{:06}", i * 7 % entries), b"a file that was changed");
                }
            }
            let before = nodes();
            let mut batch = Batch::new();
            let to = format!("clone{round}/");
            clone(&mut batch, id, &mut plain, (b"base/", to.as_bytes()));
            let to = format!("{to}1");
            clone(&mut batch, id, &mut plain, (b"area/", to.as_bytes()));
            store.commit(batch).unwrap();
            store.checkpoint().unwrap();
            made.push(nodes() as i64 - before as i64);
        }
        assert_same(&store, id, &plain, "clones");
        made.sort_unstable();
        let middle = made[made.len() / 2];
        assert!(middle <= 3, "{entries} entries, {guests} guests: headers made by each clone: {made:?}");
    }
}
