//! Records: round trips, and decoding whatever comes.

use super::super::codec::{
    GroupDecoder, GroupEncoder, PartTable, Placed, Reader, Reference, Resolve, decode_parts, put_varint,
};
use super::model::Workload;
use super::*;

struct Resolved(Vec<Arc<PieceHandle>>);

impl Resolve for Resolved {
    fn resolve(&mut self, Reference { part, offset, len, sums }: Reference) -> Result<Value> {
        Ok(Value::stored(ValueRef { part: self.0[part].clone(), offset, len, sums }))
    }
}

/// Ops with their large values settled at random, encoded as one batch.
struct Encoded {
    ops: Vec<LoggedOp>,
    table: PartTable,
    bytes: Vec<u8>,
}

fn encode(work: &mut Workload) -> Encoded {
    let mut ops: Vec<_> = (0..work.random.below(30)).map(|_| work.op()).collect();
    let mut table = PartTable::default();
    let mut placed = Vec::new();
    for op in &mut ops {
        let LoggedOp::Point { op: Op::Insert(value) | Op::Patch { bytes: value, .. }, .. } = op else {
            continue;
        };
        let Some(large) = value.large().cloned() else { continue };
        if work.random.one_in(2) {
            placed.push(Placed::Inline(large.bytes().unwrap()));
            continue;
        }
        let part = PieceHandle::counted(PieceId(work.random.between(1..=5)));
        let start = work.random.below(1 << 40);
        let location = Location {
            extent: Extent { start, blocks: 64 },
            len: 64 << 12,
            checksum: start,
            kind: PieceKind::Values,
            scattered: false,
        };
        table.add(&part, || Ok(location)).unwrap();
        let sums = (0..large.len().div_ceil(VALUE_PAGE)).map(|n| n as u32).collect();
        let offset = work.random.below(100_000) as u32;
        let place = ValueRef { part, offset, len: large.len() as u32, sums };
        *value = Value::stored(place.clone());
        placed.push(Placed::Stored(place));
    }
    let mut bytes = Vec::new();
    table.encode(&mut bytes);
    put_varint(&mut bytes, 77);
    put_varint(&mut bytes, ops.len() as u64);
    let mut encoder = GroupEncoder::default();
    let mut rest = &placed[..];
    for op in &ops {
        let (own, others) = rest.split_at(op.large_values().len());
        rest = others;
        encoder.op(op, own, &table, &mut bytes).unwrap();
    }
    encoder.end_batch(&mut bytes);
    Encoded { ops, table, bytes }
}

fn decode(bytes: &[u8], count: u32, limit: u64) -> Result<(u64, Vec<LoggedOp>, bool)> {
    let mut reader = Reader(bytes);
    let parts = decode_parts(&mut reader, count)?;
    let handles = parts.iter().map(|(id, _)| PieceHandle::counted(*id)).collect();
    let mut decoder = GroupDecoder::new(reader, &parts, limit);
    let (skip, ops) = decoder.batch(&mut Resolved(handles))?;
    Ok((skip, ops, decoder.is_empty()))
}

#[test]
fn round_trip() {
    for seed in 0..500 {
        let mut work = Workload::new(seed);
        let encoded = encode(&mut work);
        let bound: u64 = encoded.ops.iter().map(super::super::codec::op_bound).sum();
        assert!(encoded.bytes.len() as u64 <= bound + 32, "seed {seed}: the bound is too low");
        let count = encoded.table.parts.len() as u32;
        let (skip, ops, empty) = decode(&encoded.bytes, count, bound).unwrap();
        assert_eq!((skip, empty), (77, true), "seed {seed}");
        assert_eq!(ops, encoded.ops, "seed {seed}");
    }
}

