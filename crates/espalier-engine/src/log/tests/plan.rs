//! What is dropped from a group must not be missed.

use super::super::plan::{Plan, plan};
use super::model::{Maps, Workload, apply};
use super::*;
use crate::memtable::Memtable;
use crate::{MergeFunctions, RangeOp};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Memtables that have taken some batches; they know what these came to.
#[derive(Default)]
struct Tables(BTreeMap<IndexId, Memtable>);

impl Tables {
    fn take(&mut self, batch: &LoggedBatch) {
        let none = MergeFunctions::new();
        for (n, op) in batch.ops.iter().enumerate() {
            let msn = Msn(batch.first_msn.0 + n as u64);
            match op {
                LoggedOp::Point { index, key, op } => {
                    self.0.entry(*index).or_default().apply(key, msn, op, Msn(0), &none);
                }
                LoggedOp::Range { index, range, op } => {
                    self.0.entry(*index).or_default().apply_range(range, msn, op, Msn(0));
                }
                // What is below a clone is not looked at here.
                LoggedOp::Clone { index, .. } => drop(self.0.remove(index)),
                LoggedOp::Superseded => {}
            }
        }
    }
}

impl Binder for Tables {
    fn bind(&self, _: &[Arc<LargeValue>]) -> Result<()> {
        unreachable!("nothing is written here")
    }

    fn outcome(&self, index: IndexId, key: &[u8], msn: Msn) -> Option<Op> {
        self.0.get(&index)?.outcome(key, msn, &Arc::default())
    }

    fn location(&self, _: PieceId) -> Result<Location> {
        unreachable!("nothing is written here")
    }

    fn adopt(&self, _: PieceId, _: Location) -> Result<Arc<PieceHandle>> {
        unreachable!("nothing is read here")
    }
}

/// What the operations from number `from` on make of `start`.
fn outcome(batches: &[LoggedBatch], plan: &Plan, from: usize, start: &Maps) -> Maps {
    let mut maps = start.clone();
    for op in plan.ops(batches).skip(from).flatten() {
        apply(&mut maps, op, &|value| value.in_memory().unwrap().to_vec());
    }
    maps
}

fn everything(batches: &[LoggedBatch]) -> Plan {
    let ops = batches.iter().map(|batch| batch.ops.len()).sum();
    Plan { dead: vec![false; ops], grown: Default::default() }
}

#[test]
fn the_net_effect_is_the_same() {
    let (mut dropped, mut grown) = (0, 0);
    for seed in 0..2000 {
        let mut work = Workload::new(seed);
        work.longest = 5000;
        let mut start = Maps::new();
        let mut tables = Tables::default();
        let before: Vec<_> = (1..10).map(|lsn| work.batch(lsn)).collect();
        before.iter().for_each(|batch| tables.take(batch));
        for op in before.iter().flat_map(|batch| &batch.ops) {
            apply(&mut start, op, &|value| value.in_memory().unwrap().to_vec());
        }
        let batches: Vec<_> = (10..22).map(|lsn| work.batch(lsn)).collect();
        batches.iter().for_each(|batch| tables.take(batch));
        // By the time that the group is written there may be more.
        (22..work.random.between(22..=24)).for_each(|lsn| tables.take(&work.batch(lsn)));
        let plan = plan(&batches, &tables);
        let all = everything(&batches);
        assert_eq!(outcome(&batches, &plan, 0, &start), outcome(&batches, &all, 0, &start), "seed {seed}");
        dropped += plan.dead.iter().filter(|dead| **dead).count();
        grown += plan.grown.len();

        // A checkpoint may cover the first of the batches; replaying the rest on top must not
        // differ.
        let cut = work.random.below(12) as usize;
        let covered: usize = batches[..cut].iter().map(|batch| batch.ops.len()).sum();
        let maps = outcome(&batches[..cut], &everything(&batches[..cut]), 0, &start);
        let maps = outcome(&batches, &plan, covered, &maps);
        assert_eq!(maps, outcome(&batches, &all, 0, &start), "seed {seed}, cut {cut}");
    }
    assert!(dropped > 2000, "only {dropped} operations were dropped");
    assert!(grown > 100, "only {grown} values were written whole");
}

/// A value written in three pieces is one large value, which the memtable has as well.
#[test]
fn what_was_written_piece_by_piece_is_written_whole() {
    let mut tables = Tables::default();
    let piece = |n: u32| LoggedOp::Point {
        index: INDEX,
        key: b"k"[..].into(),
        op: Op::Patch { offset: n * 3000, bytes: Value::from(vec![n as u8; 3000]) },
    };
    let batches =
        [batch(1, vec![insert("k", vec![0; 3000])]), batch(2, vec![piece(1)]), batch(3, vec![piece(2)])];
    batches.iter().for_each(|batch| tables.take(batch));
    let plan = plan(&batches, &tables);
    let ops: Vec<_> = plan.ops(&batches).collect();
    let [None, None, Some(LoggedOp::Point { op: Op::Insert(value), .. })] = &ops[..] else {
        panic!("{ops:?}")
    };
    assert_eq!(value.len(), 9000);
    let Some(Op::Insert(again)) = tables.outcome(INDEX, b"k", batches[2].first_msn) else {
        panic!("the memtable has forgotten it")
    };
    assert!(Arc::ptr_eq(value.large().unwrap(), again.large().unwrap()));
}

fn patch(key: &str, offset: u32, bytes: &'static [u8]) -> LoggedOp {
    LoggedOp::Point {
        index: INDEX,
        key: key.as_bytes().into(),
        op: Op::Patch { offset, bytes: Value::from(bytes) },
    }
}

#[test]
fn what_is_dropped() {
    let range = |op| LoggedOp::Range { index: INDEX, range: KeyRange::prefix(b"a"), op };
    let touch = RangeOp::Update(crate::Update { function: 0, argument: Bytes::new() });
    let cases = [
        (vec![insert("a", &b"1"[..]), insert("a", &b"2"[..]), delete("b")], vec![true, false, false]),
        (
            vec![insert("ab", &b"1"[..]), insert("b", &b""[..]), range(RangeOp::Delete)],
            vec![true, false, false],
        ),
        (vec![patch("a", 2, b"xx"), patch("a", 9, b"y"), patch("a", 0, b"xxxx")], vec![true, false, false]),
        (vec![patch("a", 2, b"xx"), range(touch), patch("a", 0, b"xxxx")], vec![false, false, false]),
        (vec![insert("a", &b"1"[..]), patch("a", 0, b"22")], vec![false, false]),
    ];
    for (ops, expected) in cases {
        let batches = [batch(1, ops.clone())];
        assert_eq!(plan(&batches, &Tables::default()).dead, expected, "{ops:?}");
    }
}
