//! A memtable against plain maps, one for each moment that a snapshot holds.

use super::*;
use crate::message::compose::patched_buffer;
use crate::model::op::Update;
use crate::model::value::LARGE_VALUE;
use crate::model::value_reader::NoReader;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Plain = BTreeMap<Key, Vec<u8>>;

#[derive(Debug, Clone)]
enum Change {
    Insert(u8, Vec<u8>),
    Delete(u8),
    Patch(u8, u32, Vec<u8>),
    Append(u8, u8),
    DeleteRange(u8, u8),
    AppendRange(u8, u8, u8),
    Pin,
    Unpin,
}

fn change() -> impl Strategy<Value = Change> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..4);
    prop_oneof![
        (0u8..5, bytes()).prop_map(|(k, v)| Change::Insert(k, v)),
        (0u8..5).prop_map(Change::Delete),
        (0u8..5, 0u32..6, bytes()).prop_map(|(k, at, v)| Change::Patch(k, at, v)),
        (0u8..5, any::<u8>()).prop_map(|(k, v)| Change::Append(k, v)),
        (0u8..5, 0u8..6).prop_map(|(a, b)| Change::DeleteRange(a, b)),
        (0u8..5, 0u8..6, any::<u8>()).prop_map(|(a, b, v)| Change::AppendRange(a, b, v)),
        Just(Change::Pin),
        Just(Change::Unpin),
    ]
}

fn append(old: Option<&[u8]>, byte: &[u8]) -> Option<Vec<u8>> {
    // Seven bytes are too many: the value goes, so that merge functions which delete occur too.
    let new = [old.unwrap_or(&[]), byte].concat();
    (new.len() < 7).then_some(new)
}

fn update(byte: u8) -> Update {
    Update { function: 1, argument: vec![byte].into() }
}

fn range(a: u8, b: u8) -> KeyRange {
    KeyRange::new([a], [b])
}

/// Applies `change` to the table and to the plain map.
fn apply(
    table: &Memtable,
    plain: &mut Plain,
    change: &Change,
    msn: Msn,
    pinned: Msn,
    merge: &MergeFunctions,
) {
    let key = |k: u8| Key::from([k]);
    let point = |k: u8, op: Op| table.apply(&[k], msn, &op, pinned, merge);
    match change {
        Change::Insert(k, v) => {
            point(*k, Op::Insert(v.clone().into()));
            plain.insert(key(*k), v.clone());
        }
        Change::Delete(k) => {
            point(*k, Op::Delete);
            plain.remove(&key(*k));
        }
        Change::Patch(k, at, v) => {
            point(*k, Op::Patch { offset: *at, bytes: v.clone().into() });
            let old = plain.remove(&key(*k)).unwrap_or_default();
            plain.insert(key(*k), patched_buffer(old, *at, v));
        }
        Change::Append(k, v) => {
            point(*k, Op::Update(update(*v)));
            let old = plain.remove(&key(*k));
            plain.extend(append(old.as_deref(), &[*v]).map(|new| (key(*k), new)));
        }
        Change::DeleteRange(a, b) => {
            table.apply_range(&range(*a, *b), msn, &RangeOp::Delete, pinned);
            plain.retain(|k, _| !range(*a, *b).contains(k));
        }
        Change::AppendRange(a, b, v) => {
            table.apply_range(&range(*a, *b), msn, &RangeOp::Update(update(*v)), pinned);
            let inside = |k: &Key| range(*a, *b).contains(k);
            *plain = std::mem::take(plain)
                .into_iter()
                .filter_map(|(k, old)| {
                    if inside(&k) { append(Some(&old), &[*v]).map(|new| (k, new)) } else { Some((k, old)) }
                })
                .collect();
        }
        Change::Pin | Change::Unpin => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn every_snapshot_sees_its_moment(changes in prop::collection::vec(change(), 0..40)) {
        let merge = MergeFunctions::new().with(1, append);
        let table = Memtable::default();
        let mut plain = Plain::new();
        let mut snapshots: Vec<(Msn, Plain)> = Vec::new();
        for (n, change) in changes.iter().enumerate() {
            let now = Msn(n as u64 + 1);
            match change {
                // A snapshot sees everything before it.
                Change::Pin => snapshots.push((Msn(n as u64), plain.clone())),
                Change::Unpin => drop(snapshots.pop()),
                change => {
                    let pinned = snapshots.iter().map(|(msn, _)| *msn).max().unwrap_or_default();
                    apply(&table, &mut plain, change, now, pinned, &merge);
                }
            }
            let newest = (Msn(u64::MAX), plain.clone());
            for (upto, expected) in snapshots.iter().chain([&newest]) {
                for k in 0u8..6 {
                    let mut found = KeyMessages::default();
                    table.find(&[k], *upto, &mut found);
                    let value = found.value(&merge, &NoReader).unwrap().and_then(|v| v.in_memory());
                    prop_assert_eq!(value.as_deref(), expected.get(&Key::from([k])).map(|v| &v[..]));
                }
            }
        }
    }
}

#[test]
fn when_a_table_is_settled_everybody_gets_the_same_values() {
    let table = Memtable::default();
    let merge = MergeFunctions::new();
    let keys: Vec<Key> =
        (0..2 * FROZEN_KEYS_PER_TURN as u32 + 3).map(|n| Key::from(n.to_be_bytes())).collect();
    for (n, key) in keys.iter().enumerate() {
        let msn = |step: u64| Msn(10 * n as u64 + step);
        // One of two is inserted, one patched; one of five stays small.
        let half = LARGE_VALUE as u32 / if n % 5 == 4 { 8 } else { 2 };
        let first = vec![n as u8; half as usize];
        let first = match n % 2 {
            0 => Op::Insert(first.into()),
            _ => Op::Patch { offset: 3, bytes: first.into() },
        };
        table.apply(key, msn(1), &first, Msn(0), &merge);
        let more = Op::Patch { offset: half + 3 * (n as u32 % 2), bytes: vec![7; half as usize].into() };
        table.apply(key, msn(2), &more, Msn(0), &merge);
    }
    let large = |key: &Key| {
        let versions =
            table.inner.read().points[&**key].all().iter().map(|(_, v)| v.to_op()).collect::<Vec<_>>();
        versions.iter().flat_map(|op| op.large_values().to_vec()).collect::<Vec<_>>()
    };
    let resident = Arc::new(AtomicUsize::new(0));
    table.freeze_values(&resident);
    let mut bytes = 0;
    for (n, key) in keys.iter().enumerate() {
        let (one, other) = (large(key), large(key));
        assert_eq!(one.len(), usize::from(n % 5 != 4), "{n}");
        assert!(one.iter().zip(&other).all(|(one, other)| Arc::ptr_eq(one, other)), "{n}");
        bytes += one.iter().map(|value| value.len()).sum::<usize>();
    }
    assert_eq!(resident.load(Relaxed), bytes);
}