#[test]
fn superseded_runs_keep_their_number() {
    let ops = [LoggedOp::Superseded, LoggedOp::Superseded, delete("a"), LoggedOp::Superseded];
    let (mut bytes, mut encoder) = (Vec::new(), GroupEncoder::default());
    put_varint(&mut bytes, 0);
    put_varint(&mut bytes, ops.len() as u64);
    for op in &ops {
        encoder.op(op, &[], &PartTable::default(), &mut bytes).unwrap();
    }
    encoder.end_batch(&mut bytes);
    assert_eq!(decode(&bytes, 0, 1000).unwrap().1, ops);
}

#[test]
fn damaged_records_give_errors() {
    for seed in 0..3000 {
        let mut work = Workload::new(seed);
        work.longest = 4200;
        let Encoded { table, mut bytes, .. } = encode(&mut work);
        let random = &mut work.random;
        match random.below(3) {
            0 => bytes.truncate(random.index(bytes.len())),
            1 => {
                for _ in 0..random.between(1..=4) {
                    let at = random.index(bytes.len());
                    bytes[at] = random.next_u64() as u8;
                }
            }
            _ => random.fill(&mut bytes),
        }
        let count = if random.one_in(5) { random.next_u64() as u32 } else { table.parts.len() as u32 };
        // Whatever it is, it is no panic.
        let _ = decode(&bytes, count, 1 << 20);
    }
}

#[test]
fn small_input_does_not_grow_without_bound() {
    // A key of 1000 bytes, then records of 4 bytes that repeat it whole.
    let mut bytes = Vec::new();
    put_varint(&mut bytes, 0);
    put_varint(&mut bytes, 1 << 40);
    let mut encoder = GroupEncoder::default();
    let op = LoggedOp::Point { index: INDEX, key: vec![b'k'; 1000].into(), op: Op::Delete };
    for _ in 0..100_000 {
        encoder.op(&op, &[], &PartTable::default(), &mut bytes).unwrap();
    }
    let error = decode(&bytes, 0, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("larger than the log accepts"), "{error}");

    // A run of superseded records that would fill the memory.
    let mut bytes = Vec::new();
    put_varint(&mut bytes, 0);
    put_varint(&mut bytes, u64::MAX);
    bytes.push(0);
    put_varint(&mut bytes, u64::MAX);
    assert_eq!(decode(&bytes, 0, 1 << 20).unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn an_empty_value_in_a_part_is_damage() {
    let part = PieceHandle::counted(PieceId(1));
    let location = Location {
        extent: Extent { start: 5, blocks: 1 },
        len: 1 << 12,
        checksum: 9,
        kind: PieceKind::Values,
        scattered: false,
    };
    let mut table = PartTable::default();
    table.add(&part, || Ok(location)).unwrap();
    for len in [VALUE_PAGE as u32, 0] {
        let sums = (0..len as usize / VALUE_PAGE).map(|n| n as u32).collect();
        let place = ValueRef { part: part.clone(), offset: 0, len, sums };
        let op = Op::Insert(Value::stored(place.clone()));
        let op = LoggedOp::Point { index: INDEX, key: b"k"[..].into(), op };
        let mut bytes = Vec::new();
        table.encode(&mut bytes);
        put_varint(&mut bytes, 0);
        put_varint(&mut bytes, 1);
        GroupEncoder::default().op(&op, &[Placed::Stored(place)], &table, &mut bytes).unwrap();
        let outcome = decode(&bytes, 1, 1 << 20);
        if len > 0 {
            assert_eq!(outcome.unwrap().1, [op]);
        } else {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged);
            assert!(error.to_string().contains("an empty value in a part"), "{error}");
        }
    }
}

#[test]
fn positions_round_trip() {
    let position = LogPosition { block: 1, lsn: Lsn(2), chain: 3, synced: 4 };
    assert_eq!(LogPosition::decode(&position.encode()), position);
}

#[test]
fn varints() {
    for n in [0, 1, 127, 128, 1 << 32, u64::MAX - 1, u64::MAX] {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, n);
        assert_eq!(Reader(&bytes).varint("n").unwrap(), n);
    }
    assert!(Reader(&[0xff; 10]).varint("n").is_err());
    assert!(Reader(&[0x80; 4]).varint("n").is_err());
}
