use super::*;
use crate::Lsn;
use crate::model::op::{Op, RangeOp};
use proptest::collection::vec;
use proptest::prelude::*;

const INDEXES: [IndexId; 2] = [IndexId { volume: 1, index: 0 }, IndexId { volume: 1, index: 1 }];

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(b'a'..=b'c', 0..4)
}

fn range() -> impl Strategy<Value = KeyRange> {
    let end = prop_oneof![key().prop_map(Some), Just(None)];
    (key(), end).prop_map(|(start, end)| KeyRange { start: start.into(), end: end.map(Into::into) })
}

fn op() -> impl Strategy<Value = LoggedOp> {
    let index = || (0..2usize).prop_map(|at| INDEXES[at]);
    prop_oneof![
        8 => (index(), key()).prop_map(|(index, key)| LoggedOp::Point { index, key: key.into(), op: Op::Delete }),
        2 => (index(), range()).prop_map(|(index, range)| LoggedOp::Range { index, range, op: RangeOp::Delete }),
        1 => Just(LoggedOp::Superseded),
    ]
}

/// Batches as they are accepted: numbered without gaps, with as many of their operations sorted as
/// are.
fn accepted(batches: &[Vec<LoggedOp>], worth: usize) -> (ApplyQueue, Vec<Backlog>) {
    let queue = ApplyQueue::behind(Msn(7), worth, 1 << 30);
    let mut msn = 7;
    let push = |(at, ops): (usize, &Vec<LoggedOp>)| {
        let batch = LoggedBatch { lsn: Lsn(at as u64 + 1), first_msn: Msn(msn + 1), ops: ops.clone() };
        msn += ops.len() as u64;
        queue.push(batch, sorted_prefix(ops), 10)
    };
    let backlog = batches.iter().enumerate().map(push).collect();
    (queue, backlog)
}

proptest! {
    #[test]
    fn what_waits_concerns_the_keys_that_it_changes(
        mut batches in vec((vec(op(), 0..12), any::<bool>()), 0..4),
        range in range(),
        at in 0..2usize,
    ) {
        for (ops, sort) in &mut batches {
            if *sort {
                ops.sort_by_key(|op| match op {
                    LoggedOp::Point { index, key, .. } => (0, Some((*index, key.clone()))),
                    _ => (1, None),
                });
            }
        }
        let batches: Vec<_> = batches.into_iter().map(|(ops, _)| ops).collect();
        let (queue, _) = accepted(&batches, 100);
        // By what each key of these lengths would see.
        let mut keys = vec![Vec::new()];
        for length in 0..4 {
            let longer: Vec<_> = keys.iter().filter(|key| key.len() == length).cloned().collect();
            keys.extend(longer.iter().flat_map(|key| b"abc".map(|next| [&key[..], &[next]].concat())));
        }
        let changes = |op: &LoggedOp, key: &[u8]| match op {
            LoggedOp::Point { index, key: of, .. } => *index == INDEXES[at] && **of == *key,
            LoggedOp::Range { index, range, .. } => *index == INDEXES[at] && range.contains(key),
            _ => false,
        };
        let seen = keys.iter().filter(|key| range.contains(key));
        let is_seen = seen.clone().any(|key| batches.iter().flatten().any(|op| changes(op, key)));
        let concerns = queue.concerns(INDEXES[at], &range);
        prop_assert!(concerns || !is_seen);
        // Ranges may meet between keys of these lengths; single keys do not.
        let has_ranges = batches.iter().flatten().any(|op| matches!(op, LoggedOp::Range { .. }));
        prop_assert!(has_ranges || concerns == is_seen);
    }

    #[test]
    fn batches_are_carried_out_in_their_order(
        batches in vec(vec(op(), 0..5), 0..8),
        worth in 0..9usize,
        range in range(),
    ) {
        let (queue, backlog) = accepted(&batches, worth);
        let mut operations = 0;
        for (ops, backlog) in batches.iter().zip(backlog) {
            operations += ops.len();
            let expected = match operations {
                _ if operations > LONG_QUEUE_FACTOR * worth => Backlog::Long,
                _ if operations >= worth => Backlog::Worthwhile,
                _ => Backlog::Short,
            };
            prop_assert_eq!(backlog, expected);
        }
        let mut msn = 7;
        for (at, ops) in batches.iter().enumerate() {
            prop_assert_eq!(queue.applied(), Msn(msn));
            let carrying = queue.next().unwrap();
            let batch = carrying.batch().clone();
            prop_assert_eq!((batch.lsn, batch.first_msn, &batch.ops), (Lsn(at as u64 + 1), Msn(msn + 1), ops));
            // Until memtables have it, a reader of what it changes has to wait, and only what is
            // before has been applied.
            let left = |range| (at..batches.len()).any(|at| batches[at].iter().any(|op| touches(op, INDEXES[0], range)));
            prop_assert_eq!(queue.concerns(INDEXES[0], &range), left(&range));
            prop_assert!(!queue.is_worthwhile());
            let (same, ending) = carrying.in_memtables();
            prop_assert_eq!(same, batch);
            let left = |range| (at + 1..batches.len()).any(|at| batches[at].iter().any(|op| touches(op, INDEXES[0], range)));
            prop_assert_eq!(queue.concerns(INDEXES[0], &range), left(&range));
            prop_assert!(!queue.is_worthwhile());
            // A reader that waits for it no more must see it, though the log may not have it yet.
            msn += ops.len() as u64;
            prop_assert_eq!(queue.applied(), Msn(msn));
            drop(ending);
        }
        prop_assert!(queue.next().is_none());
        prop_assert_eq!(queue.applied(), Msn(msn));
    }
}

