//! What is dropped from a group must not be missed.

use super::super::plan::superseded;
use super::model::{Maps, Workload, apply};
use super::*;
use crate::RangeOp;
use bytes::Bytes;

fn outcome(batches: &[LoggedBatch], dead: &[bool], start: &Maps) -> Maps {
    let mut maps = start.clone();
    let ops = batches.iter().flat_map(|batch| &batch.ops);
    for (op, _) in ops.zip(dead).filter(|(_, dead)| !**dead) {
        apply(&mut maps, op, &|value| value.in_memory().unwrap().to_vec());
    }
    maps
}

#[test]
fn the_net_effect_is_the_same() {
    let mut dropped = 0;
    for seed in 0..2000 {
        let mut work = Workload::new(seed);
        work.longest = 5000;
        let mut start = Maps::new();
        for _ in 0..20 {
            apply(&mut start, &work.op(), &|value| value.in_memory().unwrap().to_vec());
        }
        let batches: Vec<_> = (1..12).map(|lsn| work.batch(lsn)).collect();
        let dead = superseded(&batches);
        let all = vec![false; dead.len()];
        assert_eq!(outcome(&batches, &dead, &start), outcome(&batches, &all, &start), "seed {seed}");
        dropped += dead.iter().filter(|dead| **dead).count();

        // A checkpoint may cover the first of the batches; replaying the rest on top must not differ.
        let cut = work.random.below(12) as usize;
        let covered: usize = batches[..cut.min(11)].iter().map(|batch| batch.ops.len()).sum();
        let mut maps = outcome(&batches[..cut.min(11)], &all, &start);
        let mut rest = dead.clone();
        rest[..covered].fill(true);
        maps = outcome(&batches, &rest, &maps);
        assert_eq!(maps, outcome(&batches, &all, &start), "seed {seed}, cut {cut}");
    }
    assert!(dropped > 2000, "only {dropped} operations were dropped");
}

fn patch(key: &str, offset: u32, bytes: &'static [u8]) -> LoggedOp {
    LoggedOp::Point {
        index: INDEX,
        key: key.as_bytes().into(),
        op: Op::Patch { offset, bytes: Bytes::from_static(bytes) },
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
        assert_eq!(superseded(&[batch(1, ops.clone())]), expected, "{ops:?}");
    }
}
