//! Parts against a plain list of entries, and against damage.

use super::*;
use crate::model::op::Update;
use crate::model::options::Compression;
use crate::model::piece::PieceHandle;
use crate::model::value::{VALUE_PAGE, Value, ValueRef};
use crate::pieces::frame::{self, Encoded};
use crate::{ErrorKind, Msn, PieceKind, Result};
use proptest::prelude::*;

type Row = (Vec<u8>, u64, Op);

const ID: PieceId = PieceId(77);

fn stored_value(part: u64, offset: u32, len: u32) -> Value {
    let sums = (0..(len as usize).div_ceil(VALUE_PAGE) as u32).map(|i| i.wrapping_mul(offset | 1)).collect();
    Value::stored(ValueRef { part: PieceHandle::counted(PieceId(part)), offset, len, sums })
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
    prop_oneof![
        bytes().prop_map(|b| Op::Insert(b.into())),
        (1u64..4, any::<u16>(), 4096u32..20_000)
            .prop_map(|(part, offset, len)| { Op::Insert(stored_value(part, u32::from(offset), len)) }),
        Just(Op::Delete),
        (any::<u32>(), bytes()).prop_map(|(offset, bytes)| Op::Patch { offset, bytes: bytes.into() }),
        (0u32..1 << 20, 1u64..4, any::<u16>(), 4096u32..20_000).prop_map(|(offset, part, at, len)| {
            Op::Patch { offset, bytes: stored_value(part, u32::from(at), len) }
        }),
        prop::collection::vec((1u64..4, any::<u16>(), 1u32..4), 2..5).prop_map(|segments| {
            let segment = |(part, at, pages)| stored_value(part, u32::from(at), pages * 4096);
            let segments = segments.into_iter().map(segment).filter_map(|v| v.large().cloned());
            Op::Insert(Value::composed(segments.collect()))
        }),
        (any::<u16>(), bytes()).prop_map(|(function, argument)| Op::Update(Update { function, argument })),
    ]
}

/// Keys that share prefixes, repeat, and are now and then very long.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let short = prop::collection::vec(prop::sample::select(vec![0u8, 1, b'a', 0xff]), 0..6);
    prop_oneof![
        40 => short.clone(),
        1 => (short, 60_000usize..70_000).prop_map(|(key, n)| [vec![b'x'; n], key].concat()),
    ]
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let msn = prop_oneof![0u64..20, any::<u64>()];
    prop::collection::vec((key(), msn, op()), 1..120).prop_map(|mut rows| {
        rows.sort_by(|a, b| (&a.0, b.1).cmp(&(&b.0, a.1)));
        rows.dedup_by(|a, b| (&a.0, a.1) == (&b.0, b.1));
        rows
    })
}

fn build(rows: &[Row]) -> Arc<Part> {
    let mut builder = PartBuilder::new();
    for (key, msn, op) in rows {
        builder.push(key, Msn(*msn), op).unwrap();
    }
    assert_eq!(builder.entries(), rows.len());
    Arc::new(builder.finish())
}

fn stored(encoded: &Encoded) -> Bytes {
    let location = encoded.location(crate::Extent { start: 0, blocks: encoded.blocks() });
    assert_eq!(location.checksum, frame::checksum(ID, &encoded.bytes()[..location.len as usize]));
    Bytes::copy_from_slice(&encoded.bytes()[..location.len as usize])
}

fn decode(stored: &Bytes) -> Result<Arc<Part>> {
    Part::decode(ID, stored, &PieceHandle::counted).map(Arc::new)
}

fn here(cursor: &PartCursor) -> Option<Row> {
    cursor.valid().then(|| (cursor.key().to_vec(), cursor.msn().0, cursor.op()))
}

fn check_equal(part: &Arc<Part>, rows: &[Row]) {
    assert_eq!(part.len(), rows.len());
    assert_eq!(part.first_key(), rows[0].0);
    assert_eq!(part.last_key(), rows[rows.len() - 1].0);
    let mut cursor = part.cursor();
    for row in rows {
        cursor.next();
        assert_eq!(here(&cursor).as_ref(), Some(row));
    }
    cursor.next();
    assert!(!cursor.valid());
    for row in rows.iter().rev() {
        cursor.prev();
        assert_eq!(here(&cursor).as_ref(), Some(row));
    }
    cursor.prev();
    assert!(!cursor.valid());
    assert_eq!(part.values().len(), rows.iter().map(|r| r.2.large_values().len()).sum::<usize>());
    assert!(rows.iter().all(|r| part.filter().may_contain(&r.0)));
}

