use super::*;
use crate::Lsn;
use crate::op::{Op, RangeOp};
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

/// Batches as they are accepted: numbered without gaps, with as many of their operations sorted as are.
fn accepted(batches: &[Vec<LoggedOp>], worth: usize) -> (Accepted, Vec<Backlog>) {
    let queue = Accepted::behind(Msn(7), worth);
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
    fn batches_are_carried_out_in_their_order(batches in vec(vec(op(), 0..5), 0..8), worth in 0..9usize) {
        let (queue, backlog) = accepted(&batches, worth);
        let mut operations = 0;
        for (ops, backlog) in batches.iter().zip(backlog) {
            operations += ops.len();
            let expected = match operations {
                _ if operations > LONG * worth => Backlog::Long,
                _ if operations >= worth => Backlog::Worthwhile,
                _ => Backlog::Short,
            };
            prop_assert_eq!(backlog, expected);
        }
        let mut msn = 7;
        for (at, ops) in batches.iter().enumerate() {
            prop_assert_eq!(queue.carried(), Msn(msn));
            let (batch, carrying) = queue.next().unwrap();
            prop_assert_eq!((batch.lsn, batch.first_msn, &batch.ops), (Lsn(at as u64 + 1), Msn(msn + 1), ops));
            // Until it has been carried out, it may concern anything, and only what is before has been.
            prop_assert!(queue.concerns(INDEXES[0], &KeyRange::through(b"x", b"x")));
            prop_assert!(!queue.is_worthwhile());
            prop_assert_eq!(queue.carried(), Msn(msn));
            drop(carrying);
            msn += ops.len() as u64;
        }
        prop_assert!(queue.next().is_none());
        prop_assert_eq!(queue.carried(), Msn(msn));
    }
}
