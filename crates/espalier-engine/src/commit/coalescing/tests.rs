use super::*;
use crate::model::batch::bytes_in;
use crate::model::key::KeyRange;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

const INDEXES: [IndexId; 2] = [IndexId { volume: 1, index: 0 }, IndexId { volume: 1, index: 1 }];

type Map = BTreeMap<(IndexId, Key), Vec<u8>>;

/// What operations make of a map: patches overwrite one byte.
fn apply(map: &mut Map, ops: &[LoggedOp]) {
    for op in ops {
        match op {
            LoggedOp::Point { index, key, op } => {
                let at = (*index, key.clone());
                match op {
                    Op::Insert(value) => drop(map.insert(at, value.in_memory().unwrap().to_vec())),
                    Op::Delete => drop(map.remove(&at)),
                    Op::Patch { offset, bytes } => {
                        let value = map.entry(at).or_default();
                        let end = *offset as usize + bytes.len();
                        value.resize(value.len().max(end), 0);
                        value[*offset as usize..end].copy_from_slice(&bytes.in_memory().unwrap());
                    }
                    Op::Update(_) => unreachable!("no test updates"),
                }
            }
            LoggedOp::Range { index, range, .. } => {
                map.retain(|(of, key), _| of != index || !range.contains(key))
            }
            LoggedOp::Clone { index, source, destination } => {
                let found: Vec<_> = map
                    .iter()
                    .filter_map(|((of, key), value)| {
                        let rest = key.strip_prefix(&**source).filter(|_| of == index)?;
                        Some(((*index, [&**destination, rest].concat().into()), value.clone()))
                    })
                    .collect();
                map.retain(|(of, key), _| of != index || !key.starts_with(destination));
                map.extend(found);
            }
            LoggedOp::Superseded => {}
        }
    }
}

/// Kind, index, key, another key, value, offset.
type Choice = (u32, usize, Vec<u8>, Vec<u8>, Vec<u8>, u32);

fn choice() -> impl Strategy<Value = Choice> {
    let key = || vec(b'a'..=b'c', 1..4);
    (0..24u32, 0..2usize, key(), key(), vec(any::<u8>(), 0..4), 0..4u32)
}

fn batch_of(choices: &[Choice], map: &Map) -> Batch {
    let mut batch = Batch::new();
    for (kind, index, key, other, value, offset) in choices {
        let (index, value) = (INDEXES[*index], value.clone());
        let mut now = map.clone();
        apply(&mut now, &batch.ops);
        match kind {
            0..8 if !now.contains_key(&(index, key[..].into())) => batch.insert_new(index, key, value),
            0..8 => batch.insert(index, key, value),
            8..14 => batch.delete(index, key),
            14..20 => batch.patch(index, key, *offset, value),
            20..22 => batch.delete_range(index, KeyRange::prefix(key)),
            22 => batch.clone_range(index, key, other),
            _ => batch.move_range(index, &[b"a", &key[..]].concat(), &[b"b", &key[..]].concat()),
        }
    }
    batch
}

proptest! {
    #[test]
    fn what_joins_is_what_would_have_happened_one_by_one(
        steps in vec((vec(choice(), 0..5), 0..12u32), 1..40),
    ) {
        let (mut one_by_one, mut together) = (Map::new(), Map::new());
        let mut open = CoalescedBatch::default();
        for (choices, close) in steps {
            let batch = batch_of(&choices, &one_by_one);
            apply(&mut one_by_one, &batch.ops);
            if close > 0 && open.takes(&batch, 10, 100) {
                open.join(batch, 10);
            } else {
                let closed = open.close_with(batch).0;
                apply(&mut together, &closed.ops);
                prop_assert!(sorted_prefix(&closed.ops) >= closed.sorted);
                prop_assert_eq!(&together, &one_by_one);
                prop_assert!(open.is_empty());
            }
        }
        apply(&mut together, &open.close().ops);
        prop_assert_eq!(together, one_by_one);
    }
}

#[test]
fn nothing_is_left_of_what_came_and_went() {
    let index = INDEXES[0];
    let mut open = CoalescedBatch::default();
    let mut batch = Batch::new();
    batch.insert_new(index, b"record", vec![1]);
    batch.delete(index, b"dir/file");
    batch.insert(index, b"dir/other", vec![2]);
    let joined = batch.bytes() as u64;
    assert_eq!(open.join(batch, 10), 0);
    let mut batch = Batch::new();
    batch.delete_range(index, KeyRange::prefix(b"dir/"));
    batch.delete(index, b"record");
    let bytes = batch.bytes() as u64;
    let (ClosedBatch { ops, sorted }, wiped) = open.close_with(batch);
    assert_eq!(sorted, 0);
    let range = KeyRange::prefix(b"dir/");
    let left = LoggedOp::Range { index, range, op: RangeOp::Delete };
    assert_eq!(joined + bytes - wiped, bytes_in(&left) as u64);
    assert_eq!(ops, [left]);
}

#[test]
fn what_was_there_before_is_deleted() {
    let index = INDEXES[0];
    let mut open = CoalescedBatch::default();
    let mut batch = Batch::new();
    batch.insert(index, b"a", vec![1]);
    batch.delete(index, b"a");
    open.join(batch, 10);
    assert_eq!(open.close().ops, [LoggedOp::Point { index, key: b"a"[..].into(), op: Op::Delete }]);
    assert!(open.close().ops.is_empty());
}