fn check_seeks(part: &Arc<Part>, rows: &[Row], target: &[u8]) {
    let mut cursor = part.cursor();
    let first = rows.partition_point(|r| *r.0 < *target);
    cursor.seek(target);
    assert_eq!(here(&cursor).as_ref(), rows.get(first));
    cursor.next();
    assert_eq!(here(&cursor).as_ref(), rows.get(first + 1));
    cursor.seek_before(target);
    assert_eq!(here(&cursor), first.checked_sub(1).map(|i| rows[i].clone()));
    cursor.next();
    assert_eq!(here(&cursor).as_ref(), rows.get(first));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_part_is_its_rows(rows in rows(), targets in prop::collection::vec(key(), 10)) {
        let part = build(&rows);
        check_equal(&part, &rows);
        for target in targets.iter().chain(rows.iter().map(|r| &r.0)) {
            check_seeks(&part, &rows, target);
        }
    }

    #[test]
    fn a_part_comes_back(rows in rows()) {
        let part = build(&rows);
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let encoded = part.encode(ID, compression).unwrap();
            let back = decode(&stored(&encoded)).unwrap();
            check_equal(&back, &rows);
            prop_assert_eq!(back.value_parts(), part.value_parts());
            prop_assert_eq!(back.value_bytes(), part.value_bytes());
            let holds: Vec<PieceId> = encoded.into_holds().iter().map(|h| h.id()).collect();
            prop_assert_eq!(holds.len(), part.value_parts().len());
        }
    }

    #[test]
    fn cursors_turn_anywhere(rows in rows(), steps in prop::collection::vec(any::<bool>(), 0..200)) {
        let part = build(&rows);
        let mut cursor = part.cursor();
        let (mut model, end) = (-1i64, rows.len() as i64);
        for forward in steps {
            if forward { cursor.next() } else { cursor.prev() }
            model = (model + if forward { 1 } else { -1 }).clamp(-1, end);
            let expected = usize::try_from(model).ok().and_then(|i| rows.get(i));
            prop_assert_eq!(here(&cursor), expected.cloned());
        }
    }

    #[test]
    fn damage_is_an_error_or_another_part(
        rows in rows(), at: prop::sample::Index, xor in 1u8.., compression in 0..3usize,
    ) {
        let compression = [Compression::None, Compression::Lz4, Compression::Zstd][compression];
        let mut bytes = stored(&build(&rows).encode(ID, compression).unwrap()).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= xor;
        read_everything(&bytes.into());
    }

    #[test]
    fn random_bodies_are_survived(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for compression in [0, 1, 2] {
            let encoded = Encoded::new(ID, PieceKind::KeyValue, &body, Compression::None, Vec::new()).unwrap();
            let mut bytes = stored(&encoded).to_vec();
            bytes[7] = compression;
            read_everything(&bytes.into());
        }
    }
}

/// Reads whatever can be read; the result does not matter, only that there is one.
fn read_everything(stored: &Bytes) {
    let Ok(part) = decode(stored) else { return };
    let mut cursor = part.cursor();
    let mut keys = Vec::new();
    for _ in 0..part.len() {
        cursor.next();
        assert!(cursor.valid());
        let _ = cursor.op();
        keys.push(cursor.key().to_vec());
    }
    cursor.next();
    assert!(!cursor.valid());
    assert!(keys.is_sorted(), "decoding lets unsorted keys pass");
    for key in &keys {
        cursor.seek(key);
        assert_eq!(cursor.key(), key);
    }
    let _ = (part.value_parts(), part.filter(), part.memory());
}

fn sample() -> Vec<Row> {
    (0..40u32)
        .map(|i| {
            let op = match i % 5 {
                0 => Op::Insert(stored_value(u64::from(i % 2 + 1), i * 8, 5000)),
                1 => Op::Delete,
                2 => Op::Patch { offset: i, bytes: Value::from(vec![7; 9]) },
                3 => Op::Update(Update { function: 3, argument: Bytes::from_static(b"now") }),
                _ => Op::Insert(Value::from(vec![1; 11])),
            };
            (format!("dir/{:03}", i / 2).into_bytes(), u64::from(100 - i), op)
        })
        .collect()
}