mod in_a_store {
    use crate::model::key::KeyRange;
    use crate::{Batch, ErrorKind, FormatOptions, IndexId, MergeFunctions, OpenOptions, Store};
    use espalier_storage::{Device, MemoryDevice, SimulatedEnvironment};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    /// A store in which nothing is applied unless a reader looks.
    fn open(device: &Arc<dyn Device>) -> Arc<Store> {
        let merge = MergeFunctions::new().with(1, |_, _| panic!("a merge function that panics"));
        let options = OpenOptions { merge, ..OpenOptions::default() };
        Store::open(device.clone(), Arc::new(SimulatedEnvironment::new(1)), options).unwrap()
    }

    fn new() -> (Arc<dyn Device>, Arc<Store>, IndexId) {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20));
        let env = Arc::new(SimulatedEnvironment::new(1));
        Store::format(device.clone(), env, &FormatOptions::default()).unwrap();
        let store = open(&device);
        let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
        (device, store, index)
    }

    /// A checkpoint carries out what was accepted, and has to know that it deletes.
    #[test]
    fn a_checkpoint_says_what_it_deletes_itself() {
        let (device, store, index) = new();
        let mut batch = Batch::new();
        batch.insert(index, b"a", vec![1; 100]);
        store.commit(batch).unwrap();
        store.checkpoint().unwrap();
        assert!(!store.components.write.scheduler.collector.deleted.is_untidy());
        let mut batch = Batch::new();
        batch.delete_range(index, KeyRange::prefix(b"a"));
        store.commit(batch).unwrap();
        assert!(!store.components.write.scheduler.collector.deleted.is_untidy(), "it waits");
        store.close().unwrap();
        drop(store);
        assert!(open(&device).components.write.scheduler.collector.deleted.is_untidy());
    }

    /// What has happened in part is never logged, nor does anything that follows seem to be.
    #[test]
    fn a_merge_function_that_panics_makes_the_store_read_only() {
        let (device, store, index) = new();
        let mut batch = Batch::new();
        batch.insert(index, b"a", vec![1; 100]);
        store.sync(store.commit(batch).unwrap()).unwrap();
        let mut batch = Batch::new();
        batch.insert(index, b"0", vec![2; 100]);
        batch.update(index, b"a", 1, vec![0]);
        let half = store.commit(batch).unwrap();
        let looked = catch_unwind(AssertUnwindSafe(|| store.get(index, b"a").map(drop)));
        assert!(looked.is_err(), "it panics in the reader");
        let mut batch = Batch::new();
        batch.insert(index, b"b", vec![3; 100]);
        assert_eq!(store.commit(batch).unwrap_err().kind(), ErrorKind::ReadOnly);
        assert!(store.sync(half).is_err() && store.checkpoint().is_err());
        drop(store);
        let store = open(&device);
        assert_eq!(store.get(index, b"a").unwrap().unwrap(), vec![1; 100]);
        assert!(store.get(index, b"0").unwrap().is_none());
    }
}