#[test]
fn every_flipped_bit_and_every_truncation_is_survived() {
    let rows = sample();
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let good = stored(&build(&rows).encode(ID, compression).unwrap());
        check_equal(&decode(&good).unwrap(), &rows);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.to_vec();
                bytes[at] ^= 1 << bit;
                read_everything(&bytes.into());
            }
            assert!(decode(&good.slice(..at)).is_err(), "{at} of {} bytes pass", good.len());
        }
    }
}

#[test]
fn a_header_that_lies_about_sizes_is_refused_without_the_memory() {
    let good = stored(&build(&sample()).encode(ID, Compression::None).unwrap());
    for compression in 0..=3 {
        for length in [u32::MAX, 64 << 20, (64 << 20) + 1, 0] {
            let mut bytes = good.to_vec();
            bytes[7] = compression;
            bytes[16..20].copy_from_slice(&length.to_le_bytes());
            assert!(decode(&bytes.into()).is_err());
        }
    }
    // The counts in the body.
    for field in 0..5 {
        for number in [u32::MAX, u32::MAX / 4, 0, 1 << 20] {
            let mut bytes = good.to_vec();
            let at = 24 + field * 4;
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            assert!(decode(&bytes.into()).is_err(), "field {field} = {number}");
        }
    }
}

#[test]
fn another_piece_is_refused() {
    let encoded = build(&sample()).encode(ID, Compression::None).unwrap();
    let bytes = stored(&encoded);
    assert!(Part::decode(PieceId(78), &bytes, &PieceHandle::counted).is_err());
    assert!(frame::open(ID, PieceKind::Node(0), &bytes).is_err());
    let node = Encoded::new(ID, PieceKind::Node(3), b"header", Compression::Zstd, Vec::new()).unwrap();
    assert_eq!(&*frame::open(ID, PieceKind::Node(3), &stored(&node)).unwrap(), b"header");
    assert!(frame::open(ID, PieceKind::Node(2), &stored(&node)).is_err());
    assert!(decode(&stored(&node)).is_err());
    let mut newer = bytes.to_vec();
    newer[4] = 2;
    assert_eq!(decode(&newer.into()).unwrap_err().kind(), crate::ErrorKind::NewerFormat);
}

#[test]
fn compression_is_used_where_it_saves_a_block() {
    let rows: Vec<Row> = (0..400u32)
        .map(|i| (format!("{i:06}").into_bytes(), 1, Op::Insert(Value::from(vec![b'z'; 100]))))
        .collect();
    let part = build(&rows);
    let blocks = |c| part.encode(ID, c).unwrap().blocks();
    assert_eq!(blocks(Compression::None), 11);
    assert!(blocks(Compression::Lz4) <= 3 && blocks(Compression::Zstd) <= 3);
    let small = build(&rows[..10]);
    let encoded = small.encode(ID, Compression::Zstd).unwrap();
    assert_eq!((encoded.blocks(), encoded.bytes()[7]), (1, 0));
}

#[test]
fn what_is_not_compressed_is_not_copied() {
    let bytes = stored(&build(&sample()).encode(ID, Compression::None).unwrap());
    let part = decode(&bytes).unwrap();
    let mut cursor = part.cursor();
    let inside = |b: &Bytes| bytes.as_ptr_range().contains(&b.as_ptr());
    for _ in 0..part.len() {
        cursor.next();
        match cursor.op() {
            Op::Patch { bytes, .. } => assert!(bytes.in_memory().is_none_or(|b| inside(&b))),
            Op::Update(update) => assert!(inside(&update.argument)),
            Op::Insert(value) => assert!(value.in_memory().is_none_or(|b| inside(&b))),
            Op::Delete => {}
        }
    }
}

#[test]
fn values_that_are_not_stored_cannot_be_encoded() {
    let part = build(&[(b"k".to_vec(), 1, Op::Insert(Value::from(vec![1; 4096])))]);
    assert_eq!(part.value_bytes(), 4096);
    assert!(part.value_parts().is_empty());
    assert!(part.encode(ID, Compression::None).is_err());
}

#[test]
fn disorder_is_refused() {
    for (key, msn) in [("a", 1), ("b", 2), ("", 1)] {
        let mut builder = PartBuilder::new();
        builder.push(b"b", Msn(1), &Op::Delete).unwrap();
        let refused = builder.push(key.as_bytes(), Msn(msn), &Op::Delete).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Damaged);
        // What is there stays as it was.
        builder.push(b"c", Msn(1), &Op::Delete).unwrap();
        let part = Arc::new(builder.finish());
        assert_eq!((part.len(), part.first_key(), part.last_key()), (2, &b"b"[..], &b"c"[..]));
    }
}
